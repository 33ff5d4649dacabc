//! The WRAP body and the examples of 07.

use drover_wire::error::{Code, Refusal};
use drover_wire::frame::Frame;
use drover_wire::id::{GroupId, Hash, WrapTag};
use drover_wire::wrap::{CT_BYTES_MAX, Wrap};

use crate::support::{Row, S, bytes, encoded, ours};

const WRAP: Wrap<'_> = Wrap {
    group: GroupId([0x77; 32]),
    epoch: 4,
    tag: WrapTag([0xaa; 32]),
    ct: b"ct",
};

fn refused(body: &[u8]) -> Refusal {
    Wrap::decode(body).unwrap_err()
}

/// 07, examples: WRAP body, frame and acknowledgement.
#[test]
fn wrap_bytes_are_those_of_the_specification() {
    let (row, body) = (ours("wrap"), WRAP.encode());
    assert_eq!(body, row.spelt("body"));
    assert_eq!(Wrap::decode(&body), Ok(WRAP));
    assert_eq!(encoded(&Frame::Wrap { body: &body }), row.spelt("frame"));
    let ack = Frame::Wrap {
        body: WRAP.tag.as_bytes(),
    };
    assert_eq!(encoded(&ack), row.spelt("ack"));
}

/// 07, examples: HANDSHAKE and its content address, the shelf id of pk(01).
#[test]
fn handshake_and_shelf_addresses_are_those_of_the_specification() {
    let row = ours("handshake");
    let group = GroupId([0x77; 32]);
    let frame = Frame::Handshake {
        group,
        seq: 0,
        message: b"a commit",
    };
    assert_eq!(encoded(&frame), row.spelt("frame"));
    let address = Hash::of(&[&group.0, b"a commit"]);
    assert_eq!(address.0[..], row.spelt("address"));
    assert_eq!(Hash::of(&[&row.spelt("device")]).0[..], row.spelt("shelf"));
}

/// W07.14, but for the session, and 07 B2: widths, emptiness and every fault of the encoding are one code, size another with its ceiling.
#[test]
fn a_wrap_is_malformed_or_too_large() {
    let body = |group: &str, tag: &str, ct: &str| bytes(&format!("84 {group} 04 {tag} {ct}"));
    let (group, tag, ct) = ("5820 77*32", "5820 aa*32", "42 6374");
    assert_eq!(Wrap::decode(&body(group, tag, ct)), Ok(WRAP));
    let mut broken = vec![
        body("581f 77*31", tag, ct),
        body("5821 77*33", tag, ct),
        body("40", tag, ct),
        body(group, "581f aa*31", ct),
        body(group, "5821 aa*33", ct),
        body(group, tag, "40"),
        body(group, tag, "42 6374 00"),
        body(group, tag, "5802 6374"),
        body(group, tag, "62 6374"),
        body(group, tag, "5f 42 6374 ff"),
        bytes("83 5820 77*32 04 5820 aa*32"),
        bytes("85 5820 77*32 04 5820 aa*32 40 40"),
        bytes("84 5820 77*32 1804 5820 aa*32 42 6374"),
        bytes("84 5820 77*32 20 5820 aa*32 42 6374"),
    ];
    let whole = WRAP.encode();
    broken.extend((0..whole.len()).map(|cut| whole[..cut].to_vec()));
    for body in broken {
        assert_eq!(refused(&body), S.into(), "{body:02x?}");
    }

    let full = vec![7; CT_BYTES_MAX + 1];
    let largest = Wrap {
        ct: &full[1..],
        epoch: u64::MAX,
        ..WRAP
    };
    assert_eq!(Wrap::decode(&largest.encode()), Ok(largest));
    let over = Wrap { ct: &full, ..WRAP }.encode();
    assert_eq!(refused(&over), Refusal::number(Code::EnvelopeTooLarge, 262_144));
    let trailing = [&over[..], &[0]].concat();
    assert_eq!(
        refused(&trailing),
        S.into(),
        "the encoding is judged before the size"
    );
}
