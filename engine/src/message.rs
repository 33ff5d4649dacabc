//! Outbound messages: frames behind their WebSocket heads, with the cost 02 §9 gives them.

use crate::outbox::{Outbound, cost};
use crate::session::Owed;
use bytes::Bytes;
use drover_wire::envelope::Envelope;
use drover_wire::error::Refusal;
use drover_wire::frame::{Frame, Keys, Wake, encode_refusal, push_head};
use drover_wire::id::{GroupId, Hash};
use drover_wire::map::{self, MapFrame};
use drover_wire::ws;
use std::collections::VecDeque;

/// Room for the longest WebSocket head in front of a frame whose length is known only afterwards.
const HEADROOM: usize = 10;

fn framed(payload_cost: usize, capacity: usize, encode: impl FnOnce(&mut Vec<u8>)) -> Outbound {
    let mut buffer = Vec::with_capacity(HEADROOM + capacity);
    buffer.resize(HEADROOM, 0);
    encode(&mut buffer);
    let mut head = Vec::with_capacity(HEADROOM);
    ws::binary_head(buffer.len() - HEADROOM, &mut head);
    let start = HEADROOM - head.len();
    buffer[start..HEADROOM].copy_from_slice(&head);
    Outbound {
        bytes: Bytes::from(buffer).slice(start..),
        messages: 1,
        cost: cost(payload_cost) as u32,
    }
}

/// Bytes of the frame's one variable field, as 02 §9 counts them.
fn payload(frame: &Frame<'_>) -> usize {
    match frame {
        Frame::Push { envelope: bytes }
        | Frame::Handshake { message: bytes, .. }
        | Frame::Recon { payload: bytes, .. }
        | Frame::Access { body: bytes }
        | Frame::Wrap { body: bytes }
        | Frame::Join { body: bytes }
        | Frame::Invite { body: bytes }
        | Frame::Blob { payload: bytes }
        | Frame::Live { ct: bytes, .. }
        | Frame::Call { body: bytes, .. }
        | Frame::Media { ct: bytes, .. } => bytes.len(),
        Frame::Keys(Keys::Bundles { packages } | Keys::Publish { packages }) => {
            packages.iter().map(<[u8]>::len).sum()
        }
        Frame::Wake(Wake::Capability { register_url, .. }) => register_url.len(),
        Frame::Wake(Wake::Register { handle, .. }) => handle.len(),
        _ => 0,
    }
}

/// One frame.
pub(crate) fn frame(frame: &Frame<'_>) -> Outbound {
    let bytes = payload(frame);
    framed(bytes, bytes + 64, |buffer| frame.encode(buffer))
}

/// An ERROR.
pub(crate) fn refusal(refusal: &Refusal, map: bool) -> Outbound {
    framed(0, 96, |buffer| {
        if map {
            map::encode_refusal(refusal, buffer)
        } else {
            encode_refusal(refusal, buffer)
        }
    })
}

/// A frame of the map form.
pub(crate) fn map_frame(frame: &MapFrame<'_>, payload_bytes: usize) -> Outbound {
    framed(payload_bytes, payload_bytes + 96, |buffer| frame.encode(buffer))
}

/// A stored envelope as a PUSH of the map form; it costs what it costs in the other.
pub(crate) fn map_push(envelope: &[u8]) -> Option<Outbound> {
    Some(map_frame(
        &MapFrame::Push(Envelope::decode(envelope).ok()?),
        envelope.len(),
    ))
}

/// A RECON of either form.
pub(crate) fn recon(group: GroupId, payload: &[u8], map: bool) -> Outbound {
    if map {
        map_frame(&MapFrame::Recon { group, payload }, payload.len())
    } else {
        frame(&Frame::Recon { group, payload })
    }
}

/// SUB_ACK; with head 0 also the downgrade notice.
pub(crate) fn sub_ack(group: GroupId, head_seq: u64) -> Outbound {
    frame(&Frame::SubAck { group, head_seq })
}

/// An inbound frame forwarded byte for byte.
pub(crate) fn forwarded(bytes: &[u8], payload_bytes: usize) -> Outbound {
    framed(payload_bytes, bytes.len(), |buffer| {
        buffer.extend_from_slice(bytes)
    })
}

/// Stored envelopes as PUSH frames in one run.
pub(crate) fn pushes<'a>(envelopes: impl ExactSizeIterator<Item = &'a [u8]> + Clone, map: bool) -> Outbound {
    if map {
        let (mut buffer, mut messages, mut total) = (Vec::new(), 0, 0);
        for out in envelopes.filter_map(map_push) {
            buffer.extend_from_slice(&out.bytes);
            messages += 1;
            total += out.cost;
        }
        return Outbound {
            bytes: Bytes::from(buffer),
            messages,
            cost: total,
        };
    }
    let bytes: usize = envelopes.clone().map(|e| e.len() + 20).sum();
    let mut buffer = Vec::with_capacity(bytes);
    let (mut messages, mut total) = (0, 0);
    for envelope in envelopes {
        push_heads(envelope.len(), &mut buffer);
        buffer.extend_from_slice(envelope);
        messages += 1;
        total += cost(envelope.len());
    }
    Outbound {
        bytes: Bytes::from(buffer),
        messages,
        cost: total as u32,
    }
}

/// The WebSocket head and the frame head of a PUSH around an envelope of this length.
pub(crate) fn push_heads(envelope_bytes: usize, buffer: &mut Vec<u8>) {
    // 82 0a 81, then the byte string's own head.
    let frame_bytes = 3 + bytes_head_len(envelope_bytes) + envelope_bytes;
    ws::binary_head(frame_bytes, buffer);
    push_head(envelope_bytes, buffer);
}

const fn bytes_head_len(bytes: usize) -> usize {
    match bytes {
        0..24 => 1,
        24..256 => 2,
        256..65_536 => 3,
        _ => 5,
    }
}

/// The SEND_ACKs at the front of the queue whose batch is done, at most `room`, as one run; they leave the queue.
pub(crate) fn acks(owed: &mut VecDeque<Owed>, done: u64, room: usize) -> Outbound {
    let count = owed
        .iter()
        .take(room)
        .take_while(|o| matches!(o, Owed::Ack { batch, .. } if *batch <= done))
        .count();
    let mut buffer = Vec::with_capacity(count * 48);
    for answer in owed.drain(..count) {
        if let Owed::Ack { hash, seq, .. } = answer {
            push_ack(hash, seq, &mut buffer);
        }
    }
    let bytes = Bytes::from(buffer);
    Outbound {
        bytes,
        messages: count as u32,
        cost: (count * cost(0)) as u32,
    }
}

fn push_ack(hash: Hash, seq: u64, buffer: &mut Vec<u8>) {
    let start = buffer.len();
    buffer.extend_from_slice(&[0x82, 0]); // never longer than 125 bytes
    Frame::SendAck { hash, seq }.encode(buffer);
    buffer[start + 1] = (buffer.len() - start - 2) as u8;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_a_push_match_the_frame_codec() {
        for len in [1, 23, 24, 255, 256, 65_535, 65_536, 1_048_700] {
            let envelope = vec![7; len];
            let whole = frame(&Frame::Push { envelope: &envelope });
            let run = pushes([envelope.as_slice()].into_iter(), false);
            assert_eq!(whole.bytes, run.bytes, "{len}");
            assert_eq!(whole.cost, run.cost);
        }
    }
}
