//! SEND: its checks in order, duplicates, budgets, and what subscribers see (02 §6, §7; 04 §3).

use crate::world::*;
use bytes::Bytes;
use drover_engine::Config;
use drover_wire::envelope::{CT_BYTES_MAX, Envelope};
use drover_wire::error::Code;
use drover_wire::id::Hash;

const MIB: usize = 1 << 20;

/// A workspace whose founder is logged in.
fn founded(config: Config) -> (World, Workspace, C) {
    let mut w = World::with(config);
    let ws = w.found(
        "ws:one",
        &[&Device::new(5), &Device::new(6)],
        &[group(1), group(2)],
    );
    let c = w.login(&ws.founder.clone(), &[group(1)]);
    (w, ws, c)
}

/// An envelope changed after its hash was taken, or before.
fn odd(change: impl FnOnce(&mut Envelope<'_>), rehash: bool) -> Vec<u8> {
    let (bytes, _) = envelope(group(1), b"odd");
    let mut e = Envelope::decode(&bytes).unwrap();
    change(&mut e);
    if rehash {
        return envelope_of(e).0;
    }
    let mut out = Vec::new();
    e.encode(&mut out);
    out
}

/// W02.9: every row of the table in isolation: its code, and the socket lives. W04.1, W04.3
#[test]
fn each_send_row_has_its_code() {
    let (mut w, _, c) = founded(config(|c| c.min_enc_mls = true));
    w.found_by("ws:two", &Device::new(3), &Device::new(4), &[], &[group(9)]);
    let bad_hash = |e: &mut Envelope<'_>| e.hash = Hash([1; 32]);
    let large = vec![7; CT_BYTES_MAX + 1];
    let mut broken = envelope(group(1), b"x").0;
    broken.push(0);
    let rows: Vec<(Vec<u8>, Code)> = vec![
        (broken, Code::NoncanonicalCbor),
        (odd(|e| e.enc = 2, true), Code::MalformedHeader),
        (odd(|e| e.group = group(9), true), Code::WriterNotInAccessSet),
        (odd(|e| e.group = group(8), true), Code::GroupUnknown),
        (odd(|e| e.v = 2, true), Code::ProtocolUnsupported),
        (odd(|e| e.enc = 0, true), Code::PlaintextRefused),
        (envelope(group(1), &large).0, Code::EnvelopeTooLarge),
        (odd(|e| e.ct = b"", true), Code::MalformedHeader),
        (odd(bad_hash, false), Code::HashMismatch),
    ];
    for (bytes, code) in rows {
        assert_eq!(w.ask1(c, send_envelope(&bytes)), refused(code));
    }
    assert_eq!(
        w.stored(c, group(1), &large[..CT_BYTES_MAX]),
        1,
        "nothing above took a number"
    );
}

/// W02.9: of two faults in one SEND the earlier row answers.
#[test]
fn send_rows_are_checked_in_order() {
    let (mut w, _, c) = founded(config(|c| c.min_enc_mls = true));
    w.found_by("ws:two", &Device::new(3), &Device::new(4), &[], &[group(9)]);
    let large = vec![7; CT_BYTES_MAX + 1];
    let rows: Vec<(Vec<u8>, Code)> = vec![
        (
            odd(|e| (e.enc, e.group) = (2, group(8)), true),
            Code::MalformedHeader,
        ),
        (
            odd(|e| (e.hash, e.group) = (Hash([1; 32]), group(8)), false),
            Code::GroupUnknown,
        ),
        (
            odd(|e| (e.v, e.group) = (2, group(9)), true),
            Code::WriterNotInAccessSet,
        ),
        (odd(|e| (e.v, e.enc) = (2, 0), true), Code::ProtocolUnsupported),
        (
            envelope_of(Envelope {
                enc: 0,
                ..Envelope::decode(&envelope(group(1), &large).0).unwrap()
            })
            .0,
            Code::PlaintextRefused,
        ),
        (odd(|e| (e.enc, e.ct) = (0, b""), true), Code::PlaintextRefused),
        (
            odd(|e| (e.hash, e.ct) = (Hash([1; 32]), b""), false),
            Code::MalformedHeader,
        ),
    ];
    for (n, (bytes, code)) in rows.into_iter().enumerate() {
        assert_eq!(w.ask1(c, send_envelope(&bytes)), refused(code), "{n}");
    }
}

/// An empty `ct` is accepted where the operator says so (decisions.md 3).
#[test]
fn empty_ct_is_the_operators_choice() {
    let (mut w, _, c) = founded(config(|c| c.allow_empty_ct = true));
    assert_eq!(w.stored(c, group(1), b""), 1);
}

/// Inbound seq and ts are ignored; what is stored has the relay's (02 §6).
#[test]
fn relay_assigns_seq_and_time() {
    let (mut w, _, c) = founded(Config::default());
    let bytes = odd(|e| (e.seq, e.ts_ms) = (77, 88), true);
    let hash = Envelope::decode(&bytes).unwrap().hash;
    w.set_wall(EPOCH_MS + 5);
    assert_eq!(w.ask1(c, send_envelope(&bytes)), Got::Ack(hash, 1));
    let got = w.subscribe(c, group(1), 0);
    let Got::Push(push) = &got[1] else { panic!() };
    assert_eq!((push.seq, push.ts_ms, push.hash), (1, EPOCH_MS + 5, hash));
}

/// W02.9: a duplicate is answered with the first number, whoever sends it, also when the log is full (04 §6 row 10);
/// it is not fanned out again. The same bytes in another group are another envelope.
#[test]
fn duplicate_is_answered_with_the_first_number() {
    let (mut w, _, c) = founded(config(|c| c.max_log_bytes = Some(6)));
    let member = w.login(&Device::new(5), &[group(1)]);
    w.subscribe(member, group(1), 0);
    assert_eq!(w.stored(c, group(1), b"abc"), 1);
    assert_eq!(w.stored(c, group(1), b"def"), 2);
    assert_eq!(w.got(member).len(), 2);
    assert_eq!(w.stored(c, group(1), b"abc"), 1);
    assert_eq!(w.stored(member, group(1), b"def"), 2);
    assert_eq!(w.got(member), []);
    assert_eq!(
        w.ask1(c, send(group(2), b"abc")),
        limited(Code::LogBudgetExhausted, 0, 6)
    );
    w.restart();
    let c = w.login(&Device::new(5), &[group(1)]);
    assert_eq!(w.stored(c, group(1), b"abc"), 1);
}

/// W04.14: the write that reaches the log limit exactly is stored, the next is refused and nothing stored, a duplicate
/// is still acknowledged, another workspace is unaffected; the count survives a restart.
#[test]
fn log_budget_is_inclusive() {
    let (mut w, ws, c) = founded(config(|c| c.max_log_bytes = Some(100)));
    let two = w.found_by("ws:two", &Device::new(3), &Device::new(4), &[], &[group(9)]);
    let d = w.login(&two.founder, &[group(9)]);
    w.stored(c, group(1), &[1; 60]);
    let stored = w.store.appended_records();
    assert_eq!(
        w.ask1(c, send(group(1), &[2; 41])),
        limited(Code::LogBudgetExhausted, 0, 100)
    );
    w.stored(c, group(2), &[2; 40]);
    assert_eq!(
        w.ask1(c, send(group(2), &[3; 1])),
        limited(Code::LogBudgetExhausted, 0, 100)
    );
    w.stored(c, group(1), &[1; 60]);
    assert_eq!(w.store.appended_records(), stored + 1);
    w.stored(d, group(9), &[4; 100]);
    assert_eq!(w.report(&ws.minted.realm).unwrap().log_bytes, 100);
    assert_eq!(w.metrics[0].log_bytes.get(), 200, "the gauge follows");
    w.restart();
    let c = w.login(&ws.founder, &[group(1)]);
    assert_eq!(
        w.ask1(c, send(group(1), &[3; 1])),
        limited(Code::LogBudgetExhausted, 0, 100)
    );
    assert_eq!(w.stored(c, group(1), &[1; 60]), 1);
}

/// W02.10: thirty identical SENDs at once: one row, one PUSH per subscriber, thirty equal acknowledgements; thirty
/// distinct ones get thirty numbers.
#[test]
fn concurrent_sends_are_one_or_thirty() {
    let (mut w, _, reader) = founded(Config::default());
    w.subscribe(reader, group(1), 0);
    let writers: Vec<C> = (0..30).map(|_| w.login(&Device::new(5), &[group(1)])).collect();
    for &c in &writers {
        w.push(c, send(group(1), b"the same"));
    }
    w.pump();
    for &c in &writers {
        assert_eq!(only(w.got(c)).ack_seq(), Some(1));
    }
    assert_eq!(w.got(reader).len(), 1);
    assert_eq!(w.store.appended_records(), 1);
    for (n, &c) in writers.iter().enumerate() {
        w.push(c, send(group(1), &distinct(n)));
    }
    w.pump();
    let mut seqs: Vec<u64> = writers
        .iter()
        .map(|&c| only(w.got(c)).ack_seq().unwrap())
        .collect();
    seqs.sort_unstable();
    assert_eq!(seqs, (2..32).collect::<Vec<u64>>());
    let pushed: Vec<u64> = w.got(reader).iter().map(|g| g.push_seq().unwrap()).collect();
    assert_eq!(pushed, (2..32).collect::<Vec<u64>>());
}

/// W02.10: a duplicate that comes while the original's commit is under way is acknowledged with it, nothing else having
/// to follow.
#[test]
fn duplicate_of_a_commit_under_way_is_acknowledged_with_it() {
    let (mut w, _, a) = founded(Config::default());
    let b = w.login(&Device::new(5), &[group(1)]);
    w.hold(Kind::Append);
    w.say(a, send(group(1), b"the same"));
    assert_eq!(w.waiting(Kind::Append), 1);
    w.say(b, send(group(1), b"the same"));
    w.say(a, send(group(1), b"the same"));
    w.say(a, handshake(group(1), b"hs"));
    assert_eq!(
        (w.got(a), w.got(b)),
        (vec![], vec![]),
        "nothing is acknowledged before it is durable"
    );
    w.release_one(Kind::Append);
    assert_eq!(
        w.got(a).len(),
        1,
        "the second acknowledgement waits for the open batch"
    );
    w.release(Kind::Append);
    assert_eq!(only(w.got(b)).ack_seq(), Some(1));
    assert_eq!(w.got(a).len(), 2);

    w.hold(Kind::Append);
    w.say(a, send(group(1), b"lonely"));
    w.say(b, send(group(1), b"lonely"));
    w.say(a, handshake(group(1), b"hs"));
    w.release(Kind::Append);
    assert_eq!(only(w.got(b)).ack_seq(), Some(2));
    // With nothing in the open batch but the duplicate.
    w.hold(Kind::Append);
    w.got(a);
    w.say(a, send(group(1), b"lonelier"));
    w.say(b, send(group(1), b"lonelier"));
    w.release(Kind::Append);
    assert_eq!(only(w.got(a)).ack_seq(), Some(3));
    assert_eq!(only(w.got(b)).ack_seq(), Some(3));
    // And of a handshake.
    w.hold(Kind::Append);
    w.say(a, handshake(group(1), b"alone"));
    w.say(b, handshake(group(1), b"alone"));
    w.release(Kind::Append);
    assert_eq!(only(w.got(b)).handshake_seq(), Some(1));
    assert_eq!(w.got(a).len(), 1);
}

/// W02.11: a writer never receives its own PUSH; a second socket of the same device does.
#[test]
fn writer_is_not_pushed_its_own() {
    let (mut w, ws, a) = founded(Config::default());
    let b = w.login(&ws.founder, &[group(1)]);
    for c in [a, b] {
        w.subscribe(c, group(1), 0);
    }
    // Interleaved in one commit, so that each is sent the other's and not its own.
    for n in 0..6 {
        w.push(if n % 2 == 0 { a } else { b }, send(group(1), &distinct(n)));
        w.reads_per_turn = 1;
    }
    w.pump();
    for c in [a, b] {
        let got = w.got(c);
        let acks: Vec<u64> = got.iter().filter_map(Got::ack_seq).collect();
        let pushes: Vec<u64> = got.iter().filter_map(Got::push_seq).collect();
        assert_eq!((acks.len(), pushes.len()), (3, 3));
        assert!(acks.iter().all(|seq| !pushes.contains(seq)));
        assert!(pushes.is_sorted());
    }
}

/// SUB is not needed to SEND; a subscriber of one group hears nothing of another.
#[test]
fn push_goes_to_the_groups_subscribers() {
    let (mut w, _, c) = founded(Config::default());
    let (one, two) = (
        w.login(&Device::new(5), &[group(1)]),
        w.login(&Device::new(6), &[group(1)]),
    );
    w.subscribe(one, group(1), 0);
    w.subscribe(two, group(2), 0);
    w.stored(c, group(1), b"x");
    assert_eq!((w.got(one).len(), w.got(two).len()), (1, 0));
}

/// W02.24: with several writers at once every subscriber sees a group's PUSHes in rising order, each once.
#[test]
fn subscribers_see_one_rising_order() {
    let (mut w, _, _) = founded(Config::default());
    let readers: Vec<C> = (0..3).map(|_| w.login(&Device::new(6), &[group(1)])).collect();
    for &c in &readers {
        w.subscribe(c, group(1), 0);
    }
    let writers: Vec<C> = (0..8).map(|_| w.login(&Device::new(5), &[group(1)])).collect();
    for n in 0..400 {
        w.push(writers[n * 7 % 8], send(group(1), &distinct(n)));
    }
    w.reads_per_turn = 3;
    w.pump();
    for c in readers {
        let seqs: Vec<u64> = w.got(c).iter().map(|g| g.push_seq().unwrap()).collect();
        assert_eq!(seqs, (1..=400).collect::<Vec<u64>>());
    }
}

/// W04.5: a SEND refused by a budget charges nothing; a new connection does not clear the device's budget; another
/// device is unaffected; the next minute takes it again. W04.4, W04.2
#[test]
fn device_frame_budget_outlives_connections() {
    let (mut w, ws, c) = founded(config(|c| c.send_frames_per_minute = 5));
    // An undecodable SEND costs a frame (decisions.md 30).
    assert_eq!(w.ask1(c, send_envelope(b"\xff")), refused(Code::NoncanonicalCbor));
    for n in 0..4 {
        w.stored(c, group(1), &distinct(n));
    }
    for _ in 0..3 {
        assert_eq!(w.ask1(c, send(group(1), b"x")), limited(Code::RateLimited, 60, 5));
    }
    // Even what would not decode: the budget comes first.
    assert_eq!(
        w.ask1(c, send_envelope(b"\xff")),
        limited(Code::RateLimited, 60, 5)
    );
    w.hang_up(c);
    let c = w.login(&ws.founder, &[group(1)]);
    assert_eq!(w.ask1(c, send(group(1), b"x")), limited(Code::RateLimited, 60, 5));
    let other = w.login(&Device::new(5), &[group(1)]);
    assert_eq!(w.stored(other, group(1), b"x"), 5);
    let minute = 60_000 - EPOCH_MS % 60_000;
    w.set_wall(EPOCH_MS + minute - 1);
    assert_eq!(w.ask1(c, send(group(1), b"y")), limited(Code::RateLimited, 60, 5));
    w.set_wall(EPOCH_MS + minute);
    assert_eq!(w.stored(c, group(1), b"y"), 6, "an aligned minute");
}

/// W04.5: the byte budget is tested after decoding and charges neither frame nor bytes when it refuses.
#[test]
fn device_byte_budget_counts_ciphertext() {
    let (mut w, _, c) = founded(config(|c| {
        c.send_bytes_per_minute = 100;
        c.send_frames_per_minute = 4;
    }));
    w.stored(c, group(1), &[1; 60]);
    for n in 0..5 {
        assert_eq!(
            w.ask1(c, send(group(1), &[n + 2; 41])),
            limited(Code::RateLimited, 60, 100)
        );
    }
    w.stored(c, group(1), &[9; 40]);
    // Bytes are judged before the group (row 3 before row 5).
    assert_eq!(
        w.ask1(c, send(group(8), b"x")),
        limited(Code::RateLimited, 60, 100)
    );
}

/// The figures of 04 §3 that an operator can change. W04.3
#[test]
fn default_budgets_are_the_specifications() {
    let c = Config::default();
    assert_eq!(
        (c.send_frames_per_minute, c.send_bytes_per_minute),
        (6_000, 67_108_864)
    );
    assert_eq!(c.group_ingress_bytes_per_minute, Some(8_388_608));
    assert_eq!(c.workspace_ingress_bytes_per_minute, Some(67_108_864));
    assert_eq!(c.group_backlog_bytes, Some(33_554_432));
    assert_eq!((c.live_frames_per_minute, c.max_log_bytes), (60, None));
    assert_eq!((c.handshake_timeout_ms, c.idle_timeout_ms), (10_000, 300_000));
}

/// A whole mebibyte, different for each number.
fn mebibyte(n: usize) -> Bytes {
    let mut ct = vec![0; MIB];
    ct[..8].copy_from_slice(&n.to_be_bytes());
    ct.into()
}

/// W04.6: 64 envelopes of the largest size fit in a minute, the 65th does not.
#[test]
fn sixty_four_largest_envelopes_fit_a_minute() {
    let (mut w, _, c) = founded(config(|c| {
        c.group_ingress_bytes_per_minute = None;
        c.group_backlog_bytes = None;
    }));
    for n in 0..64 {
        assert_eq!(w.stored(c, group(1), &mebibyte(n)), n as u64 + 1);
    }
    assert_eq!(
        w.ask1(c, send(group(1), &mebibyte(64))),
        limited(Code::RateLimited, 60, 67_108_864)
    );
    assert_eq!(
        w.ask1(c, send(group(1), b"x")),
        limited(Code::RateLimited, 60, 67_108_864)
    );
}

/// W04.7: exactly 8 MiB go to one group in a minute, the next byte doesn't, nothing is stored and no number taken; a
/// duplicate is charged like any other (04 decision 3); another device and another group have their own.
#[test]
fn group_ingress_is_eight_mebibytes() {
    let (mut w, _, c) = founded(Config::default());
    for _ in 0..7 {
        assert_eq!(w.stored(c, group(1), &mebibyte(0)), 1, "byte for byte the same");
    }
    w.stored(c, group(1), &mebibyte(1));
    let stored = w.store.appended_records();
    assert_eq!(
        w.ask1(c, send(group(1), b"x")),
        limited(Code::GroupIngressLimited, 60, 8_388_608)
    );
    assert_eq!(w.store.appended_records(), stored);
    let other = w.login(&Device::new(5), &[group(1)]);
    assert_eq!(w.stored(other, group(1), b"theirs"), 3);
    assert_eq!(w.stored(c, group(2), b"elsewhere"), 1);
    w.set_wall(EPOCH_MS + 60_000);
    assert_eq!(w.stored(c, group(1), b"x"), 4);
}

/// W04.8: 64 MiB spread over the groups and devices of one workspace, then refused; the next minute takes more, another
/// workspace has its own.
#[test]
fn workspace_ingress_is_sixty_four_mebibytes() {
    let (mut w, ws, c) = founded(config(|c| c.send_bytes_per_minute = u64::MAX));
    let groups: Vec<_> = (1..=9).map(group).collect();
    let more = w.login(&ws.founder, &groups);
    let other = w.login(&Device::new(5), &groups);
    for n in 0..64 {
        w.stored([c, other, more][n % 3], groups[n / 8], &mebibyte(n));
    }
    for c in [c, other] {
        assert_eq!(
            w.ask1(c, send(groups[8], b"x")),
            limited(Code::GroupIngressLimited, 60, 67_108_864)
        );
    }
    let two = w.found_by("ws:two", &Device::new(3), &Device::new(4), &[], &[group(90)]);
    let d = w.login(&two.founder, &[group(90)]);
    w.stored(d, group(90), b"x");
    w.set_wall(EPOCH_MS + 60_000);
    w.stored(other, groups[8], b"x");
}

/// W04.9: 32 MiB that nobody else was sent are the most one device may pile up in a group, in however many minutes;
/// once a subscriber has been sent some, as much is accepted again.
#[test]
fn backlog_is_thirty_two_mebibytes() {
    let (mut w, _, c) = founded(Config::default());
    for n in 0..32 {
        w.set_wall(EPOCH_MS + n as u64 / 8 * 60_000);
        w.stored(c, group(1), &mebibyte(n));
    }
    w.set_wall(EPOCH_MS + 10 * 60_000);
    let over = limited(Code::GroupIngressLimited, 5, 33_554_432);
    assert_eq!(w.ask1(c, send(group(1), b"x")), over);
    w.stored(c, group(2), b"x");
    let own = w.login(&Device::new(1), &[group(1)]);
    w.subscribe(own, group(1), 0);
    assert_eq!(
        w.ask1(c, send(group(1), b"x")),
        over,
        "the writer itself is no other subscriber"
    );
    w.hang_up(own);
    let reader = w.login(&Device::new(5), &[group(1)]);
    let sent = w
        .subscribe(reader, group(1), 0)
        .iter()
        .filter(|g| g.push_seq().is_some())
        .count();
    assert!((1..32).contains(&sent), "{sent}");
    for n in 0..sent {
        w.stored(c, group(1), &mebibyte(100 + n));
        w.got(reader);
    }
    // What is sent live never piles up.
    w.set_wall(EPOCH_MS + 11 * 60_000);
    for n in 0..8 {
        w.stored(c, group(1), &mebibyte(200 + n));
        assert_eq!(w.got(reader).len(), 1);
    }
}

/// W02.21: read-only refuses every durable write and serves the rest.
#[test]
fn read_only_serves_readers() {
    let (mut w, ws, c) = founded(Config::default());
    w.stored(c, group(1), b"x");
    w.restart_with(|c| c.read_only = true);
    let c = w.login(&ws.founder, &[group(1)]);
    use drover_wire::frame::{BytesListBuf, Frame, Keys};
    let packages: BytesListBuf = [b"kp"].into_iter().collect();
    for message in [
        send(group(1), b"y"),
        handshake(group(1), b"y"),
        frame(&Frame::Wrap { body: b"" }),
        frame(&Frame::Invite { body: b"" }),
        frame(&Frame::Keys(Keys::Publish {
            packages: packages.as_list(),
        })),
        frame(&Frame::Drop { payload: b"" }),
        access(&ws.next().by(&ws.founder).encode()),
    ] {
        assert_eq!(w.ask1(c, message), refused(Code::ServiceReadOnly));
    }
    assert_eq!(w.subscribe(c, group(1), 0).len(), 2);
    let got = w.ask(c, recon(group(1), &drover_wire::recon::opening(&[])));
    assert!(matches!(got[..], [Got::Push(_), Got::Recon(..)]));
    assert_eq!(w.ask(c, live(group(1), b"beat")), []);
    assert_ne!(
        w.ask1(c, keys_fetch(ws.founder.public(), 1)).code(),
        Some(Code::ServiceReadOnly)
    );
    assert!(w.is_open(c));
}

/// W02.22: with the store away in mid-session every durable request is told to come again; the socket stays, and works
/// without a reconnect once the store is back. W04.16
#[test]
fn store_outage_leaves_the_socket() {
    let (mut w, _, c) = founded(Config::default());
    w.stored(c, group(1), b"before");
    let down = [
        Kind::Append,
        Kind::Index,
        Kind::Read,
        Kind::ReadSeqs,
        Kind::Commit,
    ];
    w.store.down(&down, Fault::NotCommitted);
    for message in [
        send(group(1), b"x"),
        send(group(2), b"cold"),
        sub(group(2), 0),
        recon(group(2), &drover_wire::recon::opening(&[])),
        handshake(group(1), b"x"),
    ] {
        assert_retry(&w.ask1(c, message), Code::Backpressure);
    }
    let got = w.ask(c, recon(group(1), &drover_wire::recon::opening(&[])));
    assert_retry(&only(got), Code::Backpressure);
    w.store.up();
    assert_eq!(w.stored(c, group(1), b"x"), 2);
    assert_eq!(w.stored(c, group(2), b"cold"), 1);
    assert_eq!(w.shaken(c, group(1), b"x"), 0);
    assert_eq!(w.subscribe(c, group(2), 0).len(), 2);
}

/// W04.16: the intervals of retry answers are spread, so that clients don't all come back in the same second.
#[test]
fn retry_intervals_are_spread() {
    let (mut w, _, c) = founded(Config::default());
    w.store.down(&[Kind::Append], Fault::NotCommitted);
    let mut seen = std::collections::HashSet::new();
    for n in 0..40 {
        let got = w.ask1(c, send(group(1), &distinct(n)));
        assert_retry(&got, Code::Backpressure);
        let Got::Refused(refused) = got else {
            unreachable!()
        };
        seen.insert(refused.retry_after_s);
    }
    assert!(seen.len() > 2, "{seen:?}");
}
