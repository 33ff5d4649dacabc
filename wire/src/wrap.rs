//! The WRAP body (07 B): a group secret sealed for recovery, which the relay keeps and never reads back.

use crate::cbor::{self, Reader, Writer};
use crate::error::{Code, Refusal};
use crate::id::{GroupId, WrapTag};

/// The largest ciphertext of a wrap (07 B1).
pub const CT_BYTES_MAX: usize = 262_144;

/// Number of fields.
const FIELDS: usize = 4;

/// What a client publishes; `ct` borrows from the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrap<'a> {
    /// The group whose secret it is.
    pub group: GroupId,
    /// MLS epoch, full range (07 D7).
    pub epoch: u64,
    /// The slot it is kept in.
    pub tag: WrapTag,
    /// 1 to [`CT_BYTES_MAX`] bytes.
    pub ct: &'a [u8],
}

impl<'a> Wrap<'a> {
    /// Decodes a whole body: checks 2 to 4 of 07 B2, in this order.
    ///
    /// # Errors
    /// `reject/malformed_header`, whatever is wrong with the encoding, a width, or an empty `ct`;
    /// `reject/envelope_too_large` with the ceiling as detail (07 D5).
    pub fn decode(body: &'a [u8]) -> Result<Self, Refusal> {
        let wrap = Self::read(Reader::new(body)).map_err(|_| Code::MalformedHeader)?;
        match wrap.ct.len() {
            0 => Err(Code::MalformedHeader.into()),
            1..=CT_BYTES_MAX => Ok(wrap),
            _ => Err(Refusal::number(Code::EnvelopeTooLarge, CT_BYTES_MAX as u64)),
        }
    }

    fn read(mut r: Reader<'a>) -> Result<Self, cbor::Error> {
        r.array_of(FIELDS)?;
        let wrap = Self {
            group: GroupId(*r.fixed()?),
            epoch: r.uint()?,
            tag: WrapTag(*r.fixed()?),
            ct: r.bytes()?,
        };
        r.finish()?;
        Ok(wrap)
    }

    /// The canonical encoding.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.ct.len() + 84);
        Writer::new(&mut out)
            .array(FIELDS)
            .bytes(self.group)
            .uint(self.epoch)
            .bytes(self.tag)
            .bytes(self.ct);
        out
    }
}
