//! Waiting between attempts: exponential, jittered, never shorter than the relay asked for.

use std::time::Duration;

use crate::limits::{BACKOFF_FIRST, BACKOFF_MAX};
use crate::random;

/// A growing wait. Without jitter every client of a restarted relay would come back at once.
#[derive(Clone, Debug)]
pub struct Backoff {
    attempt: u32,
    /// State of a small generator: jitter needs to differ between clients, not to be unpredictable.
    state: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::with_seed(u64::from_ne_bytes(random::bytes()))
    }
}

impl Backoff {
    /// A backoff whose jitter follows from `seed`.
    pub fn with_seed(seed: u64) -> Self {
        Self {
            attempt: 0,
            state: seed,
        }
    }

    /// How long to wait before the next attempt. Without `retry_after_s`: between half and all of an interval that
    /// doubles from 250 ms to 30 s. With it: that long, and up to an eighth or 2 s more, whichever is less.
    pub fn next(&mut self, retry_after_s: Option<u32>) -> Duration {
        let doubled = BACKOFF_FIRST
            .saturating_mul(1 << self.attempt.min(16))
            .min(BACKOFF_MAX);
        self.attempt = self.attempt.saturating_add(1);
        match retry_after_s {
            Some(seconds) => {
                let asked = Duration::from_secs(seconds.into());
                asked + self.part((asked / 8).min(Duration::from_secs(2)))
            }
            None => doubled / 2 + self.part(doubled / 2),
        }
    }

    /// An attempt succeeded: the next wait is short again.
    pub fn reset(&mut self) {
        self.attempt = 0;
    }

    /// A random part of `whole`.
    fn part(&mut self, whole: Duration) -> Duration {
        // splitmix64.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        whole.mul_f64((z >> 11) as f64 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_within_their_bounds_and_start_over() {
        let mut backoff = Backoff::with_seed(7);
        let mut interval = BACKOFF_FIRST;
        for _ in 0..40 {
            let wait = backoff.next(None);
            assert!(
                wait >= interval / 2 && wait <= interval,
                "{wait:?} of {interval:?}"
            );
            interval = (interval * 2).min(BACKOFF_MAX);
        }
        backoff.reset();
        assert!(backoff.next(None) <= BACKOFF_FIRST);
    }

    #[test]
    fn the_relays_interval_is_a_lower_bound() {
        let mut backoff = Backoff::with_seed(7);
        for seconds in [1, 5, 60, 3600] {
            let wait = backoff.next(Some(seconds));
            let asked = Duration::from_secs(seconds.into());
            assert!(wait >= asked && wait <= asked + Duration::from_secs(2).min(asked / 8));
        }
    }

    #[test]
    fn clients_do_not_come_back_together() {
        let waits: std::collections::BTreeSet<_> = (0..100)
            .map(|seed| Backoff::with_seed(seed).next(Some(60)))
            .collect();
        assert!(waits.len() > 90);
    }
}
