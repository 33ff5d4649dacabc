//! KEYS: shelves of one-time packages, and that none is served twice (07 A).

use crate::world::*;
use drover_engine::effects::CloseReason;
use drover_wire::error::Code;
use drover_wire::frame::{BytesListBuf, Frame, Keys};
use std::collections::BTreeSet;

const LIFE_MS: u64 = 90 * DAY_MS;

/// A workspace whose members 5 and 6 are connected: the owner of a shelf, and a peer that fetches from it.
fn pair() -> (World, Workspace, Device, C, C) {
    let mut w = World::new();
    let (owner, peer) = (Device::new(5), Device::new(6));
    let ws = w.found("ws:one", &[&owner, &peer], &[group(1)]);
    let (o, p) = (w.login(&owner, &[group(1)]), w.login(&peer, &[group(1)]));
    (w, ws, owner, o, p)
}

fn bundles(packages: &[&[u8]]) -> Got {
    Got::Bundles(packages.iter().map(|p| p.to_vec()).collect())
}

/// `count` distinct packages, beginning with number `from`.
fn packages(from: u32, count: u32) -> Vec<Vec<u8>> {
    (from..from + count).map(|n| n.to_be_bytes().to_vec()).collect()
}

fn publish_all(packages: &[Vec<u8>]) -> bytes::Bytes {
    let slices: Vec<&[u8]> = packages.iter().map(Vec::as_slice).collect();
    keys_publish(&slices)
}

/// What is left on a device's shelf, taken eight at a time.
fn drained(w: &mut World, c: C, owner: &Device) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        match w.ask1(c, keys_fetch(owner.public(), 8)) {
            Got::Bundles(more) => all.extend(more),
            Got::NoBundles => return all,
            other => panic!("{other:?}"),
        }
    }
}

/// How many packages a device is told it has.
#[track_caller]
fn depth(w: &mut World, owner: &Device) -> u32 {
    let c = w.open();
    match only(w.auth(c, owner, &[group(1)])) {
        Got::AuthAck { key_packages, .. } => key_packages,
        other => panic!("{other:?}"),
    }
}

/// W07.1: two are published, a peer fetches one and one, oldest first, then none; nothing of them stays in the store;
/// an empty publication is legal and counts.
#[test]
fn packages_are_served_once_oldest_first() {
    let (mut w, ws, owner, o, p) = pair();
    assert_eq!(w.ask1(o, keys_publish(&[])), Got::Published(0));
    assert_eq!(w.ask1(o, keys_publish(&[b"kp1", b"kp2"])), Got::Published(2));
    assert_eq!(w.ask1(o, keys_publish(&[])), Got::Published(2));
    assert_eq!(w.beside(&ws, "packages").len(), 2);
    let fetch = || keys_fetch(owner.public(), 1);
    assert_eq!(w.ask1(p, fetch()), bundles(&[b"kp1"]));
    w.restart();
    let p = w.login(&Device::new(6), &[group(1)]);
    assert_eq!(w.ask1(p, fetch()), bundles(&[b"kp2"]));
    assert_eq!(w.ask1(p, fetch()), Got::NoBundles);
    assert_eq!(w.beside(&ws, "packages").len(), 0);
    // Its own shelf is a device's to fetch from too, and identical packages are two.
    let o = w.login(&owner, &[group(1)]);
    assert_eq!(w.ask1(o, keys_publish(&[b"same", b"same"])), Got::Published(2));
    assert_eq!(
        w.ask1(o, keys_fetch(owner.public(), 8)),
        bundles(&[b"same", b"same"])
    );
}

/// W07.2: eight fetches of two at once share out sixteen packages, each to one.
#[test]
fn concurrent_fetches_share_out_the_shelf() {
    let (mut w, _, owner, o, _) = pair();
    assert_eq!(w.ask1(o, publish_all(&packages(0, 16))), Got::Published(16));
    let conns: Vec<C> = (0..8).map(|_| w.login(&Device::new(6), &[group(1)])).collect();
    for kind in [Kind::Commit, Kind::Get] {
        w.hold(kind);
    }
    for &c in &conns {
        w.push(c, keys_fetch(owner.public(), 2));
    }
    w.pump();
    while w.waiting(Kind::Commit) > 0 {
        w.release_one(Kind::Commit);
    }
    w.release(Kind::Get);
    w.release(Kind::Commit);
    let mut seen = BTreeSet::new();
    for c in conns {
        let Got::Bundles(two) = only(w.got(c)) else {
            panic!()
        };
        assert_eq!(two.len(), 2);
        seen.extend(two);
    }
    assert_eq!(seen, packages(0, 16).into_iter().collect());
}

/// W07.3: the hundred-and-first package is refused with 100 and the shelf is intact; of two publications of 51 at once
/// one is refused, whole.
#[test]
fn a_shelf_holds_a_hundred() {
    let (mut w, _, owner, o, p) = pair();
    assert_eq!(w.ask1(o, publish_all(&packages(0, 100))), Got::Published(100));
    assert_eq!(
        w.ask1(o, keys_publish(&[b"more"])),
        limited(Code::SeatsExhausted, 0, 100)
    );
    assert_eq!(
        w.ask1(o, publish_all(&packages(0, 101))),
        limited(Code::SeatsExhausted, 0, 100)
    );
    assert_eq!(drained(&mut w, p, &owner), packages(0, 100));
    let other = w.login(&owner, &[group(1)]);
    w.push(o, publish_all(&packages(0, 51)));
    w.push(other, publish_all(&packages(51, 51)));
    let got = [only(w.got(o)), only(w.got(other))];
    assert_eq!(got[0], Got::Published(51));
    assert_eq!(got[1], limited(Code::SeatsExhausted, 0, 100));
    w.set_wall(EPOCH_MS + 60_000);
    assert_eq!(drained(&mut w, p, &owner), packages(0, 51));
}

/// W07.4: 131 072 bytes are taken, one more is refused with 131 072 and its sibling not stored; eight of the largest
/// leave in one frame.
#[test]
fn package_size() {
    let (mut w, ws, owner, o, p) = pair();
    let (largest, over) = (vec![7; 131_072], vec![7; 131_073]);
    let got = w.ask1(o, keys_publish(&[b"sibling", &over]));
    assert_eq!(got, limited(Code::EnvelopeTooLarge, 0, 131_072));
    assert_eq!(w.beside(&ws, "packages").len(), 0);
    assert_eq!(w.ask1(p, keys_fetch(owner.public(), 1)), Got::NoBundles);
    for n in 1..=2 {
        assert_eq!(
            w.ask1(o, publish_all(&vec![largest.clone(); 4])),
            Got::Published(n * 4)
        );
    }
    assert_eq!(
        w.ask1(p, keys_fetch(owner.public(), 8)),
        Got::Bundles(vec![largest; 8])
    );
}

/// W07.5: counts of 0 and 9 are refused with 8 and not charged.
#[test]
fn fetch_count() {
    let (mut w, _, owner, _, p) = pair();
    for _ in 0..20 {
        for count in [0, 9, 255] {
            let got = w.ask1(p, keys_fetch(owner.public(), count));
            assert_eq!(got, limited(Code::EnvelopeTooLarge, 0, 8));
        }
    }
    assert_eq!(w.ask1(p, keys_fetch(owner.public(), 8)), Got::NoBundles);
}

/// W07.6: a device that is no member, one of another workspace and a removed one: denied; one that a grant admits is
/// as good as a member.
#[test]
fn fetch_target_is_admitted() {
    let (mut w, mut ws, owner, o, p) = pair();
    let elsewhere = Device::new(30);
    w.found_by("ws:two", &elsewhere, &Device::new(31), &[], &[group(7)]);
    let there = w.login(&elsewhere, &[group(7)]);
    assert_eq!(w.ask1(there, keys_publish(&[b"theirs"])), Got::Published(1));
    let denied = refused(Code::WriterNotInAccessSet);
    for target in [&elsewhere, &Device::new(99)] {
        assert_eq!(w.ask1(p, keys_fetch(target.public(), 1)), denied);
    }
    assert_eq!(w.ask1(there, keys_fetch(owner.public(), 1)), denied);
    let admin = w.login(&ws.founder.clone(), &[group(1)]);
    let m = w.issue(admin, &ws, &record(&ws, 1, 1, &[group(1)]));
    let joiner = Device::new(9);
    w.seat(&m, 1, &joiner);
    let j = w.login(&joiner, &[group(1)]);
    assert_eq!(w.ask1(j, keys_publish(&[b"new"])), Got::Published(1));
    assert_eq!(w.ask1(p, keys_fetch(joiner.public(), 1)), bundles(&[b"new"]));
    w.ask1(o, keys_publish(&[b"old"]));
    let set = ws.removing(&[&owner]).by(&ws.founder);
    w.accept(admin, &mut ws, set);
    assert_eq!(w.ask1(p, keys_fetch(owner.public(), 1)), denied);
}

/// W07.7: packages whose answer finds no room on a connection that ends go back, to the end of the shelf and beyond the
/// hundred if need be, with what whole seconds of life they have left; one with none is dropped.
#[test]
fn an_undelivered_fetch_puts_them_back() {
    for hang_up in [false, true] {
        let (mut w, _, owner, o, p) = pair();
        assert_eq!(w.ask1(o, keys_publish(&[b"a", b"b"])), Got::Published(2));
        w.set_wall(EPOCH_MS + 500);
        assert_eq!(w.ask1(o, keys_publish(&[b"c"])), Got::Published(3));
        w.subscribe(p, group(1), 0);
        w.stop_reading(p, 0);
        w.fill(o, group(1), 300);
        w.say(p, keys_fetch(owner.public(), 2));
        let reader = w.login(&owner, &[group(1)]);
        assert_eq!(depth(&mut w, &owner), 1, "taken");
        w.ask1(reader, publish_all(&packages(0, 99)));
        assert_eq!(depth(&mut w, &owner), 100);
        if hang_up {
            w.hang_up(p);
        } else {
            w.advance(11_000);
            assert_eq!(w.closed(p).unwrap().1, CloseReason::SlowReader);
        }
        assert_eq!(depth(&mut w, &owner), 102);
        let got = w.ask1(reader, keys_publish(&[b"x"]));
        assert_eq!(got, limited(Code::SeatsExhausted, 0, 100));
        // Put back with the whole seconds they had left: the fraction is lost.
        let passed = w.now.wall_ms - EPOCH_MS;
        let end = EPOCH_MS + LIFE_MS - (passed.next_multiple_of(1000) - passed);
        assert!(!hang_up || end == EPOCH_MS + LIFE_MS - 500);
        w.set_wall(end - 1);
        assert_eq!(depth(&mut w, &owner), 102);
        let late = usize::from(hang_up);
        w.set_wall(end - 1 + late as u64);
        let p = w.login(&Device::new(6), &[group(1)]);
        let mut all = drained(&mut w, p, &owner);
        let behind = all.split_off(100);
        assert_eq!(
            behind,
            [b"a".to_vec(), b"b".to_vec()][..2 - 2 * late],
            "at the back"
        );
    }
}

/// W07.7: what is expired when it would go back is gone; expired packages are neither counted nor served, and swept.
#[test]
fn packages_live_ninety_days() {
    let (mut w, ws, owner, o, p) = pair();
    assert_eq!(w.ask1(o, keys_publish(&[b"a", b"b"])), Got::Published(2));
    w.set_wall(EPOCH_MS + 1_000);
    assert_eq!(w.ask1(o, keys_publish(&[b"c"])), Got::Published(3));
    // Taken in time, and given back less than a second before their end.
    w.hold(Kind::Get);
    w.say(p, keys_fetch(owner.public(), 1));
    w.hang_up(p);
    w.set_wall(EPOCH_MS + LIFE_MS - 999);
    w.release(Kind::Get);
    let o = w.login(&owner, &[group(1)]);
    assert_eq!(w.ask1(o, keys_publish(&[])), Got::Published(2));
    w.set_wall(EPOCH_MS + LIFE_MS);
    assert_eq!(w.ask1(o, keys_publish(&[])), Got::Published(1));
    let p = w.login(&Device::new(6), &[group(1)]);
    assert_eq!(w.ask1(p, keys_fetch(owner.public(), 8)), bundles(&[b"c"]));
    assert_eq!(w.ask1(o, publish_all(&packages(0, 100))), Got::Published(100));
    w.set_wall(EPOCH_MS + 2 * LIFE_MS);
    let o = w.login(&owner, &[group(1)]);
    assert_eq!(w.ask1(o, keys_publish(&[b"last"])), Got::Published(1));
    w.sweep();
    assert_eq!(w.beside(&ws, "packages").len(), 1);
    w.set_wall(EPOCH_MS + 3 * LIFE_MS + 1);
    let o = w.login(&owner, &[group(1)]);
    w.sweep();
    assert_eq!(w.beside(&ws, "packages").len(), 0);
    let _ = o;
}

/// W07.7: a read that fails after the take puts the packages back too, and the requester, who is still there, comes
/// again.
#[test]
fn an_unreadable_fetch_puts_them_back() {
    let (mut w, _, owner, o, p) = pair();
    w.ask1(o, keys_publish(&[b"a", b"b"]));
    w.store.fail_next(Kind::Get, Fault::NotCommitted);
    assert_retry(&w.ask1(p, keys_fetch(owner.public(), 2)), Code::Backpressure);
    assert_eq!(w.ask1(p, keys_fetch(owner.public(), 2)), bundles(&[b"a", b"b"]));
}

/// W07.8: one device key in two workspaces has two shelves. W07.10: AUTH_ACK counts this workspace's.
#[test]
fn shelves_are_per_workspace() {
    let mut w = World::new();
    let both = Device::new(5);
    w.found("ws:one", &[&both], &[group(1)]);
    w.found_by("ws:two", &Device::new(3), &Device::new(4), &[&both], &[group(7)]);
    let (one, two) = (w.login(&both, &[group(1)]), w.login(&both, &[group(7)]));
    assert_eq!(
        w.ask1(one, keys_publish(&[b"one", b"one too"])),
        Got::Published(2)
    );
    assert_eq!(w.ask1(two, keys_publish(&[b"two"])), Got::Published(1));
    for (g, depth) in [(group(1), 2), (group(7), 1)] {
        let c = w.open();
        let got = only(w.auth(c, &both, &[g]));
        let Got::AuthAck { key_packages, .. } = got else {
            panic!()
        };
        assert_eq!(key_packages, depth);
    }
    assert_eq!(w.ask1(two, keys_fetch(both.public(), 8)), bundles(&[b"two"]));
    assert_eq!(
        w.ask1(one, keys_fetch(both.public(), 8)),
        bundles(&[b"one", b"one too"])
    );
}

/// W07.10: the count in AUTH_ACK is the shelf's depth: without what was taken and what is expired.
#[test]
fn auth_ack_counts_the_shelf() {
    let (mut w, _, owner, o, p) = pair();
    assert_eq!(depth(&mut w, &owner), 0);
    w.ask1(o, publish_all(&packages(0, 5)));
    assert_eq!(depth(&mut w, &owner), 5);
    w.ask1(p, keys_fetch(owner.public(), 2));
    assert_eq!(depth(&mut w, &owner), 3);
    w.restart();
    assert_eq!(depth(&mut w, &owner), 3);
    w.set_wall(EPOCH_MS + LIFE_MS);
    assert_eq!(depth(&mut w, &owner), 0);
}

/// W07.9: the 31st frame is refused with 30 and SEND goes on; the relay's own forms from a client and KEYS before AUTH
/// close; an unknown form and a wrong width don't.
#[test]
fn keys_budget_and_direction() {
    let (mut w, _, owner, o, p) = pair();
    for n in 0..30 {
        let frame = if n % 2 == 0 {
            keys_fetch(owner.public(), 1)
        } else {
            keys_publish(&[&vec![0; 131_073]])
        };
        assert_ne!(w.ask1(p, frame).code(), Some(Code::RateLimited));
    }
    let fetch = keys_fetch(owner.public(), 1);
    assert_eq!(w.ask1(p, fetch.clone()), limited(Code::RateLimited, 60, 30));
    assert_eq!(w.stored(p, group(1), b"x"), 1);
    w.set_wall(EPOCH_MS + 60_000);
    assert_eq!(w.ask1(p, fetch.clone()), Got::NoBundles);
    for (bytes, code) in [
        (&[0x82, 22, 0x82, 9, 0x80][..], Code::MalformedHeader),
        (&[0x82, 22, 0x82, 3, 0x82, 0x41, 0, 1], Code::NoncanonicalCbor),
        (&[0x82, 22, 0x81, 3], Code::NoncanonicalCbor),
    ] {
        assert_eq!(w.ask1(o, bytes.to_vec().into()), refused(code), "{bytes:x?}");
    }
    assert!(w.is_open(o));
    let list: BytesListBuf = [&b"x"[..]].into_iter().collect();
    let packages = list.as_list();
    for keys in [
        Keys::Published { remaining: 1 },
        Keys::Bundles { packages },
        Keys::None,
    ] {
        let c = w.login(&owner, &[group(1)]);
        assert_eq!(
            w.ask1(c, frame(&Frame::Keys(keys))),
            refused(Code::MalformedHeader)
        );
        assert!(!w.is_open(c));
    }
    let c = w.open();
    w.connect(c, 4, &[]);
    assert_eq!(w.ask1(c, fetch), refused(Code::MalformedHeader));
    assert!(!w.is_open(c));
}

/// Read-only: a publication is refused before it is charged, a fetch is served (07 D13).
#[test]
fn read_only_serves_fetches() {
    let (mut w, _, owner, o, _) = pair();
    w.ask1(o, keys_publish(&[b"a"]));
    w.restart_with(|c| c.read_only = true);
    let c = w.login(&owner, &[group(1)]);
    for _ in 0..40 {
        assert_eq!(w.ask1(c, keys_publish(&[b"b"])), refused(Code::ServiceReadOnly));
    }
    assert_eq!(w.ask1(c, keys_fetch(owner.public(), 8)), bundles(&[b"a"]));
}

/// A grant that lapsed publishes nothing more: the socket ends without a frame (05 D11). W05.26
#[test]
fn a_lapsed_device_publishes_nothing() {
    let (mut w, ws, _, _, _) = pair();
    let admin = w.login(&ws.founder, &[group(1)]);
    let m = w.issue(admin, &ws, &record(&ws, 1, 1, &[group(1)]));
    let joiner = Device::new(9);
    w.seat(&m, 1, &joiner);
    let j = w.login(&joiner, &[group(1)]);
    w.set_wall(EPOCH_MS + 600_000);
    assert_eq!(w.ask(j, keys_publish(&[b"late"])), []);
    assert_eq!(w.closed(j).unwrap().1, CloseReason::Evicted);
    assert_eq!(w.beside(&ws, "packages").len(), 0);
}
