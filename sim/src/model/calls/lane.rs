//! Audio that waits for one connection (10 §6, decisions.md 9; invariant 4 of the architecture): at most 64 frames, none
//! sent that is older than 200 ms, the oldest the first to go, and nothing durable before it but the rest of a message.

use std::collections::VecDeque;

const FRAMES_MAX: usize = 64;
const AGE_MS_MAX: u64 = 200;

/// See the module.
#[derive(Default)]
pub(super) struct Lane {
    /// By when they were queued.
    frames: VecDeque<(u64, Vec<u8>)>,
    /// The first of them is written in part: it is seen through.
    begun: bool,
}

type Broken = (&'static str, String);

impl Lane {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Another frame; how many go for it.
    pub(super) fn push(&mut self, mono_ms: u64, message: &[u8]) -> usize {
        let mut gone = self.expire(mono_ms);
        if self.frames.len() == FRAMES_MAX {
            self.frames.remove(usize::from(self.begun));
            gone += 1;
        }
        self.frames.push_back((mono_ms, message.to_vec()));
        gone
    }

    /// How many are too old now.
    pub(super) fn expire(&mut self, mono_ms: u64) -> usize {
        let before = self.frames.len();
        let mut first = self.begun;
        self.frames
            .retain(|(queued_ms, _)| std::mem::take(&mut first) || mono_ms - queued_ms <= AGE_MS_MAX);
        before - self.frames.len()
    }

    /// Everything goes but what is begun.
    pub(super) fn clear(&mut self) {
        self.frames.truncate(usize::from(self.begun));
    }

    /// A message is begun: this audio, or something durable.
    pub(super) fn start(&mut self, mono_ms: u64, media: Option<&[u8]>) -> Result<(), Broken> {
        let Some(message) = media else {
            return Err((
                "MEDIA waits for the rest of one message and nothing else",
                format!("something durable is written, {} frames wait", self.frames.len()),
            ));
        };
        match self.frames.front() {
            Some((queued_ms, _)) if mono_ms - queued_ms > AGE_MS_MAX => Err((
                "no MEDIA is sent that is too old",
                format!("it was queued {} ms ago", mono_ms - queued_ms),
            )),
            Some((_, first)) if first == message => {
                self.begun = true;
                Ok(())
            }
            _ => Err((
                "MEDIA is written as it was queued",
                format!("another frame was first of {}", self.frames.len()),
            )),
        }
    }

    /// The message that was begun last is written.
    pub(super) fn finish(&mut self) {
        if std::mem::take(&mut self.begun) {
            self.frames.pop_front();
        }
    }
}
