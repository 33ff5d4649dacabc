//! Bytes to frames, in the order of work of 01 §2.

use super::{BytesList, FRAME_BYTES_MAX, REGISTER_URL_BYTES_MAX, WAKE_BYTES_MAX};
use super::{DecodeError, Frame, Keys, List32, PROTOCOL_VERSION, Wake};
use crate::cbor::{Error, Reader};
use crate::error::{Code, Detail, Refusal};
use crate::id::{CallId, GroupId, Hash, PublicKey, Signature};

impl<'a> Frame<'a> {
    /// Decodes one whole message, in the order of checks of 01 §1.3 and §2. Nothing is copied but fixed-width fields.
    ///
    /// # Errors
    /// The refusal of 01 §7 and whether the socket ends.
    pub fn decode(message: &'a [u8]) -> Result<Self, DecodeError> {
        if message.len() > FRAME_BYTES_MAX {
            return Err(DecodeError::closing(Refusal::plain(Code::EnvelopeTooLarge)));
        }
        let mut r = Reader::new(message);
        r.array_of(2)?;
        let tag = r.uint()?;
        let frame = match tag {
            1 => connect(&mut r)?,
            2 => connect_ack(&mut r)?,
            3 => {
                r.array_of(1)?;
                Frame::AuthChallenge {
                    challenge: r.bytes()?,
                }
            }
            4 => {
                r.array_of(2)?;
                Frame::Auth {
                    device_key: PublicKey(*r.fixed()?),
                    signature: Signature(*r.fixed()?),
                }
            }
            5 => {
                r.array_of(5)?;
                Frame::AuthAck {
                    key_packages_remaining: r.u32()?,
                    write_mode: r.u8()?,
                    build_digest: r.bytes()?,
                    access_set: r.u8()?,
                    min_enc: r.u8()?,
                }
            }
            6 => {
                r.array_of(1)?;
                Frame::Access { body: r.bytes()? }
            }
            7 => {
                r.array_of(2)?;
                Frame::Sub {
                    group: GroupId(*r.fixed()?),
                    from_seq: r.uint()?,
                }
            }
            8 => {
                r.array_of(2)?;
                Frame::SubAck {
                    group: GroupId(*r.fixed()?),
                    head_seq: r.uint()?,
                }
            }
            9 => {
                r.array_of(2)?;
                Frame::Recon {
                    group: GroupId(*r.fixed()?),
                    payload: r.bytes()?,
                }
            }
            10 => {
                r.array_of(1)?;
                Frame::Push { envelope: r.bytes()? }
            }
            11 => {
                r.array_of(1)?;
                Frame::Send { envelope: r.bytes()? }
            }
            12 => {
                r.array_of(2)?;
                Frame::SendAck {
                    hash: Hash(*r.fixed()?),
                    seq: r.uint()?,
                }
            }
            13 => {
                r.array_of(1)?;
                Frame::Blob { payload: r.bytes()? }
            }
            14 => {
                r.array_of(1)?;
                Frame::Bye { reason: r.bytes()? }
            }
            15 => error(&mut r)?,
            16 => {
                r.array_of(1)?;
                Frame::Wrap { body: r.bytes()? }
            }
            17 => {
                r.array_of(3)?;
                Frame::Handshake {
                    group: GroupId(*r.fixed()?),
                    seq: r.uint()?,
                    message: r.bytes()?,
                }
            }
            18 => {
                r.array_of(1)?;
                Frame::Join { body: r.bytes()? }
            }
            19 => {
                r.array_of(1)?;
                Frame::Drop { payload: r.bytes()? }
            }
            20 => {
                r.array_of(1)?;
                Frame::Invite { body: r.bytes()? }
            }
            21 => {
                r.array_of(3)?;
                Frame::Live {
                    group: GroupId(*r.fixed()?),
                    epoch: r.uint()?,
                    ct: r.bytes()?,
                }
            }
            22 => Frame::Keys(keys(&mut r)?),
            23 => {
                r.array_of(5)?;
                Frame::Call {
                    call_id: CallId(*r.fixed()?),
                    group: GroupId(*r.fixed()?),
                    epoch: r.uint()?,
                    kind: r.u8()?,
                    body: r.bytes()?,
                }
            }
            24 => {
                r.array_of(4)?;
                Frame::Media {
                    call_id: CallId(*r.fixed()?),
                    stream: *r.fixed()?,
                    seq: r.uint()?,
                    ct: r.bytes()?,
                }
            }
            25 => {
                if message.len() > WAKE_BYTES_MAX {
                    return Err(Code::EnvelopeTooLarge.into());
                }
                Frame::Wake(wake(&mut r).map_err(|refused| refused.0)?)
            }
            // Decided before the body is read, so that a later protocol's frame is told apart from a broken one.
            _ => return Err(Code::MalformedHeader.into()),
        };
        r.finish()?;
        Ok(frame)
    }
}

fn connect<'a>(r: &mut Reader<'a>) -> Result<Frame<'a>, DecodeError> {
    r.array_of(3)?;
    Ok(Frame::Connect {
        version: offer(r)?,
        groups: List32::read(r)?,
        sent_at_ms: r.uint()?,
    })
}

/// The version a client offers, in either form of CONNECT.
pub(crate) fn offer(r: &mut Reader<'_>) -> Result<u16, DecodeError> {
    match r.u16()? {
        // 01 decision 11: says what this relay could have offered.
        0 => Err(DecodeError::closing(
            Refusal::plain(Code::ProtocolUnsupported).with(Detail::Version(PROTOCOL_VERSION)),
        )),
        version => Ok(version),
    }
}

fn connect_ack<'a>(r: &mut Reader<'a>) -> Result<Frame<'a>, DecodeError> {
    r.array_of(3)?;
    let version = r.u16()?;
    if !(1..=PROTOCOL_VERSION).contains(&version) {
        return Err(DecodeError::closing(Refusal::plain(Code::ProtocolUnsupported)));
    }
    Ok(Frame::ConnectAck {
        version,
        server_time_ms: r.uint()?,
        min_enc: r.u8()?,
    })
}

fn error<'a>(r: &mut Reader<'a>) -> Result<Frame<'a>, DecodeError> {
    r.array_of(4)?;
    let (class, word) = (r.bytes()?, r.bytes()?);
    let (retry_after_s, detail) = (r.u32()?, r.bytes()?);
    let code = Code::lookup(class, word).ok_or(Code::MalformedHeader)?;
    Ok(Frame::Error {
        code,
        retry_after_s,
        detail,
    })
}

fn keys<'a>(r: &mut Reader<'a>) -> Result<Keys<'a>, DecodeError> {
    r.array_of(2)?;
    Ok(match r.u8()? {
        1 => Keys::Publish {
            packages: BytesList::read(r)?,
        },
        2 => {
            r.array_of(1)?;
            Keys::Published { remaining: r.u32()? }
        }
        3 => {
            r.array_of(2)?;
            Keys::Fetch {
                device: PublicKey(*r.fixed()?),
                count: r.u8()?,
            }
        }
        4 => Keys::Bundles {
            packages: BytesList::read(r)?,
        },
        5 => {
            r.array_of(0)?;
            Keys::None
        }
        _ => return Err(Code::MalformedHeader.into()),
    })
}

/// A refusal of a WAKE body, where CBOR failures have codes of their own (01 §7).
struct WakeRefused(Code);

impl From<Code> for WakeRefused {
    fn from(code: Code) -> Self {
        Self(code)
    }
}

impl From<Error> for WakeRefused {
    fn from(error: Error) -> Self {
        Self(match error {
            Error::NonShortest | Error::Reserved | Error::Trailing => Code::NoncanonicalCbor,
            _ => Code::MalformedHeader,
        })
    }
}

/// Fields are judged left to right: a bad handle wins over a broken field behind it (12 §2).
fn wake<'a>(r: &mut Reader<'a>) -> Result<Wake<'a>, WakeRefused> {
    r.array_of(2)?;
    let form = r.uint()?;
    if !(1..=6).contains(&form) {
        return Err(Code::MalformedHeader.into());
    }
    Ok(match form {
        1 => {
            r.array_of(3)?;
            let handle = r.bytes()?.try_into().map_err(|_| Code::PushHandleMalformed)?;
            let categories = r.u8()?;
            if categories == 0 || categories > Wake::CATEGORIES_ALL {
                return Err(Code::PushHandleMalformed.into());
            }
            Wake::Register {
                handle,
                categories,
                expires_at_ms: r.uint()?,
            }
        }
        2 => {
            r.array_of(1)?;
            Wake::Registered {
                expires_at_ms: r.uint()?,
            }
        }
        3 => {
            r.array_of(0)?;
            Wake::Clear
        }
        4 => {
            r.array_of(0)?;
            Wake::Cleared
        }
        5 => {
            r.array_of(0)?;
            Wake::Query
        }
        _ => {
            r.array_of(2)?;
            let enabled = r.bool()?;
            let register_url = r.text()?;
            if !is_register_url(register_url) {
                return Err(Code::PushHandleMalformed.into());
            }
            Wake::Capability {
                enabled,
                register_url,
            }
        }
    })
}

/// Whether a client accepts this as the address of a ringer (12 §2): at most 512 bytes, and empty, `https` to any
/// host, or `http` to this machine.
pub fn is_register_url(url: &str) -> bool {
    if url.is_empty() {
        return true;
    }
    // Parsers disagree about these characters, and so about which host such an address names.
    let ambiguous = |c: char| c == '\\' || c.is_whitespace() || c.is_control();
    if url.len() > REGISTER_URL_BYTES_MAX || url.contains(ambiguous) {
        return false;
    }
    let Some((scheme, rest)) = url.split_once("://") else {
        return false;
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host_port = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = match host_port.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host_port.split(':').next().unwrap_or_default(),
    };
    if scheme.eq_ignore_ascii_case("https") {
        !host.is_empty()
    } else {
        scheme.eq_ignore_ascii_case("http")
            && (host == "127.0.0.1" || host == "::1" || host.eq_ignore_ascii_case("localhost"))
    }
}
