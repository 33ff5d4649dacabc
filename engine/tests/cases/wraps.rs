//! WRAP: one slot per tag, the superseded value one deep (07 B).

use crate::world::*;
use drover_engine::effects::CloseReason;
use drover_wire::error::Code;
use drover_wire::frame::Frame;

/// A workspace with the groups 1 and 2, and a member's connection.
fn founded() -> (World, Workspace, C) {
    let mut w = World::new();
    let ws = w.found("ws:one", &[], &[group(1), group(2)]);
    let c = w.login(&ws.founder.clone(), &[group(1)]);
    (w, ws, c)
}

/// A slot as the store holds it.
#[derive(Debug, PartialEq, Eq)]
struct Slot {
    epoch: u64,
    ct: Vec<u8>,
    /// Epoch, ciphertext, end.
    prior: Option<(u64, Vec<u8>, u64)>,
}

/// The slots of a workspace, by tag.
fn slots(w: &World, ws: &Workspace) -> Vec<(u8, Slot)> {
    w.beside(ws, "wraps")
        .into_iter()
        .map(|(key, value)| {
            let mut d = minicbor::Decoder::new(&value);
            let fields = d.array().unwrap();
            d.bytes().unwrap();
            let (epoch, ct) = (d.u64().unwrap(), d.bytes().unwrap().to_vec());
            let prior = (fields == Some(4)).then(|| {
                assert_eq!(d.array().unwrap(), Some(3));
                (d.u64().unwrap(), d.bytes().unwrap().to_vec(), d.u64().unwrap())
            });
            (key[key.len() - 1], Slot { epoch, ct, prior })
        })
        .collect()
}

fn slot(epoch: u64, ct: &[u8], prior: Option<(u64, &[u8], u64)>) -> Slot {
    Slot {
        epoch,
        ct: ct.to_vec(),
        prior: prior.map(|(epoch, ct, end)| (epoch, ct.to_vec(), end)),
    }
}

fn not_newer(stored: u64) -> Got {
    limited(Code::WrapNotNewer, 0, stored)
}

/// W07.11: the first is stored and answered with its tag; a greater epoch replaces it; an equal and a lower one are
/// refused with the stored epoch, identical bytes too, and leave the slot as it was. The whole range of epochs counts
/// (07 D7).
#[test]
fn an_epoch_only_advances() {
    let (mut w, ws, c) = founded();
    assert_eq!(w.ask1(c, wrap(group(1), 4, 1, b"four")), wrapped(1));
    for (epoch, ct) in [(4, &b"four"[..]), (4, b"other"), (3, b"three"), (0, b"zero")] {
        assert_eq!(w.ask1(c, wrap(group(1), epoch, 1, ct)), not_newer(4));
    }
    assert_eq!(slots(&w, &ws), [(1, slot(4, b"four", None))]);
    w.set_wall(EPOCH_MS + 5);
    assert_eq!(w.ask1(c, wrap(group(1), 9, 1, b"nine")), wrapped(1));
    let end = EPOCH_MS + 5 + 30 * DAY_MS;
    let after = || [(1, slot(9, b"nine", Some((4, b"four", end))))];
    assert_eq!(slots(&w, &ws), after());
    assert_eq!(w.ask1(c, wrap(group(1), 9, 1, b"nine")), not_newer(9));
    assert_eq!(slots(&w, &ws), after());
    w.restart();
    let c = w.login(&ws.founder, &[group(1)]);
    assert_eq!(w.ask1(c, wrap(group(1), 8, 1, b"eight")), not_newer(9));
    assert_eq!(w.ask1(c, wrap(group(1), u64::MAX, 1, b"last")), wrapped(1));
    assert_eq!(
        w.ask1(c, wrap(group(1), u64::MAX, 1, b"last")),
        not_newer(u64::MAX)
    );
    // A tag of its own is a slot of its own.
    assert_eq!(w.ask1(c, wrap(group(1), 1, 2, b"one")), wrapped(2));
}

/// W07.12: the prior value is exactly the superseded one, one deep, with its end 30 days on.
#[test]
fn the_prior_value_is_one_deep() {
    let (mut w, ws, c) = founded();
    for epoch in 1..=3u64 {
        w.set_wall(EPOCH_MS + epoch);
        assert_eq!(w.ask1(c, wrap(group(1), epoch, 1, &[epoch as u8])), wrapped(1));
    }
    let end = EPOCH_MS + 3 + 30 * DAY_MS;
    assert_eq!(slots(&w, &ws), [(1, slot(3, &[3], Some((2, &[2], end))))]);
}

/// W07.13: a tag that another group holds is malformed, in this workspace or another, whatever the epoch; a different
/// tag is taken there (07 D4).
#[test]
fn a_tag_belongs_to_one_group() {
    let (mut w, ws, c) = founded();
    let two = w.found_by("ws:two", &Device::new(3), &Device::new(4), &[], &[group(7)]);
    let other = w.login(&two.founder, &[group(7)]);
    assert_eq!(w.ask1(c, wrap(group(1), 4, 1, b"mine")), wrapped(1));
    let malformed = refused(Code::MalformedHeader);
    for epoch in [3, 4, 5] {
        assert_eq!(w.ask1(c, wrap(group(2), epoch, 1, b"x")), malformed);
        assert_eq!(w.ask1(other, wrap(group(7), epoch, 1, b"x")), malformed);
    }
    assert_eq!(w.ask1(c, wrap(group(2), 4, 2, b"x")), wrapped(2));
    assert_eq!(w.ask1(other, wrap(group(7), 4, 3, b"x")), wrapped(3));
    assert_eq!(
        slots(&w, &ws),
        [(1, slot(4, b"mine", None)), (2, slot(4, b"x", None))]
    );
    // Two groups race for a new tag, in two workspaces: one gets it.
    w.push(c, wrap(group(1), 1, 9, b"x"));
    w.push(other, wrap(group(7), 1, 9, b"x"));
    let got = [only(w.got(c)), only(w.got(other))];
    assert_eq!(got, [wrapped(9), malformed]);
}

/// W07.14: widths, an empty ciphertext and a trailing byte are malformed, non-canonical CBOR too; 262 145 bytes are too
/// large, 262 144 are taken; the socket stays. WRAP before AUTH closes it.
#[test]
fn wrap_shape() {
    let (mut w, ws, c) = founded();
    let body = |group: &[u8], tag: &[u8], ct: &[u8]| {
        let mut out = vec![0x84];
        for (at, part) in [group, &[], tag, ct].into_iter().enumerate() {
            if at == 1 {
                out.push(4);
            } else {
                out.extend([0x58, part.len() as u8].iter().skip(usize::from(part.len() < 24)));
                if part.len() < 24 {
                    *out.last_mut().unwrap() |= 0x40;
                }
                out.extend(part);
            }
        }
        out
    };
    let (g, tag) = (group(1).0, [1; 32]);
    let good = body(&g, &tag, b"ct");
    let mut unshort = good.clone();
    unshort[35..36].copy_from_slice(&[4]);
    unshort.splice(35..36, [0x18, 4]);
    for bad in [
        body(&g[..31], &tag, b"ct"),
        body(&g, &tag[..31], b"ct"),
        body(&g, &tag, b""),
        [&good[..], &[0]].concat(),
        good[..good.len() - 1].to_vec(),
        unshort,
        vec![0xff],
        Vec::new(),
    ] {
        assert_eq!(
            w.ask1(c, frame(&Frame::Wrap { body: &bad })),
            refused(Code::MalformedHeader),
            "{bad:x?}"
        );
    }
    let over = w.ask1(c, wrap(group(1), 4, 1, &[1; 262_145]));
    assert_eq!(over, limited(Code::EnvelopeTooLarge, 0, 262_144));
    assert_eq!(w.ask1(c, frame(&Frame::Wrap { body: &good })), wrapped(1));
    assert_eq!(w.ask1(c, wrap(group(1), 4, 2, &[1; 262_144])), wrapped(2));
    let c = w.open();
    w.connect(c, 4, &[]);
    assert_eq!(
        w.ask1(c, wrap(group(1), 4, 3, b"x")),
        refused(Code::MalformedHeader)
    );
    assert!(!w.is_open(c));
    assert_eq!(slots(&w, &ws).len(), 2);
}

/// W07.15: an unknown group, another workspace's, and a session without a workspace; the group is judged before the
/// tag and the epoch.
#[test]
fn wrap_group() {
    let (mut w, ws, c) = founded();
    w.found_by("ws:two", &Device::new(3), &Device::new(4), &[], &[group(7)]);
    assert_eq!(w.ask1(c, wrap(group(1), 4, 1, b"x")), wrapped(1));
    let denied = refused(Code::WriterNotInAccessSet);
    assert_eq!(
        w.ask1(c, wrap(group(99), 4, 1, b"x")),
        refused(Code::GroupUnknown)
    );
    assert_eq!(w.ask1(c, wrap(group(7), 4, 1, b"x")), denied);
    w.restart_with(|c| c.access_set = false);
    let c = w.login(&ws.founder, &[group(1)]);
    assert_eq!(w.ask1(c, wrap(group(1), 5, 1, b"x")), denied);
}

/// W07.16: two racing advances to one epoch have one winner, and the prior value is the original; a greater epoch that
/// comes behind a lower one succeeds (07 D8).
#[test]
fn racing_advances_have_one_winner() {
    let (mut w, ws, a) = founded();
    let b = w.login(&ws.founder, &[group(1)]);
    assert_eq!(w.ask1(a, wrap(group(1), 1, 1, b"original")), wrapped(1));
    w.push(a, wrap(group(1), 2, 1, b"a"));
    w.push(b, wrap(group(1), 2, 1, b"b"));
    assert_eq!([only(w.got(a)), only(w.got(b))], [wrapped(1), not_newer(2)]);
    let end = EPOCH_MS + 30 * DAY_MS;
    assert_eq!(slots(&w, &ws), [(1, slot(2, b"a", Some((1, b"original", end))))]);
    // An empty slot: the later epoch is judged against the winner.
    w.push(a, wrap(group(1), 5, 2, b"five"));
    w.push(b, wrap(group(1), 6, 2, b"six"));
    assert_eq!([only(w.got(a)), only(w.got(b))], [wrapped(2), wrapped(2)]);
    assert_eq!(slots(&w, &ws)[1], (2, slot(6, b"six", Some((5, b"five", end)))));
}

/// W07.17: a store that fails at the read, the claim or the write: `retry/backpressure`, nothing changed, and the same
/// bytes succeed; so do those of a group whose tag was claimed and not written.
#[test]
fn a_failed_wrap_changes_nothing() {
    let (mut w, ws, c) = founded();
    for kind in [Kind::Get, Kind::Claim, Kind::Commit] {
        w.store.fail_next(kind, Fault::NotCommitted);
        assert_retry(&w.ask1(c, wrap(group(1), 1, 1, b"one")), Code::Backpressure);
        assert_eq!(slots(&w, &ws), []);
    }
    assert_eq!(w.ask1(c, wrap(group(1), 1, 1, b"one")), wrapped(1));
    for kind in [Kind::Get, Kind::Commit] {
        w.store.fail_next(kind, Fault::NotCommitted);
        assert_retry(&w.ask1(c, wrap(group(1), 2, 1, b"two")), Code::Backpressure);
        assert_eq!(slots(&w, &ws), [(1, slot(1, b"one", None))]);
    }
    assert_eq!(w.ask1(c, wrap(group(1), 2, 1, b"two")), wrapped(1));
    // The realm goes on with what waited behind a failure.
    let b = w.login(&ws.founder, &[group(1)]);
    w.store.fail_next(Kind::Claim, Fault::NotCommitted);
    w.push(c, wrap(group(1), 1, 5, b"x"));
    w.push(b, wrap(group(1), 1, 6, b"x"));
    assert_retry(&only(w.got(c)), Code::Backpressure);
    assert_eq!(only(w.got(b)), wrapped(6));
}

/// The 31st WRAP of a minute is refused with 30; read-only refuses before it charges (07 §). W04.4
#[test]
fn wrap_budget_is_thirty() {
    let (mut w, ws, c) = founded();
    for n in 0..30 {
        assert_ne!(
            w.ask1(c, wrap(group(1), n, 1, b"x")).code(),
            Some(Code::RateLimited)
        );
    }
    assert_eq!(
        w.ask1(c, wrap(group(1), 99, 1, b"x")),
        limited(Code::RateLimited, 60, 30)
    );
    w.set_wall(EPOCH_MS + 60_000);
    assert_eq!(w.ask1(c, wrap(group(1), 99, 1, b"x")), wrapped(1));
    w.restart_with(|c| c.read_only = true);
    let c = w.login(&ws.founder, &[group(1)]);
    for _ in 0..40 {
        assert_eq!(
            w.ask1(c, wrap(group(1), 100, 1, b"x")),
            refused(Code::ServiceReadOnly)
        );
    }
}

/// A grant that lapsed wraps nothing more: the socket ends without a frame (05 D11). W05.26
#[test]
fn a_lapsed_device_wraps_nothing() {
    let (mut w, ws, admin) = founded();
    let m = w.issue(admin, &ws, &record(&ws, 1, 1, &[group(1)]));
    let joiner = Device::new(9);
    w.seat(&m, 1, &joiner);
    let j = w.login(&joiner, &[group(1)]);
    assert_eq!(w.ask1(j, wrap(group(1), 1, 1, b"x")), wrapped(1));
    w.set_wall(EPOCH_MS + 600_000);
    assert_eq!(w.ask(j, wrap(group(1), 2, 1, b"late")), []);
    assert_eq!(w.closed(j).unwrap().1, CloseReason::Evicted);
    assert_eq!(slots(&w, &ws), [(1, slot(1, b"x", None))]);
}
