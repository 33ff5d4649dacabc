//! What the system allows the process: open files, and memory in small pages. Every client is an open file, and so is
//! every file of the store, which does not survive being refused one.

use crate::cli::Failure;
use drover_transport::DESCRIPTORS_RESERVED;
use rustix::process::{Resource, getrlimit, setrlimit};

/// Fewest open files with which the store lives: half of them are its own, for journals, tables being written and
/// merged, and the quarter of all that it keeps open.
const OPEN_FILES_MIN: u64 = 128;

/// Raises the limit on open files as far as the process itself may, and says if that is too little for
/// `max_connections` clients (`None`: no ceiling, so nothing to compare).
///
/// # Errors
/// 69 if it is too little for the store.
pub(crate) fn raise_open_files(max_connections: Option<u64>) -> Result<(), Failure> {
    let limit = raise();
    if let Some(open_files) = limit
        && open_files < OPEN_FILES_MIN
    {
        return Err(Failure::unavailable(format!(
            "the limit on open files is {open_files}, and the store needs at least {OPEN_FILES_MIN}: raise it \
             (ulimit -n, LimitNOFILE=)"
        )));
    }
    if let (Some(open_files), Some(max_connections)) = (limit, max_connections)
        && is_too_low(open_files, max_connections)
    {
        tracing::warn!(
            open_files,
            max_connections,
            reserved = DESCRIPTORS_RESERVED,
            "the limit on open files (ulimit -n, LimitNOFILE=) is too low for WEALD_RELAY_MAX_CONNECTIONS: clients are \
             turned away before that many are connected"
        );
    }
    Ok(())
}

/// Has the system give memory in pages of 4 KiB. The allocator asks for huge ones, and whoever first touches one waits until
/// 2 MiB are found and zeroed: some 0.3 ms, on a virtual machine up to 5 ms, with everybody else of the shard. Where many
/// lists grow at once that was most of the p99 of SENDs (docs/performance.md).
pub(crate) fn avoid_huge_pages() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "memory may come in huge pages");
    }
}

/// Raises the soft limit to the hard one; what it is then, `None` for no limit.
pub(crate) fn raise() -> Option<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let before = limit.current;
        limit.current = limit.maximum;
        if setrlimit(Resource::Nofile, limit).is_err() {
            // Some systems report a hard limit that they don't grant.
            limit.current = before;
        }
    }
    limit.current
}

fn is_too_low(open_files: u64, max_connections: u64) -> bool {
    max_connections.saturating_add(DESCRIPTORS_RESERVED) > open_files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_counted_in() {
        assert!(!is_too_low(256 + DESCRIPTORS_RESERVED, 256));
        assert!(is_too_low(255 + DESCRIPTORS_RESERVED, 256));
        assert!(is_too_low(1_024, u64::MAX));
    }
}
