//! SUB and its replay, RECON, HANDSHAKE (02 §8, §10; 03; 07 C).

use crate::world::*;
use drover_engine::effects::{CloseHow, CloseReason};
use drover_wire::error::Code;
use drover_wire::frame::Frame;
use drover_wire::recon::{self, IDS_MAX, Mode, OPEN_END, Range, opening};

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

fn seqs(got: &[Got]) -> Vec<u64> {
    got.iter().filter_map(Got::push_seq).collect()
}

fn shakes(got: &[Got]) -> Vec<u64> {
    got.iter().filter_map(Got::handshake_seq).collect()
}

/// Publishes this many handshakes, as many connections as the rate needs.
fn shake(w: &mut World, device: &Device, count: usize, message: impl Fn(usize) -> Vec<u8>) {
    let mut c = None;
    for n in 0..count {
        if n % 120 == 0 {
            c = Some(w.login(device, &[group(1)]));
        }
        w.push(c.unwrap(), handshake(group(1), &message(n)));
    }
    w.pump();
}

/// W02.12: a SUB on a group with 300 handshakes and 1000 envelopes sends all handshakes in order, then a bounded
/// backfill, and never closes; RECON completes the rest. W07.22
#[test]
fn replay_sends_all_handshakes_then_a_bounded_backfill() {
    let (mut w, ws, writer) = founded();
    w.fill(writer, group(1), 1000);
    shake(&mut w, &ws.founder, 300, distinct);
    w.restart();
    let c = w.login(&Device::new(5), &[group(1)]);
    let got = w.subscribe(c, group(1), 0);
    assert_eq!(got[0], Got::SubAck(group(1), 1000));
    assert_eq!(shakes(&got[1..301]), (0..300).collect::<Vec<u64>>());
    let backfill = seqs(&got[301..]);
    assert_eq!(backfill.len(), got.len() - 301);
    assert!((1..=255).contains(&backfill.len()));
    assert_eq!(backfill, (1..=backfill.len() as u64).collect::<Vec<u64>>());
    assert!(w.is_open(c));
    let mut items = Vec::new();
    for got in &got {
        if let Got::Push(push) = got {
            items.push(recon::item(push.seq, &push.hash));
        }
    }
    w.reconcile(c, group(1), &mut items);
    assert_eq!(items.len(), 1000);
    // A cursor beyond the head bounds no handshake.
    let got = w.subscribe(c, group(1), 5000);
    assert_eq!((shakes(&got).len(), seqs(&got).len()), (300, 0));
    // And one near the head is honoured, inclusive.
    assert_eq!(seqs(&w.subscribe(c, group(1), 999)), [999, 1000]);
}

/// W02.13: SUB from beyond the head echoes the cursor, 2^64 - 1 included, and what is written afterwards comes live.
#[test]
fn cursor_beyond_the_head_is_echoed() {
    let (mut w, _, writer) = founded();
    let c = w.login(&Device::new(5), &[group(1)]);
    assert_eq!(w.subscribe(c, group(1), 0), [Got::SubAck(group(1), 0)]);
    w.fill(writer, group(1), 3);
    w.got(c);
    for from in [103, u64::MAX] {
        assert_eq!(w.subscribe(c, group(1), from), [Got::SubAck(group(1), from)]);
        w.stored(writer, group(1), &from.to_be_bytes());
        assert_eq!(w.got(c).len(), 1);
    }
    for from in [0, 1] {
        assert_eq!(seqs(&w.subscribe(c, group(1), from)), [1, 2, 3, 4, 5]);
    }
}

/// What is committed while a SUB from beyond the head reads the handshakes is delivered like any live frame. W02.13
#[test]
fn cursor_bounds_the_backfill_alone() {
    let (mut w, _, writer) = founded();
    w.fill(writer, group(1), 3);
    w.shaken(writer, group(1), b"hs");
    let c = w.login(&Device::new(5), &[group(1)]);
    w.hold(Kind::Read);
    w.say(c, sub(group(1), 103));
    w.stored(writer, group(1), b"meanwhile");
    w.release(Kind::Read);
    w.stored(writer, group(1), b"afterwards");
    let got = w.got(c);
    assert_eq!((shakes(&got), seqs(&got)), (vec![0], vec![4, 5]));
}

/// W02.14: SUB twice delivers once.
#[test]
fn second_sub_does_not_double_delivery() {
    let (mut w, _, writer) = founded();
    let c = w.login(&Device::new(5), &[group(1)]);
    w.subscribe(c, group(1), 0);
    w.subscribe(c, group(1), 0);
    w.stored(writer, group(1), b"x");
    assert_eq!(w.got(c).len(), 1);
    assert_eq!(
        w.subscribe(c, group(1), 0).len(),
        2,
        "a repeated SUB replays again"
    );
}

/// W02.15: the 257th distinct SUB is refused with 256 and the socket stays; a held group passes; a refused SUB takes no
/// place. W04.3
#[test]
fn a_connection_holds_256_groups() {
    let mut w = World::new();
    let groups: Vec<_> = (1..=256).map(group).collect();
    let ws = w.found("ws:one", &[], &groups);
    let c = w.login(&ws.founder, &[group(1), group(257)]);
    assert_eq!(w.ask1(c, sub(group(999), 0)), refused(Code::GroupUnknown));
    for g in &groups {
        w.subscribe(c, *g, 0);
    }
    assert_eq!(w.ask1(c, sub(group(257), 0)), limited(Code::RateLimited, 0, 256));
    w.subscribe(c, group(1), 0);
    assert_eq!(w.stored(c, group(257), b"x"), 1);
}

/// W04.4: SUB is charged 300 times a minute; a refusal for other reasons is charged too, a clock that steps back opens a
/// new window, and no other budget is touched.
#[test]
fn sub_budget_is_three_hundred() {
    let (mut w, _, c) = founded();
    for n in 0..300 {
        let g = if n % 2 == 0 { group(1) } else { group(99) };
        assert_ne!(w.ask1(c, sub(g, 0)).code(), Some(Code::RateLimited));
    }
    assert_eq!(w.ask1(c, sub(group(1), 0)), limited(Code::RateLimited, 60, 300));
    assert!(matches!(
        w.ask1(c, recon(group(1), &opening(&[]))),
        Got::Recon(..)
    ));
    assert_eq!(w.stored(c, group(1), b"x"), 1);
    w.set_wall(EPOCH_MS - 1);
    assert_eq!(w.ask(c, sub(group(1), 0)).len(), 2);
}

/// W02.24: no live frame of a group comes before the end of its running replay; what was committed meanwhile follows it
/// in order, each once. W07.25
#[test]
fn live_frames_wait_for_the_replay() {
    let (mut w, ws, writer) = founded();
    w.fill(writer, group(1), 10);
    shake(&mut w, &ws.founder, 5, distinct);
    let c = w.login(&Device::new(5), &[group(1)]);
    w.hold(Kind::Read);
    w.say(c, sub(group(1), 0));
    // The replay reads its handshakes, then its backfill, then what came meanwhile; something comes at each step.
    let mut extra = 0;
    while w.waiting(Kind::Read) > 0 && extra < 12 {
        w.stored(writer, group(1), &[77, extra]);
        w.shaken(writer, group(1), &[78, extra]);
        assert!(
            w.got(c)
                .iter()
                .all(|g| g.push_seq().is_none_or(|s| s <= 10 + u64::from(extra)))
        );
        extra += 1;
        w.release_one(Kind::Read);
    }
    w.release(Kind::Read);
    w.stored(writer, group(1), b"live");
    let again = w.login(&Device::new(6), &[group(1)]);
    w.push(again, sub(group(1), 0));
    w.push(writer, send(group(1), b"in the same turn"));
    let got = w.got(again);
    assert!(shakes(&got).is_sorted() && seqs(&got).is_sorted());
    assert!(w.is_open(c));
}

/// The same, with everything the client has seen put together: rising, complete, each once. W02.24
#[test]
fn replay_and_live_make_one_sequence() {
    let (mut w, ws, writer) = founded();
    w.fill(writer, group(1), 20);
    shake(&mut w, &ws.founder, 3, distinct);
    let c = w.login(&Device::new(5), &[group(1)]);
    w.hold(Kind::Read);
    w.say(c, sub(group(1), 0));
    let mut seen = Vec::new();
    for n in 0..8u8 {
        w.stored(writer, group(1), &[90, n]);
        w.shaken(writer, group(1), &[91, n]);
        if w.waiting(Kind::Read) > 0 {
            w.release_one(Kind::Read);
        }
        seen.extend(w.got(c));
    }
    w.release(Kind::Read);
    seen.extend(w.got(c));
    assert_eq!(seqs(&seen), (1..=28).collect::<Vec<u64>>());
    assert_eq!(shakes(&seen), (0..11).collect::<Vec<u64>>());
    let first_push = seen.iter().position(|g| g.push_seq().is_some()).unwrap();
    assert_eq!(shakes(&seen[..first_push]).len(), seen[..first_push].len() - 1);
    assert!(shakes(&seen[..first_push]).len() >= 3);
}

/// A replay that can't be read is answered `retry/backpressure`; the subscription lives, and a second SUB replays (02
/// §8). W02.22
#[test]
fn unreadable_replay_leaves_the_subscription() {
    let (mut w, _, writer) = founded();
    w.fill(writer, group(1), 3);
    for (n, fill) in [(0, false), (1, true)] {
        if fill {
            w.shaken(writer, group(1), b"hs");
        }
        let c = w.login(&Device::new(5), &[group(1)]);
        w.store.fail_next(Kind::Read, Fault::NotCommitted);
        let got = w.ask(c, sub(group(1), 0));
        assert!(matches!(got[0], Got::SubAck(..)));
        assert_retry(&got[1], Code::Backpressure);
        w.stored(writer, group(1), &[n]);
        assert_eq!(w.got(c).len(), 1);
        assert_eq!(seqs(&w.subscribe(c, group(1), 0)).len(), 4 + usize::from(n));
    }
}

// ---- RECON

/// W03.7: the pushes of a round come before its answer, in ascending id order.
#[test]
fn recon_pushes_before_it_answers() {
    let (mut w, _, writer) = founded();
    w.fill(writer, group(1), 40);
    let c = w.login(&Device::new(5), &[group(1)]);
    let got = w.ask(c, recon(group(1), &opening(&[])));
    assert_eq!(got.len(), 41);
    assert!(matches!(&got[40], Got::Recon(_, r) if r[..] == [Range { upper: OPEN_END, mode: Mode::Skip }]));
    let ids: Vec<_> = got
        .iter()
        .filter_map(|g| match g {
            Got::Push(push) => Some(push.hash),
            _ => None,
        })
        .collect();
    assert!(ids.len() == 40 && ids.is_sorted());
}

/// W03.8: an empty client against 1000 small and against 50 one-megabyte envelopes: several rounds, bounded batches,
/// never a disconnect, complete at the end.
#[test]
fn recon_moves_any_history_in_bounded_batches() {
    let mut w = World::with(config(|c| {
        c.group_ingress_bytes_per_minute = None;
        c.group_backlog_bytes = None;
    }));
    let ws = w.found("ws:one", &[&Device::new(5)], &[group(1), group(2)]);
    let writer = w.login(&ws.founder, &[group(1)]);
    w.fill(writer, group(1), 1000);
    for n in 0..50 {
        let mut ct = vec![0; 1 << 20];
        ct[0] = n;
        w.stored(writer, group(2), &ct);
    }
    w.restart();
    let c = w.login(&Device::new(5), &[group(1)]);
    for (g, count) in [(group(1), 1000), (group(2), 50)] {
        let mut items = Vec::new();
        let (pushed, rounds) = w.reconcile(c, g, &mut items);
        assert_eq!((pushed.len(), items.len()), (count, count), "each once");
        assert!((2..40).contains(&rounds), "{rounds}");
        assert!(w.is_open(c));
    }
}

/// W03.9: writes racing an exchange are neither lost nor doubled.
#[test]
fn recon_races_with_writers() {
    let (mut w, _, writer) = founded();
    w.fill(writer, group(1), 400);
    let c = w.login(&Device::new(5), &[group(1)]);
    w.subscribe(c, group(1), 401);
    let (mut items, mut ranges) = (Vec::new(), opening(&[]));
    for round in 0u8..64 {
        w.push(c, recon(group(1), &ranges));
        w.push(writer, send(group(1), &[99, round]));
        let mut answer = None;
        for got in w.got(c) {
            match got {
                Got::Push(push) => items.push(recon::item(push.seq, &push.hash)),
                Got::Recon(_, ranges) => answer = Some(ranges),
                other => panic!("{other:?}"),
            }
        }
        items.sort_unstable();
        items.dedup();
        match recon::client_step(&items, &answer.unwrap()).ranges {
            Some(next) => ranges = next,
            None => {
                w.got(writer);
                w.stored(writer, group(1), b"last");
                assert_eq!(w.got(c).len(), 1);
                assert_eq!(items.len(), 400 + usize::from(round) + 1);
                return;
            }
        }
    }
    panic!("the exchange never ends");
}

/// W03.10: envelopes compacted away between the look at the index and the read are skipped, and the exchange ends, also
/// when they are the last of their batch or all of it.
#[test]
fn compacted_envelopes_are_skipped() {
    for gone in [vec![2], vec![5], vec![4, 5], vec![1, 2, 3, 4, 5]] {
        let (mut w, _, writer) = founded();
        w.fill(writer, group(1), 5);
        w.store.hide(gone.clone());
        let c = w.login(&Device::new(5), &[group(1)]);
        let got = w.ask(c, recon(group(1), &opening(&[])));
        assert_eq!(got.len(), 6 - gone.len());
        let Some(Got::Recon(_, answer)) = got.last() else {
            panic!()
        };
        assert!(
            answer.iter().all(|r| r.mode == Mode::Skip),
            "{gone:?}: {answer:?}"
        );
    }
}

/// W03.11: an unknown group, another workspace's and a store that is away: the codes of 02 §5.2; the group is judged
/// before the payload; the socket stays.
#[test]
fn recon_authorizes_first() {
    let (mut w, _, c) = founded();
    w.found_by("ws:two", &Device::new(3), &Device::new(4), &[], &[group(9)]);
    let broken = |g| {
        frame(&Frame::Recon {
            group: g,
            payload: b"\xff",
        })
    };
    for (g, code) in [(8, Code::GroupUnknown), (9, Code::WriterNotInAccessSet)] {
        assert_eq!(w.ask1(c, recon(group(g), &opening(&[]))), refused(code));
        assert_eq!(w.ask1(c, broken(group(g))), refused(code));
    }
    assert_eq!(w.ask1(c, broken(group(1))), refused(Code::NoncanonicalCbor));
    w.store.down(&[Kind::Index], Fault::NotCommitted);
    assert_retry(&w.ask1(c, recon(group(1), &opening(&[]))), Code::Backpressure);
    w.store.up();
    assert!(matches!(
        w.ask1(c, recon(group(1), &opening(&[]))),
        Got::Recon(..)
    ));
}

/// Payloads that decode as CBOR and are no message are `reject/malformed_header` (03 §2); later RECONs work. W03.5
#[test]
fn recon_structure_is_checked() {
    let (mut w, _, c) = founded();
    let upper = |upper, mode| Range { upper, mode };
    let many: Vec<Range> = (1..=1025).map(|n| upper(n, Mode::Skip)).collect();
    let ids: Vec<_> = (0..=IDS_MAX)
        .map(|n| drover_wire::id::Hash::of(&[&n.to_be_bytes()]))
        .collect();
    for ranges in [
        vec![upper(OPEN_END - 1, Mode::Skip)],
        vec![
            upper(5, Mode::Skip),
            upper(5, Mode::Skip),
            upper(OPEN_END, Mode::Skip),
        ],
        many,
        vec![upper(OPEN_END, Mode::Ids(ids))],
        Vec::new(),
    ] {
        assert_eq!(
            w.ask1(c, recon(group(1), &ranges)),
            refused(Code::MalformedHeader)
        );
    }
    let zero_first = [upper(0, Mode::Skip), upper(OPEN_END, Mode::Skip)];
    assert!(matches!(w.ask1(c, recon(group(1), &zero_first)), Got::Recon(_, r) if r == zero_first));
}

/// W03.12: the 601st RECON of a minute is refused with 600. W04.4
#[test]
fn recon_budget_is_six_hundred() {
    let (mut w, _, c) = founded();
    let message = recon(group(1), &opening(&[]));
    for _ in 0..600 {
        assert!(matches!(w.ask1(c, message.clone()), Got::Recon(..)));
    }
    assert_eq!(w.ask1(c, message.clone()), limited(Code::RateLimited, 60, 600));
    w.set_wall(EPOCH_MS + 60_000);
    assert!(matches!(w.ask1(c, message), Got::Recon(..)));
}

/// W03.14: in a group of more than 100 000 envelopes a client that lacks only the oldest one gets it (03 decision 3).
#[test]
fn the_oldest_of_a_hundred_thousand_is_found() {
    let mut w = World::with(config(|c| c.send_frames_per_minute = u64::MAX));
    let ws = w.found("ws:one", &[&Device::new(5)], &[group(1)]);
    let writer = w.login(&ws.founder, &[group(1)]);
    let mut items = Vec::with_capacity(100_001);
    for chunk in 0..101 {
        for n in 0..1000 {
            let (bytes, hash) = envelope(group(1), &distinct(chunk * 1000 + n));
            items.push(recon::item(items.len() as u64 + 1, &hash));
            w.push(writer, send_envelope(&bytes));
        }
        w.pump();
    }
    assert!(w.take_all(writer).len() == 101_000);
    items.remove(0);
    let c = w.login(&Device::new(5), &[group(1)]);
    let (pushed, rounds) = w.reconcile(c, group(1), &mut items);
    assert_eq!(only(pushed).seq, 1);
    assert!(rounds <= 8, "{rounds}");
}

// ---- HANDSHAKE

/// W07.18: the first message is 0, the second 1; another subscriber gets identical bytes and number, of whatever version
/// it is; the publisher gets one frame.
#[test]
fn handshakes_are_numbered_and_delivered() {
    let (mut w, ws, c) = founded();
    let reader = w.login_as(0, 1, &Device::new(5), &[group(1)]);
    let second = w.login(&ws.founder, &[group(1)]);
    for c in [c, reader, second] {
        w.subscribe(c, group(1), 0);
    }
    for (n, message) in [b"one", b"two"].iter().enumerate() {
        assert_eq!(w.shaken(c, group(1), *message), n as u64);
        let delivered = Got::Handshake(group(1), n as u64, message.to_vec());
        for c in [reader, second] {
            assert_eq!(w.got(c), std::slice::from_ref(&delivered));
        }
    }
    assert_eq!(w.got(c), []);
}

/// W07.19: concurrent publishers get dense, distinct numbers, and every subscriber sees them in order.
#[test]
fn concurrent_handshakes_are_dense() {
    let (mut w, _, reader) = founded();
    w.subscribe(reader, group(1), 0);
    let publishers: Vec<C> = (0..10).map(|_| w.login(&Device::new(5), &[group(1)])).collect();
    w.reads_per_turn = 1;
    for n in 0..50 {
        w.push(publishers[n % 10], handshake(group(1), &distinct(n)));
    }
    w.pump();
    let mut numbers: Vec<u64> = publishers.iter().flat_map(|&c| shakes(&w.got(c))).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..50).collect::<Vec<u64>>());
    assert_eq!(shakes(&w.got(reader)), numbers);
}

/// W07.20: a resend on a new connection gets the original number; one message is stored, nothing delivered again.
#[test]
fn repeated_handshake_is_answered_only() {
    let (mut w, _, c) = founded();
    let reader = w.login(&Device::new(5), &[group(1)]);
    w.subscribe(reader, group(1), 0);
    assert_eq!(w.shaken(c, group(1), b"one"), 0);
    assert_eq!(w.shaken(c, group(1), b"two"), 1);
    w.got(reader);
    let again = w.login(&Device::new(6), &[group(1)]);
    assert_eq!(w.shaken(again, group(1), b"one"), 0);
    assert_eq!(w.got(reader), []);
    assert_eq!(w.store.appended_records(), 2);
}

/// W07.21: the same bytes in two groups are two messages, each number 0.
#[test]
fn handshake_address_covers_the_group() {
    let (mut w, _, c) = founded();
    assert_eq!(w.shaken(c, group(1), b"one"), 0);
    assert_eq!(w.shaken(c, group(2), b"one"), 0);
    assert_eq!(w.store.appended_records(), 2);
}

/// W07.23: 512 messages of 96 KiB replay completely to a client that reads.
#[test]
fn large_handshake_log_replays_whole() {
    let (mut w, ws, _) = founded();
    let message = |n: usize| {
        let mut message = vec![0; 96 << 10];
        message[..8].copy_from_slice(&n.to_be_bytes());
        message
    };
    shake(&mut w, &ws.founder, 512, message);
    w.restart();
    let c = w.login(&Device::new(5), &[group(1)]);
    let got = w.subscribe(c, group(1), 0);
    assert_eq!(shakes(&got), (0..512).collect::<Vec<u64>>());
    assert!(matches!(&got[200], Got::Handshake(_, 199, m) if *m == message(199)));
}

/// W07.24: a client that stops reading during the replay is closed after ten seconds of it; one that reads slowly is
/// not.
#[test]
fn stalled_replay_ends_the_connection() {
    let (mut w, ws, _) = founded();
    shake(&mut w, &ws.founder, 400, |n| {
        [&vec![7; 30_000][..], &n.to_be_bytes()].concat()
    });
    let (stalled, slow) = (
        w.login(&Device::new(5), &[group(1)]),
        w.login(&Device::new(6), &[group(1)]),
    );
    for c in [stalled, slow] {
        w.stop_reading(c, 0);
        w.say(c, sub(group(1), 0));
    }
    for _ in 0..9 {
        w.advance(1_000);
        assert!(w.is_open(stalled));
    }
    w.read_some(slow, 4 << 20);
    w.advance(1_000);
    assert_eq!(
        w.closed(stalled),
        Some((CloseHow::Flush, CloseReason::SlowReader))
    );
    for _ in 0..3 {
        assert!(w.is_open(slow));
        w.advance(8_000);
        w.read_some(slow, 4 << 20);
    }
    w.read_again(slow);
    assert_eq!(shakes(&w.got(slow)), (0..400).collect::<Vec<u64>>());
    assert!(w.is_open(slow));
}

/// W07.27: an empty message, 524 289 bytes, an unknown and a foreign group: their codes, in that order of precedence; the
/// socket is usable. W04.3
#[test]
fn handshake_bounds() {
    let (mut w, _, c) = founded();
    w.found_by("ws:two", &Device::new(3), &Device::new(4), &[], &[group(9)]);
    let large = vec![1; 524_289];
    assert_eq!(
        w.ask1(c, handshake(group(1), b"")),
        refused(Code::MalformedHeader)
    );
    assert_eq!(
        w.ask1(c, handshake(group(1), &large)),
        limited(Code::EnvelopeTooLarge, 0, 524_288)
    );
    for bytes in [&b""[..], &large] {
        assert_eq!(w.ask1(c, handshake(group(8), bytes)), refused(Code::GroupUnknown));
        assert_eq!(
            w.ask1(c, handshake(group(9), bytes)),
            refused(Code::WriterNotInAccessSet)
        );
    }
    assert_eq!(w.shaken(c, group(1), &large[1..]), 0);
}

/// W07.28: the 121st HANDSHAKE of a minute is refused with 120 and nothing stored. W04.4
#[test]
fn handshake_budget_is_one_hundred_and_twenty() {
    let (mut w, _, c) = founded();
    for n in 0..120 {
        w.shaken(c, group(1), &distinct(n));
    }
    assert_eq!(
        w.ask1(c, handshake(group(1), b"x")),
        limited(Code::RateLimited, 60, 120)
    );
    assert_eq!(w.store.appended_records(), 120);
    w.set_wall(EPOCH_MS + 60_000);
    assert_eq!(w.shaken(c, group(1), b"x"), 120);
}

/// W07.29: the log limit is shared by SEND and HANDSHAKE and inclusive: one byte more is refused, nothing stored and no
/// number taken; a resend is answered; another workspace is unaffected. W04.14
#[test]
fn handshakes_and_envelopes_share_the_log_budget() {
    let mut w = World::with(config(|c| c.max_log_bytes = Some(100)));
    let ws = w.found("ws:one", &[], &[group(1)]);
    let two = w.found_by("ws:two", &Device::new(3), &Device::new(4), &[], &[group(9)]);
    let (c, d) = (
        w.login(&ws.founder, &[group(1)]),
        w.login(&two.founder, &[group(9)]),
    );
    w.stored(c, group(1), &[1; 50]);
    assert_eq!(w.shaken(c, group(1), &[2; 40]), 0);
    assert_eq!(
        w.ask1(c, handshake(group(1), &[3; 11])),
        limited(Code::LogBudgetExhausted, 0, 100)
    );
    assert_eq!(w.shaken(c, group(1), &[4; 10]), 1);
    assert_eq!(
        w.ask1(c, handshake(group(1), &[5])),
        limited(Code::LogBudgetExhausted, 0, 100)
    );
    assert_eq!(
        w.ask1(c, send(group(1), &[6])),
        limited(Code::LogBudgetExhausted, 0, 100)
    );
    assert_eq!(w.shaken(c, group(1), &[2; 40]), 0);
    assert_eq!(w.stored(c, group(1), &[1; 50]), 1);
    assert_eq!(w.shaken(d, group(9), &[3; 100]), 0);
}

/// W07.30: a failed append is `retry/backpressure`; the retry gets the next dense number.
#[test]
fn failed_handshake_leaves_no_gap() {
    let (mut w, _, c) = founded();
    assert_eq!(w.shaken(c, group(1), b"one"), 0);
    w.store.fail_next(Kind::Append, Fault::NotCommitted);
    assert_retry(&w.ask1(c, handshake(group(1), b"two")), Code::Backpressure);
    assert_eq!(w.shaken(c, group(1), b"three"), 1);
    assert_eq!(w.shaken(c, group(1), b"two"), 2);
}
