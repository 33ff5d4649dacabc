//! Invite records, one-time codes and JOIN bodies: 06 §2 to §4, §15.

use drover_wire::access::verify;
use drover_wire::id::{GroupId, Hash, PublicKey, Signature, Token};
use drover_wire::invite::{BUNDLE_BYTES_MAX, CAPS_MAX, Record, SCOPES_MAX, canonical_code, grouped_code};
use drover_wire::join::{Bundle, Request, Response};
use ed25519_dalek::SigningKey;

use crate::support::{G, Row, S, array, bytes, ours, rows, shared_rows};

const TOKEN: &str = "00112233445566778899aabbccddeeff";
const PK_02: &str = "8139770ea87d175f56a35466c34c7ecccb8d8a91b4ee37a25df60f5b8fc9b394";

fn example() -> Record {
    let unsigned = Record {
        token: Token(array(TOKEN)),
        workspace: [0x77; 32],
        issuer: PublicKey([0; 32]),
        issued_at_ms: 1_700_000_000_000,
        expires_ms: 1_700_000_000_000 + 7 * 86_400_000,
        uses: 1,
        code_hash: Hash(array(
            "c7b6fc098f6ffadaad1246fa8dc141cdf090147325cafc5fd7c49d82235746db",
        )),
        scopes: vec![GroupId([0x77; 32])],
        caps: vec![b"chat.read".to_vec(), b"chat.write".to_vec()],
        update_pub: [0x33; 32],
        bundles: vec![(GroupId([0x77; 32]), 1, b"sealed".to_vec())],
        sig: Signature([0; 64]),
    };
    unsigned.signed(&SigningKey::from_bytes(&[1; 32]))
}

/// 06 §15: digest, signature, size.
#[test]
fn the_record_example_is_reproduced() {
    let (row, record) = (ours("invite_record"), example());
    assert_eq!(record.encode(), row.spelt("bytes"));
    assert_eq!(record.encode().len(), 340);
    assert_eq!(Record::decode(&row.spelt("bytes")).as_ref(), Ok(&record));
    assert_eq!(
        Hash::of(&[&record.signing_input()]),
        Hash(array(row.text("digest")))
    );
    assert_eq!(record.sig, Signature(array(row.text("sig"))));
    assert!(verify(&record.issuer, &record.signing_input(), &record.sig));
}

/// 06 §11, first create check.
#[test]
fn lists_and_bundles_over_their_bounds_are_malformed_and_other_faults_noncanonical() {
    let full = Record {
        scopes: (0..=255).map(|n| GroupId([n; 32])).collect(),
        caps: (0..CAPS_MAX).map(|n| vec![n as u8]).collect(),
        bundles: vec![(GroupId([1; 32]), 1, vec![0; BUNDLE_BYTES_MAX])],
        ..example()
    };
    assert_eq!(full.scopes.len(), SCOPES_MAX);
    assert_eq!(Record::decode(&full.encode()).as_ref(), Ok(&full));
    let grow: [fn(&mut Record); 4] = [
        |record| record.scopes.push(GroupId([0; 32])),
        |record| record.caps.push(vec![]),
        |record| record.bundles = vec![(GroupId([1; 32]), 1, vec![]); SCOPES_MAX + 1],
        |record| record.bundles[0].2.push(0),
    ];
    for grow in grow {
        let mut larger = full.clone();
        grow(&mut larger);
        assert_eq!(Record::decode(&larger.encode()), Err(S));
    }
    let wire = example().encode();
    for cut in 0..wire.len() {
        assert_eq!(Record::decode(&wire[..cut]), Err(G), "{cut} bytes");
    }
}

/// W06.1 but for the hash, which is the engine's: every spelling of the vectors' codes, and what is none.
#[test]
fn a_code_is_twelve_symbols_in_any_accepted_spelling() {
    let check = |bits: u64, grouped: &str| {
        assert_eq!(grouped_code(bits), grouped);
        let symbols = grouped.replace('-', "");
        for spelling in [
            grouped.to_owned(),
            symbols.clone(),
            grouped.to_lowercase(),
            grouped.replace('-', " "),
        ] {
            assert_eq!(
                canonical_code(&spelling).as_ref().map(<[u8; 12]>::as_slice),
                Some(symbols.as_bytes())
            );
        }
    };
    for row in rows(ours("invite_codes")) {
        check(row.number("bits"), row.text("grouped"));
    }
    for row in shared_rows("invite-code.json", "cases") {
        check(row.number("bits"), row.text("grouped"));
    }
    assert_eq!(canonical_code("iIlL-oO00-1111"), Some(*b"111100001111"));
    assert_eq!(canonical_code(" 2-8T5CY4-T--QKFF "), Some(*b"28T5CY4TQKFF"));
    for bad in [
        "",
        "28T5CY4TQKF",
        "28T5CY4TQKFFF",
        "28T5CY4TQKFU",
        "28T5CY4TQKF_",
        "28T5CY4TQKFÄ",
        "28T5CY4TQKF\t",
    ] {
        assert_eq!(canonical_code(bad), None, "{bad:?}");
    }
}

#[test]
fn codes_of_sixty_bits_survive_their_display() {
    for bits in [1, 31, 32, 1 << 59, 0x0123_4567_89ab_cdef & ((1 << 60) - 1)] {
        let symbols = canonical_code(&grouped_code(bits)).unwrap();
        let value = symbols.iter().fold(0u64, |value, &symbol| {
            value << 5
                | b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
                    .iter()
                    .position(|&s| s == symbol)
                    .unwrap() as u64
        });
        assert_eq!(value, bits);
    }
}

/// 06 §15, and D4 for the step that parks.
#[test]
fn join_bodies_are_those_of_the_specification() {
    let (token, nonce, group): (Vec<u8>, _, _) = (bytes(TOKEN), [1; 16], [0x77; 32]);
    let device = bytes(PK_02);
    let receipt = Hash(array(
        "8aa97b42f1578a662e764b1dfbad77cae8b16cff032912aa66f8a6609a974e33",
    ));
    let expires_at_ms = 1_700_000_600_000;
    let bundle = Bundle {
        group: GroupId(group),
        epoch: 1,
        ct: b"sealed",
    };
    let pairs = [
        (
            Request::Reserve {
                token: &token,
                code: "28T5-CY4T-QKFF",
                nonce: &nonce,
                device: &device,
            },
            Response::Reserved { expires_at_ms },
        ),
        (
            Request::Bundles {
                token: &token,
                group: &group,
            },
            Response::Bundles(vec![bundle]),
        ),
        (
            Request::Commit {
                token: &token,
                nonce: &nonce,
                device: &device,
                group: &group,
            },
            Response::Committed { receipt },
        ),
        (
            Request::Record { token: &token },
            Response::Record { record: &[] },
        ),
        (
            Request::Park {
                token: &token,
                nonce: &nonce,
                device: &device,
            },
            Response::Parked { expires_at_ms },
        ),
    ];
    let expected = rows(ours("join"));
    assert_eq!(expected.len(), pairs.len());
    for (step, (row, (request, response))) in (0..).zip(expected.iter().zip(&pairs)) {
        assert_eq!(request.encode(), row.spelt("request"), "{row}");
        assert_eq!(
            Request::decode(&row.spelt("request")).as_ref(),
            Some(request),
            "{row}"
        );
        assert_eq!(response.encode(), row.spelt("response"), "{row}");
        assert_eq!(
            Response::decode(step, &row.spelt("response")).as_ref(),
            Some(response),
            "{row}"
        );
    }
    assert_eq!(
        Response::decode(1, &bytes("820180")),
        Some(Response::Bundles(vec![]))
    );
}

/// 06 §4.1: whatever is wrong with a body, it is not said.
#[test]
fn no_broken_join_body_is_a_request() {
    for row in rows(ours("join")) {
        let wire = row.spelt("request");
        for cut in 0..wire.len() {
            assert_eq!(Request::decode(&wire[..cut]), None);
        }
        let mut one_more = wire.clone();
        one_more[0] += 1;
        one_more.push(0x40);
        assert_eq!(Request::decode(&one_more), None, "another element count");
    }
    assert_eq!(Request::decode(&bytes("82 05 40")), None, "unknown step");
    assert_eq!(Request::decode(&bytes("82 1803 40")), None, "step not shortest");
    assert_eq!(
        Request::decode(&bytes("85 00 40 41ff 40 40")),
        None,
        "code is not UTF-8"
    );
    assert_eq!(Request::decode(&bytes("85 00 40 60 40 40")), None, "code as text");
    let any_width = Request::Reserve {
        token: &[],
        code: "",
        nonce: &[],
        device: &[],
    };
    assert_eq!(
        Request::decode(&bytes("85 00 40 40 40 40")),
        Some(any_width),
        "widths are not the codec's"
    );
}
