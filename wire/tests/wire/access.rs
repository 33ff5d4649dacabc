//! Access sets: 05 §3, §4, §16.

use drover_wire::access::{AccessSet, AccessState, LIST_MAX, Quorum, quorum_message, sign, verify};
use drover_wire::error::Code;
use drover_wire::id::{EntryHash, Hash, PublicKey, Salt, Signature};
use ed25519_dalek::SigningKey;

use crate::support::{Row, S, array, bytes, ours, rows, shared};

fn key_of(row: &serde_json::Value, field: &str) -> SigningKey {
    SigningKey::from_bytes(&array(row.text(field)))
}

fn genesis() -> AccessSet {
    AccessSet::decode(&rows(ours("access_sets"))[0].spelt("bytes")).unwrap()
}

/// W05.1
#[test]
fn every_set_encodes_decodes_and_hashes_as_listed() {
    let principals = ours("principals");
    let salt = Salt(array(principals.text("salt")));
    for row in rows(principals["keys"].clone()) {
        let key = PublicKey(key_of(&row, "seed").verifying_key().to_bytes());
        assert_eq!(key, PublicKey(array(row.text("key"))));
        assert_eq!(
            EntryHash::of(&key, &salt),
            EntryHash(array(row.text("entry"))),
            "{row}"
        );
    }
    for row in rows(ours("quorum_messages")) {
        let replacement = EntryHash(array(row.text("replacement")));
        let message = quorum_message(&Hash(array(row.text("digest"))), &replacement);
        assert_eq!(message, Hash(array(row.text("message"))), "{row}");
        if !row["sig"].is_null() {
            let key = key_of(&row, "signer_seed");
            assert_eq!(sign(&key, &message.0), Signature(array(row.text("sig"))));
        }
    }
    for row in rows(ours("access_sets")) {
        let wire = row.spelt("bytes");
        let set = AccessSet::decode(&wire).unwrap();
        assert_eq!(set.encode(), wire, "{row}");
        assert_eq!(
            set.signing_input().len() as u64,
            row.number("signing_input_bytes"),
            "{row}"
        );
        assert_eq!(set.digest(), Hash(array(row.text("digest"))), "{row}");
        assert_eq!(set.check_shape(), Ok(()), "{row}");
        let signature = Signature(array(row.text("sig")));
        assert_eq!(set.sig, signature);
        assert_eq!(set.clone().signed(&key_of(&row, "signer_seed")), set, "{row}");
        assert!(verify(&set.signer, &set.signing_input(), &set.sig), "{row}");
    }
    let Some(corpus) = shared("access-set.json") else {
        return;
    };
    for row in rows(corpus["cases"].clone()) {
        let wire = row.spelt("encoded");
        let set = AccessSet::decode(&wire).unwrap();
        assert_eq!(set.encode(), wire);
        assert_eq!(set.digest(), Hash(array(row.text("digest"))));
        assert_eq!(set.version, row.number("version"));
        assert_eq!(
            set.quorum.map(|quorum| u64::from(quorum.threshold)),
            row["quorum_threshold"].as_u64()
        );
    }
    let (salt, example) = (
        Salt(array(corpus.text("entry_hash_salt"))),
        &corpus["entry_hash_example"],
    );
    let key = PublicKey(array(example.text("pubkey")));
    assert_eq!(EntryHash::of(&key, &salt), EntryHash(array(example.text("hash"))));
    let example = &corpus["quorum_message_example"];
    let replacement = EntryHash(array(example.text("replacement_entry")));
    let message = quorum_message(&Hash(array(example.text("digest"))), &replacement);
    assert_eq!(message, Hash(array(example.text("message"))));
}

#[test]
fn the_genesis_example_has_its_sizes_and_frames() {
    use drover_wire::frame::Frame;
    let body = genesis().encode();
    assert_eq!((body.len(), genesis().signing_input().len()), (320, 254));
    let publish = crate::support::encoded(&Frame::Access { body: &body });
    assert_eq!((publish.len(), &publish[..6]), (326, &bytes("820681590140")[..]));
}

#[test]
fn state_answers_decode_and_encode() {
    for row in rows(ours("access_states")) {
        let head = row["version"]
            .as_u64()
            .map(|version| (version, Hash(array(row.text("digest")))));
        let state = AccessState {
            salt: Salt(array(row.text("salt"))),
            head,
        };
        assert_eq!(state.encode(), row.spelt("bytes"));
        assert_eq!(AccessState::decode(&row.spelt("bytes")), Ok(state));
    }
    for broken in [
        "",
        "8258205a",
        "82 581f 5a*31 f6",
        "82 5820 5a*32 f5",
        "82 5820 5a*32 8100",
        "f6",
    ] {
        assert_eq!(AccessState::decode(&bytes(broken)), Err(S), "{broken}");
    }
}

#[test]
fn confirmations_are_not_signed() {
    let mut set = genesis();
    set.quorum = Some(Quorum {
        threshold: 1,
        keys: vec![PublicKey([1; 32])],
        sigs: vec![],
    });
    let bare = (set.signing_input(), set.encode());
    set.quorum
        .as_mut()
        .unwrap()
        .sigs
        .push((PublicKey([1; 32]), Signature([2; 64])));
    assert_eq!(set.signing_input(), bare.0);
    assert_ne!(set.encode(), bare.1);
    assert_eq!(AccessSet::decode(&set.encode()), Ok(set));
}

/// 05 §5 step 4: also what a frame would be refused as non-canonical for.
#[test]
fn every_decode_fault_of_a_set_is_malformed() {
    let wire = genesis().encode();
    for cut in 0..wire.len() {
        assert_eq!(AccessSet::decode(&wire[..cut]), Err(S), "{cut} bytes");
    }
    let mut longer_head = wire.clone();
    assert_eq!(longer_head[35], 0, "the version");
    longer_head.splice(35..36, [0x18, 0x00]);
    assert_eq!(AccessSet::decode(&longer_head), Err(S));
    assert_eq!(AccessSet::decode(&bytes("a10100")), Err(S), "D1: a map");
}

fn ascending<T: From<[u8; 32]>>(count: usize) -> Vec<T> {
    let number = |n: usize| {
        let mut id = [0; 32];
        id[..8].copy_from_slice(&(n as u64).to_be_bytes());
        T::from(id)
    };
    (0..count).map(number).collect()
}

#[test]
fn lists_hold_at_most_4096() {
    let mut set = genesis();
    set.entries = ascending(LIST_MAX);
    set.quorum = Some(Quorum {
        threshold: 1,
        keys: ascending(LIST_MAX),
        sigs: vec![(PublicKey([1; 32]), Signature([2; 64])); LIST_MAX],
    });
    assert_eq!(AccessSet::decode(&set.encode()).as_ref(), Ok(&set));
    let grow: [fn(&mut AccessSet); 6] = [
        |set| set.entries = ascending(LIST_MAX + 1),
        |set| set.authorizers = ascending(LIST_MAX + 1),
        |set| set.recovery = ascending(LIST_MAX + 1),
        |set| set.pending = ascending(LIST_MAX + 1),
        |set| set.quorum.as_mut().unwrap().keys = ascending(LIST_MAX + 1),
        |set| {
            set.quorum
                .as_mut()
                .unwrap()
                .sigs
                .push((PublicKey([1; 32]), Signature([2; 64])))
        },
    ];
    for grow in grow {
        let mut larger = set.clone();
        grow(&mut larger);
        assert_eq!(AccessSet::decode(&larger.encode()), Err(S));
        assert_eq!(larger.check_shape(), Err(S));
    }
}

/// 05 §7.1, rows 1 and 2.
#[test]
fn lists_are_sorted_and_the_threshold_can_be_met() {
    let sound = AccessSet {
        entries: ascending(3),
        authorizers: ascending(2),
        recovery: ascending(2),
        pending: ascending(2),
        quorum: Some(Quorum {
            threshold: 2,
            keys: ascending(2),
            sigs: vec![],
        }),
        ..genesis()
    };
    assert_eq!(sound.check_shape(), Ok(()));
    type Break = fn(&mut AccessSet);
    let breaks: [(&str, Break); 15] = [
        ("no entry", |set| set.entries.clear()),
        ("no authorizer", |set| set.authorizers.clear()),
        ("no recovery key", |set| set.recovery.clear()),
        ("entries descend", |set| set.entries.reverse()),
        ("authorizers descend", |set| set.authorizers.reverse()),
        ("recovery keys descend", |set| set.recovery.reverse()),
        ("pending descends", |set| set.pending.reverse()),
        ("entry twice", |set| set.entries[1] = set.entries[0]),
        ("authorizer twice", |set| set.authorizers[1] = set.authorizers[0]),
        ("recovery key twice", |set| set.recovery[1] = set.recovery[0]),
        ("pending twice", |set| set.pending[1] = set.pending[0]),
        ("threshold 0", |set| set.quorum.as_mut().unwrap().threshold = 0),
        ("threshold over the keys", |set| {
            set.quorum.as_mut().unwrap().threshold = 3
        }),
        ("quorum keys descend", |set| {
            set.quorum.as_mut().unwrap().keys.reverse()
        }),
        ("no quorum key", |set| set.quorum.as_mut().unwrap().keys.clear()),
    ];
    for (what, break_it) in breaks {
        let mut set = sound.clone();
        break_it(&mut set);
        assert_eq!(set.check_shape(), Err(Code::MalformedHeader), "{what}");
        assert!(
            AccessSet::decode(&set.encode()).is_ok(),
            "{what}: decoding does not judge shape"
        );
    }
    let without = AccessSet {
        pending: vec![],
        quorum: None,
        ..sound
    };
    assert_eq!(without.check_shape(), Ok(()));
}

/// 05 §1, the verifier: what deployed peers accept and refuse.
#[test]
fn verification_is_cofactorless_and_wants_a_canonical_s() {
    let key = SigningKey::from_bytes(&[1; 32]);
    let public = PublicKey(key.verifying_key().to_bytes());
    let good = sign(&key, b"message");
    assert!(verify(&public, b"message", &good));
    assert!(!verify(&public, b"another", &good));
    assert!(!verify(&PublicKey([2; 32]), b"message", &good));

    // The group order, little endian: adding it to s makes the same signature in a form that must be refused.
    let order: [u8; 32] = array("edd3f55c1a631258d69cf7a2def9de14 00*15 10");
    let mut malleated = good;
    let mut carry = 0;
    for (byte, add) in malleated.0[32..].iter_mut().zip(order) {
        let sum = u16::from(*byte) + u16::from(add) + carry;
        *byte = sum as u8;
        carry = sum >> 8;
    }
    assert!(!verify(&public, b"message", &malleated));

    // The neutral element as key and as R, s = 0, verifies any message: small orders are not refused as such.
    let neutral: [u8; 32] = array("01 00*31");
    let zero = Signature(array("01 00*31 00*32"));
    assert!(verify(&PublicKey(neutral), b"anything", &zero));

    assert!(
        !verify(&PublicKey([0xff; 32]), b"message", &good),
        "no point at all"
    );
}
