//! 80 calls of five under load, with virtual time: four hundred participants who talk, shout, lag, come and go, by a seeded
//! generator. Checked throughout: nobody sends more than its budgets, nobody hears a call it is not in or a frame twice or
//! late or out of order, what is shed is counted, and one who is slow, or loud, costs the others nothing.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use drover_media::limits::{
    BYTES_PER_WINDOW, FRAMES_PER_STREAM, IDLE_MS, LANE_AGE_MS_MAX, LANE_FRAMES_MAX, PARTICIPANTS_MAX,
    STREAMS_MAX,
};
use drover_media::{CallTable, Calls, Lane, MediaFrame, Participant, Sender};
use drover_wire::frame::Frame;
use drover_wire::id::{CallId, GroupId};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

const CALLS: usize = 80;
const PEOPLE: usize = CALLS * PARTICIPANTS_MAX;
/// What the wall clock is ahead of the monotonic one.
const WALL_MS: u64 = 1_700_000_000_000;

/// A small deterministic generator (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// How somebody behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// 50 frames a second of 160 bytes, reads everything.
    Good,
    /// Reads nothing for seconds at a time.
    Slow,
    /// 600 frames a second on one stream.
    Loud,
    /// 100 frames a second of 1500 bytes, on two streams.
    Wide,
    /// Sends to more streams than there may be.
    Scattered,
}

/// What a recipient was sent.
#[derive(Clone, Copy, Debug)]
struct Heard {
    from: usize,
    stream: u8,
    seq: u64,
    sent_ms: u64,
}

#[derive(Default)]
struct Person {
    sender: Sender,
    lane: Lane,
    /// Of each of its streams.
    seqs: HashMap<u8, u64>,
    /// Accepted frames by the moment they were, and their bytes.
    accepted: VecDeque<(u64, u8, usize)>,
    accepted_total: u64,
    refused: u64,
    /// Frames sent while it was in no call: they have spent budget.
    denied: u64,
    complaints: VecDeque<u64>,
    /// Frames that were queued for it, sent to it, shed for it.
    queued: u64,
    heard: u64,
    shed: u64,
    /// The last frame of each stream it heard.
    last: HashMap<(usize, u8), u64>,
    asleep_until_ms: u64,
}

struct World {
    random: Random,
    kinds: Vec<Kind>,
    people: Vec<Person>,
    /// Who is in which call, by our own book.
    rooms: Vec<Vec<usize>>,
    calls: Calls<usize>,
    table: Arc<CallTable>,
    now_ms: u64,
}

fn call_id(room: usize) -> CallId {
    CallId([room as u8; 16])
}

fn group(room: usize) -> GroupId {
    GroupId([room as u8; 32])
}

/// A MEDIA frame that says who sent it and when.
fn frame(room: usize, heard: Heard, ct_bytes: usize) -> Bytes {
    let mut ct = vec![0; ct_bytes.max(17)];
    ct[0] = heard.stream;
    ct[1..9].copy_from_slice(&(heard.from as u64).to_be_bytes());
    ct[9..17].copy_from_slice(&heard.sent_ms.to_be_bytes());
    let mut out = Vec::new();
    Frame::Media {
        call_id: call_id(room),
        stream: [0, 0, 0, heard.stream],
        seq: heard.seq,
        ct: &ct,
    }
    .encode(&mut out);
    out.into()
}

fn read(bytes: &[u8]) -> (CallId, Heard) {
    let Ok(Frame::Media { call_id, seq, ct, .. }) = Frame::decode(bytes) else {
        panic!("what is forwarded is a MEDIA frame")
    };
    let heard = Heard {
        from: u64::from_be_bytes(ct[1..9].try_into().unwrap()) as usize,
        stream: ct[0],
        seq,
        sent_ms: u64::from_be_bytes(ct[9..17].try_into().unwrap()),
    };
    (call_id, heard)
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let table = Arc::<CallTable>::default();
        // The first of each call is good, and so is every participant of the first forty.
        let kinds = (0..PEOPLE)
            .map(|n| match random.below(8) {
                _ if n % PARTICIPANTS_MAX == 0 || n < PEOPLE / 2 => Kind::Good,
                0 => Kind::Slow,
                1 => Kind::Loud,
                2 => Kind::Wide,
                3 => Kind::Scattered,
                _ => Kind::Good,
            })
            .collect();
        let mut world = Self {
            random,
            kinds,
            people: (0..PEOPLE).map(|_| Person::default()).collect(),
            rooms: vec![Vec::new(); CALLS],
            calls: Calls::new(table.clone()),
            table,
            now_ms: 1_000,
        };
        for who in 0..PEOPLE {
            world.join(who);
        }
        assert_eq!(world.table.open(), CALLS);
        world
    }

    fn room_of(who: usize) -> usize {
        who / PARTICIPANTS_MAX
    }

    fn join(&mut self, who: usize) {
        let room = Self::room_of(who);
        let participant = Participant { id: who, hears: true };
        let joined = self
            .calls
            .join(self.now_ms, call_id(room), group(room), participant, CALLS);
        joined.expect("there is a seat");
        if !self.rooms[room].contains(&who) {
            self.rooms[room].push(who);
        }
    }

    fn leave(&mut self, who: usize) {
        let room = Self::room_of(who);
        if self.random.one_in(2) {
            self.calls.gone(who);
        } else {
            self.calls
                .leave(self.now_ms, call_id(room), group(room), who)
                .expect("its own call");
        }
        self.rooms[room].retain(|other| *other != who);
    }

    /// One frame of somebody, as a relay handles it.
    fn send(&mut self, who: usize, stream: u8, ct_bytes: usize) {
        let room = Self::room_of(who);
        let seq = {
            let seq = self.people[who].seqs.entry(stream).or_default();
            *seq += 1;
            *seq
        };
        let heard = Heard {
            from: who,
            stream,
            seq,
            sent_ms: self.now_ms,
        };
        let bytes = frame(room, heard, ct_bytes);
        let frame = MediaFrame::parse(&bytes).expect("the fixed layout");
        let wall_ms = WALL_MS + self.now_ms;
        if self.people[who].sender.charge(wall_ms, &frame).is_err() {
            self.people[who].refused += 1;
            self.complain(who);
            return;
        }
        assert!(self.people[who].sender.streams() <= STREAMS_MAX);
        let mut to = Vec::new();
        let count = self
            .calls
            .forward(self.now_ms, call_id(room), who, |recipient| to.push(recipient));
        if !self.rooms[room].contains(&who) {
            assert_eq!((count, to.len()), (None, 0), "who is not in is heard by nobody");
            self.people[who].denied += 1;
            self.complain(who);
            return;
        }
        let others: Vec<usize> = self.rooms[room]
            .iter()
            .copied()
            .filter(|other| *other != who)
            .collect();
        assert_eq!(count, Some(to.len()));
        assert_eq!(to, others, "everybody else, once, in the order they joined");
        let (now_ms, person) = (self.now_ms, &mut self.people[who]);
        person.accepted.push_back((now_ms, stream, frame.ct_bytes));
        person.accepted_total += 1;
        for recipient in to {
            let recipient = &mut self.people[recipient];
            recipient.shed += recipient.lane.push(now_ms, bytes.clone()) as u64;
            recipient.queued += 1;
            assert!(recipient.lane.len() <= LANE_FRAMES_MAX);
        }
    }

    fn complain(&mut self, who: usize) {
        let now_ms = self.now_ms;
        let person = &mut self.people[who];
        if person.sender.may_complain(WALL_MS + now_ms) {
            assert!(
                person.complaints.back().is_none_or(|at| now_ms - at >= 1_000),
                "one a second"
            );
            person.complaints.push_back(now_ms);
        }
    }

    /// The budgets of the last window, by our own count.
    fn check_budgets(&mut self, who: usize) {
        let now_ms = self.now_ms;
        let accepted = &mut self.people[who].accepted;
        while accepted.front().is_some_and(|(at, ..)| now_ms - at >= 60_000) {
            accepted.pop_front();
        }
        // Windows are fixed, so two of them can lie in any stretch as long as one.
        let bytes: usize = accepted.iter().map(|(_, _, bytes)| bytes).sum();
        assert!(bytes as u64 <= 2 * BYTES_PER_WINDOW, "{who}");
        let mut second: HashMap<u8, u32> = HashMap::new();
        for (_, stream, _) in accepted.iter().rev().take_while(|(at, ..)| now_ms - at < 1_000) {
            *second.entry(*stream).or_default() += 1;
        }
        assert!(second.len() <= 2 * STREAMS_MAX, "{who}");
        assert!(
            second.values().all(|count| *count <= 2 * FRAMES_PER_STREAM),
            "{who}"
        );
    }

    /// Everybody who reads is written what waits for it, some of it in part.
    fn write(&mut self) {
        for who in 0..PEOPLE {
            let now_ms = self.now_ms;
            if now_ms < self.people[who].asleep_until_ms {
                continue;
            }
            let person = &mut self.people[who];
            person.shed += person.lane.expire(now_ms) as u64;
            let begun = person.lane.is_begun();
            let whole: Vec<Vec<u8>> = person.lane.pieces().map(<[u8]>::to_vec).collect();
            let is_full = self.kinds[who] == Kind::Slow && !begun && self.random.one_in(3);
            for (at, bytes) in whole.iter().enumerate() {
                if at == 0 && begun {
                    person.heard += 1; // checked when its first half was written
                    continue;
                }
                let (call, heard) = read(bytes);
                assert_eq!(call, call_id(Self::room_of(who)), "its own call");
                assert_ne!(heard.from, who, "never an echo");
                assert!(now_ms - heard.sent_ms <= LANE_AGE_MS_MAX, "never late");
                let last = person.last.insert((heard.from, heard.stream), heard.seq);
                assert!(last.is_none_or(|last| last < heard.seq), "in order, once");
                if is_full {
                    // The socket takes the first half of the first frame.
                    person.lane.advance(bytes.len() / 2);
                    break;
                }
                person.heard += 1;
            }
            if !is_full {
                let all = whole.iter().map(Vec::len).sum();
                assert_eq!(person.lane.advance(all), 0);
            }
        }
    }

    /// One millisecond.
    fn step(&mut self) {
        let now_ms = self.now_ms;
        for who in 0..PEOPLE {
            let phase = (now_ms + who as u64 * 7) % 1_000;
            match self.kinds[who] {
                Kind::Good | Kind::Slow if phase.is_multiple_of(20) => self.send(who, 1, 160),
                Kind::Loud => {
                    for _ in 0..usize::from(phase % 5 < 3) {
                        self.send(who, 1, 80);
                    }
                }
                Kind::Wide if phase.is_multiple_of(10) => self.send(who, (phase / 10 % 2) as u8, 1500),
                Kind::Scattered if phase.is_multiple_of(10) => self.send(who, (phase / 10) as u8, 40),
                _ => {}
            }
            if self.kinds[who] == Kind::Slow
                && self.people[who].asleep_until_ms <= now_ms
                && self.random.one_in(2_000)
            {
                self.people[who].asleep_until_ms = now_ms + 100 + self.random.next() % 3_000;
            }
        }
        self.write();
        self.now_ms += 1;
    }
}

/// Everything of a run that can be counted, for comparing two of them.
fn run(seed: u64, seconds: u64) -> (World, Vec<u64>) {
    let mut world = World::new(seed);
    for _ in 0..seconds {
        for _ in 0..1_000 {
            world.step();
        }
        for who in 0..PEOPLE {
            world.check_budgets(who);
        }
        // Somebody of the second forty calls leaves, and is back a second later.
        for who in PEOPLE / 2..PEOPLE {
            if !world.rooms[World::room_of(who)].contains(&who) {
                world.join(who);
            } else if who % PARTICIPANTS_MAX != 0 && world.random.one_in(50) {
                world.leave(who);
            }
        }
    }
    let counts = world
        .people
        .iter()
        .flat_map(|p| {
            [
                p.accepted_total,
                p.refused,
                p.queued,
                p.heard,
                p.shed,
                p.lane.len() as u64,
            ]
        })
        .collect();
    (world, counts)
}

/// W10.8 to W10.13, W10.18, W10.20 at once: budgets, shedding and fairness over twenty seconds.
#[test]
fn four_hundred_participants() {
    let seconds = 20;
    let (world, _) = run(7, seconds);
    let kinds = &world.kinds;
    let of = |kind| (0..PEOPLE).filter(move |who| kinds[*who] == kind);
    for who in of(Kind::Good) {
        let person = &world.people[who];
        assert_eq!(person.refused, 0, "{who} keeps its budgets");
        assert_eq!(
            person.shed, 0,
            "{who} reads, so nothing is shed for it, whatever its neighbours do"
        );
        assert_eq!(person.heard, person.queued, "{who}");
        if who < PEOPLE / 2 {
            // Four others, 50 a second each, and not one frame lost.
            assert_eq!(person.accepted_total, 50 * seconds);
            assert_eq!(person.heard, 4 * 50 * seconds);
        }
    }
    for who in of(Kind::Loud) {
        let person = &world.people[who];
        let windows = seconds + 2; // one cut short when the clock was set back
        assert!(
            person.accepted_total <= u64::from(FRAMES_PER_STREAM) * windows,
            "{who}"
        );
        assert!(person.refused > 500 * (seconds - 2), "{who}");
        assert!(person.complaints.len() as u64 <= seconds, "{who}");
    }
    for who in of(Kind::Wide) {
        let person = &world.people[who];
        let bytes = (person.accepted_total + person.denied) * 1500;
        assert!(
            bytes <= BYTES_PER_WINDOW && bytes + 3000 > BYTES_PER_WINDOW,
            "{who}: {bytes}"
        );
    }
    for who in of(Kind::Scattered) {
        // 32 streams a second of the hundred it tries.
        let person = &world.people[who];
        assert!(
            person.accepted_total + person.denied >= 32 * (seconds - 2),
            "{who}"
        );
        assert!(
            person.accepted_total <= (STREAMS_MAX as u64) * 2 * (seconds + 2),
            "{who}"
        );
    }
    let shed: u64 = of(Kind::Slow).map(|who| world.people[who].shed).sum();
    assert!(shed > 0, "somebody slept");
    for person in &world.people {
        let waiting = person.lane.len() as u64;
        assert_eq!(
            person.heard + person.shed + waiting,
            person.queued,
            "every frame is accounted for"
        );
    }
    assert!(
        world.people.iter().any(|p| p.denied > 0),
        "somebody spoke after it had left"
    );
}

/// The same seed is the same run, frame by frame.
#[test]
fn a_run_repeats() {
    assert_eq!(run(3, 4).1, run(3, 4).1);
    assert_ne!(run(3, 4).1, run(4, 4).1);
}

/// When all fall silent, the next join clears the table; when all leave, nothing is left.
#[test]
fn silence_and_departure_empty_the_table() {
    let (mut world, _) = run(11, 2);
    world.now_ms += IDLE_MS;
    let stranger = Participant {
        id: PEOPLE,
        hears: true,
    };
    world
        .calls
        .join(world.now_ms, CallId([200; 16]), group(200), stranger, CALLS)
        .expect("room for one");
    assert_eq!(world.table.open(), 1);
    world.calls.gone(PEOPLE);
    assert_eq!(world.table.open(), 0);
    let mut world = World::new(12);
    for who in 0..PEOPLE {
        world.leave(who);
    }
    assert_eq!(world.table.open(), 0);
}
