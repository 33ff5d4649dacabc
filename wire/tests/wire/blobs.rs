//! BLOB payloads: 08 §1 to §3, §15.

use drover_wire::blob::{Position, Request, Response};
use drover_wire::frame::Frame;
use drover_wire::id::{GroupId, Hash};

use crate::retention::{controls, destructions, manifests, policy, resolution};
use crate::support::{Row, S, bytes, encoded, ours, rows, shared_rows};

const GROUP: GroupId = GroupId([0x9a; 32]);
const HASH: Hash = Hash([0x7b; 32]);
const SESSION: [u8; 16] = [0x5e; 16];
const WORKSPACE: &[u8] = b"mp-a";

/// W08.1, our half: every form of request is built from its fields, in the order of the vectors.
#[test]
fn requests_are_those_of_the_specification() {
    let [genesis, successor] = controls();
    let [first, second] = manifests();
    let [of_blob, by_policy] = destructions();
    let (workspace, group, hash, session) = (WORKSPACE, GROUP, HASH, &SESSION[..]);
    let requests = [
        Request::Put {
            workspace,
            group,
            hash,
            ciphertext_bytes: 4096,
        },
        Request::Get {
            workspace,
            group,
            hash,
        },
        Request::MultipartPart {
            session,
            part_number: 1,
            part_bytes: 5_242_880,
        },
        Request::MultipartComplete {
            session,
            parts: vec![(1, b"etag-one"), (2, &[0xab; 16])],
        },
        Request::MultipartAbort { session },
        Request::Control(genesis),
        Request::Control(successor),
        Request::Manifest(first),
        Request::Manifest(second),
        Request::Policy(policy()),
        Request::Destruction(of_blob),
        Request::Destruction(by_policy),
        Request::List { workspace, group },
        Request::Resolution(resolution()),
        Request::Position { group },
        Request::Quota { group },
    ];
    let expected = rows(ours("blob_requests"));
    assert_eq!(expected.len(), requests.len());
    for (row, request) in expected.iter().zip(&requests) {
        assert_eq!(request.encode(), row.spelt("bytes"), "{row}");
        assert_eq!(
            Request::decode(&row.spelt("bytes")).as_ref(),
            Ok(request),
            "{row}"
        );
        assert_eq!(u64::from(request.form()), row.number("form"), "{row}");
    }
}

/// 08 §3, §15: every form of response.
#[test]
fn responses_are_those_of_the_specification() {
    let [_, successor] = controls();
    let [_, second] = manifests();
    let (url, expires_in_s) = ("https://bucket.example/o?sig=1", 900);
    let responses = [
        Response::Upload { url, expires_in_s },
        Response::Exists,
        Response::Multipart {
            session: SESSION,
            part_bytes: 67_108_864,
            expires_in_s,
        },
        Response::Download { url, expires_in_s },
        Response::NotFound,
        Response::PartUpload { url, expires_in_s },
        Response::Completed,
        Response::Aborted,
        Response::Ack(HASH),
        Response::Listing(vec![(&HASH.0, 4096)]),
        Response::Listing(vec![]),
        Response::Resolved,
        Response::Position(Position {
            control_epoch: 0,
            control_digest: None,
            next_sequence: 1,
            prev_manifest: None,
            blobs: vec![],
        }),
        Response::Position(Position {
            control_epoch: 1,
            control_digest: Some(successor.digest()),
            next_sequence: 3,
            prev_manifest: Some(second.digest()),
            blobs: vec![HASH],
        }),
        Response::Quota {
            stored_bytes: 0,
            reserved_bytes: 0,
            limit_bytes: None,
        },
        Response::Quota {
            stored_bytes: 0,
            reserved_bytes: 400_000_000,
            limit_bytes: Some(1_000_000_000),
        },
    ];
    let expected = rows(ours("blob_responses"));
    assert_eq!(expected.len(), responses.len());
    for (row, response) in expected.iter().zip(&responses) {
        assert_eq!(response.encode(), row.spelt("bytes"), "{row}");
        assert_eq!(
            Response::decode(&row.spelt("bytes")).as_ref(),
            Ok(response),
            "{row}"
        );
        assert_eq!(u64::from(response.form()), row.number("form"), "{row}");
    }
}

/// 08 §15: whole frames.
#[test]
fn blob_frames_are_those_of_the_specification() {
    let (workspace, group, hash) = (WORKSPACE, GROUP, HASH);
    let put = Request::Put {
        workspace,
        group,
        hash,
        ciphertext_bytes: 4096,
    };
    let payloads = [
        Request::Quota { group }.encode(),
        put.encode(),
        Response::Exists.encode(),
        Response::NotFound.encode(),
        Response::Completed.encode(),
        Response::Aborted.encode(),
        Response::Resolved.encode(),
    ];
    let expected = rows(ours("blob_frames"));
    assert_eq!(expected.len(), payloads.len());
    for (row, payload) in expected.iter().zip(&payloads) {
        assert_eq!(encoded(&Frame::Blob { payload }), row.spelt("frame"), "{row}");
    }
}

/// W08.1: the shared vectors decode to their fields and encode to the same bytes, lengths of 0 and 2^64 - 1 included;
/// that those are too large is said by whoever keeps the quota.
#[test]
fn shared_media_vectors_decode_to_their_fields_and_encode_again() {
    let cases = shared_rows("media-requests.json", "cases");
    let mut lengths = vec![];
    for row in &cases {
        let (wire, fields) = (row.spelt("encoded"), &row["fields"]);
        let request = Request::decode(&wire).unwrap();
        assert_eq!(request.encode(), wire, "{row}");
        assert_eq!(u64::from(request.form()), row.number("tag"), "{row}");
        match request {
            Request::Put {
                workspace,
                group,
                hash,
                ciphertext_bytes,
            } => {
                assert_eq!(workspace, fields.spelt("workspace"));
                assert_eq!(group.0[..], fields.spelt("group"));
                assert_eq!(hash.0[..], fields.spelt("hash"));
                assert_eq!(ciphertext_bytes, fields.number("ciphertext_len"));
                lengths.push(ciphertext_bytes);
            }
            Request::Get {
                workspace,
                group,
                hash,
            } => {
                assert_eq!(workspace, fields.spelt("workspace"));
                assert_eq!(group.0[..], fields.spelt("group"));
                assert_eq!(hash.0[..], fields.spelt("hash"));
            }
            Request::MultipartPart {
                session,
                part_number,
                part_bytes,
            } => {
                assert_eq!(session, fields.spelt("session_id"));
                assert_eq!(u64::from(part_number), fields.number("part_number"));
                assert_eq!(part_bytes, fields.number("expected_len"));
            }
            Request::MultipartComplete { session, parts } => {
                assert_eq!(session, fields.spelt("session_id"));
                let spelt = fields["parts"].as_array().unwrap();
                assert_eq!(parts.len(), spelt.len());
                for ((number, etag), spelt) in parts.into_iter().zip(spelt) {
                    assert_eq!(u64::from(number), spelt[0].as_u64().unwrap());
                    assert_eq!(etag, bytes(spelt[1].as_str().unwrap()));
                }
            }
            Request::MultipartAbort { session } => assert_eq!(session, fields.spelt("session_id")),
            Request::List { workspace, group } => {
                assert_eq!(workspace, fields.spelt("workspace"));
                assert_eq!(group.0[..], fields.spelt("group"));
            }
            Request::Quota { group } => assert_eq!(group.0[..], fields.spelt("group")),
            other => panic!("{other:?} is not in the corpus"),
        }
    }
    assert!(cases.is_empty() || (lengths.contains(&0) && lengths.contains(&u64::MAX)));
}

/// 08 §1: one code for everything that is wrong with a payload. W01.7: a trailing byte included.
#[test]
fn every_fault_of_a_payload_is_malformed() {
    for section in ["blob_requests", "blob_responses"] {
        for row in rows(ours(section)) {
            let wire = row.spelt("bytes");
            let refused = |wire: &[u8]| match section {
                "blob_requests" => Request::decode(wire).err(),
                _ => Response::decode(wire).err(),
            };
            for cut in 0..wire.len() {
                assert_eq!(refused(&wire[..cut]), Some(S), "{cut} bytes of {row}");
            }
            assert_eq!(
                refused(&[&wire[..], &[0]].concat()),
                Some(S),
                "a trailing byte: {row}"
            );
            let mut one_more = wire.clone();
            one_more[2] += 1;
            one_more.push(0);
            assert_eq!(refused(&one_more), Some(S), "one more field: {row}");
        }
    }
    for payload in [
        "",
        "80",
        "8200 80",
        "820e 80",
        "8218 18 80",
        "821bffffffffffffffff 80",
        "8240 80",
        "83 02 80 00",
        "a1 02 80",
        "82 180d 81 5820 9a*32",
        "82 0d 81 581f 9a*31",
        "82 0d 81 5821 9a*33",
        "82 0d 81 7820 61*32",
        "82 03 83 40 1b0000000100000000 00",
        "82 05 81 f6",
    ] {
        assert_eq!(Request::decode(&bytes(payload)), Err(S), "{payload}");
    }
    for payload in [
        "820e 80",
        "8200 80",
        "82 01 82 42 c328 190384",
        "82 01 82 62 6161 190384",
        "82 03 83 4f 5e*15 00 00",
        "82 0c 85 00 581f 00*31 01 f6 80",
        "82 0d 83 00 00 f7",
    ] {
        assert_eq!(Response::decode(&bytes(payload)), Err(S), "{payload}");
    }
}

/// 08 §1 and 01 §5.5: a list holds 4096; what a head promises beyond is not believed.
#[test]
fn lists_hold_4096() {
    let hashes = |n: usize| format!("{} {}", head(n), "5820 77*32 ".repeat(n));
    let head_of = "5820 9a*32 00 01 f6";
    let manifest = |n: usize| bytes(&format!("82 07 86 {head_of} {} 5840 00*64", hashes(n)));
    let complete = |n: usize| bytes(&format!("82 04 82 40 {} {}", head(n), "82 00 40 ".repeat(n)));
    let terms = "5820 9a*32 01 181e 00 00";
    let authorizers = |n: usize| bytes(&format!("82 08 87 {terms} {} 80", hashes(n)));
    let sigs = |n: usize| {
        bytes(&format!(
            "82 08 87 {terms} 81 5820 77*32 {} {}",
            head(n),
            "82 5820 77*32 5840 00*64 ".repeat(n)
        ))
    };
    for of_count in [
        &manifest as &dyn Fn(usize) -> Vec<u8>,
        &complete,
        &authorizers,
        &sigs,
    ] {
        assert!(Request::decode(&of_count(4096)).is_ok());
        assert_eq!(Request::decode(&of_count(4097)), Err(S));
    }
    assert_eq!(
        Request::decode(&authorizers(0)),
        Err(S),
        "someone has to be named"
    );
    assert!(Request::decode(&manifest(0)).is_ok() && Request::decode(&sigs(0)).is_ok());
    let promised = format!("82 07 86 {head_of} 9b0004000000000000");
    assert_eq!(Request::decode(&bytes(&promised)), Err(S));
    let listing = |n: usize| bytes(&format!("82 0a 81 {} {}", head(n), "82 40 00 ".repeat(n)));
    assert!(Response::decode(&listing(4096)).is_ok());
    assert_eq!(Response::decode(&listing(4097)), Err(S));
}

fn head(n: usize) -> String {
    match n {
        0..24 => format!("{:02x}", 0x80 + n),
        _ => format!("99{n:04x}"),
    }
}
