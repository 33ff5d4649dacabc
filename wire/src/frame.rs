//! The 25 frames of the array dialect (01 §2, §3): decoding borrows from the message, encoding appends to a
//! buffer of the caller.

mod decode;
mod encode;
mod list;

use std::fmt;

pub use decode::is_register_url;
pub(crate) use decode::offer;
pub use encode::{encode_refusal, push_head};
pub use list::{BytesList, BytesListBuf, List32, List32Buf};

use crate::cbor;
use crate::error::{Code, Refusal};
use crate::id::{CallId, GroupId, Hash, PublicKey, Signature};

/// The largest frame, either way: 1 MiB + 4096 (01 §7).
pub const FRAME_BYTES_MAX: usize = 1_052_672;
/// The largest WAKE frame (01 §7).
pub const WAKE_BYTES_MAX: usize = 1024;
/// The longest register URL in a WAKE capability, in bytes (01 §3).
pub const REGISTER_URL_BYTES_MAX: usize = 512;
/// The newest protocol version this relay speaks.
pub const PROTOCOL_VERSION: u16 = 4;

/// Why a message could not be decoded, and whether the socket ends with it (01 §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// What the peer is told.
    pub refusal: Refusal,
    /// Whether the socket closes after the ERROR.
    pub closes: bool,
}

impl DecodeError {
    pub(crate) const fn closing(refusal: Refusal) -> Self {
        Self {
            refusal,
            closes: true,
        }
    }
}

impl From<Code> for DecodeError {
    fn from(code: Code) -> Self {
        Self {
            refusal: Refusal::plain(code),
            closes: false,
        }
    }
}

impl From<cbor::Error> for DecodeError {
    fn from(error: cbor::Error) -> Self {
        Code::from(error).into()
    }
}

/// One frame; slices borrow from the message it was decoded from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The fields are those of 01 §3, by name.
pub enum Frame<'a> {
    Connect {
        version: u16,
        groups: List32<'a>,
        sent_at_ms: u64,
    },
    ConnectAck {
        version: u16,
        server_time_ms: u64,
        min_enc: u8,
    },
    AuthChallenge {
        challenge: &'a [u8],
    },
    Auth {
        device_key: PublicKey,
        signature: Signature,
    },
    AuthAck {
        key_packages_remaining: u32,
        write_mode: u8,
        build_digest: &'a [u8],
        access_set: u8,
        min_enc: u8,
    },
    Access {
        body: &'a [u8],
    },
    Sub {
        group: GroupId,
        from_seq: u64,
    },
    SubAck {
        group: GroupId,
        head_seq: u64,
    },
    Recon {
        group: GroupId,
        payload: &'a [u8],
    },
    Push {
        envelope: &'a [u8],
    },
    Send {
        envelope: &'a [u8],
    },
    SendAck {
        hash: Hash,
        seq: u64,
    },
    Blob {
        payload: &'a [u8],
    },
    Bye {
        reason: &'a [u8],
    },
    Error {
        code: Code,
        retry_after_s: u32,
        detail: &'a [u8],
    },
    Wrap {
        body: &'a [u8],
    },
    Handshake {
        group: GroupId,
        seq: u64,
        message: &'a [u8],
    },
    Join {
        body: &'a [u8],
    },
    Drop {
        payload: &'a [u8],
    },
    Invite {
        body: &'a [u8],
    },
    Live {
        group: GroupId,
        epoch: u64,
        ct: &'a [u8],
    },
    Keys(Keys<'a>),
    Call {
        call_id: CallId,
        group: GroupId,
        epoch: u64,
        kind: u8,
        body: &'a [u8],
    },
    Media {
        call_id: CallId,
        stream: [u8; 4],
        seq: u64,
        ct: &'a [u8],
    },
    Wake(Wake<'a>),
}

/// The forms of KEYS (01 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Keys<'a> {
    Publish { packages: BytesList<'a> },
    Published { remaining: u32 },
    Fetch { device: PublicKey, count: u8 },
    Bundles { packages: BytesList<'a> },
    None,
}

/// The forms of WAKE (01 §3, 12).
#[derive(Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Wake<'a> {
    Register {
        handle: [u8; 16],
        categories: u8,
        expires_at_ms: u64,
    },
    Registered {
        expires_at_ms: u64,
    },
    Clear,
    Cleared,
    Query,
    Capability {
        enabled: bool,
        register_url: &'a str,
    },
}

impl Wake<'_> {
    /// Every category bit: 1 message, 2 call, 4 handshake (12 §1).
    pub const CATEGORIES_ALL: u8 = 0x07;
}

// By hand, because a handle is never rendered anywhere (12 §9).
impl fmt::Debug for Wake<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Wake::Register { .. } => "Register",
            Wake::Registered { .. } => "Registered",
            Wake::Clear => "Clear",
            Wake::Cleared => "Cleared",
            Wake::Query => "Query",
            Wake::Capability { .. } => "Capability",
        })
    }
}

impl Frame<'_> {
    /// The frame's permanent tag, 1 to 25.
    pub const fn tag(&self) -> u8 {
        self.id().0
    }

    /// The frame's name as in 01 §3, for metrics.
    pub const fn name(&self) -> &'static str {
        self.id().1
    }

    const fn id(&self) -> (u8, &'static str) {
        match self {
            Frame::Connect { .. } => (1, "CONNECT"),
            Frame::ConnectAck { .. } => (2, "CONNECT_ACK"),
            Frame::AuthChallenge { .. } => (3, "AUTH_CHALLENGE"),
            Frame::Auth { .. } => (4, "AUTH"),
            Frame::AuthAck { .. } => (5, "AUTH_ACK"),
            Frame::Access { .. } => (6, "ACCESS"),
            Frame::Sub { .. } => (7, "SUB"),
            Frame::SubAck { .. } => (8, "SUB_ACK"),
            Frame::Recon { .. } => (9, "RECON"),
            Frame::Push { .. } => (10, "PUSH"),
            Frame::Send { .. } => (11, "SEND"),
            Frame::SendAck { .. } => (12, "SEND_ACK"),
            Frame::Blob { .. } => (13, "BLOB"),
            Frame::Bye { .. } => (14, "BYE"),
            Frame::Error { .. } => (15, "ERROR"),
            Frame::Wrap { .. } => (16, "WRAP"),
            Frame::Handshake { .. } => (17, "HANDSHAKE"),
            Frame::Join { .. } => (18, "JOIN"),
            Frame::Drop { .. } => (19, "DROP"),
            Frame::Invite { .. } => (20, "INVITE"),
            Frame::Live { .. } => (21, "LIVE"),
            Frame::Keys(_) => (22, "KEYS"),
            Frame::Call { .. } => (23, "CALL"),
            Frame::Media { .. } => (24, "MEDIA"),
            Frame::Wake(_) => (25, "WAKE"),
        }
    }
}
