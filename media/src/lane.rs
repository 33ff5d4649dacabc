//! MEDIA waiting for one recipient (10 §6, decisions.md 9): at most 64 frames, none older than 200 ms, the oldest first
//! to go. Audio that comes late is worth nothing, so a slow recipient loses frames and nobody else notices.

use crate::limits::{LANE_AGE_MS_MAX, LANE_FRAMES_MAX};
use bytes::Bytes;
use std::collections::VecDeque;

/// The lane. Frames are whole messages as they are written, referenced and never copied.
#[derive(Debug, Default)]
pub struct Lane {
    frames: VecDeque<(u64, Bytes)>,
    /// Bytes of the first frame that are written already: that one is seen through.
    written: usize,
}

impl Lane {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Frames that wait.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether a frame is written in part: nothing else may be written before the rest of it.
    pub fn is_begun(&self) -> bool {
        self.written > 0
    }

    /// Queues one frame. Returns how many were shed for it: old ones, and the oldest if the lane was full.
    pub fn push(&mut self, mono_ms: u64, frame: Bytes) -> usize {
        let mut shed = self.expire(mono_ms);
        if self.frames.len() >= LANE_FRAMES_MAX {
            self.frames.remove(usize::from(self.is_begun()));
            shed += 1;
        }
        self.frames.push_back((mono_ms, frame));
        shed
    }

    /// Sheds what is too old to be sent now; returns how many frames.
    pub fn expire(&mut self, mono_ms: u64) -> usize {
        let first = usize::from(self.is_begun());
        let is_old = |(queued_ms, _): &&(u64, Bytes)| mono_ms.saturating_sub(*queued_ms) > LANE_AGE_MS_MAX;
        let old = self.frames.iter().skip(first).take_while(is_old).count();
        self.frames.drain(first..first + old);
        old
    }

    /// What is to be written, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.frames.iter().enumerate().map(|(at, (_, frame))| match at {
            0 => &frame[self.written..],
            _ => &frame[..],
        })
    }

    /// Takes written bytes off the front; returns how many of them were not the lane's.
    pub fn advance(&mut self, mut bytes: usize) -> usize {
        while let Some((_, frame)) = self.frames.front() {
            let left = frame.len() - self.written;
            if bytes < left {
                self.written += bytes;
                return 0;
            }
            bytes -= left;
            self.written = 0;
            self.frames.pop_front();
        }
        bytes
    }

    /// Drops what waits, but for the rest of a frame that is written in part where `keep_begun`.
    pub fn clear(&mut self, keep_begun: bool) {
        self.frames.truncate(usize::from(keep_begun && self.is_begun()));
        if self.frames.is_empty() {
            self.written = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(n: u8) -> Bytes {
        Bytes::from(vec![n; 10])
    }

    fn waiting(lane: &Lane) -> Vec<u8> {
        lane.pieces().map(|piece| piece[0]).collect()
    }

    /// W10.20: the 65th drops the first.
    #[test]
    fn a_full_lane_drops_the_oldest() {
        let mut lane = Lane::default();
        for n in 0..64 {
            assert_eq!(lane.push(0, frame(n)), 0);
        }
        assert_eq!(lane.push(0, frame(64)), 1);
        assert_eq!(waiting(&lane), (1..=64).collect::<Vec<_>>());
        // One that is begun is seen through.
        assert_eq!(lane.advance(4), 0);
        assert_eq!(lane.push(0, frame(65)), 1);
        assert_eq!(lane.pieces().next().unwrap().len(), 6);
        let rest: Vec<u8> = [1].into_iter().chain(3..=65).collect();
        assert_eq!(waiting(&lane), rest);
    }

    /// W10.20: none older than 200 ms.
    #[test]
    fn old_frames_are_never_sent() {
        let mut lane = Lane::default();
        lane.push(100, frame(1));
        lane.push(101, frame(2));
        lane.push(102, frame(3));
        assert_eq!(lane.expire(300), 0);
        assert_eq!(lane.expire(301), 1);
        lane.advance(1);
        assert_eq!(lane.push(400, frame(4)), 1, "3 goes, 2 is begun");
        assert_eq!(waiting(&lane), [2, 4]);
        assert_eq!(lane.advance(9 + 10 + 7), 7);
        assert!(lane.is_empty() && !lane.is_begun());
    }

    #[test]
    fn a_cleared_lane_keeps_at_most_the_rest_of_a_frame() {
        for keep in [true, false] {
            let mut lane = Lane::default();
            lane.push(0, frame(1));
            lane.push(0, frame(2));
            lane.clear(keep);
            assert!(lane.is_empty());
            lane.push(0, frame(1));
            lane.push(0, frame(2));
            lane.advance(3);
            lane.clear(keep);
            assert_eq!(lane.len(), usize::from(keep));
            assert_eq!(lane.is_begun(), keep);
        }
    }
}
