//! The records of the retention chain: 08 §11, §12.

use drover_wire::error::{Code, Detail, Refusal};
use drover_wire::id::{GroupId, Hash, PublicKey, Signature};
use drover_wire::retention::{
    Control, Destruction, Manifest, ManifestFault, Policy, Refused, Resolution, SOLE_AUTHORIZER_DELAY_S,
};
use ed25519_dalek::SigningKey;

use crate::support::{Row, S, bytes, ours, rows};

const GROUP: GroupId = GroupId([0x9a; 32]);
const BLOB: Hash = Hash([0x7b; 32]);
const NONE: Signature = Signature([0; 64]);

fn key(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

fn public(seed: u8) -> PublicKey {
    PublicKey(key(seed).verifying_key().to_bytes())
}

/// The public keys of these seeds, as a set states them.
fn set(seeds: impl IntoIterator<Item = u8>) -> Vec<PublicKey> {
    let mut keys: Vec<PublicKey> = seeds.into_iter().map(public).collect();
    keys.sort_unstable();
    keys
}

/// A first control, and its successor.
pub(crate) fn controls() -> [Control; 2] {
    let genesis = Control {
        group: GROUP,
        epoch: 0,
        verifier: public(1),
        prev: None,
        sig: NONE,
    }
    .signed(&key(1));
    let successor = Control {
        group: GROUP,
        epoch: 1,
        verifier: public(2),
        prev: Some(genesis.digest().0.to_vec()),
        sig: NONE,
    }
    .signed(&key(1));
    [genesis, successor]
}

/// Two manifests under the first control.
pub(crate) fn manifests() -> [Manifest; 2] {
    let first = Manifest {
        group: GROUP,
        epoch: 0,
        sequence: 1,
        prev: None,
        blobs: vec![BLOB],
        sig: NONE,
    }
    .signed(&key(1));
    let second = Manifest {
        sequence: 2,
        prev: Some(first.digest().0.to_vec()),
        blobs: vec![],
        ..first.clone()
    }
    .signed(&key(1));
    [first, second]
}

pub(crate) fn policy() -> Policy {
    Policy {
        group: GROUP,
        version: 1,
        media_after_days: 30,
        text_after_days: 0,
        not_before_s: 1_700_000_000,
        authorizers: set([1, 2]),
        sigs: vec![],
    }
    .signed(&key(1))
    .signed(&key(2))
}

pub(crate) fn destructions() -> [Destruction; 2] {
    let of_blob = Destruction {
        group: GROUP,
        kind: Destruction::BLOB.to_vec(),
        target: BLOB,
        policy_version: None,
        not_before_s: 1_700_000_000,
        authorizers: vec![public(1)],
        sigs: vec![],
    };
    let by_policy = Destruction {
        kind: Destruction::DROP_BEFORE.to_vec(),
        policy_version: Some(1),
        not_before_s: 0,
        ..of_blob.clone()
    };
    [of_blob.signed(&key(1)), by_policy]
}

pub(crate) fn resolution() -> Resolution {
    Resolution {
        group: GROUP,
        epoch: 1,
        verifier: public(2),
        sig: NONE,
    }
    .signed(&key(2))
}

/// 08 §11, §12, §15: what is signed, what is hashed, and that records survive a store.
#[test]
fn signing_inputs_digests_and_signatures_are_those_of_the_specification() {
    let [genesis, successor] = controls();
    let [first, second] = manifests();
    let [of_blob, by_policy] = destructions();
    let (policy, resolution) = (policy(), resolution());
    let sig = |sig: &Signature| Some(sig.0.to_vec());
    let facts = [
        (genesis.signing_input(), Some(genesis.digest()), sig(&genesis.sig)),
        (
            successor.signing_input(),
            Some(successor.digest()),
            sig(&successor.sig),
        ),
        (first.signing_input(), Some(first.digest()), sig(&first.sig)),
        (second.signing_input(), Some(second.digest()), sig(&second.sig)),
        (policy.signing_input(), Some(policy.digest()), None),
        (of_blob.signing_input(), Some(of_blob.digest()), None),
        (by_policy.signing_input(), Some(by_policy.digest()), None),
        (resolution.signing_input(), None, sig(&resolution.sig)),
    ];
    let expected = rows(ours("retention"));
    assert_eq!(expected.len(), facts.len());
    for (row, (input, digest, sig)) in expected.iter().zip(facts) {
        assert_eq!(input, row.spelt("signing_input"), "{row}");
        let digest = digest.map(|digest| digest.0.to_vec());
        assert_eq!(digest, row["digest"].as_str().map(bytes), "{row}");
        assert_eq!(sig, row["sig"].as_str().map(bytes), "{row}");
    }
    assert_eq!(genesis.signing_input().len(), 71);

    assert_eq!(Control::decode(&successor.encode()), Ok(successor));
    assert_eq!(Manifest::decode(&second.encode()), Ok(second));
    assert_eq!(Policy::decode(&policy.encode()), Ok(policy));
    assert_eq!(Destruction::decode(&by_policy.encode()), Ok(by_policy));
    assert_eq!(Resolution::decode(&resolution.encode()), Ok(resolution));
    let trailing = [genesis.encode(), vec![0]].concat();
    assert_eq!(Control::decode(&trailing), Err(S));
    assert_eq!(Policy::decode(&[]), Err(S));
}

/// W08.12, the part that bytes decide: genesis, successor, missing or wrong predecessor, wrong signer.
#[test]
fn controls_follow_each_other_by_digest_and_key() {
    let [genesis, successor] = controls();
    assert!(genesis.is_genesis() && successor.succeeds(&genesis));
    assert!(!successor.is_genesis() && !genesis.succeeds(&genesis) && !genesis.succeeds(&successor));

    let change = |control: &Control, by: u8, change: fn(&mut Control)| {
        let mut control = control.clone();
        change(&mut control);
        control.signed(&key(by))
    };
    assert!(!change(&genesis, 2, |_| ()).is_genesis(), "signed by another");
    assert!(
        !change(&genesis, 1, |c| c.prev = Some(vec![])).is_genesis(),
        "something before it"
    );
    assert!(!change(&genesis, 1, |c| c.epoch = 1).is_genesis());
    assert!(change(&successor, 1, |c| c.verifier = public(3)).succeeds(&genesis));
    assert!(
        !change(&successor, 2, |_| ()).succeeds(&genesis),
        "signed by itself"
    );
    assert!(!change(&successor, 1, |c| c.epoch = 2).succeeds(&genesis));
    assert!(!change(&successor, 1, |c| c.prev = None).succeeds(&genesis));
    assert!(!change(&successor, 1, |c| c.prev = Some(vec![0; 32])).succeeds(&genesis));
    assert!(!change(&successor, 1, |c| c.prev.as_mut().unwrap().truncate(31)).succeeds(&genesis));
    assert!(!change(&successor, 1, |c| c.group = GroupId([1; 32])).succeeds(&genesis));
    let resigned = change(&genesis, 1, |c| c.group = GroupId([1; 32]));
    assert!(!successor.succeeds(&resigned), "another chain");
}

/// W08.14, the part that bytes decide, in the order of 08 §11.
#[test]
fn manifests_are_judged_in_order() {
    let [genesis, successor] = controls();
    let [first, second] = manifests();
    let after_first = Some((1, first.digest()));
    assert_eq!(first.check(Some(&genesis), None), Ok(()));
    assert_eq!(second.check(Some(&genesis), after_first), Ok(()));
    assert_eq!(first.check(None, None), Err(ManifestFault::NoControl));
    assert_eq!(first.check(Some(&successor), None), Err(ManifestFault::Epoch));

    let change = |by: u8, change: fn(&mut Manifest)| {
        let mut manifest = second.clone();
        change(&mut manifest);
        manifest.signed(&key(by)).check(Some(&genesis), after_first)
    };
    assert_eq!(change(2, |m| m.sequence = 9), Err(ManifestFault::Signature));
    assert_eq!(
        change(1, |m| (m.sequence, m.prev) = (3, None)),
        Err(ManifestFault::Sequence)
    );
    assert_eq!(change(1, |m| m.sequence = 1), Err(ManifestFault::Sequence));
    assert_eq!(change(1, |m| m.prev = None), Err(ManifestFault::Predecessor));
    assert_eq!(
        change(1, |m| m.prev = Some(vec![0; 32])),
        Err(ManifestFault::Predecessor)
    );
    assert_eq!(
        change(1, |m| m.blobs = vec![BLOB; 2]),
        Ok(()),
        "any order, repeats included"
    );
    let zero = Manifest {
        sequence: 0,
        ..first.clone()
    };
    assert_eq!(
        zero.signed(&key(1)).check(Some(&genesis), None),
        Err(ManifestFault::Sequence),
        "the first is 1"
    );
    let end = second.check(Some(&genesis), Some((u64::MAX, first.digest())));
    assert_eq!(end, Err(ManifestFault::Sequence));
}

/// W08.13 in part: a bad signature.
#[test]
fn a_resolution_is_signed_by_the_key_it_names() {
    assert!(resolution().verifies());
    assert!(!resolution().signed(&key(1)).verifies());
    let other = Resolution {
        epoch: 2,
        ..resolution()
    };
    assert!(!other.verifies());
}

/// W08.15: thresholds for 0, 1 and 2 authorizers, with each word.
#[test]
fn one_authorizer_waits_and_two_do_not() {
    let now_s = 1_700_000_000;
    let due_s = now_s + SOLE_AUTHORIZER_DELAY_S;
    let policy = |not_before_s: u64, by: &[u8]| {
        by.iter().fold(
            Policy {
                not_before_s,
                sigs: vec![],
                ..policy()
            },
            |policy, &seed| policy.signed(&key(seed)),
        )
    };
    let (one, two, three) = (set([1]), set([1, 2]), set([1, 2, 3]));
    let insufficient = Err(Refused::InsufficientSignatures);

    assert_eq!(
        policy(due_s, &[1, 2]).authorize(&[], now_s),
        Err(Refused::NoAuthorizers)
    );

    assert_eq!(policy(due_s, &[1]).authorize(&one, now_s), Ok(()));
    assert_eq!(
        policy(due_s, &[2, 1]).authorize(&one, now_s),
        Ok(()),
        "strangers do no harm"
    );
    assert_eq!(policy(due_s, &[2]).authorize(&one, now_s), insufficient);
    assert_eq!(
        policy(0, &[]).authorize(&one, now_s),
        insufficient,
        "signatures are counted first"
    );
    for (not_before_s, retry_after_s) in [(due_s - 1, 1), (now_s, 604_800), (0, 1_700_604_800)] {
        let refused = Refused::SoleAuthorizerTooSoon { retry_after_s };
        assert_eq!(policy(not_before_s, &[1]).authorize(&one, now_s), Err(refused));
    }
    assert_eq!(
        policy(0, &[1]).authorize(&one, u64::MAX),
        Err(Refused::SoleAuthorizerTooSoon {
            retry_after_s: u32::MAX
        })
    );

    assert_eq!(policy(0, &[1, 2]).authorize(&two, now_s), Ok(()));
    assert_eq!(policy(0, &[3, 1]).authorize(&three, now_s), Ok(()));
    assert_eq!(policy(due_s, &[1]).authorize(&two, now_s), insufficient);
    assert_eq!(
        policy(0, &[1, 1]).authorize(&two, now_s),
        insufficient,
        "one key is one voice"
    );
    assert_eq!(policy(0, &[1, 4]).authorize(&two, now_s), insufficient);
    let mut moved = policy(0, &[1, 2]);
    moved.text_after_days = 1;
    assert_eq!(
        moved.authorize(&two, now_s),
        insufficient,
        "signed for other terms"
    );

    let [of_blob, _] = destructions();
    assert_eq!(
        of_blob.authorize(&one, of_blob.not_before_s - SOLE_AUTHORIZER_DELAY_S),
        Ok(())
    );
    assert_eq!(of_blob.authorize(&two, 0), insufficient);

    let words = [
        (Refused::NoAuthorizers, "no_authorizers", 0),
        (Refused::InsufficientSignatures, "insufficient_signatures", 0),
        (
            Refused::SoleAuthorizerTooSoon { retry_after_s: 7 },
            "sole_authorizer_too_soon",
            7,
        ),
    ];
    for (refused, word, retry_after_s) in words {
        let refusal = Refusal::plain(Code::WriterNotInAccessSet)
            .after(retry_after_s)
            .with(Detail::Word(word));
        assert_eq!(Refusal::from(refused), refusal);
        assert_eq!(refused.to_string(), word);
    }
}

/// Of a key that is listed twice only the first signature is looked at, which bounds what a list can cost.
#[test]
fn a_key_is_judged_once() {
    let mut policy = policy();
    let (good, bad) = (policy.sigs.clone(), (public(1), NONE));
    policy.sigs = vec![bad, good[0], good[1]];
    assert_eq!(
        policy.authorize(&set([1, 2]), 0),
        Err(Refused::InsufficientSignatures)
    );
    policy.sigs = vec![good[0], bad, good[1]];
    assert_eq!(policy.authorize(&set([1, 2]), 0), Ok(()));
}

/// W08.15: identical policy, version skip, shortening, 29 days.
#[test]
fn policies_go_up_by_one_and_never_get_shorter() {
    let with = |version: u64, media_after_days: u32| Policy {
        version,
        media_after_days,
        ..policy()
    };
    let first = policy();
    assert_eq!(first.check_terms(None), Ok(()));
    for refused in [with(0, 30), with(2, 30), with(1, 29), with(1, 0)] {
        assert_eq!(refused.check_terms(None), Err(S));
    }
    let active = with(3, 90);
    for accepted in [with(4, 90), with(4, u32::MAX)] {
        assert_eq!(accepted.check_terms(Some(&active)), Ok(()));
    }
    for refused in [with(3, 90), with(5, 90), with(1, 90), with(4, 89), with(4, 29)] {
        assert_eq!(refused.check_terms(Some(&active)), Err(S));
    }
    assert_eq!(with(0, 90).check_terms(Some(&with(u64::MAX, 90))), Err(S));

    let unsigned = Policy {
        sigs: vec![],
        authorizers: set([7]),
        ..policy()
    };
    assert!(unsigned.repeats(&first), "signatures and names do not matter");
    let changes: [fn(&mut Policy); 5] = [
        |p| p.version = 2,
        |p| p.media_after_days = 31,
        |p| p.text_after_days = 1,
        |p| p.not_before_s += 1,
        |p| p.group = GroupId([1; 32]),
    ];
    for change in changes {
        let mut other = policy();
        change(&mut other);
        assert!(!other.repeats(&first));
    }
}

/// 08 §2, notes: a policy's version is named in eight bytes or not at all.
#[test]
fn a_named_version_has_eight_bytes() {
    let record = |version: &str| {
        bytes(&format!(
            "87 5820 9a*32 44 626c6f62 5820 7b*32 {version} 00 81 5820 01*32 80"
        ))
    };
    let version = |version: &str| Destruction::decode(&record(version)).map(|record| record.policy_version);
    assert_eq!(version("f6"), Ok(None));
    assert_eq!(version("48 0102030405060708"), Ok(Some(0x0102_0304_0506_0708)));
    for other in ["40", "47 01*7", "49 01*9", "01", "80"] {
        assert_eq!(version(other), Err(S), "{other}");
    }
}
