//! What each attack may cost the server, and how it is measured.
//!
//! A bound is reckoned from the limits the server keeps, not from what was measured, plus [`SLACK_MIB`] for what the
//! allocator and the threads take in passing.

use crate::relay::Relay;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Taken by any load at all: receive chunks, free pages the allocator keeps, stacks that grow.
const SLACK_MIB: u64 = 8;

/// An attack and the memory it may cost, in MiB beyond the slack.
pub(crate) struct Bound {
    pub(crate) attack: &'static str,
    mib: u64,
}

const fn bound(attack: &'static str, mib: u64) -> Bound {
    Bound { attack, mib }
}

/// 1024 places before the upgrade, each a connection (about 1 KiB) and the begun head (at most some hundred bytes here).
pub(crate) const SLOW_UPGRADES: Bound = bound("slow upgrades", 2);
/// The same places, each with a head of at most 16 KiB in a buffer that doubles.
pub(crate) const ENDLESS_HEADERS: Bound = bound("headers without end", 32);
/// The same places; who comes beyond them is closed at once.
pub(crate) const HALF_OPEN: Bound = bound("10000 half-open connections", 2);
/// 64 upgraded connections (a quarter of 256) and 256 places of one address.
pub(crate) const ONE_SOURCE: Bound = bound("a source beyond its share", 1);
/// 128 messages of 16 KiB in buffers that double, each with a WebSocket reader of its own.
pub(crate) const FRAGMENTS: Bound = bound("one-byte fragments", 12);
/// For each of 128 connections 256 pongs of 127 bytes with their bookkeeping, and 64 KiB that wait for their turn; beyond
/// that 4 MiB for each of two shards, and the slots of a receive for each connection. What waits lies in buffers that double.
pub(crate) const PINGS: Bound = bound("ping floods", 8 + 2 * (8 + 2 * 4 + 4));
/// 1024 refusals of under 100 bytes with their bookkeeping for each of 128 connections.
pub(crate) const MALFORMED: Bound = bound("malformed frames", 32);
/// 8 MiB queued for each of 24 connections; beside them the store's two memtables of 32 MiB and its cache of 64 MiB fill,
/// as they do under any load.
pub(crate) const DEAF_SUBSCRIBERS: Bound = bound("subscribers that never read", 24 * 8 + 2 * 32 + 64);
/// A message of 1 MiB and an answer of at most as much for each of 16 connections, decoded ranges beside it.
pub(crate) const RECON: Bound = bound("RECON of maximum cost", 16 * 4);
/// One Argon2 at a time on each of two threads, 19 MiB each; four wait with nothing but their code.
pub(crate) const JOIN_GUESSES: Bound = bound("JOIN guesses", 2 * 19);
/// The places before the upgrade once more, each with a TLS session and a record of 16 KiB that is never whole.
pub(crate) const TLS_HELLOS: Bound = bound("TLS hellos without end", 1024 * 48 / 1024);
/// 64 KiB for each of 256 connections that have not authenticated, and 16 MiB for each of two shards for what goes beyond.
/// Buffers double as they grow, and while one does its old half is there too.
pub(crate) const DECLARED_LENGTHS: Bound = bound("huge declared lengths", (16 + 2 * 16) * 5 / 2);

/// Anonymous resident memory of a process, in bytes.
fn anonymous(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Watches the server's memory from its making to [`Gauge::judge`].
pub(crate) struct Gauge {
    pid: u32,
    before: u64,
    peak: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    watcher: Option<JoinHandle<()>>,
}

impl Gauge {
    pub(crate) fn start(relay: &Relay) -> Self {
        let pid = relay.child.id();
        let before = anonymous(pid);
        let (peak, over) = (Arc::new(AtomicU64::new(before)), Arc::new(AtomicBool::new(false)));
        let (seen, ended) = (peak.clone(), over.clone());
        let watcher = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                seen.fetch_max(anonymous(pid), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Self {
            pid,
            before,
            peak,
            over,
            watcher: Some(watcher),
        }
    }

    /// Prints the attack's line and holds it against its bound.
    pub(crate) fn judge(mut self, bound: &Bound, what: &str) {
        self.over.store(true, Ordering::Relaxed);
        self.watcher.take().unwrap().join().unwrap();
        let peak = self.peak.load(Ordering::Relaxed).max(anonymous(self.pid));
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let used = mib(peak - self.before);
        let (allowed, attack) = (bound.mib + SLACK_MIB, bound.attack);
        let (before, after) = (mib(self.before), mib(anonymous(self.pid)));
        println!(
            "hostile: {attack}: bound {allowed} MiB, used {used:.1} MiB (before {before:.1}, after {after:.1}); {what}"
        );
        assert!(used <= allowed as f64, "{attack} cost more than its bound");
    }
}

impl Drop for Gauge {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
