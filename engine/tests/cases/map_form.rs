//! Sessions in the map form (01 §8, docs/map-form.md): the same flows as in the array form, frame by frame.

use crate::world::*;
use bytes::Bytes;
use drover_wire::envelope::Envelope;
use drover_wire::error::Code;
use drover_wire::frame::List32Buf;
use drover_wire::id::{CallId, GroupId, Hash};
use drover_wire::map::{MapFrame, Span, WriteMode, is_map};
use drover_wire::recon::{self, Item};

const BOTH: [Form; 2] = [Form::Array, Form::Map];

/// How a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Array,
    Map,
}

fn map(frame: &MapFrame<'_>) -> Bytes {
    let mut out = Vec::new();
    frame.encode(&mut out);
    out.into()
}

fn list(groups: &[GroupId]) -> List32Buf {
    groups.iter().copied().collect()
}

/// A message of either form as if it had come as an array.
fn got_of(message: &[u8]) -> Got {
    if !is_map(message) {
        return Got::of(message);
    }
    match MapFrame::decode(message).expect("the relay sends what decodes") {
        MapFrame::Push(e) => {
            assert_eq!(e.content_hash(), e.hash, "one content address in both forms");
            Got::Push(Pushed {
                group: e.group,
                seq: e.seq,
                ts_ms: e.ts_ms,
                hash: e.hash,
                ct: e.ct.to_vec(),
            })
        }
        MapFrame::Error {
            code,
            state,
            retry_after_ms,
        } => {
            let ms = retry_after_ms.unwrap_or(0);
            assert_eq!(ms % 1000, 0);
            refused_with(code, (ms / 1000) as u32, state.as_ref().map_or(&[], |h| &h.0[..]))
        }
        MapFrame::Recon { group, payload } => Got::Recon(group, recon::decode(payload).unwrap()),
        other => panic!("{other:?}"),
    }
}

impl Form {
    fn send(self, group: GroupId, ct: &[u8]) -> Bytes {
        let (bytes, _) = envelope(group, ct);
        match self {
            Form::Array => send_envelope(&bytes),
            Form::Map => map(&MapFrame::Send(Envelope::decode(&bytes).unwrap())),
        }
    }

    fn sub(self, groups: &[GroupId], from_seq: u64) -> Bytes {
        match self {
            Form::Array => sub(groups[0], from_seq),
            Form::Map => map(&MapFrame::Sub {
                groups: list(groups).as_list(),
                from_seq: Some(from_seq),
                no_backfill: None,
            }),
        }
    }
}

impl World {
    /// A Ready connection in this form.
    #[track_caller]
    fn login_in(&mut self, form: Form, device: &Device, groups: &[GroupId]) -> C {
        if form == Form::Array {
            return self.login(device, groups);
        }
        let c = self.open();
        let messages = {
            self.say(
                c,
                map(&MapFrame::Connect {
                    version: 9,
                    groups: list(groups).as_list(),
                }),
            );
            self.take_all(c)
        };
        assert_eq!(messages.len(), 2, "{messages:x?}");
        assert_eq!(
            &messages[0][..],
            [0xa3, 0, 1, 1, 4, 2, 0x80],
            "the version selected, no group"
        );
        let Ok(MapFrame::Auth { key, state }) = MapFrame::decode(&messages[1]) else {
            panic!("{messages:x?}")
        };
        assert_eq!(
            (state.relay_time_ms, state.key_packages_remaining),
            (self.now.wall_ms, 0)
        );
        let proof = MapFrame::Proof {
            device_key: device.public(),
            signature: drover_wire::access::sign(&device.key, key),
        };
        self.say(c, map(&proof));
        let messages = self.take_all(c);
        assert_eq!(messages.len(), 1, "{messages:x?}");
        let Ok(MapFrame::Auth { key, state }) = MapFrame::decode(&messages[0]) else {
            panic!("{messages:x?}")
        };
        assert_eq!(key, device.public().0);
        assert!(matches!(state.write_mode, WriteMode::Full));
        c
    }

    fn heard(&mut self, c: C) -> Vec<Got> {
        self.pump();
        self.take_all(c).iter().map(|m| got_of(m)).collect()
    }

    fn asked(&mut self, c: C, message: Bytes) -> Vec<Got> {
        self.push(c, message);
        self.heard(c)
    }
}

fn founded(groups: &[GroupId]) -> (World, Device) {
    let mut w = World::new();
    let ws = w.found("ws:one", &[], groups);
    (w, ws.founder)
}

fn pushes(got: &[Got]) -> Vec<(GroupId, u64)> {
    got.iter()
        .filter_map(|g| match g {
            Got::Push(p) => Some((p.group, p.seq)),
            _ => None,
        })
        .collect()
}

/// The number an envelope was acknowledged with, in either form; the map form says it with the envelope itself.
#[track_caller]
fn acked(got: &Got, group: GroupId, ct: &[u8], wall_ms: u64) -> u64 {
    let hash = envelope(group, ct).1;
    match got {
        Got::Ack(h, seq) if *h == hash => *seq,
        Got::Push(p) if p.hash == hash => {
            assert_eq!((&p.ct[..], p.group, p.ts_ms), (ct, group, wall_ms));
            p.seq
        }
        other => panic!("{other:?}"),
    }
}

/// W01.16: a session from CONNECT to RECON in either form, with one partner in the other: what one sends the other
/// gets, with one hash, one number and one time.
#[test]
fn both_forms_share_a_log() {
    for form in BOTH {
        let (mut w, device) = founded(&[group(1)]);
        let c = w.login_in(form, &device, &[group(1)]);
        let other_form = if form == Form::Map { Form::Array } else { Form::Map };
        let other = w.login_in(other_form, &device, &[group(1)]);
        w.asked(other, other_form.sub(&[group(1)], 0));
        for n in 1..=3u8 {
            w.set_wall(EPOCH_MS + u64::from(n));
            let got = only(w.asked(c, form.send(group(1), &[n])));
            assert_eq!(acked(&got, group(1), &[n], w.now.wall_ms), u64::from(n));
            let Got::Push(push) = only(w.heard(other)) else {
                panic!()
            };
            assert_eq!(
                (push.seq, push.ts_ms, push.ct),
                (u64::from(n), w.now.wall_ms, vec![n])
            );
        }
        // A duplicate, from either, is answered with the first's number and time, and delivered to nobody.
        w.set_wall(EPOCH_MS + 60_000);
        for (c, form) in [(c, form), (other, other_form)] {
            let got = only(w.asked(c, form.send(group(1), &[2])));
            assert_eq!(acked(&got, group(1), &[2], EPOCH_MS + 2), 2);
        }
        assert_eq!(w.heard(other), []);
        // Replay.
        let late = w.login_in(form, &device, &[group(1)]);
        let got = w.asked(late, form.sub(&[group(1)], 2));
        assert_eq!(pushes(&got), [(group(1), 2), (group(1), 3)]);
        let acks = got.iter().filter(|g| matches!(g, Got::SubAck(..))).count();
        assert_eq!(
            acks,
            usize::from(form == Form::Array),
            "no SUB_ACK in the map form"
        );
        // The payload of RECON.
        let mut items: Vec<Item> = Vec::new();
        let ranges = recon::opening(&items);
        let mut payload = Vec::new();
        recon::encode(&ranges, &mut payload);
        let ask = match form {
            Form::Array => recon(group(1), &ranges),
            Form::Map => map(&MapFrame::Recon {
                group: group(1),
                payload: &payload,
            }),
        };
        let mut got = w.asked(late, ask);
        assert!(matches!(got.pop(), Some(Got::Recon(g, _)) if g == group(1)));
        for got in &got {
            if let Got::Push(p) = got {
                items.push(recon::item(p.seq, &p.hash));
            }
        }
        assert_eq!(items.len(), 3);
    }
}

/// W01.16: a duplicate whose original is still being committed is acknowledged after it, in order.
#[test]
fn a_map_duplicate_under_way_waits() {
    let (mut w, device) = founded(&[group(1)]);
    let c = w.login_in(Form::Map, &device, &[group(1)]);
    w.hold(Kind::Append);
    for ct in [b"a", b"a", b"b", b"a"] {
        w.push(c, Form::Map.send(group(1), ct));
    }
    assert_eq!(w.heard(c), []);
    w.release(Kind::Append);
    let got = w.heard(c);
    assert_eq!(
        pushes(&got),
        [(group(1), 1), (group(1), 1), (group(1), 2), (group(1), 1)]
    );
}

/// W01.16: a SUB of several groups with one cursor: each group's replay in turn, then what comes live; a group that is
/// refused holds up none of the others; with the bool nothing stored is sent, with a cursor beyond the head neither.
#[test]
fn one_sub_for_several_groups() {
    let groups = [group(1), group(2), group(3)];
    let (mut w, device) = founded(&groups);
    let writer = w.login(&device, &groups);
    for g in groups {
        for n in 1..=3u8 {
            w.stored(writer, g, &[n]);
        }
        w.shaken(writer, g, b"a commit");
    }
    w.restart(); // every index is cold: the SUB is parked for each in turn
    let (writer, c) = (w.login(&device, &groups), w.login_in(Form::Map, &device, &groups));
    let asked = [group(1), group(99), group(2), group(3)];
    let got = w.asked(c, Form::Map.sub(&asked, 2));
    let expected: Vec<(GroupId, u64)> = groups.iter().flat_map(|g| [(*g, 2), (*g, 3)]).collect();
    assert_eq!(pushes(&got), expected);
    assert_eq!(
        got.iter()
            .filter(|g| g.code() == Some(Code::GroupUnknown))
            .count(),
        1
    );
    let shakes = got.iter().filter(|g| g.handshake_seq() == Some(0)).count();
    assert_eq!(shakes, 3, "handshakes come as arrays, and always all of them");
    for g in groups {
        w.stored(writer, g, b"live");
    }
    assert_eq!(pushes(&w.heard(c)), groups.map(|g| (g, 4)));
    // The bool: nothing stored, but what comes.
    let c = w.login_in(Form::Map, &device, &groups);
    let reconciling = map(&MapFrame::Sub {
        groups: list(&groups).as_list(),
        from_seq: None,
        no_backfill: Some(true),
    });
    assert_eq!(pushes(&w.asked(c, reconciling)), []);
    w.stored(writer, group(2), b"live too");
    assert_eq!(pushes(&w.heard(c)), [(group(2), 5)]);
    // Neither key: from the beginning.
    let c = w.login_in(Form::Map, &device, &groups);
    let plain = map(&MapFrame::Sub {
        groups: list(&[group(1)]).as_list(),
        from_seq: None,
        no_backfill: None,
    });
    assert_eq!(pushes(&w.asked(c, plain)).len(), 4);
}

/// An answer about a long log is made between what others ask, in both forms of the question.
#[test]
fn others_are_served_between_pieces_of_an_answer() {
    let mut w = World::with(config(|c| c.recon_piece_items = 16));
    let device = w.found("ws:one", &[], &[group(1)]).founder;
    let writer = w.login(&device, &[group(1)]);
    w.fill(writer, group(1), 400);
    let wrong = Hash([9; 32]);
    let list = map(&MapFrame::ReconList {
        group: group(1),
        spans: vec![Span {
            lower: 0,
            upper: recon::OPEN_END,
            fingerprint: wrong,
        }],
    });
    let payload = vec![recon::Range {
        upper: recon::OPEN_END,
        mode: recon::Mode::Fingerprint(wrong),
    }];
    for (number, question) in [list, crate::world::recon(group(1), &payload)]
        .into_iter()
        .enumerate()
    {
        let reader = w.login_in(Form::Map, &device, &[group(1)]);
        w.push(reader, question);
        w.turn();
        w.push(writer, send(group(1), &[number as u8; 9]));
        let acknowledged = loop {
            assert!(w.turn());
            if let Some(got) = w.take(writer) {
                break got;
            }
        };
        assert_eq!(got_of(&acknowledged).ack_seq(), Some(401 + number as u64));
        assert_eq!(w.take(reader), None);
        w.pump();
        assert_eq!(w.take_all(reader).len(), 1);
    }
}

/// W01.16: RECON by lists: what differs is pushed, what agrees is left out, an empty answer ends it.
#[test]
fn recon_by_lists() {
    for items in [7, 4_096] {
        reconciled_by_lists(World::with(config(|c| c.recon_piece_items = items)));
    }
}

fn reconciled_by_lists(mut w: World) {
    let device = w.found("ws:one", &[], &[group(1)]).founder;
    let writer = w.login(&device, &[group(1)]);
    w.fill(writer, group(1), 200);
    let c = w.login_in(Form::Map, &device, &[group(1)]);
    // The client holds all but numbers 50 and 150.
    w.say(c, Form::Map.sub(&[group(1)], 0));
    let mut held: Vec<Item> = w
        .heard(c)
        .iter()
        .filter_map(|g| match g {
            Got::Push(p) => Some(recon::item(p.seq, &p.hash)),
            _ => None,
        })
        .collect();
    assert_eq!(held.len(), 200);
    held.retain(|item| recon::item_seq(item) != 50 && recon::item_seq(item) != 150);
    let span = |held: &[Item], lower, upper| {
        let inside: Vec<Item> = held
            .iter()
            .filter(|i| {
                lower <= recon::item_seq(i) && (recon::item_seq(i) < upper || upper == recon::OPEN_END)
            })
            .copied()
            .collect();
        Span {
            lower,
            upper,
            fingerprint: recon::fingerprint(&inside),
        }
    };
    let mut spans = vec![span(&held, 0, recon::OPEN_END)];
    let mut found = Vec::new();
    for round in 0.. {
        assert!(round < 20);
        let list = MapFrame::ReconList {
            group: group(1),
            spans: spans.clone(),
        };
        w.say(c, map(&list));
        let mut messages = w.take_all(c);
        let answer = messages.pop().unwrap();
        for message in messages {
            let Got::Push(p) = got_of(&message) else { panic!() };
            held.push(recon::item(p.seq, &p.hash));
            found.push(p.seq);
        }
        held.sort_unstable();
        held.dedup();
        let Ok(MapFrame::ReconList {
            group: g,
            spans: answered,
        }) = MapFrame::decode(&answer)
        else {
            panic!("{answer:x?}")
        };
        assert_eq!(g, group(1));
        if answered.is_empty() {
            break;
        }
        spans = answered
            .iter()
            .filter(|a| span(&held, a.lower, a.upper).fingerprint != a.fingerprint)
            .map(|a| span(&held, a.lower, a.upper))
            .collect();
        if spans.is_empty() {
            break;
        }
    }
    assert!(found.contains(&50) && found.contains(&150));
    assert_eq!(held.len(), 200);
    let settled = vec![span(&held, 0, recon::OPEN_END)];
    w.say(
        c,
        map(&MapFrame::ReconList {
            group: group(1),
            spans: settled,
        }),
    );
    assert_eq!(&w.take(c).unwrap()[..3], [0xa3, 0, 4]);
    assert_eq!(w.take(c), None);
}

/// W01.14: off: map bytes are `reject/noncanonical_cbor` in every state and change nothing. On: a map SEND in an array
/// session is stored and acknowledged in array form, and array frames work in a map session.
#[test]
fn the_form_is_chosen_message_by_message() {
    let (mut w, device) = founded(&[group(1)]);
    let (a, m) = (
        w.login(&device, &[group(1)]),
        w.login_in(Form::Map, &device, &[group(1)]),
    );
    assert_eq!(
        w.ask(a, Form::Map.send(group(1), b"x")),
        [Got::Ack(envelope(group(1), b"x").1, 1)]
    );
    let got = only(w.asked(m, Form::Array.send(group(1), b"y")));
    assert!(matches!(&got, Got::Push(p) if p.seq == 2), "{got:?}");
    // Array-only frames in a map session.
    assert_eq!(
        w.asked(m, handshake(group(1), b"h")),
        [Got::Handshake(group(1), 0, b"h".to_vec())]
    );
    assert!(matches!(only(w.asked(m, access(&[]))), Got::Access(_)));
    assert_eq!(w.asked(m, keys_publish(&[b"kp"])), [Got::Published(1)]);
    assert_eq!(w.asked(m, wrap(group(1), 1, 1, b"ct")), [wrapped(1)]);
    assert!(matches!(only(w.asked(m, bye())), Got::Bye(_)));
    assert!(!w.is_open(m));
    w.restart_with(|c| c.map_dialect = false);
    let (fresh, ready) = (w.open(), w.login(&device, &[group(1)]));
    let connect = map(&MapFrame::Connect {
        version: 1,
        groups: list(&[]).as_list(),
    });
    assert_eq!(w.ask(fresh, connect), [refused(Code::NoncanonicalCbor)]);
    assert_eq!(
        w.ask(ready, Form::Map.send(group(1), b"z")),
        [refused(Code::NoncanonicalCbor)]
    );
    assert!(w.is_open(fresh) && w.is_open(ready));
    assert_eq!(
        w.auth(fresh, &device, &[group(1)]).len(),
        1,
        "still in its first state"
    );
    assert_eq!(w.stored(ready, group(1), b"z"), 3);
}

/// W01.15: an empty `ct` is malformed in both forms, nothing is stored and the socket stays; with the setting it is
/// taken.
#[test]
fn empty_ct_in_both_forms() {
    for form in BOTH {
        let (mut w, device) = founded(&[group(1)]);
        let c = w.login_in(form, &device, &[group(1)]);
        assert_eq!(
            w.asked(c, form.send(group(1), b"")),
            [refused(Code::MalformedHeader)]
        );
        assert_eq!(w.store.appended_records(), 0);
        assert_eq!(
            acked(
                &only(w.asked(c, form.send(group(1), b"x"))),
                group(1),
                b"x",
                EPOCH_MS
            ),
            1
        );
        w.restart_with(|c| c.allow_empty_ct = true);
        let c = w.login_in(form, &device, &[group(1)]);
        assert_eq!(
            acked(
                &only(w.asked(c, form.send(group(1), b""))),
                group(1),
                b"",
                EPOCH_MS
            ),
            2
        );
    }
}

/// W01.16: errors of a map session: text and milliseconds, a state where the detail is one, other details unsaid.
#[test]
fn errors_of_a_map_session() {
    let mut w = World::new();
    let ws = w.found("ws:one", &[], &[group(1)]);
    let c = w.login_in(Form::Map, &ws.founder, &[group(1)]);
    w.say(c, Form::Map.send(group(9), b"x"));
    let text = b"\xa2\x00\x08\x01\xa2\x01\x66denied\x02\x6dgroup_unknown";
    assert_eq!(w.take_all(c), [&text[..]]);
    let stale = ws.next().with(|s| s.version = 7).by(&ws.founder);
    let got = w.asked(c, access(&stale.encode()));
    let digest = ws.head.digest();
    assert_eq!(got, [refused_with(Code::WriterNotInAccessSet, 0, &digest.0)]);
    for _ in 0..29 {
        w.asked(c, access(&[]));
    }
    let got = w.asked(c, access(&[]));
    assert_eq!(
        got,
        [refused_with(Code::RateLimited, 60, &[])],
        "the limit is not said"
    );
    w.store.down(&[Kind::Append], Fault::NotCommitted);
    let got = only(w.asked(c, Form::Map.send(group(1), b"x")));
    assert_retry(&got, Code::Backpressure);
}

/// W01.17: what a map session's frames are refused with, the socket staying: keys, order, heads, widths, a hash that is
/// wrong, tags without a map form, an access set as a map; a frame only the relay sends closes, and so does one before
/// its time.
#[test]
fn map_refusals() {
    let (mut w, device) = founded(&[group(1)]);
    let c = w.login_in(Form::Map, &device, &[group(1)]);
    let good = Form::Map.send(group(1), b"hello");
    let edit = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.to_vec();
        change(&mut bytes);
        Bytes::from(bytes)
    };
    // a2 00 06 01 a8 01 01 02 01 03 58 20 …
    assert_eq!(&good[..9], [0xa2, 0, 6, 1, 0xa8, 1, 1, 2, 1]);
    let cases: Vec<(&str, Bytes, Code)> = vec![
        (
            "a ninth key",
            edit(&|b| {
                b[4] = 0xa9;
                b.extend([9, 0]);
            }),
            Code::UnknownRequiredField,
        ),
        (
            "seven keys",
            edit(&|b| {
                b[4] = 0xa7;
                b.truncate(b.len() - 7);
            }),
            Code::UnknownRequiredField,
        ),
        (
            "keys descend",
            edit(&|b| (b[5], b[7]) = (2, 1)),
            Code::NoncanonicalCbor,
        ),
        ("a key twice", edit(&|b| b[7] = 1), Code::NoncanonicalCbor),
        (
            "a long head",
            edit(&|b| {
                b.splice(6..7, [0x18, 1]);
            }),
            Code::NoncanonicalCbor,
        ),
        ("a trailing byte", edit(&|b| b.push(0)), Code::NoncanonicalCbor),
        ("enc 2", edit(&|b| b[8] = 2), Code::MalformedHeader),
        (
            "a short group",
            edit(&|b| {
                b[11] = 0x1f;
                b.remove(12);
            }),
            Code::MalformedHeader,
        ),
        (
            "a wrong hash",
            edit(&|b| *b.last_mut().unwrap() ^= 1),
            Code::HashMismatch,
        ),
        (
            "an access set",
            Bytes::from_static(&[0xa2, 0, 9, 1, 0xa0]),
            Code::MalformedHeader,
        ),
        (
            "a ticket",
            Bytes::from_static(&[0xa2, 0, 7, 1, 0xa0]),
            Code::MalformedHeader,
        ),
        (
            "an unknown tag",
            Bytes::from_static(&[0xa2, 0, 0x18, 40, 1, 0]),
            Code::MalformedHeader,
        ),
        (
            "no group",
            Bytes::from_static(&[0xa2, 0, 3, 1, 0x80]),
            Code::MalformedHeader,
        ),
    ];
    for (name, message, code) in cases {
        assert_eq!(w.asked(c, message), [refused(code)], "{name}");
        assert!(w.is_open(c));
    }
    assert_eq!(w.store.appended_records(), 0);
    let (bytes, _) = envelope(group(1), b"x");
    let push = map(&MapFrame::Push(Envelope::decode(&bytes).unwrap()));
    assert_eq!(w.asked(c, push), [refused(Code::MalformedHeader)]);
    assert!(!w.is_open(c));
    let c = w.open();
    assert_eq!(
        w.asked(c, Form::Map.send(group(1), b"x")),
        [refused(Code::MalformedHeader)]
    );
    assert!(!w.is_open(c));
    let c = w.open();
    let none = Bytes::from_static(&[0xa3, 0, 1, 1, 0, 2, 0x80]);
    assert_eq!(only(w.asked(c, none)).code(), Some(Code::ProtocolUnsupported));
    assert!(!w.is_open(c));
}

/// A founder may come in the map form and publish in the array one (01 conflict 4).
#[test]
fn a_founder_in_the_map_form() {
    let mut w = World::new();
    let (m, founder) = (w.mint("ws:one"), Device::new(1));
    let c = w.open();
    w.reserve(c, &m, &m.code, [1; 16], &founder);
    let c = w.login_in(Form::Map, &founder, &[group(1)]);
    let Got::Access(body) = only(w.asked(c, access(&[]))) else {
        panic!()
    };
    let salt = drover_wire::access::AccessState::decode(&body).unwrap().salt;
    let set = Draft::genesis(&salt, &[&founder], &[&Device::new(2)], &[]).by(&founder);
    assert_eq!(
        w.asked(c, access(&set.encode())),
        [Got::Access(set.digest().0.to_vec())]
    );
    assert_eq!(
        acked(
            &only(w.asked(c, Form::Map.send(group(1), b"x"))),
            group(1),
            b"x",
            EPOCH_MS
        ),
        1
    );
}

/// W01.16: the rows of SEND's table answer alike in both forms, for whatever both can say (02 §6).
#[test]
fn send_rows_in_both_forms() {
    for form in BOTH {
        let mut w = World::with(config(|c| {
            c.min_enc_mls = true;
            c.send_frames_per_minute = 8;
        }));
        let ws = w.found("ws:one", &[], &[group(1)]);
        w.found_by("ws:two", &Device::new(3), &Device::new(4), &[], &[group(9)]);
        let c = w.login_in(form, &ws.founder, &[group(1)]);
        let large = vec![7; 1_048_577];
        let odd = |change: &dyn Fn(&mut Envelope<'_>)| {
            let bytes = envelope(group(1), b"hello").0;
            let mut e = Envelope::decode(&bytes).unwrap();
            change(&mut e);
            e.hash = e.content_hash();
            let mut out = Vec::new();
            e.encode(&mut out);
            match form {
                Form::Array => send_envelope(&out),
                Form::Map => map(&MapFrame::Send(e)),
            }
        };
        for (message, code) in [
            (form.send(group(9), b"x"), Code::WriterNotInAccessSet),
            (form.send(group(8), b"x"), Code::GroupUnknown),
            (odd(&|e| e.v = 2), Code::ProtocolUnsupported),
            (odd(&|e| e.enc = 0), Code::PlaintextRefused),
            (form.send(group(1), &large), Code::EnvelopeTooLarge),
        ] {
            assert_eq!(w.asked(c, message), [refused(code)], "{form:?}");
        }
        let got = only(w.asked(c, form.send(group(1), &large[..1_048_576])));
        assert_eq!(acked(&got, group(1), &large[..1_048_576], EPOCH_MS), 1);
        // What a writer says of seq and time is not believed.
        let got = only(w.asked(c, odd(&|e| (e.seq, e.ts_ms) = (77, 88))));
        assert_eq!(acked(&got, group(1), b"hello", EPOCH_MS), 2);
        let got = only(w.asked(c, form.send(group(1), b"eighth")));
        assert_eq!(acked(&got, group(1), b"eighth", EPOCH_MS), 3);
        let got = only(w.asked(c, form.send(group(1), b"ninth")));
        assert_eq!(got.code(), Some(Code::RateLimited), "{form:?}");
    }
}

/// A subscriber in either form that stops reading is told to reconcile once it reads again, by SUB_ACK with head 0 as an
/// array, and gets what comes (02 §7, docs/map-form.md).
#[test]
fn a_slow_reader_in_both_forms() {
    for form in BOTH {
        let (mut w, device) = founded(&[group(1)]);
        let (writer, slow) = (
            w.login(&device, &[group(1)]),
            w.login_in(form, &device, &[group(1)]),
        );
        w.asked(slow, form.sub(&[group(1)], 0));
        w.stop_reading(slow, 0);
        w.fill(writer, group(1), 300);
        w.read_again(slow);
        let before = w.heard(slow);
        assert_eq!((pushes(&before).len(), before.len()), (256, 256), "{form:?}");
        w.stored(writer, group(1), b"next");
        let got = w.heard(slow);
        assert_eq!(got[0], Got::SubAck(group(1), 0));
        assert_eq!(pushes(&got), [(group(1), 301)], "{form:?}");
        assert!(w.is_open(slow));
    }
}

/// Calls (10): CALL and MEDIA are the arrays they always are, in and out, and a refusal is a map.
#[test]
fn calls_are_arrays_in_a_map_session() {
    let (mut w, device) = founded(&[group(1)]);
    let id = CallId([0xc1; 16]);
    let [array, mapped] = BOTH.map(|form| {
        let c = w.login_in(form, &device, &[group(1)]);
        w.say(c, form.sub(&[group(1)], 0));
        w.take_all(c);
        c
    });
    let offer = call(id, group(1), 1, b"ring");
    assert_eq!(w.asked(array, offer.clone()), []);
    assert_eq!(w.take_all(mapped), std::slice::from_ref(&offer));
    assert_eq!(w.asked(mapped, offer.clone()), []);
    assert_eq!(w.take_all(array), [offer]);
    for (from, to) in [(array, mapped), (mapped, array)] {
        let audio = media(id, 1, 5, &[7; 80]);
        assert_eq!(w.asked(from, audio.clone()), []);
        assert_eq!(w.take_all(to), [audio]);
    }
    w.say(mapped, media(id, 1, 5, &[7; 1501]));
    let refusal = only(w.take_all(mapped));
    assert!(is_map(&refusal));
    assert_eq!(got_of(&refusal).code(), Some(Code::EnvelopeTooLarge));
}
