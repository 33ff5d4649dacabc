//! When what is under way was sent, and latencies from it. Operations finish in the order they were sent, so a batch
//! of sends costs one entry, and a batch of answers one record per entry it finishes.

use hdrhistogram::Histogram;
use std::collections::VecDeque;

/// Latencies in nanoseconds, three significant digits, up to a minute.
pub(crate) type Latencies = Histogram<u64>;

/// The longest latency told apart, ns.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// An empty histogram.
pub(crate) fn latencies() -> Latencies {
    Histogram::new_with_bounds(1_000, LATENCY_NS_MAX, 3).expect("constant bounds are valid")
}

/// Operations of one connection that are not finished.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    batches: VecDeque<(u64, usize)>,
    count: usize,
}

impl InFlight {
    /// Operations under way.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// `count` operations left at `now_ns`.
    pub(crate) fn sent(&mut self, count: usize, now_ns: u64) {
        if count > 0 {
            self.batches.push_back((now_ns, count));
            self.count += count;
        }
    }

    /// The oldest `count` operations finished at `now_ns`; their latencies go into `into`. Returns whether that many
    /// were under way.
    pub(crate) fn finished(&mut self, mut count: usize, now_ns: u64, into: &mut Latencies) -> bool {
        if count > self.count {
            return false;
        }
        self.count -= count;
        while count > 0 {
            let Some((sent_ns, left)) = self.batches.front_mut() else {
                return false;
            };
            let done = count.min(*left);
            record(into, now_ns - *sent_ns, done);
            *left -= done;
            count -= done;
            if *left == 0 {
                self.batches.pop_front();
            }
        }
        true
    }
}

/// Records `count` operations of this latency.
pub(crate) fn record(into: &mut Latencies, latency_ns: u64, count: usize) {
    into.saturating_record_n(latency_ns, count as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_finish_the_oldest_first() {
        let mut under_way = InFlight::default();
        let mut histogram = latencies();
        under_way.sent(3, 0);
        under_way.sent(2, 1_000_000);
        assert!(under_way.finished(4, 5_000_000, &mut histogram));
        assert_eq!(under_way.count(), 1);
        assert_eq!(histogram.len(), 4);
        assert_eq!(histogram.count_between(4_900_000, 5_100_000), 3);
        assert_eq!(histogram.count_between(3_900_000, 4_100_000), 1);
        assert!(
            !under_way.finished(2, 6_000_000, &mut histogram),
            "more than was sent"
        );
    }
}
