//! Commits that are slow or fail, and what is pipelined behind them (architecture.md §3, decisions.md 47).

use crate::world::*;
use drover_engine::effects::{CloseHow, CloseReason};
use drover_wire::error::Code;
use drover_wire::recon::{Mode, Range, opening};

fn founded() -> (World, Workspace, C) {
    let mut w = World::new();
    let ws = w.found(
        "ws:one",
        &[&Device::new(5), &Device::new(6)],
        &[group(1), group(2)],
    );
    let c = w.login(&ws.founder.clone(), &[group(1)]);
    w.stored(c, group(1), b"first");
    (w, ws, c)
}

/// Pipelined SENDs are answered in request order, refusals among them, over as many commits as it takes.
#[test]
fn pipelined_answers_keep_request_order() {
    let (mut w, _, c) = founded();
    w.hold(Kind::Append);
    for n in 0..30 {
        match n % 3 {
            0 => w.push(c, send(group(1), &distinct(n))),
            1 => w.push(c, send(group(99), b"refused")),
            _ => w.push(c, handshake(group(1), &distinct(n))),
        }
        w.turn();
    }
    assert_eq!(w.got(c), []);
    w.release_one(Kind::Append);
    let first = w.got(c);
    assert!(!first.is_empty() && first.len() < 30);
    w.release(Kind::Append);
    let rest = w.got(c);
    let all: Vec<Got> = first.into_iter().chain(rest).collect();
    assert_eq!(all.len(), 30);
    for (n, got) in all.iter().enumerate() {
        match n % 3 {
            0 => assert_eq!(got.ack_seq(), Some(2 + n as u64 / 3)),
            1 => assert_eq!(*got, refused(Code::GroupUnknown)),
            _ => assert_eq!(got.handshake_seq(), Some(n as u64 / 3)),
        }
    }
}

/// Nothing is acknowledged or fanned out before it is durable (architecture.md §9, 1).
#[test]
fn nothing_is_told_before_it_is_durable() {
    let (mut w, ws, c) = founded();
    let reader = w.login(&Device::new(5), &[group(1)]);
    w.subscribe(reader, group(1), 0);
    w.hold(Kind::Append);
    w.say(c, send(group(1), b"pending"));
    w.say(c, handshake(group(1), b"pending"));
    assert_eq!((w.got(c), w.got(reader)), (vec![], vec![]));
    let late = w.login(&Device::new(6), &[group(1)]);
    let got = w.subscribe(late, group(1), 0);
    assert_eq!(got[0], Got::SubAck(group(1), 1), "the head is what is stored");
    assert_eq!(got.len(), 2);
    // The process dies here: nothing was promised, and the number is given again.
    w.restart();
    let c = w.login(&ws.founder, &[group(1)]);
    assert_eq!(w.stored(c, group(1), b"other"), 2);
    assert_eq!(w.shaken(c, group(1), b"other"), 0);
    w.restart();
    let c = w.login(&ws.founder, &[group(1)]);
    assert_eq!(
        w.stored(c, group(1), b"other"),
        2,
        "an acknowledged SEND survives"
    );
    assert_eq!(w.shaken(c, group(1), b"other"), 0);
}

/// A SUB and a RECON behind pipelined SENDs see all of them.
#[test]
fn reads_behind_pipelined_sends_see_them() {
    let (mut w, _, c) = founded();
    w.hold(Kind::Append);
    for n in 0..5 {
        w.push(c, send(group(1), &distinct(n)));
    }
    w.push(c, sub(group(1), 0));
    w.push(c, send(group(1), b"behind the SUB"));
    w.push(c, recon(group(1), &opening(&[])));
    w.pump();
    assert_eq!(w.got(c), []);
    w.release(Kind::Append);
    let got = w.got(c);
    let acks = got.iter().take_while(|g| g.ack_seq().is_some()).count();
    assert_eq!(acks, 5);
    assert_eq!(got[5], Got::SubAck(group(1), 6));
    assert!(got[6..12].iter().map(Got::push_seq).eq((1..=6).map(Some)));
    assert_eq!(got[12].ack_seq(), Some(7));
    assert_eq!(got[13..20].iter().filter_map(Got::push_seq).count(), 7);
    assert!(matches!(got[20..], [Got::Recon(..)]));
}

/// A commit that did not happen: every waiter is told to come again, sockets stay, and numbers and log bytes are as if
/// nothing had been sent (decisions.md 47). The open batch, which may hold duplicates of it, goes with it. W07.30
#[test]
fn known_failure_is_taken_back() {
    let (mut w, ws, a) = founded();
    let b = w.login(&Device::new(5), &[group(1)]);
    let reader = w.login(&Device::new(6), &[group(1)]);
    w.subscribe(reader, group(1), 2);
    let bytes = w.report(&ws.minted.realm).unwrap().log_bytes;
    w.hold(Kind::Append);
    w.say(a, send(group(1), b"one"));
    w.say(a, handshake(group(1), b"hs"));
    w.say(b, send(group(1), b"one"));
    w.say(b, send(group(2), b"two"));
    w.say(a, send(group(99), b"refused"));
    w.fail_one(Kind::Append, Fault::NotCommitted);
    let got = w.got(a);
    assert_eq!(got.len(), 3);
    assert_retry(&got[0], Code::Backpressure);
    assert_retry(&got[1], Code::Backpressure);
    assert_eq!(got[2], refused(Code::GroupUnknown));
    let got = w.got(b);
    assert_eq!(got.len(), 2);
    got.iter().for_each(|g| assert_retry(g, Code::Backpressure));
    assert_eq!(w.got(reader), []);
    assert_eq!(w.waiting(Kind::Append), 0, "the open batch is gone too");
    w.release(Kind::Append);
    assert_eq!(w.report(&ws.minted.realm).unwrap().log_bytes, bytes);
    assert_eq!(w.metrics[0].log_bytes.get(), bytes);
    assert_eq!(w.stored(b, group(2), b"two"), 1);
    assert_eq!(w.stored(b, group(1), b"one"), 2);
    assert_eq!(w.shaken(a, group(1), b"hs"), 0);
    assert_eq!(w.stored(a, group(1), b"one"), 2);
    let got = w.got(reader);
    assert!(
        matches!(got[..], [Got::Push(_), Got::Handshake(_, 0, _)]),
        "{got:?}"
    );
}

/// What was durable before a failing commit is acknowledged as such, however long the client left it unread.
#[test]
fn failure_does_not_reach_back() {
    let (mut w, _, c) = founded();
    w.stop_reading(c, 0);
    // 256 acknowledgements fill the queue; the rest of these are owed.
    for n in 0..300 {
        w.push(c, send(group(1), &distinct(n)));
    }
    w.hold(Kind::Append);
    w.pump();
    w.push(c, send(group(1), b"fails"));
    w.pump();
    w.release_one(Kind::Append);
    w.fail_one(Kind::Append, Fault::NotCommitted);
    w.release(Kind::Append);
    w.read_again(c);
    let got = w.got(c);
    let acks = got.iter().filter_map(Got::ack_seq);
    assert!(
        acks.eq(2..302),
        "{:?}",
        got.iter().filter_map(Got::code).collect::<Vec<_>>()
    );
    assert_retry(&got[300], Code::Backpressure);
    assert_eq!(got.len(), 301);
}

/// A commit with an unknown outcome: the realm is given up, its connections are told `retry/failover` and closed; what
/// the store turns out to hold is what counts (decisions.md 47).
#[test]
fn unknown_outcome_gives_the_realm_up() {
    for (fault, kept) in [(Fault::UnknownKept, true), (Fault::UnknownLost, false)] {
        let (mut w, ws, a) = founded();
        let two = w.found_by("ws:two", &Device::new(3), &Device::new(4), &[], &[group(9)]);
        let other = w.login(&two.founder, &[group(9)]);
        let idle = w.login(&Device::new(5), &[group(1)]);
        w.hold(Kind::Append);
        w.say(a, send(group(1), b"unsure"));
        w.say(a, send(group(1), b"in the open batch"));
        w.say(other, send(group(9), b"bystander"));
        w.fail_one(Kind::Append, fault);
        w.release(Kind::Append);
        let got = w.got(a);
        assert_eq!(got.len(), 3);
        assert_retry(&got[0], Code::Backpressure);
        assert_retry(&got[1], Code::Backpressure);
        assert_retry(&got[2], Code::Failover);
        assert_retry(&only(w.got(idle)), Code::Failover);
        for c in [a, idle] {
            assert_eq!(w.closed(c), Some((CloseHow::Flush, CloseReason::Shutdown)));
        }
        // A workspace that was only in the open batch knows its outcome: its sockets stay.
        assert_retry(&only(w.got(other)), Code::Backpressure);
        assert_eq!(w.stored(other, group(9), b"bystander"), 1);
        let c = w.login(&ws.founder, &[group(1)]);
        let head = if kept { 2 } else { 1 };
        assert_eq!(w.subscribe(c, group(1), 0)[0], Got::SubAck(group(1), head));
        assert_eq!(w.stored(c, group(1), b"unsure"), 2);
        assert_eq!(w.stored(c, group(1), b"next"), 3);
        let bytes = b"first".len() + b"unsure".len() + b"next".len();
        assert_eq!(w.report(&ws.minted.realm).unwrap().log_bytes, bytes as u64);
        assert_eq!(
            w.metrics[0].log_bytes.get(),
            bytes as u64 + b"bystander".len() as u64
        );
    }
}

/// A control commit with an unknown outcome while SENDs are under way: the realm is not read again before they have
/// ended, so that no number is given twice; what became durable is acknowledged.
#[test]
fn realm_is_not_read_while_its_batch_is_under_way() {
    for lost in [false, true] {
        let (mut w, ws, a) = founded();
        w.hold(Kind::Append);
        w.say(a, send(group(1), b"under way"));
        w.say(a, send(group(1), b"open"));
        let b = w.login(&ws.founder, &[group(1)]);
        w.store.fail_next(Kind::Commit, Fault::UnknownLost);
        w.say(b, access(&ws.next().by(&ws.founder).encode()));
        assert_retry(&w.got(b)[1], Code::Failover);
        let c = w.open();
        let loads = w.store.calls(Kind::Load);
        assert_eq!(w.auth(c, &ws.founder, &[group(1)]), [], "it waits");
        assert_eq!(w.store.calls(Kind::Load), loads);
        match lost {
            false => w.release_one(Kind::Append),
            true => w.fail_one(Kind::Append, Fault::NotCommitted),
        }
        w.release(Kind::Append);
        let got = w.got(a);
        assert_eq!(got.len(), 3);
        if lost {
            assert_retry(&got[0], Code::Backpressure);
        } else {
            assert_eq!(got[0].ack_seq(), Some(2));
        }
        assert_retry(&got[1], Code::Backpressure);
        assert_retry(&got[2], Code::Failover);
        assert!(matches!(w.got(c)[..], [Got::AuthAck { .. }]));
        let head = if lost { 1 } else { 2 };
        assert_eq!(w.subscribe(c, group(1), 9)[0], Got::SubAck(group(1), 9));
        assert_eq!(w.stored(c, group(1), b"next"), head + 1);
    }
}

/// The other way about: SENDs with an unknown outcome while a publication is under way. Its publisher comes again, and
/// what the store took of it is there.
#[test]
fn realm_is_not_read_while_a_publication_is_under_way() {
    let (mut w, ws, a) = founded();
    let admin = w.login(&ws.founder, &[group(1)]);
    let set = ws.removing(&[&Device::new(5)]).by(&ws.founder);
    w.hold(Kind::Commit);
    w.say(admin, access(&set.encode()));
    w.store.fail_next(Kind::Append, Fault::UnknownLost);
    let got = w.ask(a, send(group(1), b"unsure"));
    assert_retry(&got[1], Code::Failover);
    let c = w.open();
    assert_eq!(w.auth(c, &ws.founder, &[group(1)]), [], "it waits");
    w.release(Kind::Commit);
    assert!(matches!(w.got(c)[..], [Got::AuthAck { .. }]));
    assert_eq!(w.state(c).head, Some((1, set.digest())));
    assert!(!w.admits(&Device::new(5), &[group(1)]));
}

/// A joiner on another connection is answered when the realm it waits for is given up.
#[test]
fn joiner_is_answered_when_the_realm_is_given_up() {
    let mut w = World::new();
    let minted = w.mint("ws:one");
    let (a, b) = (w.open_on(0, "a"), w.open_on(0, "b"));
    w.hold(Kind::Commit);
    w.say(a, reserve(&minted, &minted.code, [1; 16], &Device::new(1)));
    w.say(b, reserve(&minted, &minted.code, [2; 16], &Device::new(2)));
    w.fail_one(Kind::Commit, Fault::UnknownLost);
    w.release(Kind::Commit);
    assert_retry(&only(w.got(a)), Code::Backpressure);
    assert_retry(&only(w.got(b)), Code::Backpressure);
    assert!(matches!(
        w.reserve(b, &minted, &minted.code, [2; 16], &Device::new(2)),
        Got::Join(_)
    ));
}

/// An index that can't be read refuses each parked frame once, in order, whatever else the connection was owed.
#[test]
fn unreadable_index_refuses_each_frame_once() {
    let (mut w, _, c) = founded();
    w.hold(Kind::Append);
    w.hold(Kind::Index);
    w.push(c, send(group(1), b"warm"));
    w.push(c, send(group(2), b"cold"));
    w.push(c, send(group(1), b"after"));
    w.pump();
    w.release_one(Kind::Append);
    w.fail_one(Kind::Index, Fault::NotCommitted);
    w.release(Kind::Append);
    w.release(Kind::Index);
    let got = w.got(c);
    assert_eq!(got.len(), 3, "{got:?}");
    assert_eq!(got[0].ack_seq(), Some(2));
    assert_retry(&got[1], Code::Backpressure);
    assert_eq!(got[2].ack_seq(), Some(3));
}

/// Indexes of idle groups go when they take too much memory and come back on use, numbers and duplicates unharmed; a
/// group that is listened to or written to keeps its own.
#[test]
fn idle_indexes_are_evicted_and_read_again() {
    let mut w = World::with(config(|c| c.index_bytes_max = 1));
    let groups: Vec<_> = (1..=4).map(group).collect();
    let ws = w.found("ws:one", &[], &groups);
    let c = w.login(&ws.founder, &groups);
    for (n, &g) in groups.iter().enumerate() {
        for m in 0..=n {
            w.stored(c, g, &distinct(m));
        }
        w.shaken(c, g, b"hs");
    }
    w.subscribe(c, group(1), 0);
    let indexes = w.store.calls(Kind::Index);
    w.advance(30_000);
    w.stored(c, group(1), &distinct(0));
    assert_eq!(
        w.store.calls(Kind::Index),
        indexes,
        "a group with a subscriber stays"
    );
    for (n, &g) in groups.iter().enumerate().skip(1) {
        assert_eq!(w.stored(c, g, &distinct(0)), 1);
        assert_eq!(w.stored(c, g, b"new"), n as u64 + 2);
        assert_eq!(w.shaken(c, g, b"hs"), 0);
        assert_eq!(w.shaken(c, g, b"hs 2"), 1);
    }
    assert_eq!(w.store.calls(Kind::Index), indexes + 6);
    w.hold(Kind::Append);
    w.say(c, send(group(4), b"pending"));
    w.advance(60_000);
    w.say(c, send(group(4), b"pending"));
    w.release(Kind::Append);
    let got = w.got(c);
    assert!(got.iter().filter_map(Got::ack_seq).eq([6, 6]), "{got:?}");
}

/// A RECON whose group's index is evicted while its envelopes are read is told to come again, never that it is done.
#[test]
fn recon_survives_the_eviction_of_its_index() {
    let mut w = World::with(config(|c| c.index_bytes_max = 1));
    let ws = w.found("ws:one", &[], &[group(1)]);
    let c = w.login(&ws.founder, &[group(1)]);
    w.fill(c, group(1), 300);
    w.hold(Kind::ReadSeqs);
    w.say(c, recon(group(1), &opening(&[])));
    w.advance(60_000);
    w.release(Kind::ReadSeqs);
    let got = w.got(c);
    let Some(Got::Recon(_, ranges)) = got.last() else {
        panic!("{got:?}")
    };
    assert!(
        matches!(
            ranges[..],
            [Range {
                mode: Mode::Fingerprint(_),
                ..
            }]
        ),
        "45 are owed"
    );
    let mut items = Vec::new();
    w.reconcile(c, group(1), &mut items);
    assert_eq!(items.len(), 300);
}

/// W02.26: at shutdown every acknowledgement that is due leaves first, a publication's too, then `retry/failover` with
/// an interval, then the close with status 1012. A connection that comes later is sent away at once.
#[test]
fn drain_acknowledges_then_sends_away() {
    let (mut w, ws, a) = founded();
    let admin = w.login(&ws.founder, &[group(1)]);
    let idle = w.login(&Device::new(5), &[group(1)]);
    let fresh = w.open();
    w.hold(Kind::Append);
    w.hold(Kind::Commit);
    w.say(a, send(group(1), b"one"));
    w.say(a, send(group(1), b"two"));
    let set = ws.next().by(&ws.founder);
    w.say(admin, access(&set.encode()));
    w.drain();
    assert!(!w.drained());
    for c in [idle, fresh] {
        assert_retry(&only(w.got(c)), Code::Failover);
        assert_eq!(w.closed(c), Some((CloseHow::Restart, CloseReason::Shutdown)));
    }
    assert_eq!((w.got(a), w.got(admin)), (vec![], vec![]));
    w.say(a, send(group(1), b"too late"));
    w.release(Kind::Append);
    w.release(Kind::Commit);
    let got = w.got(a);
    assert_eq!(
        (got.len(), got[0].ack_seq(), got[1].ack_seq()),
        (3, Some(2), Some(3))
    );
    assert_retry(&got[2], Code::Failover);
    let got = w.got(admin);
    assert_eq!((got.len(), &got[0]), (2, &Got::Access(set.digest().0.to_vec())));
    assert_retry(&got[1], Code::Failover);
    for c in [a, admin] {
        assert_eq!(w.closed(c), Some((CloseHow::Restart, CloseReason::Shutdown)));
    }
    let late = w.open();
    assert_retry(&only(w.got(late)), Code::Failover);
    assert!(w.drained());
}
