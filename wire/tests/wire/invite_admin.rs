//! INVITE bodies and the judging of records: 06 §2, §11, §15.

use drover_wire::error::Code;
use drover_wire::frame::Frame;
use drover_wire::id::{GroupId, PublicKey, Signature, Token};
use drover_wire::invite::{BUNDLE_BYTES_MAX, CAPS_MAX, Fault, Record, SCOPES_MAX, USES_MAX};
use drover_wire::invite_admin::{Request, Response, State, Summary};
use ed25519_dalek::SigningKey;

use crate::support::{G, Row, S, bytes, encoded, ours, rows};

const TOKEN: [u8; 16] = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff_u128.to_be_bytes();
const ISSUED_MS: u64 = 1_700_000_000_000;

fn key() -> SigningKey {
    SigningKey::from_bytes(&[1; 32])
}

/// The record of 06 §15, which is fit to be stored.
fn example() -> Record {
    let record = Record::decode(&ours("invite_record").spelt("bytes")).unwrap();
    assert_eq!(record.judge(false, ISSUED_MS), Ok(()));
    record
}

/// The example with a change its issuer signed.
fn changed(change: impl FnOnce(&mut Record)) -> Record {
    let mut record = example();
    change(&mut record);
    record.signed(&key())
}

/// 06 §15; kind 4 as D4 and decisions.md 37 give it.
#[test]
fn invite_bodies_are_those_of_the_specification() {
    let (record, token) = (example().encode(), &TOKEN[..]);
    let summary = Summary {
        token: Token(TOKEN),
        issued_at_ms: ISSUED_MS,
        expires_ms: ISSUED_MS + 7 * 86_400_000,
        remaining: 1,
        seats: 1,
        scope_count: 1,
        state: State::Live,
    };
    let pairs = [
        (
            Request::Authority,
            vec![Response::Authority(true), Response::Authority(false)],
        ),
        (
            Request::Create { record: &record },
            vec![Response::Created { token }],
        ),
        (
            Request::List,
            vec![Response::List(vec![summary]), Response::List(vec![])],
        ),
        (Request::Revoke { token }, vec![Response::Revoked { token }]),
        (
            Request::Refresh {
                token,
                group: &[0x77; 32],
                epoch: 2,
                ct: b"sealed",
            },
            vec![Response::Refreshed],
        ),
    ];
    let expected = rows(ours("invite_admin"));
    assert_eq!(expected.len(), pairs.len());
    for (row, (request, responses)) in expected.iter().zip(&pairs) {
        assert_eq!(request.encode(), row.spelt("request"), "{row}");
        assert_eq!(
            Request::decode(&row.spelt("request")).as_ref(),
            Ok(request),
            "{row}"
        );
        let spelt = row["responses"].as_array().unwrap();
        assert_eq!(spelt.len(), responses.len(), "{row}");
        for (spelt, response) in spelt.iter().zip(responses) {
            let wire = bytes(spelt.as_str().unwrap());
            assert_eq!(response.encode(), wire, "{row}");
            assert_eq!(Response::decode(&wire).as_ref(), Ok(response), "{row}");
        }
    }
    for (request, frame) in [
        (Request::Authority, "821481428100"),
        (Request::List, "821481428102"),
    ] {
        let body = request.encode();
        assert_eq!(encoded(&Frame::Invite { body: &body }), bytes(frame));
    }
}

/// W06.18, the codec's part, and 06 §11: CBOR faults and unknown numbers are told apart.
#[test]
fn faults_of_an_invite_body_have_two_codes() {
    let malformed = [
        "80",
        "81 05",
        "81 01",
        "82 00 00",
        "82 02 00",
        "83 03 40 40",
        "84 04 40 40 00",
        "81 1bffffffffffffffff",
        "81 18ff",
        "82 05 5f",
    ];
    for body in malformed {
        assert_eq!(Request::decode(&bytes(body)), Err(S), "{body}");
    }
    let noncanonical = [
        "",
        "00",
        "a0",
        "f6",
        "81",
        "81 40",
        "81 1800",
        "81 20",
        "9f 00 ff",
        "82 03 60",
        "82 03 5f40ff",
        "82 01 42 00",
        "85 04 40 40 40 40",
        "81 00 00",
        "82 03 40 00",
        "81 1c",
    ];
    for body in noncanonical {
        assert_eq!(Request::decode(&bytes(body)), Err(G), "{body}");
    }
    assert_eq!(
        Request::decode(&bytes("82 03 40")),
        Ok(Request::Revoke { token: &[] }),
        "widths are not the codec's"
    );
}

/// What clients hold answers to.
#[test]
fn no_broken_invite_answer_is_a_response() {
    let list = |summary: &str| format!("82 02 81 {summary}");
    let tail = "50 00*16 00 00 01 01 01";
    for body in [
        "82 00 02".to_owned(),
        "81 00".to_owned(),
        "82 05 00".to_owned(),
        "80".to_owned(),
        list(&format!("87 {tail} 44 64656164")),
        list(&format!("87 {tail} 40")),
    ] {
        assert_eq!(Response::decode(&bytes(&body)), Err(S), "{body}");
    }
    for body in [
        list(&format!("86 {tail}")),
        list(&format!("87 {tail} 64 6c697665")),
        list("87 4f 00*15 00 00 01 01 01 44 6c697665"),
        list("87 50 00*16 00 00 190100 01 01 44 6c697665"),
        list("87 50 00*16 00 00 01 01 1a00010000 44 6c697665"),
        "82 02 9a00ffffff".to_owned(),
        "82 00 01 00".to_owned(),
    ] {
        assert_eq!(Response::decode(&bytes(&body)), Err(G), "{body}");
    }
}

/// 06 §2: each rule of shape, and that the first broken one is told.
#[test]
fn each_rule_of_shape_is_judged_by_itself() {
    let group = |n: u8| GroupId([n; 32]);
    let sealed = |n: u8| (group(n), 1, b"sealed".to_vec());
    let broken: [(Fault, Record); 18] = [
        (
            Fault::ScopeCount,
            changed(|r| {
                r.scopes = (0..=SCOPES_MAX as u64)
                    .map(|n| GroupId(std::array::from_fn(|i| n.to_be_bytes()[i % 8])))
                    .collect();
            }),
        ),
        (
            Fault::ScopeOrder,
            changed(|r| r.scopes = vec![group(0x77), group(1)]),
        ),
        (Fault::ScopeOrder, changed(|r| r.scopes = vec![group(0x77); 2])),
        (
            Fault::CapCount,
            changed(|r| r.caps = vec![b"admit".to_vec(); CAPS_MAX + 1]),
        ),
        (Fault::CapOrder, changed(|r| r.caps.reverse())),
        (Fault::CapOrder, changed(|r| r.caps = vec![b"admit".to_vec(); 2])),
        (Fault::UnknownCap, changed(|r| r.caps = vec![b"chat".to_vec()])),
        (Fault::UnknownCap, changed(|r| r.caps = vec![vec![]])),
        (Fault::Uses, changed(|r| r.uses = 0)),
        (Fault::Uses, changed(|r| r.uses = USES_MAX + 1)),
        (Fault::Lifetime, changed(|r| r.expires_ms = r.issued_at_ms)),
        (Fault::BundlePairing, changed(|r| r.bundles.clear())),
        (Fault::BundlePairing, changed(|r| r.bundles = vec![sealed(0x78)])),
        (Fault::BundlePairing, changed(|r| r.bundles.push(sealed(0x78)))),
        (
            Fault::BundlePairing,
            changed(|r| {
                r.scopes = vec![group(0x77), group(0x78)];
                r.bundles = vec![sealed(0x78), sealed(0x77)];
            }),
        ),
        (Fault::BundleSize, changed(|r| r.bundles[0].2.clear())),
        (
            Fault::BundleSize,
            changed(|r| r.bundles[0].2 = vec![0; BUNDLE_BYTES_MAX + 1]),
        ),
        // Seats come before bundles.
        (
            Fault::Uses,
            changed(|r| {
                r.uses = 0;
                r.bundles.clear();
            }),
        ),
    ];
    for (fault, record) in broken {
        assert_eq!(record.judge(false, ISSUED_MS), Err(fault));
        assert_eq!(record.check_shape(), Err(fault));
        assert_eq!(fault.code(), S, "{fault}");
    }
    let widest = changed(|r| {
        r.scopes = (0..=255).map(group).collect();
        r.bundles = (0..=255).map(|n| (group(n), u64::MAX, vec![0])).collect();
        r.bundles[0].2 = vec![0; BUNDLE_BYTES_MAX];
        r.caps = (0..CAPS_MAX)
            .map(|n| format!("ticket.transition:{n:02}->x").into_bytes())
            .collect();
        r.uses = USES_MAX;
        r.expires_ms = r.issued_at_ms + 1;
    });
    assert_eq!(widest.judge(false, ISSUED_MS), Ok(()));
}

/// 06 §2, the vocabulary.
#[test]
fn capabilities_are_a_closed_vocabulary() {
    let with = |cap: &[u8]| changed(|r| r.caps = vec![cap.to_vec()]).check_shape();
    for cap in [
        "chat.read",
        "chat.write",
        "ticket.read",
        "ticket.write",
        "ticket.create",
        "git.patch.propose",
        "media.write",
        "admit",
        "roster.revoke",
        "admin",
        "ticket.transition:open->done",
        "ticket.transition:a->b->c",
        "ticket.transition:ö->é",
    ] {
        assert_eq!(with(cap.as_bytes()), Ok(()), "{cap}");
    }
    for cap in [
        "Admin",
        "admin ",
        "chat.*",
        "ticket.transition",
        "ticket.transition:",
        "ticket.transition:->",
        "ticket.transition:a->",
        "ticket.transition:->b",
        "ticket.transition:ab",
        "ticket.transition:a-b",
    ] {
        assert_eq!(with(cap.as_bytes()), Err(Fault::UnknownCap), "{cap}");
    }
    assert_eq!(with(b"ticket.transition:a->\xff"), Err(Fault::UnknownCap));
}

/// 06 §2 and §11 D3: signature, root rule, expiry come in this order and have codes of their own. W06.17 in part: a
/// record signed by another key, a missing root scope.
#[test]
fn signature_root_rule_and_expiry_follow_in_this_order() {
    let now_ms = example().expires_ms;
    assert_eq!(example().judge(false, now_ms - 1), Ok(()));
    assert_eq!(example().judge(false, now_ms), Err(Fault::Expired));

    let mut forged = changed(|r| r.workspace = [1; 32]);
    assert_eq!(
        forged.judge(false, now_ms),
        Err(Fault::RootScope),
        "before expiry"
    );
    forged.issuer = PublicKey(SigningKey::from_bytes(&[2; 32]).verifying_key().to_bytes());
    assert_eq!(
        forged.judge(false, now_ms),
        Err(Fault::Signature),
        "before the root rule"
    );
    let mut unsigned = example();
    unsigned.sig = Signature([0; 64]);
    assert_eq!(unsigned.judge(false, 0), Err(Fault::Signature));
    unsigned.uses = 0;
    assert_eq!(unsigned.judge(false, 0), Err(Fault::Uses), "shape is first");

    assert_eq!(Fault::Signature.code(), Code::NoncanonicalCbor);
    for fault in [
        Fault::RootScope,
        Fault::Scopeless,
        Fault::BootstrapCaps,
        Fault::Expired,
    ] {
        assert_eq!(fault.code(), Code::WriterNotInAccessSet);
    }
}

/// 06 §2: only the relay's own invite has no scope, and then it admits an admin and nothing else. W06.20 in part.
#[test]
fn only_the_bootstrap_invite_is_scopeless() {
    let scopeless = |caps: &[&str]| {
        changed(|r| {
            r.scopes.clear();
            r.bundles.clear();
            r.caps = caps.iter().map(|cap| cap.as_bytes().to_vec()).collect();
        })
    };
    let admin = scopeless(&["admin"]);
    assert_eq!(admin.judge(true, ISSUED_MS), Ok(()));
    assert_eq!(admin.judge(false, ISSUED_MS), Err(Fault::Scopeless));
    for caps in [&[][..], &["admit"], &["admin", "admit"]] {
        assert_eq!(scopeless(caps).judge(true, ISSUED_MS), Err(Fault::BootstrapCaps));
        assert_eq!(scopeless(caps).judge(false, ISSUED_MS), Err(Fault::Scopeless));
    }
}
