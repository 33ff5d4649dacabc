//! What the system says about this process: the standard `process_*` set, read from /proc where there is one.

use super::metrics::Page;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};
use std::path::Path;

/// Adds what can be told.
pub(super) fn add(page: &mut Page) {
    if let Some(stat) = std::fs::read_to_string("/proc/self/stat")
        .ok()
        .as_deref()
        .and_then(Stat::parse)
    {
        let ticks = clock_ticks_per_second() as f64;
        let cpu = (stat.user_ticks + stat.system_ticks) as f64 / ticks;
        page.counter(
            "process_cpu_seconds_total",
            "User and system CPU time, seconds.",
            cpu,
        );
        page.gauge(
            "process_virtual_memory_bytes",
            "Virtual memory, bytes.",
            stat.virtual_bytes as f64,
        );
        let resident = stat.resident_pages as f64 * page_size() as f64;
        page.gauge(
            "process_resident_memory_bytes",
            "Resident memory, bytes.",
            resident,
        );
        page.gauge("process_threads", "Threads.", stat.threads as f64);
        if let Some(boot) = boot_time_seconds() {
            let start = boot as f64 + stat.start_ticks as f64 / ticks;
            page.gauge("process_start_time_seconds", "Start, seconds since 1970.", start);
        }
    }
    if let Ok(descriptors) = std::fs::read_dir("/proc/self/fd") {
        // One of them is the directory being read.
        page.gauge(
            "process_open_fds",
            "Open file descriptors.",
            descriptors.count().saturating_sub(1) as f64,
        );
    }
    if let Some(limit) = getrlimit(Resource::Nofile).current {
        page.gauge("process_max_fds", "Most open file descriptors.", limit as f64);
    }
}

/// Adds the size of the store and what is free on its disk.
pub(super) fn add_store(page: &mut Page, folder: &Path) {
    page.gauge(
        "weald_relay_store_size_bytes",
        "Bytes of the store's files.",
        folder_bytes(folder) as f64,
    );
    if let Ok(disk) = rustix::fs::statvfs(folder) {
        let free = disk.f_bavail as f64 * disk.f_frsize as f64;
        page.gauge(
            "weald_relay_store_free_bytes",
            "Bytes free on the store's disk.",
            free,
        );
    }
}

/// Files may vanish while they are counted.
fn folder_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => folder_bytes(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

fn boot_time_seconds() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    stat.lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse()
        .ok()
}

#[derive(Debug, PartialEq, Eq)]
struct Stat {
    user_ticks: u64,
    system_ticks: u64,
    threads: u64,
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    /// /proc/self/stat; fields are counted after the name, which may hold blanks and brackets.
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse().ok();
        Some(Self {
            user_ticks: field(14)?,
            system_ticks: field(15)?,
            threads: field(20)?,
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_after_the_name() {
        let stat = "12 (a) b) S 1 12 12 0 -1 4194304 1 2 3 4 500 60 7 8 20 0 9 0 1000 2000 30 18446744073709551615 1";
        let want = Stat {
            user_ticks: 500,
            system_ticks: 60,
            threads: 9,
            start_ticks: 1000,
            virtual_bytes: 2000,
            resident_pages: 30,
        };
        assert_eq!(Stat::parse(stat), Some(want));
        assert_eq!(Stat::parse("nonsense"), None);
    }
}
