//! The collector: what has expired goes, in passes (09 §8, 13 §c.5), and what is merely old is counted (09 §9).

use crate::world::*;
use bytes::Bytes;
use drover_engine::collector::{Collected, Overdue};
use drover_engine::config::Push;
use drover_engine::shard::ShardMessage;
use drover_engine::{Config, Directory, code};
use drover_storage::RealmId;
use drover_storage::control::{ControlBatch, ControlStore, DirectoryKind, Write};
use drover_wire::error::Code;
use drover_wire::frame::{BytesListBuf, Frame, Keys, Wake};
use drover_wire::id::{Hash, PublicKey, Signature, Token, WrapTag};
use drover_wire::invite::Record;
use drover_wire::invite_admin;
use drover_wire::join;
use drover_wire::wrap::Wrap;
use std::sync::{Arc, Mutex};

const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 86_400_000;
const CODE: &str = "28T5-CY4T-QKFF";
/// Of a pass that finds nothing.
const NOTHING: Collected = Collected {
    scopes: 0,
    blobs_deleted: 0,
    bytes_released: 0,
    multipart_aborted: 0,
    push_handles_dropped: 0,
    recovery_wraps_dropped: 0,
    handoffs_dropped: 0,
    key_packages_expired: 0,
    invite_seats_released: 0,
    invites_expired: 0,
    storage_listings: 0,
    storage_listing_suppressed: false,
    retention_overdue: Overdue {
        envelopes: 0,
        workspaces: 0,
        oldest_days: 0,
    },
    steps_failed: 0,
};

/// A world whose own schedule stays out of the way.
fn quiet() -> Config {
    config(|c| {
        c.janitor_interval_ms = u64::MAX;
        c.push = Some(Push {
            register_url: "https://ringer.example/v1/handles".into(),
            coalesce_ms: 2_000,
        });
    })
}

fn founded(members: &[&Device]) -> (World, Workspace, C) {
    let mut w = World::with(quiet());
    let ws = w.found("ws:one", members, &[group(1)]);
    let c = w.login(&ws.founder.clone(), &[group(1)]);
    (w, ws, c)
}

/// Asks for a pass without waiting for its end.
fn asked(w: &mut World, listing: bool) -> Arc<Mutex<Option<Collected>>> {
    let told = Arc::new(Mutex::new(None));
    let tell = told.clone();
    let (shard, message) = ShardMessage::collect(
        listing,
        Box::new(move |collected| *tell.lock().unwrap() = Some(collected)),
    );
    w.post(shard, message);
    told
}

/// One pass, now.
#[track_caller]
fn pass(w: &mut World, listing: bool) -> Collected {
    let told = asked(w, listing);
    w.pump();
    let collected = told.lock().unwrap().take();
    collected.expect("a pass ends")
}

/// A later moment, at which sockets that were idle meanwhile are gone.
fn later(w: &mut World, ms: u64) {
    w.set_wall(w.now.wall_ms + ms);
}

fn register(w: &mut World, c: C, n: u8, ahead_ms: u64) {
    let expires_at_ms = w.now.wall_ms + ahead_ms;
    let register = Wake::Register {
        handle: [n; 16],
        categories: 1,
        expires_at_ms,
    };
    assert_eq!(
        w.ask1(c, frame(&Frame::Wake(register))),
        Got::Registered(expires_at_ms)
    );
}

/// Keys of a partition that begin so.
fn keys(w: &World, partition: &str, prefix: &[u8]) -> usize {
    let records = w.records(&RealmId(partition.into()));
    records.iter().filter(|(key, _)| key.starts_with(prefix)).count()
}

fn invite_frame(body: Vec<u8>) -> Bytes {
    frame(&Frame::Invite { body: &body })
}

/// An invite of the founder's, with a bundle of this size; as `reserve` takes it.
#[track_caller]
fn invite(w: &mut World, ws: &Workspace, c: C, n: u8, uses: u8, life_ms: u64, bundle_bytes: usize) -> Minted {
    let token = Token([n; 16]);
    let symbols = drover_wire::invite::canonical_code(CODE).unwrap();
    let record = Record {
        token,
        workspace: group(1).0,
        issuer: PublicKey([0; 32]),
        issued_at_ms: w.now.wall_ms,
        expires_ms: w.now.wall_ms + life_ms,
        uses,
        code_hash: Hash(code::hash(&symbols, &token.0).unwrap()),
        scopes: vec![group(1)],
        caps: vec![b"chat.read".to_vec()],
        update_pub: [3; 32],
        bundles: vec![(group(1), 1, vec![7; bundle_bytes])],
        sig: Signature([0; 64]),
    };
    let record = record.signed(&ws.founder.key).encode();
    let request = invite_admin::Request::Create { record: &record };
    w.say(c, invite_frame(request.encode()));
    let answer = only(w.take_all(c));
    let created = invite_admin::Response::Created { token: &token.0 }.encode();
    assert_eq!(answer, invite_frame(created));
    Minted {
        realm: ws.minted.realm.clone(),
        token,
        code: CODE.into(),
    }
}

/// Seats left, by token, of the live invites.
fn remaining(w: &mut World, c: C) -> Vec<(u8, u8)> {
    w.say(c, invite_frame(invite_admin::Request::List.encode()));
    let answer = only(w.take_all(c));
    let Ok(Frame::Invite { body }) = Frame::decode(&answer) else {
        panic!("{answer:?}")
    };
    match invite_admin::Response::decode(body) {
        Ok(invite_admin::Response::List(list)) => list.iter().map(|s| (s.token.0[0], s.remaining)).collect(),
        other => panic!("{other:?}"),
    }
}

fn tokens(w: &World) -> Vec<u8> {
    let entries = w.store.directory(DirectoryKind::Token).unwrap();
    entries.iter().map(|entry| entry.key.name[0]).collect()
}

// ---- the schedule

/// W09.11: it sleeps first, an interval and up to a tenth; the pass that comes then is no listing, the 96th is.
#[test]
fn passes_keep_their_interval() {
    const INTERVAL_MS: u64 = 10_000;
    let mut w = World::with(config(|c| c.janitor_interval_ms = INTERVAL_MS));
    w.found("ws:one", &[], &[group(1)]);
    w.restart();
    let begun_ms = w.now.mono_ms;
    let passed = |w: &World| w.metrics[0].collector_passed_ms.get();
    let mut last_ms = begun_ms;
    let mut jitters = Vec::new();
    for n in 1..=96_u64 {
        let (before, loads) = (passed(&w), w.store.calls(Kind::Load));
        w.advance(INTERVAL_MS - 1);
        assert_eq!(passed(&w), before, "pass {n} is not before its time");
        // The interval counts from the last pass.
        let mut waited_ms = INTERVAL_MS - 1;
        while passed(&w) == before {
            w.advance(1);
            waited_ms += 1;
            assert!(waited_ms < INTERVAL_MS + INTERVAL_MS / 10, "pass {n} is late");
        }
        jitters.push(waited_ms - INTERVAL_MS);
        last_ms += waited_ms;
        assert_eq!(last_ms, w.now.mono_ms);
        // The realm, and in a listing its partitions of larger values.
        let whole = w.store.calls(Kind::Load) - loads;
        assert_eq!(whole, if n == 96 { 1 + 2 } else { 1 }, "pass {n}");
    }
    jitters.dedup();
    assert!(jitters.len() > 10, "{jitters:?}");
}

/// W09.11: a pass that is asked for while one runs is another one.
#[test]
fn a_pass_that_is_asked_for_is_a_whole_one() {
    let (mut w, ..) = founded(&[]);
    w.hold(Kind::Load);
    let first = asked(&mut w, true);
    w.pump();
    let (second, third) = (asked(&mut w, false), asked(&mut w, false));
    w.pump();
    assert!(first.lock().unwrap().is_none());
    w.release_one(Kind::Load);
    assert!(first.lock().unwrap().is_none());
    w.release_one(Kind::Load);
    assert_eq!(*first.lock().unwrap(), Some(NOTHING));
    assert_eq!(*second.lock().unwrap(), Some(NOTHING));
    assert_eq!(*third.lock().unwrap(), Some(NOTHING));
    w.release(Kind::Load);
}

/// What is under way at shutdown ends, and holds nothing up.
#[test]
fn a_pass_does_not_hold_up_the_end() {
    let (mut w, _, c) = founded(&[]);
    register(&mut w, c, 1, 1);
    later(&mut w, 1);
    w.hold(Kind::Commit);
    let told = asked(&mut w, true);
    w.pump();
    w.drain();
    assert!(!w.drained(), "a commit is under way");
    w.release(Kind::Commit);
    assert!(w.drained());
    assert_eq!(told.lock().unwrap().map(|c| c.push_handles_dropped), Some(1));
    let late = asked(&mut w, true);
    w.pump();
    assert!(
        late.lock().unwrap().is_none() && Arc::strong_count(&late) == 1,
        "nobody answers any more"
    );
}

// ---- what goes

/// W09.11, 12 §4: registrations past their expiry go, with their place in the directory, also while push is off.
#[test]
fn expired_registrations_go() {
    let member = Device::new(5);
    let (mut w, ws, c) = founded(&[&member]);
    let m = w.login(&member, &[group(1)]);
    register(&mut w, c, 1, 10_000);
    register(&mut w, m, 2, 20_000);
    w.restart_with(|config| config.push = None);
    later(&mut w, 9_999);
    assert_eq!(pass(&mut w, false), NOTHING);
    later(&mut w, 1);
    let one = Collected {
        push_handles_dropped: 1,
        ..NOTHING
    };
    assert_eq!(pass(&mut w, false), one);
    assert_eq!(keys(&w, "ws:one", b"wake/"), 1);
    let handles = w.store.directory(DirectoryKind::WakeHandle).unwrap();
    assert_eq!(only(handles).key.name, [2; 16]);
    assert_eq!(pass(&mut w, false), NOTHING);
    assert_eq!(w.metrics[0].collected_handles.get(), 1);
    w.restart_with(|config| *config = quiet());
    let c = w.login(&ws.founder, &[group(1)]);
    register(&mut w, c, 1, DAY_MS);
}

/// More than one commit takes goes all the same.
#[test]
fn many_go_in_several_commits() {
    let (mut w, ws, c) = founded(&[]);
    w.hang_up(c);
    for part in 0..3_u32 {
        let rows = (0..500_u32).map(|n| {
            let name = Hash::of(&[&part.to_be_bytes(), &n.to_be_bytes()]);
            // [handle, categories, expires, updated]
            let value = [&[0x84, 0x50][..], &name.0[..16], &[1, 1, 1]].concat();
            Write {
                key: [&b"wake/"[..], &name.0].concat(),
                value: Some(value.into()),
            }
        });
        let batch = ControlBatch {
            writes: rows.collect(),
            ..ControlBatch::default()
        };
        w.commit_behind(&ws.minted.realm, batch);
    }
    w.restart();
    let commits = w.store.calls(Kind::Commit);
    assert_eq!(pass(&mut w, false).push_handles_dropped, 1_500);
    assert!(w.store.calls(Kind::Commit) - commits >= 3);
    assert_eq!(keys(&w, "ws:one", b"wake/"), 0);
}

/// W06.10: lapsed reservations give their seats back, never more than the invite has, also to one whose last minutes are
/// shorter than a reservation; with them the device's place is gone, and another may take it.
#[test]
fn lapsed_reservations_give_their_seats_back() {
    let (mut w, ws, c) = founded(&[]);
    let m = invite(&mut w, &ws, c, 1, 2, 60 * MINUTE_MS, 10);
    let short = invite(&mut w, &ws, c, 2, 1, 2 * MINUTE_MS, 10);
    let j = w.open();
    for (n, invite) in [(1, &m), (2, &m), (3, &short)] {
        assert!(matches!(
            w.reserve(j, invite, CODE, [n; 16], &Device::new(20 + u64::from(n))),
            Got::Join(_)
        ));
    }
    assert_eq!(remaining(&mut w, c), [(1, 0), (2, 0)]);
    later(&mut w, 2 * MINUTE_MS - 1);
    assert_eq!(pass(&mut w, false), NOTHING);
    later(&mut w, 1);
    let got = pass(&mut w, false);
    assert_eq!(
        (got.invite_seats_released, got.invites_expired),
        (1, 1),
        "it lapsed with its invite"
    );
    later(&mut w, 8 * MINUTE_MS);
    let got = pass(&mut w, false);
    assert_eq!((got.invite_seats_released, got.invites_expired), (2, 0));
    assert_eq!(remaining(&mut w, c), [(1, 2)]);
    assert_eq!(pass(&mut w, false), NOTHING, "each seat comes back once");
    w.restart();
    let c = w.login(&ws.founder, &[group(1)]);
    assert_eq!(remaining(&mut w, c), [(1, 2)]);
    let j = w.open();
    for n in [4, 5] {
        assert!(matches!(
            w.reserve(j, &m, CODE, [n; 16], &Device::new(20 + u64::from(n))),
            Got::Join(_)
        ));
    }
    assert_eq!(
        w.reserve(j, &m, CODE, [6; 16], &Device::new(26)),
        refused(Code::SeatsExhausted)
    );
}

/// 06 §10: the founder's seat comes back as well, and another device may found.
#[test]
fn a_founders_lapsed_seat_comes_back() {
    let mut w = World::with(quiet());
    let m = w.mint("ws:one");
    let (c, late, next) = (w.open(), Device::new(1), Device::new(2));
    assert!(matches!(w.reserve(c, &m, &m.code, [1; 16], &late), Got::Join(_)));
    later(&mut w, 10 * MINUTE_MS);
    assert_eq!(pass(&mut w, false).invite_seats_released, 1);
    assert!(!w.admits(&late, &[]));
    assert!(matches!(w.reserve(c, &m, &m.code, [2; 16], &next), Got::Join(_)));
    assert!(w.admits(&next, &[]));
    // A bootstrap invite that nobody took stays what it is, spent: none is minted again.
    later(&mut w, 2 * DAY_MS);
    assert_eq!(pass(&mut w, false).invites_expired, 1);
    assert_eq!(pass(&mut w, false), NOTHING);
    assert_eq!(keys(&w, "ws:one", b"invite/"), 1);
    assert!(w.try_mint("ws:one", true).is_none());
}

/// 06 §10: the sealed bootstrap invite goes with its day.
#[test]
fn an_expired_handoff_goes() {
    let mut w = World::with(quiet());
    let m = w.mint("ws:one");
    // [link, code, fingerprint, expires, recipient]
    let mut value = b"\x85\x61l\x61c\x61f\x1b".to_vec();
    value.extend_from_slice(&(w.now.wall_ms + DAY_MS).to_be_bytes());
    value.extend_from_slice(&[0x58, 0x20]);
    value.extend_from_slice(&[9; 32]);
    let batch = ControlBatch {
        writes: vec![Write {
            key: b"handoff".to_vec(),
            value: Some(value.into()),
        }],
        ..ControlBatch::default()
    };
    w.commit_behind(&m.realm, batch);
    w.restart();
    w.pump();
    assert!(w.directory.handoff(&m.realm).is_some());
    later(&mut w, DAY_MS - 1);
    assert_eq!(pass(&mut w, false), NOTHING);
    later(&mut w, 1);
    let got = pass(&mut w, false);
    assert_eq!((got.handoffs_dropped, got.invites_expired), (1, 1));
    assert!(w.directory.handoff(&m.realm).is_none());
    assert_eq!(keys(&w, "ws:one", b"handoff"), 0);
    assert_eq!(pass(&mut w, false), NOTHING);
}

/// Maintenance writes nothing of its own accord; counting goes on.
#[test]
fn under_maintenance_a_pass_only_counts() {
    let (mut w, _, c) = founded(&[]);
    register(&mut w, c, 1, 1);
    w.stored(c, group(1), b"x");
    later(&mut w, 3 * DAY_MS);
    w.restart_with(|config| (config.read_only, config.retention_days) = (true, Some(2)));
    let commits = w.store.calls(Kind::Commit);
    let got = pass(&mut w, true);
    let overdue = got.retention_overdue;
    assert_eq!(
        (overdue.envelopes, overdue.workspaces, overdue.oldest_days),
        (1, 1, 3)
    );
    assert_eq!(
        Collected {
            retention_overdue: NOTHING.retention_overdue,
            ..got
        },
        NOTHING
    );
    assert_eq!(w.store.calls(Kind::Commit), commits);
    w.restart_with(|config| config.read_only = false);
    assert_eq!(pass(&mut w, false).push_handles_dropped, 1);
}

/// W06.14: an expired invite answers nothing; the sweep ends it and deletes its record and bundles.
#[test]
fn expired_invites_end() {
    let (mut w, ws, c) = founded(&[]);
    let m = invite(&mut w, &ws, c, 1, 1, 60 * MINUTE_MS, 9_000);
    let refresh = invite_admin::Request::Refresh {
        token: &m.token.0,
        group: &group(1).0,
        epoch: 2,
        ct: b"newer",
    };
    w.ask(c, invite_frame(refresh.encode()));
    assert_eq!(keys(&w, "ws:one/invites", b""), 2, "a record and a bundle");
    let j = w.open();
    w.reserve(j, &m, CODE, [1; 16], &Device::new(21));
    later(&mut w, 60 * MINUTE_MS);
    let record = join::Request::Record { token: &m.token.0 };
    assert_eq!(w.ask1(j, join(&record)), Got::Join(vec![0x82, 3, 0x40]));
    let bundles = join::Request::Bundles {
        token: &m.token.0,
        group: &group(1).0,
    };
    assert_eq!(w.ask1(j, join(&bundles)), Got::Join(vec![0x82, 1, 0x80]));
    let commit = join::Request::Commit {
        token: &m.token.0,
        nonce: &[1; 16],
        device: &Device::new(21).public().0,
        group: &group(1).0,
    };
    assert_eq!(w.ask1(j, join(&commit)), refused(Code::SeatsExhausted));
    let got = pass(&mut w, false);
    assert_eq!((got.invites_expired, got.invite_seats_released), (1, 1));
    assert_eq!(keys(&w, "ws:one/invites", b""), 0);
    assert_eq!(w.metrics[0].collected_invites.get(), 1);
}

/// 06 D10: an ended invite goes once it is past its end and none of its devices has a live grant; until then its
/// revocation still means something. Afterwards nothing is left of it, and its token is free.
#[test]
fn tombstones_go_when_they_decide_nothing() {
    let (mut w, ws, c) = founded(&[]);
    let revoked = invite(&mut w, &ws, c, 1, 1, 60 * MINUTE_MS, 10);
    let earned = invite(&mut w, &ws, c, 2, 1, 60 * MINUTE_MS, 10);
    let longer = invite(&mut w, &ws, c, 3, 1, 120 * MINUTE_MS, 10);
    let (j, device) = (w.open(), Device::new(21));
    w.reserve(j, &revoked, CODE, [1; 16], &Device::new(22));
    w.reserve(j, &earned, CODE, [1; 16], &device);
    w.reserve(j, &longer, CODE, [1; 16], &device);
    // A wrong code leaves an attempt.
    w.reserve(j, &longer, "0000-0000-0000", [9; 16], &Device::new(29));
    for invite in [&earned, &longer] {
        let commit = join::Request::Commit {
            token: &invite.token.0,
            nonce: &[1; 16],
            device: &device.public().0,
            group: &group(1).0,
        };
        assert!(matches!(w.ask1(j, join(&commit)), Got::Join(_)));
    }
    w.ask(
        c,
        invite_frame(
            invite_admin::Request::Revoke {
                token: &revoked.token.0,
            }
            .encode(),
        ),
    );
    let live = |w: &World| keys(w, "ws:one", b"invite/") - 1; // but for the relay's own
    later(&mut w, 60 * MINUTE_MS - 1);
    pass(&mut w, false);
    assert_eq!((live(&w), tokens(&w).len()), (3, 4));
    assert_eq!(keys(&w, "ws:one", b"attempt/"), 0, "idle ones have gone");
    later(&mut w, 1);
    pass(&mut w, false);
    assert_eq!(
        (live(&w), keys(&w, "ws:one", b"seat/\x01")),
        (2, 0),
        "the revoked one"
    );
    assert!(!tokens(&w).contains(&1));
    // The device of the spent one has a grant of the longer one: revoking it would still cut that off.
    later(&mut w, 60 * MINUTE_MS);
    pass(&mut w, false);
    assert_eq!((live(&w), tokens(&w).len()), (0, 1));
    for prefix in [&b"seat/\x02"[..], b"seat/\x03", b"commit/", b"attempt/"] {
        assert_eq!(keys(&w, "ws:one", prefix), 0);
    }
    // The grant of the revoked one's device stays void, and stays stored.
    assert_eq!(
        w.reserve(j, &revoked, CODE, [2; 16], &Device::new(22)),
        refused(Code::SeatsExhausted)
    );
    let c = w.login(&ws.founder, &[group(1)]);
    let again = invite(&mut w, &ws, c, 1, 1, 60 * MINUTE_MS, 10);
    assert_eq!(
        w.reserve(j, &again, CODE, [3; 16], &Device::new(22)),
        refused(Code::SeatsExhausted)
    );
    assert!(matches!(
        w.reserve(j, &again, CODE, [4; 16], &Device::new(23)),
        Got::Join(_)
    ));
}

/// 06 §6: wrong codes are remembered as long as they count, and no longer.
#[test]
fn idle_attempts_go() {
    let (mut w, ws, c) = founded(&[]);
    let m = invite(&mut w, &ws, c, 1, 1, DAY_MS, 10);
    let j = w.open();
    for n in 0..5 {
        w.reserve(j, &m, "0000-0000-0000", [n; 16], &Device::new(21));
    }
    later(&mut w, 15 * MINUTE_MS - 1);
    pass(&mut w, false);
    assert_eq!(keys(&w, "ws:one", b"attempt/\x01"), 1);
    assert_eq!(
        w.reserve(j, &m, CODE, [9; 16], &Device::new(21)),
        refused(Code::SeatsExhausted),
        "cooling down"
    );
    later(&mut w, 1);
    pass(&mut w, false);
    assert_eq!(keys(&w, "ws:one", b"attempt/\x01"), 0);
    assert!(matches!(
        w.reserve(j, &m, CODE, [9; 16], &Device::new(21)),
        Got::Join(_)
    ));
}

fn publish(packages: &[&[u8]]) -> Bytes {
    let list: BytesListBuf = packages.iter().copied().collect();
    frame(&Frame::Keys(Keys::Publish {
        packages: list.as_list(),
    }))
}

fn fetched(message: &Bytes) -> Vec<Vec<u8>> {
    match Frame::decode(message) {
        Ok(Frame::Keys(Keys::Bundles { packages })) => packages.iter().map(<[u8]>::to_vec).collect(),
        Ok(Frame::Keys(Keys::None)) => Vec::new(),
        other => panic!("{other:?}"),
    }
}

/// W07.7: packages past their 90 days go, and only they.
#[test]
fn expired_key_packages_go() {
    let (mut w, ws, c) = founded(&[]);
    w.ask(c, publish(&[b"a", b"b"]));
    later(&mut w, DAY_MS);
    w.ask(c, publish(&[b"c"]));
    later(&mut w, 89 * DAY_MS - 1);
    assert_eq!(pass(&mut w, false), NOTHING);
    later(&mut w, 1);
    let two = Collected {
        key_packages_expired: 2,
        ..NOTHING
    };
    assert_eq!(pass(&mut w, false), two);
    assert_eq!(keys(&w, "ws:one/packages", b""), 1);
    w.restart();
    let c = w.login(&ws.founder, &[group(1)]);
    w.say(c, keys_fetch(ws.founder.public(), 8));
    assert_eq!(fetched(&only(w.take_all(c))), [b"c"]);
    assert_eq!(pass(&mut w, true), NOTHING);
}

/// Packages that are on no shelf go with a listing; those that a fetch has under way may come back to their shelf, and
/// stay.
#[test]
fn stray_packages_go_and_taken_ones_stay() {
    let member = Device::new(5);
    let (mut w, ws, c) = founded(&[&member]);
    w.ask(c, publish(&[b"a", b"b", b"c"]));
    let shelf = Hash::of(&[&ws.founder.public().0]);
    let stray = Write {
        key: [&shelf.0[..], &99_u64.to_be_bytes()].concat(),
        value: Some(Bytes::from_static(b"stray")),
    };
    let batch = ControlBatch {
        writes: vec![stray],
        ..ControlBatch::default()
    };
    w.commit_behind(&RealmId("ws:one/packages".into()), batch);
    // A fetch whose packages are being read.
    let m = w.login(&member, &[group(1)]);
    w.hold(Kind::Get);
    w.say(m, keys_fetch(ws.founder.public(), 2));
    assert_eq!(pass(&mut w, true), NOTHING);
    assert_eq!(keys(&w, "ws:one/packages", b""), 3, "the stray one is gone");
    w.hang_up(m);
    w.release(Kind::Get);
    // It was never delivered: its packages are back, and whole.
    let m = w.login(&member, &[group(1)]);
    w.say(m, keys_fetch(ws.founder.public(), 8));
    let mut got = fetched(&only(w.take_all(m)));
    got.sort();
    assert_eq!(got, [b"a", b"b", b"c"]);
    assert_eq!(pass(&mut w, false), NOTHING);
    assert_eq!(keys(&w, "ws:one/packages", b""), 0);
}

fn wrap(n: u8, epoch: u64, ct: &[u8]) -> Bytes {
    let wrap = Wrap {
        group: group(1),
        epoch,
        tag: WrapTag([n; 32]),
        ct,
    };
    frame(&Frame::Wrap { body: &wrap.encode() })
}

/// W07.12: a superseded wrap goes 30 days after it was superseded, on a listing pass; the current one stays.
#[test]
fn prior_wraps_go_after_30_days() {
    let (mut w, _, c) = founded(&[]);
    w.ask(c, wrap(1, 1, b"old-secret-one"));
    w.ask(c, wrap(1, 2, b"new-secret-one"));
    w.ask(c, wrap(2, 1, b"only-secret-two"));
    let held = |w: &World, what: &[u8]| {
        let records = w.records(&RealmId("ws:one/wraps".into()));
        records
            .iter()
            .any(|(_, value)| value.windows(what.len()).any(|part| part == what))
    };
    later(&mut w, 30 * DAY_MS - 1);
    assert_eq!(pass(&mut w, true), NOTHING);
    assert!(held(&w, b"old-secret-one"));
    later(&mut w, 1);
    assert_eq!(pass(&mut w, false), NOTHING, "only a listing looks at them");
    let one = Collected {
        recovery_wraps_dropped: 1,
        ..NOTHING
    };
    assert_eq!(pass(&mut w, true), one);
    assert!(!held(&w, b"old-secret-one") && held(&w, b"new-secret-one") && held(&w, b"only-secret-two"));
    assert_eq!(pass(&mut w, true), NOTHING);
    let c = w.login(&Device::new(1), &[group(1)]);
    assert_eq!(w.ask1(c, wrap(1, 2, b"x")), limited(Code::WrapNotNewer, 0, 2));
}

// ---- failures

/// W09.11: a step that fails takes no other with it, and is made up for by the next pass.
#[test]
fn each_step_fails_alone() {
    let (mut w, ws, c) = founded(&[]);
    let m = invite(&mut w, &ws, c, 1, 1, 5 * MINUTE_MS, 10);
    let j = w.open();
    w.reserve(j, &m, CODE, [1; 16], &Device::new(21));
    register(&mut w, c, 1, 1);
    w.ask(c, publish(&[b"a"]));
    w.ask(c, wrap(1, 1, b"x"));
    later(&mut w, 91 * DAY_MS);
    // The first commit is that of the registrations.
    w.store.fail_next(Kind::Commit, Fault::NotCommitted);
    w.store.fail_next(Kind::Load, Fault::NotCommitted);
    let got = pass(&mut w, true);
    let expected = Collected {
        key_packages_expired: 1,
        invite_seats_released: 1,
        invites_expired: 1,
        steps_failed: 2,
        ..NOTHING
    };
    assert_eq!(got, expected);
    assert_eq!(w.metrics[0].collector_passed_ms.get(), 0, "no success");
    let got = pass(&mut w, true);
    let expected = Collected {
        push_handles_dropped: 1,
        ..NOTHING
    };
    assert_eq!(got, expected);
    assert_eq!(w.metrics[0].collector_passed_ms.get(), w.now.wall_ms);
}

/// A commit whose outcome is unknown gives the realm up, as any other; the pass goes on with the next realm.
#[test]
fn an_unknown_outcome_ends_one_realm_only() {
    let mut w = World::with(quiet());
    let mut realms = Vec::new();
    for (n, name) in (0..).zip(["ws:a", "ws:b", "ws:c"]) {
        let (founder, recovery) = (Device::new(40 + n), Device::new(50 + n));
        let ws = w.found_by(name, &founder, &recovery, &[], &[group(n)]);
        let c = w.login(&founder, &[group(n)]);
        register(&mut w, c, n as u8, 1);
        realms.push((ws, c));
    }
    later(&mut w, 1);
    w.store.fail_next(Kind::Commit, Fault::UnknownKept);
    let got = pass(&mut w, false);
    assert_eq!((got.push_handles_dropped, got.steps_failed), (2, 1));
    let open = realms.iter().filter(|(_, c)| w.is_open(*c)).count();
    assert_eq!(open, 2, "who was connected to the one comes again");
    assert_eq!(pass(&mut w, false), NOTHING, "it had happened");
    w.store.down(&[Kind::Load], Fault::NotCommitted);
    w.restart();
    let got = pass(&mut w, false);
    assert_eq!(got.steps_failed, 3, "none of them can be read");
    w.store.up();
    assert_eq!(pass(&mut w, false), NOTHING);
}

/// A realm that is given up by a failed append while its sweep waits for the store does not end the pass.
#[test]
fn a_realm_given_up_meanwhile_does_not_stop_the_pass() {
    for kind in [Kind::Commit, Kind::Load] {
        let (mut w, _, c) = founded(&[]);
        register(&mut w, c, 1, 1);
        later(&mut w, 1);
        w.hold(kind);
        w.hold(Kind::Append);
        let told = asked(&mut w, true);
        w.pump();
        if kind == Kind::Load {
            assert_eq!(w.waiting(kind), 1);
        }
        w.say(c, send(group(1), b"x"));
        w.fail_one(Kind::Append, Fault::UnknownLost);
        w.release(Kind::Append);
        assert!(told.lock().unwrap().is_none());
        w.release(kind);
        let got = told.lock().unwrap().take().expect("the pass ends");
        assert_eq!(got.steps_failed, 1);
        let got = pass(&mut w, true);
        assert_eq!(got.steps_failed, 0);
        assert_eq!(keys(&w, "ws:one", b"wake/"), 0);
    }
}

// ---- where realms are

/// Realms that nobody uses are swept as well, one after another, and leave memory again; those that somebody came to
/// meanwhile stay.
#[test]
fn realms_out_of_memory_are_swept_and_leave_again() {
    for shards in [1, 2] {
        let mut w = World::with(Config { shards, ..quiet() });
        for n in 0..6_u64 {
            let founder = Device::new(40 + n);
            w.found_by(
                &format!("ws:{n}"),
                &founder,
                &Device::new(50 + n),
                &[],
                &[group(n)],
            );
            let c = w.login(&founder, &[group(n)]);
            register(&mut w, c, n as u8, 1);
        }
        if shards == 2 {
            let shard = |n: u64| Directory::shard_of(&RealmId(format!("ws:{n}").into()), 2);
            assert!((0..6).any(|n| shard(n) == 0) && (0..6).any(|n| shard(n) == 1));
        }
        w.restart();
        let stays = w.login(&Device::new(40), &[group(0)]);
        later(&mut w, 1);
        let loads = w.store.calls(Kind::Usage);
        assert_eq!(pass(&mut w, false).push_handles_dropped, 6);
        assert_eq!(w.store.calls(Kind::Usage) - loads, 5, "each is loaded once");
        assert!(w.is_open(stays));
        let loads = w.store.calls(Kind::Usage);
        assert_eq!(pass(&mut w, false), NOTHING);
        assert_eq!(
            w.store.calls(Kind::Usage) - loads,
            5,
            "and none of them has stayed"
        );
        w.stored(stays, group(0), b"x");
        // One is asked for while it is being swept: it stays, and so does what is done in it.
        w.hold(Kind::Usage);
        let told = asked(&mut w, false);
        w.pump();
        let c = w.open();
        let challenge = w.connect(c, 4, &[group(1)]);
        w.push(c, Device::new(41).auth(&challenge));
        w.release(Kind::Usage);
        assert_eq!(*told.lock().unwrap(), Some(NOTHING));
        assert!(matches!(w.got(c)[..], [Got::AuthAck { .. }]));
        assert_eq!(w.stored(c, group(1), b"y"), 1);
        let used: u64 = w.metrics.iter().map(|m| m.log_bytes.get()).sum();
        assert_eq!(used, 2, "bytes are counted for what is in memory");
        pass(&mut w, false);
        assert_eq!(w.stored(c, group(1), b"z"), 2);
    }
}

// ---- the retention notice

/// W09.12: envelopes past the window are counted, over all groups and workspaces, and none is deleted.
#[test]
fn overdue_envelopes_are_counted_and_kept() {
    for shards in [1, 2] {
        let mut w = World::with(Config {
            shards,
            retention_days: Some(2),
            ..quiet()
        });
        let (a, b) = (Device::new(40), Device::new(41));
        w.found_by("ws:0", &a, &Device::new(50), &[], &[group(1), group(2), group(3)]);
        w.found_by("ws:1", &b, &Device::new(51), &[], &[group(4)]);
        w.found_by("ws:2", &Device::new(42), &Device::new(52), &[], &[group(5)]);
        let c = w.login(&a, &[group(1), group(2), group(3)]);
        w.fill(c, group(1), 37);
        later(&mut w, DAY_MS);
        w.fill(c, group(2), 1);
        let d = w.login(&b, &[group(4)]);
        w.fill(d, group(4), 8);
        for n in 100..120 {
            w.stored(c, group(1), &distinct(n));
        }
        later(&mut w, DAY_MS);
        assert_eq!(pass(&mut w, false), NOTHING, "two days to the millisecond");
        later(&mut w, 1);
        let overdue = |envelopes, workspaces, oldest_days| Overdue {
            envelopes,
            workspaces,
            oldest_days,
        };
        assert_eq!(pass(&mut w, false).retention_overdue, overdue(37, 1, 2));
        later(&mut w, DAY_MS);
        w.fill(d, group(4), 9); // one of them new
        let (reads, seqs) = (w.store.calls(Kind::Read), w.store.calls(Kind::ReadSeqs));
        assert_eq!(
            pass(&mut w, false).retention_overdue,
            overdue(37 + 20 + 1 + 8, 2, 3)
        );
        assert_eq!(w.store.calls(Kind::Read) - reads, 5, "one look into each group");
        assert!(
            w.store.calls(Kind::ReadSeqs) - seqs < 15,
            "and a search in those that have any"
        );
        assert_eq!(
            pass(&mut w, false).retention_overdue.envelopes,
            66,
            "nothing is deleted"
        );
        let c = w.login(&a, &[group(1)]);
        assert_eq!(w.subscribe(c, group(1), 0).len(), 58);
    }
}

/// W09.12: without a window there is nothing to count, and a clock younger than the window counts nothing; a failure
/// reports zeros.
#[test]
fn no_window_and_no_answer_count_nothing() {
    let (mut w, ws, c) = founded(&[]);
    w.stored(c, group(1), b"x");
    later(&mut w, 3_000 * DAY_MS);
    assert_eq!(pass(&mut w, false), NOTHING);
    w.restart_with(|config| config.retention_days = Some(30_000));
    assert_eq!(pass(&mut w, false), NOTHING);
    w.restart_with(|config| config.retention_days = Some(u64::MAX));
    assert_eq!(pass(&mut w, false), NOTHING);
    w.restart_with(|config| config.retention_days = Some(1));
    let overdue = Overdue {
        envelopes: 1,
        workspaces: 1,
        oldest_days: 3_000,
    };
    assert_eq!(pass(&mut w, false).retention_overdue, overdue);
    for kind in [Kind::Read, Kind::Index] {
        w.store.fail_next(kind, Fault::NotCommitted);
        let failed = Collected {
            steps_failed: 1,
            ..NOTHING
        };
        assert_eq!(pass(&mut w, false), failed);
    }
    let c = w.login(&ws.founder, &[group(1)]);
    assert_eq!(w.stored(c, group(1), b"x"), 1, "it is all there");
}
