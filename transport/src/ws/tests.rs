//! What the codec makes of given bytes. That it agrees with tungstenite on any bytes, however they are cut, is held by
//! the fuzz target `websocket`.

use super::codec::{Codec, Failure, Item, MESSAGE_BYTES_MAX};
use bytes::{Bytes, BytesMut};
use drover_engine::Inbound;

/// What came out, and how it ended.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    items: Vec<Item>,
    failed: bool,
}

fn ours(pieces: &[Vec<u8>]) -> Seen {
    let mut codec = Codec::default();
    let mut items = Vec::new();
    for piece in pieces {
        let mut data = BytesMut::from(&piece[..]);
        loop {
            match codec.next(&mut data) {
                Ok(Some(Item::Part(_))) => {}
                Ok(Some(item)) => {
                    items.push(item);
                    if matches!(items.last(), Some(Item::Close(_))) {
                        return Seen { items, failed: false };
                    }
                }
                Ok(None) => break,
                Err(_) => return Seen { items, failed: true },
            }
        }
    }
    Seen { items, failed: false }
}

fn frame(first: u8, masked: bool, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    let flag = if masked { 0x80 } else { 0 };
    match payload.len() {
        len @ 0..126 => out.push(flag | len as u8),
        len @ 126..65_536 => {
            out.push(flag | 126);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            out.push(flag | 127);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    let key = [0xa1, 0xb2, 0xc3, 0xd4];
    if masked {
        out.extend_from_slice(&key);
        out.extend(
            payload
                .iter()
                .zip(key.iter().cycle())
                .map(|(byte, key)| byte ^ key),
        );
    } else {
        out.extend_from_slice(payload);
    }
    out
}

#[test]
fn byte_by_byte_is_the_same() {
    let stream = [
        frame(0x82, true, &[7; 300]),
        frame(0x01, true, b"te"),
        frame(0x89, true, b"ping"),
        frame(0x80, true, b"xt"),
        frame(0x82, true, b""),
        frame(0x88, true, &[0x03, 0xe8]),
    ]
    .concat();
    let pieces: Vec<Vec<u8>> = stream.iter().map(|byte| vec![*byte]).collect();
    let seen = ours(&pieces);
    assert_eq!(
        seen.items,
        [
            Item::Message(Bytes::from(vec![7; 300]).into()),
            Item::Ping(Bytes::from_static(b"ping")),
            Item::Text,
            Item::Message(Bytes::new().into()),
            Item::Close(Bytes::from_static(&[0x03, 0xe8])),
        ]
    );
}

#[test]
fn every_violation_fails_the_connection() {
    let cases = [
        ("reserved bit", frame(0xc2, true, b"x")),
        ("unknown data opcode", frame(0x83, true, b"x")),
        ("unknown control opcode", frame(0x8b, true, b"x")),
        ("unmasked", frame(0x82, false, b"x")),
        ("control above 125 bytes", frame(0x89, true, &[0; 126])),
        ("fragmented control", frame(0x09, true, b"x")),
        ("continuation of nothing", frame(0x80, true, b"x")),
        (
            "data inside a fragmented message",
            [frame(0x02, true, b"x"), frame(0x82, true, b"y")].concat(),
        ),
        ("close of one byte", frame(0x88, true, &[3])),
        ("close code 1005", frame(0x88, true, &1005_u16.to_be_bytes())),
        ("close code 1006", frame(0x88, true, &1006_u16.to_be_bytes())),
        ("close code 999", frame(0x88, true, &999_u16.to_be_bytes())),
        ("text that is not UTF-8", frame(0x81, true, &[0xff])),
    ];
    for (name, bytes) in cases {
        assert_eq!(
            ours(std::slice::from_ref(&bytes)),
            Seen {
                items: vec![],
                failed: true
            },
            "{name}"
        );
    }
}

#[test]
fn what_a_head_forbids_is_refused_before_its_payload_is_there() {
    for first in 0..=255_u8 {
        for (second, length) in [
            (0x00, 0),
            (0x7d, 0),
            (0x80, 0),
            (0xfd, 0),
            (0xfe, 125),
            (0xfe, 126),
        ] {
            let mut codec = Codec::default();
            let verdict = codec.next(&mut BytesMut::from(&[first, second, 0, length][..]));
            let legal = match first {
                0x01 | 0x02 | 0x81 | 0x82 => second & 0x80 != 0,
                0x88..=0x8a => second & 0x80 != 0 && length <= 125,
                _ => false,
            };
            assert_eq!(verdict.is_ok(), legal, "{first:#x} {second:#x} {length}");
        }
    }
}

#[test]
fn the_ceiling_is_for_messages_and_for_fragments() {
    let whole = frame(0x82, true, &vec![0; MESSAGE_BYTES_MAX]);
    assert_eq!(ours(&[whole]).items.len(), 1);

    // Refused by its head alone, before any payload is there.
    let mut codec = Codec::default();
    let mut head = BytesMut::from(&frame(0x82, true, &vec![0; MESSAGE_BYTES_MAX + 1])[..10]);
    assert_eq!(codec.next(&mut head), Err(Failure::Oversize));

    let mut codec = Codec::default();
    let half = vec![0; MESSAGE_BYTES_MAX / 2 + 1];
    let mut data = BytesMut::from(&[frame(0x02, true, &half), frame(0x80, true, &half)].concat()[..]);
    assert_eq!(codec.next(&mut data), Ok(Some(Item::Part(half.len()))));
    assert_eq!(codec.next(&mut data), Err(Failure::Oversize));
}

#[test]
fn a_declared_length_reserves_nothing() {
    let mut codec = Codec::default();
    let mut data = BytesMut::from(&frame(0x82, true, &vec![0; MESSAGE_BYTES_MAX])[..20]);
    assert_eq!(codec.next(&mut data), Ok(None));
    assert_eq!(codec.kept_bytes(), 20);
    assert!(codec.take_kept().capacity() < 256);
}

#[test]
fn a_message_is_a_slice_of_what_was_read() {
    let mut codec = Codec::default();
    let mut data = BytesMut::from(&[frame(0x82, true, b"one"), frame(0x82, true, b"two")].concat()[..]);
    let start = data.as_ptr() as usize;
    let Ok(Some(Item::Message(one))) = codec.next(&mut data) else {
        panic!("no message")
    };
    let Ok(Some(Item::Message(two))) = codec.next(&mut data) else {
        panic!("no message")
    };
    let at = |message: &Inbound| message.payload().as_ptr() as usize - start;
    assert_eq!((at(&one), at(&two)), (6, 15));
    // So is what is forwarded: its head lies where the inbound one and its key were.
    let (framed, copied) = two.into_framed();
    assert_eq!((&framed[..], copied), (&b"\x82\x03two"[..], 0));
    assert_eq!(framed.as_ptr() as usize - start, 13);
}

#[test]
fn a_message_of_any_length_has_its_outbound_head_in_front() {
    for len in [0, 1, 125, 126, 65_535, 65_536] {
        let mut codec = Codec::default();
        let mut data = BytesMut::from(&frame(0x82, true, &vec![7; len])[..]);
        let Ok(Some(Item::Message(message))) = codec.next(&mut data) else {
            panic!("no message")
        };
        let (framed, copied) = message.into_framed();
        let mut expected = Vec::new();
        drover_wire::ws::binary_head(len, &mut expected);
        expected.resize(expected.len() + len, 7);
        assert_eq!((framed, copied), (expected.into(), 0));
    }
}
