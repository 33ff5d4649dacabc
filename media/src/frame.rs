//! A MEDIA frame read in place (10 §9): two constants, two heads, the exact end. The accepted language is
//! deterministic, so the bytes that were received are the bytes any encoder would write, and are forwarded as they are.

use drover_wire::id::CallId;

/// `82 1818 84 50`: array of 2, tag 24, array of 4, a byte string of 16.
const BEFORE_CALL_ID: [u8; 5] = [0x82, 0x18, 0x18, 0x84, 0x50];
/// A byte string of 4.
const BEFORE_STREAM: u8 = 0x44;
/// Where the call id begins.
const CALL_ID_AT: usize = BEFORE_CALL_ID.len();
/// Where the byte before the stream is.
const STREAM_HEAD_AT: usize = CALL_ID_AT + 16;
/// Where the head of `seq` begins: everything before it has one length.
const SEQ_AT: usize = STREAM_HEAD_AT + 5;

/// What the relay needs of a MEDIA frame. `seq` and the audio are never looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaFrame {
    /// Which call: for routing and budgets.
    pub call_id: CallId,
    /// Which of the sender's streams: for budgets.
    pub stream: [u8; 4],
    /// Bytes of sealed audio: for budgets.
    pub ct_bytes: usize,
}

impl MediaFrame {
    /// Reads the fixed layout. `None` for anything that is not a MEDIA frame in its one legal encoding, or whose audio
    /// is above 65 535 bytes: the general decoder finds out what is wrong with it.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (fixed, rest) = bytes.split_first_chunk::<SEQ_AT>()?;
        if fixed[..CALL_ID_AT] != BEFORE_CALL_ID || fixed[STREAM_HEAD_AT] != BEFORE_STREAM {
            return None;
        }
        let rest = skip_uint(rest)?;
        let (ct_bytes, ct) = match *rest {
            [head @ 0x40..=0x57, ref ct @ ..] => (usize::from(head - 0x40), ct),
            [0x58, n @ 24..=255, ref ct @ ..] => (usize::from(n), ct),
            [0x59, high @ 1..=255, low, ref ct @ ..] => (usize::from(u16::from_be_bytes([high, low])), ct),
            _ => return None,
        };
        if ct.len() != ct_bytes {
            return None;
        }
        Some(Self {
            call_id: CallId(*fixed[CALL_ID_AT..].first_chunk()?),
            stream: *fixed[STREAM_HEAD_AT + 1..].first_chunk()?,
            ct_bytes,
        })
    }
}

/// What follows an unsigned integer in its shortest form.
#[inline]
fn skip_uint(bytes: &[u8]) -> Option<&[u8]> {
    match *bytes {
        [0..=23, ref rest @ ..] | [24, 24..=255, ref rest @ ..] | [25, 1..=255, _, ref rest @ ..] => {
            Some(rest)
        }
        [26, a, b, _, _, ref rest @ ..] if a | b != 0 => Some(rest),
        [27, a, b, c, d, _, _, _, _, ref rest @ ..] if a | b | c | d != 0 => Some(rest),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drover_wire::frame::Frame;
    use proptest::prelude::*;

    fn encoded(call_id: [u8; 16], stream: [u8; 4], seq: u64, ct: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        Frame::Media {
            call_id: CallId(call_id),
            stream,
            seq,
            ct,
        }
        .encode(&mut bytes);
        bytes
    }

    /// What the general decoder makes of it, if the fast path may.
    fn decoded(bytes: &[u8]) -> Option<MediaFrame> {
        match Frame::decode(bytes) {
            Ok(Frame::Media {
                call_id, stream, ct, ..
            }) if ct.len() < 65_536 => Some(MediaFrame {
                call_id,
                stream,
                ct_bytes: ct.len(),
            }),
            _ => None,
        }
    }

    /// W10.1: every width of `seq` and of `ct`'s length, at both ends.
    #[test]
    fn every_head_is_read() {
        let seqs = [
            0,
            23,
            24,
            255,
            256,
            65_535,
            65_536,
            u64::from(u32::MAX),
            1 << 32,
            u64::MAX,
        ];
        for seq in seqs {
            for len in [0, 1, 23, 24, 255, 256, 1500, 1501, 65_535] {
                let bytes = encoded([0xc1; 16], [0, 0, 0, 1], seq, &vec![0x11; len]);
                let frame = MediaFrame::parse(&bytes).unwrap();
                assert_eq!(
                    (frame.call_id.0, frame.stream, frame.ct_bytes),
                    ([0xc1; 16], [0, 0, 0, 1], len)
                );
            }
        }
        assert_eq!(
            MediaFrame::parse(&encoded([0; 16], [0; 4], 0, &[0; 65_536])),
            None
        );
    }

    proptest! {
        /// The fast path accepts what the general decoder accepts, and reads the same in it.
        #[test]
        fn agrees_with_the_general_decoder(
            call_id: [u8; 16],
            stream: [u8; 4],
            seq: u64,
            shift in 0..64u32,
            ct in proptest::collection::vec(any::<u8>(), 0..300),
            changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..3),
            cut: proptest::sample::Index,
            cuts: bool,
            extra in proptest::collection::vec(any::<u8>(), 0..2),
        ) {
            let mut bytes = encoded(call_id, stream, seq >> shift, &ct);
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if cuts {
                bytes.truncate(cut.index(bytes.len()));
            }
            bytes.extend(extra);
            prop_assert_eq!(MediaFrame::parse(&bytes), decoded(&bytes));
        }

        /// The same for heads of every kind behind a good prefix.
        #[test]
        fn heads_agree(seq_head in proptest::collection::vec(any::<u8>(), 1..10), ct_head: [u8; 3], len in 0..300usize) {
            let mut bytes = encoded([7; 16], [8; 4], 0, &[]);
            bytes.truncate(SEQ_AT);
            bytes.extend(&seq_head);
            bytes.extend(ct_head);
            bytes.resize(bytes.len() + len, 0);
            prop_assert_eq!(MediaFrame::parse(&bytes), decoded(&bytes));
        }
    }
}
