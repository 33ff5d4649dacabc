//! CONNECT and AUTH: who comes in, through which workspace, and who doesn't (02 §4, §5; 05 §6, §10).

use crate::cases::states::without_grants;
use crate::world::*;
use drover_engine::Directory;
use drover_engine::effects::{CloseHow, CloseReason};
use drover_storage::RealmId;
use drover_wire::access::sign;
use drover_wire::error::Code;
use drover_wire::id::Hash;

/// A workspace name that lives on this shard of two.
pub fn name_on(shard: usize, salt: usize) -> String {
    (0..)
        .map(|n| format!("ws:{salt}-{n}"))
        .find(|name| Directory::shard_of(&RealmId(name.as_str().into()), 2) == shard)
        .unwrap()
}

fn refused_and_closed(w: &mut World, c: C, got: Vec<Got>) -> bool {
    got == [refused(Code::WriterNotInAccessSet)]
        && w.closed(c) == Some((CloseHow::Flush, CloseReason::Protocol))
}

/// W02.2: two sockets with identical CONNECTs in one millisecond get different challenges, and a signature made for one
/// fails on the other.
#[test]
fn challenge_belongs_to_one_connection() {
    let mut w = World::new();
    let ws = w.found("ws:one", &[], &[group(1)]);
    let (a, b) = (w.open(), w.open());
    let (ca, cb) = (w.connect(a, 4, &[group(1)]), w.connect(b, 4, &[group(1)]));
    assert_ne!(ca, cb);
    let got = w.ask(b, ws.founder.auth(&ca));
    assert!(refused_and_closed(&mut w, b, got));
    assert!(matches!(
        w.ask(a, ws.founder.auth(&ca))[..],
        [Got::AuthAck { .. }]
    ));
}

/// W02.3: the signature is over the challenge bytes and nothing else.
#[test]
fn auth_signs_the_bare_challenge() {
    let mut w = World::new();
    let ws = w.found("ws:one", &[], &[group(1)]);
    type Twist = fn(&[u8]) -> Vec<u8>;
    let twists: [Twist; 3] = [
        |c| [b"weald relay challenge v1", c].concat(),
        |c| Hash::of(&[c]).0.to_vec(),
        |c| c[..31].to_vec(),
    ];
    for twist in twists {
        let c = w.open();
        let challenge = w.connect(c, 4, &[group(1)]);
        let got = w.ask(c, ws.founder.auth_with(sign(&ws.founder.key, &twist(&challenge))));
        assert!(refused_and_closed(&mut w, c, got));
    }
}

/// AUTH_ACK tells what the relay enforces (02 §5); the source's share is given back with it.
#[test]
fn auth_ack_reports_the_settings() {
    let mut w = World::with(config(|c| c.min_enc_mls = true));
    let ws = w.found("ws:one", &[], &[group(1)]);
    let c = w.open();
    assert!(!w.is_authenticated(c));
    assert_eq!(
        only(w.auth(c, &ws.founder, &[group(1)])),
        Got::AuthAck {
            key_packages: 0,
            write_mode: 0,
            access_set: 1,
            min_enc: 1
        }
    );
    assert!(w.is_authenticated(c));
}

/// W05.4: a stranger that names a group of a workspace without a set is refused and closed; so is one that names a
/// founded workspace's group; one that names nothing known is told so.
#[test]
fn stranger_is_refused_and_closed() {
    let mut w = World::new();
    let (stranger, founder) = (Device::new(66), Device::new(1));
    let minted = w.mint("ws:half");
    let c = w.open();
    w.reserve(c, &minted, &minted.code.clone(), [1; 16], &founder);
    assert!(matches!(
        w.auth(c, &founder, &[group(7)])[..],
        [Got::AuthAck { .. }]
    ));
    // The genesis commit fails after its groups were claimed: rows without a set.
    let salt = w.state(c).salt;
    let set = Draft::genesis(&salt, &[&founder], &[&Device::new(2)], &[]).by(&founder);
    w.store.fail_next(Kind::Commit, Fault::NotCommitted);
    assert_retry(&w.publish(c, &set), Code::Backpressure);
    let s = w.open();
    let got = w.auth(s, &stranger, &[group(7)]);
    assert!(refused_and_closed(&mut w, s, got));
    // The founder is not locked out by the half-done attempt (05 D17).
    assert_eq!(w.publish(c, &set), Got::Access(set.digest().0.to_vec()));
    let s = w.open();
    let got = w.auth(s, &stranger, &[group(7)]);
    assert!(refused_and_closed(&mut w, s, got));
    let s = w.open();
    assert_eq!(w.auth(s, &stranger, &[group(8)]), [refused(Code::GroupUnknown)]);
    assert!(!w.is_open(s));
}

/// W02.6: CONNECT naming groups of two workspaces binds to the one that admits the device, whichever is named first.
#[test]
fn connect_binds_to_the_workspace_that_admits() {
    for shards in [1, 2] {
        let mut w = World::with(config(|c| c.shards = shards));
        let member = Device::new(5);
        let one = w.found(&name_on(0, 1), &[], &[group(1)]);
        let two = w.found_by(
            &name_on(1, 2),
            &Device::new(3),
            &Device::new(4),
            &[&member],
            &[group(2)],
        );
        assert_ne!(one.salt, two.salt);
        for groups in [[group(1), group(2)], [group(2), group(1)]] {
            for shard in 0..shards {
                let c = w.login_as(shard, 4, &member, &groups);
                assert_eq!(
                    w.state(c).salt,
                    two.salt,
                    "the query answers about the bound workspace"
                );
                assert_eq!(
                    w.stored(c, group(2), &[shards as u8, shard as u8, groups[0].0[0]]),
                    {
                        let head = w.subscribe(c, group(2), 0)[0].clone();
                        let Got::SubAck(_, head) = head else { panic!() };
                        head
                    }
                );
                let foreign = w.ask1(c, send(group(1), b"x"));
                assert_eq!(foreign, refused(Code::WriterNotInAccessSet));
            }
        }
    }
}

/// W02.7: a member's CONNECT creates the groups it names; a provisional device's and a stranger's do not. W05.17
#[test]
fn only_members_create_groups() {
    let mut w = World::new();
    let ws = w.found("ws:one", &[], &[group(1)]);
    let minted = w.mint("ws:two");
    let provisional = Device::new(5);
    let c = w.open();
    w.reserve(c, &minted, &minted.code.clone(), [1; 16], &provisional);
    assert!(matches!(
        w.auth(c, &provisional, &[group(20)])[..],
        [Got::AuthAck { .. }]
    ));
    assert_eq!(w.ask1(c, send(group(20), b"x")), refused(Code::GroupUnknown));
    let c = w.open();
    w.auth(c, &Device::new(66), &[group(1), group(21)]);
    let c = w.login(&ws.founder, &[group(1)]);
    for unknown in [20, 21, 22] {
        assert_eq!(w.ask1(c, send(group(unknown), b"x")), refused(Code::GroupUnknown));
    }
    let c = w.login(&ws.founder, &[group(1), group(22), group(22)]);
    assert_eq!(w.stored(c, group(22), b"x"), 1);
    assert_eq!(w.report(&ws.minted.realm).unwrap().groups, 2);
}

/// W05.17: a group that belongs elsewhere stays there, and using it from here is refused.
#[test]
fn a_groups_first_owner_keeps_it() {
    let mut w = World::new();
    let one = w.found("ws:one", &[], &[group(1)]);
    let two = w.found_by("ws:two", &Device::new(3), &Device::new(4), &[], &[group(2)]);
    let c = w.login(&two.founder, &[group(2), group(1)]);
    assert_eq!(
        w.ask1(c, send(group(1), b"x")),
        refused(Code::WriterNotInAccessSet)
    );
    let c = w.login(&one.founder, &[group(1)]);
    assert_eq!(w.stored(c, group(1), b"x"), 1);
    assert_eq!(w.report(&two.minted.realm).unwrap().groups, 1);
}

/// W05.17: the 8192nd row is created, the 8193rd is not; the session is admitted all the same; another workspace still
/// has room. W04.3
#[test]
fn a_workspace_has_8192_groups() {
    let mut w = World::new();
    let ws = w.found("ws:one", &[], &[group(1)]);
    let groups: Vec<_> = (1..=8193).map(group).collect();
    for chunk in groups[..8192].chunks(255) {
        let named = [&groups[..1], chunk].concat();
        let c = w.login(&ws.founder, &named);
        w.hang_up(c);
    }
    assert_eq!(w.report(&ws.minted.realm).unwrap().groups, 8192);
    let c = w.login(&ws.founder, &[group(1), group(8193)]);
    assert_eq!(w.ask1(c, send(group(8193), b"x")), refused(Code::GroupUnknown));
    assert_eq!(w.stored(c, group(8192), b"x"), 1);
    let two = w.found_by("ws:two", &Device::new(3), &Device::new(4), &[], &[group(8193)]);
    let c = w.login(&two.founder, &[group(8193)]);
    assert_eq!(w.stored(c, group(8193), b"x"), 1);
}

/// W02.4: a device removed between the two admission reads is refused, wherever in between the removal commits; one
/// that is not removed comes in by the same path.
#[test]
fn removal_between_the_two_reads_is_seen() {
    for (step, admitted) in [(0, false), (1, false), (2, false), (3, false), (9, true)] {
        let mut w = World::with(config(|c| c.shards = 2));
        let victim = Device::new(5);
        let mut ws = w.found(&name_on(1, 1), &[&victim], &[group(1)]);
        let admin = w.login_as(1, 4, &ws.founder.clone(), &[group(1)]);
        let removal = ws.removing(&[&victim]).by(&ws.founder);
        let c = w.open_on(0, "203.0.113.9");
        let challenge = w.connect(c, 4, &[group(1)]);
        w.hold_letters = true;
        w.say(c, victim.auth(&challenge));
        // 0: before the question is read, 1: before the verdict is, 2: while the connection moves.
        for at in 0..3 {
            if at == step {
                w.accept(admin, &mut ws, removal.clone());
            }
            let shard = if at == 1 { 0 } else { 1 };
            if w.letters(shard) > 0 {
                w.deliver_letter(shard, 0);
            }
        }
        if step == 3 {
            w.accept(admin, &mut ws, removal.clone());
        }
        w.hold_letters = false;
        let got = w.got(c);
        match step {
            9 => assert!(matches!(got[..], [Got::AuthAck { .. }])),
            3 => {
                assert!(matches!(got[..], [Got::AuthAck { .. }]));
                assert_eq!(w.closed(c), Some((CloseHow::Evict, CloseReason::Evicted)));
            }
            _ => assert_eq!(got, [refused(Code::WriterNotInAccessSet)], "step {step}"),
        }
        assert_eq!(w.is_open(c), admitted, "step {step}");
        assert_eq!(w.admits(&victim, &[group(1)]), admitted);
    }
}

/// W02.4: the same on one shard, where only the claim of new groups lies between the reads.
#[test]
fn removal_while_groups_are_claimed_is_seen() {
    let mut w = World::new();
    let victim = Device::new(5);
    let mut ws = w.found("ws:one", &[&victim], &[group(1)]);
    let admin = w.login(&ws.founder.clone(), &[group(1)]);
    w.hold(Kind::Claim);
    let c = w.open();
    assert_eq!(w.auth(c, &victim, &[group(1), group(9)]), []);
    let set = ws.removing(&[&victim]).by(&ws.founder);
    w.accept(admin, &mut ws, set);
    w.release(Kind::Claim);
    assert_eq!(w.got(c), [refused(Code::WriterNotInAccessSet)]);
    assert!(!w.is_open(c));
}

/// W05.14: a burst of AUTHs in every stage, with the removing publication in the midst of it, leaves no socket of the
/// removed device; the other's all live. W02.4
#[test]
fn no_socket_outlives_a_removal_in_a_burst_of_auths() {
    for newest_first in [false, true] {
        let mut w = World::with(config(|c| c.shards = 2));
        let (victim, other) = (Device::new(5), Device::new(6));
        let mut ws = w.found(&name_on(1, 1), &[&victim, &other], &[group(1)]);
        let admin = w.login_as(1, 4, &ws.founder.clone(), &[group(1)]);
        w.newest_letter_first = newest_first;
        let mut sockets = Vec::new();
        for n in 0..40 {
            let device = if n % 2 == 0 { &victim } else { &other };
            let c = w.open_on(n % 2, "203.0.113.9");
            let groups = [group(1), group(100 + n as u64 % 7)];
            let challenge = w.connect(c, 4, &groups);
            w.push(c, device.auth(&challenge));
            sockets.push((c, n % 2 == 0));
            w.turn();
            if n == 25 {
                w.push(admin, access(&ws.removing(&[&victim]).by(&ws.founder).encode()));
            }
        }
        ws.head = ws.removing(&[&victim]).by(&ws.founder);
        assert_eq!(w.got(admin), [Got::Access(ws.head.digest().0.to_vec())]);
        for (c, is_victim) in sockets {
            assert_eq!(w.is_open(c), !is_victim);
        }
        assert!(!w.admits(&victim, &[group(1)]) && w.admits(&other, &[group(1)]));
    }
}

/// A connection accepted on the wrong shard is moved once and works there, what it pipelined included.
#[test]
fn connection_moves_to_its_realm_once() {
    for (newest_first, named) in [
        (false, vec![group(1)]),
        (true, vec![group(1)]),
        (false, vec![group(1), group(30)]),
    ] {
        let mut w = World::with(config(|c| c.shards = 2));
        let ws = w.found(&name_on(1, 1), &[], &[group(1)]);
        w.newest_letter_first = newest_first;
        for shard in [0, 1] {
            let c = w.open_on(shard, "203.0.113.9");
            let challenge = w.connect(c, 4, &named);
            // A client that does not wait for AUTH_ACK.
            w.push(c, ws.founder.auth(&challenge));
            w.push(c, send(group(1), &[shard as u8, newest_first as u8]));
            w.push(c, sub(group(1), 0));
            let got = w.got(c);
            assert!(
                matches!(got[..3], [Got::AuthAck { .. }, Got::Ack(..), Got::SubAck(..)]),
                "{got:?}"
            );
            assert_eq!(w.place(c), (1, 1 - shard));
            let other = w.login_as(shard, 4, &ws.founder, &[group(1)]);
            w.stored(other, group(1), &[9, shard as u8]);
            assert!(matches!(w.got(c)[..], [Got::Push(_)]));
        }
    }
}

/// A device that holds a seat but no live grant comes in as founder only: ACCESS works, nothing else, and the session
/// does not become Ready with the first set (02 §3).
#[test]
fn founder_without_grant_is_bootstrapping() {
    let mut w = World::new();
    let (founder, minted) = (Device::new(1), w.mint("ws:one"));
    let c = crate::cases::states::bootstrapping(&mut w, &minted, &founder);
    let salt = w.state(c).salt;
    let set = Draft::genesis(&salt, &[&founder], &[&Device::new(2)], &[]).by(&founder);
    assert_eq!(w.publish(c, &set), Got::Access(set.digest().0.to_vec()));
    assert_eq!(w.ask1(c, sub(group(1), 0)), refused(Code::MalformedHeader));
    assert!(!w.is_open(c));
}

/// W05.21: with access sets off any key comes in, bound to no workspace: AUTH_ACK says so, every group frame is refused,
/// ACCESS resolves by the named groups.
#[test]
fn access_sets_off_admit_any_key_to_nothing() {
    let mut w = World::new();
    let ws = w.found("ws:one", &[], &[group(1)]);
    w.restart_with(|c| c.access_set = false);
    let c = w.open();
    assert_eq!(
        only(w.auth(c, &Device::new(66), &[group(1)])),
        Got::AuthAck {
            key_packages: 0,
            write_mode: 0,
            access_set: 0,
            min_enc: 0
        }
    );
    for message in [
        send(group(1), b"x"),
        sub(group(1), 0),
        recon(group(1), &drover_wire::recon::opening(&[])),
        handshake(group(1), b"x"),
        live(group(1), b"x"),
    ] {
        assert_eq!(w.ask1(c, message), refused(Code::WriterNotInAccessSet));
    }
    assert_eq!(w.state(c).salt, ws.salt);
    let next = ws.adding(&[&Device::new(7)]).by(&ws.founder);
    assert_eq!(
        w.publish(c, &next),
        Got::Access(next.digest().0.to_vec()),
        "the publisher need not be the signer"
    );
    let c = w.open();
    w.auth(c, &Device::new(66), &[group(99)]);
    assert_eq!(w.ask1(c, access(&[])), refused(Code::GroupUnknown));
    assert_eq!(w.publish(c, &next), refused(Code::GroupUnknown));
    assert!(w.is_open(c));
}

/// W05.21: off mode finds the workspace that the set's only authorizer is founding.
#[test]
fn access_sets_off_still_found_a_workspace() {
    let mut w = World::with(config(|c| c.access_set = false));
    let (founder, minted) = (Device::new(1), w.mint("ws:one"));
    let c = w.open();
    w.reserve(c, &minted, &minted.code.clone(), [1; 16], &founder);
    w.auth(c, &founder, &[group(1)]);
    let salt = w.state(c).salt;
    let set = Draft::genesis(&salt, &[&founder], &[&Device::new(2)], &[]).by(&founder);
    let two = Draft::genesis(&salt, &[&founder, &Device::new(8)], &[&Device::new(2)], &[]).by(&founder);
    assert_eq!(w.publish(c, &two), refused(Code::GroupUnknown));
    assert_eq!(w.publish(c, &set), Got::Access(set.digest().0.to_vec()));
    assert_eq!(w.report(&minted.realm).unwrap().groups, 1);
}

/// W05.22: with the store away AUTH is answered `retry/backpressure` and closed, and works once it is back.
#[test]
fn auth_without_a_store_is_told_to_retry() {
    let mut w = World::new();
    let ws = w.found("ws:one", &[], &[group(1)]);
    for kind in [Kind::Load, Kind::Usage] {
        w.restart();
        w.store.down(&[kind], Fault::NotCommitted);
        let c = w.open();
        assert_retry(&only(w.auth(c, &ws.founder, &[group(1)])), Code::Backpressure);
        assert!(!w.is_open(c));
        w.store.up();
        assert!(w.admits(&ws.founder, &[group(1)]));
    }
    w.store.down(&[Kind::Claim], Fault::NotCommitted);
    let c = w.open();
    assert_retry(
        &only(w.auth(c, &ws.founder, &[group(1), group(2)])),
        Code::Backpressure,
    );
    assert!(!w.is_open(c));
    assert!(
        w.admits(&ws.founder, &[group(1)]),
        "without a new group nothing is claimed"
    );
}

/// Of two candidates one refuses and the other can't be read: the device is not told that it has no place (02 §5.1).
#[test]
fn unreadable_candidate_is_no_refusal() {
    let mut w = World::new();
    let member = Device::new(5);
    w.found("ws:one", &[], &[group(1)]);
    w.found_by(
        "ws:two",
        &Device::new(3),
        &Device::new(4),
        &[&member],
        &[group(2)],
    );
    w.restart();
    assert!(!w.admits(&member, &[group(1)])); // the first one is in memory now
    w.store.down(&[Kind::Load], Fault::NotCommitted);
    let c = w.open();
    assert_retry(
        &only(w.auth(c, &member, &[group(1), group(2)])),
        Code::Backpressure,
    );
}

/// The founder's way in survives a restart between reservation and publication (W02.8), and ends with the seat.
#[test]
fn founder_comes_back_after_a_restart() {
    let mut w = World::new();
    let (founder, minted) = (Device::new(1), w.mint("ws:one"));
    let c = w.open();
    w.reserve(c, &minted, &minted.code.clone(), [1; 16], &founder);
    w.restart();
    assert!(w.admits(&founder, &[]));
    without_grants(&mut w, &minted);
    assert!(w.admits(&founder, &[]));
    w.advance(599_999);
    assert!(w.admits(&founder, &[]));
    w.advance(1);
    let c = w.open();
    assert_eq!(w.auth(c, &founder, &[]), [refused(Code::GroupUnknown)]);
}

/// W05.3: a founder that knows no group: JOIN reserve, AUTH, query, publish, reconnect, SEND works. W02.8
#[test]
fn founder_comes_in_publishes_and_works() {
    let mut w = World::new();
    let (founder, minted) = (Device::new(1), w.mint("ws:one"));
    let c = w.open();
    let got = w.reserve(c, &minted, &minted.code, [1; 16], &founder);
    assert!(matches!(got, Got::Join(_)), "{got:?}");
    assert!(matches!(
        w.auth(c, &founder, &[group(1)])[..],
        [Got::AuthAck { .. }]
    ));
    assert_eq!(w.ask1(c, send(group(1), b"x")), refused(Code::GroupUnknown));
    let state = w.state(c);
    assert_eq!(state.head, None);
    let set = Draft::genesis(&state.salt, &[&founder], &[&Device::new(2)], &[]).by(&founder);
    assert_eq!(w.publish(c, &set), Got::Access(set.digest().0.to_vec()));
    assert_eq!(
        w.stored(c, group(1), b"at once"),
        1,
        "the rows exist with the answer"
    );
    let c = w.login(&founder, &[group(1)]);
    assert_eq!(w.stored(c, group(1), b"x"), 2);
    assert_eq!(w.subscribe(c, group(1), 0).len(), 3);
}
