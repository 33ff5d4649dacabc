//! What the relay answers BLOB requests with (08 §3).

use crate::access::{LIST_MAX, list};
use crate::cbor::{self, Reader, Writer};
use crate::error::Code;
use crate::id::Hash;
use crate::retention::write_nullable;

/// Bytes of the smallest entry of a listing.
const ENTRY_BYTES_MIN: usize = 3;

/// Where a group's retention chain stands (08 §11, form 12).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The newest control's; 0 if there is none.
    pub control_epoch: u64,
    /// The newest control's; `None` if there is none.
    pub control_digest: Option<Hash>,
    /// What the next manifest has to say.
    pub next_sequence: u64,
    /// The latest manifest's digest.
    pub prev_manifest: Option<Hash>,
    /// What the latest manifest names.
    pub blobs: Vec<Hash>,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // 08 §3, by name.
pub enum Response<'a> {
    Upload {
        url: &'a str,
        expires_in_s: u64,
    },
    Exists,
    Multipart {
        session: [u8; 16],
        part_bytes: u64,
        expires_in_s: u64,
    },
    Download {
        url: &'a str,
        expires_in_s: u64,
    },
    NotFound,
    PartUpload {
        url: &'a str,
        expires_in_s: u64,
    },
    Completed,
    Aborted,
    /// The digest of the record that was taken.
    Ack(Hash),
    /// Names as stored, with their lengths; at most 4096.
    Listing(Vec<(&'a [u8], u64)>),
    Resolved,
    Position(Position),
    Quota {
        stored_bytes: u64,
        reserved_bytes: u64,
        /// `None` is unlimited.
        limit_bytes: Option<u64>,
    },
}

impl<'a> Response<'a> {
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
            Self::Upload { .. } => 1,
            Self::Exists => 2,
            Self::Multipart { .. } => 3,
            Self::Download { .. } => 4,
            Self::NotFound => 5,
            Self::PartUpload { .. } => 6,
            Self::Completed => 7,
            Self::Aborted => 8,
            Self::Ack(_) => 9,
            Self::Listing(_) => 10,
            Self::Resolved => 11,
            Self::Position(_) => 12,
            Self::Quota { .. } => 13,
        }
    }

    fn read(mut r: Reader<'a>) -> Result<Self, Code> {
        r.array_of(2)?;
        let form = r.uint()?;
        let response = match form {
            1 | 4 | 6 => {
                r.array_of(2)?;
                let url = std::str::from_utf8(r.bytes()?).map_err(|_| Code::MalformedHeader)?;
                let expires_in_s = r.uint()?;
                match form {
                    1 => Self::Upload { url, expires_in_s },
                    4 => Self::Download { url, expires_in_s },
                    _ => Self::PartUpload { url, expires_in_s },
                }
            }
            2 | 5 | 7 | 8 | 11 => {
                r.array_of(0)?;
                match form {
                    2 => Self::Exists,
                    5 => Self::NotFound,
                    7 => Self::Completed,
                    8 => Self::Aborted,
                    _ => Self::Resolved,
                }
            }
            3 => {
                r.array_of(3)?;
                Self::Multipart {
                    session: *r.fixed()?,
                    part_bytes: r.uint()?,
                    expires_in_s: r.uint()?,
                }
            }
            9 => {
                r.array_of(1)?;
                Self::Ack(Hash(*r.fixed()?))
            }
            10 => {
                r.array_of(1)?;
                Self::Listing(entries(&mut r)?)
            }
            12 => Self::Position(Position::read(&mut r)?),
            13 => {
                r.array_of(3)?;
                Self::Quota {
                    stored_bytes: r.uint()?,
                    reserved_bytes: r.uint()?,
                    limit_bytes: r.nullable(Reader::uint)?,
                }
            }
            _ => return Err(Code::MalformedHeader),
        };
        r.finish()?;
        Ok(response)
    }

    /// The canonical encoding.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let w = &mut Writer::new(&mut out);
        w.array(2).uint(self.form());
        match self {
            Self::Upload { url, expires_in_s }
            | Self::Download { url, expires_in_s }
            | Self::PartUpload { url, expires_in_s } => {
                w.array(2).bytes(url).uint(*expires_in_s);
            }
            Self::Exists | Self::NotFound | Self::Completed | Self::Aborted | Self::Resolved => {
                w.array(0);
            }
            Self::Multipart {
                session,
                part_bytes,
                expires_in_s,
            } => {
                w.array(3).bytes(session).uint(*part_bytes).uint(*expires_in_s);
            }
            Self::Ack(digest) => {
                w.array(1).bytes(digest);
            }
            Self::Listing(entries) => {
                w.array(1).array(entries.len());
                for (hash, bytes) in entries {
                    w.array(2).bytes(hash).uint(*bytes);
                }
            }
            Self::Position(position) => position.write(w),
            Self::Quota {
                stored_bytes,
                reserved_bytes,
                limit_bytes,
            } => {
                w.array(3).uint(*stored_bytes).uint(*reserved_bytes);
                match limit_bytes {
                    None => w.null(),
                    Some(limit) => w.uint(*limit),
                };
            }
        }
        out
    }
}

impl Position {
    fn read(r: &mut Reader<'_>) -> Result<Self, cbor::Error> {
        r.array_of(5)?;
        let digest = |r: &mut Reader<'_>| r.nullable(|r| r.fixed().map(|bytes| Hash(*bytes)));
        Ok(Self {
            control_epoch: r.uint()?,
            control_digest: digest(r)?,
            next_sequence: r.uint()?,
            prev_manifest: digest(r)?,
            blobs: list(r)?,
        })
    }

    fn write(&self, w: &mut Writer<&mut Vec<u8>>) {
        w.array(5).uint(self.control_epoch);
        write_nullable(w, self.control_digest.as_ref().map(AsRef::as_ref));
        w.uint(self.next_sequence);
        write_nullable(w, self.prev_manifest.as_ref().map(AsRef::as_ref));
        w.bytes_array(&self.blobs);
    }
}

fn entries<'a>(r: &mut Reader<'a>) -> Result<Vec<(&'a [u8], u64)>, cbor::Error> {
    let count = r.array_up_to(LIST_MAX)?;
    let mut entries = Vec::with_capacity(count.min(r.rest().len() / ENTRY_BYTES_MIN));
    for _ in 0..count {
        r.array_of(2)?;
        entries.push((r.bytes()?, r.uint()?));
    }
    Ok(entries)
}
