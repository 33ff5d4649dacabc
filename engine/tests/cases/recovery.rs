//! Founding, recovery and grants from end to end: what a set, a rotation and a revocation do to devices that came by
//! real invites (05 §6 to §11).

use crate::world::*;
use drover_engine::effects::{CloseHow, CloseReason};
use drover_wire::access::{Quorum, quorum_message, sign};
use drover_wire::error::Code;

/// W05.3: a founder whose groups nobody knows: reserve, AUTH, query, publish; then it reconnects, and SEND works. A
/// stranger gets nowhere before and after.
#[test]
fn a_founder_of_unknown_groups() {
    let mut w = World::new();
    let (m, founder, stranger) = (w.mint("ws:one"), Device::new(1), Device::new(66));
    let c = w.open();
    assert!(matches!(
        w.reserve(c, &m, &m.code, [1; 16], &founder),
        Got::Join(_)
    ));
    assert!(matches!(
        only(w.auth(c, &founder, &[group(1)])),
        Got::AuthAck { .. }
    ));
    assert!(!w.admits(&stranger, &[group(1)]));
    let state = w.state(c);
    assert_eq!(state.head, None);
    assert_eq!(
        w.ask1(c, send(group(1), b"x")),
        refused(Code::GroupUnknown),
        "no row yet"
    );
    let set = Draft::genesis(&state.salt, &[&founder], &[&Device::new(2)], &[]).by(&founder);
    assert_eq!(w.publish(c, &set), Got::Access(set.digest().0.to_vec()));
    assert_eq!(w.state(c).head, Some((0, set.digest())));
    for (n, restart) in [(1, false), (2, true)] {
        if restart {
            w.restart();
        }
        let c = w.login(&founder, &[group(1)]);
        assert_eq!(w.stored(c, group(1), &[n as u8]), n);
        assert!(!w.admits(&stranger, &[group(1)]));
    }
}

/// W05.24: a founder whose groups took so long to claim that its seat has lapsed founds nothing: the set, the seat, the
/// invite and the key go together or not at all (06 §13).
#[test]
fn slow_claim_of_a_founder() {
    let mut w = World::new();
    let (m, founder) = (w.mint("ws:one"), Device::new(1));
    let c = w.open();
    w.reserve(c, &m, &m.code, [1; 16], &founder);
    w.auth(c, &founder, &[group(1)]);
    let salt = w.state(c).salt;
    let set = Draft::genesis(&salt, &[&founder], &[&Device::new(2)], &[]).by(&founder);
    let before = w.records(&m.realm);
    w.hold(Kind::Claim);
    w.say(c, access(&set.encode()));
    assert_eq!(w.waiting(Kind::Claim), 1);
    w.set_wall(EPOCH_MS + 600_000);
    w.release(Kind::Claim);
    assert_eq!(w.got(c), [refused(DENIED)]);
    assert_eq!(w.records(&m.realm), before);
    assert!(w.report(&m.realm).unwrap().unredeemed.is_some());
    // The seat can be had again, and what was claimed is the founder's.
    let c = w.open();
    assert!(matches!(
        w.reserve(c, &m, &m.code, [2; 16], &founder),
        Got::Join(_)
    ));
    w.auth(c, &founder, &[group(1)]);
    assert_eq!(w.publish(c, &set), Got::Access(set.digest().0.to_vec()));
    assert_eq!(w.stored(c, group(1), b"x"), 1);
}

/// W05.15: a joiner that was carried and dropped is closed and refused; no other invite revives it; one that no set
/// ever carried keeps what its invite gave, however many sets pass.
#[test]
fn a_dropped_joiner_does_not_come_back() {
    let (mut w, mut ws, admin) = founded_with(&[]);
    let (carried, never) = (Device::new(8), Device::new(9));
    let m = w.issue(admin, &ws, &record(&ws, 1, 4, &[group(1)]));
    for (n, device) in [(1, &carried), (2, &never)] {
        w.seat(&m, n, device);
        w.commit(&m, n, device, group(1));
    }
    let (c, n) = (w.login(&carried, &[group(1)]), w.login(&never, &[group(1)]));
    let set = ws.adding(&[&carried]).by(&ws.founder);
    w.accept(admin, &mut ws, set);
    let set = ws.removing(&[&carried]).by(&ws.founder);
    w.accept(admin, &mut ws, set);
    assert_eq!(w.closed(c), Some((CloseHow::Evict, CloseReason::Evicted)));
    assert!(w.is_open(n));
    w.restart();
    assert!(!w.admits(&carried, &[group(1)]) && w.admits(&never, &[group(1)]));
    let c = w.open();
    assert_eq!(w.reserve(c, &m, CODE, [3; 16], &carried), generic());
    let admin = w.login(&ws.founder, &[group(1)]);
    let set = ws.adding(&[&carried]).by(&ws.founder);
    w.accept(admin, &mut ws, set);
    assert!(
        w.admits(&carried, &[group(1)]),
        "a set admits it, its grant is dead all the same"
    );
}

/// W05.16: a member that takes a seat while the set lists it, and is removed then, is refused (05 D9); so is one that
/// was carried before it took the seat again.
#[test]
fn a_member_s_own_seat_is_no_way_back() {
    let (member, joiner) = (Device::new(5), Device::new(9));
    let (mut w, mut ws, admin) = founded_with(&[&member]);
    let m = w.issue(admin, &ws, &record(&ws, 1, 4, &[group(1)]));
    w.seat(&m, 1, &member);
    w.commit(&m, 1, &member, group(1));
    w.seat(&m, 2, &joiner);
    let set = ws.adding(&[&joiner]).by(&ws.founder);
    w.accept(admin, &mut ws, set);
    w.seat(&m, 3, &joiner); // re-issued: what was seen is forgotten
    let c = w.login(&member, &[group(1)]);
    let set = ws.removing(&[&member, &joiner]).by(&ws.founder);
    w.accept(admin, &mut ws, set);
    assert_eq!(w.closed(c), Some((CloseHow::Evict, CloseReason::Evicted)));
    for device in [&member, &joiner] {
        assert!(!w.admits(device, &[group(1)]));
    }
}

/// W05.26: a provisional socket whose grant was promoted by its last commit lives on past the reservation; one that was
/// not is closed silently within a minute of it.
#[test]
fn a_promoted_socket_lives_on() {
    let (mut w, ws, admin) = founded_with(&[]);
    let m = w.issue(admin, &ws, &record(&ws, 1, 3, &[group(1)]));
    let (promoted, parked, lapsing) = (Device::new(7), Device::new(8), Device::new(9));
    let sockets: Vec<C> = [(1, &promoted), (2, &parked), (3, &lapsing)]
        .iter()
        .map(|(n, device)| {
            w.seat(&m, *n, device);
            w.login(device, &[group(1)])
        })
        .collect();
    w.commit(&m, 1, &promoted, group(1));
    let c = w.open();
    w.say(c, park(&m, [2; 16], &parked));
    for _ in 0..11 {
        w.advance(60_000);
        for &c in &sockets {
            w.push_ping(c);
        }
    }
    w.pump();
    let open: Vec<bool> = sockets.iter().map(|&c| w.is_open(c)).collect();
    assert_eq!(open, [true, true, false]);
    assert_eq!(
        w.closed(sockets[2]),
        Some((CloseHow::Evict, CloseReason::Evicted))
    );
    assert_eq!(w.got(sockets[2]), []);
    assert_eq!(w.stored(sockets[0], group(1), b"x"), 1);
    assert_eq!(w.stored(sockets[1], group(1), b"y"), 2);
}

/// W05.12: a later rotation that names a device whose probation was cleared opens it anew.
#[test]
fn a_second_rotation_reopens_a_probation() {
    let member = Device::new(5);
    let (mut w, mut ws, admin) = founded_with(&[&member]);
    let (device, salt) = (Device::new(21), ws.salt);
    let c = w.login(&ws.recovery.clone(), &[group(1)]);
    let set = rotation(&ws, &Device::new(20), &device, &[]).by(&ws.recovery);
    w.accept(c, &mut ws, set);
    ws.recovery = Device::new(20);
    let set = ws.next().by(&ws.founder); // clears
    w.accept(admin, &mut ws, set);
    let set = ws
        .removing(&[&device])
        .with(|s| s.authorizers.retain(|k| *k != device.public()))
        .by(&ws.founder);
    w.accept(admin, &mut ws, set);
    w.set_wall(EPOCH_MS + DAY_MS);
    let c = w.login(&ws.recovery.clone(), &[group(1)]);
    let set = rotation(&ws, &Device::new(22), &device, &[]).by(&ws.recovery);
    w.accept(c, &mut ws, set);
    w.restart();
    let c = w.login(&device, &[group(1)]);
    let set = ws.removing(&[&member]).by(&device);
    assert_eq!(w.publish(c, &set), denied_at(&ws));
    let set = ws
        .next()
        .with(|s| {
            s.authorizers
                .retain(|k| *k != ws.founder.public() || *k == device.public())
        })
        .by(&device);
    assert_eq!(w.publish(c, &set), denied_at(&ws));
    let _ = salt;
}

/// W05.12, W05.25: confirmations count only if the prior set knows their keys: a set that brings its own quorum along
/// clears nothing; and confirmations carried by the rotation itself don't either.
#[test]
fn a_quorum_is_the_prior_set_s() {
    let member = Device::new(5);
    let (mut w, mut ws, admin) = founded_with(&[&member]);
    let (q1, q2) = (Device::new(81), Device::new(82));
    let quorum = |keys: &[&Device]| {
        Some(Quorum {
            threshold: 1,
            keys: keys.iter().map(|k| k.public()).collect(),
            sigs: Vec::new(),
        })
    };
    let set = ws.next().with(|s| s.quorum = quorum(&[&q1])).by(&ws.founder);
    w.accept(admin, &mut ws, set);
    let (salt, device) = (ws.salt, Device::new(21));
    let confirm = |set: &mut drover_wire::access::AccessSet, key: &Device| {
        let message = quorum_message(&set.digest(), &device.entry(&salt));
        set.quorum.as_mut().unwrap().sigs = vec![(key.public(), sign(&key.key, &message.0))];
    };
    let c = w.login(&ws.recovery.clone(), &[group(1)]);
    let mut set = rotation(&ws, &Device::new(20), &device, &[]).by(&ws.recovery);
    confirm(&mut set, &q1);
    w.accept(c, &mut ws, set);
    let c = w.login(&device, &[group(1)]);
    let removal = ws.removing(&[&member]).by(&device);
    assert_eq!(
        w.publish(c, &removal),
        denied_at(&ws),
        "a rotation confirms nobody"
    );
    let mut own = ws.next().with(|s| s.quorum = quorum(&[&q2])).by(&device);
    confirm(&mut own, &q2);
    assert_eq!(w.publish(c, &own), denied_at(&ws), "D7");
    let mut dropped = ws.next().with(|s| s.quorum = None).by(&device);
    dropped.quorum = None;
    assert_eq!(w.publish(c, &dropped), denied_at(&ws), "D7: nor dropped");
    // Confirmed by the right key, the signer is free, in its next set.
    let mut set = ws.removing(&[&member]).by(&device);
    confirm(&mut set, &q1);
    assert_eq!(
        w.publish(c, &set),
        denied_at(&ws),
        "the set that clears is judged on the leash"
    );
    let mut set = ws.next().by(&device);
    confirm(&mut set, &q1);
    w.accept(c, &mut ws, set);
    let set = ws.removing(&[&member]).by(&device);
    w.accept(c, &mut ws, set);
}

/// W05.13: a removed member's refusal is immediate for what it asked before and hears after: a JOIN of another
/// workspace that is being worked on when it is evicted is not answered either.
#[test]
fn an_evicted_socket_hears_no_late_answer() {
    let member = Device::new(5);
    let (mut w, mut ws, admin) = founded_with(&[&member]);
    let m = w.issue(admin, &ws, &record(&ws, 1, 1, &[group(1)]));
    let c = w.login(&member, &[group(1)]);
    w.hold(Kind::Code);
    w.say(c, reserve(&m, CODE, [1; 16], &Device::new(9)));
    let set = ws.removing(&[&member]).by(&ws.founder);
    w.accept(admin, &mut ws, set);
    w.release(Kind::Code);
    assert_eq!(w.got(c), []);
    assert_eq!(w.closed(c), Some((CloseHow::Evict, CloseReason::Evicted)));
}
