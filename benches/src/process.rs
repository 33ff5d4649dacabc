//! CPU time and memory of a process, from /proc: no system interface beyond reading files.

use crate::error::{Doing, Error};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// No such process.
const ESRCH: i32 = 3;

/// CPU time and waiting for a CPU, of all threads, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuTime {
    /// User and system.
    pub(crate) ran_ns: u64,
    /// Runnable, but another had the core: how disturbed a measurement is.
    pub(crate) waited_ns: u64,
}

impl std::ops::AddAssign for CpuTime {
    fn add_assign(&mut self, other: Self) {
        self.ran_ns += other.ran_ns;
        self.waited_ns += other.waited_ns;
    }
}

/// The process, or the one thread, whose CPU time is charged.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    proc_dir: PathBuf,
    /// Directories with one thread each.
    threads: Threads,
}

#[derive(Clone, Debug)]
enum Threads {
    All,
    This,
}

/// A reading, to be told from a later one.
#[derive(Debug, Default)]
pub(crate) struct CpuMark {
    threads: HashMap<PathBuf, CpuTime>,
}

impl Process {
    /// By its id; an error when there is none.
    pub(crate) fn new(pid: u32) -> Result<Self, Error> {
        let process = Self {
            proc_dir: PathBuf::from(format!("/proc/{pid}")),
            threads: Threads::All,
        };
        process.mark()?;
        Ok(process)
    }

    /// The thread that calls, to be read by another.
    pub(crate) fn this_thread() -> Result<Self, Error> {
        let link = fs::read_link("/proc/thread-self").doing("find this thread")?;
        Ok(Self {
            proc_dir: Path::new("/proc").join(link),
            threads: Threads::This,
        })
    }

    /// The directories of the threads that are charged.
    fn thread_dirs(&self) -> Result<Vec<PathBuf>, Error> {
        match self.threads {
            Threads::This => Ok(vec![self.proc_dir.clone()]),
            Threads::All => fs::read_dir(self.proc_dir.join("task"))
                .and_then(|tasks| tasks.map(|task| Ok(task?.path())).collect())
                .doing("list the process's threads"),
        }
    }

    /// What every thread has used so far. schedstat counts ns; a thread that runs while it is read is behind by up to
    /// a scheduler tick, and one that ended in between is not counted.
    pub(crate) fn mark(&self) -> Result<CpuMark, Error> {
        let mut threads = HashMap::new();
        for dir in self.thread_dirs()? {
            match fs::read_to_string(dir.join("schedstat")) {
                Ok(text) => {
                    threads.insert(dir, parse_schedstat(&text).ok_or_else(unreadable)?);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => (),
                // A thread that ends while it is read.
                Err(error) if error.raw_os_error() == Some(ESRCH) => (),
                Err(error) => return Err(error).doing("read schedstat"),
            }
        }
        Ok(CpuMark { threads })
    }

    /// What was used since the mark.
    pub(crate) fn since(&self, mark: &CpuMark) -> Result<CpuTime, Error> {
        let mut used = CpuTime::default();
        for (thread, now) in self.mark()?.threads {
            let before = mark.threads.get(&thread).copied().unwrap_or_default();
            used += CpuTime {
                ran_ns: now.ran_ns.saturating_sub(before.ran_ns),
                waited_ns: now.waited_ns.saturating_sub(before.waited_ns),
            };
        }
        Ok(used)
    }

    /// Resident memory that is not of a file, bytes: `Anonymous` of smaps_rollup.
    pub(crate) fn resident_bytes(&self) -> Result<u64, Error> {
        let text = fs::read_to_string(self.proc_dir.join("smaps_rollup")).doing("read smaps_rollup")?;
        parse_kib(&text, "Anonymous:").ok_or_else(unreadable)
    }

    /// Voluntary and involuntary context switches of all threads.
    pub(crate) fn context_switches(&self) -> Result<u64, Error> {
        let mut switches = 0;
        for dir in self.thread_dirs()? {
            let text = fs::read_to_string(dir.join("status")).unwrap_or_default();
            switches += text
                .lines()
                .filter(|line| line.contains("ctxt_switches"))
                .filter_map(|line| line.rsplit('\t').next()?.trim().parse::<u64>().ok())
                .sum::<u64>();
        }
        Ok(switches)
    }
}

/// CPU time of the thread that calls.
pub(crate) fn this_thread() -> Result<CpuTime, Error> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").doing("read schedstat")?;
    parse_schedstat(&text).ok_or_else(unreadable)
}

/// The load average of the last minute.
pub(crate) fn load_average() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split(' ').next()?.parse().ok()
}

fn unreadable() -> Error {
    Error::Unexpected("a file in /proc that does not parse".into())
}

fn parse_schedstat(text: &str) -> Option<CpuTime> {
    let mut fields = text.split_ascii_whitespace().map(str::parse);
    Some(CpuTime {
        ran_ns: fields.next()?.ok()?,
        waited_ns: fields.next()?.ok()?,
    })
}

/// Bytes, from the line of that name in a file of /proc that counts in kB.
pub(crate) fn parse_kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_the_kernel_writes() {
        let time = parse_schedstat("1248 77 2466165\n").expect("a schedstat");
        assert_eq!((time.ran_ns, time.waited_ns), (1248, 77));
        assert_eq!(parse_schedstat("x"), None);
        let rollup = "55d0-7ffe ---p 00000000 00:00 0  [rollup]\nRss: 9 kB\nAnonymous:          3404 kB\n";
        assert_eq!(parse_kib(rollup, "Anonymous:"), Some(3404 << 10));
    }

    #[test]
    fn work_is_charged() {
        let this = Process::new(std::process::id()).expect("this process");
        let thread = Process::this_thread().expect("this thread");
        let (mark, thread_mark) = (this.mark().expect("a mark"), thread.mark().expect("a mark"));
        let until = std::time::Instant::now() + std::time::Duration::from_millis(60);
        while std::time::Instant::now() < until {}
        assert!(this.since(&mark).expect("a reading").ran_ns > 5_000_000);
        assert!(thread.since(&thread_mark).expect("a reading").ran_ns > 5_000_000);
        assert!(this.resident_bytes().expect("memory") > 100_000);
        assert!(Process::new(u32::MAX).is_err());
    }
}
