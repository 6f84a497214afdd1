//! Servers as child processes: starting them, their address, their memory and their file descriptors.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::client::Client;

/// Time in which a server must have loaded its model.
const LOADING: Duration = Duration::from_secs(300);

/// How a server is started.
pub struct Launch<'a> {
    pub program: &'a Path,
    /// The flags after the verb, separated by spaces.
    pub flags: String,
    /// The model file; without one `bilayer` serves its demo.
    pub model: Option<&'a Path>,
    /// File descriptors that the process may open; `None` leaves the limit alone.
    pub descriptors: Option<usize>,
    /// What it writes to stderr goes there.
    pub log: PathBuf,
}

impl Launch<'_> {
    fn command(&self, verb: &[&str]) -> Result<Command> {
        let mut command = match self.descriptors {
            None => Command::new(self.program),
            Some(count) => {
                // The limit is a property of processes that the shell can set without unsafe code.
                let mut shell = Command::new("sh");
                let script = "ulimit -S -n \"$1\" && shift && exec \"$@\"";
                shell.args(["-c", script, "sh", &count.to_string()]).arg(self.program);
                shell
            }
        };
        command.args(verb).args(self.flags.split_whitespace());
        if let Some(model) = self.model {
            command.arg("-m").arg(model);
        }
        let log = File::create(&self.log).with_context(|| self.log.display().to_string())?;
        command.stdin(Stdio::null()).stderr(log);
        Ok(command)
    }

    /// Starts `bilayer serve` and waits until its model is loaded.
    pub fn bilayer(&self) -> Result<Server> {
        let mut command = self.command(&["serve", "--host", "127.0.0.1", "--port", "0"])?;
        let child = command.stdout(Stdio::piped()).spawn();
        let child = child.with_context(|| self.program.display().to_string())?;
        let mut server = Server { child, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let stdout = server.child.stdout.as_mut().context("no stdout")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let address = line.trim().strip_prefix("listening on http://");
        server.address = match address {
            Some(address) => address.parse().context("the address of the server")?,
            None => bail!("the server did not start: {}", self.last_words()),
        };
        self.ready(server)
    }

    /// Starts llama-server and waits until its model is loaded.
    pub fn llama_server(&self) -> Result<Server> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let port = address.port().to_string();
        let mut command = self.command(&["--host", "127.0.0.1", "--port", &port])?;
        let child = command.stdout(Stdio::null()).spawn();
        let child = child.with_context(|| self.program.display().to_string())?;
        self.ready(Server { child, address })
    }

    fn ready(&self, mut server: Server) -> Result<Server> {
        let began = Instant::now();
        while began.elapsed() < LOADING {
            let answer = Client::new(server.address).get("/health");
            if answer.is_ok_and(|answer| answer.head.status == 200) {
                // The connection that asked has left by then and is counted nowhere.
                sleep(Duration::from_millis(300));
                return Ok(server);
            }
            if let Some(status) = server.child.try_wait()? {
                bail!("the server ended with {status}: {}", self.last_words());
            }
            sleep(Duration::from_millis(200));
        }
        bail!("the server was not ready within {LOADING:?}: {}", self.last_words())
    }

    /// The last lines of the log.
    fn last_words(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }
}

/// A running server, killed when dropped.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a process holds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Held {
    /// `VmRSS`: resident memory with what is mapped from files, bytes.
    pub resident: f64,
    /// `RssAnon`: resident memory without files, bytes.
    pub anonymous: f64,
    /// Open file descriptors.
    pub descriptors: usize,
}

impl Server {
    /// What it holds now.
    pub fn held(&self) -> Result<Held> {
        let folder = PathBuf::from(format!("/proc/{}", self.child.id()));
        let status = std::fs::read_to_string(folder.join("status"))
            .context("memory and descriptors are read from /proc of a running Linux process")?;
        let descriptors = std::fs::read_dir(folder.join("fd"))?.count();
        Ok(Held {
            resident: kib(&status, "VmRSS:")?,
            anonymous: kib(&status, "RssAnon:")?,
            descriptors,
        })
    }

    /// What it holds once at most `descriptors` are open, or after `patience`.
    pub fn settled(&self, descriptors: usize, patience: Duration) -> Result<Held> {
        let began = Instant::now();
        loop {
            let held = self.held()?;
            if held.descriptors <= descriptors || began.elapsed() > patience {
                return Ok(held);
            }
            sleep(Duration::from_millis(200));
        }
    }
}

/// A size in `/proc/PID/status`, in bytes.
fn kib(status: &str, name: &str) -> Result<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    Ok(1024.0 * number.with_context(|| format!("/proc/PID/status has no {name}"))?)
}

/// The number of files that this process may open.
pub fn own_limit() -> Result<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits").context("/proc/self/limits")?;
    soft_limit(&limits).context("/proc/self/limits has no number of open files")
}

fn soft_limit(limits: &str) -> Option<usize> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(usize::MAX),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_limits_are_read() {
        let status = "Name:\tx\nVmRSS:\t    2048 kB\nRssAnon:\t 1 kB\n";
        assert!((kib(status, "VmRSS:").unwrap() - 2_097_152.0).abs() < 0.5);
        assert!((kib(status, "RssAnon:").unwrap() - 1024.0).abs() < 0.5);
        assert!(kib(status, "VmSwap:").is_err());
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            1024                 524288               files\n";
        assert_eq!(soft_limit(limits), Some(1024));
        assert_eq!(soft_limit(""), None);
    }

    #[test]
    fn a_process_that_ends_is_reported_with_its_last_words() {
        let folder = std::env::temp_dir().join(format!("serve-load-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let shell = Path::new("/bin/sh");
        let launch = Launch {
            program: shell,
            flags: String::new(),
            model: None,
            descriptors: Some(64),
            log: folder.join("log"),
        };
        // `sh serve --host ...`: there is no script of that name.
        let error = format!("{:#}", launch.bilayer().err().unwrap());
        assert!(error.contains("did not start") && error.contains("serve"), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
