//! The durable unit: `[v, enc, group, epoch, seq, ts, hash, ct]` and its content address (01 §4).

use minicbor::encode::Write;

use crate::cbor::{HeadBuf, Reader, Writer, head_len};
use crate::error::Code;
use crate::frame::DecodeError;
use crate::id::{GroupId, Hash};

/// The largest ciphertext: 1 MiB (01 §7).
pub const CT_BYTES_MAX: usize = 1_048_576;
/// The only envelope version there is, whatever protocol version a session speaks (01 §4).
pub const ENVELOPE_VERSION: u8 = 1;

/// Number of fields.
const FIELDS: usize = 8;

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
    /// Ciphertext; its length is judged by the accept path.
    pub ct: &'a [u8],
}

impl<'a> Envelope<'a> {
    /// Decodes a whole envelope.
    ///
    /// # Errors
    /// `reject/noncanonical_cbor`, or `reject/malformed_header` for an `enc` other than 0 and 1.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        r.array_of(FIELDS)?;
        let v = r.u8()?;
        let enc = r.u8()?;
        if enc > 1 {
            return Err(Code::MalformedHeader.into());
        }
        let envelope = Self {
            v,
            enc,
            group: GroupId(*r.fixed()?),
            epoch: r.uint()?,
            seq: r.uint()?,
            ts_ms: r.uint()?,
            hash: Hash(*r.fixed()?),
            ct: r.bytes()?,
        };
        r.finish()?;
        Ok(envelope)
    }

    /// The content address of these fields (01 §4.1); `seq`, `ts_ms` and `hash` are not covered.
    pub fn content_hash(&self) -> Hash {
        let mut heads = HeadBuf::new();
        Writer::new(&mut heads)
            .uint(self.v)
            .uint(self.enc)
            .bytes(self.group)
            .uint(self.epoch)
            .bytes_head(self.ct.len());
        Hash::of(&[&heads, self.ct])
    }

    /// Bytes of the whole encoding.
    pub fn encoded_len(&self) -> usize {
        let integers = [
            u64::from(self.v),
            u64::from(self.enc),
            self.epoch,
            self.seq,
            self.ts_ms,
        ];
        head_len(FIELDS as u64)
            + integers.into_iter().map(head_len).sum::<usize>()
            + 2 * (head_len(32) + 32)
            + head_len(self.ct.len() as u64)
            + self.ct.len()
    }

    /// The encoding up to and including the head of `ct`, on the stack.
    pub fn head(&self) -> HeadBuf {
        let mut heads = HeadBuf::new();
        self.write_head(&mut heads);
        heads
    }

    /// Appends the encoding up to and including the head of `ct`; `ct` itself follows unchanged.
    pub fn encode_head(&self, out: &mut Vec<u8>) {
        self.write_head(out);
    }

    /// Appends the whole encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(self.encoded_len());
        self.encode_head(out);
        out.extend_from_slice(self.ct);
    }

    fn write_head(&self, out: impl Write<Error = std::convert::Infallible>) {
        Writer::new(out)
            .array(FIELDS)
            .uint(self.v)
            .uint(self.enc)
            .bytes(self.group)
            .uint(self.epoch)
            .uint(self.seq)
            .uint(self.ts_ms)
            .bytes(self.hash)
            .bytes_head(self.ct.len());
    }
}
