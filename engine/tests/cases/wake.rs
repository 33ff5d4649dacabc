//! WAKE: registrations, and whom an event wakes (12).

use crate::world::*;
use bytes::Bytes;
use drover_engine::config::Push;
use drover_engine::effects::{CloseHow, CloseReason};
use drover_engine::shard::ShardMessage;
use drover_engine::wake::{Category, WakeHandle};
use drover_engine::{Config, Directory};
use drover_storage::RealmId;
use drover_storage::control::{ControlStore, DirectoryKind};
use drover_wire::error::Code;
use drover_wire::frame::{Frame, Wake};
use drover_wire::id::GroupId;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

const DAY_MS: u64 = 86_400_000;
const HOUR_MS: u64 = 3_600_000;
const WINDOW_MS: u64 = 2_000;
const URL: &str = "https://ringer.example/v1/handles";
const MALFORMED: Code = Code::PushHandleMalformed;
/// Category bits.
const MESSAGE: u8 = 1;
const CALL: u8 = 2;
const HANDSHAKE: u8 = 4;

fn with_push() -> Config {
    config(|c| {
        c.push = Some(Push {
            register_url: URL.into(),
            coalesce_ms: WINDOW_MS,
        });
    })
}

fn handle(n: u8) -> [u8; 16] {
    [n; 16]
}

fn register(n: u8, categories: u8, expires_at_ms: u64) -> Bytes {
    frame(&Frame::Wake(Wake::Register {
        handle: handle(n),
        categories,
        expires_at_ms,
    }))
}

fn clear() -> Bytes {
    frame(&Frame::Wake(Wake::Clear))
}

fn query() -> Bytes {
    frame(&Frame::Wake(Wake::Query))
}

/// Handles of a realm in its records and in the directory; the two must agree.
#[track_caller]
fn stored(w: &World, realm: &RealmId) -> Vec<u8> {
    let records = w.records(realm);
    let mut rows: Vec<u8> = (records.iter())
        .filter(|(key, _)| key.starts_with(b"wake/"))
        // 84 50 and the handle.
        .map(|(_, value)| value[2])
        .collect();
    rows.sort_unstable();
    let entries = w.store.directory(DirectoryKind::WakeHandle).unwrap();
    let mut names: Vec<u8> = (entries.iter())
        .filter(|entry| entry.realm == *realm)
        .map(|entry| entry.key.name[0])
        .collect();
    names.sort_unstable();
    assert_eq!(rows, names, "the directory says the same");
    rows
}

/// A workspace with push on: the founder, connected, and these members.
fn founded(members: &[&Device]) -> (World, Workspace, C) {
    let mut w = World::with(with_push());
    let ws = w.found("ws:one", members, &[group(1)]);
    let c = w.login(&ws.founder.clone(), &[group(1)]);
    (w, ws, c)
}

/// The device registers and goes away.
#[track_caller]
fn registered(w: &mut World, device: &Device, n: u8, categories: u8) {
    let expires_at_ms = w.now.wall_ms + DAY_MS;
    let c = w.login(device, &[group(1)]);
    assert_eq!(
        w.ask1(c, register(n, categories, expires_at_ms)),
        Got::Registered(expires_at_ms)
    );
    w.hang_up(c);
}

/// Who was woken since the last look, and for what.
fn woken(w: &mut World) -> Vec<(u8, Category)> {
    let wakes = w.wakes();
    wakes
        .iter()
        .map(|wake| (wake.handle.0[0], wake.category))
        .collect()
}

/// W12.2: the answer echoes the expiry, the row is stored, another one replaces it; a handle that somebody else holds,
/// here or in another workspace on another shard, is refused alike and stays where it is.
#[test]
fn a_handle_is_held_once_in_the_whole_relay() {
    for shards in [1, 2] {
        let mut w = World::with(Config {
            shards,
            ..with_push()
        });
        let member = Device::new(5);
        let one = w.found("ws:one", &[&member], &[group(1)]);
        let shard = |name: &str| Directory::shard_of(&RealmId(name.into()), shards);
        let elsewhere = (0..9)
            .map(|n| format!("ws:other{n}"))
            .find(|name| shards == 1 || shard(name) != shard("ws:one"))
            .expect("names differ in their shards");
        let two = w.found_by(&elsewhere, &Device::new(3), &Device::new(4), &[], &[group(2)]);
        let at = w.now.wall_ms + DAY_MS;
        let a = w.login(&one.founder, &[group(1)]);
        assert_eq!(w.ask1(a, register(1, MESSAGE, at)), Got::Registered(at));
        assert_eq!(stored(&w, &one.minted.realm), [1]);
        let b = w.login(&member, &[group(1)]);
        let c = w.login(&two.founder, &[group(2)]);
        w.push(b, register(1, MESSAGE, at));
        w.push(c, register(1, MESSAGE, at));
        w.pump();
        let (here, there) = (w.take_all(b), w.take_all(c));
        assert_eq!(here, there, "nothing tells where it is held");
        assert_eq!(Got::of(&only(here)), refused(MALFORMED));
        assert_eq!(stored(&w, &one.minted.realm), [1]);
        assert_eq!(stored(&w, &two.minted.realm), []);
        // Its own again, then another in its place: the first is free.
        assert_eq!(w.ask1(a, register(1, CALL, at + 1)), Got::Registered(at + 1));
        assert_eq!(w.ask1(a, register(2, CALL, at)), Got::Registered(at));
        assert_eq!(stored(&w, &one.minted.realm), [2]);
        assert_eq!(w.ask1(c, register(1, MESSAGE, at)), Got::Registered(at));
        assert_eq!(stored(&w, &two.minted.realm), [1]);
        // And all of it is still so after a restart.
        w.restart();
        let b = w.login(&member, &[group(1)]);
        assert_eq!(w.ask1(b, register(2, MESSAGE, at)), refused(MALFORMED));
        assert_eq!(w.ask1(b, register(1, MESSAGE, at)), refused(MALFORMED));
    }
}

/// W12.3: what is over, or further ahead than 30 days and 5 minutes, is refused and nothing stored; decisions.md 10.
#[test]
fn expiry_lies_ahead_but_not_too_far() {
    let (mut w, ws, c) = founded(&[]);
    let now = w.now.wall_ms;
    let (month, slack) = (30 * DAY_MS, 5 * 60_000);
    let year_9999 = 253_370_764_800_000;
    for at in [now, now - 1, 0, now + month + slack + 1, year_9999, u64::MAX] {
        assert_eq!(w.ask1(c, register(1, MESSAGE, at)), refused(MALFORMED), "{at}");
    }
    assert_eq!(stored(&w, &ws.minted.realm), []);
    for at in [now + 1, now + month, now + month + slack] {
        assert_eq!(w.ask1(c, register(1, MESSAGE, at)), Got::Registered(at));
    }
    assert_eq!(stored(&w, &ws.minted.realm), [1]);
}

/// W12.4: five in an hour, whatever became of them and over all its sockets; others and other frames are unaffected; each
/// counts for its own hour.
#[test]
fn five_registrations_in_an_hour() {
    let member = Device::new(5);
    let (mut w, ws, c) = founded(&[&member]);
    registered(&mut w, &member, 9, MESSAGE);
    let at = w.now.wall_ms + DAY_MS;
    let limit = limited(Code::PushRegistrationRate, 3600, 5);
    // Refused for their expiry, these are no attempts.
    for _ in 0..6 {
        assert_eq!(w.ask1(c, register(1, MESSAGE, 1)), refused(MALFORMED));
    }
    assert_eq!(w.ask1(c, register(1, MESSAGE, at)), Got::Registered(at));
    w.advance(60_000);
    assert_eq!(
        w.ask1(c, register(9, MESSAGE, at)),
        refused(MALFORMED),
        "held: charged"
    );
    w.store.fail_next(Kind::Commit, Fault::NotCommitted);
    assert_retry(&w.ask1(c, register(1, MESSAGE, at)), Code::PushBackpressure);
    for _ in 0..2 {
        assert_eq!(w.ask1(c, register(1, MESSAGE, at)), Got::Registered(at));
    }
    assert_eq!(w.ask1(c, register(1, MESSAGE, at)), limit);
    assert_eq!(w.ask1(c, clear()), Got::Cleared);
    assert_eq!(w.ask1(c, query()), Got::Capability(true));
    w.hang_up(c);
    let c = w.login(&ws.founder, &[group(1)]);
    assert_eq!(
        w.ask1(c, register(1, MESSAGE, at)),
        limit,
        "a new socket is no new principal"
    );
    let d = w.login(&member, &[group(1)]);
    assert_eq!(w.ask1(d, register(9, MESSAGE, at)), Got::Registered(at));
    w.hang_up(c);
    w.advance(HOUR_MS - 60_000 - 1);
    let c = w.login(&ws.founder, &[group(1)]);
    assert_eq!(w.ask1(c, register(1, MESSAGE, at)), limit);
    w.advance(1);
    assert_eq!(
        w.ask1(c, register(1, MESSAGE, at)),
        Got::Registered(at),
        "the first one's hour is over"
    );
    assert_eq!(
        w.ask1(c, register(1, MESSAGE, at)),
        limit,
        "the other four count on"
    );
    assert!(w.is_open(c));
}

/// W12.5, W04.13: Clear answers the same with and without a row; Query needs no store; with push off only Query is answered with
/// an answer, and the expiry is judged first.
#[test]
fn clear_and_query() {
    let (mut w, ws, c) = founded(&[]);
    let at = w.now.wall_ms + DAY_MS;
    w.ask(c, register(1, MESSAGE, at));
    w.push(c, clear());
    w.push(c, clear());
    w.pump();
    let answers = w.take_all(c);
    assert_eq!(
        answers,
        [
            frame(&Frame::Wake(Wake::Cleared)),
            frame(&Frame::Wake(Wake::Cleared))
        ]
    );
    assert_eq!(stored(&w, &ws.minted.realm), []);

    w.store
        .down(&[Kind::Commit, Kind::Claim, Kind::Load], Fault::NotCommitted);
    w.say(c, query());
    let capability = Wake::Capability {
        enabled: true,
        register_url: URL,
    };
    assert_eq!(w.take_all(c), [frame(&Frame::Wake(capability))]);
    assert_retry(&w.ask1(c, clear()), Code::PushBackpressure);
    assert_retry(&w.ask1(c, register(1, MESSAGE, at)), Code::PushBackpressure);
    assert!(w.is_open(c));
    w.store.up();
    assert_eq!(
        w.ask1(c, register(1, MESSAGE, at)),
        Got::Registered(at),
        "nothing of the failure is left"
    );

    w.restart_with(|config| config.push = None);
    let c = w.login(&ws.founder, &[group(1)]);
    w.say(c, query());
    let off = Wake::Capability {
        enabled: false,
        register_url: "",
    };
    assert_eq!(w.take_all(c), [frame(&Frame::Wake(off))]);
    let not_configured = refused(Code::PushNotConfigured);
    assert_eq!(w.ask1(c, register(1, MESSAGE, at)), not_configured);
    assert_eq!(w.ask1(c, clear()), not_configured);
    assert_eq!(w.ask1(c, register(1, MESSAGE, 1)), refused(MALFORMED));
    assert_eq!(
        stored(&w, &ws.minted.realm),
        [1],
        "rows outlast a time with push off"
    );
    w.stored(c, group(1), b"x");
    assert_eq!(woken(&mut w), [], "no work at all");
}

/// W12.5: an unknown outcome is not guessed at: the workspace is read again, and says what became of it.
#[test]
fn an_unknown_outcome_is_read_back() {
    for (fault, kept) in [(Fault::UnknownKept, true), (Fault::UnknownLost, false)] {
        let (mut w, ws, c) = founded(&[]);
        let at = w.now.wall_ms + DAY_MS;
        w.store.fail_next(Kind::Commit, fault);
        let got = w.ask(c, register(1, MESSAGE, at));
        assert_retry(&got[0], Code::PushBackpressure);
        assert_retry(&got[1], Code::Failover);
        assert!(!w.is_open(c));
        let writer = w.login(&ws.recovery, &[group(1)]);
        w.stored(writer, group(1), b"x");
        let want: &[_] = if kept { &[(1, Category::Message)] } else { &[] };
        assert_eq!(woken(&mut w), want);
    }
}

/// W12.7: what becomes durable after its workspace was given up is acknowledged, and wakes; not if the workspace can't be
/// read again (12 §5).
#[test]
fn what_is_stored_wakes_though_its_workspace_was_given_up() {
    for (is_read, want) in [(true, &[(1, Category::Message)][..]), (false, &[])] {
        let member = Device::new(5);
        let (mut w, ws, c) = founded(&[&member]);
        registered(&mut w, &member, 1, MESSAGE);
        let other = w.login(&ws.recovery, &[group(1)]);
        w.hold(Kind::Append);
        w.say(c, send(group(1), b"x"));
        let at = w.now.wall_ms + DAY_MS;
        w.store.fail_next(Kind::Commit, Fault::UnknownLost);
        let got = w.ask(other, register(2, CALL, at));
        assert_retry(&got[1], Code::Failover);
        assert_eq!(woken(&mut w), [], "nothing is stored yet");
        if !is_read {
            w.store.fail_next(Kind::Load, Fault::NotCommitted);
        }
        w.release(Kind::Append);
        assert_eq!(w.got(c)[0].ack_seq(), Some(1));
        assert_eq!(woken(&mut w), want);
        // Once: nothing of it is left for whoever comes back.
        w.advance(WINDOW_MS);
        let back = w.login(&ws.founder, &[group(1)]);
        assert_eq!(woken(&mut w), []);
        w.stored(back, group(1), b"y");
        assert_eq!(woken(&mut w), [(1, Category::Message)]);
    }
}

/// W12.6: the relay's own forms end the session, and so does any form before it is Ready.
#[test]
fn wake_is_for_ready_sessions_and_upward_forms() {
    let (mut w, _, _) = founded(&[]);
    for upward in [
        Wake::Registered { expires_at_ms: 1 },
        Wake::Cleared,
        Wake::Capability {
            enabled: false,
            register_url: "",
        },
    ] {
        let c = w.login(&Device::new(1), &[group(1)]);
        assert_eq!(
            w.ask1(c, frame(&Frame::Wake(upward))),
            refused(Code::MalformedHeader)
        );
        assert_eq!(w.closed(c), Some((CloseHow::Flush, CloseReason::Protocol)));
    }
    for early in [query(), clear(), register(1, MESSAGE, w.now.wall_ms + 1)] {
        let c = w.open();
        w.connect(c, 4, &[group(1)]);
        assert_eq!(w.ask1(c, early), refused(Code::MalformedHeader));
        assert!(!w.is_open(c));
    }
}

/// W12.7: absent devices with the bit set are woken, once for a burst, in order of their entries; neither those who are
/// connected nor those who masked it out; who never named the group is.
#[test]
fn absent_members_are_woken_once_for_a_burst() {
    let members: Vec<Device> = (10..16).map(Device::new).collect();
    let (mut w, ws, c) = founded(&members.iter().collect::<Vec<_>>());
    for (n, mask) in [(0, 7), (1, MESSAGE), (2, HANDSHAKE), (3, CALL), (4, 7)] {
        registered(&mut w, &members[n], n as u8, mask);
    }
    let stays = w.login(&members[4], &[group(1)]);
    w.fill(c, group(1), 50);
    w.stored(c, group(1), b"and one more");
    let mut want = [0, 1];
    want.sort_unstable_by_key(|n| members[usize::from(*n)].entry(&ws.salt));
    let message = |n: u8| (n, Category::Message);
    assert_eq!(woken(&mut w), want.map(message));
    assert_eq!(w.stored(c, group(1), b"and one more"), 51, "a duplicate");
    w.advance(WINDOW_MS);
    w.stored(c, group(1), b"and one more");
    assert_eq!(woken(&mut w), [], "a duplicate is no event");
    w.ask(
        c,
        send_envelope(&{
            let mut bad = envelope(group(1), b"bad").0;
            *bad.last_mut().unwrap() ^= 1;
            bad
        }),
    );
    assert_eq!(woken(&mut w), [], "a refusal neither");

    w.shaken(c, group(1), b"commit");
    let handshake = |n: u8| (n, Category::Handshake);
    let mut want = [0, 2];
    want.sort_unstable_by_key(|n| members[usize::from(*n)].entry(&ws.salt));
    assert_eq!(woken(&mut w), want.map(handshake));
    w.advance(WINDOW_MS);
    w.shaken(c, group(1), b"commit");
    assert_eq!(woken(&mut w), [], "a duplicate is no event (07 D1)");

    // Who goes away after an event is woken by the next one at once; who comes is not woken.
    w.stored(c, group(1), b"a");
    assert_eq!(woken(&mut w).len(), 2);
    w.hang_up(stays);
    let back = w.login(&members[0], &[group(1)]);
    w.stored(c, group(1), b"b");
    assert_eq!(woken(&mut w), [message(4)]);
    w.hang_up(back);
    w.advance(WINDOW_MS);
    w.stored(c, group(1), b"c");
    assert_eq!(woken(&mut w).len(), 3);
}

/// W12.7: an expired row wakes nobody.
#[test]
fn an_expired_registration_wakes_nobody() {
    let member = Device::new(5);
    let (mut w, _, c) = founded(&[&member]);
    let m = w.login(&member, &[group(1)]);
    let at = w.now.wall_ms + 10_000;
    w.ask(m, register(1, MESSAGE, at));
    w.hang_up(m);
    w.advance(9_999);
    w.stored(c, group(1), b"a");
    assert_eq!(woken(&mut w), [(1, Category::Message)]);
    w.advance(WINDOW_MS);
    w.stored(c, group(1), b"b");
    assert_eq!(woken(&mut w), []);
}

/// W12.7, W05.23: the set that drops an entry deletes its row in the same commit, or not at all; its handle is free
/// then, and being a member again does not bring it back.
#[test]
fn a_removal_takes_the_registration_with_it() {
    let (a, b) = (Device::new(5), Device::new(6));
    let (mut w, mut ws, c) = founded(&[&a, &b]);
    registered(&mut w, &a, 1, MESSAGE);
    registered(&mut w, &b, 2, MESSAGE);
    let without = ws.removing(&[&a]).by(&ws.founder);
    w.store.fail_next(Kind::Commit, Fault::NotCommitted);
    assert_retry(&w.publish(c, &without), Code::Backpressure);
    assert_eq!(stored(&w, &ws.minted.realm), [1, 2]);
    w.hold(Kind::Commit);
    w.push(c, access(&without.encode()));
    w.pump();
    assert_eq!(w.waiting(Kind::Commit), 1);
    w.release(Kind::Commit);
    assert_eq!(w.got(c), [Got::Access(without.digest().0.to_vec())]);
    ws.head = without;
    assert_eq!(stored(&w, &ws.minted.realm), [2]);
    w.stored(c, group(1), b"x");
    assert_eq!(woken(&mut w), [(2, Category::Message)]);
    let again = ws.adding(&[&a]).by(&ws.founder);
    w.accept(c, &mut ws, again);
    w.advance(WINDOW_MS);
    w.stored(c, group(1), b"y");
    assert_eq!(woken(&mut w), [(2, Category::Message)]);
    registered(&mut w, &b, 1, MESSAGE);
    assert_eq!(stored(&w, &ws.minted.realm), [1]);
}

/// A registration that waits behind the set that drops its device comes to nothing.
#[test]
fn a_removed_device_registers_nothing() {
    let member = Device::new(5);
    let (mut w, ws, c) = founded(&[&member]);
    let m = w.login(&member, &[group(1)]);
    let without = ws.removing(&[&member]).by(&ws.founder);
    w.hold(Kind::Commit);
    w.say(c, access(&without.encode()));
    w.say(m, register(1, MESSAGE, w.now.wall_ms + DAY_MS));
    w.release(Kind::Commit);
    assert_eq!(w.closed(m), Some((CloseHow::Evict, CloseReason::Evicted)));
    assert_eq!(w.take_all(m), [] as [Bytes; 0]);
    assert_eq!(stored(&w, &ws.minted.realm), []);
}

/// W12.7: a device admitted by a grant may register, and is woken once a set contains it (12 §4).
#[test]
fn a_provisional_device_is_woken_once_it_is_in_the_set() {
    let guest = Device::new(7);
    let (mut w, mut ws, c) = founded(&[]);
    w.hang_up(c);
    // As a redeemed invite leaves it: [expires, null, null].
    let mut value = vec![0x83, 0x1b];
    value.extend_from_slice(&(w.now.wall_ms + DAY_MS).to_be_bytes());
    value.extend_from_slice(&[0xf6, 0xf6]);
    let key = [&b"grant/"[..], &guest.entry(&ws.salt).0].concat();
    w.commit_behind(&ws.minted.realm, put(key, value));
    w.restart();
    registered(&mut w, &guest, 1, MESSAGE);
    let c = w.login(&ws.founder, &[group(1)]);
    w.stored(c, group(1), b"a");
    assert_eq!(woken(&mut w), []);
    let with = ws.adding(&[&guest]).by(&ws.founder);
    w.accept(c, &mut ws, with);
    w.stored(c, group(1), b"b");
    assert_eq!(woken(&mut w), [(1, Category::Message)]);
}

fn put(key: Vec<u8>, value: Vec<u8>) -> drover_storage::control::ControlBatch {
    drover_storage::control::ControlBatch {
        writes: vec![drover_storage::control::Write {
            key,
            value: Some(value.into()),
        }],
        ..Default::default()
    }
}

/// Traffic of one workspace wakes nobody of another.
#[test]
fn workspaces_do_not_wake_each_other() {
    let member = Device::new(5);
    let (mut w, _, _) = founded(&[&member]);
    registered(&mut w, &member, 1, 7);
    let two = w.found_by("ws:two", &Device::new(3), &Device::new(4), &[], &[group(2)]);
    let c = w.login(&two.founder, &[group(2)]);
    w.stored(c, group(2), b"x");
    w.shaken(c, group(2), b"x");
    assert_eq!(woken(&mut w), []);
}

/// Nothing that was not made durable wakes anybody.
#[test]
fn a_failed_commit_wakes_nobody() {
    let member = Device::new(5);
    let (mut w, _, c) = founded(&[&member]);
    registered(&mut w, &member, 1, 7);
    w.hold(Kind::Append);
    w.say(c, send(group(1), b"x"));
    assert_eq!(woken(&mut w), [], "not before it is durable");
    w.fail_one(Kind::Append, Fault::NotCommitted);
    w.release(Kind::Append);
    assert_retry(&only(w.got(c)), Code::Backpressure);
    assert_eq!(woken(&mut w), []);
    w.stored(c, group(1), b"x");
    assert_eq!(woken(&mut w), [(1, Category::Message)]);
}

/// W12.9: without a window each event is told.
#[test]
fn without_a_window_each_event_is_told() {
    let member = Device::new(5);
    let mut w = World::with(config(|c| {
        c.push = Some(Push {
            register_url: URL.into(),
            coalesce_ms: 0,
        });
    }));
    let ws = w.found("ws:one", &[&member], &[group(1)]);
    registered(&mut w, &member, 1, 7);
    let c = w.login(&ws.founder, &[group(1)]);
    for n in 0..3 {
        w.stored(c, group(1), &distinct(n));
    }
    assert_eq!(woken(&mut w), [(1, Category::Message); 3]);
}

/// W12.10: a handle the ringer does not know is deleted, wherever its workspace lives and whether it is in memory; any
/// other, and one that moved meanwhile, stays.
#[test]
fn a_handle_the_ringer_does_not_know_goes() {
    let member = Device::new(5);
    let mut w = World::with(Config {
        shards: 2,
        ..with_push()
    });
    let ws = w.found("ws:one", &[&member], &[group(1)]);
    let realm = ws.minted.realm.clone();
    registered(&mut w, &member, 1, 7);
    registered(&mut w, &ws.founder, 2, 7);
    let forget = |w: &mut World, n: u8| {
        let (shard, message) = ShardMessage::forget_handle(realm.clone(), WakeHandle(handle(n)), 2);
        assert_eq!(shard, Directory::shard_of(&realm, 2));
        w.post(shard, message);
        w.pump();
    };
    forget(&mut w, 9);
    assert_eq!(stored(&w, &realm), [1, 2]);
    forget(&mut w, 1);
    assert_eq!(stored(&w, &realm), [2]);
    registered(&mut w, &member, 3, 7);
    w.restart();
    forget(&mut w, 2);
    assert_eq!(stored(&w, &realm), [3]);
    w.store.fail_next(Kind::Commit, Fault::NotCommitted);
    forget(&mut w, 3);
    assert_eq!(stored(&w, &realm), [3], "a failure leaves it for the next time");
}

/// decisions.md 27: registering is served in maintenance.
#[test]
fn read_only_still_registers() {
    let (mut w, ws, _) = founded(&[]);
    w.restart_with(|config| config.read_only = true);
    let c = w.login(&ws.founder, &[group(1)]);
    let at = w.now.wall_ms + DAY_MS;
    assert_eq!(w.ask1(c, register(1, MESSAGE, at)), Got::Registered(at));
    assert_eq!(w.ask1(c, clear()), Got::Cleared);
}

/// Everything that is logged, rendered.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl tracing::field::Visit for Log {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0.lock().unwrap(), " {field}={value:?}");
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        span.record(&mut self.clone());
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, values: &tracing::span::Record<'_>) {
        values.record(&mut self.clone());
    }
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// W12.11: no log line at any level shows a handle, and the ACCESS answer is the same with and without registrations.
#[test]
fn handles_stay_out_of_logs_and_answers() {
    let log = Log::default();
    tracing::subscriber::with_default(log.clone(), || {
        let member = Device::new(5);
        let (mut w, _, c) = founded(&[&member]);
        let before = w.ask(c, access(&[]));
        registered(&mut w, &member, 0xab, 7);
        w.store.fail_next(Kind::Commit, Fault::UnknownLost);
        let m = w.login(&member, &[group(1)]);
        w.ask(m, register(0xcd, 7, w.now.wall_ms + 1));
        let c = w.login(&Device::new(1), &[group(1)]);
        w.ask(c, register(0xab, 7, w.now.wall_ms + 1));
        w.store.fail_next(Kind::Append, Fault::NotCommitted);
        w.ask(c, send(group(1), b"x"));
        w.stored(c, group(1), b"y");
        assert_eq!(woken(&mut w), [(0xab, Category::Message)]);
        assert_eq!(w.ask(c, access(&[])), before);
    });
    let log = log.0.lock().unwrap();
    assert!(log.contains("commit"), "something was logged: {log}");
    for shown in ["abab", "cdcd", "171, 171", "205, 205", "ABAB"] {
        assert!(!log.contains(shown), "{log}");
    }
}

/// Every group of a workspace wakes all of it, whoever named which.
#[test]
fn groups_of_a_workspace_share_their_registrations() {
    let member = Device::new(5);
    let (mut w, ws, c) = founded(&[&member]);
    registered(&mut w, &member, 1, 7);
    w.hang_up(c);
    let other: GroupId = group(77);
    let c = w.login(&ws.founder, &[group(1), other]);
    w.stored(c, other, b"x");
    assert_eq!(woken(&mut w), [(1, Category::Message)]);
}
