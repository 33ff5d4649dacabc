//! A crash between any two commits: every control flow is run again and again, each time with the store failing at the
//! next of its writes, the outcome known or not, the process living on or dying there. Whatever happened, what is in
//! the store holds together, and the same flow succeeds afterwards.

use crate::world::*;
use drover_storage::RealmId;
use drover_wire::access::AccessSet;
use drover_wire::id::{EntryHash, GroupId, Hash, Token};
use minicbor::Decoder;
use minicbor::data::Type;
use std::collections::{BTreeMap, BTreeSet};

// ---- what must hold

struct Invite {
    remaining: u8,
    /// 0 live, 1 revoked, 2 spent.
    state: u8,
    expires_ms: u64,
    uses: u8,
    scopes: Vec<[u8; 32]>,
    /// Group and epoch of the refreshed bundles.
    refreshed: Vec<([u8; 32], u64)>,
    has_record: bool,
}

struct Seat {
    device: [u8; 32],
    consumed: bool,
    released: bool,
}

struct Grant {
    expires_ms: u64,
    voided: bool,
}

/// A workspace's records, read from the store.
#[derive(Default)]
struct Facts {
    head: Option<u64>,
    sets: BTreeMap<u64, AccessSet>,
    invites: BTreeMap<[u8; 16], Invite>,
    seats: BTreeMap<([u8; 16], [u8; 16]), Seat>,
    commits: BTreeSet<Vec<u8>>,
    grants: BTreeMap<[u8; 32], Grant>,
    shelves: BTreeMap<[u8; 32], Vec<u64>>,
    genesis_token: [u8; 16],
    redeemed: bool,
    transparency: u64,
}

fn fixed<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().unwrap()
}

fn bytes<const N: usize>(d: &mut Decoder<'_>) -> [u8; N] {
    fixed(d.bytes().unwrap())
}

/// An optional number at the end of a record.
fn optional(d: &mut Decoder<'_>, is_there: bool) -> Option<u64> {
    if !is_there || d.datatype().unwrap() == Type::Null {
        if is_there {
            d.skip().unwrap();
        }
        return None;
    }
    Some(d.u64().unwrap())
}

fn facts(w: &World, realm: &RealmId) -> Facts {
    let mut f = Facts::default();
    let mut links = Hash([0; 32]);
    for (key, value) in w.records(realm) {
        let tail = |prefix: &[u8]| key.strip_prefix(prefix);
        let mut d = Decoder::new(&value);
        if key == b"head" {
            f.head = Some(u64::from_be_bytes(fixed(&value)));
        } else if key == b"genesis" {
            let n = d.array().unwrap().unwrap();
            let _key: [u8; 32] = bytes(&mut d);
            f.genesis_token = bytes(&mut d);
            f.redeemed = optional(&mut d, n > 2).is_some();
        } else if let Some(version) = tail(b"set/") {
            let set = AccessSet::decode(&value).unwrap();
            f.sets.insert(u64::from_be_bytes(fixed(version)), set);
        } else if let Some(token) = tail(b"invite/") {
            d.array().unwrap();
            let has_record = !d.bytes().unwrap().is_empty();
            let (remaining, state) = (d.u8().unwrap(), d.u8().unwrap());
            let (_bootstrap, _stored, expires_ms) = (d.bool().unwrap(), d.u64().unwrap(), d.u64().unwrap());
            let _hash = d.bytes().unwrap();
            let uses = d.u8().unwrap();
            let scopes = d.bytes().unwrap().chunks(32).map(fixed).collect();
            let refreshed = (0..d.array().unwrap().unwrap())
                .map(|_| {
                    d.array().unwrap();
                    let bundle = (bytes(&mut d), d.u64().unwrap());
                    d.u64().unwrap();
                    bundle
                })
                .collect();
            let invite = Invite {
                remaining,
                state,
                expires_ms,
                uses,
                scopes,
                refreshed,
                has_record,
            };
            f.invites.insert(fixed(token), invite);
        } else if let Some(rest) = tail(b"seat/") {
            d.array().unwrap();
            let device = bytes(&mut d);
            d.u64().unwrap();
            let (consumed, released) = (d.bool().unwrap(), d.bool().unwrap());
            let seat = Seat {
                device,
                consumed,
                released,
            };
            f.seats.insert((fixed(&rest[..16]), fixed(&rest[16..])), seat);
        } else if let Some(rest) = tail(b"commit/") {
            f.commits.insert(rest.to_vec());
        } else if let Some(hash) = tail(b"grant/") {
            let n = d.array().unwrap().unwrap();
            let expires_ms = d.u64().unwrap();
            let _seen = optional(&mut d, n > 1);
            let voided = optional(&mut d, n > 2).is_some();
            f.grants.insert(fixed(hash), Grant { expires_ms, voided });
        } else if let Some(shelf) = tail(b"shelf/") {
            d.array().unwrap();
            let next = d.u64().unwrap();
            let ids: Vec<u64> = (0..d.array().unwrap().unwrap())
                .map(|_| {
                    d.array().unwrap();
                    let id = d.u64().unwrap();
                    d.u64().unwrap();
                    id
                })
                .collect();
            assert!(ids.iter().all(|id| *id < next));
            assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
            f.shelves.insert(fixed(shelf), ids);
        } else if let Some(seq) = tail(b"transparency/") {
            assert_eq!(u64::from_be_bytes(fixed(seq)), f.transparency, "no gaps");
            d.array().unwrap();
            d.str().unwrap();
            let body = d.bytes().unwrap().to_vec();
            assert_eq!(bytes::<32>(&mut d), links.0);
            links = Hash::of(&[&links.0, &body]);
            assert_eq!(bytes::<32>(&mut d), links.0);
            f.transparency += 1;
        }
    }
    f
}

/// No seat lost or oversold, no grant without a seat, a head that its chain leads to, packages and bundles where their
/// lists say, wraps whole.
fn check(w: &World, realm: &RealmId, what: &str) {
    let f = facts(w, realm);
    assert_eq!(
        f.head,
        f.sets.keys().next_back().copied(),
        "{what}: the head is the newest set"
    );
    let mut prev = Hash([0; 32]);
    for (at, (version, set)) in (0..).zip(&f.sets) {
        assert_eq!(
            (*version, set.version, set.prev_hash),
            (at, at, prev),
            "{what}: the chain"
        );
        prev = set.digest();
    }
    let founded = f.head.is_some();
    assert_eq!(
        f.redeemed, founded,
        "{what}: the genesis key is spent by the first set"
    );
    assert_eq!(f.transparency > 0, founded, "{what}: and by nothing else");
    if founded {
        let bootstrap = &f.invites[&f.genesis_token];
        assert_eq!((bootstrap.state, bootstrap.remaining), (2, 0), "{what}");
        let used = f
            .seats
            .iter()
            .filter(|((t, _), s)| *t == f.genesis_token && s.consumed);
        assert_eq!(used.count(), 1, "{what}: the founder's seat");
    }
    for (token, invite) in &f.invites {
        let of_token = || f.seats.iter().filter(|((t, _), _)| t == token);
        let held = of_token().filter(|(_, s)| !s.released).count();
        if invite.state == 1 {
            assert!(
                of_token().all(|(_, s)| s.consumed || s.released),
                "{what}: revoked"
            );
        } else {
            assert_eq!(usize::from(invite.uses - invite.remaining), held, "{what}: seats");
        }
        for ((_, nonce), seat) in of_token() {
            let grant = f
                .grants
                .get(&seat.device)
                .unwrap_or_else(|| panic!("{what}: a seat without a grant"));
            let committed = invite
                .scopes
                .iter()
                .filter(|scope| f.commits.contains(&[&token[..], nonce, &scope[..]].concat()))
                .count();
            if *token != f.genesis_token {
                assert_eq!(seat.consumed, committed == invite.scopes.len(), "{what}: used up");
                assert!(
                    !seat.consumed || grant.voided || grant.expires_ms >= invite.expires_ms,
                    "{what}"
                );
            }
            assert!(invite.state != 1 || grant.voided, "{what}: revoked grants");
        }
    }
    for hash in f.grants.keys() {
        assert!(
            f.seats.values().any(|s| s.device == *hash),
            "{what}: a grant without a seat"
        );
    }
    let beside = |name: &str| -> BTreeSet<Vec<u8>> {
        let partition = RealmId(format!("{}/{name}", realm.0).into());
        w.records(&partition).into_iter().map(|(key, _)| key).collect()
    };
    let packages = beside("packages");
    for (shelf, ids) in &f.shelves {
        for id in ids {
            let key = [&shelf[..], &id.to_be_bytes()].concat();
            assert!(packages.contains(&key), "{what}: a listed package is there");
        }
    }
    for (_, value) in w.records(&RealmId(format!("{}/wraps", realm.0).into())) {
        let mut d = Decoder::new(&value);
        let fields = d.array().unwrap();
        d.bytes().unwrap();
        // Tests wrap nine bytes of their epoch.
        let epoch = d.u64().unwrap();
        assert_eq!(d.bytes().unwrap(), [epoch as u8; 9], "{what}: a whole wrap");
        if fields == Some(4) {
            d.array().unwrap();
            let prior = d.u64().unwrap();
            assert!(prior < epoch, "{what}: an older one behind it");
            assert_eq!(d.bytes().unwrap(), [prior as u8; 9], "{what}: whole too");
        }
    }
    let large = beside("invites");
    for (token, invite) in f.invites.iter().filter(|(_, i)| i.state == 0) {
        let record = [b"record/", &token[..]].concat();
        assert!(
            invite.has_record || large.contains(&record),
            "{what}: a live invite has a record"
        );
        for (group, epoch) in &invite.refreshed {
            let key = [&b"bundle/"[..], token, group, &epoch.to_be_bytes()].concat();
            assert!(large.contains(&key), "{what}: a listed bundle is there");
        }
    }
}

// ---- the flows

/// A world, and what a flow keeps of it.
struct Case {
    w: World,
    ws: Option<Workspace>,
    realm: RealmId,
    minted: Option<Minted>,
    salt: Option<drover_wire::id::Salt>,
    /// Packages that were handed out.
    served: Vec<Vec<u8>>,
}

struct Flow {
    name: &'static str,
    prepare: fn() -> Case,
    /// Begins afresh each time; a refusal is no failure.
    act: fn(&mut Case),
    /// Whether it has had its effect.
    done: fn(&mut Case) -> bool,
}

fn run(flow: &Flow) {
    let mut points = 0;
    // A process that dies never learns its outcome: there known and unknown are one.
    for (fault, dies) in [
        (Fault::NotCommitted, false),
        (Fault::UnknownLost, false),
        (Fault::UnknownLost, true),
        (Fault::UnknownKept, false),
        (Fault::UnknownKept, true),
    ] {
        for skip in 0.. {
            assert!(skip < 40, "{} never ends", flow.name);
            let mut case = (flow.prepare)();
            case.w.store.fail_write(skip, fault, dies);
            (flow.act)(&mut case);
            let hit = case.w.store.has_failed();
            case.w.store.up();
            let what = format!("{}, write {skip}, {fault:?}, dies: {dies}", flow.name);
            if !hit {
                assert!((flow.done)(&mut case), "{what}: the flow works at all");
                break;
            }
            points += 1;
            check(&case.w, &case.realm, &what);
            if dies {
                case.w.restart();
            }
            let again = |case: &mut Case, what: &str| {
                case.w.set_wall(case.w.now.wall_ms + 60_000); // budgets
                (flow.act)(case);
                check(&case.w, &case.realm, what);
                assert!((flow.done)(case), "{what}: succeeds afterwards");
            };
            again(&mut case, &what);
            case.w.restart();
            check(&case.w, &case.realm, &what);
            assert!((flow.done)(&mut case), "{what}: and stays");
        }
    }
    assert!(points > 0);
}

fn founded(members: &[&Device]) -> Case {
    let mut w = World::new();
    let ws = w.found("ws:one", members, &[group(1), group(2)]);
    Case {
        w,
        realm: ws.minted.realm.clone(),
        salt: Some(ws.salt),
        ws: Some(ws),
        minted: None,
        served: Vec::new(),
    }
}

const SCOPES: u64 = 2;

fn scopes() -> Vec<GroupId> {
    (1..=SCOPES).map(group).collect()
}

/// With an invite of two seats and two scopes, large enough to lie apart, and a member 5.
fn issued() -> Case {
    let mut case = founded(&[&Device::new(5)]);
    let ws = case.ws.clone().unwrap();
    let record = record_with(&ws, 1, 2, &scopes(), |r| r.bundles[0].2 = vec![7; 9_000]);
    let admin = case.w.login(&ws.founder, &[group(1)]);
    case.minted = Some(case.w.issue(admin, &ws, &record));
    case
}

fn seated() -> Case {
    let mut case = issued();
    let m = case.minted.clone().unwrap();
    case.w.seat(&m, 1, &Device::new(9));
    case
}

/// Tries to log in and to ask each of these in turn; whatever comes back.
fn tell(case: &mut Case, device: &Device, messages: Vec<bytes::Bytes>) -> Vec<Got> {
    let c = case.w.open();
    let challenge = case.w.connect(c, 4, &[group(1)]);
    let mut got = case.w.ask(c, device.auth(&challenge));
    for message in messages {
        case.w.push(c, message);
        got.extend(case.w.got(c));
    }
    case.w.hang_up(c);
    got
}

fn admin_tells(case: &mut Case, messages: Vec<bytes::Bytes>) -> Vec<Got> {
    let founder = case.ws.as_ref().unwrap().founder.clone();
    tell(case, &founder, messages)
}

fn joins(case: &mut Case, messages: Vec<bytes::Bytes>) -> Vec<Got> {
    let c = case.w.open();
    let mut got = Vec::new();
    for message in messages {
        got.extend(case.w.ask(c, message));
    }
    case.w.hang_up(c);
    got
}

/// A founder's genesis: its groups, the set, the seat, the invite and the key are one. W05.23, W06.21
#[test]
fn genesis() {
    run(&Flow {
        name: "genesis",
        prepare: || {
            let mut w = World::new();
            let m = w.mint("ws:one");
            let c = w.open();
            w.reserve(c, &m, &m.code, [1; 16], &Device::new(1));
            w.auth(c, &Device::new(1), &[group(1)]);
            let salt = w.state(c).salt;
            Case {
                w,
                ws: None,
                realm: m.realm.clone(),
                minted: Some(m),
                salt: Some(salt),
                served: Vec::new(),
            }
        },
        act: |case| {
            let founder = Device::new(1);
            let set = Draft::genesis(&case.salt.unwrap(), &[&founder], &[&Device::new(2)], &[]).by(&founder);
            tell(case, &founder, vec![access(&set.encode())]);
        },
        done: |case| {
            let c = case.w.login(&Device::new(1), &[group(1)]);
            case.w.state(c).head.is_some() && matches!(case.w.ask1(c, send(group(1), b"x")), Got::Ack(..))
        },
    });
}

/// Minting: a workspace with its invite, or nothing; the code of a mint that failed opens nothing. W06.20
#[test]
fn mint() {
    for (fault, dies) in [
        (Fault::NotCommitted, false),
        (Fault::UnknownLost, true),
        (Fault::UnknownKept, true),
    ] {
        let mut w = World::new();
        w.store.fail_write(0, fault, dies);
        assert!(w.try_mint("ws:one", true).is_none());
        w.store.up();
        w.restart();
        let minted = w.try_mint("ws:one", true);
        assert_eq!(minted.is_none(), fault == Fault::UnknownKept);
        check(&w, &RealmId("ws:one".into()), "mint");
        let invites = facts(&w, &RealmId("ws:one".into())).invites.len();
        assert_eq!(invites, 1);
    }
}

/// A reservation: charge, seat, grant. W06.9
#[test]
fn reservation() {
    run(&Flow {
        name: "reserve",
        prepare: issued,
        act: |case| {
            let m = case.minted.clone().unwrap();
            joins(case, vec![reserve(&m, CODE, [1; 16], &Device::new(9))]);
        },
        done: |case| {
            let f = facts(&case.w, &case.realm);
            f.seats.contains_key(&([1; 16], [1; 16])) && case.w.admits(&Device::new(9), &[group(1)])
        },
    });
}

/// Both scopes of a seat, the second using it up; parked on the way.
#[test]
fn scope_commits() {
    run(&Flow {
        name: "commit",
        prepare: seated,
        act: |case| {
            let (m, d) = (case.minted.clone().unwrap(), Device::new(9));
            joins(
                case,
                vec![
                    commit(&m, [1; 16], &d, group(1)),
                    park(&m, [1; 16], &d),
                    commit(&m, [1; 16], &d, group(2)),
                ],
            );
        },
        done: |case| {
            let m = case.minted.clone().unwrap();
            let got = case.w.commit(&m, 1, &Device::new(9), group(2));
            got == receipt(&m, [1; 16], group(2))
                && facts(&case.w, &case.realm).seats[&([1; 16], [1; 16])].consumed
        },
    });
}

/// The last seat: with its use the invite is spent and its large values are deleted.
#[test]
fn last_seat() {
    run(&Flow {
        name: "last seat",
        prepare: || {
            let mut case = seated();
            let m = case.minted.clone().unwrap();
            case.w.seat(&m, 2, &Device::new(8));
            for g in scopes() {
                case.w.commit(&m, 2, &Device::new(8), g);
            }
            case.w.commit(&m, 1, &Device::new(9), group(1));
            case
        },
        act: |case| {
            let m = case.minted.clone().unwrap();
            joins(case, vec![commit(&m, [1; 16], &Device::new(9), group(2))]);
        },
        done: |case| facts(&case.w, &case.realm).invites[&[1; 16]].state == 2,
    });
}

/// A large invite: its record, then the invite with its token. Afterwards it can be redeemed, whatever the outcome of
/// the first attempt was.
#[test]
fn creation() {
    run(&Flow {
        name: "create",
        prepare: || founded(&[]),
        act: |case| {
            let ws = case.ws.clone().unwrap();
            let record = record_with(&ws, 1, 2, &scopes(), |r| r.bundles[0].2 = vec![7; 9_000]);
            admin_tells(case, vec![create(&record)]);
        },
        done: |case| {
            let ws = case.ws.clone().unwrap();
            let admin = case.w.login(&ws.founder, &[group(1)]);
            let listed = case.w.invites(admin).len() == 1;
            listed && !case.w.record_of(&Token([1; 16])).is_empty() && {
                let m = Minted {
                    realm: case.realm.clone(),
                    token: Token([1; 16]),
                    code: CODE.into(),
                };
                let c = case.w.open();
                matches!(
                    case.w.reserve(c, &m, CODE, [1; 16], &Device::new(9)),
                    Got::Join(_)
                )
            }
        },
    });
}

/// A revocation: tombstone, seats, grants.
#[test]
fn revocation() {
    run(&Flow {
        name: "revoke",
        prepare: seated,
        act: |case| {
            admin_tells(case, vec![revoke(&Token([1; 16]))]);
        },
        done: |case| {
            facts(&case.w, &case.realm).invites[&[1; 16]].state == 1
                && !case.w.admits(&Device::new(9), &[group(1)])
        },
    });
}

/// Refreshed bundles beyond those that are kept: ciphertext, list, deletion.
#[test]
fn refreshes() {
    run(&Flow {
        name: "refresh",
        prepare: issued,
        act: |case| {
            let messages = (2..7).map(|n| refresh(&Token([1; 16]), group(1), n, &[n as u8; 40]));
            tell(case, &Device::new(5), messages.collect());
        },
        done: |case| {
            let epochs: Vec<u64> = case
                .w
                .bundles(&Token([1; 16]), group(1))
                .iter()
                .map(|(epoch, ct)| {
                    assert!(*epoch == 1 || *ct == [*epoch as u8; 40]);
                    *epoch
                })
                .collect();
            epochs == [6, 5, 4, 1]
        },
    });
}

/// A removal that supersedes a grant: the set, the grant, the log. W05.23
#[test]
fn removal() {
    run(&Flow {
        name: "publish",
        prepare: || {
            let mut case = seated();
            let ws = case.ws.clone().unwrap();
            let mut next = ws.clone();
            let set = ws.adding(&[&Device::new(9)]).by(&ws.founder);
            let admin = case.w.login(&ws.founder, &[group(1)]);
            case.w.accept(admin, &mut next, set);
            case.ws = Some(next);
            case
        },
        act: |case| {
            let ws = case.ws.clone().unwrap();
            let set = ws.removing(&[&Device::new(9), &Device::new(5)]).by(&ws.founder);
            admin_tells(case, vec![access(&set.encode())]);
        },
        done: |case| {
            let f = facts(&case.w, &case.realm);
            let salt = case.salt.unwrap();
            f.head == Some(2)
                && f.grants[&EntryHash::of(&Device::new(9).public(), &salt).0].voided
                && !case.w.admits(&Device::new(9), &[group(1)])
                && !case.w.admits(&Device::new(5), &[group(1)])
        },
    });
}

/// A recovery rotation: set, probation, pause, log. W05.23
#[test]
fn rotation() {
    run(&Flow {
        name: "rotation",
        prepare: || founded(&[&Device::new(5)]),
        act: |case| {
            let ws = case.ws.clone().unwrap();
            let (salt, spent) = (ws.salt, ws.recovery.clone());
            let (successor, device) = (Device::new(20), Device::new(21));
            let draft = ws.next().with(|set| {
                set.entries.retain(|e| *e != spent.entry(&salt));
                set.entries.extend([successor.entry(&salt), device.entry(&salt)]);
                set.authorizers.push(device.public());
                set.recovery = vec![successor.public()];
                set.pending = vec![Device::new(5).entry(&salt)];
            });
            let message = access(&draft.by(&spent).encode());
            tell(case, &spent, vec![message]);
        },
        done: |case| {
            let keys: Vec<Vec<u8>> = case.w.records(&case.realm).into_iter().map(|(k, _)| k).collect();
            let has = |prefix: &[u8], device: u64| {
                let key = [prefix, &Device::new(device).public().0].concat();
                keys.contains(&key)
            };
            facts(&case.w, &case.realm).head == Some(1) && has(b"probation/", 21) && has(b"rotation/", 20)
        },
    });
}

/// Key packages: published whole or not; every one served at most once, whatever fails between the take and the
/// delivery. W07.2
#[test]
fn key_packages() {
    fn packages() -> Vec<Vec<u8>> {
        (0..6u8).map(|n| vec![n; 3]).collect()
    }
    run(&Flow {
        name: "keys publish",
        prepare: || founded(&[&Device::new(5)]),
        act: |case| {
            let packages = packages();
            let slices: Vec<&[u8]> = packages.iter().map(Vec::as_slice).collect();
            tell(case, &Device::new(5), vec![keys_publish(&slices)]);
        },
        done: |case| {
            // An unknown outcome may have been a publication; the client's second one doubles it (07 D11).
            let f = facts(&case.w, &case.realm);
            let shelf = Hash::of(&[&Device::new(5).public().0]);
            matches!(f.shelves.get(&shelf.0).map(Vec::len), Some(6 | 12))
        },
    });
    run(&Flow {
        name: "keys fetch",
        prepare: || {
            let mut case = founded(&[&Device::new(5)]);
            let packages = packages();
            let slices: Vec<&[u8]> = packages.iter().map(Vec::as_slice).collect();
            tell(&mut case, &Device::new(5), vec![keys_publish(&slices)]);
            case
        },
        act: |case| {
            // One requester leaves before its packages are there: they go back.
            case.w.hold(Kind::Get);
            let founder = case.ws.as_ref().unwrap().founder.clone();
            tell(case, &founder, vec![keys_fetch(Device::new(5).public(), 2)]);
            case.w.release(Kind::Get);
            let fetch = || keys_fetch(Device::new(5).public(), 2);
            for got in admin_tells(case, vec![fetch(), fetch(), fetch(), fetch()]) {
                if let Got::Bundles(packages) = got {
                    case.served.extend(packages);
                }
            }
            let distinct: BTreeSet<_> = case.served.iter().collect();
            assert_eq!(distinct.len(), case.served.len(), "a package was served twice");
            assert!(case.served.iter().all(|p| packages().contains(p)));
        },
        done: |case| {
            let f = facts(&case.w, &case.realm);
            f.shelves.values().all(Vec::is_empty)
        },
    });
}

/// Wraps: claim and slot; a slot is whole, and its epoch only advances. W07.17
#[test]
fn wraps() {
    run(&Flow {
        name: "wrap",
        prepare: || founded(&[]),
        act: |case| {
            let messages = (1..=3u64).map(|epoch| wrap(group(1), epoch, 1, &[epoch as u8; 9]));
            admin_tells(case, messages.collect());
        },
        done: |case| {
            let got = admin_tells(case, vec![wrap(group(1), 3, 1, b"x")]);
            got.last() == Some(&limited(drover_wire::error::Code::WrapNotNewer, 0, 3))
        },
    });
}

/// The sweep: lapsed seats and expired invites.
#[test]
fn sweep() {
    run(&Flow {
        name: "sweep",
        prepare: || {
            let mut case = seated();
            let ws = case.ws.clone().unwrap();
            let admin = case.w.login(&ws.founder, &[group(1)]);
            let short = record_with(&ws, 2, 1, &[group(1)], |r| r.expires_ms = EPOCH_MS + 300_000);
            case.w.issue(admin, &ws, &short);
            case.w.set_wall(EPOCH_MS + 600_000);
            case
        },
        act: |case| {
            let ws = case.ws.clone().unwrap();
            tell(case, &ws.founder, vec![]);
            case.w.sweep();
        },
        done: |case| {
            let f = facts(&case.w, &case.realm);
            f.invites[&[1; 16]].remaining == 2 && !f.invites.contains_key(&[2; 16])
        },
    });
}
