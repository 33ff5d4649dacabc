//! INVITE and the scoped invite's life: creation, seats, commits, parking, refresh, revocation, expiry (06 §7 to §11).

use crate::world::*;
use bytes::Bytes;
use drover_engine::effects::{CloseHow, CloseReason};
use drover_wire::error::Code;
use drover_wire::frame::Frame;
use drover_wire::id::{GroupId, Token};
use drover_wire::invite::Record;
use drover_wire::invite_admin::{Request, Response, State};
use drover_wire::join;

const ROOT: u64 = 1;

/// A workspace with the groups 1 and 2, and its admin's connection.
fn founded(members: &[&Device]) -> (World, Workspace, C) {
    let mut w = World::new();
    let ws = w.found("ws:one", members, &[group(1), group(2)]);
    let admin = w.login(&ws.founder.clone(), &[group(1)]);
    (w, ws, admin)
}

/// The same with an invite of one scope.
fn issued(uses: u8) -> (World, Workspace, C, Minted) {
    let (mut w, ws, admin) = founded(&[]);
    let m = w.issue(admin, &ws, &record(&ws, 1, uses, &[group(ROOT)]));
    (w, ws, admin, m)
}

fn revoked(token: &Token) -> Got {
    invite_answer(&Response::Revoked { token: &token.0 })
}

/// W06.2: reserve, the same again without a second seat, bundles, commit, the receipt's value, the same commit again.
/// W06.12: the last seat used up: the invite is spent, its bundles are gone, the commit is still answered, until the
/// invite's end.
#[test]
fn one_seat_from_reserve_to_receipt() {
    let (mut w, ws, admin, m) = issued(1);
    let (c, joiner) = (w.open(), Device::new(9));
    let first = w.reserve(c, &m, CODE, [1; 16], &joiner);
    assert_eq!(first, reserved_until(EPOCH_MS + 600_000));
    w.set_wall(EPOCH_MS + 1_000);
    assert_eq!(w.reserve(c, &m, CODE, [1; 16], &joiner), first);
    assert_eq!(w.invites(admin)[0].remaining, 0);
    assert_eq!(w.reserve(c, &m, CODE, [2; 16], &Device::new(8)), generic());
    assert_eq!(w.bundles(&m.token, group(1)), [(1, b"sealed".to_vec())]);
    assert_eq!(w.bundles(&m.token, group(2)), [], "a group that is no scope");
    let receipt = receipt(&m, [1; 16], group(1));
    assert_eq!(w.commit(&m, 1, &joiner, group(1)), receipt);
    assert_eq!(w.invites(admin), [], "a spent invite is no live one");
    assert_eq!(w.bundles(&m.token, group(1)), []);
    assert_eq!(w.record_of(&m.token), b"");
    for restart in [false, true] {
        if restart {
            w.restart();
        }
        assert_eq!(w.commit(&m, 1, &joiner, group(1)), receipt);
        w.set_wall(EPOCH_MS + 3 * DAY_MS);
        assert_eq!(w.commit(&m, 1, &joiner, group(1)), receipt);
        assert!(
            w.admits(&joiner, &[group(1)]),
            "the grant lasts as long as the invite"
        );
    }
    let late = w.open();
    assert_eq!(w.reserve(late, &m, CODE, [3; 16], &Device::new(7)), generic());
    w.set_wall(EPOCH_MS + 7 * DAY_MS);
    assert_eq!(w.commit(&m, 1, &joiner, group(1)), generic());
    assert!(!w.admits(&joiner, &[group(1)]));
    let _ = ws;
}

/// A lost answer may make a joiner reserve again after it committed: the seat is answered as it stands, without another
/// one (06 §5 step 7).
#[test]
fn a_used_seat_is_answered_again() {
    let (mut w, _, admin, m) = issued(2);
    let (c, joiner) = (w.open(), Device::new(9));
    let first = w.reserve(c, &m, CODE, [1; 16], &joiner);
    assert_eq!(w.commit(&m, 1, &joiner, group(1)), receipt(&m, [1; 16], group(1)));
    assert_eq!(w.reserve(c, &m, CODE, [1; 16], &joiner), first);
    assert_eq!(w.invites(admin)[0].remaining, 1);
}

/// W06.11: an invite of two scopes: the seat is used up by the second commit, not by the first, and the grant then lasts
/// to the invite's end; before, it ends with the reservation.
#[test]
fn two_scopes_take_two_commits() {
    for finish in [false, true] {
        let (mut w, ws, admin) = founded(&[]);
        let m = w.issue(admin, &ws, &record(&ws, 1, 1, &[group(1), group(2)]));
        let joiner = Device::new(9);
        w.seat(&m, 1, &joiner);
        assert_eq!(w.commit(&m, 1, &joiner, group(1)), receipt(&m, [1; 16], group(1)));
        assert_eq!(w.commit(&m, 1, &joiner, group(1)), receipt(&m, [1; 16], group(1)));
        assert_eq!(w.invites(admin).len(), 1, "still live");
        w.restart(); // what was committed is remembered
        if finish {
            assert_eq!(w.commit(&m, 1, &joiner, group(2)), receipt(&m, [1; 16], group(2)));
        }
        w.set_wall(EPOCH_MS + 600_000);
        assert_eq!(w.admits(&joiner, &[group(1)]), finish);
        let again = w.commit(&m, 1, &joiner, group(2));
        let expected = if finish {
            receipt(&m, [1; 16], group(2))
        } else {
            generic()
        };
        assert_eq!(again, expected);
        w.set_wall(EPOCH_MS + 7 * DAY_MS - 1);
        assert_eq!(w.admits(&joiner, &[group(1)]), finish);
    }
}

/// A seat used up doesn't spend the invite while another one is held (06 §9, CONSUME).
#[test]
fn a_held_seat_keeps_the_invite_alive() {
    let (mut w, _, admin, m) = issued(2);
    let (a, b) = (Device::new(8), Device::new(9));
    w.seat(&m, 1, &a);
    w.seat(&m, 2, &b);
    w.commit(&m, 1, &a, group(1));
    assert_eq!(
        (w.invites(admin)[0].remaining, w.bundles(&m.token, group(1)).len()),
        (0, 1)
    );
    assert_eq!(w.commit(&m, 2, &b, group(1)), receipt(&m, [2; 16], group(1)));
    assert_eq!(w.invites(admin), []);
}

/// W06.13: revoked between reserve and commit: the commit is refused, the grant is void for good, the device's sockets
/// close without a frame, and it gets no seat by another invite either. W05.15
#[test]
fn revocation_ends_what_the_invite_gave() {
    let (mut w, ws, admin, m) = issued(2);
    let (joiner, member) = (Device::new(9), Device::new(8));
    w.seat(&m, 1, &joiner);
    w.seat(&m, 2, &member);
    let c = w.login(&joiner, &[group(1)]);
    w.subscribe(c, group(1), 0);
    let of_member = w.login(&member, &[group(1)]);
    let mut ws = ws;
    let set = ws.adding(&[&member]).by(&ws.founder);
    w.accept(admin, &mut ws, set);
    let other = w.issue(admin, &ws, &record(&ws, 2, 1, &[group(1)]));
    w.push(admin, revoke(&m.token));
    w.push(admin, send(group(1), b"after"));
    let got = w.got(admin);
    assert!(
        matches!(&got[..], [a, Got::Ack(..)] if *a == revoked(&m.token)),
        "{got:?}"
    );
    for c in [c, of_member] {
        assert_eq!(w.closed(c), Some((CloseHow::Evict, CloseReason::Evicted)));
        assert_eq!(w.got(c), []);
    }
    for restart in [false, true] {
        if restart {
            w.restart();
        }
        assert_eq!(w.commit(&m, 1, &joiner, group(1)), generic());
        assert!(!w.admits(&joiner, &[group(1)]));
        assert!(w.admits(&member, &[group(1)]), "the set admits it still");
        let c = w.open();
        let got = w.reserve(c, &other, CODE, [7; 16], &joiner);
        assert_eq!(got, generic(), "a void is terminal");
        assert_eq!(w.bundles(&m.token, group(1)), []);
        assert_eq!(w.record_of(&m.token), b"");
    }
    // What is left of it names no code and no ciphertext.
    let key = [&b"invite/"[..], &m.token.0].concat();
    let (_, tombstone) = w.records(&m.realm).into_iter().find(|(k, _)| *k == key).unwrap();
    let contains = |needle: &[u8]| tombstone.windows(needle.len()).any(|w| w == needle);
    assert!(!contains(b"sealed") && !contains(&record(&ws, 1, 2, &[group(1)]).code_hash.0));
}

/// W06.14: of an expired invite record and bundles are empty and a commit is refused, whether the seat was used or not;
/// the sweep deletes its bundles and keeps the grants that were earned for longer.
#[test]
fn an_expired_invite_serves_nothing() {
    let (mut w, ws, admin) = founded(&[]);
    // Large enough to lie in a partition of its own.
    let large = record_with(&ws, 1, 2, &[group(1)], |r| r.bundles[0].2 = vec![7; 9_000]);
    let m = w.issue(admin, &ws, &large);
    let longer = record_with(&ws, 2, 2, &[group(1)], |r| r.expires_ms += DAY_MS);
    let other = w.issue(admin, &ws, &longer);
    let joiner = Device::new(9);
    for m in [&m, &other] {
        w.seat(m, 1, &joiner);
        w.commit(m, 1, &joiner, group(1));
    }
    assert_eq!(
        w.say_refresh(admin, &m.token, group(1), 5, b"newer"),
        Response::Refreshed.encode()
    );
    assert_eq!(w.beside(&ws, "invites").len(), 2);
    w.set_wall(EPOCH_MS + 7 * DAY_MS);
    assert_eq!(w.record_of(&m.token), b"");
    assert_eq!(w.bundles(&m.token, group(1)), []);
    assert_eq!(w.commit(&m, 1, &joiner, group(1)), generic());
    let c = w.open();
    assert_eq!(w.reserve(c, &m, CODE, [2; 16], &Device::new(8)), generic());
    assert!(w.admits(&joiner, &[group(1)]), "by the longer one");
    w.sweep();
    assert_eq!(w.beside(&ws, "invites").len(), 0);
    assert!(w.admits(&joiner, &[group(1)]));
    assert_eq!(w.bundles(&other.token, group(1)).len(), 1);
}

/// W06.10: lapsed reservations come back by the sweep too, each once, and never make more seats than there are.
#[test]
fn the_sweep_returns_lapsed_seats() {
    let (mut w, _, admin, m) = issued(3);
    for n in 1..=3 {
        w.seat(&m, n, &Device::new(u64::from(n) + 10));
    }
    w.commit(&m, 3, &Device::new(13), group(1));
    assert_eq!(w.invites(admin)[0].remaining, 0);
    w.set_wall(EPOCH_MS + 600_000);
    for _ in 0..2 {
        w.sweep();
        let admin = w.login(&Device::new(1), &[group(1)]);
        assert_eq!(w.invites(admin)[0].remaining, 2);
        w.restart();
    }
    w.seat(&m, 4, &Device::new(14));
    w.seat(&m, 5, &Device::new(15));
    let c = w.open();
    assert_eq!(w.reserve(c, &m, CODE, [6; 16], &Device::new(16)), generic());
    assert_eq!(
        w.commit(&m, 1, &Device::new(11), group(1)),
        generic(),
        "it was given back"
    );
}

/// W06.15: a record comes back byte for byte, small or large, also after a restart; unknown and revoked tokens give the
/// same empty answer.
#[test]
fn records_come_back_as_they_were() {
    let (mut w, ws, admin) = founded(&[]);
    let small = record(&ws, 1, 1, &[group(1)]);
    let large = record_with(&ws, 2, 1, &[group(1)], |r| r.bundles[0].2 = vec![7; 262_144]);
    for restart in [false, true] {
        for record in [&small, &large] {
            if restart {
                assert_eq!(w.record_of(&record.token), record.encode());
            } else {
                w.issue(admin, &ws, record);
            }
        }
        w.restart();
    }
    let admin = w.login(&ws.founder, &[group(1)]);
    assert_eq!(w.bundles(&large.token, group(1)), [(1, vec![7; 262_144])]);
    w.say(admin, revoke(&large.token));
    let ask = |w: &mut World, token: &Token| {
        let c = w.open();
        w.say(c, join(&join::Request::Record { token: &token.0 }));
        w.take_all(c)
    };
    assert_eq!(ask(&mut w, &large.token), ask(&mut w, &Token([99; 16])));
    assert_eq!(w.beside(&ws, "invites").len(), 0);
}

/// W06.16: the three newest refreshed bundles of a group are kept beside the issued one, which nothing evicts or
/// overwrites; newest first, equal times by epoch; what is refused is refused silently.
#[test]
fn refresh_keeps_three_and_the_issued_one() {
    let (member, stranger) = (Device::new(5), Device::new(6));
    let (mut w, ws, admin) = founded(&[&member]);
    let m = w.issue(admin, &ws, &record(&ws, 1, 2, &[group(1), group(2)]));
    w.seat(&m, 1, &stranger);
    let silent = Response::Refreshed.encode();
    let c = w.login(&member, &[group(1)]);
    for n in 2..=20u64 {
        w.set_wall(EPOCH_MS + n);
        assert_eq!(w.say_refresh(c, &m.token, group(1), n, &[n as u8]), silent);
    }
    let kept: Vec<(u64, Vec<u8>)> = [20u8, 19, 18]
        .iter()
        .map(|n| (u64::from(*n), vec![*n]))
        .chain([(1, b"sealed".to_vec())])
        .collect();
    assert_eq!(w.bundles(&m.token, group(1)), kept);
    assert_eq!(
        w.bundles(&m.token, group(2)),
        [(1, b"sealed".to_vec())],
        "per group"
    );
    assert_eq!(w.beside(&ws, "invites").len(), 3, "pruned ones are deleted");
    // The issued epoch, a group that is no scope, an empty and an over-long ciphertext, a token that is none.
    let w_ = &mut w;
    assert_eq!(w_.say_refresh(c, &m.token, group(1), 1, b"evil"), silent);
    assert_eq!(w_.say_refresh(c, &m.token, group(3), 9, b"x"), silent);
    assert_eq!(w_.say_refresh(c, &m.token, group(1), 30, b""), silent);
    assert_eq!(w_.say_refresh(c, &m.token, group(1), 30, &[1; 262_145]), silent);
    assert_eq!(w_.say_refresh(c, &Token([77; 16]), group(1), 30, b"x"), silent);
    assert_eq!(w.bundles(&m.token, group(1)), kept);
    // The same epoch again replaces its ciphertext and is the newest.
    w.set_wall(EPOCH_MS + 1_000);
    let c = w.login(&member, &[group(1)]);
    w.say_refresh(c, &m.token, group(1), 18, b"again");
    let got = w.bundles(&m.token, group(1));
    assert_eq!(got[0], (18, b"again".to_vec()));
    assert_eq!(got.len(), 4);
    w.restart();
    assert_eq!(w.bundles(&m.token, group(1)), got);
    // A device that only a grant admits seals nothing (06 D4); a revoked invite takes nothing.
    let c = w.login(&stranger, &[group(1)]);
    assert_eq!(w.ask1(c, refresh(&m.token, group(1), 40, b"x")), refused(DENIED));
    let admin = w.login(&ws.founder, &[group(1)]);
    w.say(admin, revoke(&m.token));
    w.take_all(admin);
    assert_eq!(w.say_refresh(admin, &m.token, group(1), 40, b"x"), silent);
    assert_eq!(w.bundles(&m.token, group(1)), []);
    assert_eq!(w.beside(&ws, "invites").len(), 0);
}

/// Parking (06 §10, D4): once, to the invite's end, the grant with it; a second time says the same; a stranger's, a
/// lapsed, a used and a released seat are not parked.
#[test]
fn a_parked_seat_lasts_as_long_as_its_invite() {
    let (mut w, _, admin, m) = issued(4);
    let (joiner, end) = (Device::new(9), EPOCH_MS + 7 * DAY_MS);
    w.seat(&m, 1, &joiner);
    let c = w.open();
    assert_eq!(w.ask1(c, park(&m, [1; 16], &Device::new(8))), generic());
    assert_eq!(w.ask1(c, park(&m, [1; 16], &joiner)), parked_until(end));
    assert_eq!(w.ask1(c, park(&m, [1; 16], &joiner)), parked_until(end));
    w.seat(&m, 2, &Device::new(7)); // lapses
    w.seat(&m, 3, &Device::new(6)); // is used
    w.commit(&m, 3, &Device::new(6), group(1));
    assert_eq!(w.ask1(c, park(&m, [3; 16], &Device::new(6))), generic());
    w.restart();
    w.set_wall(end - 1);
    let c = w.open();
    assert_eq!(w.ask1(c, park(&m, [2; 16], &Device::new(7))), generic());
    assert!(w.admits(&joiner, &[group(1)]));
    assert_eq!(w.commit(&m, 1, &joiner, group(1)), receipt(&m, [1; 16], group(1)));
    let _ = admin;
}

/// A parked founder founds after its first ten minutes too, group or no group (05 §6.2 d, 06 §10).
#[test]
fn a_parked_founder_is_still_founding() {
    let mut w = World::new();
    let (m, founder) = (w.mint("ws:one"), Device::new(1));
    let c = w.open();
    w.reserve(c, &m, &m.code, [1; 16], &founder);
    assert_eq!(
        w.ask1(c, park(&m, [1; 16], &founder)),
        parked_until(EPOCH_MS + DAY_MS)
    );
    w.set_wall(EPOCH_MS + 600_001);
    let c = w.login(&founder, &[group(1)]);
    let salt = w.state(c).salt;
    let set = Draft::genesis(&salt, &[&founder], &[&Device::new(2)], &[]).by(&founder);
    assert_eq!(w.publish(c, &set), Got::Access(set.digest().0.to_vec()));
}

/// W06.17: who may administer invites, asked anew for every frame; what a record may be; a foreign token and a revoked
/// one answer alike and touch nothing.
#[test]
fn only_authorizers_administer_invites() {
    let (member, second) = (Device::new(5), Device::new(6));
    let (mut w, mut ws, admin) = founded(&[&member]);
    let two = w.found_by("ws:two", &Device::new(3), &Device::new(4), &[], &[group(7)]);
    let foreign_admin = w.login(&two.founder, &[group(7)]);
    let m = w.issue(admin, &ws, &record(&ws, 1, 1, &[group(1)]));
    let salt = ws.salt;
    let set = ws
        .next()
        .with(|s| {
            s.authorizers.push(second.public());
            s.entries.push(second.entry(&salt));
        })
        .by(&ws.founder);
    w.accept(admin, &mut ws, set);
    let c = w.login(&member, &[group(1)]);
    let authority = |yes| invite_answer(&Response::Authority(yes));
    assert_eq!(w.ask1(c, invite(&Request::Authority)), authority(false));
    for request in [
        invite(&Request::List),
        revoke(&m.token),
        create(&record(&ws, 2, 1, &[group(1)])),
    ] {
        assert_eq!(w.ask1(c, request), refused(DENIED));
    }
    // Authority lost in mid-session.
    let c = w.login(&second, &[group(1)]);
    assert_eq!(w.ask1(c, invite(&Request::Authority)), authority(true));
    let set = ws
        .next()
        .with(|s| s.authorizers.retain(|k| *k != second.public()))
        .by(&ws.founder);
    w.accept(admin, &mut ws, set);
    assert_eq!(w.ask1(c, invite(&Request::Authority)), authority(false));
    assert_eq!(w.ask1(c, invite(&Request::List)), refused(DENIED));
    // Foreign, unknown, over-short: the same answer, and nothing happens.
    for token in [&m.token.0[..], &[98; 16], &[1; 3]] {
        let got = w.ask1(foreign_admin, invite(&Request::Revoke { token }));
        assert_eq!(got, invite_answer(&Response::Revoked { token }));
    }
    assert_eq!(w.invites(admin).len(), 1);
    assert_eq!(w.ask1(admin, revoke(&m.token)), revoked(&m.token));
    let before = w.records(&m.realm);
    assert_eq!(w.ask1(admin, revoke(&m.token)), revoked(&m.token));
    assert_eq!(w.records(&m.realm), before);
}

/// W06.17, W06.18: every rule of a record with its code (06 §11, D3), in the table's order, on a socket that stays up.
#[test]
fn record_rules() {
    let (mut w, ws, admin) = founded(&[]);
    w.found_by("ws:two", &Device::new(3), &Device::new(4), &[], &[group(7)]);
    let with = |change: &dyn Fn(&mut Record)| record_with(&ws, 1, 1, &[group(1)], change);
    let unsigned = |change: &dyn Fn(&mut Record)| {
        let mut record = with(&|_| {});
        change(&mut record);
        record
    };
    let sealed = |g: GroupId, bytes: usize| (g, 1, vec![1; bytes]);
    let other_root = |g: u64| {
        with(&move |r| {
            r.workspace = group(g).0;
            r.scopes = vec![group(g)];
            r.bundles = vec![sealed(group(g), 1)];
        })
    };
    let bad: Vec<(&str, Record, Code)> = vec![
        (
            "another issuer",
            unsigned(&|r| r.issuer = Device::new(5).public()),
            DENIED,
        ),
        ("a foreign root", other_root(7), DENIED),
        (
            "a foreign scope",
            with(&|r| {
                r.scopes = vec![group(1), group(7)];
                r.scopes.sort_unstable();
                r.bundles = r.scopes.iter().map(|g| sealed(*g, 1)).collect();
            }),
            DENIED,
        ),
        ("no seat", with(&|r| r.uses = 0), Code::MalformedHeader),
        ("65 seats", with(&|r| r.uses = 65), Code::MalformedHeader),
        (
            "ends before it begins",
            with(&|r| r.expires_ms = r.issued_at_ms),
            Code::MalformedHeader,
        ),
        (
            "unknown capability",
            with(&|r| r.caps = vec![b"root".to_vec()]),
            Code::MalformedHeader,
        ),
        (
            "capabilities unsorted",
            with(&|r| r.caps.reverse()),
            Code::MalformedHeader,
        ),
        (
            "scopes twice",
            with(&|r| {
                r.scopes = vec![group(1); 2];
                r.bundles = vec![sealed(group(1), 1); 2];
            }),
            Code::MalformedHeader,
        ),
        ("no bundle", with(&|r| r.bundles.clear()), Code::MalformedHeader),
        (
            "an empty bundle",
            with(&|r| r.bundles[0].2.clear()),
            Code::MalformedHeader,
        ),
        (
            "a bundle too large",
            with(&|r| r.bundles[0].2 = vec![1; 262_145]),
            Code::MalformedHeader,
        ),
        (
            "a bundle of another group",
            with(&|r| r.bundles[0].0 = group(2)),
            Code::MalformedHeader,
        ),
        (
            "forged",
            unsigned(&|r| r.update_pub[0] ^= 1),
            Code::NoncanonicalCbor,
        ),
        (
            "shape before signature",
            unsigned(&|r| r.uses = 0),
            Code::MalformedHeader,
        ),
        (
            "without its root",
            with(&|r| {
                r.scopes = vec![group(2)];
                r.bundles = vec![sealed(group(2), 1)];
            }),
            DENIED,
        ),
        (
            "scopeless",
            with(&|r| {
                r.scopes.clear();
                r.bundles.clear();
                r.caps = vec![b"admin".to_vec()];
            }),
            DENIED,
        ),
        (
            "expired",
            with(&|r| (r.issued_at_ms, r.expires_ms) = (EPOCH_MS - 5, EPOCH_MS)),
            DENIED,
        ),
        (
            "signature before expiry",
            unsigned(&|r| {
                (r.issued_at_ms, r.expires_ms) = (EPOCH_MS - 5, EPOCH_MS);
            }),
            Code::NoncanonicalCbor,
        ),
    ];
    let before = w.records(&ws.minted.realm);
    for (name, record, code) in &bad {
        let admin = w.login(&ws.founder, &[group(1)]);
        assert_eq!(w.ask1(admin, create(record)), refused(*code), "{name}");
        assert!(w.is_open(admin));
    }
    for (body, code) in [
        (&[0xff][..], Code::NoncanonicalCbor),
        (&[0x82, 1, 0x40], Code::NoncanonicalCbor),
        (&[0x81, 9], Code::MalformedHeader),
        (&[0x82, 2, 0], Code::MalformedHeader),
        (&[0x80], Code::MalformedHeader),
        (&[0x81, 0, 0], Code::NoncanonicalCbor),
    ] {
        assert_eq!(
            w.ask1(admin, frame(&Frame::Invite { body })),
            refused(code),
            "{body:x?}"
        );
    }
    assert_eq!(w.records(&ws.minted.realm), before);
    // A root nobody has claimed yet is nobody else's.
    let fresh = other_root(40);
    w.issue(admin, &ws, &fresh);
}

/// W06.18: INVITE before AUTH closes the socket.
#[test]
fn invite_needs_a_session() {
    let (mut w, _, _) = founded(&[]);
    let c = w.open();
    w.connect(c, 4, &[group(1)]);
    assert_eq!(
        w.ask1(c, invite(&Request::Authority)),
        refused(Code::MalformedHeader)
    );
    assert!(!w.is_open(c));
}

/// W06.19: the 31st INVITE of a minute is refused with 30, whatever the others were; the socket is up, and the next
/// minute takes more.
#[test]
fn invite_budget_is_thirty() {
    let (mut w, _, admin) = founded(&[]);
    for n in 0..30 {
        let body: &[u8] = if n % 2 == 0 { &[0xff] } else { &[0x81, 2] };
        assert_ne!(
            w.ask1(admin, frame(&Frame::Invite { body })).code(),
            Some(Code::RateLimited)
        );
    }
    assert_eq!(
        w.ask1(admin, invite(&Request::List)),
        limited(Code::RateLimited, 60, 30)
    );
    assert_eq!(w.stored(admin, group(1), b"x"), 1);
    w.set_wall(EPOCH_MS + 60_000);
    assert_eq!(w.invites(admin), []);
}

/// W06.25: the identical record again gets its token again and no second invite; another record under that token, or
/// one under another workspace's, is malformed (06 D6). The list: live, unexpired, not the relay's own, oldest first
/// (D2).
#[test]
fn a_token_is_used_once_and_lists_are_of_the_living() {
    let (mut w, ws, admin) = founded(&[]);
    let two = w.found_by("ws:two", &Device::new(3), &Device::new(4), &[], &[group(7)]);
    assert_eq!(w.invites(admin), [], "the bootstrap invite is not listed");
    let small = record(&ws, 5, 2, &[group(1)]);
    let large = record_with(&ws, 4, 2, &[group(1)], |r| {
        r.bundles[0].2 = vec![7; 9_000];
        r.expires_ms = EPOCH_MS + DAY_MS;
    });
    for (n, record) in [&small, &large].into_iter().enumerate() {
        w.set_wall(EPOCH_MS + n as u64);
        w.issue(admin, &ws, record);
        let before = w.records(&ws.minted.realm);
        w.issue(admin, &ws, record);
        let another = record_with(&ws, record.token.0[0], 3, &[group(1)], |_| {});
        assert_eq!(w.ask1(admin, create(&another)), refused(Code::MalformedHeader));
        assert_eq!(w.records(&ws.minted.realm), before);
    }
    let foreign = record(&two, 5, 1, &[group(7)]);
    let foreign_admin = w.login(&two.founder, &[group(7)]);
    assert_eq!(
        w.ask1(foreign_admin, create(&foreign)),
        refused(Code::MalformedHeader)
    );
    assert_eq!(w.invites(foreign_admin), []);
    let list = w.invites(admin);
    let brief = |at: usize| {
        (
            list[at].token,
            list[at].issued_at_ms,
            list[at].expires_ms,
            list[at].remaining,
        )
    };
    assert_eq!(brief(0), (small.token, EPOCH_MS, EPOCH_MS + 7 * DAY_MS, 2));
    assert_eq!(brief(1), (large.token, EPOCH_MS + 1, EPOCH_MS + DAY_MS, 2));
    assert_eq!(
        (list[0].seats, list[0].scope_count, list[0].state),
        (2, 1, State::Live)
    );
    w.set_wall(EPOCH_MS + DAY_MS);
    assert_eq!(w.invites(admin).len(), 1, "an expired one is not listed");
    let m = Minted {
        realm: ws.minted.realm.clone(),
        token: small.token,
        code: CODE.into(),
    };
    w.say(admin, revoke(&m.token));
    w.take_all(admin);
    assert_eq!(w.invites(admin), [], "nor a revoked one");
}

/// Two workspaces that create an invite under one token in the same moment: one gets it (06 D6, decisions.md 48).
#[test]
fn racing_creations_of_one_token_have_one_winner() {
    let (mut w, ws, admin) = founded(&[]);
    let two = w.found_by("ws:two", &Device::new(3), &Device::new(4), &[], &[group(7)]);
    let other = w.login(&two.founder, &[group(7)]);
    w.push(admin, create(&record(&ws, 5, 1, &[group(1)])));
    w.push(other, create(&record(&two, 5, 1, &[group(7)])));
    let got = [only(w.got(admin)), only(w.got(other))];
    assert_eq!(got[0], invite_answer(&Response::Created { token: &[5; 16] }));
    assert_eq!(got[1], refused(Code::MalformedHeader));
    assert!(w.is_open(other));
    assert_eq!((w.invites(admin).len(), w.invites(other).len()), (1, 0));
}

/// W06.26: a nonce of another device and a released one are no answer; commits and parks with wrong widths neither.
/// W06.4, W04.12: they, and spent, expired and revoked invites, a wrong device, a wrong group and a voided device all
/// get the same bytes as an unknown token.
#[test]
fn every_no_about_a_scoped_invite_is_the_same() {
    let (mut w, ws, admin) = founded(&[]);
    let live = w.issue(admin, &ws, &record(&ws, 1, 5, &[group(1)]));
    let spent = w.issue(admin, &ws, &record(&ws, 2, 1, &[group(1)]));
    let dead = w.issue(admin, &ws, &record(&ws, 3, 1, &[group(1)]));
    let expired = w.issue(
        admin,
        &ws,
        &record_with(&ws, 4, 1, &[group(1)], |r| r.expires_ms = EPOCH_MS + 60_000),
    );
    let full = w.issue(admin, &ws, &record(&ws, 5, 1, &[group(1)]));
    let (joiner, voided, late) = (Device::new(9), Device::new(8), Device::new(7));
    w.seat(&spent, 1, &Device::new(10));
    w.commit(&spent, 1, &Device::new(10), group(1));
    w.seat(&dead, 1, &voided);
    w.say(admin, revoke(&dead.token));
    w.seat(&live, 1, &late); // lapses
    w.set_wall(EPOCH_MS + 600_000);
    w.seat(&live, 2, &joiner); // gives seat 1 back
    w.seat(&full, 1, &Device::new(11));
    let ok = reserve(&live, CODE, [2; 16], &joiner);
    let unknown = Minted {
        token: Token([97; 16]),
        ..live.clone()
    };
    let wide = |nonce: &[u8], device: &[u8], group: &[u8]| {
        let token = &live.token.0;
        join(&join::Request::Commit {
            token,
            nonce,
            device,
            group,
        })
    };
    let key = joiner.public().0;
    let refusals: Vec<(&str, Bytes)> = vec![
        ("unknown token", reserve(&unknown, CODE, [9; 16], &joiner)),
        ("spent", reserve(&spent, CODE, [9; 16], &joiner)),
        ("revoked", reserve(&dead, CODE, [9; 16], &joiner)),
        ("expired", reserve(&expired, CODE, [9; 16], &joiner)),
        ("no seat", reserve(&full, CODE, [9; 16], &joiner)),
        ("wrong code", reserve(&live, "0000-0000-0000", [9; 16], &joiner)),
        ("voided device", reserve(&live, CODE, [9; 16], &voided)),
        ("another's nonce", reserve(&live, CODE, [2; 16], &Device::new(12))),
        ("released nonce", reserve(&live, CODE, [1; 16], &late)),
        (
            "commit of an unknown token",
            commit(&unknown, [2; 16], &joiner, group(1)),
        ),
        (
            "commit by another device",
            commit(&live, [2; 16], &late, group(1)),
        ),
        ("commit of no scope", commit(&live, [2; 16], &joiner, group(2))),
        ("commit without a seat", commit(&live, [3; 16], &joiner, group(1))),
        (
            "commit of a released seat",
            commit(&live, [1; 16], &late, group(1)),
        ),
        (
            "commit of a revoked invite",
            commit(&dead, [1; 16], &voided, group(1)),
        ),
        ("commit: short nonce", wide(&[2; 15], &key, &group(1).0)),
        ("commit: short device", wide(&[2; 16], &key[..31], &group(1).0)),
        ("commit: short group", wide(&[2; 16], &key, &group(1).0[..31])),
        ("park without a seat", park(&live, [3; 16], &joiner)),
        ("park of a revoked invite", park(&dead, [1; 16], &voided)),
    ];
    let before: Vec<_> = not_attempts(w.records(&ws.minted.realm));
    for (n, (name, message)) in refusals.into_iter().enumerate() {
        let c = w.open_on(0, &format!("source {n}"));
        w.say(c, message);
        assert_eq!(w.take_all(c), [GENERIC], "{name}");
        assert!(w.is_open(c));
    }
    assert_eq!(not_attempts(w.records(&ws.minted.realm)), before);
    let c = w.open();
    assert_eq!(w.ask1(c, ok), reserved_until(EPOCH_MS + 1_200_000));
}

fn not_attempts(records: Vec<(Vec<u8>, Bytes)>) -> Vec<(Vec<u8>, Bytes)> {
    records
        .into_iter()
        .filter(|(key, _)| !key.starts_with(b"attempt/"))
        .collect()
}

/// W06.8: 64 devices, on the workspace's shard and another, race for one seat: one gets it; and 64 race for 64: all do.
/// The seats that are left are counted right afterwards.
#[test]
fn sixty_four_racing_joins() {
    for uses in [1, 64] {
        let mut w = World::with(config(|c| c.shards = 2));
        let ws = w.found("ws:one", &[], &[group(1)]);
        let admin = w.login(&ws.founder, &[group(1)]);
        let m = w.issue(admin, &ws, &record(&ws, 1, uses, &[group(1)]));
        let conns: Vec<C> = (0..64)
            .map(|n| w.open_on(n % 2, &format!("source {n}")))
            .collect();
        w.hold(Kind::Code);
        for (n, &c) in conns.iter().enumerate() {
            w.push(c, reserve(&m, CODE, [n as u8; 16], &Device::new(100 + n as u64)));
            // The cooldown of a token counts what is still being hashed; twenty at a time fit.
            if n % 20 == 19 || n == 63 {
                w.pump();
                w.release(Kind::Code);
                w.hold(Kind::Code);
            }
        }
        w.release(Kind::Code);
        let got: Vec<Got> = conns.iter().map(|&c| only(w.got(c))).collect();
        let won = got.iter().filter(|g| matches!(g, Got::Join(_))).count();
        assert_eq!(won, usize::from(uses));
        assert!(got.iter().all(|g| matches!(g, Got::Join(_)) || *g == generic()));
        let admitted = (0..64)
            .filter(|n| w.admits(&Device::new(100 + n), &[group(1)]))
            .count();
        assert_eq!(admitted, won);
        assert_eq!(w.invites(admin)[0].remaining, 0);
    }
}

/// W06.9, W06.23: a storage outage at each step of a scoped invite: `retry/backpressure`, nothing spent, and the same
/// request succeeds afterwards.
#[test]
fn an_outage_spends_nothing() {
    let (mut w, ws, admin) = founded(&[]);
    let joiner = Device::new(9);
    let large = record_with(&ws, 1, 1, &[group(1), group(2)], |r| {
        r.bundles[0].2 = vec![7; 9_000]
    });
    let m = Minted {
        realm: ws.minted.realm.clone(),
        token: large.token,
        code: CODE.into(),
    };
    let c = w.open();
    let steps: Vec<(C, Bytes)> = vec![
        (admin, create(&large)),
        (admin, refresh(&m.token, group(1), 4, b"newer")),
        (c, reserve(&m, CODE, [1; 16], &joiner)),
        (c, park(&m, [1; 16], &joiner)),
        (c, commit(&m, [1; 16], &joiner, group(1))),
        (c, commit(&m, [1; 16], &joiner, group(2))),
        (admin, revoke(&m.token)),
    ];
    for (n, (c, message)) in steps.into_iter().enumerate() {
        let before = w.records(&m.realm);
        w.store.down(&[Kind::Commit, Kind::Claim], Fault::NotCommitted);
        assert_retry(&w.ask1(c, message.clone()), Code::Backpressure);
        assert_eq!(w.records(&m.realm), before, "{n}");
        w.store.up();
        let got = w.ask1(c, message);
        assert!(matches!(got, Got::Join(_) | Got::Invite(_)), "{n}: {got:?}");
    }
    assert!(!w.admits(&joiner, &[group(1)]));
}

/// W06.26: bundles that can't be read are asked for again; a record that can't be read is the empty one (06 D11).
#[test]
fn unreadable_large_values() {
    let (mut w, ws, admin) = founded(&[]);
    let large = record_with(&ws, 1, 1, &[group(1)], |r| r.bundles[0].2 = vec![7; 9_000]);
    w.issue(admin, &ws, &large);
    w.store.down(&[Kind::Get], Fault::NotCommitted);
    let c = w.open();
    let bundles = join::Request::Bundles {
        token: &large.token.0,
        group: &group(1).0,
    };
    assert_retry(&w.ask1(c, join(&bundles)), Code::Backpressure);
    assert_eq!(w.record_of(&large.token), b"");
    assert_retry(&w.ask1(admin, create(&large)), Code::Backpressure);
    w.store.up();
    assert_eq!(w.record_of(&large.token), large.encode());
}

/// A seat's grant never shortens one that another live invite gave (06 D15).
#[test]
fn a_grant_is_never_shortened() {
    let (mut w, ws, admin, m) = issued(1);
    let joiner = Device::new(9);
    w.seat(&m, 1, &joiner);
    w.commit(&m, 1, &joiner, group(1));
    let short = record_with(&ws, 2, 1, &[group(1)], |r| r.expires_ms = EPOCH_MS + DAY_MS);
    let short = w.issue(admin, &ws, &short);
    w.seat(&short, 1, &joiner);
    w.set_wall(EPOCH_MS + 600_000);
    assert!(w.admits(&joiner, &[group(1)]));
    w.set_wall(EPOCH_MS + 6 * DAY_MS);
    assert!(w.admits(&joiner, &[group(1)]));
}
