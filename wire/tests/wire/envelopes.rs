//! The envelope and its content address: 01 §4.

use drover_wire::envelope::{CT_BYTES_MAX, Envelope};
use drover_wire::frame::{FRAME_BYTES_MAX, Frame};
use drover_wire::id::{GroupId, Hash};

use crate::support::{AB, G, Row, S, ZERO, array, bytes, encoded, ours, rows, shared_rows};

fn encode(envelope: &Envelope<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    envelope.encode(&mut out);
    out
}

fn mls(epoch: u64, ct: &[u8]) -> Envelope<'_> {
    let unhashed = Envelope {
        v: 1,
        enc: 1,
        group: AB,
        epoch,
        seq: 0,
        ts_ms: 0,
        hash: ZERO,
        ct,
    };
    Envelope {
        hash: unhashed.content_hash(),
        ..unhashed
    }
}

/// W01.2
#[test]
fn content_addresses_and_whole_envelopes_hash_as_listed() {
    let check = |row: &serde_json::Value, ct: Vec<u8>, whole: &str| {
        let (v, enc) = (row.number("v") as u8, row.number("enc") as u8);
        let (group, epoch) = (GroupId(array(row.text("group"))), row.number("epoch"));
        let hash = Hash(array(row.text("hash")));
        let envelope = Envelope {
            v,
            enc,
            group,
            epoch,
            seq: 0,
            ts_ms: 0,
            hash,
            ct: &ct,
        };
        assert_eq!(envelope.content_hash(), hash, "{row}");
        let wire = encode(&envelope);
        assert_eq!(Hash::of(&[&wire]), Hash(array(whole)), "{row}");
        assert_eq!(wire.len(), envelope.encoded_len(), "{row}");
        assert_eq!(Envelope::decode(&wire), Ok(envelope), "{row}");
    };
    let mine = rows(ours("content_addresses"));
    assert_eq!(mine.len(), 10);
    for row in &mine {
        check(row, row.spelt("ct"), row.text("envelope_hash"));
    }
    for row in shared_rows("content-address.json", "cases") {
        let ct = vec![row["ct_byte"].as_u64().unwrap_or_default() as u8; row.number("ct_len") as usize];
        check(&row, ct, row.text("encoded_sha"));
    }
}

#[test]
fn the_small_example_is_80_bytes_and_travels_in_a_send() {
    let wire = encode(&mls(7, b"hhhhh"));
    let hash = "38c9c7f63cd3cefb97dd1df78b1d3567da100ee22c8cc068df69c4d114bcc809";
    assert_eq!(
        wire,
        bytes(&format!("8801015820 ab*32 0700005820 {hash} 45 68*5"))
    );
    assert_eq!(wire.len(), 80);
    assert_eq!(
        encoded(&Frame::Send { envelope: &wire }),
        [&bytes("820b815850"), &wire[..]].concat()
    );
}

/// W01.9, codec side: the ceiling on `ct` is the accept path's, and a frame has room for one byte more.
#[test]
fn the_largest_ct_fits_in_a_send() {
    for size in [CT_BYTES_MAX, CT_BYTES_MAX + 1] {
        let ct = vec![0x5a; size];
        let envelope = encode(&Envelope {
            seq: u64::MAX,
            ts_ms: u64::MAX,
            ..mls(u64::MAX, &ct)
        });
        let wire = encoded(&Frame::Send { envelope: &envelope });
        assert!(wire.len() <= FRAME_BYTES_MAX);
        let Ok(Frame::Send { envelope }) = Frame::decode(&wire) else {
            panic!("a SEND")
        };
        assert_eq!(Envelope::decode(envelope).unwrap().ct.len(), size);
    }
}

/// W01.11, codec side
#[test]
fn seq_and_ts_are_not_part_of_the_address() {
    let sent = mls(7, b"sealed");
    for (seq, ts_ms) in [(1, 0), (0, 1), (u64::MAX, u64::MAX), (24, 1 << 32)] {
        let claimed = Envelope { seq, ts_ms, ..sent };
        let wire = encode(&claimed);
        let received = Envelope::decode(&wire).unwrap();
        assert_eq!(received.content_hash(), sent.hash);
        assert_eq!(
            Envelope {
                seq: 0,
                ts_ms: 0,
                ..received
            },
            sent,
            "what is stored is the same"
        );
    }
}

/// W01.12, codec side
#[test]
fn epochs_keep_all_64_bits() {
    for epoch in [1 << 63, (1 << 63) + 1, u64::MAX - 1, u64::MAX] {
        let sent = mls(epoch, b"x");
        let pushed = encode(&Envelope {
            seq: 9,
            ts_ms: 1,
            ..sent
        });
        let received = Envelope::decode(&pushed).unwrap();
        assert_eq!(received.epoch, epoch);
        assert_eq!(received.content_hash(), received.hash);
    }
}

#[test]
fn enc_is_judged_during_decode_and_v_is_not() {
    let rest = "5820 ab*32 07 00 00 5820 00*32 41 78";
    let decode = |head: &str| Envelope::decode(&bytes(&format!("{head} {rest}"))).map(|e| e.enc);
    assert_eq!(decode("88 01 00"), Ok(0));
    assert_eq!(decode("88 01 01"), Ok(1));
    assert_eq!(
        decode("88 02 01"),
        Ok(1),
        "another version is the accept path's to refuse"
    );
    for enc in ["02", "18ff"] {
        assert_eq!(decode(&format!("88 01 {enc}")), Err(S.into()));
    }
    assert_eq!(decode("88 01 190100"), Err(G.into()), "out of range");
    assert_eq!(decode("87 01 01"), Err(G.into()));
    assert_eq!(decode("89 01 01"), Err(G.into()));
}

#[test]
fn the_head_is_everything_but_ct() {
    let ct = vec![7; 300];
    let envelope = Envelope {
        v: 255,
        enc: 1,
        group: AB,
        epoch: u64::MAX,
        seq: u64::MAX,
        ts_ms: u64::MAX,
        hash: ZERO,
        ct: &ct,
    };
    let mut head = Vec::new();
    envelope.encode_head(&mut head);
    assert_eq!(head, *envelope.head());
    assert_eq!([&head, &ct[..]].concat(), encode(&envelope));
    assert_eq!(encode(&envelope).len(), envelope.encoded_len());
}
