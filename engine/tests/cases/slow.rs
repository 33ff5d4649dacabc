//! Readers that are slow or stop, LIVE, and clients that pipeline (02 §9; 11).

use crate::world::*;
use drover_engine::effects::{CloseHow, CloseReason};
use drover_wire::error::Code;
use drover_wire::frame::{Frame, Wake};
use drover_wire::recon;

fn founded() -> (World, Workspace, C) {
    let mut w = World::new();
    let ws = w.found(
        "ws:one",
        &[&Device::new(5), &Device::new(6)],
        &[group(1), group(2)],
    );
    let c = w.login(&ws.founder.clone(), &[group(1)]);
    (w, ws, c)
}

fn downgrade(g: u64) -> Got {
    Got::SubAck(group(g), 0)
}

fn query() -> bytes::Bytes {
    frame(&Frame::Wake(Wake::Query))
}

/// W02.16: a subscriber that stops reading until its queue is full is downgraded once; others are unaffected; after it
/// has drained, exactly one SUB_ACK with head 0 precedes the next frame, and RECON recovers every envelope.
#[test]
fn full_queue_downgrades_once() {
    let (mut w, _, writer) = founded();
    let (slow, other) = (
        w.login(&Device::new(5), &[group(1)]),
        w.login(&Device::new(6), &[group(1)]),
    );
    w.subscribe(slow, group(1), 0);
    w.subscribe(other, group(1), 0);
    w.stop_reading(slow, 0);
    for n in 0..3 {
        for m in 0..150 {
            w.push(writer, send(group(1), &distinct(n * 150 + m)));
        }
        w.pump();
    }
    assert_eq!(w.got(other).len(), 450);
    assert_eq!(w.metrics[0].subscriber_downgrades.get(), 1);
    w.read_again(slow);
    let before = w.got(slow);
    let seen = before.iter().filter_map(Got::push_seq).collect::<Vec<u64>>();
    assert_eq!(
        seen.len(),
        before.len(),
        "nothing is sent at the moment the queue is full"
    );
    assert_eq!(seen, (1..=256).collect::<Vec<u64>>());
    w.got(writer);
    w.stored(writer, group(1), b"next");
    let got = w.got(slow);
    assert_eq!(
        (got.len(), &got[0], got[1].push_seq()),
        (2, &downgrade(1), Some(451))
    );
    w.stored(writer, group(1), b"and on");
    assert_eq!(w.got(slow).len(), 1, "the debt is paid once");
    let mut items = Vec::new();
    for got in before.iter().chain(&got) {
        if let Got::Push(push) = got {
            items.push(recon::item(push.seq, &push.hash));
        }
    }
    let (pushed, _) = w.reconcile(slow, group(1), &mut items);
    assert_eq!((pushed.len(), items.len()), (195, 452));
    // A new episode counts anew.
    w.stop_reading(slow, 0);
    for n in 0..300 {
        w.push(writer, send(group(1), &distinct(1000 + n)));
    }
    w.pump();
    assert_eq!(w.metrics[0].subscriber_downgrades.get(), 2);
}

/// The debt is per group, and a new SUB settles it: its own SUB_ACK and replay say all there is to say. W02.16
#[test]
fn sub_settles_a_debt() {
    let (mut w, _, writer) = founded();
    let slow = w.login(&Device::new(5), &[group(1)]);
    w.subscribe(slow, group(1), 0);
    w.subscribe(slow, group(2), 0);
    w.stop_reading(slow, 0);
    w.fill(writer, group(1), 300);
    w.stored(writer, group(2), b"lost as well");
    w.read_again(slow);
    w.got(slow);
    let got = w.subscribe(slow, group(1), 300);
    assert_eq!(got.len(), 2);
    w.stored(writer, group(1), b"next");
    assert_eq!(only(w.got(slow)).push_seq(), Some(301));
    w.stored(writer, group(2), b"next");
    let got = w.got(slow);
    assert_eq!((got.len(), &got[0]), (2, &downgrade(2)));
}

/// The bound of eight mebibytes downgrades like the bound of 256 messages. W02.16
#[test]
fn full_bytes_downgrade_too() {
    let (mut w, _, writer) = founded();
    let slow = w.login(&Device::new(5), &[group(1)]);
    w.subscribe(slow, group(1), 0);
    w.stop_reading(slow, 0);
    for n in 0..8 {
        let mut ct = vec![0; 1 << 20];
        ct[0] = n;
        w.stored(writer, group(1), &ct);
    }
    assert_eq!(w.metrics[0].subscriber_downgrades.get(), 1);
    w.read_again(slow);
    assert_eq!(w.got(slow).len(), 7);
    w.set_wall(EPOCH_MS + 60_000);
    w.stored(writer, group(1), b"next");
    assert_eq!(w.got(slow)[0], downgrade(1));
}

/// Invariant 6 under a reader of any speed: it is sent every envelope after its cursor in rising order, or told to
/// reconcile before the next one. W02.16
#[test]
fn gaps_are_always_announced() {
    let (mut w, _, writer) = founded();
    let slow = w.login(&Device::new(5), &[group(1)]);
    w.subscribe(slow, group(1), 0);
    w.stop_reading(slow, 1_000);
    let mut state: u64 = 7;
    for n in 0..4000 {
        w.push(writer, send(group(1), &distinct(n)));
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        if state >> 60 == 0 {
            w.pump();
            w.read_some(slow, (state >> 40) as usize % 3_000);
        }
        w.take_all(writer);
    }
    w.read_again(slow);
    w.got(writer);
    w.stored(writer, group(1), b"last");
    let (mut last, mut told) = (0, 0);
    for got in w.got(slow) {
        match got {
            Got::SubAck(_, 0) => {
                told += 1;
                last = u64::MAX;
            }
            Got::Push(push) => {
                assert!(
                    last == u64::MAX || push.seq == last + 1,
                    "{last} then {} unannounced",
                    push.seq
                );
                last = push.seq;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(last, 4001);
    assert!(told > 0, "the test is too gentle");
}

/// W02.17: a subscriber whose full queue can't take a HANDSHAKE is really closed, without a notice; it replays from zero
/// when it returns. W07.26
#[test]
fn handshake_to_a_full_queue_closes() {
    let (mut w, _, writer) = founded();
    let slow = w.login(&Device::new(5), &[group(1)]);
    w.subscribe(slow, group(1), 0);
    w.stop_reading(slow, 0);
    w.fill(writer, group(1), 256);
    assert!(w.is_open(slow));
    assert_eq!(w.shaken(writer, group(1), b"commit"), 0);
    assert_eq!(w.closed(slow), Some((CloseHow::Flush, CloseReason::SlowReader)));
    w.read_again(slow);
    let got = w.got(slow);
    assert!(got.iter().all(|g| g.push_seq().is_some()) && got.len() == 256);
    let again = w.login(&Device::new(5), &[group(1)]);
    assert_eq!(w.subscribe(again, group(1), 257)[1].handshake_seq(), Some(0));
    // One that is not full, but owes a notice it can pay, lives.
    w.stop_reading(again, 0);
    for n in 0..300 {
        w.push(writer, send(group(1), &distinct(1000 + n)));
    }
    w.pump();
    w.read_again(again);
    w.got(again);
    w.got(writer);
    assert_eq!(w.shaken(writer, group(1), b"commit 2"), 1);
    let got = w.got(again);
    assert_eq!(
        (got.len(), &got[0], got[1].handshake_seq()),
        (2, &downgrade(1), Some(1))
    );
}

/// W02.25: a client that pipelines without reading is paused, not cut off, and gets every answer in order once it reads;
/// one that stays stalled for ten seconds is closed.
#[test]
fn pipelining_client_is_paused_not_cut_off() {
    let (mut w, _, c) = founded();
    w.stop_reading(c, 0);
    for n in 0..3000 {
        w.push(c, send(group(1), &distinct(n)));
        if n % 10 == 0 {
            w.push(c, query());
        }
    }
    w.pump();
    assert!(w.unread(c) > 1000, "the relay reads on: {}", w.unread(c));
    w.advance(9_999);
    assert!(w.is_open(c));
    w.read_again(c);
    let got = w.got(c);
    assert!(got.iter().filter_map(Got::ack_seq).eq(1..=3000));
    assert_eq!(got.len(), 3300);
    assert_eq!((got[0].ack_seq(), &got[1]), (Some(1), &Got::Capability(false)));
    // Stalled for good.
    w.stop_reading(c, 0);
    for n in 0..300 {
        w.push(c, send(group(2), &distinct(n)));
    }
    w.pump();
    w.advance(9_999);
    assert!(w.is_open(c));
    w.advance(1);
    assert_eq!(w.closed(c), Some((CloseHow::Flush, CloseReason::SlowReader)));
}

/// W02.25 for pings: who doesn't read the answers is read no more, gets each of them if it does within ten seconds, and is
/// closed then.
#[test]
fn client_that_pings_without_reading_is_paused_then_closed() {
    let (mut w, _, c) = founded();
    w.stop_reading(c, 0);
    (0..1000).for_each(|_| w.push_ping(c));
    w.pump();
    assert!(w.unread(c) > 700, "the relay reads on: {}", w.unread(c));
    w.advance(9_999);
    assert!(w.is_open(c));
    w.read_again(c);
    w.pump();
    assert_eq!((w.unread(c), w.pongs(c)), (0, 1000));
    w.advance(60_000);
    assert!(w.is_open(c));
    w.stop_reading(c, 0);
    (0..1000).for_each(|_| w.push_ping(c));
    w.pump();
    w.advance(9_999);
    assert!(w.is_open(c));
    w.advance(1);
    assert_eq!(w.closed(c), Some((CloseHow::Flush, CloseReason::SlowReader)));
}

/// A client that reads, however slowly, is not stalled: ten seconds count from the last answer that left. W02.25
#[test]
fn slow_reader_of_answers_is_not_stalled() {
    let (mut w, _, c) = founded();
    w.stop_reading(c, 0);
    for n in 0..1200 {
        w.push(c, send(group(1), &distinct(n)));
    }
    w.pump();
    for _ in 0..4 {
        w.advance(8_000);
        assert!(w.is_open(c));
        w.read_some(c, 5_000); // about a hundred acknowledgements
    }
    w.read_again(c);
    assert!(w.got(c).iter().filter_map(Got::ack_seq).eq(1..=1200));
}

/// A socket that is to be closed after its ERROR is closed even if its peer never reads that. W02.25
#[test]
fn unread_last_error_does_not_keep_a_socket() {
    let (mut w, _, c) = founded();
    let other = w.login(&Device::new(5), &[group(1)]);
    for (c, last) in [
        (c, frame(&Frame::AuthChallenge { challenge: &[1] })),
        (other, bye()),
    ] {
        w.stop_reading(c, 0);
        for _ in 0..256 {
            w.push(c, query());
        }
        w.push(c, last);
        w.pump();
        assert!(w.is_open(c), "its last frame waits for room");
        w.advance(10_000);
        assert!(!w.is_open(c));
    }
}

/// However many timers a session has had, it comes to rest with the one that is due next.
#[test]
fn timers_do_not_pile_up() {
    let (mut w, _, c) = founded();
    for n in 0..50 {
        w.stop_reading(c, 0);
        for m in 0..260 {
            w.push(c, send(group(1), &distinct(n * 260 + m)));
        }
        w.pump();
        w.advance(500);
        w.read_again(c);
        w.take_all(c);
    }
    w.advance(20_000);
    assert!(w.is_open(c));
    w.advance(270_000);
    assert_eq!(w.pings(c), 0);
    w.advance(10_000);
    assert_eq!(w.pings(c), 1, "idle counts from the last frame");
}

// ---- LIVE

/// W11.1: a beat reaches every other subscriber of version 2 and above byte for byte, once, and not its sender, another
/// socket of whose device gets it; nothing is stored or answered.
#[test]
fn beat_reaches_the_other_subscribers() {
    let (mut w, ws, c) = founded();
    let second = w.login(&ws.founder, &[group(1)]);
    let readers: Vec<C> = (2..=4)
        .map(|v| w.login_as(0, v, &Device::new(5), &[group(1)]))
        .collect();
    for &r in [c, second].iter().chain(&readers) {
        w.subscribe(r, group(1), 0);
        w.subscribe(r, group(1), 0);
    }
    let beat = live(group(1), &[0xbe; 100]);
    assert_eq!(w.ask(c, beat.clone()), []);
    for &r in [second].iter().chain(&readers) {
        w.pump();
        assert_eq!(w.take_all(r), std::slice::from_ref(&beat));
    }
    assert_eq!(w.store.appended_records(), 0);
}

/// W11.2: a group without another subscriber is silence; a sender that is not subscribed is forwarded.
#[test]
fn beat_needs_no_subscription() {
    let (mut w, _, c) = founded();
    assert_eq!(w.ask(c, live(group(1), b"x")), []);
    let reader = w.login(&Device::new(5), &[group(1)]);
    w.subscribe(reader, group(1), 0);
    assert_eq!(w.ask(c, live(group(1), b"x")), []);
    assert_eq!(w.got(reader), [Got::Live(group(1), 7, b"x".to_vec())]);
}

/// W11.3: a version 1 subscriber gets PUSH and never LIVE. W02.18
#[test]
fn version_one_hears_no_beat() {
    let (mut w, _, c) = founded();
    let old = w.login_as(0, 1, &Device::new(5), &[group(1)]);
    w.subscribe(old, group(1), 0);
    w.say(c, live(group(1), b"x"));
    w.stored(c, group(1), b"y");
    assert_eq!(only(w.got(old)).push_seq(), Some(1));
    // It may send one itself.
    w.subscribe(c, group(1), 1);
    assert_eq!(w.ask(old, live(group(1), b"x")), []);
    assert_eq!(w.got(c), [Got::Live(group(1), 7, b"x".to_vec())]);
}

/// W11.4: 4096 bytes pass, 4097 are refused and spend no budget, as an empty beat (W11.10); 60 a minute pass, the 61st is
/// refused, the next window and a clock that stepped back take it, SEND is unaffected. W04.11, W04.3
#[test]
fn beats_are_bounded_in_size_and_rate() {
    let (mut w, ws, c) = founded();
    let reader = w.login(&Device::new(5), &[group(1)]);
    w.subscribe(reader, group(1), 0);
    let check = |w: &mut World, c: C, rate: u64| {
        for n in 0..rate {
            if n % 7 == 0 {
                assert_eq!(
                    w.ask1(c, live(group(1), &[1; 4097])),
                    limited(Code::EnvelopeTooLarge, 0, 4096)
                );
                assert_eq!(w.ask1(c, live(group(1), b"")), refused(Code::MalformedHeader));
            }
            assert_eq!(w.ask(c, live(group(1), &[1; 4096])), []);
        }
        assert_eq!(
            w.ask1(c, live(group(1), b"x")),
            limited(Code::RateLimited, 60, rate)
        );
        assert_eq!(w.got(reader).len() as u64, rate);
    };
    check(&mut w, c, 60);
    w.stored(c, group(1), b"durable");
    assert_eq!(w.got(reader).len(), 1);
    w.set_wall(EPOCH_MS + 59_999);
    assert_eq!(
        w.ask1(c, live(group(1), b"x")),
        limited(Code::RateLimited, 60, 60)
    );
    w.set_wall(EPOCH_MS - 10_000);
    assert_eq!(w.ask(c, live(group(1), b"x")), []);
    w.set_wall(EPOCH_MS + 50_000);
    assert_eq!(w.ask(c, live(group(1), b"x")), []);
    let other = w.login(&ws.founder, &[group(1)]);
    assert_eq!(w.ask(other, live(group(1), b"x")), [], "per connection");
    // The override.
    w.restart_with(|c| c.live_frames_per_minute = 900);
    let c = w.login(&ws.founder, &[group(1)]);
    for _ in 0..900 {
        assert_eq!(w.ask(c, live(group(1), b"x")), []);
    }
    assert_eq!(
        w.ask1(c, live(group(1), b"x")),
        limited(Code::RateLimited, 60, 900)
    );
}

/// W11.5: an unknown and a foreign group and a store that is away; the charge comes before the group.
#[test]
fn beat_is_authorized_like_a_send() {
    let (mut w, _, c) = founded();
    w.found_by("ws:two", &Device::new(3), &Device::new(4), &[], &[group(9)]);
    assert_eq!(w.ask1(c, live(group(8), b"x")), refused(Code::GroupUnknown));
    assert_eq!(
        w.ask1(c, live(group(9), b"x")),
        refused(Code::WriterNotInAccessSet)
    );
    // The binding is in memory: an outage does not touch beats (11 decision 6).
    w.store
        .down(&[Kind::Append, Kind::Index, Kind::Load], Fault::NotCommitted);
    assert_eq!(w.ask(c, live(group(1), b"x")), []);
    for _ in 0..57 {
        w.say(c, live(group(8), b"x"));
    }
    w.got(c);
    assert_eq!(
        w.ask1(c, live(group(8), b"x")),
        limited(Code::RateLimited, 60, 60)
    );
    assert!(w.is_open(c));
}

/// W11.6: with the path off a beat is refused as unsupported before anything else is looked at, the socket stays and
/// durable traffic is unaffected. W04.15
#[test]
fn live_can_be_off() {
    let mut w = World::with(config(|c| c.live = false));
    let ws = w.found("ws:one", &[], &[group(1)]);
    let c = w.login(&ws.founder, &[group(1)]);
    for beat in [
        live(group(1), b"x"),
        live(group(8), b""),
        live(group(1), &[0; 5000]),
    ] {
        assert_eq!(w.ask1(c, beat), refused(Code::ProtocolUnsupported));
    }
    assert_eq!(w.stored(c, group(1), b"x"), 1);
}

/// W11.8: to a saturated recipient beats are shed and counted, silently; every envelope is delivered in order or a notice
/// given; an owed notice leaves ahead of the next beat once there is room, exactly once.
#[test]
fn beats_are_shed_and_never_displace_envelopes() {
    let (mut w, _, c) = founded();
    let slow = w.login(&Device::new(5), &[group(1)]);
    w.subscribe(slow, group(1), 0);
    w.stop_reading(slow, 0);
    w.fill(c, group(1), 256);
    for _ in 0..10 {
        assert_eq!(w.ask(c, live(group(1), b"shed")), []);
    }
    assert_eq!(w.metrics[0].live_shed.get(), 10);
    assert_eq!(
        w.metrics[0].subscriber_downgrades.get(),
        0,
        "a beat never causes a downgrade"
    );
    w.stored(c, group(1), b"one too many");
    assert_eq!(w.metrics[0].subscriber_downgrades.get(), 1);
    w.say(c, live(group(1), b"shed"));
    w.read_again(slow);
    let got = w.got(slow);
    assert!(got.iter().filter_map(Got::push_seq).eq(1..=256) && got.len() == 256);
    w.say(c, live(group(1), b"beat"));
    w.say(c, live(group(1), b"beat"));
    let beat = Got::Live(group(1), 7, b"beat".to_vec());
    assert_eq!(w.got(slow), [downgrade(1), beat.clone(), beat]);
}
