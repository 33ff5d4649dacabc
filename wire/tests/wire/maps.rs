//! The map form: 01 §8, decisions.md 39, docs/map-form.md.

use drover_wire::envelope::{CT_BYTES_MAX, Envelope};
use drover_wire::error::{Code, Detail, Refusal};
use drover_wire::frame::{FRAME_BYTES_MAX, Frame, List32Buf};
use drover_wire::id::{GroupId, Hash, PublicKey, Signature};
use drover_wire::map::{AuthState, MapFrame, Span, WriteMode, encode_refusal, is_map, push_head};
use drover_wire::recon::{OPEN_END, RANGES_MAX};
use ed25519_dalek::SigningKey;

use crate::support::{AB, G, Row, S, array, bytes, encoded, ours, rows, shared_rows};

const U: Code = Code::UnknownRequiredField;
/// The first six keys of the specification's envelope map, and the value of the seventh.
const SMALL_HEAD: &str = "0101 0201 03 5820 ab*32 0407 0500 0600";
const SMALL_HASH: &str = "5820 38c9c7f63cd3cefb97dd1df78b1d3567da100ee22c8cc068df69c4d114bcc809";

/// "mls, small" of 01 §4.1.
fn small() -> Envelope<'static> {
    Envelope {
        v: 1,
        enc: 1,
        group: AB,
        epoch: 7,
        seq: 0,
        ts_ms: 0,
        hash: Hash(array(
            "38c9c7f63cd3cefb97dd1df78b1d3567da100ee22c8cc068df69c4d114bcc809",
        )),
        ct: b"hhhhh",
    }
}

fn spelt(frame: &MapFrame<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    frame.encode(&mut out);
    out
}

/// What bytes are refused with.
fn refused(wire: &str) -> Code {
    let error = MapFrame::decode(&bytes(wire)).expect_err(wire);
    assert!(!error.closes, "{wire}");
    assert_eq!(error.refusal, error.refusal.code.into(), "{wire}");
    error.refusal.code
}

/// W01.16, the codec's part: every frame of a session, built from its fields.
#[test]
fn map_frames_are_those_of_the_specification() {
    let device_key = PublicKey(SigningKey::from_bytes(&[1; 32]).verifying_key().to_bytes());
    let (group, other) = (AB, GroupId([0x9a; 32]));
    let (one, two): (List32Buf, List32Buf) = (
        [group].into_iter().collect(),
        [group, other].into_iter().collect(),
    );
    let (one, two) = (one.as_list(), two.as_list());
    let challenge = AuthState {
        relay_time_ms: 1_700_000_000_000,
        key_packages_remaining: 0,
        write_mode: WriteMode::Full,
        min_enc: 1,
    };
    let read_only = AuthState {
        key_packages_remaining: 20,
        write_mode: WriteMode::ReadOnly {
            reason: Some("maintenance"),
        },
        min_enc: 0,
        ..challenge
    };
    let payload = bytes("820181831bffffffffffffffff0280");
    let span = |lower, upper, byte| Span {
        lower,
        upper,
        fingerprint: Hash([byte; 32]),
    };
    let error = |code, state, retry_after_ms| MapFrame::Error {
        code,
        state,
        retry_after_ms,
    };
    let sub = |groups, from_seq, no_backfill| MapFrame::Sub {
        groups,
        from_seq,
        no_backfill,
    };
    let frames = [
        MapFrame::Connect {
            version: 4,
            groups: one,
        },
        MapFrame::Connect {
            version: 4,
            groups: Default::default(),
        },
        MapFrame::Auth {
            key: &[0x11; 32],
            state: challenge,
        },
        MapFrame::Proof {
            device_key,
            signature: Signature([7; 64]),
        },
        MapFrame::Auth {
            key: &device_key.0,
            state: read_only,
        },
        sub(one, None, None),
        sub(two, Some(5), Some(true)),
        sub(one, None, Some(false)),
        MapFrame::Recon {
            group,
            payload: &payload,
        },
        MapFrame::ReconList {
            group,
            spans: vec![span(0, 100, 0x11), span(100, OPEN_END, 0x7b)],
        },
        MapFrame::ReconList { group, spans: vec![] },
        MapFrame::Push(Envelope {
            seq: 9,
            ts_ms: 1_700_000_000_000,
            ..small()
        }),
        MapFrame::Send(small()),
        error(Code::RateLimited, None, Some(60_000)),
        error(Code::MalformedHeader, None, None),
        error(Code::GroupFrozen, Some(Hash([0x7b; 32])), None),
    ];
    let expected = rows(ours("map_frames"));
    assert_eq!(expected.len(), frames.len());
    for (row, frame) in expected.iter().zip(&frames) {
        let wire = row.spelt("bytes");
        assert_eq!(spelt(frame), wire, "{row}");
        assert!(is_map(&wire));
        assert_eq!(MapFrame::decode(&wire).as_ref(), Ok(frame), "{row}");
        assert!(row.text("name").starts_with(frame.name()), "{row}");
        // Refused as an array, as with `WEALD_RELAY_MAP_DIALECT=off`: W01.14.
        assert_eq!(Frame::decode(&wire), Err(G.into()), "{row}");
        for cut in 0..wire.len() {
            assert_eq!(
                MapFrame::decode(&wire[..cut]),
                Err(G.into()),
                "{cut} bytes of {row}"
            );
        }
        // W01.7.
        assert_eq!(
            MapFrame::decode(&[&wire[..], &[0]].concat()),
            Err(G.into()),
            "{row}"
        );
    }
}

/// 01 §8.1, W01.16: the envelope's bytes, and one content address in both forms.
#[test]
fn an_envelope_has_one_hash_in_both_forms() {
    let wire = bytes(&format!(
        "a2 0006 01 a8 {SMALL_HEAD} 07 {SMALL_HASH} 08 45 6868686868"
    ));
    assert_eq!(wire.len(), 4 + 88);
    let Ok(MapFrame::Send(envelope)) = MapFrame::decode(&wire) else {
        panic!("no SEND");
    };
    assert_eq!(envelope, small());
    assert_eq!(envelope.content_hash(), envelope.hash);
    let mut as_array = Vec::new();
    envelope.encode(&mut as_array);
    assert_eq!(Envelope::decode(&as_array), Ok(envelope));

    let largest = vec![7; CT_BYTES_MAX];
    let envelope = Envelope {
        epoch: u64::MAX,
        seq: u64::MAX,
        ts_ms: u64::MAX,
        ct: &largest,
        ..small()
    };
    let wire = spelt(&MapFrame::Push(envelope));
    assert!(wire.len() <= FRAME_BYTES_MAX);
    assert_eq!(MapFrame::decode(&wire), Ok(MapFrame::Push(envelope)));
    let mut by_head = Vec::new();
    push_head(&envelope, &mut by_head);
    by_head.extend_from_slice(envelope.ct);
    assert_eq!(by_head, wire);
}

/// 01 §8.3, W01.14: the first byte tells, and no frame of one form is one of the other.
#[test]
fn the_first_byte_tells_the_forms_apart() {
    for first in 0..=u8::MAX {
        assert_eq!(is_map(&[first, 0]), (0xa2..=0xa4).contains(&first));
    }
    assert!(!is_map(&[]));
    for row in rows(ours("frames")) {
        let wire = row.spelt("bytes");
        assert!(!is_map(&wire));
        assert_eq!(MapFrame::decode(&wire), Err(G.into()), "{row}");
    }
    for wire in [
        "",
        "a0",
        "a1 0001",
        "a5 0003 01 80 0200 03f4 0400",
        "80",
        "bf 0001 ff",
        "b8 02 0006 0100",
    ] {
        assert_eq!(refused(wire), G, "{wire}");
    }
}

/// W01.17: the keys of an envelope are closed, and their order is the encoding's.
#[test]
fn an_envelope_map_has_exactly_its_eight_keys() {
    let send = |keys: &str| refused(&format!("a2 0006 01 {keys}"));
    let ct = "08 41 78";
    let unknown = [
        format!("a9 {SMALL_HEAD} 07 {SMALL_HASH} {ct} 09 01"),
        format!("a9 00 01 {SMALL_HEAD} 07 {SMALL_HASH} {ct}"),
        format!("a9 {SMALL_HEAD} 07 {SMALL_HASH} {ct} 1bffffffffffffffff a1 00 82 f6 63 616263"),
        format!("a8 {SMALL_HEAD} 07 {SMALL_HASH} 09 41 78"),
        format!("a7 {SMALL_HEAD} 07 {SMALL_HASH}"),
        format!("a7 {SMALL_HEAD} {ct}"),
        "a0".to_owned(),
        // A key of another type, which nothing is read behind.
        format!("a9 {SMALL_HEAD} 07 {SMALL_HASH} 48 44 d0c0ffee 0901"),
        format!("a8 {SMALL_HEAD} 07 {SMALL_HASH} f6 41 78"),
        // Before any value is looked at.
        format!("a9 {SMALL_HEAD} 07 41 00 {ct} 09 01"),
    ];
    for keys in unknown {
        assert_eq!(send(&keys), U, "{keys}");
    }
    let noncanonical = [
        format!("a8 0201 0101 03 5820 ab*32 0407 0500 0600 07 {SMALL_HASH} {ct}"),
        format!("a8 {ct} 07 {SMALL_HASH} 0600 0500 0407 03 5820 ab*32 0201 0101"),
        format!("a8 0101 0101 03 5820 ab*32 0407 0500 0600 07 {SMALL_HASH} {ct}"),
        format!("a9 {SMALL_HEAD} 07 {SMALL_HASH} {ct} 08 41 78"),
        format!("a9 {SMALL_HEAD} 07 {SMALL_HASH} {ct} 05 00"),
        format!("a8 1801 01 0201 03 5820 ab*32 0407 0500 0600 07 {SMALL_HASH} {ct}"),
        format!("a8 20 01 0201 03 5820 ab*32 0407 0500 0600 07 {SMALL_HASH} {ct}"),
        format!("a8 61 31 01 0201 03 5820 ab*32 0407 0500 0600 07 {SMALL_HASH} {ct}"),
        format!("a8 0101 0201 03 5820 ab*32 041807 0500 0600 07 {SMALL_HASH} {ct}"),
        format!("a8 0101 0201 03 5820 ab*32 0407 0500 06 f93c00 07 {SMALL_HASH} {ct}"),
        format!("a8 0101 0201 03 5820 ab*32 0407 0500 06 c1 00 07 {SMALL_HASH} {ct}"),
        format!("a8 {SMALL_HEAD} 07 {SMALL_HASH} 08 5f 41 78 ff"),
        format!("a8 {SMALL_HEAD} 07 {SMALL_HASH} 08 61 78"),
        format!("a8 190100 01 0201 03 5820 ab*32 0407 0500 0600 07 {SMALL_HASH} {ct}"),
        format!("a8 01190100 0201 03 5820 ab*32 0407 0500 0600 07 {SMALL_HASH} {ct}"),
        format!("bf {SMALL_HEAD} 07 {SMALL_HASH} {ct} ff"),
        // A fault of the encoding wins over an unknown key, wherever they are.
        format!("a9 {SMALL_HEAD} 07 {SMALL_HASH} {ct} 09 1801"),
        format!("a9 {SMALL_HEAD} 07 {SMALL_HASH} {ct} 09 61 ff"),
        // A byte string, as in the array form.
        "43 880101".to_owned(),
    ];
    for keys in noncanonical {
        assert_eq!(send(&keys), G, "{keys}");
    }
    let malformed = [
        format!("a8 {SMALL_HEAD} 07 44 00112233 {ct}"),
        format!("a8 {SMALL_HEAD} 07 5821 00*33 {ct}"),
        format!("a8 0101 0201 03 581f ab*31 0407 0500 0600 07 {SMALL_HASH} {ct}"),
        format!("a8 0101 0202 03 5820 ab*32 0407 0500 0600 07 {SMALL_HASH} {ct}"),
    ];
    for keys in malformed {
        assert_eq!(send(&keys), S, "{keys}");
    }
}

/// W01.15, W01.17: what the accept path judges is decoded: an empty `ct`, another version, a wrong hash.
#[test]
fn what_the_accept_path_judges_is_decoded() {
    for (keys, ct) in [
        (format!("{SMALL_HEAD} 07 {SMALL_HASH} 08 40"), 0),
        (format!("{SMALL_HEAD} 07 5820 00*32 08 41 78"), 1),
        (
            format!("0102 0200 03 5820 ab*32 0407 0500 0600 07 {SMALL_HASH} 08 41 78"),
            1,
        ),
    ] {
        match MapFrame::decode(&bytes(&format!("a2 0006 01 a8 {keys}"))) {
            Ok(MapFrame::Send(envelope)) => assert_eq!(envelope.ct.len(), ct),
            other => panic!("{other:?}"),
        }
    }
}

/// The manifest's envelopes as maps, where it says what a relay refuses them with.
#[test]
fn envelopes_of_the_manifest_in_map_form() {
    let keys = |epoch: &str, ts: &str, hash: &str, ct: &str| {
        format!("a8 0101 0201 03 5820 ab*32 04{epoch} 0500 06{ts} 07 {hash} 08 {ct}")
    };
    let (hash, ct) = ("5820 aa*32", "44 d0c0ffee");
    // Spelt in words there: what the words mean.
    let spelt = |words: &str| match words {
        "indefinite-ct" => keys("07", "00", hash, "5f 44 d0c0ffee ff"),
        "descending-keys" => format!("a8 08 {ct} 07 {hash} 0600 0500 0407 03 5820 ab*32 0201 0101"),
        "nonshortest-epoch" => keys("1807", "00", hash, ct),
        "float-ts" => keys("07", "f93c00", hash, ct),
        raw => raw.to_owned(),
    };
    let mut seen = 0;
    for row in shared_rows("manifest.json", "vectors") {
        if !row.text("id").starts_with("env-") {
            continue;
        }
        let envelope = match (row["raw_cbor"].as_str(), row["fields"]["hash"].as_str()) {
            (Some(raw), _) => spelt(raw),
            // `kind` is no key of an envelope, whatever number it would have.
            _ if row["fields"]["kind"].is_u64() => {
                format!("a9 {} 09 18f0", &keys("07", "00", hash, ct)[3..])
            }
            (_, Some("hex:00112233")) => keys("07", "00", "44 00112233", ct),
            _ => continue,
        };
        let code = refused(&format!("a2 0006 01 {envelope}"));
        let name = format!("{}/{}", code.class().as_str(), code.as_str());
        assert_eq!(name, row.text("expect"), "{row}");
        seen += 1;
    }
    assert!(
        seen == 0 || seen == 7,
        "the manifest has changed its shape: {seen} cases"
    );
}

/// decisions.md 39, W01.17: tags and the keys of frames. W01.6 for maps: before the body is read.
#[test]
fn unknown_tags_and_keys_of_frames_are_malformed() {
    for wire in [
        // Tags: none, BLOB, ACCESS, those of arrays, the largest.
        "a2 0000 0100",
        "a2 0007 01 a4 01 5820 00*32 0200 0360 0400",
        "a2 0009 01 ab 01",
        "a2 0009 01 a0",
        "a2 000a 0100",
        "a2 0015 0180",
        "a2 001819 0180",
        "a2 001bffffffffffffffff 01 ff",
        "a2 0007",
        "a2 001863 5f",
        // Keys: no tag, an unknown one, a missing one.
        "a2 0100 0200",
        "a3 0006 01 a0 0200",
        "a3 0001 0101 0300",
        "a2 40 06 0100",
        "a3 0001 0101 40",
        "a2 0001 0280",
        "a2 0001 0101",
        "a4 0001 0101 0280 0300",
        "a2 0003 0200",
        "a3 0003 01 81 5820 ab*32 0400",
        "a3 0004 01 5820 ab*32 0300",
        "a2 0004 01 5820 ab*32",
        "a3 0008 01 a0 0200",
        "a2 0005 0200",
    ] {
        assert_eq!(refused(wire), S, "{wire}");
    }
    for wire in [
        "a2 00 41 06 0100",
        "a2 00 1806 0100",
        "a2 00 20 0100",
        "a2 0101 0006",
        "a2 0006 0006",
        "a3 0001 0280 0104",
        "a2 60 06 0100",
        "a2 0006",
        "a2 0005 01 5820 00*31",
        "a4 0003 01 81 5820 ab*32 03f4 0200",
    ] {
        assert_eq!(refused(wire), G, "{wire}");
    }
}

/// decisions.md 39: CONNECT offers versions as in the array form. W01.10 for maps.
#[test]
fn connect_offers_any_version_but_zero() {
    let connect = |version: &str| {
        MapFrame::decode(&bytes(&format!("a3 0001 01 {version} 0280"))).map(|frame| {
            let Some(Frame::Connect {
                version,
                groups,
                sent_at_ms: 0,
            }) = frame.to_frame()
            else {
                panic!("{frame:?}");
            };
            assert!(groups.is_empty());
            version
        })
    };
    for (spelt, version) in [("01", 1), ("04", 4), ("05", 5), ("19ffff", 65_535)] {
        assert_eq!(connect(spelt), Ok(version));
    }
    assert_eq!(connect("1a00010000"), Err(G.into()));
    let as_array = Frame::decode(&bytes("82 01 83 00 80 00")).unwrap_err();
    assert_eq!(connect("00"), Err(as_array));
    assert!(as_array.closes);
    assert_eq!(as_array.refusal.detail, Detail::Version(4));
    for (wire, code) in [
        ("a3 0001 0101 02 81 581f ab*31", S),
        ("a3 0001 0101 02 40", G),
        ("a3 0001 0101 02 81 00", G),
        ("a3 0001 01 40 02 80", G),
    ] {
        assert_eq!(refused(wire), code, "{wire}");
    }
}

/// 01 §2 step 1.
#[test]
fn a_message_over_the_ceiling_closes() {
    let mut wire = bytes("a3 0001 0101 0280");
    wire.resize(FRAME_BYTES_MAX, 0);
    assert_eq!(MapFrame::decode(&wire), Err(G.into()), "trailing bytes");
    wire.push(0);
    let error = MapFrame::decode(&wire).unwrap_err();
    assert_eq!((error.refusal.code, error.closes), (Code::EnvelopeTooLarge, true));
}

/// 01 decision 2: which optional belongs to which role.
#[test]
fn auth_is_a_proof_or_a_state() {
    let state = "a4 0100 0200 03 64 66756c6c 0400";
    let read_only = "69 726561645f6f6e6c79";
    for wire in [
        "a2 0002 01 5820 00*32".to_owned(),
        format!("a4 0002 01 5820 00*32 02 5840 00*64 03 {state}"),
        "a3 0002 01 581f 00*31 02 5840 00*64".to_owned(),
        "a3 0002 01 5820 00*32 02 583f 00*63".to_owned(),
        "a3 0002 0140 03 a0".to_owned(),
        "a3 0002 0140 03 a3 0100 0200 0400".to_owned(),
        "a3 0002 0140 03 a4 0100 0200 03 64 46756c6c 0400".to_owned(),
        "a3 0002 0140 03 a4 0100 0200 03 64 66756c6c 0402".to_owned(),
        "a3 0002 0140 03 a5 0100 0200 03 64 66756c6c 0400 0560".to_owned(),
        format!("a3 0002 0140 03 a5 0100 0200 03 {read_only} 0400 0660"),
    ] {
        assert_eq!(refused(&wire), S, "{wire}");
    }
    for wire in [
        "a3 0002 0140 03 a4 0100 02 1b0000000100000000 03 64 66756c6c 0400",
        "a3 0002 0140 03 a4 0100 0200 03 44 66756c6c 0400",
        "a3 0002 0140 03 a4 0200 0100 03 64 66756c6c 0400",
        "a3 0002 0140 03 a4 0100 0200 03 64 ff756c6c 0400",
        "a3 0002 01 64 66756c6c 03 a0",
    ] {
        assert_eq!(refused(wire), G, "{wire}");
    }
    let wire = bytes(&format!("a3 0002 0140 03 a4 0100 0200 03 {read_only} 0401"));
    match MapFrame::decode(&wire) {
        Ok(MapFrame::Auth { key: [], state }) => {
            assert_eq!(state.write_mode, WriteMode::ReadOnly { reason: None });
        }
        other => panic!("{other:?}"),
    }
}

/// 01 §8.2: SUB names at least one group.
#[test]
fn sub_names_groups_of_32_bytes() {
    assert_eq!(refused("a2 0003 01 80"), S);
    assert_eq!(refused("a2 0003 01 82 5820 ab*32 581f ab*31"), S);
    assert_eq!(refused("a2 0003 01 5820 ab*32"), G);
    assert_eq!(refused("a3 0003 01 81 5820 ab*32 0300"), G, "a number is no flag");
    assert_eq!(refused("a3 0003 01 81 5820 ab*32 02f6"), G);
}

/// 01 decision 3: a list of ranges is ascending, disjoint, and bounded.
#[test]
fn ranges_of_a_list_ascend() {
    let span = |lower: &str, upper: &str| format!("a3 01{lower} 02{upper} 03 5820 11*32");
    let recon = |count: &str, spans: &str| format!("a3 0004 01 5820 ab*32 02 {count} {spans}");
    let gap = recon("82", &format!("{} {}", span("00", "01"), span("05", "06")));
    assert!(MapFrame::decode(&bytes(&gap)).is_ok());
    for (count, spans) in [
        ("81", span("00", "00")),
        ("81", span("02", "01")),
        ("81", span("1bffffffffffffffff", "1bffffffffffffffff")),
        ("82", format!("{} {}", span("00", "05"), span("04", "06"))),
        ("82", format!("{} {}", span("05", "06"), span("00", "05"))),
        ("81", "a3 0100 0201 03 581f 11*31".to_owned()),
        ("81", "a2 0100 0201".to_owned()),
        ("81", "a4 0100 0201 03 5820 11*32 0400".to_owned()),
    ] {
        assert_eq!(refused(&recon(count, &spans)), S, "{spans}");
    }
    for (count, spans) in [
        ("81", "a3 0201 0100 03 5820 11*32".to_owned()),
        ("81", "40".to_owned()),
        ("82", span("00", "01")),
        ("9b0000000100000000", span("00", "01")),
    ] {
        assert_eq!(refused(&recon(count, &spans)), G, "{spans}");
    }
    let spans = |n: usize| {
        let spans = (0..n as u64).map(|lower| Span {
            lower,
            upper: lower + 1,
            fingerprint: Hash([1; 32]),
        });
        MapFrame::ReconList {
            group: AB,
            spans: spans.collect(),
        }
    };
    assert_eq!(
        MapFrame::decode(&spelt(&spans(RANGES_MAX))),
        Ok(spans(RANGES_MAX))
    );
    assert_eq!(MapFrame::decode(&spelt(&spans(RANGES_MAX + 1))), Err(S.into()));
    assert_eq!(refused("a3 0004 01 581f ab*31 02 40"), S);
    assert_eq!(
        refused("a3 0004 01 5820 ab*32 02 00"),
        G,
        "neither payload nor list"
    );
}

/// 01 decision 8, §8.2: text, milliseconds, a state hash and nothing else.
#[test]
fn refusals_turn_into_map_errors() {
    let encoded = |refusal: &Refusal| {
        let mut out = Vec::new();
        encode_refusal(refusal, &mut out);
        out
    };
    let limited = Refusal::number(Code::RateLimited, 6000).after(60);
    assert_eq!(
        encoded(&limited),
        bytes("a2000801a3016571756f7461026c726174655f6c696d697465640419ea60")
    );
    let hash = Hash([0x7b; 32]);
    let cases = [
        (Detail::None, 0, None, None),
        (
            Detail::Word("no_authorizers"),
            u32::MAX,
            None,
            Some(4_294_967_295_000),
        ),
        (Detail::Version(4), 1, None, Some(1000)),
        (Detail::Hash(hash.0), 0, Some(hash), None),
    ];
    for (detail, seconds, state, retry_after_ms) in cases {
        let refusal = Refusal::plain(Code::GroupFrozen).after(seconds).with(detail);
        let frame = MapFrame::Error {
            code: Code::GroupFrozen,
            state,
            retry_after_ms,
        };
        assert_eq!(encoded(&refusal), spelt(&frame));
    }
    for &code in Code::ALL {
        let wire = encoded(&code.into());
        let error = MapFrame::decode(&wire);
        assert_eq!(
            error,
            Ok(MapFrame::Error {
                code,
                state: None,
                retry_after_ms: None
            })
        );
    }
    for (wire, code) in [
        ("a2 0008 01 a2 01 65 71756f7461 02 61 78", S),
        ("a2 0008 01 a2 01 45 71756f7461 02 61 78", G),
        ("a2 0008 01 a1 01 65 71756f7461", S),
        (
            "a2 0008 01 a3 01 65 71756f7461 02 6c 726174655f6c696d69746564 03 41 00",
            S,
        ),
        (
            "a2 0008 01 a3 01 65 71756f7461 02 6c 726174655f6c696d69746564 05 00",
            S,
        ),
    ] {
        assert_eq!(refused(wire), code, "{wire}");
    }
}

/// Which frames of a relay have a map form by themselves, and which of a client an array form.
#[test]
fn frames_with_a_counterpart_are_translated() {
    let mut envelope = Vec::new();
    small().encode(&mut envelope);
    let payload = bytes("820181831bffffffffffffffff0280");
    let detail = [0x7b; 32];
    let ack = Frame::ConnectAck {
        version: 3,
        server_time_ms: 5,
        min_enc: 1,
    };
    let recon = Frame::Recon {
        group: AB,
        payload: &payload,
    };
    let push = Frame::Push { envelope: &envelope };
    let error = Frame::Error {
        code: Code::GroupFrozen,
        retry_after_s: 2,
        detail: &detail,
    };
    let expected = [
        (ack, "a3 0001 0103 0280"),
        (
            recon,
            "a3 0004 01 5820 ab*32 02 4f 820181831bffffffffffffffff0280",
        ),
        (
            error,
            "a2 0008 01 a4 01 66 64656e696564 02 6c 67726f75705f66726f7a656e 03 5820 7b*32 04 1907d0",
        ),
    ];
    for (frame, wire) in expected {
        assert_eq!(MapFrame::of(&frame).as_ref().map(spelt), Some(bytes(wire)));
    }
    assert_eq!(MapFrame::of(&push), Some(MapFrame::Push(small())));
    assert_eq!(MapFrame::of(&Frame::Push { envelope: &[] }), None);
    assert_eq!(
        MapFrame::of(&Frame::SubAck {
            group: AB,
            head_seq: 0
        }),
        None
    );
    assert_eq!(
        MapFrame::of(&Frame::Live {
            group: AB,
            epoch: 0,
            ct: &[]
        }),
        None
    );

    let recon_map = MapFrame::Recon {
        group: AB,
        payload: &payload,
    };
    assert_eq!(recon_map.to_frame().as_ref().map(encoded), Some(encoded(&recon)));
    let (device_key, signature) = (PublicKey([1; 32]), Signature([2; 64]));
    let proof = MapFrame::Proof {
        device_key,
        signature,
    };
    assert_eq!(
        proof.to_frame(),
        Some(Frame::Auth {
            device_key,
            signature
        })
    );
    assert_eq!(MapFrame::Send(small()).to_frame(), None);
}
