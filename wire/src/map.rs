//! The map form (01 §8): a second codec for the frames of the seed grammar, chosen message by message by the first
//! byte. docs/map-form.md says what this relay does where the grammar says nothing.
//!
//! A map is read twice: once through, which finds whatever is not canonical and every key that is out of order, and
//! then key by key. Hence a fault of the encoding wins over a key that does not belong, and that over a wrong value,
//! wherever in the map they are. Of PUSH and SEND only the envelope is a map to be read twice.
//!
//! | What | Code |
//! | --- | --- |
//! | any fault of 01 §1.3 but a wrong length; keys that do not ascend | `reject/noncanonical_cbor` |
//! | a key of an envelope that is unknown or missing | `reject/unknown_required_field` |
//! | a tag without a map form, a key of anything else that is unknown or missing, a wrong length, a wrong word | `reject/malformed_header` |

mod answer;
mod auth;
mod envelope;
mod fields;
mod spans;

pub use answer::{ListAnswer, ListAnswering, answer_list};
pub use auth::{AuthState, WriteMode};
pub use envelope::push_head;
pub use spans::Span;

use fields::{Fields, Refused};

use crate::cbor::{self, Reader, Writer};
use crate::envelope::Envelope;
use crate::error::{Code, Refusal};
use crate::frame::{DecodeError, FRAME_BYTES_MAX, Frame, List32, offer};
use crate::id::{GroupId, Hash, PublicKey, Signature};

/// Tags of the map form. Others the grammar has, 7 BLOB and 9 ACCESS, travel as arrays.
mod tag {
    pub(super) const CONNECT: u64 = 1;
    pub(super) const AUTH: u64 = 2;
    pub(super) const SUB: u64 = 3;
    pub(super) const RECON: u64 = 4;
    pub(super) const PUSH: u64 = 5;
    pub(super) const SEND: u64 = 6;
    pub(super) const ERROR: u64 = 8;
}

/// Whether a message is in the map form: no frame of the array form begins with such a byte.
pub const fn is_map(message: &[u8]) -> bool {
    matches!(message, [0xa2..=0xa4, ..])
}

/// One frame; slices borrow from the message it was decoded from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapFrame<'a> {
    /// The client's offer, or the relay's answer: the version it selected and no group.
    Connect {
        /// At least 1.
        version: u16,
        /// Groups the client will ask for.
        groups: List32<'a>,
    },
    /// The client's proof.
    Proof {
        /// The device that proves itself.
        device_key: PublicKey,
        /// Over the challenge, as in the array form.
        signature: Signature,
    },
    /// What the relay says before the proof and after it.
    Auth {
        /// The challenge, and after the proof the device's key.
        key: &'a [u8],
        /// Where the relay and the device stand.
        state: AuthState<'a>,
    },
    /// Several subscriptions with one cursor.
    Sub {
        /// At least one.
        groups: List32<'a>,
        /// As in the array form; absent is 0.
        from_seq: Option<u64>,
        /// Whether nothing stored is to be sent, because the client will reconcile; absent is `false`.
        no_backfill: Option<bool>,
    },
    /// RECON with the payload of the array form.
    Recon {
        /// The group.
        group: GroupId,
        /// See [`recon`](crate::recon).
        payload: &'a [u8],
    },
    /// RECON with a list of fingerprints.
    ReconList {
        /// The group.
        group: GroupId,
        /// Ascending and disjoint; see [`answer_list`].
        spans: Vec<Span>,
    },
    /// An envelope from the relay, or its acknowledgement: the accepted one, `seq` and `ts` filled in.
    Push(Envelope<'a>),
    /// An envelope from the client.
    Send(Envelope<'a>),
    /// A refusal.
    Error {
        /// Class and code.
        code: Code,
        /// The state to catch up with.
        state: Option<Hash>,
        /// Milliseconds to wait.
        retry_after_ms: Option<u64>,
    },
}

impl<'a> MapFrame<'a> {
    /// Decodes one whole message.
    ///
    /// # Errors
    /// As the module's table says; `reject/envelope_too_large` over [`FRAME_BYTES_MAX`] and
    /// `version/protocol_unsupported` for an offer of version 0, which both close the socket as in the array form.
    pub fn decode(message: &'a [u8]) -> Result<Self, DecodeError> {
        if message.len() > FRAME_BYTES_MAX {
            return Err(DecodeError::closing(Refusal::plain(Code::EnvelopeTooLarge)));
        }
        Self::read(message).map_err(|refused| refused.0)
    }

    fn read(message: &'a [u8]) -> Result<Self, Refused> {
        if !is_map(message) {
            return Err(cbor::Error::WrongType.into());
        }
        let mut r = Reader::new(message);
        let count = r.map()?;
        if r.uint() == Ok(0) {
            match (r.uint()?, count, r.uint()) {
                (tag @ (tag::PUSH | tag::SEND), 2, Ok(1)) => {
                    let envelope = envelope::read_last(r)?;
                    return Ok(match tag {
                        tag::PUSH => Self::Push(envelope),
                        _ => Self::Send(envelope),
                    });
                }
                (tag::CONNECT..=tag::SEND | tag::ERROR, ..) => {}
                // As in the array form, told before anything behind it is read.
                _ => return Err(Code::MalformedHeader.into()),
            }
        }
        let mut r = Reader::new(message);
        let mut fields = Fields::<4>::read(&mut r, Code::MalformedHeader)?;
        r.finish()?;
        let tag = fields.value(0)?.uint()?;
        let (required, optional): (&[usize], &[usize]) = match tag {
            tag::CONNECT | tag::RECON => (&[0, 1, 2], &[]),
            tag::AUTH | tag::SUB => (&[0, 1], &[2, 3]),
            _ => (&[0, 1], &[]),
        };
        fields.require(required, optional)?;
        Ok(match tag {
            tag::CONNECT => Self::Connect {
                version: offer(fields.value(1)?)?,
                groups: List32::read(fields.value(2)?)?,
            },
            tag::AUTH => auth::read(&mut fields)?,
            tag::SUB => Self::Sub {
                groups: match List32::read(fields.value(1)?)? {
                    groups if groups.is_empty() => return Err(Code::MalformedHeader.into()),
                    groups => groups,
                },
                from_seq: fields.optional(2, Reader::uint)?,
                no_backfill: fields.optional(3, Reader::bool)?,
            },
            tag::RECON => {
                let group = GroupId(*fields.value(1)?.fixed()?);
                let body = fields.value(2)?;
                if spans::are_next(body) {
                    let spans = spans::read(body)?;
                    Self::ReconList { group, spans }
                } else {
                    let payload = body.bytes()?;
                    Self::Recon { group, payload }
                }
            }
            tag::ERROR => error(fields.value(1)?)?,
            // PUSH and SEND with the keys they have were read above.
            _ => return Err(Code::MalformedHeader.into()),
        })
    }

    /// Appends the frame's only encoding to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let w = &mut Writer::new(out);
        match self {
            Self::Connect { version, groups } => {
                w.map(3).uint(0u8).uint(tag::CONNECT);
                w.uint(1u8).uint(*version).uint(2u8);
                groups.write(w);
            }
            Self::Proof {
                device_key,
                signature,
            } => {
                w.map(3).uint(0u8).uint(tag::AUTH);
                w.uint(1u8).bytes(device_key).uint(2u8).bytes(signature);
            }
            Self::Auth { key, state } => {
                w.map(3).uint(0u8).uint(tag::AUTH);
                w.uint(1u8).bytes(key).uint(3u8);
                state.write(w);
            }
            Self::Sub {
                groups,
                from_seq,
                no_backfill,
            } => {
                let count = 2 + usize::from(from_seq.is_some()) + usize::from(no_backfill.is_some());
                groups.write(w.map(count).uint(0u8).uint(tag::SUB).uint(1u8));
                if let Some(seq) = from_seq {
                    w.uint(2u8).uint(*seq);
                }
                if let Some(flag) = no_backfill {
                    w.uint(3u8).bool(*flag);
                }
            }
            Self::Recon { group, payload } => {
                w.map(3).uint(0u8).uint(tag::RECON);
                w.uint(1u8).bytes(group).uint(2u8).bytes(payload);
            }
            Self::ReconList { group, spans } => {
                w.map(3).uint(0u8).uint(tag::RECON);
                spans::write(w.uint(1u8).bytes(group).uint(2u8), spans);
            }
            Self::Push(envelope) => {
                envelope::write(w.map(2).uint(0u8).uint(tag::PUSH).uint(1u8), envelope);
            }
            Self::Send(envelope) => {
                envelope::write(w.map(2).uint(0u8).uint(tag::SEND).uint(1u8), envelope);
            }
            Self::Error {
                code,
                state,
                retry_after_ms,
            } => {
                let count = 2 + usize::from(state.is_some()) + usize::from(retry_after_ms.is_some());
                w.map(2).uint(0u8).uint(tag::ERROR).uint(1u8).map(count);
                w.uint(1u8).text(code.class().as_str());
                w.uint(2u8).text(code.as_str());
                if let Some(hash) = state {
                    w.uint(3u8).bytes(hash);
                }
                if let Some(ms) = retry_after_ms {
                    w.uint(4u8).uint(*ms);
                }
            }
        }
    }

    /// The frame's name as in 01 §8.2, for metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Connect { .. } => "CONNECT",
            Self::Proof { .. } | Self::Auth { .. } => "AUTH",
            Self::Sub { .. } => "SUB",
            Self::Recon { .. } | Self::ReconList { .. } => "RECON",
            Self::Push(_) => "PUSH",
            Self::Send(_) => "SEND",
            Self::Error { .. } => "ERROR",
        }
    }

    /// The frame of the array form a client could have sent instead: an offer (whose clock is 0), a proof, RECON with
    /// a payload. The others say more or less than one frame of the array form.
    pub fn to_frame(&self) -> Option<Frame<'a>> {
        match *self {
            Self::Connect { version, groups } => Some(Frame::Connect {
                version,
                groups,
                sent_at_ms: 0,
            }),
            Self::Proof {
                device_key,
                signature,
            } => Some(Frame::Auth {
                device_key,
                signature,
            }),
            Self::Recon { group, payload } => Some(Frame::Recon { group, payload }),
            _ => None,
        }
    }

    /// What a map session is sent instead of this frame of the relay's, if the frame alone says it: CONNECT_ACK,
    /// RECON, PUSH, ERROR. A challenge and AUTH_ACK need an [`AuthState`], SEND_ACK becomes [`MapFrame::Push`],
    /// SUB_ACK is left out; any other frame leaves as an array.
    pub fn of(frame: &Frame<'a>) -> Option<Self> {
        match *frame {
            Frame::ConnectAck { version, .. } => Some(Self::Connect {
                version,
                groups: List32::default(),
            }),
            Frame::Recon { group, payload } => Some(Self::Recon { group, payload }),
            Frame::Push { envelope } => Envelope::decode(envelope).ok().map(Self::Push),
            Frame::Error {
                code,
                retry_after_s,
                detail,
            } => Some(Self::error(code, retry_after_s, detail)),
            _ => None,
        }
    }

    /// Seconds become milliseconds; a detail that is no state hash has no place here (01 decision 8).
    fn error(code: Code, retry_after_s: u32, detail: &[u8]) -> Self {
        Self::Error {
            code,
            state: Hash::from_slice(detail),
            retry_after_ms: (retry_after_s > 0).then_some(u64::from(retry_after_s) * 1000),
        }
    }
}

/// Appends an ERROR frame.
pub fn encode_refusal(refusal: &Refusal, out: &mut Vec<u8>) {
    let frame = refusal
        .detail
        .with_bytes(|detail| MapFrame::error(refusal.code, refusal.retry_after_s, detail));
    frame.encode(out);
}

fn error<'a>(r: &mut Reader<'a>) -> Result<MapFrame<'a>, Refused> {
    let mut fields = Fields::<5>::read(r, Code::MalformedHeader)?;
    fields.require(&[1, 2], &[3, 4])?;
    let (class, word) = (fields.value(1)?.text()?, fields.value(2)?.text()?);
    Ok(MapFrame::Error {
        code: Code::lookup(class.as_bytes(), word.as_bytes()).ok_or(Code::MalformedHeader)?,
        state: fields.optional(3, |r| r.fixed().map(|bytes| Hash(*bytes)))?,
        retry_after_ms: fields.optional(4, Reader::uint)?,
    })
}
