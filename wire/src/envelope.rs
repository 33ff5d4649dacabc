//! The durable unit: `[v, enc, group, epoch, seq, ts, hash, ct]` and its content address (01 §4).

use crate::frame::DecodeError;
use crate::id::{GroupId, Hash};

/// The largest ciphertext: 1 MiB (01 §7).
pub const CT_BYTES_MAX: usize = 1_048_576;

/// One envelope; `ct` borrows from the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// Envelope version; 1 is the only one there is, checked by the accept path.
    pub v: u8,
    /// 0 plaintext, 1 MLS.
    pub enc: u8,
    /// The group it belongs to.
    pub group: GroupId,
    /// MLS epoch, full range.
    pub epoch: u64,
    /// Relay-assigned cursor; ignored inbound.
    pub seq: u64,
    /// Relay receipt time in ms; ignored inbound.
    pub ts_ms: u64,
    /// The content address it claims.
    pub hash: Hash,
    /// Ciphertext.
    pub ct: &'a [u8],
}

impl<'a> Envelope<'a> {
    /// Decodes a whole envelope.
    ///
    /// # Errors
    /// `reject/noncanonical_cbor`, or `reject/malformed_header` for an `enc` other than 0 and 1.
    pub fn decode(_bytes: &'a [u8]) -> Result<Self, DecodeError> {
        todo!()
    }

    /// The content address of these fields (01 §4.1); `seq`, `ts_ms` and `hash` are not covered.
    pub fn content_hash(&self) -> Hash {
        todo!()
    }

    /// Bytes of the whole encoding.
    pub fn encoded_len(&self) -> usize {
        todo!()
    }

    /// Appends the encoding up to and including the head of `ct`; `ct` itself follows unchanged.
    pub fn encode_head(&self, _out: &mut Vec<u8>) {
        todo!()
    }

    /// Appends the whole encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.encode_head(out);
        out.extend_from_slice(self.ct);
    }
}
