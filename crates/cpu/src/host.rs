//! The host's resources available to this process: physical cores, memory, and the peak of memory used.

use std::collections::BTreeSet;

/// CPU topology and limits as plain data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Topology {
    /// Logical CPUs on which the process may run.
    pub allowed: Vec<usize>,
    /// For each of `allowed`, the logical CPUs that share its core, including itself; empty if the system does not
    /// say.
    pub siblings: Vec<Vec<usize>>,
    /// CPU time granted by control groups, in CPUs; `None` without a limit.
    pub quota: Option<f64>,
    /// All NUMA nodes of the machine, also those without CPUs and those on which the process may not run; empty if the
    /// system does not say.
    pub nodes: Vec<Node>,
}

/// A NUMA node: memory, and the CPUs that are close to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    /// The system's number for it. Numbers may have gaps.
    pub number: usize,
    /// Its logical CPUs; none if it has only memory.
    pub cpus: Vec<usize>,
    /// Its memory in bytes; 0 if unknown.
    pub memory_bytes: u64,
}

impl Topology {
    /// Number of threads to run: one per allowed core, at most the quota, at least one.
    #[must_use]
    pub fn threads(&self) -> usize {
        // With a quota of 2.5 CPUs, three threads would be throttled half of the time: 2 are faster.
        let paid = self.quota.map_or(usize::MAX, |quota| quota.max(1.0) as usize);
        self.cores(&self.allowed).min(paid).max(1)
    }

    /// Number of cores to which the allowed ones of some logical CPUs belong.
    pub(crate) fn cores(&self, cpus: &[usize]) -> usize {
        let allowed = self.allowed.iter().enumerate().filter(|(_, cpu)| cpus.contains(cpu));
        let cores: BTreeSet<usize> = allowed
            .map(|(at, &cpu)| {
                let siblings = self.siblings.get(at).map_or(&[][..], Vec::as_slice);
                // A core is identified by its first allowed logical CPU.
                siblings.iter().copied().filter(|s| self.allowed.contains(s)).min().unwrap_or(cpu)
            })
            .collect();
        cores.len()
    }

    /// Queries the operating system.
    #[must_use]
    pub fn of_this_process() -> Topology {
        let allowed = system::allowed();
        let siblings = allowed.iter().map(|&cpu| system::siblings(cpu)).collect();
        Topology { allowed, siblings, quota: system::quota(), nodes: system::nodes() }
    }
}

/// Memory available to the process in bytes: the machine's, or less if a control group limits it; 0 if unknown.
#[must_use]
pub fn memory_bytes() -> u64 {
    system::memory_bytes()
}

/// The CPU's model name, such as `Intel(R) Xeon(R) Processor`, or its architecture if unknown.
#[must_use]
pub fn name() -> String {
    let name = system::cpuinfo().and_then(|text| parse_cpu_name(&text));
    name.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// Peak memory of this process in bytes, including resident pages of mapped files, since its start or
/// [`restart_peak`]. `None` if unknown.
#[must_use]
pub fn peak_resident_bytes() -> Option<u64> {
    parse_peak(&system::status()?)
}

/// Resets [`peak_resident_bytes`] to the current memory. Returns false if the system does not support it.
pub fn restart_peak() -> bool {
    system::restart_peak()
}

/// Returns to the system what the process has freed and the allocator keeps. glibc has a heap for each of many threads and
/// returns only the end of a heap, so that a process whose threads come and go holds several times what it uses. Takes
/// about a millisecond for 100 MB; other allocators are left alone.
///
/// From the first call on, glibc maps blocks of 128 KiB and more, each apart, and unmaps them when they are freed. Otherwise
/// it raises that limit to the size of any mapped block that is freed, up to 32 MiB, and takes smaller ones from heaps: a
/// process that unloads models, whose drivers allocate such blocks, comes to hold pages that nobody uses between them.
pub fn return_free_memory() {
    system::return_free_memory();
}

/// The first name in `/proc/cpuinfo`: `model name : ...`, or `Model : ...` on boards without one.
fn parse_cpu_name(text: &str) -> Option<String> {
    let field = |wanted: &str| {
        let mut fields = text.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(key, _)| key.trim() == wanted).map(|(_, value)| value.trim().to_owned())
    };
    ["model name", "Model"].into_iter().find_map(field).filter(|name| !name.is_empty())
}

/// Bytes of the line `VmHWM:     1616 kB` of `/proc/self/status`.
fn parse_peak(text: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// The numbers of a list such as `0-3,8`, as Linux formats CPU sets; unreadable parts are ignored.
#[cfg(any(test, target_os = "linux"))]
fn parse_list(list: &str) -> Vec<usize> {
    let mut numbers = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<usize>(), last.trim().parse::<usize>())
        {
            numbers.extend(first..=last.min(first + 4096));
        }
    }
    numbers
}

/// The NUMA nodes among the entries of sysfs's folder of nodes, in the order of their numbers. `read` reads a file of an
/// entry.
#[cfg(any(test, target_os = "linux"))]
fn parse_nodes(
    entries: impl Iterator<Item = String>,
    read: impl Fn(&str, &str) -> Option<String>,
) -> Vec<Node> {
    let node = |entry: String| {
        let number = entry.strip_prefix("node")?.parse().ok()?;
        // `Node 0 MemTotal:  8123456 kB`
        let memory = read(&entry, "meminfo").unwrap_or_default();
        let total = memory.lines().find_map(|line| line.split_once("MemTotal:"));
        let kilobytes =
            total.and_then(|(_, value)| value.trim().strip_suffix("kB")?.trim().parse().ok());
        let memory_bytes = kilobytes.and_then(|kb: u64| kb.checked_mul(1024)).unwrap_or(0);
        Some(Node { number, cpus: parse_list(&read(&entry, "cpulist")?), memory_bytes })
    };
    let mut nodes: Vec<Node> = entries.filter_map(node).collect();
    nodes.sort_by_key(|node| node.number);
    nodes
}

/// CPUs granted by a version 2 `cpu.max`: `200000 100000`, or `max 100000` for no limit.
#[cfg(any(test, target_os = "linux"))]
fn parse_cpu_max(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    share(quota, period)
}

/// CPUs granted by a quota and a period in microseconds; `-1` and `max` mean no limit.
#[cfg(any(test, target_os = "linux"))]
fn share(quota: &str, period: &str) -> Option<f64> {
    let quota: f64 = quota.trim().parse().ok()?;
    let period: f64 = period.trim().parse().ok()?;
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

/// The lowest memory limit of control groups and their parents, in bytes: `memory.max` of version 2,
/// `memory.limit_in_bytes` of version 1. `groups` is `/proc/self/cgroup`; `read` reads a file.
#[cfg(any(test, target_os = "linux"))]
fn memory_limit(groups: &str, read: impl Fn(&std::path::Path) -> Option<String>) -> Option<u64> {
    let of_line = |line: &str| -> Option<u64> {
        let (_, rest) = line.split_once(':')?;
        let (controllers, group) = rest.split_once(':')?;
        let (root, file) = match controllers.split(',').any(|name| name == "memory") {
            true => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            false if controllers.is_empty() => ("/sys/fs/cgroup", "memory.max"),
            false => return None,
        };
        let folders = chain(root, group).into_iter();
        folders.filter_map(|dir| read(&dir.join(file))?.trim().parse().ok()).min()
    };
    groups.lines().filter_map(of_line).min()
}

/// The folders of `group` and its parents under `root`, innermost first.
#[cfg(any(test, target_os = "linux"))]
fn chain(root: &str, group: &str) -> Vec<std::path::PathBuf> {
    let inner = std::path::Path::new(root).join(group.trim_start_matches('/'));
    inner.ancestors().take_while(|path| path.starts_with(root)).map(Into::into).collect()
}

#[cfg(target_os = "linux")]
mod system {
    //! Linux: the affinity mask, sysfs, and both versions of control groups.

    use std::fs::read_to_string;

    use rustix::thread::{CpuSet, sched_getaffinity};

    use super::{Node, chain, memory_limit, parse_cpu_max, parse_list, parse_nodes, share};

    pub fn allowed() -> Vec<usize> {
        let Ok(set) = sched_getaffinity(None) else {
            let count = std::thread::available_parallelism().map_or(1, usize::from);
            return (0..count).collect();
        };
        (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
    }

    pub fn nodes() -> Vec<Node> {
        const FOLDER: &str = "/sys/devices/system/node";
        let Ok(listed) = std::fs::read_dir(FOLDER) else { return Vec::new() };
        let names = listed.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        parse_nodes(names, |entry, file| read_to_string(format!("{FOLDER}/{entry}/{file}")).ok())
    }

    pub fn memory_bytes() -> u64 {
        // SAFETY: the calls only return values.
        let (pages, page_bytes) =
            unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
        let machine = u64::try_from(pages).unwrap_or(0) * u64::try_from(page_bytes).unwrap_or(0);
        let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
        let limit = memory_limit(&groups, |path| read_to_string(path).ok());
        limit.map_or(machine, |limit| limit.min(machine))
    }

    pub fn cpuinfo() -> Option<String> {
        read_to_string("/proc/cpuinfo").ok()
    }

    pub fn status() -> Option<String> {
        read_to_string("/proc/self/status").ok()
    }

    pub fn restart_peak() -> bool {
        // proc(5): 5 sets the peak to what is resident now.
        std::fs::write("/proc/self/clear_refs", "5").is_ok()
    }

    /// Size from which glibc maps blocks, bytes: its limit at the start of a process.
    #[cfg(target_env = "gnu")]
    const MAPPED_BYTES: libc::c_int = 128 << 10;

    pub fn return_free_memory() {
        // SAFETY: glibc gives up pages within free blocks only, and a limit changes no block that there is.
        #[cfg(target_env = "gnu")]
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES);
            libc::malloc_trim(0);
        }
    }

    pub fn siblings(cpu: usize) -> Vec<usize> {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        read_to_string(path).map_or_else(|_| Vec::new(), |text| parse_list(&text))
    }

    /// The lowest quota of the process's control group and its ancestors.
    pub fn quota() -> Option<f64> {
        let groups = read_to_string("/proc/self/cgroup").ok()?;
        let mut least: Option<f64> = None;
        for line in groups.lines() {
            let mut fields = line.splitn(3, ':');
            let (_, Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let found: Vec<f64> = if controllers.is_empty() {
                let max = |dir: std::path::PathBuf| read_to_string(dir.join("cpu.max")).ok();
                let folders = chain("/sys/fs/cgroup", group).into_iter();
                folders.filter_map(|dir| parse_cpu_max(&max(dir)?)).collect()
            } else if controllers.split(',').any(|name| name == "cpu") {
                let folders = chain("/sys/fs/cgroup/cpu", group).into_iter();
                folders
                    .filter_map(|dir| {
                        let quota = read_to_string(dir.join("cpu.cfs_quota_us")).ok()?;
                        let period = read_to_string(dir.join("cpu.cfs_period_us")).ok()?;
                        share(&quota, &period)
                    })
                    .collect()
            } else {
                continue;
            };
            least = found.into_iter().chain(least).reduce(f64::min);
        }
        least
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    //! Other systems: the standard library's count of CPUs.

    use super::Node;

    pub fn nodes() -> Vec<Node> {
        Vec::new()
    }

    pub fn allowed() -> Vec<usize> {
        (0..std::thread::available_parallelism().map_or(1, usize::from)).collect()
    }

    #[cfg(target_vendor = "apple")]
    pub fn memory_bytes() -> u64 {
        number(c"hw.memsize")
    }

    /// A number of the system, of 32 or 64 bits; 0 if it is unknown.
    #[cfg(target_vendor = "apple")]
    fn number(name: &std::ffi::CStr) -> u64 {
        // The bytes of a shorter number are the lower ones.
        let (mut value, mut len) = (0u64, size_of::<u64>());
        // SAFETY: the name ends with a zero, and the value is an integer of the length that is passed.
        let failed = unsafe {
            let to = std::ptr::from_mut(&mut value).cast();
            libc::sysctlbyname(name.as_ptr(), to, &mut len, std::ptr::null_mut(), 0)
        };
        if failed == 0 { value } else { 0 }
    }

    #[cfg(windows)]
    pub fn memory_bytes() -> u64 {
        use windows::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX};

        let own = size_of::<MEMORYSTATUSEX>() as u32;
        let mut status = MEMORYSTATUSEX { dwLength: own, ..MEMORYSTATUSEX::default() };
        // SAFETY: the structure says its own length.
        match unsafe { GlobalMemoryStatusEx(&mut status) } {
            Ok(()) => status.ullTotalPhys,
            Err(_) => 0,
        }
    }

    #[cfg(not(any(target_vendor = "apple", windows)))]
    pub fn memory_bytes() -> u64 {
        0
    }

    pub fn cpuinfo() -> Option<String> {
        None
    }

    pub fn status() -> Option<String> {
        None
    }

    pub fn restart_peak() -> bool {
        false
    }

    pub fn return_free_memory() {}

    /// All cores of a Mac have as many logical CPUs.
    #[cfg(target_vendor = "apple")]
    pub fn siblings(cpu: usize) -> Vec<usize> {
        let (logical, cores) = (number(c"hw.logicalcpu"), number(c"hw.physicalcpu"));
        let each = logical.checked_div(cores).map_or(1, |each| each.max(1) as usize);
        let first = cpu - cpu % each;
        (first..first + each).collect()
    }

    #[cfg(not(target_vendor = "apple"))]
    pub fn siblings(_cpu: usize) -> Vec<usize> {
        Vec::new()
    }

    pub fn quota() -> Option<f64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_count_once_and_the_quota_bounds() {
        let pairs = |cpus: &[usize]| -> Vec<Vec<usize>> {
            cpus.iter().map(|&c| vec![c % 4, c % 4 + 4]).collect()
        };
        let all: Vec<usize> = (0..8).collect();
        // (allowed, siblings, quota) -> threads
        let cases = [
            (all.clone(), pairs(&all), None, 4),
            (all.clone(), Vec::new(), None, 8),
            (all.clone(), pairs(&all), Some(2.5), 2),
            (all.clone(), pairs(&all), Some(0.5), 1),
            (all.clone(), pairs(&all), Some(16.0), 4),
            (vec![4, 5], pairs(&[4, 5]), None, 2),
            (vec![1, 5], pairs(&[1, 5]), None, 1),
            (Vec::new(), Vec::new(), None, 1),
        ];
        for (allowed, siblings, quota, threads) in cases {
            let topology = Topology { allowed, siblings, quota, nodes: Vec::new() };
            assert_eq!(topology.threads(), threads, "{topology:?}");
        }
    }

    #[test]
    fn the_texts_of_the_kernel_are_read() {
        assert_eq!(parse_list("0-2,8\n"), [0, 1, 2, 8]);
        assert_eq!(parse_list(""), Vec::<usize>::new());
        assert_eq!(parse_cpu_max("200000 100000\n"), Some(2.0));
        assert_eq!(parse_cpu_max("max 100000"), None);
        assert_eq!(share("-1", "100000"), None);
        assert_eq!(share("150000", "100000"), Some(1.5));
        assert!(Topology::of_this_process().threads() >= 1);
        #[cfg(target_os = "linux")]
        assert!(memory_bytes() > 1 << 20);
    }

    #[test]
    fn the_lowest_memory_limit_of_both_versions_of_control_groups_counts() {
        let read = |path: &std::path::Path| {
            // Also on Windows, where the parts are joined otherwise.
            let text = match path.to_str()?.replace('\\', "/").as_str() {
                "/sys/fs/cgroup/memory.max" => "max\n",
                "/sys/fs/cgroup/slice/memory.max" => "3000\n",
                "/sys/fs/cgroup/slice/unit/memory.max" => "4000\n",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes" => "9223372036854771712\n",
                "/sys/fs/cgroup/memory/docker/memory.limit_in_bytes" => "2000\n",
                "/sys/fs/cgroup/memory/docker/id/memory.limit_in_bytes" => "5000\n",
                _ => return None,
            };
            Some(text.to_owned())
        };
        let limit = |groups: &str| memory_limit(groups, read);
        assert_eq!(limit("0::/slice/unit\n"), Some(3000));
        assert_eq!(limit("0::/\n"), None);
        assert_eq!(limit("11:cpu,cpuacct:/docker/id\n5:memory:/docker/id\n"), Some(2000));
        assert_eq!(limit("5:memory:/elsewhere\n0::/slice\n"), Some(3000));
        assert_eq!(limit("5:memory:/elsewhere\n"), Some(9_223_372_036_854_771_712));
        assert_eq!(limit("1:name=systemd:/docker/id\nodd\n"), None);
    }

    #[test]
    fn nodes_are_read_in_the_order_of_their_numbers() {
        let read = |entry: &str, file: &str| {
            let text = match (entry, file) {
                ("node0", "cpulist") => "0-1,4-5\n",
                ("node0", "meminfo") => "Node 0 MemTotal:     2048 kB\nNode 0 MemFree: 7 kB\n",
                ("node8", "cpulist") => "2-3,6-7\n",
                ("node2", "cpulist") => "\n",
                ("node2", "meminfo") => "Node 2 MemTotal: lots\n",
                _ => return None,
            };
            Some(text.to_owned())
        };
        let names = ["has_cpu", "node8", "node2", "nodes", "node0", "node9", "possible"];
        let nodes = parse_nodes(names.map(str::to_owned).into_iter(), read);
        let node = |number, cpus: &[usize], memory_bytes| Node {
            number,
            cpus: cpus.to_vec(),
            memory_bytes,
        };
        assert_eq!(
            nodes,
            [node(0, &[0, 1, 4, 5], 2 << 20), node(2, &[], 0), node(8, &[2, 3, 6, 7], 0)]
        );
    }

    #[test]
    fn names_and_peaks_are_found_where_linux_writes_them() {
        let x86 = "processor\t: 0\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R) Processor\n";
        let arm = "processor\t: 0\nFeatures\t: fp asimd\n\nModel\t\t: Raspberry Pi 5\n";
        let name = |text: &str| parse_cpu_name(text);
        assert_eq!(name(x86).as_deref(), Some("Intel(R) Xeon(R) Processor"));
        assert_eq!(name(arm).as_deref(), Some("Raspberry Pi 5"));
        assert_eq!(name("model name : \n"), None);
        assert_eq!(parse_peak("VmPeak:\t 9 kB\nVmHWM:\t    1616 kB\n"), Some(1616 * 1024));
        assert_eq!(parse_peak("VmHWM:\t 1616 pages\n"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_peak_begins_anew() {
        let page = || vec![1u8; 96 << 20];
        drop(std::hint::black_box(page()));
        let before = peak_resident_bytes().unwrap();
        assert!(before >= 96 << 20, "{before}");
        if !restart_peak() {
            return;
        }
        let after = peak_resident_bytes().unwrap();
        assert!(after < before, "{after} of {before}");
        drop(std::hint::black_box(page()));
        assert!(peak_resident_bytes().unwrap() >= after + (64 << 20));
    }
}
