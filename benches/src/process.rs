//! CPU time and memory of a process, from /proc: no system interface beyond reading files.

use crate::error::{Doing, Error};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::PathBuf;

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

/// The process whose CPU time is charged.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    proc_dir: PathBuf,
}

/// A reading, to be told from a later one.
#[derive(Debug, Default)]
pub(crate) struct CpuMark {
    threads: HashMap<std::ffi::OsString, CpuTime>,
}

impl Process {
    /// By its id; an error when there is none.
    pub(crate) fn new(pid: u32) -> Result<Self, Error> {
        Self::at(PathBuf::from(format!("/proc/{pid}")))
    }

    /// This process: the generator.
    pub(crate) fn this() -> Result<Self, Error> {
        Self::at(PathBuf::from("/proc/self"))
    }

    fn at(proc_dir: PathBuf) -> Result<Self, Error> {
        let process = Self { proc_dir };
        process.mark()?;
        Ok(process)
    }

    /// What every thread has used so far. schedstat counts ns; a thread that runs while it is read is behind by up to
    /// a scheduler tick, and one that ended in between is not counted.
    pub(crate) fn mark(&self) -> Result<CpuMark, Error> {
        let tasks = fs::read_dir(self.proc_dir.join("task")).doing("list the process's threads")?;
        let mut threads = HashMap::new();
        for task in tasks {
            let task = task.doing("list the process's threads")?;
            match fs::read_to_string(task.path().join("schedstat")) {
                Ok(text) => {
                    threads.insert(task.file_name(), parse_schedstat(&text).ok_or_else(unreadable)?);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => (),
                // A thread that ends while it is read: ESRCH.
                Err(error) if error.raw_os_error() == Some(3) => (),
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

    /// Resident memory, bytes: `Rss` of smaps_rollup.
    pub(crate) fn resident_bytes(&self) -> Result<u64, Error> {
        let text = fs::read_to_string(self.proc_dir.join("smaps_rollup")).doing("read smaps_rollup")?;
        parse_rss(&text).ok_or_else(unreadable)
    }

    /// Voluntary and involuntary context switches of all threads.
    pub(crate) fn context_switches(&self) -> Result<u64, Error> {
        let tasks = fs::read_dir(self.proc_dir.join("task")).doing("list the process's threads")?;
        let mut switches = 0;
        for task in tasks.flatten() {
            let text = fs::read_to_string(task.path().join("status")).unwrap_or_default();
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

fn parse_rss(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"))?;
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
        let rollup = "55d0-7ffe ---p 00000000 00:00 0  [rollup]\nRss:                3404 kB\nPss: 1 kB\n";
        assert_eq!(parse_rss(rollup), Some(3404 << 10));
    }

    #[test]
    fn work_is_charged() {
        let this = Process::this().expect("this process");
        let mark = this.mark().expect("a mark");
        let until = std::time::Instant::now() + std::time::Duration::from_millis(60);
        while std::time::Instant::now() < until {}
        assert!(this.since(&mark).expect("a reading").ran_ns > 5_000_000);
        assert!(this.resident_bytes().expect("memory") > 100_000);
        assert!(Process::new(u32::MAX).is_err());
    }
}
