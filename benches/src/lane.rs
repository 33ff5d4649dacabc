//! Envelopes of one connection, made ahead of time.
//!
//! Every envelope of a lane differs from its template in sixteen bytes of ciphertext and in its hash. Only the hash is
//! expensive, so hashes are computed in advance; a SEND is then a copy of the (already masked) template and two patches.

use crate::wsframe;
use drover_wire::envelope::{ENVELOPE_VERSION, Envelope};
use drover_wire::frame::Frame;
use drover_wire::id::{GroupId, Hash};
use std::collections::VecDeque;

/// Bytes of a ciphertext that tell it from the others of its lane; shorter ones cannot be told apart.
pub(crate) const CT_BYTES_MIN: usize = 8;

/// See the module.
pub(crate) struct Lane {
    group: GroupId,
    ct: Vec<u8>,
    /// One masked WebSocket message with a SEND in it.
    template: Vec<u8>,
    /// Where the payload begins in `template`, and the hash and the counter in the payload.
    payload_at: usize,
    hash_at: usize,
    counter_at: usize,
    /// The number of the next envelope to be hashed.
    hashed: u64,
    ready: VecDeque<Hash>,
    /// The number of the next envelope to be written.
    written: u64,
    /// Hashes of those not acknowledged.
    unacknowledged: VecDeque<Hash>,
}

impl Lane {
    /// A lane of envelopes of `ct_bytes` (at least [`CT_BYTES_MIN`]) for this group.
    pub(crate) fn new(group: GroupId, ct_bytes: usize) -> Self {
        let mut ct = vec![0; ct_bytes.max(CT_BYTES_MIN)];
        getrandom::fill(&mut ct).expect("the system has random bytes");
        let mut lane = Self {
            group,
            ct,
            template: Vec::new(),
            payload_at: 0,
            hash_at: 0,
            counter_at: 0,
            hashed: 0,
            ready: VecDeque::new(),
            written: 0,
            unacknowledged: VecDeque::new(),
        };
        let mut envelope = Vec::new();
        lane.envelope(Hash([0; 32])).encode(&mut envelope);
        let mut frame = Vec::new();
        Frame::Send { envelope: &envelope }.encode(&mut frame);
        wsframe::put_message(&frame, &mut lane.template);
        lane.payload_at = lane.template.len() - frame.len();
        lane.counter_at = frame.len() - lane.ct.len();
        lane.hash_at = lane.counter_at - ct_head_bytes(lane.ct.len()) - Hash::LEN;
        lane
    }

    fn envelope(&self, hash: Hash) -> Envelope<'_> {
        Envelope {
            v: ENVELOPE_VERSION,
            enc: 1,
            group: self.group,
            epoch: 1,
            seq: 0,
            ts_ms: 0,
            hash,
            ct: &self.ct,
        }
    }

    /// Bytes of one of its SENDs on the wire; a PUSH has about as many.
    pub(crate) fn message_bytes(&self) -> usize {
        self.template.len()
    }

    /// Computes hashes until `count` are ready.
    pub(crate) fn prepare(&mut self, count: usize) {
        while self.ready.len() < count {
            self.ct[..8].copy_from_slice(&self.hashed.to_le_bytes());
            self.hashed += 1;
            let hash = self.envelope(Hash([0; 32])).content_hash();
            self.ready.push_back(hash);
        }
    }

    /// Appends the next SEND, as a masked WebSocket message; hashes it now if none was ready.
    pub(crate) fn put_next(&mut self, out: &mut Vec<u8>) {
        self.prepare(1);
        let hash = self.ready.pop_front().expect("one was just prepared");
        let start = out.len();
        out.extend_from_slice(&self.template);
        let payload = &mut out[start + self.payload_at..];
        patch(payload, self.hash_at, &hash.0);
        patch(payload, self.counter_at, &self.written.to_le_bytes());
        self.written += 1;
        self.unacknowledged.push_back(hash);
    }

    /// Whether this is the hash of the oldest SEND without a SEND_ACK, which is then no longer waited for.
    pub(crate) fn acknowledged(&mut self, hash: &[u8]) -> bool {
        self.unacknowledged
            .pop_front()
            .is_some_and(|oldest| oldest.0[..] == *hash)
    }
}

/// Bytes of the head of a byte string of this length.
fn ct_head_bytes(len: usize) -> usize {
    drover_wire::cbor::head_len(len as u64)
}

fn patch(payload: &mut [u8], at: usize, bytes: &[u8]) {
    let place = &mut payload[at..at + bytes.len()];
    place.copy_from_slice(bytes);
    wsframe::mask(place, at);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_envelope_decodes_is_unique_and_carries_its_hash() {
        for size in [8, 23, 24, 100, 256, 1024, 70_000] {
            let mut lane = Lane::new(GroupId([7; 32]), size);
            lane.prepare(2);
            let mut seen = Vec::new();
            for _ in 0..4 {
                let mut out = Vec::new();
                lane.put_next(&mut out);
                let frame = &mut out[lane.payload_at..];
                wsframe::mask(frame, 0);
                let Ok(Frame::Send { envelope }) = Frame::decode(frame) else {
                    panic!("no SEND of {size}");
                };
                let envelope = Envelope::decode(envelope).expect("an envelope");
                assert_eq!(envelope.ct.len(), size);
                assert_eq!(envelope.content_hash(), envelope.hash);
                assert!(!seen.contains(&envelope.hash));
                seen.push(envelope.hash);
            }
            assert!(lane.acknowledged(&seen[0].0));
            assert!(!lane.acknowledged(&seen[2].0), "out of order");
        }
    }
}
