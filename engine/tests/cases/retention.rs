//! The retention chain (08 §11, §12) and the freeze (09 §6).

use crate::cases::access::give_grant;
use crate::world::*;
use drover_wire::blob::{Position, Request, Response};
use drover_wire::error::Code;
use drover_wire::frame::Frame;
use drover_wire::id::{GroupId, Hash, Signature};
use drover_wire::retention::{Control, Manifest, Policy, SOLE_AUTHORIZER_DELAY_S};

/// A founder and member 5 in two groups, a second workspace with group 9, and the founder's connection.
fn founded() -> (World, Workspace, C) {
    let mut w = World::new();
    w.found_by("ws:two", &Device::new(3), &Device::new(4), &[], &[group(9)]);
    let ws = w.found("ws:one", &[&Device::new(5)], &[group(1), group(2)]);
    let c = w.login(&ws.founder.clone(), &[group(1)]);
    (w, ws, c)
}

fn key(n: u64) -> Device {
    Device::new(800 + n)
}

fn now_s(w: &World) -> u64 {
    w.now.wall_ms / 1000
}

fn frozen(digest: Hash) -> Got {
    refused_with(Code::GroupFrozen, 0, &digest.0)
}

fn denied(word: &str) -> Got {
    refused_with(Code::WriterNotInAccessSet, 0, word.as_bytes())
}

/// Whether a new envelope is taken.
fn takes(w: &mut World, c: C, ct: &[u8]) -> bool {
    matches!(w.ask1(c, send(group(1), ct)), Got::Ack(..))
}

/// W08.12: the first control signs itself and is acknowledged with its digest, again and again; a second one is
/// malformed and freezes nothing.
#[test]
fn a_first_control_is_settled_once() {
    let (mut w, _, c) = founded();
    let member = w.login(&Device::new(5), &[group(1)]);
    let chain = Chain::new(group(1), key(1));
    let by_another = Chain::new(group(1), key(2)).control;
    let mut forged = chain.control.clone();
    forged.sig = by_another.sig;
    let mut follows = chain.control.clone();
    follows.prev = Some(vec![0; 32]);
    let follows = follows.signed(&key(1).key);
    for wrong in [&forged, &follows, &chain.successor(&key(2))] {
        assert_eq!(w.ask1(c, control(wrong)), refused(Code::MalformedHeader));
    }
    for conn in [c, member, c] {
        assert_eq!(
            w.ask1(conn, control(&chain.control)),
            acked(chain.control.digest())
        );
    }
    assert_eq!(w.ask1(c, control(&by_another)), refused(Code::MalformedHeader));
    assert!(takes(&mut w, c, b"x"));
    // Groups have chains of their own, and a restart forgets none.
    w.begin_chain(c, group(2), key(2));
    w.restart();
    let c = w.login(&Device::new(5), &[group(1)]);
    assert_eq!(w.ask1(c, control(&chain.control)), acked(chain.control.digest()));
    assert_eq!(w.ask1(c, control(&by_another)), refused(Code::MalformedHeader));
}

/// W08.12: epoch 0 is for devices of the current set: neither a grant nor a removed device will do.
#[test]
fn a_first_control_is_a_members() {
    let (mut w, mut ws, c) = founded();
    let next = ws.removing(&[&Device::new(5)]).by(&ws.founder);
    let member = w.login(&Device::new(5), &[group(1)]);
    w.accept(c, &mut ws, next);
    assert!(!w.is_open(member));
    give_grant(&mut w, &ws, &Device::new(77), EPOCH_MS + 60_000, None);
    w.restart();
    let c = w.login(&ws.founder, &[group(1)]);
    let guest = w.login(&Device::new(77), &[group(1)]);
    let chain = Chain::new(group(1), key(1));
    assert_eq!(
        w.ask1(guest, control(&chain.control)),
        refused(Code::WriterNotInAccessSet)
    );
    w.begin_chain(c, group(1), key(1));
    // Not even what is settled is acknowledged to a guest; what follows epoch 0 needs the key alone.
    assert_eq!(
        w.ask1(guest, control(&chain.control)),
        refused(Code::WriterNotInAccessSet)
    );
    let next = chain.successor(&key(2));
    assert_eq!(w.ask1(guest, control(&next)), acked(next.digest()));
}

/// W08.12: a successor names its predecessor's digest and is signed by its key; anything else is malformed and freezes
/// nothing.
#[test]
fn a_successor_follows_the_newest_control() {
    let (mut w, _, c) = founded();
    let mut chain = w.begin_chain(c, group(1), key(1));
    let good = chain.successor(&key(2));
    let change = |f: &dyn Fn(&mut Control), by: &Device| {
        let mut changed = good.clone();
        f(&mut changed);
        changed.signed(&by.key)
    };
    let wrong = [
        change(&|c| c.prev = None, &key(1)),
        change(&|c| c.prev = Some(vec![7; 32]), &key(1)),
        change(&|c| c.prev = Some(Vec::new()), &key(1)),
        change(&|c| c.epoch = 2, &key(1)),
        change(&|c| c.epoch = u64::MAX, &key(1)),
        change(&|_| {}, &key(2)),
        change(&|_| {}, &Device::new(1)),
    ];
    let twice = |w: &mut World| {
        for wrong in &wrong {
            assert_eq!(
                w.ask1(c, control(wrong)),
                refused(Code::MalformedHeader),
                "{wrong:?}"
            );
        }
        assert!(takes(w, c, &w.now.mono_ms.to_be_bytes()));
        w.advance(1);
    };
    twice(&mut w);
    w.hand_over(c, &mut chain, key(2));
    // A settled epoch is no easier.
    twice(&mut w);
    w.hand_over(c, &mut chain, key(3));
    w.hand_over(c, &mut chain, key(4));
    twice(&mut w);
    assert_eq!(w.position(c, group(1)).control_epoch, 3);
    // What is settled is acknowledged again, however old.
    assert_eq!(w.ask1(c, control(&good)), acked(good.digest()));
    w.restart();
    let c = w.login(&Device::new(1), &[group(1)]);
    assert_eq!(w.ask1(c, control(&good)), acked(good.digest()));
    assert_eq!(
        w.position(c, group(1)).control_digest,
        Some(chain.control.digest())
    );
}

/// W08.12: a valid rival of a settled control freezes, each time it comes, and is held as evidence once; the settled
/// one stays settled.
#[test]
fn a_rival_freezes_the_group() {
    for older in [false, true] {
        let (mut w, ws, c) = founded();
        let mut chain = w.begin_chain(c, group(1), key(1));
        let (winner, rival) = (chain.successor(&key(2)), chain.successor(&key(3)));
        w.hand_over(c, &mut chain, key(2));
        if older {
            w.hand_over(c, &mut chain, key(4));
        }
        let before = w.records(&ws.minted.realm);
        assert_eq!(w.ask1(c, control(&rival)), frozen(chain.control.digest()));
        let after = w.records(&ws.minted.realm);
        assert_ne!(before, after, "the evidence is kept");
        assert_eq!(w.ask1(c, control(&rival)), frozen(chain.control.digest()));
        assert_eq!(w.records(&ws.minted.realm), after, "once");
        assert_eq!(w.ask1(c, control(&winner)), acked(winner.digest()));
        assert_eq!(
            w.position(c, group(1)).control_digest,
            Some(chain.control.digest())
        );
        assert_eq!(w.ask1(c, send(group(1), b"x")), frozen(chain.control.digest()));
    }
}

/// W08.12: of two successors that race, one wins and the other freezes the group; the loser is the evidence.
#[test]
fn a_race_has_one_winner() {
    let (mut w, _, c) = founded();
    let member = w.login(&Device::new(5), &[group(1)]);
    let chain = w.begin_chain(c, group(1), key(1));
    let (one, two) = (chain.successor(&key(2)), chain.successor(&key(3)));
    w.hold(Kind::Commit);
    w.push(c, control(&one));
    w.push(member, control(&two));
    w.pump();
    assert_eq!((w.got(c), w.got(member)), (vec![], vec![]));
    w.release(Kind::Commit);
    assert_eq!(only(w.got(c)), acked(one.digest()));
    assert_eq!(only(w.got(member)), frozen(one.digest()));
    assert_eq!(w.ask1(c, resolution(group(1), 1, &key(3))), resolved());
}

/// W08.13: the settled key or the rival's clears a freeze, for good; a stranger is denied, a bad signature malformed;
/// where nothing is frozen it succeeds as well.
#[test]
fn a_resolution_ends_the_freeze() {
    let (mut w, _, c) = founded();
    let mut chain = w.begin_chain(c, group(1), key(1));
    assert_eq!(w.ask1(c, resolution(group(1), 0, &key(1))), resolved());
    let loser = w.freeze(c, &mut chain);
    let mut forged = a_resolution(group(1), 1, &loser);
    forged.sig = Signature([1; 64]);
    for (message, answer) in [
        (blob(&Request::Resolution(forged)), refused(Code::MalformedHeader)),
        (
            resolution(group(1), 1, &Device::new(1)),
            refused(Code::WriterNotInAccessSet),
        ),
        (
            resolution(group(1), 0, &loser),
            refused(Code::WriterNotInAccessSet),
        ),
        (
            resolution(group(1), 2, &loser),
            refused(Code::WriterNotInAccessSet),
        ),
        (
            resolution(group(2), 0, &loser),
            refused(Code::WriterNotInAccessSet),
        ),
    ] {
        assert_eq!(w.ask1(c, message), answer);
        assert!(!takes(&mut w, c, b"x"));
    }
    w.restart();
    let c = w.login(&Device::new(5), &[group(1)]);
    assert!(!takes(&mut w, c, b"x"), "a freeze outlives a restart");
    assert_eq!(w.ask1(c, resolution(group(1), 1, &loser)), resolved());
    assert!(takes(&mut w, c, b"x"));
    assert_eq!(
        w.position(c, group(1)).control_digest,
        Some(chain.control.digest()),
        "the winner stays"
    );
    w.restart();
    let c = w.login(&Device::new(5), &[group(1)]);
    assert!(takes(&mut w, c, b"y"));
    // Its own key, and that of an epoch long settled.
    for by in [chain.key.clone(), key(1)] {
        let rival = Chain {
            control: Chain::new(group(1), key(1)).control,
            key: key(1),
            ..chain.clone()
        };
        let got = w.ask1(c, control(&rival.successor(&loser)));
        assert_eq!(got, frozen(chain.control.digest()));
        let epoch = u64::from(by.public() == chain.key.public());
        assert_eq!(w.ask1(c, resolution(group(1), epoch, &by)), resolved());
        assert!(takes(&mut w, c, &by.public().0));
    }
}

/// W09.8: a frozen group refuses new envelopes with the newest control's digest, taking no number and fanning out
/// nothing; what is stored is acknowledged; handshakes, SUB, RECON, LIVE and manifests go on; other groups are
/// untouched; the report names it; a resolution restores all.
#[test]
fn a_frozen_group_takes_no_new_envelopes() {
    let (mut w, ws, c) = founded();
    let reader = w.login(&Device::new(5), &[group(1)]);
    w.subscribe(reader, group(1), 0);
    assert_eq!(w.stored(c, group(1), b"one"), 1);
    w.got(reader);
    let mut chain = w.begin_chain(c, group(1), key(1));
    let loser = w.freeze(c, &mut chain);
    let refusal = frozen(chain.control.digest());
    for n in 0..3 {
        assert_eq!(w.ask1(c, send(group(1), &distinct(n))), refusal);
    }
    let (mut broken, _) = envelope(group(1), b"bad");
    *broken.last_mut().unwrap() ^= 1;
    assert_eq!(
        w.ask1(c, send_envelope(&broken)),
        refused(Code::HashMismatch),
        "judged first"
    );
    assert_eq!(w.stored(c, group(1), b"one"), 1, "a duplicate");
    assert_eq!(w.stored(c, group(2), b"elsewhere"), 1);
    assert_eq!(w.got(reader), []);
    assert_eq!(w.shaken(c, group(1), b"commit"), 0);
    assert_eq!(w.got(reader).len(), 1);
    w.say(c, live(group(1), b"beat"));
    assert!(matches!(only(w.got(reader)), Got::Live(..)));
    assert_eq!(w.subscribe(c, group(1), 0).len(), 3);
    w.claim(c, &mut chain, &[Hash([1; 32])]);
    let report = w.report(&ws.minted.realm).unwrap();
    assert_eq!(report.frozen, [group(1)]);
    assert_eq!(w.ask1(c, resolution(group(1), 1, &loser)), resolved());
    assert_eq!(w.stored(c, group(1), b"two"), 2, "no number was taken");
    assert_eq!(w.report(&ws.minted.realm).unwrap().frozen, []);
}

/// W08.14: a manifest is the first, then the next: any other sequence, predecessor, epoch or signature is malformed and
/// leaves the chain where it is.
#[test]
fn manifests_follow_each_other() {
    let (mut w, _, c) = founded();
    let mut chain = Chain::new(group(1), key(1));
    let refuse = |w: &mut World, wrong: &Manifest| {
        assert_eq!(
            w.ask1(c, manifest(wrong)),
            refused(Code::MalformedHeader),
            "{wrong:?}"
        );
    };
    refuse(&mut w, &chain.draft(&[], |_| {})); // no control
    chain = w.begin_chain(c, group(1), key(1));
    let wrong = |chain: &Chain| {
        let mut forged = chain.draft(&[], |_| {});
        forged.sig = Signature([3; 64]);
        let sequence = chain.manifest.map_or(0, |(s, _)| s);
        vec![
            chain.draft(&[], |m| m.sequence = sequence),
            chain.draft(&[], |m| m.sequence = sequence + 2),
            chain.draft(&[], |m| m.prev = Some(vec![1; 32])),
            chain.draft(&[], |m| m.epoch += 1),
            chain.draft(&[], |_| {}).signed(&key(5).key),
            forged,
        ]
    };
    for wrong in wrong(&chain) {
        refuse(&mut w, &wrong);
    }
    w.claim(c, &mut chain, &[Hash([1; 32])]);
    for wrong in wrong(&chain) {
        refuse(&mut w, &wrong);
    }
    refuse(&mut w, &chain.draft(&[], |m| m.prev = None));
    // The epoch moves on, the sequence with it.
    let old = chain.clone();
    w.hand_over(c, &mut chain, key(2));
    refuse(&mut w, &old.draft(&[], |_| {}));
    refuse(&mut w, &chain.draft(&[], |_| {}).signed(&key(1).key));
    let last = w.claim(c, &mut chain, &[Hash([1; 32]), Hash([2; 32])]);
    assert_eq!(last.sequence, 2);
}

/// W08.14: a device that published nothing sees where the chain stands after each step, also after a restart.
#[test]
fn a_position_follows_every_step() {
    let (mut w, _, c) = founded();
    let other = w.login(&Device::new(5), &[group(1)]);
    let mut expected = Position {
        control_epoch: 0,
        control_digest: None,
        next_sequence: 1,
        prev_manifest: None,
        blobs: Vec::new(),
    };
    assert_eq!(w.position(other, group(1)), expected);
    let mut chain = w.begin_chain(c, group(1), key(1));
    expected.control_digest = Some(chain.control.digest());
    assert_eq!(w.position(other, group(1)), expected);
    let blobs: Vec<Hash> = (0..4096_u32).map(|n| Hash::of(&[&n.to_be_bytes()])).collect();
    for count in [1, 4096, 0, 7] {
        let taken = w.claim(c, &mut chain, &blobs[..count]);
        expected.next_sequence += 1;
        expected.prev_manifest = Some(taken.digest());
        expected.blobs = blobs[..count].to_vec();
        assert_eq!(w.position(other, group(1)), expected);
    }
    w.hand_over(c, &mut chain, key(2));
    (expected.control_epoch, expected.control_digest) = (1, Some(chain.control.digest()));
    assert_eq!(w.position(other, group(1)), expected);
    w.restart();
    let other = w.login(&Device::new(5), &[group(1)]);
    assert_eq!(w.position(other, group(1)), expected);
}

/// W08.14, W08.21: the exact latest manifest sent again is acknowledged (08 decision 13), an older one is not; naming a
/// hash again is free.
#[test]
fn the_latest_manifest_is_acknowledged_again() {
    let (mut w, _, c) = founded();
    let mut chain = w.begin_chain(c, group(1), key(1));
    let first = w.claim(c, &mut chain, &[Hash([1; 32])]);
    assert_eq!(w.ask1(c, manifest(&first)), acked(first.digest()));
    let second = w.claim(c, &mut chain, &[Hash([1; 32])]);
    assert_eq!(w.ask1(c, manifest(&second)), acked(second.digest()));
    assert_eq!(w.ask1(c, manifest(&first)), refused(Code::MalformedHeader));
    w.hand_over(c, &mut chain, key(2));
    assert_eq!(w.ask1(c, manifest(&second)), acked(second.digest()));
    assert_eq!(w.position(c, group(1)).next_sequence, 3);
}

/// W08.21: a manifest is taken whole or not at all, whichever of its writes fails, and the retry is no sequence error.
#[test]
fn a_manifest_that_fails_leaves_nothing() {
    for failing in 0..2 {
        let (mut w, _, c) = founded();
        let mut chain = w.begin_chain(c, group(1), key(1));
        w.claim(c, &mut chain, &[Hash([1; 32])]);
        let before = w.position(c, group(1));
        w.hold(Kind::Commit);
        w.push(c, manifest(&chain.draft(&[Hash([2; 32])], |_| {})));
        w.pump();
        for _ in 0..failing {
            w.release_one(Kind::Commit);
        }
        w.fail_one(Kind::Commit, Fault::NotCommitted);
        w.release(Kind::Commit);
        assert_retry(&only(w.got(c)), Code::Backpressure);
        assert_eq!(w.position(c, group(1)), before);
        // Another one may come in its place.
        w.claim(c, &mut chain, &[Hash([3; 32])]);
        assert_eq!(w.position(c, group(1)).blobs, [Hash([3; 32])]);
    }
}

/// Refused manifests are evidence: each is held once, the newest ones only (08 decision 14).
#[test]
fn evidence_of_manifests_is_bounded() {
    let (mut w, ws, c) = founded();
    let chain = w.begin_chain(c, group(1), key(1));
    let size = |w: &World| -> usize {
        let records = w.records(&ws.minted.realm);
        let of_chain = records.iter().filter(|(k, _)| k.starts_with(b"retention/"));
        of_chain.map(|(_, v)| v.len()).sum()
    };
    let mut sizes = Vec::new();
    for n in 0..40 {
        let wrong = chain.draft(&[], |m| m.sequence = 100 + n);
        for _ in 0..2 {
            assert_eq!(w.ask1(c, manifest(&wrong)), refused(Code::MalformedHeader));
            sizes.push(size(&w));
        }
    }
    assert!(sizes.chunks(2).all(|pair| pair[0] == pair[1]), "held once");
    assert!(sizes[0] < sizes[2]);
    assert_eq!(sizes[40], sizes[79], "bounded");
}

/// W08.15: without a set's authorizers nothing has authority; one has to wait seven days, two need not; each detail
/// says which it is.
#[test]
fn thresholds_of_policies_and_destructions() {
    let (mut w, mut ws, c) = founded();
    let (founder, second, stranger) = (ws.founder.clone(), Device::new(6), Device::new(5));
    let now = now_s(&w);
    let due = now + SOLE_AUTHORIZER_DELAY_S;
    let target = Hash([4; 32]);
    // The sole authorizer.
    for signers in [vec![], vec![&stranger]] {
        let p = Policy {
            authorizers: vec![founder.public()],
            ..a_policy(group(1), 1, due, &[])
        };
        let p = signers.iter().fold(p, |p, d| p.signed(&d.key));
        assert_eq!(w.ask1(c, policy(&p)), denied("insufficient_signatures"));
    }
    let too_soon = |seconds| refused_with(Code::WriterNotInAccessSet, seconds, b"sole_authorizer_too_soon");
    let early = a_policy(group(1), 1, due - 5, &[&founder]);
    assert_eq!(w.ask1(c, policy(&early)), too_soon(5));
    let early = a_destruction(group(1), b"blob", target, now, &[&founder]);
    assert_eq!(
        w.ask1(c, destruction(&early)),
        too_soon(SOLE_AUTHORIZER_DELAY_S as u32)
    );
    let good = a_destruction(group(1), b"blob", target, due, &[&founder]);
    assert_eq!(w.ask1(c, destruction(&good)), acked(good.digest()));
    let good = a_policy(group(1), 1, due, &[&founder]);
    assert_eq!(w.ask1(c, policy(&good)), acked(good.digest()));
    // Two authorizers.
    let next = ws
        .adding(&[&second])
        .with(|set| set.authorizers.push(second.public()))
        .by(&founder);
    w.accept(c, &mut ws, next);
    let both = [&founder, &second];
    let lone = a_policy(group(1), 2, due, &[&founder]);
    let twice = lone.clone().signed(&founder.key);
    for p in [lone, twice] {
        assert_eq!(w.ask1(c, policy(&p)), denied("insufficient_signatures"));
    }
    let at_once = a_policy(group(1), 2, 0, &both);
    assert_eq!(w.ask1(c, policy(&at_once)), acked(at_once.digest()));
    let at_once = a_destruction(group(1), b"drop_before", target, 0, &both);
    assert_eq!(w.ask1(c, destruction(&at_once)), acked(at_once.digest()));
}

/// W08.15: a session without a workspace's set has no authorizers to ask (05 D12 keeps it from here); a group without a
/// policy begins with version 1. Version skips, shortening and 29 days are malformed before any signature is looked at;
/// the active policy again is acknowledged without one.
#[test]
fn policies_follow_each_other() {
    let (mut w, mut ws, c) = founded();
    let (founder, second) = (ws.founder.clone(), Device::new(6));
    let next = ws
        .adding(&[&second])
        .with(|set| set.authorizers.push(second.public()))
        .by(&founder);
    w.accept(c, &mut ws, next);
    let both = [&founder, &second];
    let with = |version, media, text| {
        let mut p = a_policy(group(1), version, 10, &[]);
        p.authorizers = both.iter().map(|d| d.public()).collect();
        (p.media_after_days, p.text_after_days) = (media, text);
        both.iter().fold(p, |p, d| p.signed(&d.key))
    };
    let unsigned = |p: Policy| Policy { sigs: vec![], ..p };
    let refuse = |w: &mut World, p: Policy| {
        for p in [unsigned(p.clone()), p] {
            assert_eq!(w.ask1(c, policy(&p)), refused(Code::MalformedHeader), "{p:?}");
        }
    };
    for (version, media) in [(0, 60), (2, 60), (1, 29), (1, 0)] {
        refuse(&mut w, with(version, media, 0));
    }
    let first = with(1, 60, 0);
    assert_eq!(w.ask1(c, policy(&first)), acked(first.digest()));
    for conn_restarts in [false, true] {
        if conn_restarts {
            w.restart();
        }
        let c = w.login(&founder, &[group(1)]);
        let again = unsigned(first.clone());
        assert_eq!(w.ask1(c, policy(&again)), acked(first.digest()));
    }
    let c = w.login(&founder, &[group(1)]);
    for (version, media) in [(2, 59), (3, 60), (1, 61), (2, 29)] {
        for p in [unsigned(with(version, media, 0)), with(version, media, 0)] {
            assert_eq!(w.ask1(c, policy(&p)), refused(Code::MalformedHeader), "{p:?}");
        }
    }
    for (version, media, text) in [(2, 60, 9), (3, 90, 9)] {
        let next = with(version, media, text);
        assert_eq!(w.ask1(c, policy(&next)), acked(next.digest()));
    }
}

/// W08.15: a destruction is settled by its first record; the same one again is acknowledged also when a sole
/// authorizer's time has come nearer meanwhile; another one for the target needs its authority, and changes nothing.
#[test]
fn a_destruction_is_settled_by_its_first_record() {
    let (mut w, ws, c) = founded();
    let due = now_s(&w) + SOLE_AUTHORIZER_DELAY_S;
    let (target, by) = (Hash([4; 32]), [&ws.founder]);
    let first = a_destruction(group(1), b"blob", target, due, &by);
    assert_eq!(w.ask1(c, destruction(&first)), acked(first.digest()));
    w.advance(60_000);
    assert_eq!(w.ask1(c, destruction(&first)), acked(first.digest()));
    let records = w.records(&ws.minted.realm);
    let sooner = a_destruction(group(1), b"blob", target, due + 60, &by);
    assert_eq!(w.ask1(c, destruction(&sooner)), acked(sooner.digest()));
    let unsigned = a_destruction(group(1), b"blob", target, due, &[&Device::new(5)]);
    assert_eq!(
        w.ask1(c, destruction(&unsigned)),
        denied("insufficient_signatures")
    );
    assert_eq!(w.records(&ws.minted.realm), records);
    // Another kind or group is another destruction, and a kind nobody knows is taken.
    for (g, kind) in [(1, &b"drop_before"[..]), (2, b"blob"), (1, b"")] {
        let more = a_destruction(group(g), kind, target, due + 60, &by);
        assert_eq!(w.ask1(c, destruction(&more)), acked(more.digest()));
    }
    assert_eq!(w.records(&ws.minted.realm).len(), records.len() + 4); // group 2 has a chain of its own now
}

/// Every form about a group, as somebody who may do it all would send it.
fn every_form(g: GroupId, ws: &Workspace) -> Vec<(u8, bytes::Bytes)> {
    let chain = Chain::new(g, key(1));
    let far = u64::from(u32::MAX) * 2;
    let (w, hash) = (b"w".as_slice(), Hash([1; 32]));
    vec![
        (
            1,
            blob(&Request::Put {
                workspace: w,
                group: g,
                hash,
                ciphertext_bytes: 5,
            }),
        ),
        (
            2,
            blob(&Request::Get {
                workspace: w,
                group: g,
                hash,
            }),
        ),
        (6, control(&chain.control)),
        (7, manifest(&chain.draft(&[], |_| {}))),
        (8, policy(&a_policy(g, 1, far, &[&ws.founder]))),
        (
            9,
            destruction(&a_destruction(g, b"blob", hash, far, &[&ws.founder])),
        ),
        (
            10,
            blob(&Request::List {
                workspace: w,
                group: g,
            }),
        ),
        (11, resolution(g, 0, &key(1))),
        (12, position(g)),
        (13, blob(&Request::Quota { group: g })),
    ]
}

/// W08.9: a foreign group is denied and an unknown one named, for every form; forms 6 and 11 collapse to one code.
#[test]
fn groups_are_judged_for_every_form() {
    let (mut w, ws, c) = founded();
    for (form, message) in every_form(group(9), &ws) {
        assert_eq!(w.ask1(c, message), refused(Code::WriterNotInAccessSet), "{form}");
    }
    for (form, message) in every_form(group(99), &ws) {
        let code = match form {
            6 | 11 => Code::WriterNotInAccessSet,
            _ => Code::GroupUnknown,
        };
        assert_eq!(w.ask1(c, message), refused(code), "{form}");
    }
    assert!(w.is_open(c));
}

/// W08.22: read_only refuses forms 1, 3 to 9 and 11; a position is served. Objects have no store here: what is let
/// through comes again.
#[test]
fn read_only_takes_no_records() {
    let (mut w, ws, c) = founded();
    let mut chain = w.begin_chain(c, group(1), key(1));
    w.claim(c, &mut chain, &[]);
    w.restart_with(|config| config.read_only = true);
    let c = w.login(&ws.founder, &[group(1)]);
    let session = [0; 16].as_slice();
    let mut all = every_form(group(1), &ws);
    all.push((
        3,
        blob(&Request::MultipartPart {
            session,
            part_number: 1,
            part_bytes: 1,
        }),
    ));
    all.push((
        4,
        blob(&Request::MultipartComplete {
            session,
            parts: vec![],
        }),
    ));
    all.push((5, blob(&Request::MultipartAbort { session })));
    assert_eq!(all.len(), 13);
    for (form, message) in all {
        let got = w.ask1(c, message);
        match form {
            2 | 10 | 13 => assert_retry(&got, Code::Backpressure),
            12 => assert!(matches!(got, Got::Blob(_)), "{got:?}"),
            _ => assert_eq!(got, refused(Code::ServiceReadOnly), "{form}"),
        }
    }
}

/// 08 §1: what does not decode is `reject/malformed_header`, socket open.
#[test]
fn payloads_that_do_not_decode_are_malformed() {
    let (mut w, _, c) = founded();
    let good = Request::Position { group: group(1) }.encode();
    let mut trailing = good.clone();
    trailing.push(0);
    let unknown = [b"\x82\x0e\x80".to_vec(), b"\x82\x00\x80".to_vec(), Vec::new()];
    for payload in [trailing, good[..good.len() - 1].to_vec()]
        .into_iter()
        .chain(unknown)
    {
        let got = w.ask1(c, frame(&Frame::Blob { payload: &payload }));
        assert_eq!(got, refused(Code::MalformedHeader), "{payload:02x?}");
    }
    assert!(w.is_open(c));
}

/// 08 decision 14: 300 records of the chain a minute and device, over all its sockets; the refusal waits 60 s and names
/// no limit; another device, SEND, and what is refused with the group are untouched; the next minute is free.
#[test]
fn chain_records_have_a_budget_of_their_own() {
    let (mut w, ws, c) = founded();
    w.set_wall(EPOCH_MS / 60_000 * 60_000);
    let chain = w.begin_chain(c, group(1), key(1));
    let again = w.login(&ws.founder, &[group(1)]);
    let messages = [
        position(group(1)),
        control(&chain.control),
        manifest(&chain.draft(&[], |m| m.sequence = 7)),
        resolution(group(1), 0, &key(1)),
        policy(&a_policy(group(1), 1, 0, &[&Device::new(5)])),
        destruction(&a_destruction(
            group(1),
            b"blob",
            Hash([0; 32]),
            0,
            &[&Device::new(5)],
        )),
        blob(&Request::MultipartAbort { session: &[0; 16] }),
    ];
    for n in 1..300 {
        w.push(
            if n % 2 == 0 { c } else { again },
            messages[n % messages.len()].clone(),
        );
    }
    w.push(c, position(group(99)));
    let got = [w.got(c), w.got(again)].concat();
    assert_eq!(got.len(), 300);
    assert!(got.iter().all(|g| g.code() != Some(Code::RateLimited)));
    for message in messages {
        let got = w.ask1(again, message);
        assert_eq!(got, refused_with(Code::RateLimited, 60, &[]));
    }
    let other = w.login(&Device::new(5), &[group(1)]);
    w.position(other, group(1));
    w.stored(again, group(1), b"x");
    w.advance(60_000);
    w.position(again, group(1));
}

/// A store that fails or forgets: `retry/backpressure`, nothing decided, and the next try succeeds.
#[test]
fn a_store_that_is_away_changes_nothing() {
    let (mut w, _, c) = founded();
    let mut chain = w.begin_chain(c, group(1), key(1));
    let (next, rival) = (chain.successor(&key(2)), chain.successor(&key(3)));
    w.store.down(&[Kind::Commit], Fault::NotCommitted);
    assert_retry(&w.ask1(c, control(&next)), Code::Backpressure);
    w.store.up();
    assert_eq!(w.position(c, group(1)).control_epoch, 0);
    w.hand_over(c, &mut chain, key(2));
    w.store.fail_next(Kind::Commit, Fault::NotCommitted);
    assert_retry(&w.ask1(c, control(&rival)), Code::Backpressure);
    assert!(takes(&mut w, c, b"x"), "not frozen by what was not stored");
    assert_eq!(w.ask1(c, control(&rival)), frozen(next.digest()));
    // Outcome unknown: the realm is read again, and tells.
    w.store.fail_next(Kind::Commit, Fault::UnknownKept);
    let got = w.ask(c, resolution(group(1), 1, &key(3)));
    assert_retry(&got[0], Code::Backpressure);
    assert!(!w.is_open(c));
    let c = w.login(&Device::new(5), &[group(1)]);
    assert!(takes(&mut w, c, b"y"), "the resolution was kept");
}

/// Answers leave in request order, whatever each of them had to wait for (08 §1).
#[test]
fn answers_keep_request_order() {
    let (mut w, _, c) = founded();
    let mut chain = w.begin_chain(c, group(1), key(1));
    w.claim(c, &mut chain, &[]);
    let next = chain.draft(&[Hash([1; 32])], |_| {});
    w.push(c, send(group(1), b"x"));
    w.push(c, manifest(&next));
    w.push(c, position(group(1)));
    w.push(c, position(group(99)));
    w.push(c, send(group(1), b"y"));
    let got = w.got(c);
    assert_eq!(got.len(), 5);
    assert_eq!((got[0].ack_seq(), got[4].ack_seq()), (Some(1), Some(2)));
    assert_eq!(got[1], acked(next.digest()));
    let expected = Response::Position(Position {
        control_epoch: 0,
        control_digest: Some(chain.control.digest()),
        next_sequence: 3,
        prev_manifest: Some(next.digest()),
        blobs: vec![Hash([1; 32])],
    });
    assert_eq!(got[2], answered(&expected));
    assert_eq!(got[3], refused(Code::GroupUnknown));
}

/// Without access sets a session has no workspace, and no group of it (05 D12).
#[test]
fn a_session_without_a_workspace_has_no_chain() {
    let mut w = World::with(config(|c| c.access_set = false));
    let c = w.open();
    w.auth(c, &Device::new(1), &[group(1)]);
    assert_eq!(w.ask1(c, position(group(1))), refused(Code::WriterNotInAccessSet));
}
