//! The client's session under a relay that says anything at any time: honest answers, answers to what was not asked,
//! frames with invented numbers and damaged ones; while the client's user subscribes, sends, reads or does not, and
//! connections end.
//!
//! What must hold:
//!
//! - nothing panics;
//! - the client comes to rest: one message makes it send no more than [`FRAMES_MAX`] frames, each of which decodes;
//! - heap stays within [`HEAP_BYTES`] and a multiple of what came in;
//! - whoever waits has an answer at the end.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use drover_client::bare::{Answer, Bare};
use drover_client::{Error, Incoming, MemoryStore, Reconciled, SealedEnvelope, SendAck, Subscription};
use drover_wire::error::Code;
use drover_wire::frame::{FRAME_BYTES_MAX, Frame, Wake};
use drover_wire::id::{CallId, GroupId, Hash};
use drover_wire::recon::{self, Mode, Range, item};

use crate::allocation;
use crate::mutate::mutate;
use crate::random::{Rng, Script};

/// Heap of a client beyond what came in: queues, ledger, store.
const HEAP_BYTES: usize = 1 << 20;
/// Heap for each byte that came in, from its user or from the relay: decoded, kept, queued, told again.
const HEAP_FACTOR: usize = 64;
/// What one message may make it send: an offer of all it holds, and what waited for an answer.
const FRAMES_MAX: usize = 1024;
/// Steps of one script.
const STEPS_MAX: usize = 200;
/// What it sent and nobody answered yet: older ones are forgotten.
const UNANSWERED_MAX: usize = 128;

const GROUPS: [GroupId; 2] = [GroupId([1; 32]), GroupId([2; 32])];
/// WAKE, the request whose answer is sure.
const WAKE: u8 = 25;

/// Runs a script.
pub fn run(input: &[u8]) {
    let mut play = Play::new(input);
    let (heap, ()) = allocation::peak(|| {
        play.play();
        play.end();
    });
    let most = HEAP_BYTES + HEAP_FACTOR * play.fed;
    assert!(heap <= most, "a client took {heap} bytes of heap, its bound is {most}");
}

struct Play<'a> {
    script: Script<'a>,
    client: Bare,
    now: Instant,
    /// Bytes that came in.
    fed: usize,
    readers: [Option<Subscription>; 2],
    unanswered: VecDeque<Bytes>,
    acks: Vec<Answer<SendAck>>,
    numbers: Vec<Answer<u64>>,
    reconciled: Vec<Answer<Reconciled>>,
    answers: Vec<Answer<Incoming>>,
}

impl<'a> Play<'a> {
    fn new(input: &'a [u8]) -> Self {
        let mut client = Bare::new(Arc::new(MemoryStore::new()), vec![GROUPS[0]]);
        client.connected(4);
        Self {
            script: Script::new(input),
            client,
            now: Instant::now(),
            fed: input.len(),
            readers: [None, None],
            unanswered: VecDeque::new(),
            acks: Vec::new(),
            numbers: Vec::new(),
            reconciled: Vec::new(),
            answers: Vec::new(),
        }
    }

    fn play(&mut self) {
        for _ in 0..STEPS_MAX {
            if self.script.is_over() {
                return;
            }
            self.step();
            self.transmit();
            self.client.pause_until(self.now);
        }
    }

    fn step(&mut self) {
        let what = self.script.below(20);
        let which = self.script.below(GROUPS.len());
        let group = GROUPS[which];
        match what {
            0 => {
                let floor = self.number();
                if let Ok(reader) = self.client.subscribe(group, floor) {
                    self.readers[which] = Some(reader);
                }
            }
            1 => {
                let envelope = self.envelope(group);
                self.acks.push(self.client.send(envelope));
            }
            2 => {
                let message = Bytes::copy_from_slice(self.script.take(8));
                self.numbers.push(self.client.publish_handshake(group, message));
            }
            3 => self.reconciled.push(self.client.reconcile(group)),
            4 => {
                let query = encode(&Frame::Wake(Wake::Query));
                self.answers.push(self.client.request(query, WAKE));
            }
            5 => {
                // Refused while the path is off.
                let _ = self.client.live(group, 1, &[7; 9], self.now);
            }
            6 => {
                for _ in 0..self.script.u8() {
                    self.readers[which].as_mut().and_then(read);
                }
            }
            7 => drop(self.readers[which].take()),
            8 => self.reconnect(),
            9 => {
                let later = Duration::from_millis(self.number() % 3_600_000);
                self.now += later;
            }
            10..=12 => self.answer(),
            13 => self.push(group),
            14 => {
                let (seq, message) = (self.number(), self.script.take(8));
                self.receive(encode(&Frame::Handshake { group, seq, message }));
            }
            15 => self.refuse(),
            16 => {
                let ranges = self.ranges();
                self.recon(group, &ranges);
            }
            17 => {
                let head_seq = self.number();
                self.receive(encode(&Frame::SubAck { group, head_seq }));
            }
            18 => self.unstored(group),
            // Anything at all.
            _ => {
                let len = usize::from(self.script.u8());
                let message = self.script.take(len);
                self.receive(Bytes::copy_from_slice(message));
            }
        }
    }

    /// Mostly small, so that numbers meet.
    fn number(&mut self) -> u64 {
        match self.script.u8() {
            255 => u64::MAX,
            254 => self.script.uint(),
            small => u64::from(small % 32),
        }
    }

    fn envelope(&mut self, group: GroupId) -> SealedEnvelope {
        let ct = vec![self.script.u8() % 16; 40];
        SealedEnvelope::new(group, 1, ct).expect("a small one")
    }

    fn receive(&mut self, message: Bytes) {
        // The transport takes no larger one.
        if message.len() > FRAME_BYTES_MAX {
            return;
        }
        self.fed += message.len();
        if !self.client.receive(message, self.now) {
            self.reconnect();
        }
    }

    fn reconnect(&mut self) {
        self.client.disconnected();
        self.unanswered.clear();
        assert!(self.client.poll_transmit(self.now).is_none(), "nothing is sent without a connection");
        let version = 1 + self.script.u8() % 4;
        assert!(self.client.connected(version.into()).contains(&GROUPS[0]));
    }

    fn transmit(&mut self) {
        for frames in 0.. {
            assert!(frames <= FRAMES_MAX, "it does not stop sending");
            let Some(message) = self.client.poll_transmit(self.now) else { return };
            assert!(message.len() <= FRAME_BYTES_MAX, "a relay would not take {} bytes", message.len());
            assert!(Frame::decode(&message).is_ok(), "it sends what is no frame");
            self.unanswered.push_back(message);
            if self.unanswered.len() > UNANSWERED_MAX {
                self.unanswered.pop_front();
            }
        }
    }

    /// What a relay would say to the oldest frame, with a number of the script's.
    fn answer(&mut self) {
        let Some(message) = self.unanswered.pop_front() else { return };
        match Frame::decode(&message).expect("it was looked at") {
            Frame::Send { envelope } => {
                let envelope = SealedEnvelope::from_push(&message.slice_ref(envelope)).expect("its own");
                let (hash, seq) = (envelope.hash(), self.number());
                self.receive(encode(&Frame::SendAck { hash, seq }));
            }
            Frame::Sub { group, .. } => {
                let head_seq = self.number();
                self.receive(encode(&Frame::SubAck { group, head_seq }));
            }
            Frame::Handshake { group, message, .. } => {
                let seq = self.number();
                self.receive(encode(&Frame::Handshake { group, seq, message }));
            }
            Frame::Wake(Wake::Query) => self.receive(encode(&Frame::Wake(Wake::Capability {
                enabled: false,
                register_url: "",
            }))),
            Frame::Recon { group, payload } => {
                let incoming = recon::decode(payload).expect("what it sends decodes");
                let holds: Vec<_> = (0..u64::from(self.script.u8() % 64))
                    .map(|seq| item(seq, &Hash([seq as u8; 32])))
                    .collect();
                let answer = recon::answer(&holds, incoming, usize::MAX);
                self.recon(group, &answer.ranges);
            }
            _ => {}
        }
    }

    fn recon(&mut self, group: GroupId, ranges: &[Range]) {
        let mut payload = Vec::new();
        recon::encode(ranges, &mut payload);
        self.receive(encode(&Frame::Recon {
            group,
            payload: &payload,
        }));
    }

    /// Invented ones, ascending.
    fn ranges(&mut self) -> Vec<Range> {
        let mut upper = 0u64;
        let mut ranges = Vec::new();
        for _ in 0..self.script.below(200) {
            upper = upper.saturating_add(self.number()).saturating_add(1);
            let mode = match self.script.u8() {
                flags if flags & 3 == 0 => Mode::Skip,
                flags if flags & 3 == 1 => Mode::Fingerprint(Hash([flags; 32])),
                flags => Mode::Ids((0..flags >> 2).map(|n| Hash([n; 32])).collect()),
            };
            ranges.push(Range { upper, mode });
        }
        ranges
    }

    fn push(&mut self, group: GroupId) {
        let envelope = self.envelope(group).with_seq(self.number());
        let envelope = envelope.encode();
        self.receive(encode(&Frame::Push { envelope: &envelope }));
    }

    fn refuse(&mut self) {
        let code = Code::ALL[self.script.below(Code::ALL.len())];
        let retry_after_s = match self.script.u8() {
            255 => u32::MAX,
            short => (short % 4).into(),
        };
        let detail: &[u8] = match self.script.below(4) {
            0 => &[],
            1 => &[0, 0, 0, 0, 0, 0, 1, 0],
            2 => &[9; 32],
            _ => self.script.take(3),
        };
        self.receive(encode(&Frame::Error {
            code,
            retry_after_s,
            detail,
        }));
    }

    fn unstored(&mut self, group: GroupId) {
        let epoch = self.number();
        let body = self.script.take(6);
        let frame = match body.first() {
            None => Frame::Bye { reason: b"enough" },
            Some(first) if first & 1 == 0 => Frame::Live { group, epoch, ct: body },
            Some(first) => Frame::Call {
                call_id: CallId([3; 16]),
                group,
                epoch,
                kind: first >> 1,
                body,
            },
        };
        self.receive(encode(&frame));
    }

    /// The client stops, and nobody waits for ever.
    fn end(&mut self) {
        self.client.stop(&Error::Lost);
        assert!(self.acks.iter_mut().all(|answer| answer.try_recv().is_ok()));
        assert!(self.numbers.iter_mut().all(|answer| answer.try_recv().is_ok()));
        assert!(self.reconciled.iter_mut().all(|answer| answer.try_recv().is_ok()));
        assert!(self.answers.iter_mut().all(|answer| answer.try_recv().is_ok()));
        for reader in self.readers.iter_mut().flatten() {
            // All that is queued, and then the end.
            while read(reader).expect("an event or the end").is_ok() {}
        }
    }
}

/// What is queued for a reader, if anything is.
fn read(reader: &mut Subscription) -> Option<Result<drover_client::Event, Error>> {
    match pin!(reader.next()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(event) => Some(event),
        Poll::Pending => None,
    }
}

fn encode(frame: &Frame<'_>) -> Bytes {
    drover_client::connection::encode(frame)
}

/// Steps that go together, and some that do not.
pub fn generate(rng: &mut Rng) -> Vec<u8> {
    let mut script = Vec::new();
    for _ in 0..rng.within(1..40) {
        let group = rng.below(2) as u8;
        match rng.below(8) {
            0 => script.extend([0, group, 0]),
            1 => script.extend([1, group, rng.next() as u8]),
            2 => script.extend([3, group]),
            3 => script.extend([13, group, rng.next() as u8, rng.next() as u8]),
            4 => script.extend([15, group, rng.next() as u8, rng.next() as u8, rng.next() as u8]),
            5 => {
                script.extend([rng.below(20) as u8, group]);
                let len = rng.below(9);
                script.extend(rng.bytes(len));
            }
            6 => {
                let mut frame = encode(&Frame::SubAck {
                    group: GROUPS[usize::from(group)],
                    head_seq: rng.below(9) as u64,
                })
                .to_vec();
                mutate(rng, &mut frame, &[]);
                script.extend([19, group, frame.len() as u8]);
                script.extend(frame);
            }
            _ => script.extend([10, group, rng.next() as u8]),
        }
    }
    script
}
