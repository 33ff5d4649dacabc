//! CALL and MEDIA (10): who is told, who is in, what is forwarded, and what a slow recipient loses.

use crate::world::*;
use bytes::Bytes;
use drover_engine::config::Push;
use drover_engine::effects::{CloseHow, CloseReason};
use drover_engine::wake::Category;
use drover_engine::{Config, Directory};
use drover_storage::RealmId;
use drover_wire::error::Code;
use drover_wire::frame::{Frame, Wake};
use drover_wire::id::CallId;

const OFFER: u8 = 1;
const ANSWER: u8 = 2;
const DECLINE: u8 = 3;
const BYE: u8 = 4;

const CALL: CallId = CallId([0xc1; 16]);

fn other(n: u8) -> CallId {
    CallId([n; 16])
}

fn offer(id: CallId) -> Bytes {
    call(id, group(1), OFFER, b"sealed")
}

fn answer(id: CallId) -> Bytes {
    call(id, group(1), ANSWER, b"sealed")
}

fn bye_call(id: CallId) -> Bytes {
    call(id, group(1), BYE, b"")
}

fn audio(seq: u64) -> Bytes {
    media(CALL, 1, seq, &[0x11; 80])
}

fn heard(seq: u64) -> Got {
    Got::Media(CALL, seq, vec![0x11; 80])
}

fn member(n: u64) -> Device {
    Device::new(10 + n)
}

/// A workspace with `count` members, each connected and subscribed to group 1.
fn with(config: Config, count: u64) -> (World, Workspace, Vec<C>) {
    let mut w = World::with(config);
    let members: Vec<Device> = (0..count).map(member).collect();
    let ws = w.found(
        "ws:one",
        &members.iter().collect::<Vec<_>>(),
        &[group(1), group(2)],
    );
    let conns = members
        .iter()
        .map(|device| {
            let c = w.login(device, &[group(1)]);
            w.subscribe(c, group(1), 0);
            c
        })
        .collect();
    (w, ws, conns)
}

fn members(count: u64) -> (World, Workspace, Vec<C>) {
    with(Config::default(), count)
}

/// A call of all of them, everything that was said about it read.
fn in_call(count: u64) -> (World, Workspace, Vec<C>) {
    let (mut w, ws, c) = members(count);
    join_all(&mut w, &c);
    (w, ws, c)
}

fn join_all(w: &mut World, conns: &[C]) {
    for &c in conns {
        w.say(c, answer(CALL));
    }
    for &c in conns {
        assert!(w.got(c).iter().all(|got| matches!(got, Got::Call(..))));
    }
}

/// What was said so far is read.
fn forget(w: &mut World, conns: &[C]) {
    for &c in conns {
        w.got(c);
    }
}

fn not_in_it() -> Got {
    refused(Code::WriterNotInAccessSet)
}

fn other_group() -> Got {
    limited(Code::WriterNotInAccessSet, 0, 0)
}

fn budget(retry_after_s: u32, limit: u64) -> Got {
    limited(Code::GroupIngressLimited, retry_after_s, limit)
}

/// W10.2, W10.1: an offer opens, an answer joins, audio flows both ways byte for byte and is never echoed; a decline by
/// a stranger is told and changes nothing; a bye stops it; the call goes with its last participant; nothing is stored.
#[test]
fn a_whole_call() {
    let (mut w, ws, c) = members(3);
    let second_socket = w.login(&member(0), &[group(1)]);
    w.subscribe(second_socket, group(1), 0);
    let records = w.records(&ws.minted.realm);
    for (from, frame) in [(0, offer(CALL)), (1, answer(CALL))] {
        assert_eq!(w.ask(c[from], frame.clone()), [], "success is never acknowledged");
        for &r in [second_socket].iter().chain(&c).filter(|&&r| r != c[from]) {
            assert_eq!(w.take_all(r), std::slice::from_ref(&frame));
        }
    }
    for (from, to) in [(0, 1), (1, 0), (0, 1)] {
        assert_eq!(w.ask(c[from], audio(9)), []);
        assert_eq!(w.take_all(c[to]), [audio(9)]);
        assert_eq!(w.got(c[2]), [], "not in the call");
        assert_eq!(w.got(second_socket), [], "a participant is a connection");
    }
    assert_eq!(w.ask(c[2], call(CALL, group(1), DECLINE, b"busy")), []);
    assert_eq!(w.got(c[0]), [Got::Call(CALL, DECLINE, b"busy".to_vec())]);
    w.say(c[0], audio(10));
    assert_eq!(
        w.got(c[1]),
        [Got::Call(CALL, DECLINE, b"busy".to_vec()), heard(10)]
    );
    assert_eq!(w.ask(c[1], bye_call(CALL)), []);
    assert_eq!(w.got(c[0]), [Got::Call(CALL, BYE, vec![])]);
    assert_eq!(w.ask(c[0], audio(11)), []);
    assert_eq!(w.got(c[1]), []);
    assert_eq!(w.ask(c[1], audio(1)), [not_in_it()]);
    assert_eq!(w.directory.calls().open(), 1);
    assert_eq!(w.ask(c[0], bye_call(CALL)), []);
    assert_eq!(w.directory.calls().open(), 0);
    // Leaving what is not there is silent, and told.
    w.got(c[1]);
    assert_eq!(w.ask(c[0], bye_call(CALL)), []);
    assert_eq!(w.got(c[1]), [Got::Call(CALL, BYE, vec![])]);
    assert_eq!(w.store.appended_records(), 0);
    assert_eq!(w.records(&ws.minted.realm), records);
}

/// W10.1: every CALL and MEDIA is forwarded as it came, whatever its widths; an all-zero id is ordinary.
#[test]
fn frames_are_forwarded_byte_for_byte() {
    let (mut w, _, c) = in_call(2);
    for (epoch, len) in [(0, 0), (24, 1), (256, 255), (1 << 16, 256), (u64::MAX, 4096)] {
        let body = vec![0x5a; len];
        let sent = frame(&Frame::Call {
            call_id: CALL,
            group: group(1),
            epoch,
            kind: OFFER,
            body: &body,
        });
        assert_eq!(w.ask(c[0], sent.clone()), []);
        assert_eq!(w.take_all(c[1]), [sent]);
    }
    for (seq, len) in [
        (0, 0),
        (24, 23),
        (255, 24),
        (256, 125),
        (1 << 16, 255),
        (1 << 32, 256),
        (u64::MAX, 1500),
    ] {
        let sent = media(CALL, 3, seq, &vec![0x22; len]);
        assert_eq!(w.ask(c[0], sent.clone()), []);
        assert_eq!(w.take_all(c[1]), [sent]);
    }
    for &c in &c {
        w.say(c, answer(other(0)));
        w.got(c);
    }
    w.got(c[0]);
    let zero = media(other(0), 0, 0, &[]);
    assert_eq!(w.ask(c[0], zero.clone()), []);
    assert_eq!(w.take_all(c[1]), [zero]);
}

/// W10.3: the sixth is refused, the five are unaffected; a member of a full call may offer again; a leaver frees a seat.
#[test]
fn a_call_has_five_seats() {
    let (mut w, _, c) = members(6);
    join_all(&mut w, &c[..5]);
    w.got(c[5]);
    assert_eq!(w.ask1(c[5], answer(CALL)), limited(Code::RateLimited, 5, 5));
    assert_eq!(w.got(c[0]), [], "nobody is told");
    assert_eq!(w.ask1(c[5], audio(1)), not_in_it());
    w.say(c[0], audio(1));
    for &r in &c[1..5] {
        assert_eq!(w.got(r), [heard(1)]);
    }
    assert_eq!(w.ask(c[4], offer(CALL)), []);
    w.say(c[2], bye_call(CALL));
    w.got(c[5]);
    assert_eq!(w.ask(c[5], answer(CALL)), []);
    w.say(c[5], audio(2));
    assert_eq!(w.got(c[0]).last(), Some(&heard(2)));
}

/// W10.4: the ceiling and its refusal; running calls go on; what closes frees a place; a connection may open two of
/// eight and answer any number, and `calls_share_refused` counts.
#[test]
fn the_table_has_a_ceiling_and_a_connection_its_share() {
    let (mut w, _, c) = members(6);
    for n in 0..8 {
        forget(&mut w, &c);
        assert_eq!(w.ask(c[n / 2], answer(other(n as u8))), []);
    }
    let full = limited(Code::RateLimited, 5, 8);
    assert_eq!(w.directory.calls().open(), 8);
    forget(&mut w, &c);
    assert_eq!(w.ask1(c[5], offer(other(9))), full);
    assert_eq!(w.metrics[0].calls_share_refused.get(), 0);
    assert_eq!(w.ask(c[1], answer(other(0))), []);
    let ct = [0x11; 80];
    forget(&mut w, &c);
    w.say(c[0], media(other(0), 1, 1, &ct));
    assert_eq!(w.got(c[1]), [Got::Media(other(0), 1, ct.to_vec())]);
    w.say(c[3], bye_call(other(7)));
    forget(&mut w, &c);
    assert_eq!(w.ask1(c[0], offer(other(9))), full, "it has two");
    assert_eq!(w.metrics[0].calls_share_refused.get(), 1);
    for n in 2..7 {
        assert_eq!(w.ask(c[0], answer(other(n))), [], "answering is not limited");
    }
    forget(&mut w, &c);
    assert_eq!(w.ask(c[5], offer(other(9))), []);
    // Another ceiling.
    let (mut w, _, c) = with(config(|c| c.max_concurrent_calls = Some(1)), 2);
    assert_eq!(w.ask(c[0], offer(other(1))), []);
    assert_eq!(w.ask1(c[0], offer(other(2))), limited(Code::RateLimited, 5, 1));
}

/// W10.5: an id belongs to one group, in the same workspace and in others on other shards; the refused frame reaches
/// nobody, and does not make its sender leave.
#[test]
fn a_call_id_belongs_to_one_group() {
    for shards in [1, 2] {
        let mut w = World::with(Config {
            shards,
            ..Config::default()
        });
        let (a, b, x) = (member(0), member(1), member(2));
        let ws = w.found("ws:one", &[&a, &b], &[group(1), group(2)]);
        let shard = |name: &str| Directory::shard_of(&RealmId(name.into()), shards);
        let elsewhere = (0..9)
            .map(|n| format!("ws:other{n}"))
            .find(|name| shards == 1 || shard(name) != shard("ws:one"))
            .unwrap();
        w.found_by(&elsewhere, &Device::new(3), &Device::new(4), &[&x], &[group(3)]);
        let inside = w.login(&a, &[group(1)]);
        let listener = w.login(&b, &[group(1)]);
        for g in [1, 2] {
            w.subscribe(listener, group(g), 0);
        }
        let stranger = w.login(&x, &[group(3)]);
        let bystander = w.login(&x, &[group(3)]);
        w.subscribe(bystander, group(3), 0);
        w.say(inside, offer(CALL));
        w.got(listener);
        for kind in [OFFER, ANSWER, DECLINE, BYE] {
            assert_eq!(w.ask1(inside, call(CALL, group(2), kind, b"x")), other_group());
            assert_eq!(w.ask1(stranger, call(CALL, group(3), kind, b"x")), other_group());
        }
        assert_eq!(w.got(listener), []);
        assert_eq!(w.got(bystander), []);
        assert_eq!(w.ask(inside, audio(1)), [], "it is still in");
        assert_eq!(w.ask1(stranger, audio(1)), not_in_it());
        w.say(inside, bye_call(CALL));
        assert_eq!(
            w.ask(stranger, call(CALL, group(3), OFFER, b"x")),
            [],
            "free again"
        );
        assert_eq!(w.got(bystander).len(), 1);
        drop(ws);
    }
}

/// W10.6: kind, then body, before any budget; 4096 and 1500 bytes pass, one more does not and costs nothing. W04.3
#[test]
fn sizes_are_judged_before_budgets() {
    let (mut w, _, c) = in_call(2);
    let too_large = |limit| limited(Code::EnvelopeTooLarge, 0, limit);
    for _ in 0..200 {
        for kind in [0, 5, 6, 240, 255] {
            let wrong = call(CALL, group(1), kind, &[0; 5000]);
            assert_eq!(w.ask1(c[0], wrong), refused(Code::MalformedHeader));
        }
        let long = call(CALL, group(8), OFFER, &[0; 4097]);
        assert_eq!(w.ask1(c[0], long), too_large(4096));
        assert_eq!(w.ask1(c[0], media(CALL, 1, 0, &[0; 1501])), too_large(1500));
        assert_eq!(w.ask1(c[0], media(CALL, 1, 0, &[0; 70_000])), too_large(1500));
    }
    assert_eq!(w.got(c[1]), []);
    assert_eq!(w.ask(c[0], call(CALL, group(1), OFFER, &[0; 4096])), []);
    assert_eq!(w.ask(c[0], media(CALL, 1, 0, &[0; 1500])), []);
    assert_eq!(w.got(c[1]).len(), 2);
}

/// W10.7: the 121st CALL of a minute is refused; the socket and the call go on; the next minute takes it. W04.4
#[test]
fn calls_are_120_a_minute() {
    let (mut w, _, c) = members(2);
    w.say(c[1], answer(CALL));
    forget(&mut w, &c);
    for n in 0..120 {
        assert_eq!(w.ask(c[0], offer(CALL)), [], "{n}");
        w.got(c[1]);
    }
    assert_eq!(w.ask1(c[0], bye_call(CALL)), limited(Code::RateLimited, 60, 120));
    assert_eq!(w.got(c[1]), []);
    assert_eq!(w.ask(c[0], audio(1)), []);
    assert_eq!(w.got(c[1]), [heard(1)]);
    w.set_wall(EPOCH_MS + 59_999);
    assert_eq!(w.ask1(c[0], offer(CALL)), limited(Code::RateLimited, 60, 120));
    w.set_wall(EPOCH_MS + 60_000);
    assert_eq!(w.ask(c[0], offer(CALL)), []);
    w.set_wall(EPOCH_MS - 1);
    assert_eq!(w.ask(c[0], offer(CALL)), [], "a clock that stepped back");
}

/// W10.8: sixty frames a second and stream; streams, and the same stream of two calls, are apart.
#[test]
fn a_stream_is_sixty_frames_a_second() {
    let (mut w, _, c) = in_call(2);
    for &c in &c {
        w.say(c, answer(other(2)));
    }
    w.got(c[0]);
    w.got(c[1]);
    for seq in 0..60 {
        assert_eq!(w.ask(c[0], audio(seq)), []);
    }
    assert_eq!(w.ask1(c[0], audio(60)), budget(1, 60));
    assert_eq!(w.got(c[1]).len(), 60);
    assert_eq!(w.ask(c[0], media(CALL, 2, 0, b"x")), []);
    assert_eq!(w.ask(c[0], media(other(2), 1, 0, b"x")), []);
    assert_eq!(w.got(c[1]).len(), 2);
    w.advance(999);
    assert_eq!(
        w.ask(c[0], audio(60)),
        [],
        "refused, and not reported twice in a second"
    );
    assert_eq!(w.got(c[1]), []);
    w.advance(1);
    assert_eq!(w.ask(c[0], audio(60)), []);
    assert_eq!(w.got(c[1]), [heard(60)]);
}

/// W10.9: a mebibyte a minute exactly; refused frames and empty ones cost nothing; SEND is charged elsewhere. W04.10
#[test]
fn a_connection_sends_a_mebibyte_a_minute() {
    let (mut w, _, c) = in_call(2);
    let (whole, rest) = (1_048_576 / 1500, 1_048_576 % 1500);
    for n in 0..whole {
        assert_eq!(w.ask(c[0], media(CALL, 1, n, &[0; 1500])), []);
        w.advance(20);
    }
    assert_eq!(w.got(c[1]).len() as u64, whole);
    for _ in 0..3 {
        let long = media(CALL, 1, 0, &vec![0; rest as usize + 1]);
        assert_eq!(w.ask1(c[0], long), budget(60, 1_048_576));
        w.advance(1_000);
    }
    assert_eq!(w.ask(c[0], media(CALL, 1, 0, &vec![0; rest as usize])), []);
    assert_eq!(w.ask1(c[0], media(CALL, 1, 0, b"x")), budget(60, 1_048_576));
    assert_eq!(w.ask(c[0], media(CALL, 1, 0, b"")), []);
    assert_eq!(w.got(c[1]).len(), 2);
    // 6000 SENDs and 64 MiB of them remain.
    w.fill(c[0], group(1), 1_000);
    w.got(c[1]);
    w.advance(60_000);
    assert_eq!(w.ask(c[0], media(CALL, 1, 0, &[0; 1500])), []);
}

/// W10.10: the 33rd stream is refused until a window is over.
#[test]
fn a_connection_has_32_streams() {
    let (mut w, _, c) = in_call(2);
    for stream in 0..32 {
        assert_eq!(w.ask(c[0], media(CALL, stream, 0, b"x")), []);
    }
    assert_eq!(w.ask1(c[0], media(CALL, 32, 0, b"x")), budget(1, 32));
    assert_eq!(w.ask(c[0], media(CALL, 31, 1, b"x")), []);
    w.advance(1_000);
    assert_eq!(w.ask(c[0], media(CALL, 32, 0, b"x")), []);
    assert_eq!(w.got(c[1]).len(), 34);
}

/// W10.11: a flood of 600 frames a second for three seconds earns a complaint a second; a clock that steps back freezes
/// neither window.
#[test]
fn a_flood_earns_one_complaint_a_second() {
    let (mut w, _, c) = in_call(2);
    let mut complaints = 0;
    for _ in 0..300 {
        for seq in 0..6 {
            w.push(c[0], audio(seq));
        }
        w.advance(10);
        let got = w.got(c[0]);
        assert!(got.iter().all(|got| *got == budget(1, 60)));
        complaints += got.len();
    }
    assert_eq!(complaints, 3);
    assert_eq!(w.got(c[1]).len(), 3 * 60);
    assert!(w.is_open(c[0]));
    // In the middle of a window, a second back.
    w.say(c[0], audio(0));
    w.advance(500);
    w.set_wall(w.now.wall_ms - 1_000);
    for seq in 0..60 {
        assert_eq!(w.ask(c[0], audio(seq)), []);
    }
    assert_eq!(
        w.ask(c[0], audio(60)),
        [],
        "reported half a second ago, as the clock has it"
    );
    assert_eq!(w.got(c[1]).len(), 61);
}

/// W10.12, W10.18: an unknown call and another's get one answer; every such frame counts in `media_denied`, at most one
/// a second is answered, and that shares its second with the budgets; nobody receives anything.
#[test]
fn strangers_are_denied_once_a_second() {
    let (mut w, _, c) = members(3);
    join_all(&mut w, &c[..2]);
    w.got(c[2]);
    assert_eq!(w.ask1(c[2], audio(0)), not_in_it());
    assert_eq!(
        w.ask(c[2], media(other(9), 2, 0, b"x")),
        [],
        "not twice in a second"
    );
    w.advance(1_000);
    assert_eq!(w.ask1(c[2], media(other(9), 2, 0, b"x")), not_in_it());
    assert_eq!(w.metrics[0].media_denied.get(), 3);
    w.advance(1_000);
    // 50 a second for ten seconds.
    let mut answers = Vec::new();
    for n in 0..500 {
        answers.extend(w.ask(c[2], audio(n)));
        w.advance(20);
    }
    assert_eq!(answers, vec![not_in_it(); 10]);
    assert_eq!(w.metrics[0].media_denied.get(), 503);
    // Denied frames have spent their budget, whose refusal is held back by the same timer.
    for n in 0..100 {
        assert_eq!(w.ask(c[2], audio(n)).len(), usize::from(n == 0));
    }
    assert_eq!(w.metrics[0].media_denied.get(), 563);
    w.advance(999);
    assert_eq!(w.ask(c[2], audio(0)), []);
    w.advance(1);
    assert_eq!(w.ask1(c[2], audio(0)), not_in_it());
    assert!(w.is_open(c[2]));
    for &r in &c[..2] {
        assert_eq!(w.got(r), []);
    }
}

/// W10.13, W10.20: a recipient that reads nothing loses the oldest of more than 64 frames and everything older than
/// 200 ms, exactly counted; others hear everything, its durable frames all arrive in order, and nobody is told.
#[test]
fn a_wedged_recipient_loses_audio_and_nothing_else() {
    let (mut w, ws, c) = in_call(3);
    let writer = w.login(&ws.founder, &[group(1)]);
    w.stop_reading(c[2], 0);
    let mut seqs = Vec::new();
    for seq in 0..100 {
        w.say(c[0], media(CALL, (seq / 50) as u8, seq, b"x"));
        if seq % 10 == 0 {
            seqs.push(w.stored(writer, group(1), &distinct(seq as usize)));
        }
    }
    let all = |w: &mut World, c| -> (Vec<u64>, Vec<u64>) {
        let got = w.got(c);
        let media = got.iter().filter_map(|g| match g {
            Got::Media(_, seq, _) => Some(*seq),
            _ => None,
        });
        (media.collect(), got.iter().filter_map(Got::push_seq).collect())
    };
    assert_eq!(all(&mut w, c[1]).0, (0..100).collect::<Vec<_>>());
    assert_eq!(w.media_shed(), 36);
    w.read_again(c[2]);
    assert_eq!(all(&mut w, c[2]), ((36..100).collect(), seqs.clone()));
    assert_eq!(w.media_shed(), 36);
    assert_eq!(w.ask(c[2], audio(7)), [], "still in the call");
    // Age.
    w.advance(1_000);
    w.stop_reading(c[2], 0);
    for seq in 0..30 {
        w.say(c[0], audio(seq));
        w.advance(10);
    }
    w.advance(100);
    w.read_again(c[2]);
    // Frame n was queued 400 - 10 n ms ago.
    assert_eq!(all(&mut w, c[2]).0, (20..30).collect::<Vec<_>>());
    assert_eq!(w.media_shed(), 36 + 20);
    assert_eq!(w.metrics[0].subscriber_downgrades.get(), 0);
    assert!(w.is_open(c[2]));
}

/// Architecture §9, 4: audio is behind at most the message whose writing broke off, not behind a durable backlog.
#[test]
fn audio_overtakes_a_backlog() {
    let (mut w, _, c) = in_call(2);
    w.stop_reading(c[1], 10);
    for n in 0..200 {
        w.push(c[0], send(group(1), &[vec![7; 5_000], distinct(n)].concat()));
    }
    w.got(c[0]);
    w.say(c[0], audio(1));
    w.read_again(c[1]);
    let got = w.got(c[1]);
    assert_eq!(got.len(), 201);
    assert_eq!(got[0].push_seq(), Some(1), "it was begun");
    assert_eq!(got[1], heard(1));
    let pushed: Vec<u64> = got.iter().filter_map(Got::push_seq).collect();
    assert_eq!(pushed, (1..=200).collect::<Vec<_>>());
}

/// W10.14: who disconnects, says BYE, breaks the protocol or is removed is out at once; coming back means joining again.
#[test]
fn the_end_of_a_connection_is_the_end_of_its_part() {
    let (mut w, mut ws, c) = in_call(5);
    let founder = w.login(&ws.founder.clone(), &[group(1)]);
    let reaches = |w: &mut World, expected: usize| {
        w.say(c[0], audio(1));
        w.advance(1_000);
        let reached = c[1..].iter().filter(|&&r| w.got(r).contains(&heard(1))).count();
        assert_eq!(reached, expected);
    };
    reaches(&mut w, 4);
    w.hang_up(c[4]);
    let back = w.login(&member(4), &[group(1)]);
    reaches(&mut w, 3);
    assert_eq!(w.ask1(back, audio(1)), not_in_it());
    w.say(c[3], bye());
    w.say(c[2], connect(4, &[]));
    reaches(&mut w, 1);
    assert_eq!(w.got(c[0]), [], "no bye is made up");
    // Removal: what is queued and unread is dropped, what was sent and not yet read is not forwarded.
    w.stop_reading(c[1], 0);
    w.say(c[0], audio(2));
    let set = ws.removing(&[&member(1)]).by(&ws.founder);
    w.accept(founder, &mut ws, set);
    w.push(c[1], audio(3));
    w.read_again(c[1]);
    assert_eq!(w.closed(c[1]), Some((CloseHow::Evict, CloseReason::Evicted)));
    assert_eq!(w.got(c[1]), []);
    assert_eq!(w.got(c[0]), []);
    assert_eq!(w.directory.calls().open(), 1);
    w.hang_up(c[0]);
    assert_eq!(w.directory.calls().open(), 0);
    assert_eq!(w.ask(back, answer(CALL)), []);
    // The process dies: calls do too.
    w.restart();
    assert_eq!(w.directory.calls().open(), 0);
    let again = w.login(&member(4), &[group(1)]);
    assert_eq!(w.ask1(again, audio(1)), not_in_it());
}

/// W10.15, W10.19: below version 3 no CALL and no MEDIA are sent; such a session may call, and keeps its seat.
#[test]
fn old_versions_are_sent_neither() {
    let (mut w, _, c) = members(2);
    let old: Vec<C> = [1, 2]
        .map(|version| {
            let old = w.login_as(0, version, &member(0), &[group(1)]);
            w.subscribe(old, group(1), 0);
            old
        })
        .to_vec();
    w.say(c[0], offer(CALL));
    for &o in &old {
        assert_eq!(w.got(o), []);
        assert_eq!(w.ask(o, answer(CALL)), []);
    }
    let calls = w.got(c[0]);
    assert_eq!(calls.len(), 2, "theirs are forwarded");
    w.say(c[1], answer(CALL));
    w.say(c[0], audio(1));
    for &o in &old {
        assert_eq!(w.got(o), []);
    }
    w.say(old[0], audio(2));
    assert_eq!(w.got(c[1]).last(), Some(&heard(2)), "they may speak");
    let sixth = w.login(&member(0), &[group(1)]);
    assert_eq!(w.ask(sixth, answer(CALL)), []);
    let seventh = w.login(&member(0), &[group(1)]);
    assert_eq!(w.ask1(seventh, answer(CALL)), limited(Code::RateLimited, 5, 5));
    forget(&mut w, &[c.clone(), old.clone()].concat());
    w.stored(c[1], group(1), b"text");
    for &o in &old {
        assert_eq!(only(w.got(o)).push_seq(), Some(1));
    }
}

/// W10.15: with calls off both frames are unsupported, every time, and the socket lives.
#[test]
fn calls_off() {
    let (mut w, _, c) = with(config(|c| c.max_concurrent_calls = None), 2);
    for _ in 0..3 {
        assert_eq!(w.ask1(c[0], offer(CALL)), refused(Code::ProtocolUnsupported));
        assert_eq!(w.ask1(c[0], audio(1)), refused(Code::ProtocolUnsupported));
        let wrong = call(CALL, group(1), 9, &[0; 5000]);
        assert_eq!(w.ask1(c[0], wrong), refused(Code::ProtocolUnsupported));
        assert_eq!(
            w.ask1(c[0], media(CALL, 1, 1, &[0; 2000])),
            refused(Code::ProtocolUnsupported)
        );
    }
    assert_eq!(w.got(c[1]), []);
    w.stored(c[0], group(1), b"still there");
}

/// W10.16: neither frame before `Ready`; an unknown and a foreign group; a charge comes before the group.
#[test]
fn a_call_is_authorized_like_a_send() {
    let (mut w, _, c) = members(1);
    for first in [offer(CALL), audio(1)] {
        let fresh = w.open();
        assert_eq!(w.ask1(fresh, first), refused(Code::MalformedHeader));
        assert!(!w.is_open(fresh));
    }
    w.found_by("ws:two", &Device::new(3), &Device::new(4), &[], &[group(9)]);
    assert_eq!(
        w.ask1(c[0], call(CALL, group(8), OFFER, b"")),
        refused(Code::GroupUnknown)
    );
    assert_eq!(
        w.ask1(c[0], call(CALL, group(9), OFFER, b"")),
        refused(Code::WriterNotInAccessSet)
    );
    for _ in 0..118 {
        w.ask1(c[0], call(CALL, group(8), OFFER, b""));
    }
    assert_eq!(
        w.ask1(c[0], call(CALL, group(8), OFFER, b"")),
        limited(Code::RateLimited, 60, 120)
    );
    assert_eq!(w.directory.calls().open(), 0);
}

/// W10.17 and decision 5: a call without audio for two minutes goes at the next join, one with audio or in which
/// somebody offered again does not; whoever was in it is denied.
#[test]
fn an_idle_call_goes_at_the_next_join() {
    let (mut w, _, c) = with(config(|c| c.max_concurrent_calls = Some(12)), 4);
    w.say(c[0], offer(other(1)));
    w.say(c[1], offer(other(2)));
    w.say(c[2], offer(other(3)));
    w.advance(60_000);
    w.say(c[1], media(other(2), 1, 1, b"x"));
    w.say(c[2], offer(other(3)));
    w.advance(59_999);
    w.say(c[3], offer(other(4)));
    assert_eq!(w.directory.calls().open(), 4);
    w.advance(1);
    for &c in &c {
        w.got(c);
    }
    assert_eq!(
        w.ask(c[0], media(other(1), 1, 1, b"x")),
        [],
        "nobody has joined since"
    );
    w.advance(60_000);
    w.say(c[3], offer(other(4)));
    assert_eq!(w.directory.calls().open(), 2, "2 and 3 are idle, 1 and 4 are not");
    forget(&mut w, &c);
    assert_eq!(w.ask(c[0], media(other(1), 1, 1, b"x")), []);
    assert_eq!(w.ask1(c[1], media(other(2), 1, 1, b"x")), not_in_it());
    assert_eq!(w.got(c[1]), [], "participants are not told");
}

/// W12.8: every offer wakes absent devices at once; answers, declines, byes and refused offers do not.
#[test]
fn an_offer_wakes() {
    let push = config(|c| {
        c.push = Some(Push {
            register_url: "https://ringer.example/v1/handles".into(),
            coalesce_ms: 2_000,
        });
        c.max_concurrent_calls = Some(1);
    });
    let (mut w, _, c) = with(push, 3);
    let expires_at_ms = w.now.wall_ms + 1_000_000;
    let register = frame(&Frame::Wake(Wake::Register {
        handle: [9; 16],
        categories: 2,
        expires_at_ms,
    }));
    assert_eq!(w.ask1(c[2], register), Got::Registered(expires_at_ms));
    w.say(c[0], offer(CALL));
    assert_eq!(w.wakes(), [], "it is connected");
    w.hang_up(c[2]);
    for _ in 0..2 {
        w.say(c[0], offer(CALL));
        let wakes = w.wakes();
        assert_eq!(wakes.len(), 1);
        assert_eq!((wakes[0].handle.0, wakes[0].category), ([9; 16], Category::Call));
    }
    for frame in [answer(CALL), call(CALL, group(1), DECLINE, b""), bye_call(CALL)] {
        w.say(c[1], frame);
    }
    w.got(c[1]);
    assert_eq!(w.ask1(c[1], offer(other(2))).code(), Some(Code::RateLimited));
    assert_eq!(
        w.ask1(c[1], call(CALL, group(8), OFFER, b"")).code(),
        Some(Code::GroupUnknown)
    );
    assert_eq!(w.wakes(), []);
}

/// CALL keeps its place among durable frames, is shed for a full queue, and comes after an owed notice; a device that is
/// replaying hears it too. (10 §4, decisions.md 34)
#[test]
fn calls_wait_in_line_and_are_shed() {
    let (mut w, _, c) = members(2);
    w.stop_reading(c[1], 0);
    w.stored(c[0], group(1), b"before");
    w.say(c[0], offer(CALL));
    for n in 0..254 {
        w.push(c[0], send(group(1), &distinct(n)));
    }
    w.got(c[0]);
    assert_eq!(w.room(c[1]).messages, 0);
    w.say(c[0], offer(CALL));
    assert_eq!(w.metrics[0].live_shed.get(), 1);
    assert_eq!(
        w.metrics[0].subscriber_downgrades.get(),
        0,
        "a CALL never causes one"
    );
    w.push(c[0], send(group(1), &distinct(300)));
    w.got(c[0]);
    assert_eq!(w.metrics[0].subscriber_downgrades.get(), 1);
    w.read_again(c[1]);
    let got = w.got(c[1]);
    assert_eq!(got[0].push_seq(), Some(1));
    assert!(matches!(got[1], Got::Call(..)));
    assert_eq!(got[2].push_seq(), Some(2));
    w.say(c[0], offer(CALL));
    assert!(matches!(w.got(c[1])[..], [Got::SubAck(_, 0), Got::Call(..)]));
    // Replaying.
    w.hold(Kind::Read);
    let late = w.login(&member(1), &[group(1)]);
    let got = w.ask(late, sub(group(1), 0));
    assert!(matches!(got[..], [Got::SubAck(..)]));
    w.say(c[0], offer(CALL));
    assert!(matches!(w.got(late)[..], [Got::Call(..)]));
    w.release(Kind::Read);
    assert_eq!(w.got(late).iter().filter_map(Got::push_seq).next(), Some(1));
}
