//! Payloads, author chains and attestation: the manifest's `chain-*` and `attest-*` cases, the same kind of cases of our
//! own so that this proves something in a checkout without the manifest, and properties of codec, chain and monitor.
#![allow(clippy::unwrap_used)]

#[allow(unused)]
mod common;

use std::collections::BTreeSet;

use drover_client::payload::attest::{ATTEST_PERIOD_MS, Monitor, Report, Warning};
use drover_client::payload::chain::{AuthorChain, GroupChains, Link, NO_LINK, OwnChain, Place, Verdict};
use drover_client::payload::{ChainReset, GroupHeads, HeadAttest, Kind, Payload};
use drover_client::wire::id::{GroupId, Hash, PublicKey};
use drover_client::{Identity, SealedEnvelope};
use serde_json::{Value, json};

const GROUP: GroupId = GroupId([7; 32]);

fn device(n: u8) -> PublicKey {
    PublicKey([n; 32])
}

/// What a case may expect, worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Accept,
    UnverifiedGap,
    SplitViewWarning,
}

impl Outcome {
    fn expected(case: &Value) -> Self {
        match case["expect"].as_str().unwrap() {
            "client_accept" => Outcome::Accept,
            "client_unverified_gap" => Outcome::UnverifiedGap,
            "client_split_view_warning" => Outcome::SplitViewWarning,
            other => panic!("unknown expectation {other}"),
        }
    }

    fn of(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::UnverifiedGap(_) => Outcome::UnverifiedGap,
            Verdict::Evidence(_) => Outcome::SplitViewWarning,
            _ => Outcome::Accept,
        }
    }

    fn of_report(report: &Report) -> Self {
        if report.warnings.is_empty() {
            Outcome::Accept
        } else {
            Outcome::SplitViewWarning
        }
    }
}

fn seal(payload: Payload, author: &Identity) -> (Payload, SealedEnvelope) {
    let envelope = SealedEnvelope::new(GROUP, 1, payload.signed(author).encode()).unwrap();
    // As a receiver gets it.
    let payload = Payload::decode(envelope.ct()).unwrap();
    payload.verify(&envelope).unwrap();
    (payload, envelope)
}

/// A chain case through real, signed payloads. `merged` is the other reading of a reset: that the payload which resumes
/// is the one that carries it.
fn run_chain(case: &Value, merged: bool) -> Outcome {
    let author = Identity::from_seed(&[1; 32]);
    let (mut chain, mut links) = (AuthorChain::new(), Vec::<Hash>::new());
    let mut declared: Option<ChainReset> = None;
    let mut worst = Outcome::Accept;
    for entry in case["chain"].as_array().unwrap() {
        if entry["kind"] == "0x0072" {
            let last_ctr = entry["last_proven"].as_u64().unwrap();
            let reset = ChainReset {
                last_ctr,
                last_hash: links[last_ctr as usize],
                resumes_at: entry["resumes_at"].as_u64().unwrap(),
                declared_at_ms: 9,
            };
            declared = Some(reset);
            if !merged {
                chain.declare(&reset).unwrap();
            }
            continue;
        }
        let prev_self = match entry["prev"].as_str().unwrap() {
            "zero" => NO_LINK,
            link => links[link.strip_prefix("link").unwrap().parse::<usize>().unwrap()],
        };
        let place = Place {
            ctr: entry["ctr"].as_u64().unwrap(),
            prev_self,
        };
        let text = entry["body"].as_str().unwrap_or("text").to_owned();
        let reset = declared.take().filter(|_| merged);
        let payload = match &reset {
            Some(reset) => Payload::with(GROUP, 1, reset),
            None => Payload::new(GROUP, 1, Kind::CHAT_MESSAGE, text),
        };
        let (payload, envelope) = seal(payload.at(place, 5), &author);
        links.push(envelope.hash());
        let link = Link::of(&payload, envelope.hash());
        let verdict = match payload.body_as::<ChainReset>().unwrap() {
            Some(reset) => chain.observe_reset(link, &reset),
            None => chain.observe(link),
        };
        worst = worst.max(Outcome::of(&verdict));
    }
    worst
}

/// An attestation about nobody but these authors, or about the attester's own beginning.
fn heads(of: &[PublicKey]) -> GroupHeads {
    let mut chains = GroupChains::new();
    for author in of {
        chains.set_barrier(*author, 0, Hash([author.0[0]; 32]));
    }
    chains.heads(GROUP, |_| false).unwrap()
}

/// A view that agrees with [`heads`].
fn view(of: &[PublicKey]) -> GroupChains {
    let mut chains = GroupChains::new();
    for author in of {
        chains.set_barrier(*author, 0, Hash([author.0[0]; 32]));
    }
    chains
}

fn run_attest(case: &Value) -> Outcome {
    let case = &case["attest"];
    let flag = |name: &str| case[name].as_bool().unwrap_or(false);
    let number = |name: &str| case[name].as_u64();
    let (me, author, issuer, agent) = (device(1), device(2), device(3), device(9));
    let all: Vec<_> = (1..=10).map(device).collect();
    let view = view(&all);

    if let Some(leaves) = number("ratchet_tree_device_leaves") {
        let claimed: BTreeSet<_> = (1..=number("relay_claims_leaves").unwrap())
            .map(|n| device(n as u8))
            .collect();
        let mut monitor = Monitor::new(me, (1..=leaves).map(|n| device(n as u8)), 0);
        for peer in claimed.iter().filter(|peer| **peer != me) {
            monitor.attested(*peer, &heads(&[*peer]), &view, 1);
        }
        let warning = monitor.relay_claims(&claimed);
        let report = monitor.tick(&view, ATTEST_PERIOD_MS).unwrap();
        assert_eq!(report.agreement.expected as u64, leaves);
        assert_eq!(report.agreement.agreeing, claimed.len());
        let unheard = (claimed.len() as u64 + 1..=leaves).map(|n| device(n as u8));
        assert_eq!(report.agreement.unheard, unheard.collect());
        return match warning {
            Some(Warning::ShrunkenSet { omitted }) => {
                assert_eq!(omitted, report.agreement.unheard);
                Outcome::SplitViewWarning
            }
            _ => Outcome::of_report(&report),
        };
    }

    let rounds = number("rounds")
        .or(number("minutes").map(|minutes| minutes * 60_000 / ATTEST_PERIOD_MS))
        .unwrap_or(1);
    let mut monitor = Monitor::new(me, (1..=6).map(device), 0);
    let mut last = None;
    for round in 0..rounds {
        let now = round * ATTEST_PERIOD_MS + 60_000;
        match case["author_kind"].as_str() {
            Some("device") => {
                if flag("sends_envelopes") {
                    monitor.wrote(author, None, now);
                }
                if flag("attests") {
                    monitor.attested(author, &heads(&[author]), &view, now);
                }
            }
            Some("agent") => {
                if flag("sends_envelopes") {
                    monitor.wrote(agent, Some(issuer), now);
                }
                if flag("issuer_attests") {
                    let covered = [issuer, agent];
                    let named = if flag("issuer_covers_agent") { 2 } else { 1 };
                    monitor.attested(issuer, &heads(&covered[..named]), &view, now);
                }
            }
            _ => {
                assert_eq!(number("peer_attestations"), Some(0));
                if flag("receiving_envelopes") {
                    // Another device each time, so that nobody in particular is silent.
                    monitor.wrote(device(2 + round as u8 % 4), None, now);
                }
            }
        }
        last = monitor.tick(&view, (round + 1) * ATTEST_PERIOD_MS);
    }
    let report = last.unwrap();
    // The warning names whom the case says it names.
    for warning in &report.warnings {
        match warning {
            Warning::Silent { device } => {
                let by_agent = case["author_kind"] == "agent";
                assert_eq!(*device, if by_agent { issuer } else { author });
            }
            Warning::UnproxiedAgent { agent: a, issuer: i } => assert_eq!((*a, *i), (agent, issuer)),
            Warning::TotalSilence => assert!(case["author_kind"].is_null()),
            other => panic!("not among the cases: {other:?}"),
        }
    }
    Outcome::of_report(&report)
}

fn run(cases: &[Value]) -> (usize, usize) {
    let (mut chains, mut attests) = (0, 0);
    for case in cases {
        let id = case["id"].as_str().unwrap();
        if id.starts_with("chain-") {
            assert_eq!(run_chain(case, false), Outcome::expected(case), "{id}");
            assert_eq!(run_chain(case, true), Outcome::expected(case), "{id}, merged");
            chains += 1;
        } else if id.starts_with("attest-") {
            assert_eq!(run_attest(case), Outcome::expected(case), "{id}");
            attests += 1;
        }
    }
    (chains, attests)
}

#[test]
fn the_manifests_cases() {
    let Some(folder) = common::vectors() else {
        println!("skipped: no shared/vectors/weald among the ancestors of this crate");
        return;
    };
    let manifest: Value =
        serde_json::from_slice(&std::fs::read(folder.join("manifest.json")).unwrap()).unwrap();
    assert_eq!(run(manifest["vectors"].as_array().unwrap()), (4, 7));
}

#[test]
fn cases_of_our_own() {
    let (accept, gap, warning) = (
        "client_accept",
        "client_unverified_gap",
        "client_split_view_warning",
    );
    let reset = json!({ "kind": "0x0072", "last_proven": 1, "resumes_at": 9 });
    let two = [
        json!({ "ctr": 0, "prev": "zero" }),
        json!({ "ctr": 1, "prev": "link0" }),
    ];
    let chain = |id: &str, expect: &str, more: &[Value]| {
        let entries = [&two[..], more].concat();
        json!({ "id": id, "expect": expect, "chain": entries })
    };
    let attest =
        |id: &str, expect: &str, attest: Value| json!({ "id": id, "expect": expect, "attest": attest });
    let agent = |rounds: u64, [sends, attests, covers]: [bool; 3]| {
        json!({
            "author_kind": "agent", "rounds": rounds, "sends_envelopes": sends,
            "issuer_attests": attests, "issuer_covers_agent": covers,
        })
    };
    let author = |rounds: u64, [sends, attests]: [bool; 2]| json!({ "author_kind": "device", "rounds": rounds, "sends_envelopes": sends, "attests": attests });
    let silence = |minutes: u64, receiving: bool| json!({ "minutes": minutes, "peer_attestations": 0, "receiving_envelopes": receiving });
    let claims = |claimed: u64, leaves: u64| json!({ "relay_claims_leaves": claimed, "ratchet_tree_device_leaves": leaves });
    let cases = [
        chain("chain-two", accept, &[]),
        chain("chain-repeated", accept, &[json!({ "ctr": 1, "prev": "link0" })]),
        chain(
            "chain-prev-skips-one",
            warning,
            &[json!({ "ctr": 2, "prev": "link0" })],
        ),
        chain("chain-gap", warning, &[json!({ "ctr": 9, "prev": "link1" })]),
        chain(
            "chain-reset",
            gap,
            &[reset.clone(), json!({ "ctr": 9, "prev": "link1" })],
        ),
        chain(
            "chain-reset-goes-on",
            gap,
            &[
                reset.clone(),
                json!({ "ctr": 9, "prev": "link1" }),
                json!({ "ctr": 10, "prev": "link2" }),
            ],
        ),
        chain(
            "chain-reset-resumes-elsewhere",
            warning,
            &[reset.clone(), json!({ "ctr": 12, "prev": "link1" })],
        ),
        chain(
            "chain-reset-twice-used",
            warning,
            &[
                reset,
                json!({ "ctr": 9, "prev": "link1" }),
                json!({ "ctr": 9, "prev": "link1", "body": "B" }),
            ],
        ),
        chain(
            "chain-fork",
            warning,
            &[json!({ "ctr": 1, "prev": "link0", "body": "B" })],
        ),
        attest(
            "attest-one-round-proves-nothing",
            accept,
            author(1, [true, false]),
        ),
        attest("attest-silent-for-three", warning, author(3, [true, false])),
        attest("attest-and-write", accept, author(3, [true, true])),
        attest("attest-only", accept, author(8, [false, true])),
        attest(
            "attest-agent-issuer-silent",
            accept,
            agent(1, [true, false, false]),
        ),
        attest(
            "attest-agent-issuer-silenced",
            warning,
            agent(2, [true, false, false]),
        ),
        attest("attest-agent-not-covered", warning, agent(1, [true, true, false])),
        attest("attest-agent-covered", accept, agent(1, [true, true, true])),
        attest("attest-agent-silent", accept, agent(1, [false, true, false])),
        attest("attest-silence-for-45-minutes", accept, silence(45, true)),
        attest("attest-silence-for-75-minutes", warning, silence(75, true)),
        attest("attest-nobody-there", accept, silence(600, false)),
        attest("attest-claimed-whole", accept, claims(5, 5)),
        attest("attest-claimed-fewer", warning, claims(4, 5)),
    ];
    assert_eq!(run(&cases), (9, 14));
}

/// Two members that see different histories of an author learn of it, and only when it does not settle by itself.
#[test]
fn a_split_view_is_named_after_two_rounds() {
    let (me, peer, author) = (device(1), device(2), device(3));
    let mut ours = GroupChains::new();
    ours.set_barrier(author, 0, Hash([10; 32]));
    let mut theirs = ours.clone();
    theirs.set_barrier(author, 5, Hash([11; 32]));
    let theirs = theirs.heads(GROUP, |_| false).unwrap();

    let run = |settles_in: Option<u64>| {
        let mut view = ours.clone();
        let mut monitor = Monitor::new(me, [me, peer, author], 0);
        let mut warned = Vec::new();
        for round in 0..4 {
            if settles_in == Some(round) {
                view.set_barrier(author, 5, Hash([11; 32]));
            }
            monitor.attested(peer, &theirs, &view, round * ATTEST_PERIOD_MS + 1);
            let report = monitor.tick(&view, (round + 1) * ATTEST_PERIOD_MS).unwrap();
            assert_eq!(
                report.agreement.disagreeing.contains(&peer),
                !report.warnings.is_empty()
            );
            warned.push(report.warnings);
        }
        warned
    };
    let named = vec![Warning::Disagreement {
        attester: peer,
        author,
    }];
    assert_eq!(run(None), [vec![], vec![], named.clone(), named.clone()]);
    assert_eq!(run(Some(1)), [vec![], vec![], vec![], vec![]]);
    assert_eq!(run(Some(3)), [vec![], vec![], named, vec![]]);
}

/// A member kept behind by the relay says so without knowing it; one that went away does not.
#[test]
fn a_member_that_is_kept_behind_is_noticed() {
    let (me, peer, author) = (device(1), device(2), device(3));
    let mut view = GroupChains::new();
    let mut own = OwnChain::start();
    let author_key = Identity::from_seed(&[3; 32]);
    let mut stale = None;
    for n in 0..4u64 {
        let payload = Payload::new(GROUP, 1, Kind::CHAT_MESSAGE, n.to_be_bytes().to_vec());
        let (payload, envelope) = seal(payload.at(own.next(), n), &author_key);
        own.sealed(envelope.hash());
        view.observe(&payload, envelope.hash()).unwrap();
        stale = stale.or(view.heads(GROUP, |_| false));
    }
    let stale = stale.unwrap();
    for speaks_until in [1, 4] {
        let mut monitor = Monitor::new(me, [me, peer, author], 0);
        let mut warned = 0;
        for round in 0..4 {
            if round < speaks_until {
                monitor.attested(peer, &stale, &view, round * ATTEST_PERIOD_MS + 1);
            }
            let report = monitor.tick(&view, (round + 1) * ATTEST_PERIOD_MS).unwrap();
            warned += report.warnings.len();
        }
        assert_eq!(warned > 0, speaks_until == 4);
    }
}

/// A joiner cannot read what came before it, and is not warned about that; what is withheld from then on, it is.
#[test]
fn history_before_joining_is_no_disagreement() {
    let (me, peer, author) = (device(1), device(2), device(3));
    let view = GroupChains::joined_later();
    let claim = |ctr: u64| {
        let mut chains = GroupChains::new();
        chains.set_barrier(author, ctr, Hash([ctr as u8; 32]));
        chains.heads(GROUP, |_| false).unwrap()
    };
    for grows in [false, true] {
        let mut monitor = Monitor::new(me, [me, peer, author], 0);
        let mut warned = 0;
        for round in 0..6 {
            let ctr = if grows { 5 + round } else { 5 };
            monitor.attested(peer, &claim(ctr), &view, round * ATTEST_PERIOD_MS + 1);
            warned += monitor
                .tick(&view, (round + 1) * ATTEST_PERIOD_MS)
                .unwrap()
                .warnings
                .len();
        }
        assert_eq!(warned > 0, grows);
    }
}

/// An attestation may put either key first when it speaks for an agent.
#[test]
fn a_proxied_head_is_the_agents() {
    let (attester, agent) = (device(1), device(2));
    let mut chains = GroupChains::new();
    chains.set_barrier(agent, 3, Hash([3; 32]));
    let mut heads = chains.heads(GROUP, |author| *author == agent).unwrap();
    assert_eq!(heads.heads[0].subject(&attester), agent);
    heads.heads[0].author = attester;
    assert_eq!(heads.heads[0].subject(&attester), agent);
    heads.heads[0].author = agent;
    heads.heads[0].proxied_for = Some(attester);
    assert_eq!(heads.heads[0].subject(&attester), agent);
    let body = HeadAttest {
        groups: vec![heads.clone()],
    };
    let (payload, _) = seal(
        Payload::with(GROUP, 1, &body).at(OwnChain::start().next(), 5),
        &Identity::from_seed(&[1; 32]),
    );
    assert_eq!(payload.body_as::<HeadAttest>(), Ok(Some(body)));
    assert_eq!(payload.body_as::<ChainReset>(), Ok(None));
}
