//! JOIN bodies (06 §4). Nothing here says why a body is refused, because the peer must not learn it.

use crate::cbor::{Reader, Writer};
use crate::id::{GroupId, Hash};

/// A decoded request; widths are as received, since a wrong one only fails to match (06 §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Request<'a> {
    Reserve {
        token: &'a [u8],
        code: &'a str,
        nonce: &'a [u8],
        device: &'a [u8],
    },
    Bundles {
        token: &'a [u8],
        group: &'a [u8],
    },
    Commit {
        token: &'a [u8],
        nonce: &'a [u8],
        device: &'a [u8],
        group: &'a [u8],
    },
    Record {
        token: &'a [u8],
    },
    Park {
        token: &'a [u8],
        nonce: &'a [u8],
        device: &'a [u8],
    },
}

impl<'a> Request<'a> {
    /// Decodes a whole request; any failure is the one generic refusal (06 §4).
    pub fn decode(body: &'a [u8]) -> Option<Self> {
        let mut r = Reader::new(body);
        let count = r.array().ok()?;
        let step = r.uint().ok()?;
        let mut bytes = || r.bytes().ok();
        let request = match (step, count) {
            (0, 5) => Self::Reserve {
                token: bytes()?,
                code: std::str::from_utf8(bytes()?).ok()?,
                nonce: bytes()?,
                device: bytes()?,
            },
            (1, 3) => Self::Bundles {
                token: bytes()?,
                group: bytes()?,
            },
            (2, 5) => Self::Commit {
                token: bytes()?,
                nonce: bytes()?,
                device: bytes()?,
                group: bytes()?,
            },
            (3, 2) => Self::Record { token: bytes()? },
            (4, 4) => Self::Park {
                token: bytes()?,
                nonce: bytes()?,
                device: bytes()?,
            },
            _ => return None,
        };
        r.finish().ok()?;
        Some(request)
    }

    /// The canonical encoding.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut w = Writer::new(&mut out);
        match *self {
            Self::Reserve {
                token,
                code,
                nonce,
                device,
            } => w
                .array(5)
                .uint(0u8)
                .bytes(token)
                .bytes(code)
                .bytes(nonce)
                .bytes(device),
            Self::Bundles { token, group } => w.array(3).uint(1u8).bytes(token).bytes(group),
            Self::Commit {
                token,
                nonce,
                device,
                group,
            } => w
                .array(5)
                .uint(2u8)
                .bytes(token)
                .bytes(nonce)
                .bytes(device)
                .bytes(group),
            Self::Record { token } => w.array(2).uint(3u8).bytes(token),
            Self::Park { token, nonce, device } => {
                w.array(4).uint(4u8).bytes(token).bytes(nonce).bytes(device)
            }
        };
        out
    }
}

/// A sealed bundle (06 §4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Bundle<'a> {
    pub group: GroupId,
    pub epoch: u64,
    pub ct: &'a [u8],
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Response<'a> {
    Reserved { expires_at_ms: u64 },
    Bundles(Vec<Bundle<'a>>),
    Committed { receipt: Hash },
    Record { record: &'a [u8] },
    Parked { expires_at_ms: u64 },
}

impl<'a> Response<'a> {
    /// Decodes the answer to a request of this step (0 to 3; 4 answers as 0).
    pub fn decode(step: u8, body: &'a [u8]) -> Option<Self> {
        let mut r = Reader::new(body);
        r.array_of(2).ok()?;
        let response = match (step, r.uint().ok()?) {
            (0, 0) => Self::Reserved {
                expires_at_ms: r.uint().ok()?,
            },
            (1, 1) => Self::Bundles(bundles(&mut r)?),
            (2, 2) => Self::Committed {
                receipt: Hash(*r.fixed().ok()?),
            },
            (3, 3) => Self::Record {
                record: r.bytes().ok()?,
            },
            (4, 0) => Self::Parked {
                expires_at_ms: r.uint().ok()?,
            },
            _ => return None,
        };
        r.finish().ok()?;
        Some(response)
    }

    /// The canonical encoding.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut w = Writer::new(&mut out);
        w.array(2);
        match self {
            Self::Reserved { expires_at_ms } | Self::Parked { expires_at_ms } => {
                w.uint(0u8).uint(*expires_at_ms);
            }
            Self::Bundles(bundles) => {
                w.uint(1u8).array(bundles.len());
                for bundle in bundles {
                    w.array(3).bytes(bundle.group).uint(bundle.epoch).bytes(bundle.ct);
                }
            }
            Self::Committed { receipt } => {
                w.uint(2u8).bytes(receipt);
            }
            Self::Record { record } => {
                w.uint(3u8).bytes(record);
            }
        }
        out
    }
}

fn bundles<'a>(r: &mut Reader<'a>) -> Option<Vec<Bundle<'a>>> {
    let count = r.array().ok()?;
    // The count is no promise: what can follow is bounded by the smallest bundle, 1 + 34 + 1 + 1 bytes.
    let mut bundles = Vec::with_capacity(count.min(r.rest().len() / 37));
    for _ in 0..count {
        r.array_of(3).ok()?;
        bundles.push(Bundle {
            group: GroupId(*r.fixed().ok()?),
            epoch: r.uint().ok()?,
            ct: r.bytes().ok()?,
        });
    }
    Some(bundles)
}
