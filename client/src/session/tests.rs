//! The session against a relay in memory, message by message, with faults.

#[path = "../../tests/common/model.rs"]
mod model;

use std::collections::BTreeSet;
use std::time::Duration;

use drover_wire::error::Refusal as WireRefusal;

use super::*;
use crate::events::Subscription;
use crate::limits::QUEUE_EVENTS_MAX;
use crate::store::MemoryStore;
use model::{Model, Out, bytes};

const G: GroupId = GroupId([7; 32]);
const OTHER: GroupId = GroupId([8; 32]);

/// One client and its connection to the model.
struct Rig {
    session: Session,
    store: Arc<MemoryStore>,
    peer: u64,
    now: Instant,
    /// From the relay, not yet read.
    inbox: VecDeque<Vec<u8>>,
    left: Option<Leave>,
}

impl Rig {
    fn new(relay: &mut Model, peer: u64) -> Self {
        let store = Arc::new(MemoryStore::new());
        let session = Session::new(store.clone(), vec![G], Arc::new(Notify::new()));
        let mut rig = Self {
            session,
            store,
            peer,
            now: Instant::now(),
            inbox: VecDeque::new(),
            left: None,
        };
        rig.connect(relay);
        rig
    }

    fn connect(&mut self, relay: &mut Model) {
        let groups = self.session.connect_groups();
        relay.connect(self.peer, groups);
        self.session.connected(relay.version);
        self.left = None;
    }

    fn disconnect(&mut self, relay: &mut Model) {
        relay.disconnect(self.peer);
        self.inbox.clear();
        self.session.disconnected();
    }

    fn send(&mut self, group: GroupId, ct: &[u8]) -> oneshot::Receiver<Result<crate::SendAck, Error>> {
        let (done, answer) = oneshot::channel();
        let envelope = SealedEnvelope::new(group, 1, ct.to_vec()).expect("valid");
        self.session.send(envelope, Done::Ack(done), vec![]);
        answer
    }

    fn subscribe(&mut self) -> Subscription {
        Subscription {
            group: G,
            queue: self.session.subscribe(G, 0).expect("first"),
        }
    }
}

/// Moves messages until nothing moves any more; what was sent, by tag.
fn settle(relay: &mut Model, rigs: &mut [&mut Rig]) -> Vec<u8> {
    let mut tags = Vec::new();
    loop {
        let mut moved = false;
        for at in 0..rigs.len() {
            let (peer, now) = (rigs[at].peer, rigs[at].now);
            while rigs[at].left.is_none()
                && let Some(message) = rigs[at].session.poll_transmit(now)
            {
                tags.push(Frame::decode(&message).expect("own frame").tag());
                deliver(relay.frame(peer, &message), rigs);
                moved = true;
            }
            while rigs[at].left.is_none()
                && let Some(message) = rigs[at].inbox.pop_front()
            {
                let rig = &mut *rigs[at];
                rig.left = rig.session.receive(&Incoming(message.into()), now).err();
                moved = true;
            }
        }
        if !moved {
            return tags;
        }
    }
}

fn deliver(out: Out, rigs: &mut [&mut Rig]) {
    for (peer, message) in out {
        if let Some(rig) = rigs.iter_mut().find(|rig| rig.peer == peer) {
            rig.inbox.push_back(message);
        }
    }
}

/// Everything queued for the reader.
fn events(subscription: &mut Subscription) -> Vec<Event> {
    let mut out = Vec::new();
    loop {
        let next = std::pin::pin!(subscription.next());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match next.poll(&mut context) {
            std::task::Poll::Ready(Ok(event)) => out.push(event),
            _ => return out,
        }
    }
}

fn hashes(events: &[Event]) -> Vec<Hash> {
    let of = |event: &Event| match event {
        Event::Envelope(envelope) => Some(envelope.hash()),
        _ => None,
    };
    events.iter().filter_map(of).collect()
}

fn commits(events: &[Event]) -> Vec<u64> {
    let of = |event: &Event| match event {
        Event::Handshake { seq, .. } => Some(*seq),
        _ => None,
    };
    events.iter().filter_map(of).collect()
}

fn ct(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

fn limited(seconds: u32) -> WireRefusal {
    WireRefusal::number(Code::RateLimited, 6000).after(seconds)
}

#[test]
fn writes_are_acknowledged_and_held() {
    let mut relay = Model::default();
    let mut rig = Rig::new(&mut relay, 1);
    let mut answers: Vec<_> = (0..200).map(|n| rig.send(G, &ct(n))).collect();
    settle(&mut relay, &mut [&mut rig]);
    for (n, answer) in answers.iter_mut().enumerate() {
        assert_eq!(
            answer.try_recv().expect("answered").expect("accepted").seq,
            n as u64 + 1
        );
    }
    assert_eq!(rig.store.items(G).len(), 200);
}

#[test]
fn what_was_not_acknowledged_is_sent_again_verbatim() {
    let mut relay = Model::default();
    let mut rig = Rig::new(&mut relay, 1);
    let mut answers: Vec<_> = (0..10).map(|n| rig.send(G, &ct(n))).collect();
    // Half of it reaches the relay, no answer comes back.
    for _ in 0..5 {
        let message = rig.session.poll_transmit(rig.now).expect("a write");
        relay.frame(1, &message);
    }
    rig.disconnect(&mut relay);
    let first: Vec<_> = relay.received.drain(..).collect();
    rig.connect(&mut relay);
    settle(&mut relay, &mut [&mut rig]);
    assert_eq!(relay.received[..5], first[..]);
    for (n, answer) in answers.iter_mut().enumerate() {
        assert_eq!(
            answer.try_recv().expect("answered").expect("accepted").seq,
            n as u64 + 1
        );
    }
    assert_eq!(relay.logs[&G].envelopes.len(), 10);
}

#[test]
fn a_quota_or_retry_refusal_costs_time_and_no_envelope() {
    let mut relay = Model::default();
    let mut rig = Rig::new(&mut relay, 1);
    relay
        .refuse_sends
        .extend([limited(60), limited(60), WireRefusal::plain(Code::Backpressure)]);
    let mut answers: Vec<_> = (0..5).map(|n| rig.send(G, &ct(n))).collect();
    settle(&mut relay, &mut [&mut rig]);
    assert_eq!(relay.logs[&G].envelopes.len(), 2);
    rig.now = rig.session.deadline().expect("a wait");
    settle(&mut relay, &mut [&mut rig]);
    assert_eq!(relay.logs[&G].envelopes.len(), 5);
    assert!(
        answers
            .iter_mut()
            .all(|answer| answer.try_recv().is_ok_and(|a| a.is_ok()))
    );
}

#[test]
fn a_final_refusal_reaches_its_own_caller_only() {
    let mut relay = Model::default();
    let mut rig = Rig::new(&mut relay, 1);
    relay
        .refuse_sends
        .push_back(WireRefusal::plain(Code::GroupFrozen));
    let (mut first, mut second) = (rig.send(G, b"a"), rig.send(G, b"b"));
    settle(&mut relay, &mut [&mut rig]);
    let error = first.try_recv().expect("answered").expect_err("refused");
    assert_eq!(error.code(), Some(Code::GroupFrozen));
    assert!(second.try_recv().expect("answered").is_ok());
}

#[test]
fn a_fresh_subscription_replays_handshakes_then_envelopes_without_reconciling() {
    let mut relay = Model::default();
    let mut rig = Rig::new(&mut relay, 1);
    relay.create(G).handshakes = vec![b"c0".to_vec(), b"c1".to_vec()];
    relay.fill(G, 100);
    let mut subscription = rig.subscribe();
    let tags = settle(&mut relay, &mut [&mut rig]);
    assert_eq!(tags, [7, 25], "SUB and its barrier");
    let events = events(&mut subscription);
    assert_eq!(commits(&events[..2]), [0, 1]);
    assert_eq!(hashes(&events[2..102]).len(), 100);
    assert_eq!(events[102..], [Event::CaughtUp]);
}

/// 02 §8: the replay is bounded and says so only through the head it named.
#[test]
fn a_truncated_replay_is_completed_by_reconciliation() {
    let mut relay = Model::default();
    let mut rig = Rig::new(&mut relay, 1);
    let stored: BTreeSet<_> = (0..480).map(|n| relay.store(G, &ct(n)).1).collect();
    let mut subscription = rig.subscribe();
    let mut seen = Vec::new();
    for _ in 0..10 {
        settle(&mut relay, &mut [&mut rig]);
        seen.extend(events(&mut subscription));
    }
    assert_eq!(seen.last(), Some(&Event::CaughtUp));
    let hashes = hashes(&seen);
    assert_eq!(hashes.len(), 480, "each once");
    assert_eq!(hashes.into_iter().collect::<BTreeSet<_>>(), stored);
}

/// 02 §9 and W02.16, from the client's side.
#[test]
fn a_downgrade_is_reconciled() {
    let mut relay = Model::default();
    let (mut writer, mut reader) = (Rig::new(&mut relay, 1), Rig::new(&mut relay, 2));
    let mut subscription = reader.subscribe();
    settle(&mut relay, &mut [&mut writer, &mut reader]);
    relay.skip_pushes = 5;
    for n in 0..8 {
        writer.send(G, &ct(n));
    }
    settle(&mut relay, &mut [&mut writer, &mut reader]);
    let events = events(&mut subscription);
    assert!(events.contains(&Event::Downgraded));
    assert_eq!(events.last(), Some(&Event::CaughtUp));
    assert_eq!(hashes(&events).len(), 8);
}

/// A range that is settled is not looked at again in the same reconciliation, so what is skipped meanwhile needs another.
#[test]
fn a_downgrade_during_a_reconciliation_is_reconciled_after_it() {
    let mut relay = Model::default();
    let mut rig = Rig::new(&mut relay, 1);
    relay.fill(G, 100);
    for (seq, _, encoded) in relay.logs[&G]
        .envelopes
        .iter()
        .filter(|(seq, ..)| *seq < 5 || *seq > 30)
    {
        let envelope = SealedEnvelope::from_push(&encoded.clone().into()).expect("stored");
        rig.store.put(envelope.with_seq(*seq)).expect("memory");
    }
    let _subscription = rig.subscribe();
    let mut rounds = 0;
    let second = loop {
        let message = rig.session.poll_transmit(rig.now).expect("goes on");
        rounds += u32::from(Frame::decode(&message).expect("own").tag() == 9);
        if rounds == 2 {
            break message;
        }
        deliver(relay.frame(1, &message), &mut [&mut rig]);
        while let Some(message) = rig.inbox.pop_front() {
            rig.session
                .receive(&Incoming(message.into()), rig.now)
                .expect("stays");
        }
    };
    relay.skip_pushes = 1;
    for ct in [&b"skipped"[..], b"pushed"] {
        let (_, hash) = relay.store(G, ct);
        deliver(relay.fan_out(G, hash, 99), &mut [&mut rig]);
    }
    deliver(relay.frame(1, &second), &mut [&mut rig]);
    settle(&mut relay, &mut [&mut rig]);
    assert_eq!(rig.store.len(G), 102);
}

#[test]
fn a_reconnect_resumes_and_repeats_nothing() {
    let mut relay = Model::default();
    let (mut writer, mut reader) = (Rig::new(&mut relay, 1), Rig::new(&mut relay, 2));
    let mut subscription = reader.subscribe();
    relay.create(G).handshakes.push(b"c0".to_vec());
    for n in 0..20 {
        writer.send(G, &ct(n));
    }
    settle(&mut relay, &mut [&mut writer, &mut reader]);
    reader.disconnect(&mut relay);
    for n in 20..40 {
        writer.send(G, &ct(n));
    }
    relay.create(G).handshakes.push(b"c1".to_vec());
    settle(&mut relay, &mut [&mut writer]);
    reader.connect(&mut relay);
    settle(&mut relay, &mut [&mut writer, &mut reader]);
    let events = events(&mut subscription);
    assert_eq!(commits(&events), [0, 1]);
    assert_eq!(hashes(&events).len(), 40);
    assert!(events.contains(&Event::Disconnected));
    assert_eq!(events.last(), Some(&Event::CaughtUp));
}

/// manifest.json, seq-gap-after-rollback-is-legal: the cursor is no author chain.
#[test]
fn gaps_in_the_cursor_are_no_alarm() {
    let mut relay = Model {
        gap: 3,
        ..Model::default()
    };
    let (mut writer, mut reader) = (Rig::new(&mut relay, 1), Rig::new(&mut relay, 2));
    relay.fill(G, 10);
    let mut subscription = reader.subscribe();
    settle(&mut relay, &mut [&mut writer, &mut reader]);
    for n in 10..20 {
        writer.send(G, &ct(n));
    }
    let tags = settle(&mut relay, &mut [&mut writer, &mut reader]);
    assert!(!tags.contains(&9), "no reconciliation");
    let events = events(&mut subscription);
    assert_eq!(hashes(&events).len(), 20);
    assert!(!events.contains(&Event::Downgraded));
}

#[test]
fn a_slow_reader_loses_nothing_but_time() {
    let mut relay = Model::default();
    let (mut writer, mut reader) = (Rig::new(&mut relay, 1), Rig::new(&mut relay, 2));
    let mut subscription = reader.subscribe();
    settle(&mut relay, &mut [&mut writer, &mut reader]);
    let total = 4 * QUEUE_EVENTS_MAX as u64;
    for n in 0..total {
        writer.send(G, &ct(n));
        if n % 64 == 0 {
            let (done, _) = oneshot::channel();
            writer
                .session
                .handshake(G, ct(n).to_vec().into(), Done::Number(done), vec![]);
        }
    }
    let mut seen = Vec::new();
    for round in 0..100 {
        settle(&mut relay, &mut [&mut writer, &mut reader]);
        let batch = events(&mut subscription);
        if batch.is_empty() && round > 0 {
            break;
        }
        seen.extend(batch);
    }
    assert!(seen.contains(&Event::Downgraded));
    assert_eq!(hashes(&seen).len() as u64, total, "each once");
    assert_eq!(commits(&seen), (0..total / 64).collect::<Vec<_>>());
    assert_eq!(seen.last(), Some(&Event::CaughtUp));
}

#[test]
fn reading_pauses_for_a_full_reader_only_for_a_moment() {
    let mut relay = Model::default();
    let mut rig = Rig::new(&mut relay, 1);
    let subscription = rig.subscribe();
    while subscription.queue.push(Event::Live {
        epoch: 0,
        ct: Bytes::from_static(b"x"),
    }) {}
    let until = rig.session.pause_until(rig.now).expect("full");
    assert!(until <= rig.now + Duration::from_secs(1));
    assert_eq!(rig.session.pause_until(until), None);
    drop(subscription);
    assert_eq!(rig.session.pause_until(rig.now), None);
}

/// 05 §10: only CONNECT creates groups.
#[test]
fn an_unknown_group_is_named_once() {
    let mut relay = Model::default();
    let mut rig = Rig::new(&mut relay, 1);
    let mut answer = rig.send(OTHER, b"first");
    settle(&mut relay, &mut [&mut rig]);
    assert!(matches!(rig.left, Some(Leave::NameGroups)));
    rig.disconnect(&mut relay);
    assert_eq!(rig.session.connect_groups(), [G, OTHER]);
    // A relay at its ceiling creates nothing.
    relay.connect(1, []);
    rig.session.connected(4);
    rig.left = None;
    settle(&mut relay, &mut [&mut rig]);
    let error = answer.try_recv().expect("answered").expect_err("refused");
    assert_eq!(error.code(), Some(Code::GroupUnknown));

    let mut answer = rig.send(OTHER, b"second");
    settle(&mut relay, &mut [&mut rig]);
    assert!(
        answer.try_recv().expect("answered").is_err(),
        "named in this connection already"
    );
}

#[test]
fn own_handshakes_come_in_order_among_the_others() {
    let mut relay = Model::default();
    let (mut a, mut b) = (Rig::new(&mut relay, 1), Rig::new(&mut relay, 2));
    let (mut of_a, mut of_b) = (a.subscribe(), b.subscribe());
    settle(&mut relay, &mut [&mut a, &mut b]);
    let mut numbers = Vec::new();
    for n in 0..10 {
        for rig in [&mut a, &mut b] {
            let (done, number) = oneshot::channel();
            rig.session
                .handshake(G, vec![n, rig.peer as u8].into(), Done::Number(done), vec![]);
            numbers.push(number);
        }
    }
    settle(&mut relay, &mut [&mut a, &mut b]);
    let expected: Vec<_> = (0..20).collect();
    assert_eq!(commits(&events(&mut of_a)), expected);
    assert_eq!(commits(&events(&mut of_b)), expected);
    let got: BTreeSet<_> = numbers
        .iter_mut()
        .map(|n| n.try_recv().expect("answered").expect("accepted"))
        .collect();
    assert_eq!(got.len(), 20);
}

#[test]
fn a_refused_beat_is_not_taken_for_a_refused_write() {
    for beat_refused in [true, false] {
        let mut relay = Model::default();
        let mut rig = Rig::new(&mut relay, 1);
        match beat_refused {
            true => relay.refuse_lives.push_back(limited(60)),
            false => relay.refuse_sends.push_back(limited(1)),
        }
        rig.session.live(G, 1, b"beat", rig.now).expect("online");
        let mut answer = rig.send(G, b"write");
        settle(&mut relay, &mut [&mut rig]);
        if !beat_refused {
            rig.now = rig.session.deadline().expect("the write waits");
            settle(&mut relay, &mut [&mut rig]);
        }
        assert!(answer.try_recv().expect("answered").is_ok(), "{beat_refused}");
        assert_eq!(relay.logs[&G].envelopes.len(), 1);
    }
}

#[test]
fn a_relay_without_live_is_not_bothered_again() {
    let mut relay = Model::default();
    let mut rig = Rig::new(&mut relay, 1);
    relay
        .refuse_lives
        .push_back(WireRefusal::plain(Code::ProtocolUnsupported));
    rig.session.live(G, 1, b"beat", rig.now).expect("online");
    settle(&mut relay, &mut [&mut rig]);
    let later = rig.now + Duration::from_secs(86_400);
    assert_eq!(
        rig.session.live(G, 1, b"beat", later).expect_err("off").code(),
        Some(Code::ProtocolUnsupported)
    );
}

#[test]
fn reconciliation_offers_what_the_relay_lacks() {
    let mut relay = Model::default();
    let mut rig = Rig::new(&mut relay, 1);
    for n in 0..100 {
        // As after a relay that was restored from an older backup.
        let envelope = SealedEnvelope::new(G, 1, ct(n).to_vec()).expect("valid");
        rig.store.put(envelope.with_seq(n + 1)).expect("memory");
    }
    relay.fill(G, 50);
    let (done, mut answer) = oneshot::channel();
    rig.session.reconcile(G, done);
    settle(&mut relay, &mut [&mut rig]);
    let done = answer.try_recv().expect("answered").expect("reconciled");
    assert_eq!((done.sent, done.received), (50, 0));
    assert_eq!(relay.logs[&G].envelopes.len(), 100);
}

/// 03, decision 5.
#[test]
fn a_reconciliation_that_does_not_end_falls_back_to_reading_the_log() {
    let mut relay = Model {
        recon_never_ends: true,
        ..Model::default()
    };
    let mut rig = Rig::new(&mut relay, 1);
    relay.fill(G, 700);
    let (done, mut answer) = oneshot::channel();
    rig.session.reconcile(G, done);
    let tags = settle(&mut relay, &mut [&mut rig]);
    assert_eq!(tags.iter().filter(|tag| **tag == 9).count(), 64);
    assert!(
        answer
            .try_recv()
            .expect("answered")
            .expect("read through")
            .fell_back
    );
    assert_eq!(rig.store.len(G), 700);
}

#[test]
fn a_refused_subscription_ends_with_the_refusal() {
    let mut relay = Model::default();
    let mut rig = Rig::new(&mut relay, 1);
    let mut subscription = rig.subscribe();
    let message = rig.session.poll_transmit(rig.now).expect("SUB");
    assert_eq!(Frame::decode(&message).expect("own").tag(), 7);
    let refusal = bytes(&Frame::Error {
        code: Code::WriterNotInAccessSet,
        retry_after_s: 0,
        detail: b"",
    });
    rig.session
        .receive(&Incoming(refusal.into()), rig.now)
        .expect("stays");
    assert!(events(&mut subscription).is_empty());
    let next = std::pin::pin!(subscription.next());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(matches!(
        next.poll(&mut context),
        std::task::Poll::Ready(Err(Error::Refused(_)))
    ));
}

/// 02 §8: a store that fails within a replay says so and stays subscribed; the replay has to be asked for again.
#[test]
fn a_replay_that_failed_is_repeated() {
    let mut relay = Model::default();
    let mut rig = Rig::new(&mut relay, 1);
    relay.fill(G, 5);
    let mut subscription = rig.subscribe();
    let _sub = rig.session.poll_transmit(rig.now).expect("SUB");
    let barrier = rig.session.poll_transmit(rig.now).expect("barrier");
    for message in [
        bytes(&Frame::SubAck {
            group: G,
            head_seq: 5,
        }),
        bytes(&Frame::Error {
            code: Code::Backpressure,
            retry_after_s: 1,
            detail: b"",
        }),
    ] {
        rig.session
            .receive(&Incoming(message.into()), rig.now)
            .expect("stays");
    }
    deliver(relay.frame(1, &barrier), &mut [&mut rig]);
    settle(&mut relay, &mut [&mut rig]);
    assert!(hashes(&events(&mut subscription)).is_empty());
    rig.now = rig.session.deadline().expect("a wait");
    settle(&mut relay, &mut [&mut rig]);
    assert_eq!(hashes(&events(&mut subscription)).len(), 5);
}

#[test]
fn an_announced_restart_tells_when_to_come_back() {
    let mut relay = Model::default();
    let mut rig = Rig::new(&mut relay, 1);
    let mut answer = rig.send(G, b"x");
    rig.session.poll_transmit(rig.now).expect("SEND");
    let failover = bytes(&Frame::Error {
        code: Code::Failover,
        retry_after_s: 3,
        detail: b"",
    });
    rig.session
        .receive(&Incoming(failover.into()), rig.now)
        .expect("about the connection");
    assert_eq!(rig.session.disconnected(), Some(3));
    assert!(answer.try_recv().is_err(), "not given up");
    rig.connect(&mut relay);
    settle(&mut relay, &mut [&mut rig]);
    assert!(answer.try_recv().expect("answered").is_ok());
}

/// Version 3 has no request that is always answered, so reconciliation stands in for the barrier.
#[test]
fn an_older_relay_is_reconciled_instead() {
    let mut relay = Model {
        version: 3,
        ..Model::default()
    };
    let mut rig = Rig::new(&mut relay, 1);
    relay.fill(G, 300);
    let mut subscription = rig.subscribe();
    let mut seen = Vec::new();
    for _ in 0..5 {
        assert!(!settle(&mut relay, &mut [&mut rig]).contains(&25));
        seen.extend(events(&mut subscription));
    }
    assert_eq!(hashes(&seen).len(), 300);
    assert_eq!(seen.last(), Some(&Event::CaughtUp));
}

/// Three clients, lost connections at any moment, skipped pushes, refusals, slow readers: in the end everyone holds
/// everything, each envelope was handed out once, and handshakes came dense and in order.
#[test]
fn whatever_happens_everyone_ends_up_with_everything() {
    for seed in 0..150 {
        let mut random = Random(seed);
        let mut relay = Model {
            batch: 1 + random.below(40),
            gap: random.below(3) as u64,
            ..Model::default()
        };
        let mut rigs: Vec<_> = (1..=3).map(|peer| Rig::new(&mut relay, peer)).collect();
        let mut subscriptions: Vec<_> = rigs.iter_mut().map(Rig::subscribe).collect();
        let mut seen: Vec<Vec<Event>> = vec![Vec::new(); 3];
        let mut answers = Vec::new();
        let mut commits_sent = 0;
        for step in 0..400u64 {
            let at = random.below(3);
            let rig = &mut rigs[at];
            match random.below(12) {
                0..=3 => answers.push(rig.send(G, &ct(step))),
                4 => {
                    let (done, _) = oneshot::channel();
                    rig.session
                        .handshake(G, ct(step).to_vec().into(), Done::Number(done), vec![]);
                    commits_sent += 1;
                }
                5 => {
                    rig.disconnect(&mut relay);
                    rig.connect(&mut relay);
                }
                6 => relay.skip_pushes += random.below(3),
                7 => relay.refuse_sends.push_back(limited(1)),
                8 => {
                    let _ = rig.session.live(G, 1, b"beat", rig.now);
                }
                9 => seen[at].extend(events(&mut subscriptions[at])),
                _ => {}
            }
            // A few messages move, not all.
            for _ in 0..random.below(30) {
                let at = random.below(3);
                let (peer, now) = (rigs[at].peer, rigs[at].now);
                let sent = match random.below(2) {
                    0 => rigs[at].session.poll_transmit(now),
                    _ => None,
                };
                let mut all: Vec<&mut Rig> = rigs.iter_mut().collect();
                if let Some(message) = sent {
                    deliver(relay.frame(peer, &message), &mut all);
                } else if let Some(message) = all[at].inbox.pop_front() {
                    let result = all[at].session.receive(&Incoming(message.into()), now);
                    assert!(result.is_ok(), "seed {seed}: {result:?}");
                }
            }
        }
        relay.skip_pushes = 0;
        // A last write by a fourth makes the relay pay the downgrades it owes.
        let (_, last) = relay.store(G, b"last");
        let mut all: Vec<&mut Rig> = rigs.iter_mut().collect();
        deliver(relay.fan_out(G, last, 99), &mut all);
        for _ in 0..60 {
            let mut all: Vec<&mut Rig> = rigs.iter_mut().collect();
            settle(&mut relay, &mut all);
            for (at, subscription) in subscriptions.iter_mut().enumerate() {
                seen[at].extend(events(subscription));
            }
            for rig in &mut rigs {
                rig.now += Duration::from_secs(3);
            }
        }
        for answer in &mut answers {
            assert!(
                answer.try_recv().is_ok_and(|answer| answer.is_ok()),
                "seed {seed}: a write was lost"
            );
        }
        let log = &relay.logs[&G];
        for (rig, seen) in rigs.iter().zip(&seen) {
            assert_eq!(
                rig.store.len(G),
                log.envelopes.len(),
                "seed {seed} peer {}",
                rig.peer
            );
            let hashes = hashes(seen);
            assert_eq!(
                hashes.len(),
                hashes.iter().collect::<BTreeSet<_>>().len(),
                "seed {seed}: one twice"
            );
            assert_eq!(
                commits(seen),
                (0..commits_sent).collect::<Vec<_>>(),
                "seed {seed} peer {}",
                rig.peer
            );
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound.max(1)
    }
}
