//! The map form: 01 §8, decisions.md 39, docs/map-form.md.

use drover_wire::envelope::{CT_BYTES_MAX, Envelope};
use drover_wire::error::{Code, Detail, Refusal};
use drover_wire::frame::{FRAME_BYTES_MAX, Frame, List32Buf};
use drover_wire::id::{GroupId, Hash, PublicKey, Signature};
use drover_wire::map::{AuthState, MapFrame, Span, WriteMode, encode_refusal, is_map, push_head};
use drover_wire::recon::OPEN_END;
use ed25519_dalek::SigningKey;

use crate::support::{AB, G, Row, S, array, bytes, encoded, ours, rows};

/// The first six keys of the specification's envelope map, and the value of the seventh.
pub(crate) const SMALL_HEAD: &str = "0101 0201 03 5820 ab*32 0407 0500 0600";
pub(crate) const SMALL_HASH: &str = "5820 38c9c7f63cd3cefb97dd1df78b1d3567da100ee22c8cc068df69c4d114bcc809";

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

pub(crate) fn spelt(frame: &MapFrame<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    frame.encode(&mut out);
    out
}

/// What bytes are refused with.
pub(crate) fn refused(wire: &str) -> Code {
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
