//! What came to pass, counted: a simulator that never meets a full queue proves nothing about full queues.

use drover_engine::metrics::Metrics;
use std::collections::BTreeMap;
use std::fmt;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage(BTreeMap<&'static str, u64>);

impl Coverage {
    /// It happened so many times more.
    pub fn add(&mut self, what: &'static str, times: u64) {
        if times > 0 {
            *self.0.entry(what).or_default() += times;
        }
    }

    /// How often it happened.
    pub fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or_default()
    }

    /// All of another's.
    pub fn merge(&mut self, other: &Coverage) {
        for (what, times) in &other.0 {
            self.add(what, *times);
        }
    }

    /// What a shard counted.
    pub(crate) fn shard(&mut self, metrics: &Metrics) {
        for (what, counter) in [
            ("duplicates", &metrics.envelopes_duplicate),
            ("fan-out frames", &metrics.fanout_frames),
            ("downgrades", &metrics.subscriber_downgrades),
            ("beats shed", &metrics.live_shed),
            ("RECON rounds", &metrics.recon_rounds),
            ("commits", &metrics.commits),
            ("failed commits", &metrics.commits_failed),
            ("seats given back", &metrics.collected_reservations),
        ] {
            self.add(what, counter.get());
        }
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (what, times)) in self.0.iter().enumerate() {
            let comma = if n > 0 { ", " } else { "" };
            write!(f, "{comma}{times} {what}")?;
        }
        Ok(())
    }
}
