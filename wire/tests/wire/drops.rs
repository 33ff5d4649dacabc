//! The DROP payloads: 09 §2, §12.

use drover_wire::cbor::Writer;
use drover_wire::drop::{Answer, Request, Verdict};
use drover_wire::frame::Frame;
use drover_wire::id::{GroupId, Hash, PublicKey, Signature};
use ed25519_dalek::SigningKey;

use crate::support::{Row, S, bytes, encoded, ours, rows};

fn key() -> SigningKey {
    SigningKey::from_bytes(&[1; 32])
}

/// The two of 09 §12.
fn requests() -> [Request; 2] {
    let by_policy = Request {
        group: GroupId([0x9a; 32]),
        checkpoint: Hash([0xc1; 32]),
        snapshots: vec![Hash([0x51; 32])],
        epoch: 0,
        policy_version: Some(1),
        destruction_digest: None,
        sig: Signature([0; 64]),
    };
    let by_destruction = Request {
        snapshots: vec![],
        policy_version: None,
        destruction_digest: Some(vec![0x7b; 32]),
        ..by_policy.clone()
    };
    [by_policy.signed(&key()), by_destruction.signed(&key())]
}

/// The payload of a DROP frame.
fn payload(frame: &[u8]) -> &[u8] {
    match Frame::decode(frame) {
        Ok(Frame::Drop { payload }) => payload,
        other => panic!("{other:?}"),
    }
}

/// 09 §12: frames, sizes, what is signed.
#[test]
fn drop_requests_are_those_of_the_specification() {
    let expected = rows(ours("drop_requests"));
    for ((row, request), bytes) in expected.iter().zip(requests()).zip([188, 179]) {
        let (wire, payload_bytes) = (row.spelt("frame"), request.encode());
        assert_eq!(wire.len(), bytes);
        assert_eq!(
            encoded(&Frame::Drop {
                payload: &payload_bytes
            }),
            wire,
            "{row}"
        );
        assert_eq!(request.signing_input(), row.spelt("signing_input"), "{row}");
        assert_eq!(Request::decode(payload(&wire)).as_ref(), Ok(&request), "{row}");

        let signer = PublicKey(key().verifying_key().to_bytes());
        assert!(request.is_signed_by(&signer));
        assert!(!request.is_signed_by(&PublicKey([1; 32])));
        let moved = Request { epoch: 1, ..request };
        assert!(!moved.is_signed_by(&signer));
    }
    assert_eq!(requests()[0].signing_input().len(), 115);
}

/// 09 §12, and the reasons of 09 §3, word for word.
#[test]
fn drop_answers_are_those_of_the_specification() {
    let answers = [
        Answer::Ran {
            deleted: 3,
            bytes: 45,
            kept: 0,
        },
        Answer::Against(Verdict::GroupFrozen),
        Answer::Against(Verdict::NoRetentionChain),
        Answer::Against(Verdict::StaleEpoch(7)),
        Answer::Against(Verdict::BadSignature),
        Answer::Against(Verdict::NoAuthorization),
        Answer::Against(Verdict::AuthorizationNotDue),
        Answer::Against(Verdict::IncompleteManifest(2)),
    ];
    let expected = rows(ours("drop_answers"));
    assert_eq!(expected.len(), answers.len());
    for (row, answer) in expected.iter().zip(answers) {
        let wire = row.spelt("frame");
        assert_eq!(
            encoded(&Frame::Drop {
                payload: &answer.encode()
            }),
            wire,
            "{row}"
        );
        assert_eq!(Answer::decode(payload(&wire)), Ok(answer), "{row}");
        if let Answer::Against(verdict) = answer {
            assert_eq!(verdict.to_string(), row.text("name"));
        }
    }
}

/// W09.6, the codec's part: garbage, 4097 snapshots. W01.7: a trailing byte.
#[test]
fn every_fault_of_a_drop_payload_is_malformed() {
    for request in requests() {
        let wire = request.encode();
        for cut in 0..wire.len() {
            assert_eq!(Request::decode(&wire[..cut]), Err(S), "{cut} bytes");
        }
        assert_eq!(Request::decode(&[&wire[..], &[0]].concat()), Err(S));
    }
    let with = |snapshots: usize| Request {
        snapshots: vec![Hash([7; 32]); snapshots],
        ..requests()[0].clone()
    };
    assert_eq!(Request::decode(&with(4096).encode()), Ok(with(4096)));
    assert_eq!(Request::decode(&with(4097).encode()), Err(S));

    let body = |version: &str, digest: &str| {
        let ids = "5820 9a*32 5820 c1*32 80 00";
        Request::decode(&bytes(&format!("82 01 87 {ids} {version} {digest} 5840 00*64")))
    };
    assert!(
        body("f6", "f6").is_ok() && body("48 00*8", "40").is_ok(),
        "that decides later"
    );
    for (version, digest) in [
        ("47 00*7", "f6"),
        ("49 00*9", "f6"),
        ("00", "f6"),
        ("f6", "00"),
        ("f6", "f7"),
    ] {
        assert_eq!(body(version, digest), Err(S), "{version} {digest}");
    }
    let promised = format!(
        "82 01 87 5820 9a*32 5820 c1*32 9b0004000000000000 {}",
        "00 ".repeat(90)
    );
    assert_eq!(Request::decode(&bytes(&promised)), Err(S));
    for number in ["00", "02", "1801", "1bffffffffffffffff"] {
        let wire = requests()[0].encode();
        let other = [&[0x82], &bytes(number)[..], &wire[2..]].concat();
        assert_eq!(Request::decode(&other), Err(S), "{number}");
    }
}

/// A reason has one spelling, and unknown ones are none.
#[test]
fn answers_with_other_words_are_malformed() {
    let reason = |reason: &str| {
        let mut wire = Vec::new();
        Writer::new(&mut wire).array(2).uint(2u8).array(1).bytes(reason);
        Answer::decode(&wire)
    };
    let largest = format!("stale_epoch:{}", u64::MAX);
    assert_eq!(
        reason(&largest),
        Ok(Answer::Against(Verdict::StaleEpoch(u64::MAX)))
    );
    for other in [
        "",
        "group_frozen ",
        "GROUP_FROZEN",
        "group_frozen:",
        "group_frozen:0",
        "stale_epoch",
        "stale_epoch:",
        "stale_epoch:07",
        "stale_epoch:+7",
        "stale_epoch: 7",
        "stale_epoch:18446744073709551616",
        "incomplete_manifest:-1",
        "incomplete_manifest:1:2",
        "other",
    ] {
        assert_eq!(reason(other), Err(S), "{other}");
    }
    for wire in [
        "82 02 81 40",
        "82 02 80",
        "82 03 80",
        "82 00 83 00 00 00",
        "82 01 82 00 00",
        "82 01 83 00 00 00 00",
    ] {
        assert_eq!(Answer::decode(&bytes(wire)), Err(S), "{wire}");
    }
}
