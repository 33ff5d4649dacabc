//! DROP (09 §2 to §4): verdicts, what goes and what stays, the log budget, and what runs meanwhile.

use crate::world::*;
use drover_engine::effects::{CloseHow, CloseReason, StoreRequest};
use drover_engine::event::StoreAnswer;
use drover_storage::log::{StreamId, StreamKind};
use drover_wire::drop::{Answer, Request, Verdict};
use drover_wire::error::Code;
use drover_wire::frame::Frame;
use drover_wire::id::{GroupId, Hash, Signature};
use drover_wire::recon;

/// More than two parts of a deletion, and then some.
const MANY: usize = 5_000;

fn key(n: u64) -> Device {
    Device::new(800 + n)
}

fn hash_of(g: GroupId, ct: &[u8]) -> Hash {
    envelope(g, ct).1
}

/// A workspace of two authorizers with a chain in group 1 and, if told so, a policy that is due.
struct Scene {
    w: World,
    ws: Workspace,
    second: Device,
    c: C,
    chain: Chain,
}

impl Scene {
    fn new() -> Self {
        Self::with(World::new(), true)
    }

    fn with(mut w: World, has_policy: bool) -> Self {
        let second = Device::new(6);
        w.found_by("ws:two", &Device::new(3), &Device::new(4), &[], &[group(9)]);
        let mut ws = w.found("ws:one", &[&second, &Device::new(5)], &[group(1), group(2)]);
        let c = w.login(&ws.founder.clone(), &[group(1)]);
        let set = ws
            .next()
            .with(|set| set.authorizers.push(second.public()))
            .by(&ws.founder);
        w.accept(c, &mut ws, set);
        let chain = w.begin_chain(c, group(1), key(1));
        let mut scene = Self {
            w,
            ws,
            second,
            c,
            chain,
        };
        if has_policy {
            scene.policy(1, 0);
        }
        scene
    }

    /// A policy of both authorizers.
    #[track_caller]
    fn policy(&mut self, version: u64, not_before_s: u64) {
        let by = [&self.ws.founder, &self.second];
        let p = a_policy(group(1), version, not_before_s, &by);
        assert_eq!(self.w.ask1(self.c, policy(&p)), acked(p.digest()));
    }

    #[track_caller]
    fn destruction(&mut self, g: GroupId, kind: &[u8], target: Hash, not_before_s: u64) {
        let by = [&self.ws.founder, &self.second];
        let d = a_destruction(g, kind, target, not_before_s, &by);
        assert_eq!(self.w.ask1(self.c, destruction(&d)), acked(d.digest()));
    }

    /// Ten old envelopes of 10 to 19 bytes around a snapshot, a checkpoint and two newer: numbers 1 to 14, the
    /// snapshot's 6, the checkpoint's 12.
    fn fill(&mut self) {
        for n in 0..10_u8 {
            if n == 5 {
                self.w.stored(self.c, group(1), b"snapshot");
            }
            self.w.stored(self.c, group(1), &vec![n; 10 + usize::from(n)]);
        }
        for ct in ["checkpoint", "newer", "newest"] {
            self.w.stored(self.c, group(1), ct.as_bytes());
        }
    }

    fn below_checkpoint(&self) -> Request {
        self.chain.drop(
            hash_of(group(1), b"checkpoint"),
            &[hash_of(group(1), b"snapshot")],
        )
    }

    #[track_caller]
    fn drop(&mut self, request: &Request) -> Got {
        self.w.ask1(self.c, drop_frame(request))
    }

    /// Numbers and contents a newcomer is sent.
    fn held(&mut self) -> Vec<(u64, Vec<u8>)> {
        let c = self.w.login(&Device::new(5), &[group(1)]);
        let (pushed, _) = self.w.reconcile(c, group(1), &mut Vec::new());
        self.w.hang_up(c);
        let mut held: Vec<_> = pushed.into_iter().map(|p| (p.seq, p.ct)).collect();
        held.sort();
        held
    }

    fn seqs(&mut self) -> Vec<u64> {
        self.held().into_iter().map(|(seq, _)| seq).collect()
    }

    /// What the store counts for the workspace, and what its streams add up to.
    fn usage(&self) -> (u64, u64) {
        let StoreAnswer::Usage(Ok(usage)) = self.w.run_now(StoreRequest::Usage(self.ws.minted.realm.clone()))
        else {
            panic!()
        };
        let mut sum = 0;
        for g in [group(1), group(2)] {
            for kind in [StreamKind::Envelopes, StreamKind::Handshakes] {
                let stream = StreamId { kind, group: g };
                let StoreAnswer::Index(Ok(entries)) = self.w.run_now(StoreRequest::Index(stream)) else {
                    panic!()
                };
                sum += entries.iter().map(|e| u64::from(e.budget_bytes)).sum::<u64>();
            }
        }
        (usage, sum)
    }

    /// The counter in memory and in the store, and the sum of what is held: one figure (W09.10).
    #[track_caller]
    fn counted(&mut self) -> u64 {
        let report = self.w.report(&self.ws.minted.realm).unwrap();
        let (usage, sum) = self.usage();
        assert_eq!((report.log_bytes, usage), (sum, sum));
        sum
    }

    /// [`MANY`] envelopes of 8 bytes and a checkpoint.
    fn fill_many(&mut self) -> Request {
        self.w.fill(self.c, group(1), MANY);
        self.w.stored(self.c, group(1), b"checkpoint");
        self.chain.drop(hash_of(group(1), b"checkpoint"), &[])
    }
}

/// W09.1: ten old envelopes go; snapshot, checkpoint and newer ones stay; the counts and the bytes are exact. SUB and
/// RECON serve what is left, after a restart as well. W09.10
#[test]
fn what_lies_below_a_checkpoint_goes() {
    let mut s = Scene::new();
    s.fill();
    let before = s.counted();
    let bytes = (10..20).sum::<u64>();
    assert_eq!(s.drop(&s.below_checkpoint()), ran(10, bytes, 1));
    assert_eq!(s.counted(), before - bytes);
    let kept = [
        (6, &b"snapshot"[..]),
        (12, b"checkpoint"),
        (13, b"newer"),
        (14, b"newest"),
    ];
    let kept: Vec<_> = kept.iter().map(|(seq, ct)| (*seq, ct.to_vec())).collect();
    for _ in 0..2 {
        assert_eq!(s.held(), kept);
        let reader = s.w.login(&Device::new(5), &[group(1)]);
        let got = s.w.subscribe(reader, group(1), 0);
        assert_eq!(got[0], Got::SubAck(group(1), 14));
        let seqs: Vec<_> = got[1..].iter().filter_map(Got::push_seq).collect();
        assert_eq!(seqs, [6, 12, 13, 14]);
        s.w.restart();
    }
}

/// 09 §4: numbers are not used again, neither at once nor after a restart, not even if all but the checkpoint went; a
/// dropped envelope sent again is a new one; a kept one is a duplicate.
#[test]
fn numbers_are_never_used_again() {
    for restart in [false, true] {
        let mut s = Scene::new();
        for n in 0..5_u8 {
            s.w.stored(s.c, group(1), &[n]);
        }
        s.w.stored(s.c, group(1), b"checkpoint"); // 6
        let request = s.chain.drop(hash_of(group(1), b"checkpoint"), &[]);
        assert_eq!(s.drop(&request), ran(5, 5, 0));
        if restart {
            s.w.restart();
            s.c = s.w.login(&s.ws.founder, &[group(1)]);
        }
        assert_eq!(s.w.stored(s.c, group(1), b"checkpoint"), 6);
        assert_eq!(s.w.stored(s.c, group(1), &[3]), 7);
        assert_eq!(s.w.stored(s.c, group(1), &[3]), 7);
        assert_eq!(s.seqs(), [6, 7]);
        s.counted();
    }
}

/// W09.2: the same instruction again deletes nothing and keeps what it kept; a later checkpoint never removes what an
/// earlier one rests on, also after a restart.
#[test]
fn anchors_are_permanent() {
    let mut s = Scene::new();
    s.fill();
    assert_eq!(s.drop(&s.below_checkpoint()), ran(10, 145, 1));
    let appends = s.w.store.calls(Kind::Append);
    for _ in 0..2 {
        assert_eq!(s.drop(&s.below_checkpoint()), ran(0, 0, 1));
    }
    assert_eq!(s.w.store.calls(Kind::Append), appends);
    s.w.restart();
    s.c = s.w.login(&s.ws.founder, &[group(1)]);
    s.w.stored(s.c, group(1), b"second"); // 15
    // Snapshot and checkpoint of the first, then 13 and 14 go.
    let second = s.chain.drop(hash_of(group(1), b"second"), &[]);
    assert_eq!(s.drop(&second), ran(2, 11, 2));
    assert_eq!(s.seqs(), [6, 12, 15]);
    assert_eq!(s.drop(&second), ran(0, 0, 2));
    assert_eq!(s.drop(&s.below_checkpoint()), ran(0, 0, 1));
    // A snapshot above the barrier is an anchor too.
    s.w.stored(s.c, group(1), b"third"); // 16
    s.w.stored(s.c, group(1), b"above"); // 17
    let third = s
        .chain
        .drop(hash_of(group(1), b"third"), &[hash_of(group(1), b"above")]);
    assert_eq!(s.drop(&third), ran(0, 0, 3));
    s.w.stored(s.c, group(1), b"fourth"); // 18
    let fourth = s.chain.drop(hash_of(group(1), b"fourth"), &[]);
    assert_eq!(s.drop(&fourth), ran(0, 0, 5));
    assert_eq!(s.seqs(), [6, 12, 15, 16, 17, 18]);
}

/// W09.3: each verdict, in the order of the checks: an instruction that breaks all the rules is set right one by one.
/// Nothing is deleted on any of them, and the socket goes on. W09.8
#[test]
fn verdicts_come_in_order() {
    let mut s = Scene::with(World::new(), false);
    let g = group(2);
    let by = [s.ws.founder.clone(), s.second.clone()];
    for n in 0..3_u8 {
        s.w.stored(s.c, g, &[n]);
    }
    let mut chain = Chain::new(g, key(10));
    let ask = |s: &mut Scene, request: &Request, verdict: Verdict| {
        assert_eq!(s.drop(request), against(verdict));
        assert_eq!(s.w.stored(s.c, g, &[0]), 1, "still held, and the socket works");
        assert!(!matches!(s.drop(request), Got::Drop(Answer::Ran { .. })));
    };
    let wrong = |chain: &Chain, epoch| {
        let mut request = chain.drop_with(Hash([9; 32]), &[Hash([8; 32])], |r| r.epoch = epoch);
        request.sig = Signature([1; 64]);
        request
    };
    ask(&mut s, &wrong(&chain, 7), Verdict::NoRetentionChain);
    // A policy alone makes no chain.
    let p = a_policy(g, 1, s.w.now.wall_ms / 1000 + 100, &[&by[0], &by[1]]);
    assert_eq!(s.w.ask1(s.c, policy(&p)), acked(p.digest()));
    ask(&mut s, &wrong(&chain, 7), Verdict::NoRetentionChain);
    chain = s.w.begin_chain(s.c, g, key(10));
    let loser = s.w.freeze(s.c, &mut chain);
    let request = wrong(&chain, 7);
    assert_eq!(s.drop(&request), against(Verdict::GroupFrozen));
    assert_eq!(s.w.ask1(s.c, resolution(g, 1, &loser)), resolved());
    ask(&mut s, &request, Verdict::StaleEpoch(1));
    ask(&mut s, &wrong(&chain, 0), Verdict::StaleEpoch(1));
    ask(&mut s, &wrong(&chain, 1), Verdict::BadSignature);
    let by_loser = wrong(&chain, 1).signed(&loser.key);
    ask(&mut s, &by_loser, Verdict::BadSignature);
    let nowhere = Hash([9; 32]);
    let request = chain.drop_with(nowhere, &[Hash([8; 32])], |r| r.policy_version = Some(2));
    ask(&mut s, &request, Verdict::NoAuthorization);
    let request = chain.drop(nowhere, &[Hash([8; 32])]);
    ask(&mut s, &request, Verdict::AuthorizationNotDue);
    s.w.advance(99_000);
    ask(&mut s, &request, Verdict::AuthorizationNotDue);
    s.w.advance(1_000);
    ask(&mut s, &request, Verdict::IncompleteManifest(2));
    let good = chain.drop(hash_of(g, &[2]), &[hash_of(g, &[1])]);
    assert_eq!(s.drop(&good), ran(1, 1, 1));
}

/// W09.4: what allows a DROP. A policy that is named decides alone, with exactly its version; else a destruction of
/// kind `drop_before` of this group, which has to be due; else nothing does.
#[test]
fn authorization_is_a_policys_or_a_destructions() {
    let mut s = Scene::with(World::new(), false);
    let now = s.w.now.wall_ms / 1000;
    s.fill();
    let target = |n| Hash([n; 32]);
    s.destruction(group(1), b"drop_before", target(1), now);
    s.destruction(group(1), b"drop_before", target(2), now + 50);
    s.destruction(group(1), b"blob", target(3), 0);
    s.destruction(group(2), b"drop_before", target(4), 0);
    let checkpoint = hash_of(group(1), b"checkpoint");
    let request = |s: &Scene, version, digest: Option<Vec<u8>>| {
        s.chain.drop_with(checkpoint, &[], |r| {
            (r.policy_version, r.destruction_digest) = (version, digest);
        })
    };
    let bytes = |n| Some(vec![n; 32]);
    for (version, digest) in [
        (None, None),
        (Some(1), None),
        (Some(1), bytes(1)), // the policy decides
        (Some(0), bytes(1)),
        (None, bytes(3)),
        (None, bytes(4)),
        (None, bytes(5)),
        (None, Some(vec![1; 31])),
        (None, Some(vec![])),
    ] {
        let request = request(&s, version, digest);
        assert_eq!(s.drop(&request), against(Verdict::NoAuthorization), "{request:?}");
    }
    let early = request(&s, None, bytes(2));
    assert_eq!(s.drop(&early), against(Verdict::AuthorizationNotDue));
    s.policy(1, now + 50);
    for version in [0, 2] {
        let request = request(&s, Some(version), bytes(1));
        assert_eq!(s.drop(&request), against(Verdict::NoAuthorization));
    }
    let both = request(&s, Some(1), bytes(1));
    assert_eq!(s.drop(&both), against(Verdict::AuthorizationNotDue));
    assert_eq!(s.seqs().len(), 14);
    let due = request(&s, None, bytes(1));
    assert_eq!(s.drop(&due), ran(11, 153, 0));
    s.w.advance(50_000);
    for request in [both, early] {
        assert_eq!(s.drop(&request), ran(0, 0, 0));
    }
    // A newer policy takes the place of the one before.
    s.policy(2, 0);
    let old = request(&s, Some(1), None);
    assert_eq!(s.drop(&old), against(Verdict::NoAuthorization));
}

/// W09.5: what is missing is counted, the checkpoint with it, each once; an envelope of another group is missing, and so
/// is one that is not durable yet.
#[test]
fn missing_envelopes_are_counted() {
    let mut s = Scene::new();
    s.fill();
    let checkpoint = hash_of(group(1), b"checkpoint");
    let foreign = {
        s.w.stored(s.c, group(2), b"foreign");
        hash_of(group(2), b"foreign")
    };
    let never = |n| Hash([n; 32]);
    for (checkpoint, snapshots, missing) in [
        (never(1), vec![], 1),
        (never(1), vec![never(1)], 1),
        (checkpoint, vec![never(1), never(2), never(3)], 3),
        (never(9), vec![never(1), never(2), checkpoint], 3),
        (checkpoint, vec![foreign], 1),
        (foreign, vec![], 1),
    ] {
        let request = s.chain.drop(checkpoint, &snapshots);
        assert_eq!(s.drop(&request), against(Verdict::IncompleteManifest(missing)));
    }
    let other = s.w.login(&Device::new(5), &[group(1)]);
    s.w.hold(Kind::Append);
    s.w.say(other, send(group(1), b"on its way"));
    let request = s.chain.drop(checkpoint, &[hash_of(group(1), b"on its way")]);
    assert_eq!(s.drop(&request), against(Verdict::IncompleteManifest(1)));
    s.w.release(Kind::Append);
    assert_eq!(s.drop(&request), ran(11, 153, 0));
}

/// A checkpoint sent just before its DROP, without waiting for the acknowledgement, counts as held.
#[test]
fn a_drop_sees_what_was_sent_before_it() {
    let mut s = Scene::new();
    s.w.push(s.c, send(group(1), b"old"));
    s.w.push(s.c, send(group(1), b"checkpoint"));
    let request = s.chain.drop(hash_of(group(1), b"checkpoint"), &[]);
    s.w.push(s.c, drop_frame(&request));
    let got = s.w.got(s.c);
    assert_eq!(got.len(), 3);
    assert_eq!(got[2], ran(1, 3, 0));
}

/// W09.6: unknown and foreign groups are ERRORs before any verdict, a payload that does not decode and one of 4097
/// snapshots before those; 4096 are taken.
#[test]
fn errors_come_before_verdicts() {
    let mut s = Scene::new();
    for (g, code) in [(99, Code::GroupUnknown), (9, Code::WriterNotInAccessSet)] {
        let request = Chain::new(group(g), key(1)).drop(Hash([1; 32]), &[]);
        assert_eq!(s.drop(&request), refused(code));
    }
    let good = s.below_checkpoint().encode();
    let other_number = [&[0x82, 2], &good[2..]].concat();
    let trailing = [&good[..], &[0]].concat();
    for payload in [
        &b""[..],
        &good[1..],
        &good[..good.len() - 1],
        &other_number,
        &trailing,
    ] {
        let got = s.w.ask1(s.c, frame(&Frame::Drop { payload }));
        assert_eq!(got, refused(Code::MalformedHeader));
    }
    let many: Vec<Hash> = (0..4097_u32).map(|n| Hash::of(&[&n.to_be_bytes()])).collect();
    let request = s.chain.drop(Hash([1; 32]), &many);
    assert_eq!(s.drop(&request), refused(Code::MalformedHeader));
    let request = s.chain.drop(Hash([1; 32]), &many[1..]);
    assert_eq!(s.drop(&request), against(Verdict::IncompleteManifest(4097)));
}

/// W09.7: a DROP before Ready closes the socket.
#[test]
fn a_drop_before_ready_closes() {
    let mut s = Scene::new();
    for connected in [false, true] {
        let c = s.w.open();
        if connected {
            s.w.connect(c, 4, &[group(1)]);
        }
        assert_eq!(
            s.w.ask1(c, drop_frame(&s.below_checkpoint())),
            refused(Code::MalformedHeader)
        );
        assert_eq!(s.w.closed(c), Some((CloseHow::Flush, CloseReason::Protocol)));
    }
}

/// 09 decision 8: refused in read_only, whatever it says; and without a workspace.
#[test]
fn read_only_deletes_nothing() {
    let mut s = Scene::new();
    s.fill();
    s.w.restart_with(|config| config.read_only = true);
    s.c = s.w.login(&s.ws.founder, &[group(1)]);
    let garbage = frame(&Frame::Drop { payload: b"" });
    for message in [drop_frame(&s.below_checkpoint()), garbage] {
        assert_eq!(s.w.ask1(s.c, message), refused(Code::ServiceReadOnly));
    }
    assert_eq!(s.seqs().len(), 14);
    let mut w = World::with(config(|c| c.access_set = false));
    let c = w.open();
    w.auth(c, &Device::new(1), &[group(1)]);
    let message = drop_frame(&s.below_checkpoint());
    assert_eq!(w.ask1(c, message), refused(Code::WriterNotInAccessSet));
}

/// W09.15: 120 DROPs a minute and connection; the next waits 60 s and names the limit; the socket and SEND go on, and
/// so does another connection.
#[test]
fn drops_have_a_budget() {
    let mut s = Scene::new();
    s.fill();
    let message = drop_frame(&s.below_checkpoint());
    for n in 0..120 {
        let message = match n % 3 {
            0 => frame(&Frame::Drop { payload: b"" }),
            _ => message.clone(),
        };
        assert_ne!(s.w.ask1(s.c, message).code(), Some(Code::RateLimited));
    }
    let full = limited(Code::RateLimited, 60, 120);
    assert_eq!(s.w.ask1(s.c, message.clone()), full);
    s.w.stored(s.c, group(1), b"goes on");
    let again = s.w.login(&s.ws.founder, &[group(1)]);
    assert_eq!(s.w.ask1(again, message.clone()), ran(0, 0, 1));
    s.w.advance(60_000);
    assert_eq!(s.w.ask1(s.c, message), ran(0, 0, 1));
}

/// W09.9: a full log refuses, a duplicate is acknowledged, another workspace is untouched; a DROP makes exactly the room
/// it says, for envelopes and handshakes. W09.10
#[test]
fn a_drop_makes_room_in_the_log() {
    let mut s = Scene::with(World::with(config(|c| c.max_log_bytes = Some(200))), true);
    s.fill(); // 145 + 8 + 10 + 5 + 6
    assert_eq!(s.counted(), 174);
    assert_eq!(s.w.shaken(s.c, group(1), &[7; 20]), 0);
    assert_eq!(s.w.stored(s.c, group(2), &[1; 6]), 1); // exactly full
    let full = limited(Code::LogBudgetExhausted, 0, 200);
    let big = send(group(1), &[2; 145]);
    for message in [big.clone(), send(group(2), b"x"), handshake(group(1), b"x")] {
        assert_eq!(s.w.ask1(s.c, message), full);
    }
    assert_eq!(s.w.stored(s.c, group(1), b"newest"), 14);
    let elsewhere = s.w.login(&Device::new(3), &[group(9)]);
    s.w.stored(elsewhere, group(9), &[1; 150]);
    assert_eq!(s.counted(), 200);
    assert_eq!(s.drop(&s.below_checkpoint()), ran(10, 145, 1));
    assert_eq!(s.counted(), 55);
    let one_more = send(group(1), &[2; 146]);
    assert_eq!(s.w.ask1(s.c, one_more), full);
    assert_eq!(s.w.ask1(s.c, big).ack_seq(), Some(15));
    assert_eq!(s.counted(), 200);
    s.w.restart();
    s.c = s.w.login(&s.ws.founder, &[group(1)]);
    assert_eq!(s.w.ask1(s.c, send(group(1), b"x")), full);
}

/// W09.10: the counter is the sum of what is held after any mix of SEND, duplicate, refused SEND, HANDSHAKE and DROP,
/// failed commits among them.
#[test]
fn the_counter_is_the_sum() {
    let mut s = Scene::new();
    let other = s.w.login(&Device::new(5), &[group(1)]);
    let mut random = 12_345_u64;
    for round in 0..60_u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (choice, size) = (random >> 60, 1 + (random >> 40) as usize % 50);
        let ct = vec![(round % 7) as u8; size];
        match choice {
            0..=6 => drop(s.w.ask(s.c, send(group(1), &ct))),
            7..=9 => drop(s.w.ask(other, handshake(group(2), &ct))),
            10..=11 => {
                s.w.store.fail_next(Kind::Append, Fault::NotCommitted);
                s.w.ask(other, send(group(2), &ct));
                s.w.store.up();
            }
            12 => drop(s.w.ask(other, send(group(77), &ct))),
            _ => {
                s.w.ask(s.c, send(group(1), &round.to_be_bytes()));
                let request = s.chain.drop(hash_of(group(1), &round.to_be_bytes()), &[]);
                if choice == 13 {
                    s.w.store.fail_next(Kind::Append, Fault::NotCommitted);
                }
                s.w.push(other, send(group(1), &ct));
                let got = s.w.ask(s.c, drop_frame(&request));
                assert_eq!(got.len(), 1, "{got:?}");
            }
        }
        s.counted();
    }
    s.w.restart();
    s.counted();
}

/// A large deletion goes in parts: between two of them others write, no SEND waits for more than the commit under way,
/// and the counts are exact.
#[test]
fn a_large_drop_holds_up_nobody() {
    let mut s = Scene::new();
    let request = s.fill_many();
    let other = s.w.login(&Device::new(5), &[group(1)]);
    s.w.hold(Kind::Append);
    s.w.say(s.c, drop_frame(&request));
    let (mut commits, mut sent) = (0, 0);
    while s.w.waiting(Kind::Append) > 0 {
        // It is acknowledged by the commit after the one under way.
        sent += 1;
        s.w.say(other, send(group(1), &distinct(MANY + sent)));
        s.w.release_one(Kind::Append);
        assert_eq!(s.w.got(other), []);
        commits += 1;
        s.w.release_one(Kind::Append);
        commits += 1;
        assert_eq!(only(s.w.got(other)).ack_seq(), Some((MANY + 1 + sent) as u64));
        assert!(commits < 10);
    }
    assert!(commits >= 3, "{commits}");
    assert_eq!(only(s.w.got(s.c)), ran(MANY as u64, MANY as u64 * 8, 0));
    s.w.release(Kind::Append);
    assert_eq!(s.counted(), 10 + 8 * sent as u64);
    assert_eq!(s.seqs().len(), 1 + sent);
}

/// A crash between two parts leaves a counter that is the sum of what is held; the same instruction finishes the rest
/// and says so.
#[test]
fn a_crash_between_parts_is_finished_by_a_repeat() {
    for parts in 0..3 {
        let mut s = Scene::new();
        let request = s.fill_many();
        s.w.hold(Kind::Append);
        s.w.say(s.c, drop_frame(&request));
        for _ in 0..parts {
            s.w.release_one(Kind::Append);
        }
        s.w.restart();
        s.c = s.w.login(&s.ws.founder, &[group(1)]);
        let left = (s.counted() - 10) / 8;
        assert_eq!(left as usize, MANY.saturating_sub(parts * 2048));
        assert_eq!(s.drop(&request), ran(left, left * 8, 0));
        assert_eq!(s.counted(), 10);
        assert_eq!(s.seqs(), [MANY as u64 + 1]);
    }
}

/// A part that is known to have failed: `retry/backpressure`, what went stays gone, nothing else is lost, and the repeat
/// does the rest. An unknown outcome gives the workspace up, and it comes back as the store has it.
#[test]
fn a_failed_part_ends_the_drop() {
    for fault in [Fault::NotCommitted, Fault::UnknownLost, Fault::UnknownKept] {
        for parts in 0..2 {
            let mut s = Scene::new();
            let request = s.fill_many();
            s.w.hold(Kind::Append);
            s.w.say(s.c, drop_frame(&request));
            for _ in 0..parts {
                s.w.release_one(Kind::Append);
            }
            s.w.fail_one(Kind::Append, fault);
            s.w.release(Kind::Append);
            let got = s.w.got(s.c);
            assert_retry(&got[0], Code::Backpressure);
            assert_eq!(s.w.is_open(s.c), fault == Fault::NotCommitted);
            if !s.w.is_open(s.c) {
                s.c = s.w.login(&s.ws.founder, &[group(1)]);
            }
            let gone = 2048 * (parts + usize::from(fault == Fault::UnknownKept));
            let left = (MANY - gone) as u64;
            assert_eq!(s.counted(), 10 + left * 8);
            // The first was deleted if anything was; it is fresh then.
            let seq = s.w.stored(s.c, group(1), &distinct(0));
            let fresh = gone > 0;
            assert_eq!(seq, if fresh { MANY as u64 + 2 } else { 1 }, "{fault:?} {parts}");
            assert_eq!(s.drop(&request), ran(left, left * 8, 0));
            assert_eq!(s.counted(), 10 + 8 * u64::from(fresh));
        }
    }
}

/// A full disk refuses the SENDs a part travelled with: the part is tried again without them at once, so that a DROP makes
/// room whatever clients go on sending.
#[test]
fn a_part_refused_for_its_company_goes_alone() {
    let mut s = Scene::new();
    let request = s.fill_many();
    let other = s.w.login(&Device::new(5), &[group(1)]);
    s.w.hold(Kind::Append);
    s.w.say(s.c, drop_frame(&request));
    s.w.release_one(Kind::Append);
    let mut refused = 0;
    while s.w.waiting(Kind::Append) > 0 {
        // Beside the part that is under way, then beside the next.
        s.w.say(other, send(group(1), &distinct(MANY + 1 + refused)));
        s.w.release_one(Kind::Append);
        if s.w.waiting(Kind::Append) == 0 {
            break;
        }
        s.w.fail_one(Kind::Append, Fault::NotCommitted);
        assert_retry(&only(s.w.got(other)), Code::Backpressure);
        refused += 1;
        assert!(refused < 10);
    }
    assert!(refused > 0);
    s.w.release(Kind::Append);
    assert_eq!(only(s.w.got(s.c)), ran(MANY as u64, MANY as u64 * 8, 0));
    assert_eq!(s.seqs()[0], MANY as u64 + 1);
}

/// Wherever the store fails before anything is deleted: `retry/backpressure`, nothing is gone, and the repeat succeeds.
#[test]
fn a_failed_beginning_deletes_nothing() {
    for kind in [Kind::Load, Kind::Index, Kind::Commit] {
        let mut s = Scene::new();
        s.fill();
        s.w.store.fail_next(kind, Fault::NotCommitted);
        assert_retry(&s.drop(&s.below_checkpoint()), Code::Backpressure);
        assert_eq!(s.seqs().len(), 14);
        assert_eq!(s.drop(&s.below_checkpoint()), ran(10, 145, 1));
    }
    // What was done is said, noted or not.
    let mut s = Scene::new();
    s.fill();
    s.w.hold(Kind::Append);
    s.w.say(s.c, drop_frame(&s.below_checkpoint()));
    s.w.store.fail_next(Kind::Commit, Fault::NotCommitted);
    s.w.release(Kind::Append);
    assert_eq!(only(s.w.got(s.c)), ran(10, 145, 1));
}

/// Anchors are durable before anything goes: a DROP that stops right after them has bound the next one.
#[test]
fn anchors_come_before_the_deletion() {
    let mut s = Scene::new();
    s.fill();
    s.w.hold(Kind::Append);
    s.w.say(s.c, drop_frame(&s.below_checkpoint()));
    assert_eq!(s.w.waiting(Kind::Append), 1);
    s.w.restart();
    s.c = s.w.login(&s.ws.founder, &[group(1)]);
    assert_eq!(s.seqs().len(), 14);
    let later = s.chain.drop(hash_of(group(1), b"newest"), &[]);
    assert_eq!(s.drop(&later), ran(11, 150, 2));
    assert_eq!(s.seqs(), [6, 12, 14]);
}

/// Of two DROPs of a group the second waits for the first, so that nothing is counted twice; it is judged when its turn
/// comes. Other groups and the workspace's other business don't wait.
#[test]
fn a_group_has_one_drop_at_a_time() {
    let mut s = Scene::new();
    s.fill();
    let other = s.w.login(&Device::new(5), &[group(1)]);
    s.w.hold(Kind::Append);
    s.w.say(s.c, drop_frame(&s.below_checkpoint()));
    s.w.say(other, drop_frame(&s.below_checkpoint()));
    let third = s.w.login(&Device::new(6), &[group(1)]);
    assert_eq!(s.w.position(third, group(1)).control_epoch, 0);
    assert_eq!((s.w.got(s.c), s.w.got(other)), (vec![], vec![]));
    let next = s.chain.successor(&key(2));
    assert_eq!(s.w.ask1(third, control(&next)), acked(next.digest()));
    s.w.release(Kind::Append);
    assert_eq!(only(s.w.got(s.c)), ran(10, 145, 1));
    assert_eq!(only(s.w.got(other)), against(Verdict::StaleEpoch(1)));
}

/// The workspace is given up while a DROP stores its anchors: the next DROP of the group waits for that commit, and so
/// sees what the first one rests on.
#[test]
fn anchors_under_way_bind_the_next_drop() {
    let mut s = Scene::new();
    s.fill();
    s.w.hold(Kind::Commit);
    s.w.say(s.c, drop_frame(&s.below_checkpoint()));
    assert_eq!(s.w.waiting(Kind::Commit), 1);
    // Something of the workspace has an unknown outcome.
    let other = s.w.login(&Device::new(5), &[group(1)]);
    s.w.store.fail_next(Kind::Append, Fault::UnknownLost);
    s.w.say(other, send(group(2), b"lost"));
    assert!(!s.w.is_open(s.c) && !s.w.is_open(other));
    s.c = s.w.login(&s.ws.founder, &[group(1)]);
    let later = s.chain.drop(hash_of(group(1), b"newest"), &[]);
    s.w.say(s.c, drop_frame(&later));
    assert_eq!(s.w.got(s.c), []);
    s.w.release(Kind::Commit);
    assert_eq!(only(s.w.got(s.c)), ran(11, 150, 2));
    assert_eq!(s.seqs(), [6, 12, 14]);
}

/// W03.10: a DROP between the look at the items and their reading: what is gone is skipped, and the exchange ends with
/// what is left. It is the same while the deletion is under way in parts.
#[test]
fn a_drop_races_a_reconciliation() {
    // The DROP is done before the read, or the read finds half of it done.
    for finished in [false, true] {
        let mut s = Scene::new();
        let request = s.fill_many();
        s.w.stored(s.c, group(1), b"newer");
        let reader = s.w.login(&Device::new(5), &[group(1)]);
        s.w.hold(Kind::ReadSeqs);
        s.w.say(reader, recon(group(1), &recon::opening(&[])));
        assert_eq!(s.w.waiting(Kind::ReadSeqs), 1);
        s.w.hold(Kind::Append);
        s.w.say(s.c, drop_frame(&request));
        s.w.release_one(Kind::Append);
        if finished {
            s.w.release(Kind::Append);
            assert_eq!(only(s.w.got(s.c)), ran(MANY as u64, 8 * MANY as u64, 0));
        }
        s.w.release(Kind::ReadSeqs);
        let mut got = s.w.got(reader);
        let Some(Got::Recon(_, mut ranges)) = got.pop() else {
            panic!("the answer comes last")
        };
        s.w.release(Kind::Append);
        let item = |got: &Got| match got {
            Got::Push(push) => recon::item(push.seq, &push.hash),
            other => panic!("{other:?}"),
        };
        let mut items: Vec<_> = got.iter().map(item).collect();
        for round in 0.. {
            assert!(round < 50, "the exchange ends");
            items.sort_unstable();
            let step = recon::client_step(&items, &ranges);
            // What it was sent and the relay has dropped since, the client drops as well.
            items.retain(|item| !step.send.contains(&recon::item_id(item)));
            let Some(next) = step.ranges else { break };
            let mut got = s.w.ask(reader, recon(group(1), &next));
            let Some(Got::Recon(_, answer)) = got.pop() else {
                panic!("the answer comes last")
            };
            items.extend(got.iter().map(item));
            ranges = answer;
        }
        let newest = |ct: &[u8]| hash_of(group(1), ct);
        for hash in [newest(b"checkpoint"), newest(b"newer")] {
            assert!(items.iter().any(|item| recon::item_id(item) == hash));
        }
        assert_eq!(s.seqs(), [MANY as u64 + 1, MANY as u64 + 2]);
    }
}

/// A DROP while a SUB replays: the replay goes on with what is left, in order, and live frames follow.
#[test]
fn a_drop_races_a_replay() {
    for held in [false, true] {
        let mut s = Scene::new();
        s.fill();
        let reader = s.w.login(&Device::new(5), &[group(1)]);
        s.w.hold(Kind::Read);
        s.w.say(reader, sub(group(1), 0));
        assert_eq!(s.w.waiting(Kind::Read), 1);
        if held {
            s.w.hold(Kind::Append);
            s.w.say(s.c, drop_frame(&s.below_checkpoint()));
            s.w.release(Kind::Append);
            assert_eq!(only(s.w.got(s.c)), ran(10, 145, 1));
        } else {
            assert_eq!(s.drop(&s.below_checkpoint()), ran(10, 145, 1));
        }
        s.w.stored(s.c, group(1), b"live"); // 15
        s.w.release(Kind::Read);
        let got = s.w.got(reader);
        assert_eq!(got[0], Got::SubAck(group(1), 14));
        let seqs: Vec<_> = got[1..].iter().filter_map(Got::push_seq).collect();
        assert_eq!(seqs, [6, 12, 13, 14, 15]);
        s.w.stored(s.c, group(1), b"more");
        assert_eq!(only(s.w.got(reader)).push_seq(), Some(16));
    }
}

/// What was dropped can be sent to nobody any more and is no backlog of its writer.
#[test]
fn dropped_envelopes_are_no_backlog() {
    let mut s = Scene::with(World::with(config(|c| c.group_backlog_bytes = Some(100))), true);
    s.w.stored(s.c, group(1), &[1; 90]);
    s.w.stored(s.c, group(1), b"checkpoint");
    let over = limited(Code::GroupIngressLimited, 5, 100);
    assert_eq!(s.w.ask1(s.c, send(group(1), &[2; 90])), over);
    let request = s.chain.drop(hash_of(group(1), b"checkpoint"), &[]);
    assert_eq!(s.drop(&request), ran(1, 90, 0));
    s.w.stored(s.c, group(1), &[2; 90]);
}

/// A relay that stops does not finish a large DROP first: the client is told to come again, and the parts that went are
/// gone for good.
#[test]
fn a_stopping_relay_ends_a_drop_between_parts() {
    let mut s = Scene::new();
    let request = s.fill_many();
    s.w.hold(Kind::Append);
    s.w.say(s.c, drop_frame(&request));
    s.w.drain();
    assert!(!s.w.drained());
    s.w.release(Kind::Append);
    assert!(s.w.drained());
    assert_retry(&s.w.got(s.c)[0], Code::Backpressure);
    s.w.restart();
    s.c = s.w.login(&s.ws.founder, &[group(1)]);
    let left = MANY as u64 - 2048;
    assert_eq!(s.drop(&request), ran(left, left * 8, 0));
}

/// An index that would be evicted for want of memory stays while a DROP runs on its group: read again meanwhile, it could
/// hold what is deleted since.
#[test]
fn a_running_drop_pins_the_index() {
    let mut s = Scene::with(World::with(config(|c| c.index_bytes_max = 1)), true);
    s.fill();
    s.w.hold(Kind::Append);
    s.w.say(s.c, drop_frame(&s.below_checkpoint()));
    let read = s.w.store.calls(Kind::Index);
    s.w.advance(40_000);
    s.w.release(Kind::Append);
    assert_eq!(only(s.w.got(s.c)), ran(10, 145, 1));
    assert_eq!(s.w.stored(s.c, group(1), &[0; 10]), 15, "fresh");
    assert_eq!(s.w.store.calls(Kind::Index), read);
    s.w.advance(40_000);
    assert_eq!(s.w.stored(s.c, group(1), &[0; 10]), 15);
    assert!(s.w.store.calls(Kind::Index) > read, "else it goes");
}
