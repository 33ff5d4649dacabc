//! The 25 frames and what their decoding is refused with: 01 §2, §3, §6, §7.

use drover_wire::access::AccessSet;
use drover_wire::envelope::Envelope;
use drover_wire::error::{Code, Detail, Refusal};
use drover_wire::frame::{
    BytesList, BytesListBuf, FRAME_BYTES_MAX, Frame, Keys, List32, List32Buf, Wake, encode_refusal, push_head,
};
use drover_wire::id::{CallId, GroupId, Hash, PublicKey};
use drover_wire::invite::Record;
use drover_wire::{access, join, recon};

use crate::support::{AB, G, Row, S, array, bytes, encoded, ours, rows, shared_rows};

/// The code a message is refused with; the socket must stay.
fn refused(message: &[u8]) -> Code {
    let error = Frame::decode(message).expect_err("accepted");
    assert!(!error.closes);
    assert_eq!(error.refusal, Refusal::plain(error.refusal.code));
    error.refusal.code
}

/// W01.1
#[test]
fn every_sample_encodes_to_its_bytes_and_back() {
    let one_group: List32Buf = [AB].into_iter().collect();
    let packages: BytesListBuf = [b"kp1", b"kp2"].into_iter().collect();
    let sent_at_ms = 1_700_000_000_000;
    let limit = 6000u64.to_be_bytes();
    let samples = [
        Frame::Connect {
            version: 4,
            groups: List32::default(),
            sent_at_ms: 0,
        },
        Frame::Connect {
            version: 4,
            groups: one_group.as_list(),
            sent_at_ms,
        },
        Frame::ConnectAck {
            version: 4,
            server_time_ms: sent_at_ms,
            min_enc: 1,
        },
        Frame::AuthChallenge {
            challenge: &[0x11; 32],
        },
        Frame::AuthAck {
            key_packages_remaining: 20,
            write_mode: 0,
            build_digest: b"unknown",
            access_set: 1,
            min_enc: 1,
        },
        Frame::Access { body: &[] },
        Frame::Sub {
            group: AB,
            from_seq: 0,
        },
        Frame::SubAck {
            group: AB,
            head_seq: 300,
        },
        Frame::SubAck {
            group: AB,
            head_seq: 0,
        },
        Frame::Recon {
            group: AB,
            payload: &bytes("820181831b ff*8 0280"),
        },
        Frame::SendAck {
            hash: Hash([0x44; 32]),
            seq: 7,
        },
        Frame::Bye { reason: &[] },
        Frame::Error {
            code: Code::RateLimited,
            retry_after_s: 60,
            detail: &limit,
        },
        Frame::Error {
            code: Code::MalformedHeader,
            retry_after_s: 0,
            detail: &[],
        },
        Frame::Handshake {
            group: AB,
            seq: 0,
            message: &[0xde, 0xad],
        },
        Frame::Live {
            group: AB,
            epoch: 7,
            ct: &[0xbe, 0xef],
        },
        Frame::Keys(Keys::Publish {
            packages: packages.as_list(),
        }),
        Frame::Keys(Keys::Fetch {
            device: PublicKey([0xab; 32]),
            count: 1,
        }),
        Frame::Keys(Keys::None),
        Frame::Wake(Wake::Query),
    ];
    let expected = rows(ours("frames"));
    assert_eq!(expected.len(), samples.len());
    for (row, sample) in expected.iter().zip(&samples) {
        let wire = row.spelt("bytes");
        assert_eq!(encoded(sample), wire, "{row}");
        assert_eq!(Frame::decode(&wire).as_ref(), Ok(sample), "{row}");
    }
}

#[test]
fn every_frame_has_its_permanent_tag_and_name() {
    let names = "CONNECT CONNECT_ACK AUTH_CHALLENGE AUTH AUTH_ACK ACCESS SUB SUB_ACK RECON PUSH SEND SEND_ACK BLOB BYE \
                 ERROR WRAP HANDSHAKE JOIN DROP INVITE LIVE KEYS CALL MEDIA WAKE";
    for (tag, name) in (1..).zip(names.split_whitespace()) {
        let frame = crate::properties::Parts::default();
        let frame = (0..crate::properties::KINDS)
            .map(|kind| frame.frame(kind))
            .find(|frame| frame.tag() == tag);
        assert_eq!(frame.expect("a frame of each tag").name(), name);
    }
}

/// The outside of each byte-string frame, around a field that is given.
const SEND: &str = "820b81";

/// W01.5, codec side: what never appears, in every place a frame begins or has a field.
#[test]
fn forbidden_items_are_noncanonical_and_the_socket_stays() {
    let forbidden = [
        "5f4100ff",
        "9f00ff",
        "c100",
        "c24100",
        "a0",
        "60",
        "20",
        "f93c00",
        "fa3f800000",
        "fb3ff00000 00*4",
    ];
    let before = [
        "",
        "82",
        "820b",
        SEND,
        "820782",
        "8207825820 ab*32",
        "8201830480",
        "82018304",
        "82018304 81",
        "8216",
    ];
    for item in forbidden {
        for before in before {
            // Text and an open map would be legal CBOR; what follows keeps every count within the message.
            let message = bytes(&format!("{before} {item} 00*40"));
            assert_eq!(refused(&message), G, "{before} {item}");
        }
    }
    for item in ["f4", "f5", "f6", "f7", "e0"] {
        assert_eq!(refused(&bytes(&format!("{SEND} {item}"))), G);
    }
}

/// W01.6, codec side: decided before the body is read.
#[test]
fn an_unknown_tag_is_malformed_whatever_its_body() {
    for tag in ["00", "181a", "1a00011170", "1b ff*8"] {
        for body in ["80", "ff", "8100", "9f", "5b ff*8", "80 00"] {
            assert_eq!(refused(&bytes(&format!("82 {tag} {body}"))), S, "{tag} {body}");
        }
    }
    assert_eq!(
        refused(&bytes("82 1800 80")),
        G,
        "a tag that is not shortest is no tag"
    );
    assert_eq!(refused(&bytes("82 20 80")), G);
    assert_eq!(refused(&bytes("83 00 80 80")), G, "the outer count comes first");
}

/// W01.7: after a frame.
#[test]
fn a_trailing_byte_after_a_frame_is_refused() {
    for row in rows(ours("frames")) {
        let mut wire = row.spelt("bytes");
        wire.push(0);
        assert_eq!(refused(&wire), G, "{row}");
    }
}

/// W01.7: inside nested bodies.
#[test]
fn a_trailing_byte_inside_a_nested_body_is_refused() {
    let longer = |mut body: Vec<u8>| {
        body.push(0);
        body
    };
    let mut envelope = Vec::new();
    Envelope {
        v: 1,
        enc: 1,
        group: AB,
        epoch: 7,
        seq: 0,
        ts_ms: 0,
        hash: Hash([0; 32]),
        ct: b"x",
    }
    .encode(&mut envelope);
    assert!(Envelope::decode(&envelope).is_ok());
    assert_eq!(Envelope::decode(&longer(envelope)), Err(G.into()));

    let payload = bytes("820181831b ff*8 0280");
    assert!(recon::decode(&payload).is_ok());
    assert_eq!(recon::decode(&longer(payload)), Err(G));

    for row in rows(ours("access_sets")) {
        assert_eq!(AccessSet::decode(&longer(row.spelt("bytes"))), Err(S));
    }
    for row in rows(ours("access_states")) {
        assert_eq!(access::AccessState::decode(&longer(row.spelt("bytes"))), Err(S));
    }
    assert_eq!(
        Record::decode(&longer(ours("invite_record").spelt("bytes"))),
        Err(G)
    );
    for (step, row) in (0..).zip(rows(ours("join"))) {
        assert_eq!(join::Request::decode(&longer(row.spelt("request"))), None);
        assert_eq!(join::Response::decode(step, &longer(row.spelt("response"))), None);
    }
}

/// W01.8, codec side
#[test]
fn the_largest_frame_is_decoded_and_one_byte_more_closes() {
    let frame_of = |size: usize| {
        let envelope = vec![0; size - 8];
        let wire = encoded(&Frame::Send { envelope: &envelope });
        assert_eq!(wire.len(), size);
        wire
    };
    assert!(matches!(
        Frame::decode(&frame_of(FRAME_BYTES_MAX)),
        Ok(Frame::Send { .. })
    ));
    let error = Frame::decode(&frame_of(FRAME_BYTES_MAX + 1)).expect_err("one byte over");
    assert_eq!(error.refusal, Code::EnvelopeTooLarge.into());
    assert!(error.closes);
    // Before anything of the frame is looked at.
    let error = Frame::decode(&vec![0xff; FRAME_BYTES_MAX + 1]).expect_err("one byte over");
    assert_eq!((error.refusal.code, error.closes), (Code::EnvelopeTooLarge, true));
}

/// W01.10, codec side
#[test]
fn connect_versions() {
    for (spelt, version) in [("01", 1), ("04", 4), ("05", 5), ("19ffff", 65_535)] {
        let wire = bytes(&format!("820183 {spelt} 80 00"));
        let expected = Frame::Connect {
            version,
            groups: List32::default(),
            sent_at_ms: 0,
        };
        assert_eq!(Frame::decode(&wire), Ok(expected));
    }
    let error = Frame::decode(&bytes("820183 00 80 00")).expect_err("version 0");
    assert_eq!(
        error.refusal,
        Refusal::plain(Code::ProtocolUnsupported).with(Detail::Version(4))
    );
    assert!(error.closes);
    assert_eq!(
        refused(&bytes("820183 1a00010000 80 00")),
        G,
        "a range failure, not one of version"
    );
}

#[test]
fn a_selected_version_outside_1_to_4_closes() {
    for version in ["00", "05", "19ffff"] {
        let error = Frame::decode(&bytes(&format!("820283 {version} 00 01"))).expect_err(version);
        assert_eq!(
            (error.refusal.code, error.closes),
            (Code::ProtocolUnsupported, true)
        );
    }
    assert_eq!(refused(&bytes("820283 1a00010000 00 01")), G);
}

#[test]
fn only_registered_pairs_make_an_error_frame() {
    for &code in Code::ALL {
        let mut wire = Vec::new();
        encode_refusal(&Refusal::number(code, 9).after(5), &mut wire);
        let detail = 9u64.to_be_bytes();
        assert_eq!(
            Frame::decode(&wire),
            Ok(Frame::Error {
                code,
                retry_after_s: 5,
                detail: &detail
            })
        );
    }
    let pair = |class: &str, code: &str| {
        let mut wire = bytes("820f84");
        for word in [class, code] {
            wire.push(0x40 | word.len() as u8);
            wire.extend_from_slice(word.as_bytes());
        }
        wire.extend_from_slice(&bytes("0040"));
        wire
    };
    assert!(Frame::decode(&pair("quota", "rate_limited")).is_ok());
    assert_eq!(
        refused(&pair("limit", "rate_limited")),
        S,
        "a code does not move to another class"
    );
    assert_eq!(refused(&pair("quota", "rate_limite")), S);
    assert_eq!(refused(&pair("", "")), S);
}

#[test]
fn keys_forms_are_1_to_5() {
    for form in ["00", "06", "18ff"] {
        assert_eq!(
            refused(&bytes(&format!("821682 {form} ff"))),
            S,
            "before the fields are read"
        );
    }
    assert_eq!(
        refused(&bytes("821682 190100 80")),
        G,
        "out of range, not unknown"
    );
    assert_eq!(refused(&bytes("821682 05 8100")), G);
    assert_eq!(refused(&bytes("821683 05 80 00")), G);
}

#[test]
fn fixed_width_fields_take_no_other_width() {
    for width in [31, 33] {
        assert_eq!(refused(&bytes(&format!("82078258{width:02x} ab*{width} 00"))), G);
    }
    assert_eq!(refused(&bytes("821783 4f c1*15 5820 ab*32 00 01 40")), G);
}

/// W01.13, call-frames.json
#[test]
fn call_and_media_rows_decode_rebuild_and_encode() {
    let check = |wire: &[u8], fields: &serde_json::Value| {
        let (body, call_id);
        let frame = if fields["kind"].is_u64() {
            (body, call_id) = (fields.spelt("body"), CallId(array(fields.text("call_id"))));
            Frame::Call {
                call_id,
                group: GroupId(array(fields.text("group"))),
                epoch: fields.number("epoch"),
                kind: fields.number("kind") as u8,
                body: &body,
            }
        } else {
            (body, call_id) = (fields.spelt("ct"), CallId(array(fields.text("call_id"))));
            let (stream, seq) = (array(fields.text("stream")), fields.number("seq"));
            Frame::Media {
                call_id,
                stream,
                seq,
                ct: &body,
            }
        };
        assert_eq!(Frame::decode(wire), Ok(frame), "{fields}");
        assert_eq!(encoded(&frame), wire, "{fields}");
    };
    let mine = rows(ours("calls"));
    assert_eq!(mine.len(), 11);
    for row in &mine {
        check(&row.spelt("bytes"), &row["fields"]);
    }
    for mut row in shared_rows("call-frames.json", "cases") {
        // There `fill:BB:N` is what is spelt `BB*N` here.
        for field in row["fields"].as_object_mut().unwrap().values_mut() {
            if let Some(fill) = field.as_str().and_then(|text| text.strip_prefix("fill:")) {
                *field = fill.replace(':', "*").into();
            }
        }
        check(&row.spelt("encoded"), &row["fields"]);
    }
}

#[test]
fn a_push_is_its_head_and_the_envelope() {
    for size in [0, 23, 24, 255, 256, 65_535, 65_536] {
        let envelope = vec![1; size];
        let mut wire = Vec::new();
        push_head(size, &mut wire);
        wire.extend_from_slice(&envelope);
        assert_eq!(wire, encoded(&Frame::Push { envelope: &envelope }));
    }
}

#[test]
fn lists_are_read_in_place() {
    let groups: List32Buf = [GroupId([1; 32]), GroupId([2; 32])].into_iter().collect();
    let wire = encoded(&Frame::Connect {
        version: 1,
        groups: groups.as_list(),
        sent_at_ms: 0,
    });
    let Ok(Frame::Connect { groups, .. }) = Frame::decode(&wire) else {
        panic!("a CONNECT")
    };
    assert_eq!(groups.len(), 2);
    assert!(groups.iter().eq([&[1; 32], &[2; 32]]));

    let packages: BytesListBuf = [&b""[..], b"two"].into_iter().collect();
    let wire = encoded(&Frame::Keys(Keys::Bundles {
        packages: packages.as_list(),
    }));
    let Ok(Frame::Keys(Keys::Bundles { packages })) = Frame::decode(&wire) else {
        panic!("bundles")
    };
    assert_eq!(packages.len(), 2);
    assert!(packages.iter().eq([&b""[..], b"two"]));

    assert_eq!(
        List32::from_encoded(&bytes("5820 01*32 5820 02*32")),
        Some(groups)
    );
    assert_eq!(BytesList::from_encoded(&bytes("40 43 74776f")), Some(packages));
    assert_eq!(List32::from_encoded(&bytes("5820 01*31")), None);
    assert_eq!(List32::from_encoded(&bytes("581f 01*32")), None);
    assert_eq!(BytesList::from_encoded(&bytes("42 00")), None);
}
