//! ACCESS: the query, the chain of sets, probation, grants, and what a removal does to sockets (05).

use crate::world::*;
use bytes::Bytes;
use drover_engine::effects::{CloseHow, CloseReason};
use drover_storage::control::{ControlBatch, Write};
use drover_wire::access::{AccessSet, LIST_MAX, Quorum, quorum_message, sign};
use drover_wire::error::Code;
use drover_wire::id::{EntryHash, Hash, PublicKey};

/// Writes a grant as a redeemed invite would have: until then, and dead for that reason if any.
pub fn give_grant(w: &mut World, ws: &Workspace, device: &Device, expires_ms: u64, voided: Option<u8>) {
    let mut value = vec![0x83, 0x1b];
    value.extend_from_slice(&expires_ms.to_be_bytes());
    value.push(0xf6);
    value.push(voided.unwrap_or(0xf6));
    w.commit_behind(
        &ws.minted.realm,
        ControlBatch {
            writes: vec![Write {
                key: [&b"grant/"[..], &device.entry(&ws.salt).0].concat(),
                value: Some(Bytes::from(value)),
            }],
            ..ControlBatch::default()
        },
    );
    w.restart();
}

/// W05.2: the query before and after genesis is exactly salt and head; naming another workspace's group as well still
/// answers about the bound one.
#[test]
fn query_answers_salt_and_head() {
    let mut w = World::new();
    let (founder, minted) = (Device::new(1), w.mint("ws:one"));
    let c = w.open();
    w.reserve(c, &minted, &minted.code.clone(), [1; 16], &founder);
    w.auth(c, &founder, &[group(1)]);
    let Got::Access(body) = w.ask1(c, access(&[])) else {
        panic!()
    };
    assert_eq!(
        (body.len(), &body[..3], body[35]),
        (36, &[0x82, 0x58, 0x20][..], 0xf6)
    );
    let salt = w.state(c).salt;
    let set = Draft::genesis(&salt, &[&founder], &[&Device::new(2)], &[]).by(&founder);
    w.publish(c, &set);
    let Got::Access(body) = w.ask1(c, access(&[])) else {
        panic!()
    };
    assert_eq!(body.len(), 71);
    assert_eq!(w.state(c).head, Some((0, set.digest())));
    let two = w.found_by("ws:two", &Device::new(3), &Device::new(4), &[], &[group(2)]);
    let c = w.login(&two.founder, &[group(1), group(2)]);
    assert_eq!(
        (w.state(c).salt, w.state(c).head),
        (two.salt, Some((0, two.head.digest())))
    );
}

/// W05.5: a genesis that is not one: each rule with its code, none with a digest; the session stays usable.
#[test]
fn genesis_rules() {
    let mut w = World::new();
    let (founder, recovery, minted) = (Device::new(1), Device::new(2), w.mint("ws:one"));
    let c = w.open();
    w.reserve(c, &minted, &minted.code.clone(), [1; 16], &founder);
    w.auth(c, &founder, &[group(1)]);
    let salt = w.state(c).salt;
    let good = || Draft::genesis(&salt, &[&founder], &[&recovery], &[]);
    let mut forged = good().by(&founder);
    forged.issued_at_ms += 1;
    for (set, code) in [
        (good().with(|s| s.version = 1).by(&founder), DENIED),
        (good().with(|s| s.prev_hash = Hash([1; 32])).by(&founder), DENIED),
        (good().by(&recovery), DENIED),
        (
            good().with(|s| s.pending = vec![EntryHash([1; 32])]).by(&founder),
            DENIED,
        ),
        (forged, Code::NoncanonicalCbor),
        // Version is judged before the signature, the signature before pending.
        (
            AccessSet {
                version: 1,
                ..good().with(|s| s.issued_at_ms = 1).by(&founder)
            },
            DENIED,
        ),
        (
            AccessSet {
                pending: vec![EntryHash([1; 32])],
                ..good().by(&founder)
            },
            Code::NoncanonicalCbor,
        ),
        // An authorizer or recovery key that is no entry.
        (
            good()
                .with(|s| s.entries.retain(|e| *e != founder.entry(&salt)))
                .by(&founder),
            DENIED,
        ),
        (
            good()
                .with(|s| s.entries.retain(|e| *e != recovery.entry(&salt)))
                .by(&founder),
            DENIED,
        ),
    ] {
        assert_eq!(w.publish(c, &set), refused(code));
    }
    let set = good().by(&founder);
    assert_eq!(w.publish(c, &set), Got::Access(set.digest().0.to_vec()));
    assert_eq!(
        w.publish(c, &set),
        refused_with(DENIED, 0, &set.digest().0),
        "a second genesis is a wrong version"
    );
}

/// W05.24: while the genesis key is unspent, only the device that holds the seat founds, alone and in time; a refusal
/// leaves key and seat as they were. (05 D4)
#[test]
fn only_the_seats_device_founds() {
    let mut w = World::new();
    let (founder, other, recovery, minted) =
        (Device::new(1), Device::new(5), Device::new(2), w.mint("ws:one"));
    let c = w.open();
    w.reserve(c, &minted, &minted.code.clone(), [1; 16], &founder);
    w.auth(c, &founder, &[group(1)]);
    let salt = w.state(c).salt;
    let two = Draft::genesis(&salt, &[&founder, &other], &[&recovery], &[]).by(&founder);
    let foreign = Draft::genesis(&salt, &[&other], &[&recovery], &[]).by(&other);
    for set in [&two, &foreign] {
        assert_eq!(w.publish(c, set), refused(DENIED));
        assert!(w.report(&minted.realm).unwrap().unredeemed.is_some());
    }
    let good = Draft::genesis(&salt, &[&founder], &[&recovery], &[&other]).by(&founder);
    w.advance(299_000);
    w.ask(c, access(&[]));
    w.advance(299_000);
    w.ask(c, access(&[]));
    w.advance(2_000);
    // The seat has lapsed: the founder is told so, and its socket ends within the minute (05 D11).
    assert_eq!(w.publish(c, &good), refused(DENIED));
    w.advance(60_000);
    assert_eq!(w.closed(c), Some((CloseHow::Evict, CloseReason::Evicted)));
    assert!(w.report(&minted.realm).unwrap().unredeemed.is_some());
    // The seat is free again; a founder whose reservation is live still can.
    let c = w.open();
    assert!(matches!(
        w.reserve(c, &minted, &minted.code.clone(), [2; 16], &founder),
        Got::Join(_)
    ));
    w.auth(c, &founder, &[group(1)]);
    assert_eq!(w.publish(c, &good), Got::Access(good.digest().0.to_vec()));
    let report = w.report(&minted.realm).unwrap();
    assert_eq!((report.entries, report.unredeemed.is_none()), (Some(3), true));
}

/// A genesis judged in time and committed after the seat's end consumes the seat all the same: nobody else gets in by
/// the spent invite (06 §13).
#[test]
fn slow_genesis_commit_still_spends_the_invite() {
    let mut w = World::new();
    let (founder, minted) = (Device::new(1), w.mint("ws:one"));
    let c = w.open();
    w.reserve(c, &minted, &minted.code.clone(), [1; 16], &founder);
    w.auth(c, &founder, &[]);
    let salt = w.state(c).salt;
    let set = Draft::genesis(&salt, &[&founder], &[&Device::new(2)], &[]).by(&founder);
    w.hold(Kind::Commit);
    w.say(c, access(&set.encode()));
    w.set_wall(EPOCH_MS + 600_001);
    w.release(Kind::Commit);
    assert_eq!(w.got(c), [Got::Access(set.digest().0.to_vec())]);
    assert!(w.report(&minted.realm).unwrap().unredeemed.is_none());
    let j = w.open();
    let got = w.reserve(j, &minted, &minted.code.clone(), [2; 16], &Device::new(9));
    assert_eq!(got, refused(Code::SeatsExhausted));
}

/// W05.6: of two racing publications of one version one gets its digest, the other a refusal with the new head's.
#[test]
fn racing_publications_have_one_winner() {
    let (mut w, ws, admin) = founded_with(&[]);
    let other = w.login(&ws.founder, &[group(1)]);
    let (a, b) = (
        ws.adding(&[&Device::new(5)]).by(&ws.founder),
        ws.adding(&[&Device::new(6)]).by(&ws.founder),
    );
    w.push(admin, access(&a.encode()));
    w.push(other, access(&b.encode()));
    assert_eq!(w.got(admin), [Got::Access(a.digest().0.to_vec())]);
    assert_eq!(w.got(other), [refused_with(DENIED, 0, &a.digest().0)]);
}

/// W05.7: a successor is one version on, links to the head, and stays in its workspace. W05.25
#[test]
fn successor_continues_the_chain() {
    let (mut w, mut ws, admin) = founded_with(&[]);
    let stranger = Device::new(66);
    for set in [
        ws.next().with(|s| s.version = 0),
        ws.next().with(|s| s.version = 2),
        ws.next().with(|s| s.prev_hash = Hash([0; 32])),
        ws.next().with(|s| s.workspace[0] ^= 1),
    ] {
        let set = set.by(&ws.founder);
        assert_eq!(w.publish(admin, &set), denied_at(&ws));
    }
    assert_eq!(w.publish(admin, &ws.next().by(&stranger)), denied_at(&ws));
    let next = ws.next().by(&ws.founder);
    w.accept(admin, &mut ws, next);
    // An authorizer that is no entry is judged before the chain's position (05 §7.1).
    let set = ws
        .next()
        .with(|s| s.authorizers.push(stranger.public()))
        .by(&ws.founder);
    assert_eq!(w.publish(admin, &set), denied_at(&ws));
}

/// W05.8: a bad signature is `reject/noncanonical_cbor`, a truncated body `reject/malformed_header`; both leave the
/// session usable.
#[test]
fn bad_bytes_leave_the_session_usable() {
    let (mut w, ws, admin) = founded_with(&[]);
    let mut forged = ws.next().by(&ws.founder);
    forged.sig.0[0] ^= 1;
    assert_eq!(w.publish(admin, &forged), refused(Code::NoncanonicalCbor));
    let whole = ws.next().by(&ws.founder).encode();
    for cut in [1, whole.len() / 2, whole.len() - 1] {
        assert_eq!(
            w.ask1(admin, access(&whole[..cut])),
            refused(Code::MalformedHeader)
        );
    }
    let trailing = [&whole[..], &[0]].concat();
    assert_eq!(w.ask1(admin, access(&trailing)), refused(Code::MalformedHeader));
    assert_eq!(w.stored(admin, group(1), b"x"), 1);
}

/// W05.9: unsorted, duplicate, empty and over-long lists, and quorums that are none.
#[test]
fn list_rules() {
    let (mut w, ws, admin) = founded_with(&[&Device::new(5)]);
    let shape = |change: &dyn Fn(&mut AccessSet)| {
        let mut set = ws.next().set;
        change(&mut set);
        set.signed(&ws.founder.key)
    };
    let keys = |n: u8| -> Vec<PublicKey> { (1..=n).map(|k| PublicKey([k; 32])).collect() };
    let quorum = |threshold, keys| {
        Some(Quorum {
            threshold,
            keys,
            sigs: Vec::new(),
        })
    };
    let bad: Vec<AccessSet> = vec![
        shape(&|s| s.entries.reverse()),
        shape(&|s| {
            let first = s.entries[0];
            s.entries.insert(0, first);
        }),
        shape(&|s| s.entries.clear()),
        shape(&|s| s.authorizers.clear()),
        shape(&|s| s.recovery.clear()),
        shape(&|s| s.pending = vec![EntryHash([2; 32]), EntryHash([1; 32])]),
        shape(&|s| {
            s.entries
                .extend((0..4097u64).map(|n| EntryHash(Hash::of(&[&n.to_be_bytes()]).0)));
            s.entries.sort_unstable();
        }),
        shape(&|s| s.quorum = quorum(1, Vec::new())),
        shape(&|s| s.quorum = quorum(0, keys(2))),
        shape(&|s| s.quorum = quorum(3, keys(2))),
        shape(&|s| s.quorum = quorum(1, vec![PublicKey([2; 32]), PublicKey([1; 32])])),
    ];
    for (n, set) in bad.iter().enumerate() {
        assert_eq!(w.publish(admin, set), refused(Code::MalformedHeader), "{n}");
    }
    let full = ws
        .next()
        .with(|s| {
            let more = 4096 - s.entries.len() as u64;
            s.entries
                .extend((0..more).map(|n| EntryHash(Hash::of(&[&n.to_be_bytes()]).0)));
        })
        .by(&ws.founder);
    assert_eq!(w.publish(admin, &full), Got::Access(full.digest().0.to_vec()));
}

/// W05.10: the last prior authorizer and the last prior recovery key stay; one of two may be replaced.
#[test]
fn nobody_strands_a_workspace() {
    let (mut w, mut ws, admin) = founded_with(&[]);
    let (second, new, new_recovery) = (Device::new(5), Device::new(6), Device::new(7));
    let salt = ws.salt;
    let swapped = ws
        .next()
        .with(|s| {
            s.authorizers = vec![new.public()];
            s.entries.push(new.entry(&salt));
        })
        .by(&ws.founder);
    assert_eq!(w.publish(admin, &swapped), denied_at(&ws));
    let swapped = ws
        .next()
        .with(|s| {
            s.recovery = vec![new_recovery.public()];
            s.entries.push(new_recovery.entry(&salt));
        })
        .by(&ws.founder);
    assert_eq!(w.publish(admin, &swapped), denied_at(&ws));
    let pinned = ws.next().with(|s| s.pending = vec![s.entries[0]]).by(&ws.founder);
    assert_eq!(w.publish(admin, &pinned), denied_at(&ws), "only a rotation pins");
    let two = ws
        .next()
        .with(|s| {
            s.authorizers.push(second.public());
            s.entries.push(second.entry(&salt));
        })
        .by(&ws.founder);
    w.accept(admin, &mut ws, two);
    let replaced = ws
        .next()
        .with(|s| {
            s.authorizers.retain(|k| *k != second.public());
            s.authorizers.push(new.public());
            s.entries.push(new.entry(&salt));
        })
        .by(&ws.founder);
    w.accept(admin, &mut ws, replaced);
}

/// W05.11: a rotation of the right shape is accepted; each of the nine rules broken in turn is not; a second one within
/// 24 h is not, by the successor either (05 D15). W05.25
#[test]
fn rotation_rules() {
    let (mut w, mut ws, _) = founded_with(&[&Device::new(5)]);
    let (salt, spent, member) = (ws.salt, ws.recovery.clone(), Device::new(5));
    let (successor, device, extra) = (Device::new(20), Device::new(21), Device::new(22));
    let c = w.login(&spent, &[group(1)]);
    let shape = || rotation(&ws, &successor, &device, &[&member]);
    let broken: Vec<Draft> = vec![
        // 2: the spent key stays a recovery key (and an entry).
        shape().with(|s| {
            s.recovery.push(spent.public());
            s.entries.push(spent.entry(&salt));
        }),
        // 3: no successor, or two.
        shape().with(|s| {
            s.recovery = vec![spent.public()];
            s.entries.push(spent.entry(&salt));
        }),
        shape().with(|s| {
            s.recovery.push(extra.public());
            s.entries.push(extra.entry(&salt));
        }),
        // 5: another entry leaves, or the spent key's stays.
        shape().with(|s| s.entries.retain(|e| *e != member.entry(&salt))),
        shape().with(|s| s.entries.push(spent.entry(&salt))),
        // 6: no new authorizer, or two.
        shape().with(|s| {
            s.authorizers.retain(|k| *k != device.public());
        }),
        shape().with(|s| {
            s.authorizers.push(extra.public());
            s.entries.push(extra.entry(&salt));
        }),
        // 7: another new entry, or a device that was one.
        shape().with(|s| s.entries.push(extra.entry(&salt))),
        rotation(&ws, &successor, &member, &[]),
        // 8: an authorizer leaves.
        shape().with(|s| s.authorizers.retain(|k| *k != ws.founder.public())),
        // 9: something pinned that is no entry, or an authorizer's.
        rotation(&ws, &successor, &device, &[&extra]),
        rotation(&ws, &successor, &device, &[&ws.founder]),
        // D6: one key as both.
        rotation(&ws, &successor, &successor, &[]),
        // D7: the quorum is nobody's to change in a rotation.
        shape().with(|s| {
            s.quorum = Some(Quorum {
                threshold: 1,
                keys: vec![PublicKey([1; 32])],
                sigs: Vec::new(),
            })
        }),
    ];
    for (n, draft) in broken.into_iter().enumerate() {
        let set = draft.by(&spent);
        assert_eq!(w.publish(c, &set), denied_at(&ws), "{n}");
    }
    let set = shape().by(&spent);
    w.accept(c, &mut ws, set);
    assert_eq!(
        w.closed(c),
        Some((CloseHow::Flush, CloseReason::Evicted)),
        "the spent key's own socket ends after its answer"
    );
    // The successor has the lineage's pause.
    ws.recovery = successor;
    let again = rotation(&ws, &Device::new(30), &Device::new(31), &[]);
    let set = again.by(&ws.recovery);
    let c = w.login(&ws.recovery.clone(), &[group(1)]);
    assert_eq!(w.publish(c, &set), denied_at(&ws));
    w.set_wall(EPOCH_MS + 86_400_000 - 1);
    assert_eq!(w.publish(c, &set), denied_at(&ws));
    w.set_wall(EPOCH_MS + 86_400_000);
    w.accept(c, &mut ws, set);
}

/// W05.12: a device on probation removes what is pinned and nothing else, whatever time passes; it neither adds nor
/// sheds authorizers; an older authorizer's set that lists it clears it.
#[test]
fn probation_is_a_leash() {
    let (mut w, mut ws, admin) = founded_with(&[&Device::new(5), &Device::new(6)]);
    let (salt, lost, member) = (ws.salt, Device::new(5), Device::new(6));
    let (successor, device) = (Device::new(20), Device::new(21));
    let c = w.login(&ws.recovery.clone(), &[group(1)]);
    let set = rotation(&ws, &successor, &device, &[&lost]).by(&ws.recovery);
    w.accept(c, &mut ws, set);
    let c = w.login(&device, &[group(1)]);
    let unpinned = ws.removing(&[&member]);
    let refused_now = unpinned.by(&device);
    assert_eq!(w.publish(c, &refused_now), denied_at(&ws));
    w.set_wall(EPOCH_MS + 400 * 86_400_000);
    assert_eq!(
        w.publish(c, &refused_now),
        denied_at(&ws),
        "no time clears a probation"
    );
    let shed = ws
        .next()
        .with(|s| s.authorizers.retain(|k| *k != ws.founder.public()))
        .by(&device);
    assert_eq!(w.publish(c, &shed), denied_at(&ws));
    let admit = ws
        .next()
        .with(|s| s.authorizers.push(member.public()))
        .by(&device);
    assert_eq!(w.publish(c, &admit), denied_at(&ws));
    let quorum = ws
        .next()
        .with(|s| {
            s.quorum = Some(Quorum {
                threshold: 1,
                keys: vec![PublicKey([1; 32])],
                sigs: Vec::new(),
            })
        })
        .by(&device);
    assert_eq!(w.publish(c, &quorum), denied_at(&ws), "D7");
    // Plain members may be added (D8), and what is pinned may go.
    let set = ws.adding(&[&Device::new(7)]).by(&device);
    w.accept(c, &mut ws, set);
    let set = ws.removing(&[&lost]).by(&device);
    w.accept(c, &mut ws, set);
    let still = ws.removing(&[&member]).by(&device);
    assert_eq!(
        w.publish(c, &still),
        denied_at(&ws),
        "its own plain set clears nothing"
    );
    // An authorizer without probation confirms it.
    w.restart();
    let (admin, c) = (w.login(&ws.founder.clone(), &[group(1)]), {
        let _ = admin;
        w.login(&device, &[group(1)])
    });
    let still = ws.removing(&[&member]).by(&device);
    assert_eq!(
        w.publish(c, &still),
        denied_at(&ws),
        "the leash survives a restart"
    );
    let set = ws.next().by(&ws.founder);
    w.accept(admin, &mut ws, set);
    let set = ws.removing(&[&member]).by(&device);
    w.accept(c, &mut ws, set);
    assert!(!ws.head.entries.contains(&member.entry(&salt)));
}

/// W05.12: enough distinct quorum signatures over this set and this device clear a probation, the signer's own
/// included (05 D5); copies of one key and signatures over another set or device don't.
#[test]
fn quorum_confirms_the_signer_itself() {
    let (mut w, mut ws, admin) = founded_with(&[&Device::new(5), &Device::new(6)]);
    let (salt, first, second) = (ws.salt, Device::new(5), Device::new(6));
    let (q1, q2, q3) = (Device::new(81), Device::new(82), Device::new(83));
    let set = ws
        .next()
        .with(|s| {
            s.quorum = Some(Quorum {
                threshold: 2,
                keys: vec![q1.public(), q2.public(), q3.public()],
                sigs: Vec::new(),
            })
        })
        .by(&ws.founder);
    w.accept(admin, &mut ws, set);
    let (successor, device) = (Device::new(20), Device::new(21));
    let c = w.login(&ws.recovery.clone(), &[group(1)]);
    let set = rotation(&ws, &successor, &device, &[]).by(&ws.recovery);
    w.accept(c, &mut ws, set);
    let c = w.login(&device, &[group(1)]);
    // A set signed by the probationary device with these confirmations.
    let confirmed = |ws: &Workspace, sigs: &[(&Device, &Device)], digest: Option<Hash>| {
        let mut set = ws.next().by(&device);
        let digest = digest.unwrap_or(set.digest());
        let carried = sigs.iter().map(|(key, about)| {
            let message = quorum_message(&digest, &about.entry(&salt));
            (key.public(), sign(&key.key, &message.0))
        });
        set.quorum.as_mut().unwrap().sigs = carried.collect();
        set
    };
    let wrong = [
        (vec![(&q1, &device)], None),
        (vec![(&q1, &device), (&q1, &device)], None),
        (vec![(&q1, &device), (&first, &device)], None),
        (vec![(&q1, &first), (&q2, &first)], None),
        (vec![(&q1, &device), (&q2, &device)], Some(Hash([7; 32]))),
    ];
    for (sigs, digest) in wrong {
        let set = confirmed(&ws, &sigs, digest);
        w.accept(c, &mut ws, set);
        let removal = ws.removing(&[&first]).by(&device);
        assert_eq!(w.publish(c, &removal), denied_at(&ws), "still on probation");
    }
    let set = confirmed(&ws, &[(&q3, &device), (&q2, &device)], None);
    w.accept(c, &mut ws, set);
    let set = ws.removing(&[&second]).by(&device);
    w.accept(c, &mut ws, set);
    // D7: a quorum key that is an authorizer or an entry.
    for key in [&device, &first] {
        let bad = ws
            .next()
            .with(|s| s.quorum.as_mut().unwrap().keys[0] = key.public())
            .by(&device);
        assert_eq!(w.publish(c, &bad), denied_at(&ws));
    }
}

/// W05.13: a removed device's sockets close without a frame, at once; it can't come back; the publisher's session goes
/// on; nothing the device had on the wire takes effect. W02.4
#[test]
fn revoked_device_keeps_no_socket() {
    let victim = Device::new(5);
    let (mut w, mut ws, admin) = founded_with(&[&victim]);
    let sockets = [w.login(&victim, &[group(1)]), w.login(&victim, &[group(1)])];
    w.subscribe(sockets[0], group(1), 0);
    w.stored(sockets[1], group(1), b"before");
    w.got(sockets[0]);
    let before = w.store.appended_records();
    w.push(admin, access(&ws.removing(&[&victim]).by(&ws.founder).encode()));
    w.turn();
    w.push(sockets[1], send(group(1), b"too late"));
    ws.head = ws.removing(&[&victim]).by(&ws.founder);
    assert_eq!(w.got(admin), [Got::Access(ws.head.digest().0.to_vec())]);
    w.say(sockets[1], send(group(1), b"far too late"));
    for c in sockets {
        assert_eq!(w.closed(c), Some((CloseHow::Evict, CloseReason::Evicted)));
        assert!(w.got(c).iter().all(|got| got.code().is_none()));
    }
    w.stored(admin, group(1), b"after");
    assert_eq!(w.got(sockets[0]), [], "subscriptions end at once");
    assert!(!w.admits(&victim, &[group(1)]));
    let new = w.store.appended_records() - before;
    assert!(
        new <= 2,
        "only what came before the commit and what the admin sent: {new}"
    );
}

/// W05.13: so does one whose outbound queue is full; what waited for it is dropped. W02.5
#[test]
fn full_queue_does_not_save_a_revoked_device() {
    let victim = Device::new(5);
    let (mut w, mut ws, admin) = founded_with(&[&victim]);
    let c = w.login(&victim, &[group(1)]);
    w.subscribe(c, group(1), 0);
    w.stop_reading(c, 0);
    w.fill(admin, group(1), 300);
    assert_eq!(w.room(c).messages, 0);
    // Unanswered requests of its own wait as well.
    for n in 0..20 {
        w.push(c, send(group(1), &[n]));
    }
    w.pump();
    let stored = w.store.appended_records();
    let set = ws.removing(&[&victim]).by(&ws.founder);
    w.accept(admin, &mut ws, set);
    assert_eq!(w.closed(c), Some((CloseHow::Evict, CloseReason::Evicted)));
    w.read_again(c);
    assert_eq!(w.got(c), [], "nothing that was queued leaves any more");
    assert_eq!(w.store.appended_records(), stored);
}

/// W05.13, at its largest: the turn that answers a full set's publication ends every connection the set drops, and no
/// other.
#[test]
fn a_hundred_evictions_take_one_turn() {
    let devices: Vec<Device> = (100..200).map(Device::new).collect();
    let stays = Device::new(5);
    let members: Vec<&Device> = devices.iter().chain([&stays]).collect();
    let (mut w, mut ws, admin) = founded_with(&members);
    let absent = |n: usize| EntryHash(Hash::of(&[&n.to_be_bytes()]).0);
    let full = ws
        .next()
        .with(|s| s.entries.extend((s.entries.len()..LIST_MAX).map(absent)))
        .by(&ws.founder);
    w.accept(admin, &mut ws, full);
    let dropped: Vec<C> = devices.iter().map(|d| w.login(d, &[group(1)])).collect();
    let bystander = w.login(&stays, &[group(1)]);
    let set = ws.removing(&devices.iter().collect::<Vec<_>>()).by(&ws.founder);
    w.hold(Kind::Commit);
    w.say(admin, access(&set.encode()));
    assert!(
        w.take(admin).is_none() && dropped.iter().all(|&c| w.is_open(c)),
        "not before it is durable"
    );
    w.let_through(Kind::Commit);
    w.turn();
    let answer = w.take(admin).map(|message| Got::of(&message));
    assert_eq!(answer, Some(Got::Access(set.digest().0.to_vec())));
    for c in dropped {
        assert_eq!(w.closed(c), Some((CloseHow::Evict, CloseReason::Evicted)));
    }
    assert!(w.is_open(bystander));
}

/// W05.18: a publisher that removes its own entry gets the digest, then its sockets close (decisions.md 14).
#[test]
fn self_removal_is_answered_first() {
    let (mut w, mut ws, _) = founded_with(&[]);
    let (second, salt) = (Device::new(5), ws.salt);
    let admin = w.login(&ws.founder.clone(), &[group(1)]);
    let set = ws
        .next()
        .with(|s| {
            s.authorizers.push(second.public());
            s.entries.push(second.entry(&salt));
        })
        .by(&ws.founder);
    w.accept(admin, &mut ws, set);
    let (c, other) = (w.login(&second, &[group(1)]), w.login(&second, &[group(1)]));
    let set = ws
        .removing(&[&second])
        .with(|s| s.authorizers.retain(|k| *k != second.public()))
        .by(&second);
    w.push(c, access(&set.encode()));
    w.push(c, send(group(1), b"behind it"));
    assert_eq!(w.got(c), [Got::Access(set.digest().0.to_vec())]);
    assert_eq!(w.closed(c), Some((CloseHow::Flush, CloseReason::Evicted)));
    assert_eq!(w.closed(other), Some((CloseHow::Evict, CloseReason::Evicted)));
    assert_eq!(w.store.appended_records(), 0);
}

/// W05.15: a provisional device dropped after a set had carried it is closed and refused, and its grant is no way back;
/// one that no set ever carried keeps its grant; expired and voided grants admit nobody.
#[test]
fn grants_die_as_the_specification_says() {
    let (mut w, mut ws, _) = founded_with(&[]);
    let far = EPOCH_MS + 86_400_000;
    let (carried, never, expired, revoked) = (Device::new(5), Device::new(6), Device::new(7), Device::new(8));
    give_grant(&mut w, &ws, &carried, far, None);
    give_grant(&mut w, &ws, &never, far, None);
    give_grant(&mut w, &ws, &expired, EPOCH_MS, None);
    give_grant(&mut w, &ws, &revoked, far, Some(0));
    assert!(!w.admits(&expired, &[group(1)]));
    assert!(!w.admits(&revoked, &[group(1)]));
    let (c, n) = (w.login(&carried, &[group(1)]), w.login(&never, &[group(1)]));
    let admin = w.login(&ws.founder.clone(), &[group(1)]);
    let set = ws.adding(&[&carried]).by(&ws.founder);
    w.accept(admin, &mut ws, set);
    assert!(w.is_open(c));
    w.restart(); // what was seen is remembered
    let (c, n2) = (w.login(&carried, &[group(1)]), w.login(&never, &[group(1)]));
    let admin = w.login(&ws.founder.clone(), &[group(1)]);
    let set = ws.removing(&[&carried]).by(&ws.founder);
    w.accept(admin, &mut ws, set);
    assert_eq!(w.closed(c), Some((CloseHow::Evict, CloseReason::Evicted)));
    assert!(!w.admits(&carried, &[group(1)]));
    assert!(w.is_open(n2) && w.admits(&never, &[group(1)]));
    let _ = n;
    w.restart();
    assert!(!w.admits(&carried, &[group(1)]), "a void is terminal");
}

/// W05.16: a device granted while it was in the set, then removed, is refused (05 D9).
#[test]
fn grant_given_inside_the_set_dies_with_removal() {
    let member = Device::new(5);
    let (mut w, mut ws, _) = founded_with(&[&member]);
    give_grant(&mut w, &ws, &member, EPOCH_MS + 86_400_000, None);
    let admin = w.login(&ws.founder.clone(), &[group(1)]);
    let set = ws.removing(&[&member]).by(&ws.founder);
    w.accept(admin, &mut ws, set);
    assert!(!w.admits(&member, &[group(1)]));
}

/// W05.26: a provisional socket whose grant lapsed closes silently within a minute, and its next durable write has no
/// effect; one that a set carries by then lives on (05 D11).
#[test]
fn lapsed_grant_ends_its_socket() {
    let (mut w, mut ws, _) = founded_with(&[]);
    let (lapsing, carried, writer) = (Device::new(5), Device::new(6), Device::new(7));
    for device in [&lapsing, &carried, &writer] {
        give_grant(&mut w, &ws, device, EPOCH_MS + 30_000, None);
    }
    let [l, c, s] = [&lapsing, &carried, &writer].map(|d| w.login(d, &[group(1)]));
    let admin = w.login(&ws.founder.clone(), &[group(1)]);
    let set = ws.adding(&[&carried]).by(&ws.founder);
    w.accept(admin, &mut ws, set);
    assert_eq!(w.stored(s, group(1), b"in time"), 1);
    w.set_wall(EPOCH_MS + 30_000);
    assert_eq!(w.ask(s, send(group(1), b"too late")), []);
    assert_eq!(w.closed(s), Some((CloseHow::Evict, CloseReason::Evicted)));
    assert_eq!(w.store.appended_records(), 1);
    w.advance(60_000);
    assert_eq!(w.got(l), []);
    assert_eq!(w.closed(l), Some((CloseHow::Evict, CloseReason::Evicted)));
    assert!(w.is_open(c));
    assert_eq!(w.stored(c, group(1), b"still here"), 2);
}

/// W05.19: the 31st ACCESS frame of a minute is refused with 30, the query included, on a socket that stays up; the
/// next window takes it. W04.4
#[test]
fn access_budget_is_thirty() {
    let (mut w, _, admin) = founded_with(&[]);
    for _ in 0..30 {
        assert!(matches!(w.ask1(admin, access(&[])), Got::Access(_)));
    }
    assert_eq!(w.ask1(admin, access(&[])), limited(Code::RateLimited, 60, 30));
    assert_eq!(w.stored(admin, group(1), b"x"), 1);
    w.set_wall(EPOCH_MS + 60_000);
    assert!(matches!(w.ask1(admin, access(&[])), Got::Access(_)));
}

/// W05.20: in read-only mode a publication is refused, the query is answered, AUTH_ACK says 1.
#[test]
fn read_only_refuses_publications() {
    let (mut w, ws, _) = founded_with(&[]);
    w.restart_with(|c| c.read_only = true);
    let c = w.open();
    let got = only(w.auth(c, &ws.founder, &[group(1)]));
    assert!(matches!(got, Got::AuthAck { write_mode: 1, .. }));
    assert_eq!(
        w.publish(c, &ws.next().by(&ws.founder)),
        refused(Code::ServiceReadOnly)
    );
    assert_eq!(w.state(c).head, Some((0, ws.head.digest())));
}

/// W05.22: a publication that the store did not take is answered `retry/backpressure`; nothing changed, and the same
/// bytes succeed afterwards. W05.23
#[test]
fn failed_publication_changes_nothing() {
    let victim = Device::new(5);
    let (mut w, mut ws, admin) = founded_with(&[&victim]);
    let (c, before) = (w.login(&victim, &[group(1)]), w.records(&ws.minted.realm));
    let set = ws.removing(&[&victim]).by(&ws.founder);
    w.store.fail_next(Kind::Commit, Fault::NotCommitted);
    assert_retry(&w.publish(admin, &set), Code::Backpressure);
    assert_eq!(w.records(&ws.minted.realm), before);
    assert!(w.is_open(c) && w.is_open(admin) && w.admits(&victim, &[group(1)]));
    assert_eq!(w.state(admin).head, Some((0, ws.head.digest())));
    w.accept(admin, &mut ws, set);
    assert!(!w.is_open(c));
}

/// A publication with an unknown outcome: the realm is loaded again, its connections are sent away with
/// `retry/failover`, and the truth is what the store says (decisions.md 47). W05.23
#[test]
fn unknown_publication_is_read_back() {
    for (fault, kept) in [(Fault::UnknownKept, true), (Fault::UnknownLost, false)] {
        let victim = Device::new(5);
        let (mut w, ws, admin) = founded_with(&[&victim]);
        let c = w.login(&victim, &[group(1)]);
        let set = ws.removing(&[&victim]).by(&ws.founder);
        w.store.fail_next(Kind::Commit, fault);
        let got = w.ask(admin, access(&set.encode()));
        assert_retry(&got[0], Code::Backpressure);
        assert_retry(&got[1], Code::Failover);
        assert_retry(&only(w.got(c)), Code::Failover);
        assert!(!w.is_open(admin) && !w.is_open(c));
        assert_eq!(w.admits(&victim, &[group(1)]), !kept);
        let admin = w.login(&ws.founder, &[group(1)]);
        let head = if kept {
            (1, set.digest())
        } else {
            (0, ws.head.digest())
        };
        assert_eq!(w.state(admin).head, Some(head));
    }
}

/// Another owner has moved the head: the store's check refuses, memory is given up and read again.
#[test]
fn refused_check_loads_the_realm_again() {
    let (mut w, ws, admin) = founded_with(&[]);
    let set = ws.adding(&[&Device::new(5)]).by(&ws.founder);
    w.commit_behind(
        &ws.minted.realm,
        ControlBatch {
            writes: vec![
                Write {
                    key: b"head".to_vec(),
                    value: Some(Bytes::copy_from_slice(&1u64.to_be_bytes())),
                },
                Write {
                    key: [&b"set/"[..], &1u64.to_be_bytes()].concat(),
                    value: Some(set.encode().into()),
                },
            ],
            ..ControlBatch::default()
        },
    );
    let other = ws.adding(&[&Device::new(6)]).by(&ws.founder);
    let got = w.ask(admin, access(&other.encode()));
    assert_retry(&got[0], Code::Backpressure);
    assert!(w.admits(&Device::new(5), &[group(1)]));
}

/// The transparency log: entry 0 is the genesis, and every later kind is chained to it (05 §13, decisions.md 38).
/// W06.20, W09.13, W09.14: entry 0 is there once, and a refused publication appends nothing.
#[test]
fn transparency_log_is_chained() {
    let (mut w, mut ws, admin) = founded_with(&[&Device::new(5)]);
    let set = ws.removing(&[&Device::new(5)]).by(&ws.founder);
    w.accept(admin, &mut ws, set);
    let c = w.login(&ws.recovery.clone(), &[group(1)]);
    let set = rotation(&ws, &Device::new(20), &Device::new(21), &[]).by(&ws.recovery);
    w.accept(c, &mut ws, set);
    let set = ws.next().by(&ws.founder);
    w.accept(admin, &mut ws, set);
    let forged = ws.removing(&[&Device::new(20)]).by(&Device::new(99));
    assert!(w.ask1(admin, access(&forged.encode())).code().is_some());
    let entries: Vec<Bytes> = w
        .records(&ws.minted.realm)
        .into_iter()
        .filter(|(key, _)| key.starts_with(b"transparency/"))
        .map(|(_, value)| value)
        .collect();
    let mut prev = [0; 32];
    let mut kinds = Vec::new();
    for entry in &entries {
        let mut d = minicbor::Decoder::new(entry);
        assert_eq!(d.array().unwrap(), Some(5));
        kinds.push(d.str().unwrap().to_owned());
        let body = d.bytes().unwrap();
        assert_eq!(d.bytes().unwrap(), prev);
        let hash = Hash::of(&[&prev, body]).0;
        assert_eq!(d.bytes().unwrap(), hash);
        prev = hash;
    }
    assert_eq!(kinds[0], "genesis");
    assert_eq!(kinds[1..], ["removal", "recovery", "probation_cleared"]);
}
