//! JOIN and the bootstrap invite: seats, codes, budgets, genesis (06 §4 to §13).

use crate::world::*;
use drover_engine::bootstrap::Handoff;
use drover_engine::inspect::TransparencyLog;
use drover_wire::error::Code;
use drover_wire::invite::Record;
use drover_wire::join::{Request, Response};

const GENERIC: &[u8] = &[
    0x82, 0x0f, 0x84, 0x45, b'q', b'u', b'o', b't', b'a', 0x4f, b's', b'e', b'a', b't', b's', b'_', b'e',
    b'x', b'h', b'a', b'u', b's', b't', b'e', b'd', 0, 0x40,
];

fn minted() -> (World, Minted) {
    let mut w = World::new();
    let minted = w.mint("ws:one");
    (w, minted)
}

fn reserved(got: &Got) -> u64 {
    let Got::Join(body) = got else { panic!("{got:?}") };
    match Response::decode(0, body) {
        Some(Response::Reserved { expires_at_ms }) => expires_at_ms,
        other => panic!("{other:?}"),
    }
}

/// A well-formed code that is not the invite's.
fn wrong(minted: &Minted) -> String {
    let other = if minted.code.starts_with('0') { '1' } else { '0' };
    format!("{other}{}", &minted.code[1..])
}

/// W06.2: a seat for the right code, and the same answer without another seat for the same nonce; the scopeless invite
/// has no bundles and nothing to commit.
#[test]
fn reserve_is_idempotent_per_nonce() {
    let (mut w, m) = minted();
    let (c, device) = (w.open(), Device::new(1));
    let first = w.reserve(c, &m, &m.code, [1; 16], &device);
    assert_eq!(reserved(&first), EPOCH_MS + 600_000);
    w.set_wall(EPOCH_MS + 1_000);
    let sloppy = m
        .code
        .to_lowercase()
        .replace('-', " ")
        .replace('1', "l")
        .replace('0', "o");
    assert_eq!(w.reserve(c, &m, &sloppy, [1; 16], &device), first);
    assert_eq!(
        w.reserve(c, &m, &m.code, [2; 16], &device),
        refused(Code::SeatsExhausted)
    );
    let bundles = Request::Bundles {
        token: &m.token.0,
        group: &group(1).0,
    };
    assert_eq!(w.ask1(c, join(&bundles)), Got::Join(vec![0x82, 1, 0x80]));
    let commit = Request::Commit {
        token: &m.token.0,
        nonce: &[1; 16],
        device: &device.public().0,
        group: &group(1).0,
    };
    assert_eq!(w.ask1(c, join(&commit)), refused(Code::SeatsExhausted));
}

/// W06.3: a seat can be taken before CONNECT and before AUTH, and AUTH then admits the device without an entry.
#[test]
fn seat_taken_before_auth_admits() {
    for connect_first in [false, true] {
        let (mut w, m) = minted();
        let (c, device) = (w.open(), Device::new(1));
        let mut challenge = Vec::new();
        if connect_first {
            challenge = w.connect(c, 4, &[]);
        }
        reserved(&w.reserve(c, &m, &m.code, [1; 16], &device));
        if !connect_first {
            challenge = w.connect(c, 4, &[]);
        }
        assert!(matches!(w.ask1(c, device.auth(&challenge)), Got::AuthAck { .. }));
        assert_eq!(w.state(c).head, None);
    }
}

/// W06.4: every "no" is byte for byte the same, and leaves the socket and the invite alone. W04.12, W06.26
#[test]
fn every_no_is_the_same() {
    let (mut w, m) = minted();
    let device = Device::new(1).public().0;
    let (token, code, nonce) = (&m.token.0[..], m.code.as_str(), &[1u8; 16][..]);
    let wrong = wrong(&m);
    let reserve = |token, code, nonce, device| {
        Request::Reserve {
            token,
            code,
            nonce,
            device,
        }
        .encode()
    };
    let commit = |token, nonce, device| {
        Request::Commit {
            token,
            nonce,
            device,
            group: &[0; 32],
        }
        .encode()
    };
    let good = reserve(token, code, nonce, &device);
    let mut bad_utf8 = good.clone();
    let at = good
        .windows(code.len())
        .position(|w| w == code.as_bytes())
        .unwrap();
    bad_utf8[at] = 0xff;
    let refusals: Vec<(&str, Vec<u8>)> = vec![
        ("unknown token", reserve(&[9; 16], code, nonce, &device)),
        ("short token", reserve(&token[..15], code, nonce, &device)),
        ("wrong code", reserve(token, &wrong, nonce, &device)),
        ("garbage code", reserve(token, "U", nonce, &device)),
        ("nonce of 15", reserve(token, code, &nonce[..15], &device)),
        ("device of 31", reserve(token, code, nonce, &device[..31])),
        ("commit without reservation", commit(token, nonce, &device)),
        ("undecodable", vec![0xff]),
        ("empty", Vec::new()),
        ("unknown step", vec![0x82, 5, 0x40]),
        ("wrong count", vec![0x82, 0, 0x40]),
        ("not UTF-8", bad_utf8),
        ("trailing byte", [&good[..], &[0]].concat()),
        (
            "park without reservation",
            Request::Park {
                token,
                nonce,
                device: &device,
            }
            .encode(),
        ),
    ];
    for (n, (name, body)) in refusals.iter().enumerate() {
        let c = w.open_on(0, &format!("source {n}"));
        let message = frame(&drover_wire::frame::Frame::Join { body });
        w.say(c, message);
        assert_eq!(w.take_all(c), [GENERIC], "{name}");
        assert!(w.is_open(c));
    }
    let c = w.open();
    w.say(c, frame(&drover_wire::frame::Frame::Join { body: &good }));
    assert!(matches!(w.got(c)[..], [Got::Join(_)]), "the invite is not burnt");
    // A live nonce under another device, and no seat for another nonce.
    let other = Device::new(2);
    for nonce in [[1; 16], [2; 16]] {
        w.say(c, crate::world::reserve(&m, code, nonce, &other));
        assert_eq!(w.take_all(c), [GENERIC]);
    }
    // Expired: the same once more.
    let (mut w, m) = minted();
    w.set_wall(EPOCH_MS + 86_400_000);
    let c = w.open();
    w.say(c, crate::world::reserve(&m, &m.code, [1; 16], &other));
    assert_eq!(w.take_all(c), [GENERIC]);
}

/// W06.5: five wrong codes cool a source down for this token: even the right code is refused, a new device from there
/// too, another source works; after 15 minutes it works again; no seat was touched.
#[test]
fn five_wrong_codes_cool_a_source_down() {
    let (mut w, m) = minted();
    let (device, wrong) = (Device::new(1), wrong(&m));
    let c = w.open_on(0, "a");
    for _ in 0..5 {
        assert_eq!(
            w.reserve(c, &m, &wrong, [1; 16], &device),
            refused(Code::SeatsExhausted)
        );
    }
    assert_eq!(w.hashes(), 5);
    assert_eq!(
        w.reserve(c, &m, &m.code, [1; 16], &device),
        refused(Code::SeatsExhausted)
    );
    let again = w.open_on(0, "a");
    assert_eq!(
        w.reserve(again, &m, &m.code, [1; 16], &Device::new(2)),
        refused(Code::SeatsExhausted)
    );
    assert_eq!(w.hashes(), 5, "a cooled caller costs no memory-hard work");
    w.restart();
    w.set_wall(EPOCH_MS + 899_999);
    let c = w.open_on(0, "a");
    assert_eq!(
        w.reserve(c, &m, &m.code, [1; 16], &device),
        refused(Code::SeatsExhausted)
    );
    w.set_wall(EPOCH_MS + 900_000);
    assert!(matches!(
        w.reserve(c, &m, &m.code, [1; 16], &device),
        Got::Join(_)
    ));
    // And from the start another source would have worked.
    let (mut w, m) = minted();
    let c = w.open_on(0, "a");
    let wrong = self::wrong(&m);
    for _ in 0..5 {
        w.reserve(c, &m, &wrong, [1; 16], &device);
    }
    let b = w.open_on(0, "b");
    assert!(matches!(
        w.reserve(b, &m, &m.code, [1; 16], &device),
        Got::Join(_)
    ));
}

/// W06.6: 25 wrong codes over five sources block a sixth source; after 15 minutes it works; no row outlives its use.
#[test]
fn twenty_five_wrong_codes_cool_a_token_down() {
    let (mut w, m) = minted();
    let (device, wrong) = (Device::new(1), wrong(&m));
    for source in ["a", "b", "c", "d", "e"] {
        let c = w.open_on(0, source);
        for _ in 0..5 {
            w.reserve(c, &m, &wrong, [1; 16], &device);
        }
    }
    assert_eq!(w.hashes(), 25);
    let c = w.open_on(0, "f");
    assert_eq!(
        w.reserve(c, &m, &m.code, [1; 16], &device),
        refused(Code::SeatsExhausted)
    );
    assert_eq!(w.hashes(), 25);
    let rows = |w: &World| {
        w.records(&m.realm)
            .iter()
            .filter(|(k, _)| k.starts_with(b"attempt/"))
            .count()
    };
    assert_eq!(rows(&w), 5);
    w.set_wall(EPOCH_MS + 900_000);
    assert!(matches!(
        w.reserve(c, &m, &m.code, [1; 16], &device),
        Got::Join(_)
    ));
    assert_eq!(rows(&w), 1);
}

/// W06.7: of 20 wrong codes at once from one source at most five are hashed; right codes are refunded.
#[test]
fn a_burst_of_wrong_codes_runs_five_hashes() {
    let (mut w, m) = minted();
    let wrong = wrong(&m);
    let conns: Vec<C> = (0..20).map(|_| w.open_on(0, "a")).collect();
    for &c in &conns {
        w.push(c, reserve(&m, &wrong, [1; 16], &Device::new(1)));
    }
    w.hold(Kind::Code);
    w.pump();
    w.release(Kind::Code);
    assert_eq!(w.hashes(), 5);
    for c in conns {
        assert_eq!(w.got(c), [refused(Code::SeatsExhausted)]);
    }
    let b = w.open_on(0, "b");
    for _ in 0..12 {
        assert!(matches!(
            w.reserve(b, &m, &m.code, [1; 16], &Device::new(1)),
            Got::Join(_)
        ));
    }
}

/// W06.8: of two devices racing for the last seat one wins.
#[test]
fn last_seat_has_one_winner() {
    let (mut w, m) = minted();
    let (a, b) = (w.open_on(0, "a"), w.open_on(0, "b"));
    w.push(a, reserve(&m, &m.code, [1; 16], &Device::new(1)));
    w.push(b, reserve(&m, &m.code, [2; 16], &Device::new(2)));
    let (a, b) = (w.got(a), w.got(b));
    assert!(matches!(a[..], [Got::Join(_)]));
    assert_eq!(b, [refused(Code::SeatsExhausted)]);
    assert!(w.admits(&Device::new(1), &[]) && !w.admits(&Device::new(2), &[]));
}

/// W06.9: a seat and its grant are one commit: when it fails there is neither, and both can be had again. W06.23
#[test]
fn failed_seat_commit_leaves_nothing() {
    let (mut w, m) = minted();
    let c = w.open();
    // The charge is the first commit, the seat the second.
    for (skip, fault) in [
        (0, Fault::NotCommitted),
        (1, Fault::NotCommitted),
        (0, Fault::UnknownLost),
        (1, Fault::UnknownLost),
    ] {
        let before = w.records(&m.realm);
        w.hold(Kind::Commit);
        w.say(c, reserve(&m, &m.code, [1; 16], &Device::new(1)));
        for _ in 0..skip {
            w.release_one(Kind::Commit);
        }
        w.fail_one(Kind::Commit, fault);
        w.release(Kind::Commit);
        assert_retry(&only(w.got(c)), Code::Backpressure);
        assert!(!w.admits(&Device::new(1), &[]));
        let seats =
            |r: &[(Vec<u8>, bytes::Bytes)]| r.iter().filter(|(k, _)| !k.starts_with(b"attempt/")).count();
        assert_eq!(seats(&w.records(&m.realm)), seats(&before));
    }
    let b = w.open_on(0, "elsewhere");
    assert!(matches!(
        w.reserve(b, &m, &m.code, [2; 16], &Device::new(2)),
        Got::Join(_)
    ));
}

/// W06.23: with the store away every durable step is told to come again; with the hashing pool full as well, and the
/// charge is given back (06 D18).
#[test]
fn join_without_a_store_or_a_hasher_comes_again() {
    let (mut w, m) = minted();
    let device = Device::new(1);
    w.restart();
    w.store.down(&[Kind::Load], Fault::NotCommitted);
    let c = w.open();
    assert_retry(&w.reserve(c, &m, &m.code, [1; 16], &device), Code::Backpressure);
    w.store.up();
    w.refuse_offload(true);
    for _ in 0..8 {
        assert_retry(&w.reserve(c, &m, &m.code, [1; 16], &device), Code::Backpressure);
    }
    w.refuse_offload(false);
    assert!(matches!(
        w.reserve(c, &m, &m.code, [1; 16], &device),
        Got::Join(_)
    ));
}

/// W06.26: a record that can't be looked up is the empty one, nothing else (06 D11).
#[test]
fn record_without_a_store_is_empty() {
    let (mut w, m) = minted();
    w.restart();
    w.store.down(&[Kind::Load], Fault::NotCommitted);
    let c = w.open();
    let record = Request::Record { token: &m.token.0 };
    assert_eq!(w.ask1(c, join(&record)), Got::Join(vec![0x82, 3, 0x40]));
    let bundles = Request::Bundles {
        token: &m.token.0,
        group: &[0; 32],
    };
    assert_retry(&w.ask1(c, join(&bundles)), Code::Backpressure);
}

/// W06.10: a reservation never outlives its invite, and its seat is back afterwards: a lapsed one is free for the next
/// reservation without a sweep (W06.26), a released nonce stays refused, and seats never exceed the invite's.
#[test]
fn reservation_is_clamped_and_returns() {
    let (mut w, m) = minted();
    let (c, day) = (w.open(), 86_400_000);
    w.set_wall(EPOCH_MS + day - 120_000);
    assert_eq!(
        reserved(&w.reserve(c, &m, &m.code, [1; 16], &Device::new(1))),
        EPOCH_MS + day
    );
    let (mut w, m) = minted();
    let c = w.open();
    reserved(&w.reserve(c, &m, &m.code, [1; 16], &Device::new(1)));
    w.set_wall(EPOCH_MS + 600_000);
    reserved(&w.reserve(c, &m, &m.code, [2; 16], &Device::new(2)));
    assert!(!w.admits(&Device::new(1), &[]) && w.admits(&Device::new(2), &[]));
    let gone = w.reserve(c, &m, &m.code, [1; 16], &Device::new(1));
    assert_eq!(gone, refused(Code::SeatsExhausted), "a released nonce");
    w.set_wall(EPOCH_MS + 1_200_000);
    reserved(&w.reserve(c, &m, &m.code, [3; 16], &Device::new(3)));
    assert_eq!(
        w.reserve(c, &m, &m.code, [4; 16], &Device::new(4)),
        refused(Code::SeatsExhausted),
        "two lapsed reservations made one seat, as many as there are"
    );
}

/// W06.15: the record comes back as it was made; unknown, spent and expired tokens give the same empty answer. W06.14
#[test]
fn record_is_served_while_the_invite_lives() {
    let mut w = World::new();
    let ws = w.found("ws:spent", &[], &[]);
    let m = w.mint("ws:one");
    let c = w.open();
    let ask = |w: &mut World, token: &[u8]| w.ask1(c, join(&Request::Record { token }));
    let Got::Join(body) = ask(&mut w, &m.token.0) else {
        panic!()
    };
    let Some(Response::Record { record }) = Response::decode(3, &body) else {
        panic!()
    };
    let decoded = Record::decode(record).unwrap();
    assert_eq!(decoded.encode(), record);
    let empty = Got::Join(vec![0x82, 3, 0x40]);
    for token in [&[9; 16][..], &[9; 3], &ws.minted.token.0] {
        assert_eq!(ask(&mut w, token), empty);
    }
    w.set_wall(EPOCH_MS + 86_400_000);
    assert_eq!(ask(&mut w, &m.token.0), empty);
}

/// W06.20: the bootstrap invite is minted once, verifies, carries `admin` and no scopes, is spent by genesis; a second
/// process reads the same; racing mints leave one.
#[test]
fn bootstrap_invite_is_made_once() {
    let mut w = World::new();
    let m = w.mint("ws:one");
    assert!(w.try_mint("ws:one", true).is_none());
    w.restart();
    assert!(w.try_mint("ws:one", true).is_none());
    let c = w.open();
    let Got::Join(body) = w.ask1(c, join(&Request::Record { token: &m.token.0 })) else {
        panic!()
    };
    let Some(Response::Record { record }) = Response::decode(3, &body) else {
        panic!()
    };
    let record = Record::decode(record).unwrap();
    assert!(drover_wire::access::verify(
        &record.issuer,
        &record.signing_input(),
        &record.sig
    ));
    assert_eq!(
        (record.uses, record.scopes.len(), record.bundles.len()),
        (1, 0, 0)
    );
    assert_eq!(record.caps, [b"admin".to_vec()]);
    assert_eq!(record.expires_ms - record.issued_at_ms, 86_400_000);
    assert_eq!(record.workspace, drover_wire::id::Hash::of(&[b"ws:one"]).0);
    let (token, fingerprint) = w.report(&m.realm).unwrap().unredeemed.unwrap();
    assert_eq!(token, m.token);
    assert_eq!(
        fingerprint,
        drover_engine::bootstrap::genesis_fingerprint(&record.issuer.0)
    );
    // Two mints in one turn.
    w.hold(Kind::Commit);
    w.try_mint("ws:two", false);
    w.try_mint("ws:two", false);
    w.release(Kind::Commit);
    let invites = w
        .records(&drover_storage::RealmId("ws:two".into()))
        .iter()
        .filter(|(k, _)| k.starts_with(b"invite/"))
        .count();
    assert_eq!(invites, 1);
    // Spent by genesis: no second reservation.
    let ws = w.found("ws:three", &[], &[group(1)]);
    let c = w.open();
    let got = w.reserve(c, &ws.minted, &ws.minted.code, [7; 16], &Device::new(7));
    assert_eq!(got, refused(Code::SeatsExhausted));
    assert!(w.report(&ws.minted.realm).unwrap().unredeemed.is_none());
}

/// W06.21: a genesis publication whose commit fails leaves key, seat, invite and set untouched.
#[test]
fn failed_genesis_leaves_the_seat() {
    for fault in [Fault::NotCommitted, Fault::UnknownLost] {
        let (mut w, m) = minted();
        let (c, founder) = (w.open(), Device::new(1));
        w.reserve(c, &m, &m.code, [1; 16], &founder);
        w.auth(c, &founder, &[group(1)]);
        let salt = w.state(c).salt;
        let before = w.records(&m.realm);
        let set = Draft::genesis(&salt, &[&founder], &[&Device::new(2)], &[]).by(&founder);
        for kind in [Kind::Claim, Kind::Commit] {
            if !w.is_open(c) {
                break;
            }
            w.store.fail_next(kind, fault);
            let got = w.ask(c, access(&set.encode()));
            assert_retry(&got[0], Code::Backpressure);
            assert_eq!(w.records(&m.realm), before);
            assert!(w.report(&m.realm).unwrap().unredeemed.is_some());
        }
        let c = w.open();
        w.auth(c, &founder, &[group(1)]);
        assert_eq!(w.publish(c, &set), Got::Access(set.digest().0.to_vec()));
    }
}

/// W06.22, W13.50: the sealed handoff is stored with the mint and never replaced, is known again after a restart, and is
/// deleted by genesis: not by one that fails.
#[test]
fn sealed_handoff_lives_from_mint_to_genesis() {
    let sealed = |text: &str| Handoff {
        blob: text.into(),
        sealed_code: "code".into(),
        fingerprint: text.repeat(2),
        expires_ms: EPOCH_MS + 86_400_000,
        recipient: [3; 32],
    };
    let mut w = World::new();
    w.store.fail_next(Kind::Commit, Fault::NotCommitted);
    assert!(w.mint_with("ws:one", true, Some(sealed("lost"))).is_none());
    let realm = drover_storage::RealmId("ws:one".into());
    assert_eq!(
        (w.directory.handoff(&realm), w.directory.first()),
        (None, None),
        "minted and sealed together, or neither"
    );
    let m = w.mint_with("ws:one", true, Some(sealed("blob"))).unwrap();
    assert!(w.mint_with("ws:one", true, Some(sealed("again"))).is_none());
    let handoff = |w: &World| w.directory.handoff(&m.realm).map(|handoff| handoff.blob.clone());
    assert_eq!(handoff(&w).as_deref(), Some("blob"));
    w.restart();
    w.directory.read_handoffs(&*w.store).unwrap();
    assert_eq!(w.directory.first(), Some(m.realm.clone()));
    let by_key = |w: &World, key: &str| w.directory.handoff_of(key).is_some();
    assert!(by_key(&w, "blobblob") && !by_key(&w, "againagain"));

    let (c, founder) = (w.open(), Device::new(1));
    w.reserve(c, &m, &m.code, [1; 16], &founder);
    w.auth(c, &founder, &[]);
    let salt = w.state(c).salt;
    let set = Draft::genesis(&salt, &[&founder], &[&Device::new(2)], &[]).by(&founder);
    w.store.fail_next(Kind::Commit, Fault::NotCommitted);
    w.ask(c, access(&set.encode()));
    assert_eq!(handoff(&w).as_deref(), Some("blob"));
    assert_eq!(w.publish(c, &set), Got::Access(set.digest().0.to_vec()));
    assert_eq!(handoff(&w), None);
    assert!(!w.records(&m.realm).iter().any(|(key, _)| key == b"handoff"));
    w.restart();
    w.directory.read_handoffs(&*w.store).unwrap();
    assert_eq!(handoff(&w), None);
}

/// 09 §10: the operator reads the log with its chain verified, of a founded workspace and of one that nobody founded;
/// a store that does not answer is no empty log.
#[test]
fn transparency_log_is_read_on_demand() {
    let (mut w, m) = minted();
    assert_eq!(w.log(&m.realm), Some(TransparencyLog::default()));
    let ws = w.found("ws:two", &[], &[]);
    let log = w.log(&ws.minted.realm).unwrap();
    assert_eq!((log.entries.len(), log.broken_at), (1, None));
    assert_eq!((log.entries[0].seq, &*log.entries[0].kind), (0, "genesis"));
    w.store.fail_next(Kind::Load, Fault::NotCommitted);
    assert_eq!(w.log(&ws.minted.realm), None);
    w.restart();
    assert_eq!(w.log(&ws.minted.realm), Some(log));
}

/// W06.19: the 21st JOIN of a minute is refused with 20, whatever the frames were, on a socket that stays up. W04.4
#[test]
fn join_budget_is_twenty() {
    let (mut w, m) = minted();
    let c = w.open();
    let record = join(&Request::Record { token: &m.token.0 });
    for n in 0..20 {
        let message = if n % 2 == 0 {
            record.clone()
        } else {
            frame(&drover_wire::frame::Frame::Join { body: &[0xff] })
        };
        assert_ne!(w.ask1(c, message).code(), Some(Code::RateLimited));
    }
    assert_eq!(w.ask1(c, record.clone()), limited(Code::RateLimited, 60, 20));
    assert!(w.is_open(c));
    let other = w.open();
    assert!(matches!(w.ask1(other, record), Got::Join(_)));
}

/// W06.25: bundles of an unknown token are the empty list, as of a dead one (06 D5).
#[test]
fn unknown_token_has_no_bundles() {
    let mut w = World::new();
    let ws = w.found("ws:spent", &[], &[]);
    let c = w.open();
    for token in [&[9; 16], &ws.minted.token.0] {
        let bundles = Request::Bundles {
            token,
            group: &group(1).0,
        };
        assert_eq!(w.ask1(c, join(&bundles)), Got::Join(vec![0x82, 1, 0x80]));
    }
}

/// W02.23: in read-only mode JOIN bundles and record are served, reserve, commit and park are refused before the token
/// is looked at, known or not.
#[test]
fn read_only_join_writes_nothing() {
    let (mut w, m) = minted();
    w.restart_with(|c| c.read_only = true);
    let c = w.open();
    for token in [&m.token.0, &[9; 16]] {
        for request in [
            Request::Reserve {
                token,
                code: &m.code,
                nonce: &[1; 16],
                device: &[1; 32],
            },
            Request::Commit {
                token,
                nonce: &[1; 16],
                device: &[1; 32],
                group: &[1; 32],
            },
            Request::Park {
                token,
                nonce: &[1; 16],
                device: &[1; 32],
            },
        ] {
            assert_eq!(w.ask1(c, join(&request)), refused(Code::ServiceReadOnly));
        }
        for request in [
            Request::Record { token },
            Request::Bundles {
                token,
                group: &[1; 32],
            },
        ] {
            assert!(matches!(w.ask1(c, join(&request)), Got::Join(_)));
        }
    }
}

/// A JOIN on a connection that is bound to another workspace's shard is served by a message, not by moving it
/// (architecture.md §2); the mail's order does not matter.
#[test]
fn join_reaches_a_realm_on_another_shard() {
    use crate::cases::admission::name_on;
    for newest_first in [false, true] {
        let mut w = World::with(config(|c| c.shards = 2));
        let ws = w.found(&name_on(0, 1), &[], &[group(1)]);
        let m = w.mint(&name_on(1, 2));
        w.newest_letter_first = newest_first;
        let c = w.login(&ws.founder, &[group(1)]);
        w.push(c, send(group(1), b"before"));
        w.push(c, reserve(&m, &m.code, [1; 16], &Device::new(5)));
        w.push(c, send(group(1), b"after"));
        let got = w.got(c);
        assert!(
            matches!(got[..], [Got::Ack(_, 1), Got::Join(_), Got::Ack(_, 2)]),
            "{got:?}"
        );
        assert_eq!(w.place(c), (0, 0));
        assert!(w.admits(&Device::new(5), &[]));
    }
}
