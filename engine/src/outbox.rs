//! One connection's bounded outbound queue (02 §9, architecture.md §5). Plain data: the transport drains it, the
//! simulator too.
//!
//! Two lanes. The durable one is bounded and loses nothing; MEDIA has its own ([`Lane`]), short and drop-oldest, and
//! leaves first: behind at most the rest of one message that is partly written.
//!
//! What is queued are *runs*: one or more whole WebSocket binary messages back to back in one refcounted buffer, so
//! that the same bytes serve every recipient and a turn's worth of PUSHes is one slice in one write.

use bytes::Bytes;
use drover_media::Lane;
use drover_wire::ws;
use std::collections::VecDeque;
use std::io::IoSlice;

/// Messages one outbox holds.
pub const MESSAGES_MAX: usize = 256;
/// Cost units one outbox holds.
pub const COST_MAX: usize = 8_388_608;
/// What a message costs beyond its payload.
pub const MESSAGE_COST: usize = 256;

/// The cost of one message with this many bytes in its one variable field, capped so that a single oversized frame
/// can always enter an empty queue.
pub const fn cost(payload_bytes: usize) -> usize {
    let cost = MESSAGE_COST + payload_bytes;
    if cost > COST_MAX { COST_MAX } else { cost }
}

/// One or more whole messages, framed as unmasked WebSocket binary messages (a transport with other framing walks
/// the heads and writes its own).
#[derive(Clone, Debug)]
pub struct Outbound {
    /// Heads and payloads, back to back.
    pub bytes: Bytes,
    /// How many messages.
    pub messages: u32,
    /// Sum of [`cost`].
    pub cost: u32,
}

/// What still fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Messages.
    pub messages: usize,
    /// Cost units.
    pub cost: usize,
}

impl Room {
    /// No room at all.
    pub const NONE: Room = Room { messages: 0, cost: 0 };
    /// The room of an empty outbox.
    pub const ALL: Room = Room {
        messages: MESSAGES_MAX,
        cost: COST_MAX,
    };

    /// Whether at least a quarter of the outbox is free: what [`crate::Effects::watch_room`] waits for.
    pub fn is_quarter(self) -> bool {
        self.messages >= MESSAGES_MAX / 4 && self.cost >= COST_MAX / 4
    }

    /// Whether at least half of it is: more than that is not worth a write to know.
    pub fn is_half(self) -> bool {
        self.messages >= MESSAGES_MAX / 2 && self.cost >= COST_MAX / 2
    }
}

/// The queue.
#[derive(Debug, Default)]
pub struct Outbox {
    runs: VecDeque<Outbound>,
    /// Bytes of the first run that are already written.
    written: usize,
    /// Messages of the first run, and their cost, that count no more because as much of it is written.
    released: (usize, usize),
    messages: usize,
    cost: usize,
    /// There once MEDIA was queued.
    media: Option<Box<Lane>>,
}

impl Outbox {
    /// What still fits. A run counts less as it is written, by whole messages: a slow peer makes room all the while,
    /// not only once some megabytes have left.
    pub fn room(&self) -> Room {
        Room {
            messages: MESSAGES_MAX.saturating_sub(self.messages),
            cost: COST_MAX.saturating_sub(self.cost),
        }
    }

    /// Whether nothing waits in either lane.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.waiting_media().is_none()
    }

    /// The media lane, if anything waits in it.
    fn waiting_media(&self) -> Option<&Lane> {
        self.media.as_deref().filter(|lane| !lane.is_empty())
    }

    /// Whether MEDIA was ever queued.
    pub fn carries_media(&self) -> bool {
        self.media.is_some()
    }

    /// Queues one framed MEDIA message. Returns how many were shed for it.
    pub fn push_media(&mut self, mono_ms: u64, message: Bytes) -> usize {
        self.media.get_or_insert_default().push(mono_ms, message)
    }

    /// Sheds MEDIA that is too old to be sent now: called before [`Outbox::gather`]. Returns how many frames.
    pub fn expire_media(&mut self, mono_ms: u64) -> usize {
        self.media.as_mut().map_or(0, |lane| lane.expire(mono_ms))
    }

    /// Queues a run if all of it fits.
    pub fn push(&mut self, out: Outbound) -> bool {
        let room = self.room();
        if out.messages as usize > room.messages || out.cost as usize > room.cost {
            return false;
        }
        self.force(out);
        true
    }

    /// Queues past the bounds: the last ERROR before a close, a pong.
    pub fn force(&mut self, out: Outbound) {
        self.messages += out.messages as usize;
        self.cost += out.cost as usize;
        self.runs.push_back(out);
    }

    /// Fills `slices` with what to write next; returns how many are used.
    pub fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut used = 0;
        for (slice, piece) in slices.iter_mut().zip(self.pieces()) {
            *slice = IoSlice::new(piece);
            used += 1;
        }
        used
    }

    /// What is to be written, in order: the rest of a message that is partly written, MEDIA, everything else.
    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let media = self.waiting_media();
        let lead = media.map_or(0, |_| self.lead());
        let from = self.written + lead;
        let begun = self.runs.front().filter(|_| lead > 0);
        let begun = begun.map(|run| &run.bytes[self.written..from]);
        let rest = self.runs.iter().enumerate().map(move |(at, run)| match at {
            0 => &run.bytes[from..],
            _ => &run.bytes[..],
        });
        let rest = rest.filter(|piece| !piece.is_empty());
        begun
            .into_iter()
            .chain(media.into_iter().flat_map(Lane::pieces))
            .chain(rest)
    }

    /// Bytes left of the message in which writing the first run broke off.
    fn lead(&self) -> usize {
        let Some(run) = self.runs.front().filter(|_| self.written > 0) else {
            return 0;
        };
        if run.messages <= 1 {
            // One message, or the answer to the upgrade, which is none.
            return run.bytes.len() - self.written;
        }
        let mut end = 0;
        while end < self.written {
            end += ws::message_len(&run.bytes[end..]);
        }
        end - self.written
    }

    /// Takes `bytes` written bytes off the front. Nothing may have been queued since [`Outbox::gather`].
    pub fn advance(&mut self, mut bytes: usize) {
        if self.waiting_media().is_some() {
            let lead = self.lead().min(bytes);
            self.advance_durable(lead);
            bytes -= lead;
            if let Some(lane) = &mut self.media {
                bytes = lane.advance(bytes);
            }
        }
        self.advance_durable(bytes);
    }

    fn advance_durable(&mut self, mut bytes: usize) {
        if bytes == 0 {
            return;
        }
        while let Some(run) = self.runs.front() {
            let left = run.bytes.len() - self.written;
            let (messages, cost) = (run.messages as usize, run.cost as usize);
            if bytes < left {
                self.written += bytes;
                let gone = (messages as u64 * self.written as u64 / run.bytes.len() as u64) as usize;
                self.release(gone, cost / messages.max(1) * gone);
                return;
            }
            bytes -= left;
            self.release(messages, cost);
            (self.written, self.released) = (0, (0, 0));
            self.runs.pop_front();
        }
        debug_assert_eq!(bytes, 0, "more was written than was queued");
        if self.runs.capacity() > 32 {
            // An idle connection keeps no buffer (issue: memory per idle connection).
            self.runs = VecDeque::new();
        }
    }

    /// So much of the first run counts no more.
    fn release(&mut self, messages: usize, cost: usize) {
        self.messages -= messages - self.released.0;
        self.cost -= cost - self.released.1;
        self.released = (messages, cost);
    }

    /// Drops what waits, except the rest of a run that is partly written when `keep_partial` (a peer must not see
    /// half a message and then another one).
    pub fn clear(&mut self, keep_partial: bool) {
        let first = if keep_partial && self.written > 0 {
            self.runs.pop_front()
        } else {
            None
        };
        if let Some(lane) = &mut self.media {
            lane.clear(keep_partial);
        }
        self.runs.clear();
        self.messages = 0;
        self.cost = 0;
        match first {
            Some(run) => {
                self.messages = run.messages as usize - self.released.0;
                self.cost = run.cost as usize - self.released.1;
                self.runs.push_back(run);
            }
            None => (self.written, self.released) = (0, (0, 0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(messages: u32, bytes: usize, cost: u32) -> Outbound {
        Outbound {
            bytes: Bytes::from(vec![0; bytes]),
            messages,
            cost,
        }
    }

    #[test]
    fn room_grows_by_whole_messages_as_a_run_is_written() {
        let mut outbox = Outbox::default();
        assert!(outbox.push(run(10, 1_000, 5_000)) && outbox.push(run(1, 100, 300)));
        outbox.advance(99);
        assert_eq!(outbox.room().messages, MESSAGES_MAX - 11);
        outbox.advance(1);
        assert_eq!(
            (outbox.room().messages, outbox.room().cost),
            (MESSAGES_MAX - 10, COST_MAX - 4_800)
        );
        outbox.advance(850);
        assert_eq!(outbox.room().messages, MESSAGES_MAX - 2);
        outbox.advance(100); // into the second run, a single message
        assert_eq!(
            (outbox.room().messages, outbox.room().cost),
            (MESSAGES_MAX - 1, COST_MAX - 300)
        );
        outbox.advance(50);
        assert_eq!(outbox.room(), Room::ALL);
    }

    /// What a socket is given that takes `chunk` bytes at a time.
    fn written(outbox: &mut Outbox, chunk: usize, pieces: usize) -> Vec<u8> {
        let mut all = Vec::new();
        for _ in 0..pieces {
            let mut slices = [IoSlice::new(&[]); 8];
            let used = outbox.gather(&mut slices);
            let bytes: Vec<u8> = slices[..used].iter().flat_map(|s| s.to_vec()).collect();
            let taken = bytes.len().min(chunk);
            all.extend(&bytes[..taken]);
            outbox.advance(taken);
        }
        all
    }

    /// A message of `n`s.
    fn message(n: u8, len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        ws::binary_head(len, &mut bytes);
        bytes.resize(bytes.len() + len, n);
        bytes
    }

    /// Architecture §9, 4: MEDIA waits for the rest of one message and for nothing else, however the socket takes bytes.
    #[test]
    fn media_leaves_at_the_next_end_of_a_message() {
        let durable: Vec<Vec<u8>> = (1..=4).map(|n| message(n, 200)).collect();
        for chunk in 1..=700 {
            for before in 0..6 {
                let mut outbox = Outbox::default();
                let run = |range: std::ops::Range<usize>| Outbound {
                    messages: range.len() as u32,
                    cost: 0,
                    bytes: durable[range].concat().into(),
                };
                outbox.force(run(0..3));
                outbox.force(run(3..4));
                let mut got = written(&mut outbox, chunk, before);
                let media = message(9, 50);
                assert_eq!(outbox.push_media(0, media.clone().into()), 0);
                let whole = got.len().div_ceil(204);
                got.extend(written(&mut outbox, chunk, 900));
                let mut expected = durable[..whole].concat();
                expected.extend(media);
                expected.extend(durable[whole..].concat());
                assert_eq!(got, expected, "chunk {chunk}, after {before}");
                assert!(outbox.is_empty());
                assert_eq!(outbox.room(), Room::ALL);
            }
        }
    }

    #[test]
    fn media_takes_no_room_and_leaves_with_what_is_cleared() {
        let mut outbox = Outbox::default();
        for _ in 0..64 {
            assert_eq!(outbox.push_media(0, message(9, 50).into()), 0);
        }
        assert_eq!(outbox.push_media(0, message(9, 50).into()), 1);
        assert_eq!(outbox.room(), Room::ALL);
        written(&mut outbox, 10, 1);
        outbox.clear(true);
        assert_eq!(written(&mut outbox, 100, 1).len(), 42, "the rest of the first");
        assert!(outbox.is_empty());
        outbox.push_media(0, message(9, 50).into());
        assert_eq!(outbox.expire_media(201), 1);
        assert!(outbox.is_empty());
    }

    #[test]
    fn cleared_outbox_keeps_at_most_the_rest_of_a_run() {
        let mut outbox = Outbox::default();
        outbox.push(run(10, 1_000, 5_000));
        outbox.push(run(1, 100, 300));
        outbox.advance(500);
        outbox.clear(true);
        assert_eq!(outbox.room().messages, MESSAGES_MAX - 5);
        outbox.advance(500);
        assert_eq!(outbox.room(), Room::ALL);
        outbox.push(run(4, 40, 400));
        outbox.advance(20);
        outbox.clear(false);
        assert!(outbox.is_empty() && outbox.room() == Room::ALL);
    }
}
