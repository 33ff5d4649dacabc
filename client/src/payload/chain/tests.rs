//! What each kind of link is judged to be.

use super::*;

fn h(n: u8) -> Hash {
    Hash([n; 32])
}

fn link(ctr: u64, prev_self: Hash, hash: Hash) -> Link {
    Link { ctr, prev_self, hash }
}

fn chain(links: &[(u64, u8, u8)]) -> AuthorChain {
    let mut chain = AuthorChain::new();
    for (ctr, prev, hash) in links {
        assert_eq!(chain.observe(link(*ctr, h(*prev), h(*hash))), Verdict::Linked);
    }
    chain
}

fn reset(last_ctr: u64, last: u8, resumes_at: u64) -> ChainReset {
    ChainReset {
        last_ctr,
        last_hash: h(last),
        resumes_at,
        declared_at_ms: 5,
    }
}

#[test]
fn a_gap_is_evidence_until_it_is_filled() {
    let mut chain = chain(&[(0, 0, 1)]);
    let verdict = chain.observe(link(3, h(3), h(4)));
    assert_eq!(verdict, Verdict::Evidence(Evidence::Gap { missing: 1..=2 }));
    assert_eq!(chain.gaps().collect::<Vec<_>>(), [1..=2]);
    assert_eq!(chain.observe(link(1, h(1), h(2))), Verdict::Linked);
    assert_eq!(chain.gaps().collect::<Vec<_>>(), [2..=2]);
    assert_eq!(chain.observe(link(2, h(2), h(3))), Verdict::Linked);
    assert_eq!(chain.gaps().next(), None);
}

#[test]
fn what_fills_a_gap_has_to_fit_on_both_sides() {
    let mut chain = chain(&[(0, 0, 1)]);
    chain.observe(link(2, h(2), h(3)));
    let verdict = chain.observe(link(1, h(1), h(9)));
    assert_eq!(verdict, Verdict::Evidence(Evidence::PrevSelf { ctr: 2 }));
}

#[test]
fn a_chain_begins_with_nothing_before_it() {
    let verdict = AuthorChain::new().observe(link(0, h(1), h(2)));
    assert_eq!(verdict, Verdict::Evidence(Evidence::PrevSelf { ctr: 0 }));
    let verdict = AuthorChain::new().observe(link(2, h(1), h(2)));
    assert_eq!(verdict, Verdict::Evidence(Evidence::Gap { missing: 0..=1 }));
}

#[test]
fn the_payload_with_the_reset_may_be_the_one_that_resumes() {
    let mut chain = chain(&[(0, 0, 1)]);
    let declared = reset(0, 1, 4);
    let verdict = chain.observe_reset(link(4, h(1), h(5)), &declared);
    assert_eq!(verdict, Verdict::UnverifiedGap(declared));
    assert_eq!(chain.gaps().next(), None);
    assert_eq!(chain.observe(link(5, h(5), h(6))), Verdict::Linked);
    // Used up: it excuses nobody else.
    let verdict = chain.observe(link(4, h(1), h(7)));
    assert!(matches!(
        verdict,
        Verdict::Evidence(Evidence::Fork { ctr: 4, .. })
    ));
}

#[test]
fn a_reset_comes_before_the_fact_and_tells_the_truth() {
    let gapped = |chain: &mut AuthorChain| chain.observe(link(2, h(1), h(3)));
    let mut late = chain(&[(0, 0, 1)]);
    assert!(gapped(&mut late).evidence().is_some());
    assert_eq!(late.declare(&reset(0, 1, 2)), Ok(()));
    assert_eq!(late.gaps().count(), 1);

    let mut lying = chain(&[(0, 0, 1)]);
    assert_eq!(
        lying.declare(&reset(0, 9, 2)),
        Err(Evidence::Reset { last_ctr: 0 })
    );
    assert!(lying.declare(&reset(0, 1, 0)).is_err());
    assert!(gapped(&mut lying).evidence().is_some());

    let mut elsewhere = chain(&[(0, 0, 1)]);
    assert_eq!(elsewhere.declare(&reset(0, 1, 3)), Ok(()));
    assert!(gapped(&mut elsewhere).evidence().is_some());
}

#[test]
fn a_fork_with_a_matching_reset_is_no_evidence() {
    let mut chain = chain(&[(0, 0, 1), (1, 1, 2), (2, 2, 3)]);
    assert_eq!(chain.declare(&reset(0, 1, 1)), Ok(()));
    let verdict = chain.observe(link(1, h(1), h(7)));
    assert_eq!(verdict, Verdict::UnverifiedGap(reset(0, 1, 1)));
    assert_eq!(chain.observe(link(2, h(7), h(8))), Verdict::Linked);
    // What was left behind is known, and nothing new about it is believed.
    assert_eq!(chain.observe(link(2, h(2), h(3))), Verdict::Known);
    assert!(chain.observe(link(1, h(1), h(9))).evidence().is_some());
}

#[test]
fn history_that_cannot_be_read_is_not_missing() {
    let mut late = AuthorChain::joined_later();
    assert_eq!(late.observe(link(57, h(6), h(7))), Verdict::Anchored);
    assert_eq!(late.observe(link(58, h(7), h(8))), Verdict::Linked);
    assert_eq!(late.observe(link(9, h(1), h(2))), Verdict::Below);
    assert!(late.observe(link(60, h(9), h(10))).evidence().is_some());

    let mut pruned = chain(&[(0, 0, 1), (1, 1, 2), (2, 2, 3)]);
    pruned.prune(2);
    assert_eq!(pruned.observe(link(1, h(1), h(2))), Verdict::Below);
    assert_eq!(pruned.observe(link(3, h(3), h(4))), Verdict::Linked);
    let mut barrier = AuthorChain::from_barrier(7, h(1));
    assert_eq!(barrier.observe(link(8, h(1), h(2))), Verdict::Linked);
    assert!(barrier.observe(link(7, h(0), h(9))).evidence().is_some());
    assert_eq!(barrier.gaps().next(), None);
}

#[test]
fn an_own_chain_is_linked_for_everyone_else() {
    let (mut own, mut seen) = (OwnChain::start(), AuthorChain::new());
    let say = |own: &mut OwnChain, n| {
        let place = own.next();
        own.sealed(h(n));
        link(place.ctr, place.prev_self, h(n))
    };
    assert_eq!(seen.observe(say(&mut own, 1)), Verdict::Linked);
    assert_eq!(seen.observe(say(&mut own, 2)), Verdict::Linked);
    let declared = reset(1, 2, 40);
    own = OwnChain::reset(&declared);
    let verdict = seen.observe_reset(say(&mut own, 3), &declared);
    assert_eq!(verdict, Verdict::UnverifiedGap(declared));
    assert_eq!(seen.observe(say(&mut own, 4)), Verdict::Linked);
    assert_eq!(seen.head(), Some((41, h(4))));
}
