//! AUTH: one shape for the challenge, the proof and the acknowledgement (01 §8.2).

use crate::cbor::{Reader, Writer};
use crate::error::Code;
use crate::id::{PublicKey, Signature};

use super::MapFrame;
use super::fields::{Fields, Refused};

/// Whether the relay takes durable writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode<'a> {
    /// It does.
    Full,
    /// It does not.
    ReadOnly {
        /// A word for why, without content.
        reason: Option<&'a str>,
    },
}

impl WriteMode<'_> {
    const fn as_str(&self) -> &'static str {
        match self {
            WriteMode::Full => "full",
            WriteMode::ReadOnly { .. } => "read_only",
        }
    }
}

/// What CONNECT_ACK and AUTH_ACK say in the array form, as far as the map form says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthState<'a> {
    /// The relay's clock, unix milliseconds.
    pub relay_time_ms: u64,
    /// Key packages on this device's shelf; 0 before the proof.
    pub key_packages_remaining: u32,
    /// Whether writes are taken, and if not why.
    pub write_mode: WriteMode<'a>,
    /// 0 plaintext is taken, 1 it is refused.
    pub min_enc: u8,
}

/// A proof has a signature, what the relay says a state; both or neither is nothing.
pub(super) fn read<'a>(fields: &mut Fields<'a, 4>) -> Result<MapFrame<'a>, Refused> {
    if fields.are(&[0, 1, 2], &[]) {
        Ok(MapFrame::Proof {
            device_key: PublicKey(*fields.value(1)?.fixed()?),
            signature: Signature(*fields.value(2)?.fixed()?),
        })
    } else if fields.are(&[0, 1, 3], &[]) {
        Ok(MapFrame::Auth {
            key: fields.value(1)?.bytes()?,
            state: AuthState::read(fields.value(3)?)?,
        })
    } else {
        Err(Code::MalformedHeader.into())
    }
}

impl<'a> AuthState<'a> {
    fn read(r: &mut Reader<'a>) -> Result<Self, Refused> {
        let mut fields = Fields::<6>::read(r, Code::MalformedHeader)?;
        fields.require(&[1, 2, 3, 4], &[5])?;
        let (relay_time_ms, key_packages_remaining) = (fields.value(1)?.uint()?, fields.value(2)?.u32()?);
        let (mode, min_enc) = (fields.value(3)?.text()?, fields.value(4)?.u8()?);
        let reason = fields.optional(5, Reader::text)?;
        let write_mode = match (mode, reason) {
            ("full", None) => WriteMode::Full,
            ("read_only", reason) => WriteMode::ReadOnly { reason },
            _ => return Err(Code::MalformedHeader.into()),
        };
        if min_enc > 1 {
            return Err(Code::MalformedHeader.into());
        }
        Ok(Self {
            relay_time_ms,
            key_packages_remaining,
            write_mode,
            min_enc,
        })
    }

    pub(super) fn write(&self, w: &mut Writer<&mut Vec<u8>>) {
        let reason = match self.write_mode {
            WriteMode::Full => None,
            WriteMode::ReadOnly { reason } => reason,
        };
        w.map(4 + usize::from(reason.is_some()));
        w.uint(1u8).uint(self.relay_time_ms);
        w.uint(2u8).uint(self.key_packages_remaining);
        w.uint(3u8).text(self.write_mode.as_str());
        w.uint(4u8).uint(self.min_enc);
        if let Some(reason) = reason {
            w.uint(5u8).text(reason);
        }
    }
}
