//! Author chains and the monitor of split views, fed any links, resets, checkpoints, attestations and times.
//!
//! Nothing panics, a link seen once is known when it comes again, and the head is the highest link there is.

use drover_client::payload::attest::Monitor;
use drover_client::payload::chain::{GroupChains, Link, OwnChain, Verdict};
use drover_client::payload::{AuthorHead, Body, ChainReset, GroupHeads, Kind, Payload};
use drover_client::wire::id::{GroupId, Hash, PublicKey};

use crate::allocation;
use crate::random::{Rng, Script};

/// Heap of a step: a link takes a hundred bytes in each of a few tables.
const HEAP_BYTES: usize = 64 * 1024;
/// Heap for each byte of the script.
const HEAP_FACTOR: usize = 256;

const GROUP: GroupId = GroupId([7; 32]);

/// The script: what happens, to whom, with which counts.
pub fn run(input: &[u8]) {
    let most = HEAP_BYTES + HEAP_FACTOR * input.len();
    allocation::within("the chains", most, || play(Script::new(input)));
}

fn play(mut script: Script<'_>) {
    let mut chains = match script.u8() & 1 {
        0 => GroupChains::new(),
        _ => GroupChains::joined_later(),
    };
    let me = key(0);
    let mut now_ms = script.uint();
    let mut monitor = Monitor::new(me, (0..4).map(key), now_ms);
    let mut own = OwnChain::start();
    while !script.is_over() {
        let (op, author) = (script.u8(), key(script.u8() & 7));
        match op % 12 {
            0..=3 => {
                let link = Link {
                    ctr: count(&mut script),
                    prev_self: hash(script.u8()),
                    hash: hash(script.u8()),
                };
                observe(&mut chains, author, link, None);
            }
            4 | 5 => {
                let place = own.next();
                let next = Hash::of(&[&place.ctr.to_be_bytes()]);
                own.sealed(next);
                let link = Link {
                    ctr: place.ctr,
                    prev_self: place.prev_self,
                    hash: next,
                };
                // An honest chain, as long as nobody forged its author's other links.
                observe(&mut chains, key(9), link, None);
            }
            6 | 7 => {
                let reset = ChainReset {
                    last_ctr: count(&mut script),
                    last_hash: hash(script.u8()),
                    resumes_at: count(&mut script),
                    declared_at_ms: now_ms,
                };
                let link = Link {
                    ctr: count(&mut script),
                    prev_self: hash(script.u8()),
                    hash: hash(script.u8()),
                };
                observe(&mut chains, author, link, Some(&reset));
            }
            8 => chains.set_barrier(author, count(&mut script), hash(script.u8())),
            9 => {
                let heads = (0..script.u8() & 3)
                    .map(|_| AuthorHead {
                        author: key(script.u8() & 7),
                        ctr: count(&mut script),
                        hash: hash(script.u8()),
                        proxied_for: (script.u8() & 1 == 0).then(|| key(5)),
                    })
                    .collect();
                monitor.attested(author, &GroupHeads { group: GROUP, heads }, &chains, now_ms);
            }
            10 => monitor.wrote(author, (op & 0x10 != 0).then(|| key(script.u8() & 3)), now_ms),
            _ => {
                now_ms = now_ms.saturating_add(script.uint());
                if let Some(report) = monitor.tick(&chains, now_ms) {
                    assert!(report.agreement.agreeing <= report.agreement.expected);
                }
            }
        }
    }
    let _ = chains.heads(GROUP, |author| *author == key(5));
    let mine = chains.chain(&key(9)).and_then(|chain| chain.head());
    let place = own.next();
    assert_eq!(mine.map(|(_, hash)| hash), (place.ctr > 0).then_some(place.prev_self));
}

fn observe(chains: &mut GroupChains, author: PublicKey, link: Link, reset: Option<&ChainReset>) {
    let kind = if reset.is_some() { Kind::CHAIN_RESET } else { Kind::CHAT_MESSAGE };
    let body = reset.map_or_else(Default::default, Body::encode);
    let mut payload = Payload::new(GROUP, 1, kind, body);
    payload.author = author;
    (payload.ctr, payload.prev_self) = (link.ctr, link.prev_self);
    let verdict = chains.observe(&payload, link.hash).expect("a body of its kind");
    let chain = chains.chain(&author).expect("observed");
    if verdict.is_linked() && verdict != Verdict::Known {
        assert_eq!(chain.at(link.ctr), Some(link.hash));
        assert_eq!(chains.observe(&payload, link.hash), Ok(Verdict::Known));
    }
    let chain = chains.chain(&author).expect("observed");
    if let Some((head, _)) = chain.head() {
        assert!(chain.gaps().all(|gap| gap.start() <= gap.end() && *gap.end() < head));
    }
}

fn key(n: u8) -> PublicKey {
    PublicKey([n; 32])
}

/// Few, so that links meet; 0 is none at all.
fn hash(n: u8) -> Hash {
    Hash([n & 7; 32])
}

/// Mostly small, and the greatest there are.
fn count(script: &mut Script<'_>) -> u64 {
    match script.u8() {
        n @ 0..=199 => u64::from(n % 8),
        n @ 200..=239 => u64::MAX - u64::from(n % 4),
        _ => script.uint(),
    }
}

/// A script.
pub fn generate(rng: &mut Rng) -> Vec<u8> {
    let len = rng.below(200);
    rng.bytes(len)
}
