//! Windows that count (04 §3): fixed ones from the first charge, and aligned clock minutes.

/// A fixed 60 s window opened by its first charge; a clock that moved back opens a new one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Window {
    start_ms: u64,
    used: u32,
}

impl Window {
    const LENGTH_MS: u64 = 60_000;

    /// Charges one frame if fewer than `limit` were charged in this window. A refusal charges nothing.
    pub(crate) fn charge(&mut self, wall_ms: u64, limit: u32) -> bool {
        if self.used == 0 || wall_ms < self.start_ms || wall_ms - self.start_ms >= Self::LENGTH_MS {
            *self = Self {
                start_ms: wall_ms,
                used: 0,
            };
        }
        if self.used >= limit {
            return false;
        }
        self.used += 1;
        true
    }
}

/// Keeps a log line that others can provoke at will to one in 60 s, and counts what it held back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seldom {
    written_ms: Option<u64>,
    suppressed: u64,
}

impl Seldom {
    const PAUSE_MS: u64 = 60_000;

    /// Whether to write the line now: then with the number of those held back since the last.
    pub(crate) fn due(&mut self, mono_ms: u64) -> Option<u64> {
        if self
            .written_ms
            .is_some_and(|at_ms| mono_ms < at_ms + Self::PAUSE_MS)
        {
            self.suppressed += 1;
            return None;
        }
        self.written_ms = Some(mono_ms);
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// At most `N` charges within any stretch of `LENGTH_MS`, by their moments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sliding<const N: usize, const LENGTH_MS: u64> {
    /// The latest ones, oldest first.
    charged_ms: [Option<u64>; N],
}

impl<const N: usize, const LENGTH_MS: u64> Default for Sliding<N, LENGTH_MS> {
    fn default() -> Self {
        Self {
            charged_ms: [None; N],
        }
    }
}

impl<const N: usize, const LENGTH_MS: u64> Sliding<N, LENGTH_MS> {
    /// Charges one; a refusal charges nothing.
    pub(crate) fn charge(&mut self, mono_ms: u64) -> bool {
        if self.charged_ms[0].is_some_and(|at_ms| mono_ms < at_ms + LENGTH_MS) {
            return false;
        }
        self.charged_ms.rotate_left(1);
        self.charged_ms[N - 1] = Some(mono_ms);
        true
    }

    /// Whether no charge counts any more.
    pub(crate) fn is_idle(&self, mono_ms: u64) -> bool {
        self.charged_ms[N - 1].is_none_or(|at_ms| mono_ms >= at_ms + LENGTH_MS)
    }
}

/// A sum over an aligned clock minute, `floor(now / 60 000)`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Minute {
    minute: u64,
    used: u64,
}

impl Minute {
    /// Whether `amount` more fits under `limit` in this minute (inclusive).
    pub(crate) fn fits(&self, wall_ms: u64, amount: u64, limit: u64) -> bool {
        let used = if self.minute == wall_ms / 60_000 {
            self.used
        } else {
            0
        };
        used.saturating_add(amount) <= limit
    }

    /// Adds `amount`.
    pub(crate) fn add(&mut self, wall_ms: u64, amount: u64) {
        let minute = wall_ms / 60_000;
        if self.minute != minute {
            *self = Self { minute, used: 0 };
        }
        self.used = self.used.saturating_add(amount);
    }

    /// Takes back what [`Minute::add`] added in the same minute.
    pub(crate) fn refund(&mut self, wall_ms: u64, amount: u64) {
        if self.minute == wall_ms / 60_000 {
            self.used = self.used.saturating_sub(amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W04.4: the last allowed frame, the first refused one, the window's end, the clock stepping back.
    #[test]
    fn fixed_window_opens_with_its_first_charge() {
        let mut window = Window::default();
        assert!(window.charge(1_000, 2));
        assert!(window.charge(60_999, 2));
        assert!(!window.charge(60_999, 2));
        assert!(
            window.charge(61_000, 2),
            "a new window 60 s after the first charge"
        );
        assert!(window.charge(61_001, 2));
        assert!(!window.charge(61_002, 2));
        assert!(
            window.charge(60_000, 2),
            "a clock that stepped back opens a new window"
        );
    }

    #[test]
    fn a_line_is_written_once_a_minute_with_the_count_of_the_others() {
        let mut line = Seldom::default();
        assert_eq!(line.due(0), Some(0), "the first is never held back");
        assert_eq!(line.due(0), None);
        assert_eq!(line.due(59_999), None);
        assert_eq!(line.due(60_000), Some(2));
        assert_eq!(line.due(60_001), None);
        assert_eq!(line.due(120_000), Some(1));
        assert_eq!(line.due(999_000), Some(0));
    }

    #[test]
    fn sliding_window_forgets_each_charge_in_its_own_time() {
        let mut sliding = Sliding::<2, 100>::default();
        assert!(sliding.is_idle(0));
        assert!(sliding.charge(0) && sliding.charge(60));
        assert!(!sliding.charge(99));
        assert!(sliding.charge(100));
        assert!(!sliding.charge(159));
        assert!(sliding.charge(160));
        assert!(!sliding.is_idle(259) && sliding.is_idle(260));
    }

    #[test]
    fn minute_is_aligned_and_inclusive() {
        let mut minute = Minute::default();
        minute.add(59_999, 10);
        assert!(!minute.fits(59_999, 1, 10));
        assert!(minute.fits(60_000, 10, 10));
        minute.add(60_000, 4);
        minute.refund(60_000, 4);
        assert!(minute.fits(60_001, 10, 10));
    }
}
