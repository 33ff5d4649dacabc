//! One reading of each clock per turn, and how long a turn may be.

use drover_engine::Now;
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The moment monotonic milliseconds count from, the same for all shards.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Fixes the start of monotonic time, if nobody has yet.
pub(crate) fn begin() {
    LazyLock::force(&START);
}

/// Monotonic milliseconds of a moment.
pub(crate) fn mono_ms(at: Instant) -> u64 {
    at.saturating_duration_since(*START).as_millis() as u64
}

/// What the engine is told, for a turn that begins at `at`. The wall clock is read plainly, so that whoever sets the
/// process another time (libfaketime) is followed.
pub(crate) fn now(at: Instant) -> Now {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now {
        mono_ms: mono_ms(at),
        wall_ms: wall.as_millis() as u64,
    }
}

/// Messages a second (in and out) up to which a shard answers at once.
const CALM_PER_S: u64 = 10_000;
/// Messages a second from which on a turn has its full length. In between it grows evenly, so that a few clients
/// with one request under way each are not slowed down to the pace of the turn.
const BUSY_PER_S: u64 = 50_000;
/// How often the rate is taken.
const WINDOW: Duration = Duration::from_millis(20);

/// How long a turn should be: nothing when calm, up to a maximum when busy (architecture.md §5). Batching is what
/// makes a busy shard cheap: one write and one sync carry what a whole turn brought (measurements.md §1.4).
#[derive(Debug)]
pub(crate) struct Pace {
    turn_max: Duration,
    window_began: Instant,
    messages: u64,
    turn: Duration,
}

impl Pace {
    /// Turns of at most `turn_max`; zero switches waiting off.
    pub(crate) fn new(turn_max: Duration) -> Self {
        Self {
            turn_max,
            window_began: Instant::now(),
            messages: 0,
            turn: Duration::ZERO,
        }
    }

    /// A turn that began at `began` and handled `messages` ends at `ended`: how long to sleep before the next.
    pub(crate) fn rest(&mut self, began: Instant, ended: Instant, messages: u64) -> Duration {
        self.messages += messages;
        let window = ended.saturating_duration_since(self.window_began);
        if window >= WINDOW {
            let per_s = (self.messages as u128 * 1_000_000 / window.as_micros().max(1)) as u64;
            self.turn = self.turn_for(per_s);
            self.window_began = ended;
            self.messages = 0;
        }
        if messages == 0 {
            // Nothing was batched, so waiting would gain nothing.
            return Duration::ZERO;
        }
        self.turn.saturating_sub(ended.saturating_duration_since(began))
    }

    fn turn_for(&self, per_s: u64) -> Duration {
        let over = per_s.saturating_sub(CALM_PER_S).min(BUSY_PER_S - CALM_PER_S);
        self.turn_max * over as u32 / (BUSY_PER_S - CALM_PER_S) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_shard_never_waits_and_a_busy_one_fills_the_turn() {
        let mut pace = Pace::new(Duration::from_micros(500));
        let start = pace.window_began;
        assert_eq!(
            pace.rest(start, start + Duration::from_micros(30), 1),
            Duration::ZERO
        );
        // 40 messages in 20 ms: 2 000 a second.
        assert_eq!(pace.rest(start, start + WINDOW, 39), Duration::ZERO);
        let later = start + WINDOW;
        // 2 000 messages in 20 ms: 100 000 a second.
        pace.rest(later, later + WINDOW, 2_000);
        let busy = later + WINDOW;
        assert_eq!(
            pace.rest(busy, busy + Duration::from_micros(100), 50),
            Duration::from_micros(400)
        );
        assert_eq!(
            pace.rest(busy, busy + Duration::from_micros(100), 0),
            Duration::ZERO
        );
    }

    #[test]
    fn the_turn_grows_with_the_rate() {
        let pace = Pace::new(Duration::from_micros(500));
        assert_eq!(pace.turn_for(10_000), Duration::ZERO);
        assert_eq!(pace.turn_for(30_000), Duration::from_micros(250));
        assert_eq!(pace.turn_for(u64::MAX), Duration::from_micros(500));
    }
}
