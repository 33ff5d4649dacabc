//! What is refused in the map form, and with which code: 01 §8, decisions 5 to 7, decisions.md 39.

use drover_wire::error::Code;
use drover_wire::frame::FRAME_BYTES_MAX;
use drover_wire::id::Hash;
use drover_wire::map::{MapFrame, Span, WriteMode};
use drover_wire::recon::RANGES_MAX;

use crate::maps::{SMALL_HASH, SMALL_HEAD, refused, spelt};
use crate::support::{AB, G, Row, S, bytes, shared_rows};

const U: Code = Code::UnknownRequiredField;

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
