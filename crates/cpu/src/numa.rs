//! NUMA: the nodes that threads, weights and work are divided among.
//!
//! **The idea.** Each thread is bound to the CPUs of a node, in proportion to the cores of the nodes. Each matrix's rows are
//! divided in the same proportion, and each node's rows are copied to memory that its own threads touch first, which the
//! system therefore takes from that node. A stage lists the chunks of each node apart, and a thread claims those of its own
//! node before it steals from another one. The price is a copy of the weights; results are the same bits, because a row's
//! does not depend on the thread that computes it.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::host::Topology;

/// Simulated nodes, at most.
const SIMULATED_MAX: usize = 64;

/// A node's rows of a matrix begin at a multiple of this many: results of two nodes never share a cache line, and panels are
/// whole.
const SHARE_ROWS: usize = 32;

/// How the CPU's threads and weights are divided among NUMA nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numa {
    /// Threads run where the system puts them, and read weights in the file's map.
    #[default]
    Off,
    /// Among the nodes on whose CPUs the process may run.
    Distribute,
    /// Among so many nodes that the machine does not have: as with [`Numa::Distribute`], except that threads are not bound.
    Simulate(usize),
}

/// A value that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("numa is `{given}`; {advice}")]
pub struct NumaError {
    given: String,
    /// What to do instead.
    pub advice: &'static str,
}

impl FromStr for Numa {
    type Err = NumaError;

    fn from_str(given: &str) -> Result<Numa, NumaError> {
        let advice = match given {
            "off" => return Ok(Numa::Off),
            "distribute" => return Ok(Numa::Distribute),
            "isolate" => {
                "to stay in one node, leave it out and start the program with \
                 `numactl --cpunodebind=0 --membind=0`"
            }
            "numactl" => {
                "the CPUs that numactl allows are respected without it, and distribute divides the \
                 weights among their nodes"
            }
            _ => match given.parse() {
                Ok(nodes @ 2..=SIMULATED_MAX) => return Ok(Numa::Simulate(nodes)),
                _ => "it must be off, distribute or a number of simulated nodes from 2 to 64",
            },
        };
        Err(NumaError { given: given.to_owned(), advice })
    }
}

impl fmt::Display for Numa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Numa::Off => f.write_str("off"),
            Numa::Distribute => f.write_str("distribute"),
            Numa::Simulate(nodes) => nodes.fmt(f),
        }
    }
}

/// A node in use.
#[derive(Clone, Debug, PartialEq)]
pub struct UsedNode {
    /// The system's number for it.
    pub number: usize,
    /// The logical CPUs to which its threads are bound; none if they are not bound.
    pub cpus: Vec<usize>,
    /// Its threads, at least one.
    pub threads: usize,
}

/// The nodes in use: those that have a thread, in the order of threads.
#[derive(Clone, Debug, PartialEq)]
pub struct Nodes {
    nodes: Vec<UsedNode>,
    /// Number of threads of each node and those before it.
    ends: Vec<usize>,
}

impl Nodes {
    /// One node for all threads, which are not bound.
    pub(crate) fn one(threads: usize) -> Nodes {
        Nodes {
            nodes: vec![UsedNode { number: 0, cpus: Vec::new(), threads }],
            ends: vec![threads],
        }
    }

    /// Divides `threads` threads among a machine's nodes.
    #[must_use]
    pub fn new(numa: Numa, topology: &Topology, threads: usize) -> Nodes {
        let (found, cores): (Vec<UsedNode>, Vec<usize>) = match numa {
            Numa::Off => return Nodes::one(threads),
            Numa::Distribute => {
                let allowed = |cpu: &usize| topology.allowed.contains(cpu);
                let used = topology.nodes.iter().map(|node| {
                    let cpus: Vec<usize> = node.cpus.iter().copied().filter(allowed).collect();
                    let cores = topology.cores(&cpus);
                    (UsedNode { number: node.number, cpus, threads: 0 }, cores)
                });
                used.unzip()
            }
            Numa::Simulate(count) => {
                let node = |number| (UsedNode { number, cpus: Vec::new(), threads: 0 }, 1);
                (0..count).map(node).unzip()
            }
        };
        let with_threads = found.into_iter().zip(in_proportion(&cores, threads));
        let nodes: Vec<UsedNode> = with_threads
            .filter(|(_, threads)| *threads > 0)
            .map(|(node, threads)| UsedNode { threads, ..node })
            .collect();
        // With one node there is nothing to divide.
        if nodes.len() < 2 {
            return Nodes::one(threads);
        }
        let before = |end: &mut usize, node: &UsedNode| {
            *end += node.threads;
            Some(*end)
        };
        let ends = nodes.iter().scan(0, before).collect();
        Nodes { nodes, ends }
    }

    /// The nodes.
    pub fn iter(&self) -> impl Iterator<Item = &UsedNode> {
        self.nodes.iter()
    }

    /// Number of nodes, at least one.
    #[must_use]
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Whether threads and weights are divided.
    #[must_use]
    pub fn is_divided(&self) -> bool {
        self.nodes.len() > 1
    }

    /// Number of threads.
    pub(crate) fn threads(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Number of a node's threads.
    pub(crate) fn threads_of(&self, node: usize) -> usize {
        self.nodes[node].threads
    }

    /// The node of a thread.
    pub(crate) fn of_thread(&self, thread: usize) -> usize {
        self.ends.partition_point(|&end| end <= thread).min(self.nodes.len() - 1)
    }

    /// The end of a node's share in `count` things that belong to no node, in proportion to threads.
    pub(crate) fn end(&self, count: usize, node: usize) -> usize {
        count * self.ends[node] / self.threads().max(1)
    }

    /// A node's rows of a matrix of `rows` rows. Shares are consecutive, and some are empty if there are few rows.
    pub(crate) fn rows(&self, rows: usize, node: usize) -> Range<usize> {
        let end = |node: usize| match node + 1 == self.nodes.len() {
            true => rows,
            false => ((self.end(rows, node) + SHARE_ROWS / 2) / SHARE_ROWS * SHARE_ROWS).min(rows),
        };
        node.checked_sub(1).map_or(0, end)..end(node)
    }

    /// Binds this thread to the CPUs of a node until the result is dropped; does nothing if threads are not bound.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn bind(&self, node: usize) -> std::io::Result<Bound> {
        match self.nodes[node].cpus.as_slice() {
            [] => Ok(Bound::default()),
            cpus => Bound::to(cpus),
        }
    }
}

/// Divides `threads` in proportion to `cores`; the largest remainders get one more, among equal ones the first.
fn in_proportion(cores: &[usize], threads: usize) -> Vec<usize> {
    let all = cores.iter().sum::<usize>().max(1);
    let mut shares: Vec<usize> = cores.iter().map(|cores| threads * cores / all).collect();
    let mut order: Vec<usize> = (0..cores.len()).filter(|&node| cores[node] > 0).collect();
    order.sort_by_key(|&node| std::cmp::Reverse(threads * cores[node] % all));
    let left = threads.saturating_sub(shares.iter().sum());
    order.iter().take(left).for_each(|&node| shares[node] += 1);
    shares
}

#[cfg(target_os = "linux")]
use linux::Bound;

#[cfg(target_os = "linux")]
mod linux {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    /// A thread's own CPUs, to which it returns.
    #[derive(Default)]
    pub(crate) struct Bound(Option<CpuSet>);

    impl Bound {
        /// Binds this thread to some logical CPUs.
        pub(super) fn to(cpus: &[usize]) -> std::io::Result<Bound> {
            let own = sched_getaffinity(None)?;
            let mut set = CpuSet::new();
            cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
            sched_setaffinity(None, &set)?;
            Ok(Bound(Some(own)))
        }
    }

    impl Drop for Bound {
        fn drop(&mut self) {
            if let Some(own) = &self.0 {
                // It was allowed before; if it is not any more, the thread stays on the node.
                let _ = sched_setaffinity(None, own);
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
use other::Bound;

#[cfg(not(target_os = "linux"))]
mod other {
    /// Other systems name no nodes, so that there is nothing to bind to.
    #[derive(Default)]
    pub(crate) struct Bound;

    impl Bound {
        pub(super) fn to(_: &[usize]) -> std::io::Result<Bound> {
            Err(std::io::ErrorKind::Unsupported.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Node;

    /// Nodes of these CPUs on a machine on which the process may use `allowed`.
    fn topology(nodes: &[&[usize]], allowed: &[usize]) -> Topology {
        let node = |(number, cpus): (usize, &&[usize])| Node {
            number,
            cpus: cpus.to_vec(),
            memory_bytes: 1 << 30,
        };
        Topology {
            allowed: allowed.to_vec(),
            nodes: nodes.iter().enumerate().map(node).collect(),
            ..Topology::default()
        }
    }

    /// The CPUs of nodes, the CPUs that are allowed, threads, and the nodes in use with their threads.
    type Case<'a> = (&'a [&'a [usize]], &'a [usize], usize, &'a [(usize, usize)]);

    #[test]
    fn threads_are_divided_in_proportion_to_the_allowed_cores() {
        let all: Vec<usize> = (0..16).collect();
        let (low, high): (&[usize], &[usize]) = (&all[..8], &all[8..]);
        let quarters: Vec<&[usize]> = all.chunks(4).collect();
        let uneven: &[&[usize]] = &[&all[..12], &all[12..]];
        let cases: [Case<'_>; 12] = [
            (&[low, high], &all, 16, &[(0, 8), (1, 8)]),
            (&[low, high], &all, 5, &[(0, 3), (1, 2)]),
            (uneven, &all, 16, &[(0, 12), (1, 4)]),
            (uneven, &all, 2, &[(0, 2)]),
            // Memory without CPUs, before, between and behind the others.
            (&[&[], low, &[], high, &[]], &all, 4, &[(1, 2), (3, 2)]),
            // The process may not run on a node, or only on a part of it.
            (&[low, high], high, 8, &[(1, 8)]),
            (&[low, high], &all[6..], 10, &[(0, 2), (1, 8)]),
            (&quarters, &all, 3, &[(0, 1), (1, 1), (2, 1)]),
            (&quarters, &all, 18, &[(0, 5), (1, 5), (2, 4), (3, 4)]),
            (&[low, high], &all, 1, &[(0, 1)]),
            (&[&all], &all, 4, &[(0, 4)]),
            (&[], &all, 4, &[(0, 4)]),
        ];
        for (nodes, allowed, threads, expected) in cases {
            let found = Nodes::new(Numa::Distribute, &topology(nodes, allowed), threads);
            assert_eq!(found.threads(), threads);
            let used: Vec<_> = found.iter().map(|node| (node.number, node.threads)).collect();
            if let [(_, all)] = expected {
                assert_eq!(found, Nodes::one(*all), "{nodes:?}: one node is none");
                continue;
            }
            assert_eq!(used, expected, "{nodes:?}, {threads} threads on {allowed:?}");
            for node in found.iter() {
                assert!(node.cpus.iter().all(|cpu| allowed.contains(cpu)), "{node:?}");
            }
            let homes: Vec<usize> = (0..threads).map(|thread| found.of_thread(thread)).collect();
            let count = |node| homes.iter().filter(|&&home| home == node).count();
            assert!(homes.is_sorted() && (0..found.count()).all(|n| count(n) == used[n].1));
        }
    }

    #[test]
    fn shares_are_all_rows_in_order() {
        let of = |nodes, threads| Nodes::new(Numa::Simulate(nodes), &Topology::default(), threads);
        for nodes in [Nodes::one(4), of(2, 2), of(2, 5), of(4, 3), of(3, 16)] {
            for rows in [0, 1, 31, 32, 100, 4096, 151_936] {
                let mut end = 0;
                for node in 0..nodes.count() {
                    let share = nodes.rows(rows, node);
                    assert_eq!(share.start, end);
                    assert!(share.is_empty() || share.start % SHARE_ROWS == 0, "{share:?}");
                    let even = rows * nodes.threads_of(node) / nodes.threads();
                    assert!(share.len().abs_diff(even) <= SHARE_ROWS, "{share:?} of {rows}");
                    end = share.end;
                }
                assert_eq!(end, rows);
                assert_eq!(nodes.end(rows, nodes.count() - 1), rows);
            }
        }
        assert!(!of(2, 1).is_divided() && of(4, 3).count() == 3);
    }

    #[test]
    fn values_are_parsed_and_llama_cpps_others_explained() {
        let parsed = |text: &str| text.parse::<Numa>().map_err(|error| error.to_string());
        for numa in [Numa::Off, Numa::Distribute, Numa::Simulate(2)] {
            assert_eq!(parsed(&numa.to_string()), Ok(numa));
        }
        for (given, advice) in [
            ("isolate", "numactl --cpunodebind=0"),
            ("numactl", "are respected"),
            ("1", "off, distribute or a number"),
            ("65", "off, distribute or a number"),
            ("on", "off, distribute or a number"),
        ] {
            let error = parsed(given).expect_err(given);
            assert!(error.contains(given) && error.contains(advice), "{error}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_bound_thread_gets_its_cpus_back() {
        let allowed = || Topology::of_this_process().allowed;
        let (own, last) = (allowed(), *allowed().last().expect("a CPU"));
        let nodes = |cpus| {
            let node = UsedNode { number: 0, cpus, threads: 1 };
            Nodes { nodes: vec![node], ends: vec![1] }
        };
        let bound = nodes(vec![last]).bind(0).expect("one of its own CPUs");
        assert_eq!(allowed(), [last]);
        drop(bound);
        assert_eq!(allowed(), own);
        drop(nodes(Vec::new()).bind(0).expect("nothing is bound"));
        assert!(nodes(vec![5000]).bind(0).is_err(), "no such CPU");
        assert_eq!(allowed(), own);
    }
}
