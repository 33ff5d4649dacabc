//! The owned form of the durable unit: what is sent, received and stored.

use std::fmt;

use bytes::Bytes;
use drover_wire::envelope::{CT_BYTES_MAX, Envelope};
use drover_wire::frame::Frame;
use drover_wire::id::{GroupId, Hash};

use crate::error::Error;

/// An envelope with its content address (01 §4). The ciphertext is shared, so cloning is cheap.
#[derive(Clone, PartialEq, Eq)]
pub struct SealedEnvelope {
    group: GroupId,
    encrypted: bool,
    epoch: u64,
    hash: Hash,
    seq: u64,
    ts_ms: u64,
    ct: Bytes,
}

impl SealedEnvelope {
    /// An MLS envelope to be sent: `epoch` is the group's epoch, `ct` the ciphertext of 1 to 1 048 576 bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty or too long ciphertext.
    pub fn new(group: GroupId, epoch: u64, ct: impl Into<Bytes>) -> Result<Self, Error> {
        Self::build(group, true, epoch, ct.into())
    }

    /// An unencrypted envelope; a relay with the floor `mls` refuses it (`denied/plaintext_refused`).
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty or too long content.
    pub fn plaintext(group: GroupId, epoch: u64, content: impl Into<Bytes>) -> Result<Self, Error> {
        Self::build(group, false, epoch, content.into())
    }

    fn build(group: GroupId, encrypted: bool, epoch: u64, ct: Bytes) -> Result<Self, Error> {
        if ct.is_empty() {
            return Err(Error::Invalid("empty ciphertext"));
        }
        if ct.len() > CT_BYTES_MAX {
            return Err(Error::Invalid("ciphertext over 1 MiB"));
        }
        let mut envelope = Self {
            group,
            encrypted,
            epoch,
            hash: Hash([0; 32]),
            seq: 0,
            ts_ms: 0,
            ct,
        };
        envelope.hash = envelope.borrowed().content_hash();
        Ok(envelope)
    }

    /// From a PUSH: `payload` is the encoded envelope. Its content address is computed, never believed.
    ///
    /// # Errors
    /// [`Error::Protocol`] when the bytes don't decode, the version is unknown or the address is wrong.
    pub fn from_push(payload: &Bytes) -> Result<Self, Error> {
        let wire = Envelope::decode(payload).map_err(|_| Error::Protocol("undecodable envelope"))?;
        if wire.v != 1 {
            return Err(Error::Protocol("unknown envelope version"));
        }
        if wire.content_hash() != wire.hash {
            return Err(Error::Protocol("envelope with a wrong content address"));
        }
        Ok(Self {
            group: wire.group,
            encrypted: wire.enc == 1,
            epoch: wire.epoch,
            hash: wire.hash,
            seq: wire.seq,
            ts_ms: wire.ts_ms,
            ct: payload.slice_ref(wire.ct),
        })
    }

    fn borrowed(&self) -> Envelope<'_> {
        Envelope {
            v: 1,
            enc: self.encrypted.into(),
            group: self.group,
            epoch: self.epoch,
            seq: self.seq,
            ts_ms: self.ts_ms,
            hash: self.hash,
            ct: &self.ct,
        }
    }

    /// The group it belongs to.
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// Whether the content is MLS ciphertext.
    pub fn is_encrypted(&self) -> bool {
        self.encrypted
    }

    /// The group's epoch it was sealed in.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Content address; equal in every group member's copy, whatever route it came by.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// The relay's cursor; 0 while unknown. A cursor only: not an order of events, and gaps are normal.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The relay's receipt time in milliseconds since the Unix epoch; 0 when unknown, as for an own envelope that was
    /// acknowledged but never pushed back.
    pub fn ts_ms(&self) -> u64 {
        self.ts_ms
    }

    /// Ciphertext.
    pub fn ct(&self) -> &Bytes {
        &self.ct
    }

    /// The same envelope under the cursor the relay gave it.
    pub fn with_seq(mut self, seq: u64) -> Self {
        self.seq = seq;
        self
    }

    /// The canonical encoding with the current `seq` and `ts`.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.borrowed().encode(&mut out);
        out
    }

    /// A SEND frame; `seq` and `ts` are sent as 0 (01 §4).
    pub(crate) fn send_frame(&self) -> Bytes {
        let envelope = Envelope {
            seq: 0,
            ts_ms: 0,
            ..self.borrowed()
        };
        let mut body = Vec::new();
        envelope.encode(&mut body);
        let mut out = Vec::with_capacity(body.len() + 16);
        Frame::Send { envelope: &body }.encode(&mut out);
        out.into()
    }
}

impl fmt::Debug for SealedEnvelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SealedEnvelope({:?} seq {} epoch {} {} bytes)",
            self.hash,
            self.seq,
            self.epoch,
            self.ct.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// 01 §4.1, case "mls, small".
    #[test]
    fn sends_the_bytes_of_the_worked_example() {
        let envelope = SealedEnvelope::new(GroupId([0xab; 32]), 7, vec![0x68; 5]).expect("valid");
        assert_eq!(
            hex(&envelope.hash().0),
            "38c9c7f63cd3cefb97dd1df78b1d3567da100ee22c8cc068df69c4d114bcc809"
        );
        let frame = envelope.clone().with_seq(9).send_frame();
        assert!(hex(&frame).starts_with("820b815850880101"));
        assert_eq!(frame.len(), 85);
        let pushed = Bytes::from(envelope.clone().with_seq(9).encode());
        let back = SealedEnvelope::from_push(&pushed).expect("own encoding");
        assert_eq!(back, envelope.with_seq(9));
    }

    #[test]
    fn a_push_with_a_wrong_address_is_not_believed() {
        let envelope = SealedEnvelope::new(GroupId([1; 32]), 0, vec![1]).expect("valid");
        let mut bytes = envelope.encode();
        *bytes.last_mut().expect("not empty") ^= 1;
        assert!(SealedEnvelope::from_push(&bytes.into()).is_err());
    }

    #[test]
    fn bounds_of_the_ciphertext() {
        let group = GroupId([1; 32]);
        assert!(SealedEnvelope::new(group, 0, vec![]).is_err());
        assert!(SealedEnvelope::new(group, 0, vec![0; CT_BYTES_MAX]).is_ok());
        assert!(SealedEnvelope::new(group, 0, vec![0; CT_BYTES_MAX + 1]).is_err());
    }
}
