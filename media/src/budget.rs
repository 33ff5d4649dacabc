//! What one connection may send (10 §5): bytes a minute, frames a second and stream, streams; and how often it is told
//! that it may not. Windows are fixed ones from their first frame, on the wall clock; one that would begin later than
//! now is over, so a clock that steps back freezes nothing.

use crate::frame::MediaFrame;
use crate::limits::{
    BYTE_WINDOW_MS, BYTES_PER_WINDOW, COMPLAINT_MS, FRAMES_PER_STREAM, STREAM_WINDOW_MS, STREAMS_MAX,
};
use drover_wire::error::{Code, Refusal};
use drover_wire::id::CallId;

/// Whether a window of `length_ms` that began at `start_ms` is still open.
const fn is_open(start_ms: u64, length_ms: u64, wall_ms: u64) -> bool {
    start_ms <= wall_ms && wall_ms - start_ms < length_ms
}

/// One stream's second.
#[derive(Clone, Copy, Debug)]
struct Stream {
    call_id: CallId,
    stream: [u8; 4],
    start_ms: u64,
    frames: u32,
}

/// The budgets of one connection; made when it first sends MEDIA.
#[derive(Debug, Default)]
pub struct Sender {
    /// When the minute began, and its bytes.
    minute: Option<(u64, u64)>,
    streams: Vec<Stream>,
    complained_ms: Option<u64>,
}

impl Sender {
    /// Charges one frame whose audio is no longer than [`crate::limits::CT_BYTES_MAX`].
    ///
    /// # Errors
    /// The first budget that does not cover it, in the order of 10 §5 rows 3 to 5; nothing is charged then.
    pub fn charge(&mut self, wall_ms: u64, frame: &MediaFrame) -> Result<(), Refusal> {
        let limited =
            |limit: u64, retry_s: u32| Err(Refusal::number(Code::GroupIngressLimited, limit).after(retry_s));
        let minute = self
            .minute
            .filter(|(start_ms, _)| is_open(*start_ms, BYTE_WINDOW_MS, wall_ms));
        let (minute_ms, spent) = minute.unwrap_or((wall_ms, 0));
        let spent = spent + frame.ct_bytes as u64;
        if spent > BYTES_PER_WINDOW {
            return limited(BYTES_PER_WINDOW, (BYTE_WINDOW_MS / 1000) as u32);
        }
        let retry_s = (STREAM_WINDOW_MS / 1000) as u32;
        self.streams
            .retain(|s| is_open(s.start_ms, STREAM_WINDOW_MS, wall_ms));
        let open = self.streams.len();
        let is_its = |s: &&mut Stream| s.stream == frame.stream && s.call_id == frame.call_id;
        match self.streams.iter_mut().find(is_its) {
            Some(stream) if stream.frames >= FRAMES_PER_STREAM => {
                return limited(FRAMES_PER_STREAM.into(), retry_s);
            }
            Some(stream) => stream.frames += 1,
            None if open >= STREAMS_MAX => return limited(STREAMS_MAX as u64, retry_s),
            None => self.streams.push(Stream {
                call_id: frame.call_id,
                stream: frame.stream,
                start_ms: wall_ms,
                frames: 1,
            }),
        }
        self.minute = Some((minute_ms, spent));
        Ok(())
    }

    /// Whether a refusal of rows 3 to 6 is reported now: the first is, then at most one a second.
    pub fn may_complain(&mut self, wall_ms: u64) -> bool {
        if self
            .complained_ms
            .is_some_and(|at_ms| is_open(at_ms, COMPLAINT_MS, wall_ms))
        {
            return false;
        }
        self.complained_ms = Some(wall_ms);
        true
    }

    /// Streams whose windows were open at the last charge.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000_000;

    fn frame(stream: u8, ct_bytes: usize) -> MediaFrame {
        MediaFrame {
            call_id: CallId([1; 16]),
            stream: [0, 0, 0, stream],
            ct_bytes,
        }
    }

    fn limited(limit: u64, retry_s: u32) -> Result<(), Refusal> {
        Err(Refusal::number(Code::GroupIngressLimited, limit).after(retry_s))
    }

    /// W10.8
    #[test]
    fn sixty_frames_a_second_and_stream() {
        let mut sender = Sender::default();
        for n in 0..60 {
            assert_eq!(sender.charge(NOW + n * 16, &frame(1, 80)), Ok(()));
        }
        assert_eq!(sender.charge(NOW + 999, &frame(1, 80)), limited(60, 1));
        assert_eq!(sender.charge(NOW + 999, &frame(2, 80)), Ok(()), "another stream");
        let other_call = MediaFrame {
            call_id: CallId([2; 16]),
            ..frame(1, 80)
        };
        assert_eq!(
            sender.charge(NOW + 999, &other_call),
            Ok(()),
            "the same stream of another call"
        );
        assert_eq!(sender.charge(NOW + 1000, &frame(1, 80)), Ok(()));
    }

    /// W10.9: the last byte of the minute is accepted, the next refused; refused frames, and frames without audio, cost
    /// nothing.
    #[test]
    fn a_mebibyte_a_minute() {
        let mut sender = Sender::default();
        let mut sent = 0;
        let mut at = NOW;
        while sent + 1500 <= BYTES_PER_WINDOW {
            assert_eq!(sender.charge(at, &frame(1, 1500)), Ok(()));
            sent += 1500;
            at += 20;
        }
        let rest = (BYTES_PER_WINDOW - sent) as usize;
        assert_eq!(
            sender.charge(at, &frame(1, rest + 1)),
            limited(BYTES_PER_WINDOW, 60)
        );
        assert_eq!(sender.charge(at, &frame(1, rest)), Ok(()));
        assert_eq!(sender.charge(at, &frame(1, 1)), limited(BYTES_PER_WINDOW, 60));
        assert_eq!(sender.charge(at, &frame(1, 0)), Ok(()));
        assert_eq!(
            sender.charge(NOW + 59_999, &frame(1, 1)),
            limited(BYTES_PER_WINDOW, 60)
        );
        assert_eq!(sender.charge(NOW + 60_000, &frame(1, 1500)), Ok(()));
    }

    /// W10.10
    #[test]
    fn thirty_two_streams() {
        let mut sender = Sender::default();
        for stream in 0..32 {
            assert_eq!(sender.charge(NOW + u64::from(stream), &frame(stream, 1)), Ok(()));
        }
        for stream in 32..200 {
            assert_eq!(sender.charge(NOW + 500, &frame(stream, 1)), limited(32, 1));
            assert_eq!(sender.streams(), 32);
        }
        assert_eq!(
            sender.charge(NOW + 500, &frame(0, 1)),
            Ok(()),
            "one that has its window"
        );
        assert_eq!(
            sender.charge(NOW + 1000, &frame(200, 1)),
            Ok(()),
            "the first window is over"
        );
    }

    /// W10.11: 600 frames a second for three seconds; the clock steps back.
    #[test]
    fn complaints_are_seldom_and_a_clock_that_steps_back_freezes_nothing() {
        let mut sender = Sender::default();
        let (mut refused, mut reported) = (0, 0);
        for n in 0..1800_u64 {
            let at = NOW + n * 1000 / 600;
            if sender.charge(at, &frame(1, 80)).is_err() {
                refused += 1;
                reported += u64::from(sender.may_complain(at));
            }
        }
        assert_eq!((refused, reported), (1800 - 3 * 60, 3));
        let back = NOW + 1_990;
        for _ in 0..60 {
            assert_eq!(sender.charge(back, &frame(1, 80)), Ok(()), "a new window");
        }
        assert_eq!(sender.charge(back, &frame(1, 80)), limited(60, 1));
        assert!(sender.may_complain(back - 1), "re-armed");
        let mut sender = Sender::default();
        for n in 0..u64::from(u32::MAX) {
            if sender.charge(NOW + n * 20, &frame(1, 1500)).is_err() {
                break;
            }
        }
        assert_eq!(sender.charge(NOW - 1, &frame(1, 1500)), Ok(()), "the minute too");
    }
}
