//! Time. The world's own runs evenly, in microseconds; what the relay reads off its clocks may jump, stand still or,
//! for the wall clock, step back.

use crate::dice::Dice;
use drover_engine::Now;

/// The wall clock when a world begins, Unix milliseconds.
pub const EPOCH_MS: u64 = 1_700_000_000_000;

/// See the module.
pub(crate) struct Clock {
    /// The world's time.
    pub(crate) now_us: u64,
    mono_offset_ms: u64,
    wall_offset_ms: i64,
    /// Both stand still until then, at this reading.
    frozen: Option<(u64, Now)>,
    /// What the monotonic clock never falls behind.
    mono_min_ms: u64,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self {
            now_us: 0,
            mono_offset_ms: 1_000,
            wall_offset_ms: 0,
            frozen: None,
            mono_min_ms: 0,
        }
    }

    fn running(&self) -> Now {
        let ms = self.now_us / 1_000;
        Now {
            mono_ms: ms + self.mono_offset_ms,
            wall_ms: (EPOCH_MS + ms).saturating_add_signed(self.wall_offset_ms),
        }
    }

    /// What the relay reads.
    pub(crate) fn now(&mut self) -> Now {
        let mut now = match self.frozen {
            Some((until, now)) if self.now_us < until => now,
            _ => {
                self.frozen = None;
                self.running()
            }
        };
        self.mono_min_ms = self.mono_min_ms.max(now.mono_ms);
        now.mono_ms = self.mono_min_ms;
        now
    }

    /// When the relay's monotonic clock shows this, in the world's time.
    pub(crate) fn when_mono(&self, mono_ms: u64) -> u64 {
        let at_us = mono_ms.saturating_sub(self.mono_offset_ms) * 1_000;
        let thaw_us = self.frozen.map_or(0, |(until, _)| until);
        at_us.max(thaw_us).max(self.now_us)
    }

    /// Something happens to the clocks; what, in words.
    pub(super) fn fault(&mut self, dice: &mut Dice) -> String {
        match dice.below(5) {
            0 => {
                let ms = dice.skewed(1_000, 7_200_000);
                self.mono_offset_ms += ms;
                self.wall_offset_ms += ms as i64;
                format!("both clocks jump {ms} ms")
            }
            1 => {
                let ms = dice.skewed(1_000, 86_400_000);
                self.wall_offset_ms += ms as i64;
                format!("the wall clock jumps {ms} ms")
            }
            2 | 3 => {
                let ms = dice.skewed(1, 7_200_000);
                self.wall_offset_ms -= ms as i64;
                format!("the wall clock steps back {ms} ms")
            }
            _ => {
                let us = dice.skewed(1_000, 60_000_000);
                let now = self.now();
                self.frozen = Some((self.now_us + us, now));
                format!("the clocks stand still for {us} us")
            }
        }
    }

    /// A process that starts begins its own monotonic clock.
    pub(super) fn restart(&mut self) {
        self.frozen = None;
        self.mono_min_ms = 0;
        self.mono_offset_ms = 1_000;
    }

    /// The clocks run again.
    pub(super) fn heal(&mut self) {
        self.frozen = None;
    }
}
