//! What one connection may say in calls (10 §4, §5): fixed windows on the wall clock, each from its first frame; one
//! that would begin later than now is over.

use drover_wire::id::CallId;
use std::collections::BTreeMap;

/// When a window began and what was spent in it.
#[derive(Clone, Copy, Debug)]
struct Window {
    began_ms: u64,
    spent: u64,
}

fn current(window: Option<Window>, length_ms: u64, wall_ms: u64) -> Window {
    window
        .filter(|w| (w.began_ms..w.began_ms + length_ms).contains(&wall_ms))
        .unwrap_or(Window {
            began_ms: wall_ms,
            spent: 0,
        })
}

/// Frames in a minute.
#[derive(Default)]
pub(super) struct Minute(Option<Window>);

impl Minute {
    pub(super) fn takes(&mut self, wall_ms: u64, limit: u32) -> bool {
        let mut window = current(self.0, 60_000, wall_ms);
        if window.spent >= u64::from(limit) {
            return false;
        }
        window.spent += 1;
        self.0 = Some(window);
        true
    }
}

/// MEDIA.
#[derive(Default)]
pub(super) struct Speech {
    minute: Option<Window>,
    streams: BTreeMap<(CallId, [u8; 4]), Window>,
    complained_ms: Option<u64>,
}

impl Speech {
    /// Rows 3 to 5: 1 048 576 bytes in a minute, 60 frames of a stream in a second, 32 streams.
    pub(super) fn takes(&mut self, wall_ms: u64, call_id: CallId, stream: [u8; 4], ct_bytes: usize) -> bool {
        let mut minute = current(self.minute, 60_000, wall_ms);
        minute.spent += ct_bytes as u64;
        if minute.spent > 1_048_576 {
            return false;
        }
        self.streams
            .retain(|_, w| (w.began_ms..w.began_ms + 1_000).contains(&wall_ms));
        let is_new = !self.streams.contains_key(&(call_id, stream));
        if is_new && self.streams.len() == 32 {
            return false;
        }
        let second = self.streams.entry((call_id, stream)).or_insert(Window {
            began_ms: wall_ms,
            spent: 0,
        });
        if second.spent == 60 {
            return false;
        }
        second.spent += 1;
        self.minute = Some(minute);
        true
    }

    /// Whether a refusal is told now: one in a second is.
    pub(super) fn complains(&mut self, wall_ms: u64) -> bool {
        let silent = self
            .complained_ms
            .is_some_and(|at_ms| (at_ms..at_ms + 1_000).contains(&wall_ms));
        if !silent {
            self.complained_ms = Some(wall_ms);
        }
        !silent
    }
}
