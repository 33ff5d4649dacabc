//! What is asked for: calls, who of them is of this process, and frames as they leave.

use crate::args::{BenchArgs, Latency, Side};
use crate::error::Error;
use crate::peer::encoded;
use crate::report::Settings;
use crate::wsframe;
use drover_wire::frame::Frame;
use drover_wire::id::{CallId, GroupId};
use std::ops::Range;

/// The reference setting.
const CALLS: usize = 80;
const PARTICIPANTS: usize = 5;
const SIZE_BYTES: usize = 160;
const FRAMES_PER_S: f64 = 50.0;

/// What the protocol allows (10 §3, §5): participants of a call, bytes of a frame, of a connection's frames in a minute,
/// and streams of a connection.
const PARTICIPANTS_MAX: usize = 5;
const SIZE_BYTES_MAX: usize = 1500;
const BYTES_PER_MINUTE: f64 = 1_048_576.0;
const STREAMS_MAX: f64 = 32.0;
/// Frames per second and stream: fewer than the 60 that are allowed, since answers leave when what they answer came.
const STREAM_FRAMES_PER_S: f64 = 50.0;

/// Makes every sequence number eight bytes long: what is added to the clock, ns.
pub(super) const SEQ_BASE: u64 = 1 << 62;
/// Where the eight bytes lie in a MEDIA frame.
pub(super) const SEQ_AT: usize = 27;
/// The first byte of the stream's name, which says what kind of frame it is.
pub(super) const KIND_AT: usize = 22;
/// Before them, in every frame of ours: `82 1818 84 50`, the call, `44`, the stream, `1b`.
pub(super) const MEDIA_HEAD: [u8; 5] = [0x82, 0x18, 0x18, 0x84, 0x50];

/// What a frame is to whom it reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Audio, so to speak.
    Plain,
    /// The same, and the last participant answers it.
    Probe,
    /// The answer, with the probe's sequence number.
    Answer,
}

impl Kind {
    /// From the byte at [`KIND_AT`].
    pub(super) fn of(byte: u8) -> Option<Self> {
        [Kind::Plain, Kind::Probe, Kind::Answer]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// One combination.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(super) calls: usize,
    pub(super) participants: usize,
    pub(super) size_bytes: usize,
    pub(super) frames_per_s: f64,
    pub(super) latency: Latency,
    pub(super) side: Side,
}

impl Plan {
    /// Every combination of the lists, in their order.
    ///
    /// # Errors
    /// [`Error::Usage`] for what no relay carries.
    pub(crate) fn all(args: &BenchArgs) -> Result<Vec<Self>, Error> {
        fn list<T: Copy>(stated: &[T], default: T) -> Vec<T> {
            match stated {
                [] => vec![default],
                stated => stated.to_vec(),
            }
        }
        let mut plans = Vec::new();
        for &calls in &list(&args.calls, CALLS) {
            for &participants in &list(&args.participants, PARTICIPANTS) {
                for &frames_per_s in &list(&args.frames, FRAMES_PER_S) {
                    for &size_bytes in &list(&args.size, SIZE_BYTES) {
                        plans.push(Self {
                            calls,
                            participants,
                            size_bytes,
                            frames_per_s,
                            latency: args.latency,
                            side: args.side,
                        });
                    }
                }
            }
        }
        plans.iter().try_for_each(Self::check)?;
        if args.side != Side::Both && plans.len() > 1 {
            return Err(Error::Usage("--side is for one combination at a time".into()));
        }
        Ok(plans)
    }

    fn check(&self) -> Result<(), Error> {
        let usage = |what: String| Err(Error::Usage(what));
        if self.calls == 0 {
            return usage("--calls has to be above 0".into());
        }
        if !(2..=PARTICIPANTS_MAX).contains(&self.participants) {
            return usage(format!("--participants has to be 2 to {PARTICIPANTS_MAX}"));
        }
        if self.size_bytes > SIZE_BYTES_MAX {
            return usage(format!("--size of a MEDIA frame is at most {SIZE_BYTES_MAX}"));
        }
        if !(self.frames_per_s > 0.0 && self.frames_per_s.is_finite()) {
            return usage("--frames has to be above 0".into());
        }
        let most = (BYTES_PER_MINUTE / 60.0 / self.size_bytes.max(1) as f64)
            .min(STREAMS_MAX * STREAM_FRAMES_PER_S)
            .floor();
        if self.frames_per_s > most {
            return usage(format!(
                "a participant may send at most {most} frames/s of {} B: more load takes more calls",
                self.size_bytes
            ));
        }
        Ok(())
    }

    /// The participants of each call that are of this process.
    pub(super) fn places(&self) -> Range<usize> {
        let last = self.participants - 1;
        match self.side {
            Side::Both => 0..self.participants,
            Side::Near => 0..last,
            Side::Far => last..self.participants,
        }
    }

    /// Connections of this process.
    pub(super) fn connections(&self) -> usize {
        self.calls * self.places().len()
    }

    /// Call and place of a connection.
    pub(super) fn seat(&self, connection: usize) -> (usize, usize) {
        let places = self.places();
        (
            connection / places.len(),
            places.start + connection % places.len(),
        )
    }

    /// Frames per second at recipients of this process.
    pub(super) fn offered_per_s(&self) -> f64 {
        (self.connections() * (self.participants - 1)) as f64 * self.frames_per_s
    }

    /// What the frames of this place are; [`Kind::Answer`] is not paced.
    pub(super) fn kind(&self, place: usize) -> Kind {
        let is_last = place + 1 == self.participants;
        match (self.latency, self.side) {
            (Latency::OneWay, Side::Both) => Kind::Plain,
            _ if place == 0 => Kind::Probe,
            _ if is_last => Kind::Answer,
            _ => Kind::Plain,
        }
    }

    /// One frame on each of the streams this connection needs.
    pub(super) fn templates(&self, connection: usize, call_id: CallId) -> Vec<Template> {
        let (_, place) = self.seat(connection);
        let streams = (self.frames_per_s / STREAM_FRAMES_PER_S).ceil().max(1.0) as u8;
        let stream = |number| [self.kind(place) as u8, place as u8, 0, number];
        (0..streams)
            .map(|number| Template::new(call_id, stream(number), self.size_bytes))
            .collect()
    }

    /// What tells its row from others, and what it has in common with its baseline.
    pub(super) fn settings(&self) -> Settings {
        let mut settings = Settings::new();
        settings.insert("calls".into(), self.calls.into());
        settings.insert("participants".into(), self.participants.into());
        settings.insert("frames_per_s".into(), self.frames_per_s.into());
        settings.insert("size_bytes".into(), self.size_bytes.into());
        let latency = match self.latency {
            Latency::OneWay => "one-way",
            Latency::RoundTrip => "round-trip",
        };
        settings.insert("latency".into(), latency.into());
        match self.side {
            Side::Both => None,
            Side::Near => settings.insert("side".into(), "near".into()),
            Side::Far => settings.insert("side".into(), "far".into()),
        };
        settings
    }

    /// In words.
    pub(super) fn what(&self, of: &str) -> String {
        let method = match self.latency {
            Latency::OneWay => "",
            Latency::RoundTrip => ", round trips through the last participant",
        };
        format!(
            "{of}, {} calls of {}, {} B at {}/s{method}",
            self.calls, self.participants, self.size_bytes, self.frames_per_s
        )
    }
}

/// The id of a call: the same in every process that works in this group, another for each combination measured.
pub(super) fn call_id(group: GroupId, cell: u32, number: usize) -> CallId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&group.0[..8]);
    id[8..12].copy_from_slice(&cell.to_be_bytes());
    id[12..].copy_from_slice(&(number as u32).to_be_bytes());
    CallId(id)
}

/// A frame of one participant on one stream, masked.
pub(super) struct Template {
    pub(super) message: Vec<u8>,
    pub(super) payload_at: usize,
}

impl Template {
    pub(super) fn new(call_id: CallId, stream: [u8; 4], size_bytes: usize) -> Self {
        let frame = encoded(&Frame::Media {
            call_id,
            stream,
            seq: SEQ_BASE,
            ct: &vec![0x11; size_bytes],
        });
        let mut message = Vec::new();
        wsframe::put_message(&frame, &mut message);
        let payload_at = message.len() - frame.len();
        Self { message, payload_at }
    }

    /// Appends it with this sequence number.
    pub(super) fn put(&self, stamp_ns: u64, out: &mut Vec<u8>) {
        let seq_at = out.len() + self.payload_at + SEQ_AT;
        out.extend_from_slice(&self.message);
        let seq = &mut out[seq_at..seq_at + 8];
        seq.copy_from_slice(&(SEQ_BASE | stamp_ns).to_be_bytes());
        wsframe::mask(seq, SEQ_AT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::parse;

    const GROUP: GroupId = GroupId([7; 32]);

    fn plans(line: &str) -> Result<Vec<Plan>, Error> {
        Plan::all(&parse(line).expect("arguments"))
    }

    #[test]
    fn every_combination_once() {
        let plans = plans("media --spawn --calls 1,2 --participants 2,3 --frames 10,50 --size 0,160,300");
        let plans = plans.expect("plans");
        assert_eq!(plans.len(), 24);
        assert!((1..plans.len()).all(|at| !plans[..at].contains(&plans[at])));
        let labels: std::collections::HashSet<String> = plans
            .iter()
            .map(|plan| format!("{:?}", plan.settings()))
            .collect();
        assert_eq!(labels.len(), 24);
    }

    #[test]
    fn what_no_relay_carries_is_refused() {
        for line in [
            "media --spawn --calls 0",
            "media --spawn --participants 1",
            "media --spawn --participants 5,6",
            "media --spawn --size 1501",
            "media --spawn --frames 0",
            "media --spawn --frames NaN",
            "media --spawn --frames 110",
            "media --spawn --size 1 --frames 1601",
            "media --url ws://h --keys k --side near --latency round-trip --calls 1,2",
        ] {
            assert!(matches!(plans(line), Err(Error::Usage(_))), "{line}");
        }
        assert!(plans("media --spawn --frames 109").is_ok());
        assert!(plans("media --spawn --size 1 --frames 1600").is_ok());
    }

    #[test]
    fn both_sides_together_are_everybody() {
        let of = |line: &str| plans(line).expect("a plan")[0];
        let both = of("media --spawn --calls 3 --participants 4 --latency round-trip");
        let near =
            of("media --url ws://h --keys k --calls 3 --participants 4 --latency round-trip --side near");
        let far = of("media --url ws://h --keys k --calls 3 --participants 4 --side far");
        let seats = |plan: Plan| (0..plan.connections()).map(move |number| plan.seat(number));
        let mut all: Vec<_> = seats(near).chain(seats(far)).collect();
        all.sort_unstable();
        assert_eq!(all, seats(both).collect::<Vec<_>>());
        assert_eq!(near.offered_per_s() + far.offered_per_s(), both.offered_per_s());
        for plan in [both, near, far] {
            let kinds: Vec<Kind> = (0..4).map(|place| plan.kind(place)).collect();
            assert_eq!(kinds, [Kind::Probe, Kind::Plain, Kind::Plain, Kind::Answer]);
        }
    }

    #[test]
    fn a_frame_says_what_it_is_and_when_it_was_sent() {
        for size_bytes in [0, 100, 160, 1500] {
            let stream = [Kind::Probe as u8, 1, 0, 2];
            let template = Template::new(call_id(GROUP, 1, 3), stream, size_bytes);
            let mut out = Vec::new();
            template.put(77, &mut out);
            template.put(123_456_789, &mut out);
            let second = &mut out[template.message.len() + template.payload_at..];
            wsframe::mask(second, 0);
            assert_eq!(Kind::of(second[KIND_AT]), Some(Kind::Probe));
            let Ok(Frame::Media {
                call_id: id, seq, ct, ..
            }) = Frame::decode(second)
            else {
                panic!("no MEDIA")
            };
            assert_eq!(
                (id, seq, ct.len()),
                (call_id(GROUP, 1, 3), SEQ_BASE | 123_456_789, size_bytes)
            );
        }
    }
}
