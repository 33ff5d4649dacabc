//! INVITE bodies (06 §11): what authorizers ask about invites, and the answers.

use crate::cbor::{Reader, Writer};
use crate::error::Code;
use crate::id::Token;

/// A decoded request. Widths of tokens and groups are as received, since a wrong one only fails to match: a revocation
/// is answered alike for any token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // 06 §11, by name.
pub enum Request<'a> {
    /// Whether this device may administer invites.
    Authority,
    /// Store this [record](crate::invite::Record), byte for byte.
    Create { record: &'a [u8] },
    /// The workspace's invites.
    List,
    /// End this invite.
    Revoke { token: &'a [u8] },
    /// A newer sealed bundle for one scope of a live invite (06 §7, D4).
    Refresh {
        token: &'a [u8],
        group: &'a [u8],
        epoch: u64,
        ct: &'a [u8],
    },
}

impl<'a> Request<'a> {
    /// Decodes a whole request.
    ///
    /// # Errors
    /// `reject/noncanonical_cbor`, or `reject/malformed_header` for an unknown number or a wrong element count.
    pub fn decode(body: &'a [u8]) -> Result<Self, Code> {
        let mut r = Reader::new(body);
        let request = match head(&mut r)? {
            (0, 1) => Self::Authority,
            (1, 2) => Self::Create { record: r.bytes()? },
            (2, 1) => Self::List,
            (3, 2) => Self::Revoke { token: r.bytes()? },
            (4, 5) => Self::Refresh {
                token: r.bytes()?,
                group: r.bytes()?,
                epoch: r.uint()?,
                ct: r.bytes()?,
            },
            _ => return Err(Code::MalformedHeader),
        };
        r.finish()?;
        Ok(request)
    }

    /// The canonical encoding.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut w = Writer::new(&mut out);
        match *self {
            Self::Authority => w.array(1).uint(0u8),
            Self::Create { record } => w.array(2).uint(1u8).bytes(record),
            Self::List => w.array(1).uint(2u8),
            Self::Revoke { token } => w.array(2).uint(3u8).bytes(token),
            Self::Refresh {
                token,
                group,
                epoch,
                ct,
            } => w
                .array(5)
                .uint(4u8)
                .bytes(token)
                .bytes(group)
                .uint(epoch)
                .bytes(ct),
        };
        out
    }
}

/// What became of an invite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It can be redeemed.
    Live,
    /// An authorizer ended it.
    Revoked,
    /// No seat is left, or it expired.
    Spent,
}

impl State {
    /// The state's word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            State::Live => "live",
            State::Revoked => "revoked",
            State::Spent => "spent",
        }
    }

    fn lookup(word: &[u8]) -> Option<Self> {
        [State::Live, State::Revoked, State::Spent]
            .into_iter()
            .find(|state| state.as_str().as_bytes() == word)
    }
}

/// One invite as a list shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Summary {
    pub token: Token,
    /// When the relay stored it, not what the record claims.
    pub issued_at_ms: u64,
    pub expires_ms: u64,
    /// Seats left.
    pub remaining: u8,
    /// Seats it was issued with.
    pub seats: u8,
    pub scope_count: u16,
    pub state: State,
}

/// Fields of a summary.
const SUMMARY_FIELDS: usize = 7;
/// Bytes of the smallest summary.
const SUMMARY_BYTES_MIN: usize = 1 + 17 + 5 + 5;

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Response<'a> {
    Authority(bool),
    Created { token: &'a [u8] },
    List(Vec<Summary>),
    Revoked { token: &'a [u8] },
    Refreshed,
}

impl<'a> Response<'a> {
    /// Decodes a whole response.
    ///
    /// # Errors
    /// As [`Request::decode`]; a state that is none is `reject/malformed_header`.
    pub fn decode(body: &'a [u8]) -> Result<Self, Code> {
        let mut r = Reader::new(body);
        let response = match head(&mut r)? {
            (0, 2) => match r.uint()? {
                flag @ 0..=1 => Self::Authority(flag == 1),
                _ => return Err(Code::MalformedHeader),
            },
            (1, 2) => Self::Created { token: r.bytes()? },
            (2, 2) => Self::List(summaries(&mut r)?),
            (3, 2) => Self::Revoked { token: r.bytes()? },
            (4, 1) => Self::Refreshed,
            _ => return Err(Code::MalformedHeader),
        };
        r.finish()?;
        Ok(response)
    }

    /// The canonical encoding.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut w = Writer::new(&mut out);
        match self {
            Self::Authority(yes) => {
                w.array(2).uint(0u8).uint(u8::from(*yes));
            }
            Self::Created { token } => {
                w.array(2).uint(1u8).bytes(token);
            }
            Self::List(summaries) => {
                w.array(2).uint(2u8).array(summaries.len());
                for summary in summaries {
                    summary.write(&mut w);
                }
            }
            Self::Revoked { token } => {
                w.array(2).uint(3u8).bytes(token);
            }
            Self::Refreshed => {
                w.array(1).uint(4u8);
            }
        }
        out
    }
}

/// The number a body begins with and its element count, which are judged together.
fn head(r: &mut Reader<'_>) -> Result<(u64, usize), Code> {
    match r.array()? {
        0 => Err(Code::MalformedHeader),
        count => Ok((r.uint()?, count)),
    }
}

fn summaries(r: &mut Reader<'_>) -> Result<Vec<Summary>, Code> {
    let count = r.array()?;
    let mut summaries = Vec::with_capacity(count.min(r.rest().len() / SUMMARY_BYTES_MIN));
    for _ in 0..count {
        summaries.push(Summary::read(r)?);
    }
    Ok(summaries)
}

impl Summary {
    fn read(r: &mut Reader<'_>) -> Result<Self, Code> {
        r.array_of(SUMMARY_FIELDS)?;
        Ok(Self {
            token: Token(*r.fixed()?),
            issued_at_ms: r.uint()?,
            expires_ms: r.uint()?,
            remaining: r.u8()?,
            seats: r.u8()?,
            scope_count: r.u16()?,
            state: State::lookup(r.bytes()?).ok_or(Code::MalformedHeader)?,
        })
    }

    fn write(&self, w: &mut Writer<&mut Vec<u8>>) {
        w.array(SUMMARY_FIELDS)
            .bytes(self.token)
            .uint(self.issued_at_ms)
            .uint(self.expires_ms)
            .uint(self.remaining)
            .uint(self.seats)
            .uint(self.scope_count)
            .bytes(self.state.as_str());
    }
}
