//! BLOB payloads (08 §1 to §3): `[form, body]`, thirteen forms each way.
//!
//! Whatever is wrong with a payload has one code, `reject/malformed_header`, because a form that is not known is
//! refused with it too and clients then fall back (08 §1).

mod response;

pub use response::{Position, Response};

use crate::access::LIST_MAX;
use crate::cbor::{Reader, Writer};
use crate::error::Code;
use crate::id::{GroupId, Hash};
use crate::retention::{Control, Destruction, Manifest, Policy, Resolution};

/// Part of a multipart upload: its number, one-based, and the store's tag for it, which nobody reads.
pub type Part<'a> = (u32, &'a [u8]);

/// Bytes of the smallest [`Part`].
const PART_BYTES_MIN: usize = 3;

/// A decoded request. `workspace` is carried and ignored, the group decides (08 §2); widths of sessions are as
/// received.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // 08 §2, by name.
pub enum Request<'a> {
    Put {
        workspace: &'a [u8],
        group: GroupId,
        hash: Hash,
        ciphertext_bytes: u64,
    },
    Get {
        workspace: &'a [u8],
        group: GroupId,
        hash: Hash,
    },
    MultipartPart {
        session: &'a [u8],
        part_number: u32,
        part_bytes: u64,
    },
    MultipartComplete {
        session: &'a [u8],
        /// At most 4096, in the client's order.
        parts: Vec<Part<'a>>,
    },
    MultipartAbort {
        session: &'a [u8],
    },
    Control(Control),
    Manifest(Manifest),
    Policy(Policy),
    Destruction(Destruction),
    List {
        workspace: &'a [u8],
        group: GroupId,
    },
    Resolution(Resolution),
    Position {
        group: GroupId,
    },
    Quota {
        group: GroupId,
    },
}

impl<'a> Request<'a> {
    /// Decodes a whole payload.
    ///
    /// # Errors
    /// `reject/malformed_header`, whatever is wrong.
    pub fn decode(payload: &'a [u8]) -> Result<Self, Code> {
        Self::read(Reader::new(payload)).map_err(|_| Code::MalformedHeader)
    }

    /// The form's number, 1 to 13.
    pub const fn form(&self) -> u8 {
        match self {
            Self::Put { .. } => 1,
            Self::Get { .. } => 2,
            Self::MultipartPart { .. } => 3,
            Self::MultipartComplete { .. } => 4,
            Self::MultipartAbort { .. } => 5,
            Self::Control(_) => 6,
            Self::Manifest(_) => 7,
            Self::Policy(_) => 8,
            Self::Destruction(_) => 9,
            Self::List { .. } => 10,
            Self::Resolution(_) => 11,
            Self::Position { .. } => 12,
            Self::Quota { .. } => 13,
        }
    }

    fn read(mut r: Reader<'a>) -> Result<Self, Code> {
        r.array_of(2)?;
        let request = match r.uint()? {
            1 => {
                r.array_of(4)?;
                Self::Put {
                    workspace: r.bytes()?,
                    group: GroupId(*r.fixed()?),
                    hash: Hash(*r.fixed()?),
                    ciphertext_bytes: r.uint()?,
                }
            }
            2 => {
                r.array_of(3)?;
                Self::Get {
                    workspace: r.bytes()?,
                    group: GroupId(*r.fixed()?),
                    hash: Hash(*r.fixed()?),
                }
            }
            3 => {
                r.array_of(3)?;
                Self::MultipartPart {
                    session: r.bytes()?,
                    part_number: r.u32()?,
                    part_bytes: r.uint()?,
                }
            }
            4 => {
                r.array_of(2)?;
                Self::MultipartComplete {
                    session: r.bytes()?,
                    parts: parts(&mut r)?,
                }
            }
            5 => {
                r.array_of(1)?;
                Self::MultipartAbort { session: r.bytes()? }
            }
            6 => Self::Control(Control::read(&mut r)?),
            7 => Self::Manifest(Manifest::read(&mut r)?),
            8 => Self::Policy(Policy::read(&mut r)?),
            9 => Self::Destruction(Destruction::read(&mut r)?),
            10 => {
                r.array_of(2)?;
                Self::List {
                    workspace: r.bytes()?,
                    group: GroupId(*r.fixed()?),
                }
            }
            11 => Self::Resolution(Resolution::read(&mut r)?),
            form @ (12 | 13) => {
                r.array_of(1)?;
                let group = GroupId(*r.fixed()?);
                match form {
                    12 => Self::Position { group },
                    _ => Self::Quota { group },
                }
            }
            _ => return Err(Code::MalformedHeader),
        };
        r.finish()?;
        Ok(request)
    }

    /// The canonical encoding.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let w = &mut Writer::new(&mut out);
        w.array(2).uint(self.form());
        match self {
            Self::Put {
                workspace,
                group,
                hash,
                ciphertext_bytes,
            } => {
                w.array(4).bytes(workspace).bytes(group).bytes(hash);
                w.uint(*ciphertext_bytes);
            }
            Self::Get {
                workspace,
                group,
                hash,
            } => {
                w.array(3).bytes(workspace).bytes(group).bytes(hash);
            }
            Self::MultipartPart {
                session,
                part_number,
                part_bytes,
            } => {
                w.array(3).bytes(session).uint(*part_number).uint(*part_bytes);
            }
            Self::MultipartComplete { session, parts } => {
                w.array(2).bytes(session).array(parts.len());
                for (number, etag) in parts {
                    w.array(2).uint(*number).bytes(etag);
                }
            }
            Self::MultipartAbort { session } => {
                w.array(1).bytes(session);
            }
            Self::Control(control) => control.write(w),
            Self::Manifest(manifest) => manifest.write(w),
            Self::Policy(policy) => policy.write(w),
            Self::Destruction(destruction) => destruction.write(w),
            Self::List { workspace, group } => {
                w.array(2).bytes(workspace).bytes(group);
            }
            Self::Resolution(resolution) => resolution.write(w),
            Self::Position { group } | Self::Quota { group } => {
                w.array(1).bytes(group);
            }
        }
        out
    }
}

fn parts<'a>(r: &mut Reader<'a>) -> Result<Vec<Part<'a>>, Code> {
    let count = r.array_up_to(LIST_MAX)?;
    let mut parts = Vec::with_capacity(count.min(r.rest().len() / PART_BYTES_MIN));
    for _ in 0..count {
        r.array_of(2)?;
        parts.push((r.u32()?, r.bytes()?));
    }
    Ok(parts)
}
