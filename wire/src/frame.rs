//! The 25 frames of the array dialect (01 §2, §3): decoding borrows from the message, encoding appends to a
//! buffer of the caller.

use crate::error::{Code, Refusal};
use crate::id::{CallId, GroupId, Hash, PublicKey, Signature};

/// The largest frame, either way: 1 MiB + 4096 (01 §7).
pub const FRAME_BYTES_MAX: usize = 1_052_672;
/// The largest WAKE frame (01 §7).
pub const WAKE_BYTES_MAX: usize = 1024;
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

impl From<Code> for DecodeError {
    fn from(code: Code) -> Self {
        Self { refusal: Refusal::plain(code), closes: false }
    }
}

/// A list of 32-byte strings still in its encoding: fixed stride, so that no list is ever allocated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct List32<'a>(&'a [u8]);

impl<'a> List32<'a> {
    /// How many strings.
    pub fn len(&self) -> usize {
        todo!()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8; 32]> + 'a {
        self.0.chunks_exact(34).map(|_| todo!())
    }
}

/// A list of byte strings of any length, still in its encoding.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BytesList<'a> {
    count: usize,
    body: &'a [u8],
}

impl<'a> BytesList<'a> {
    /// How many strings.
    pub fn len(&self) -> usize {
        self.count
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
    /// The strings in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + 'a {
        let _ = self.body;
        std::iter::empty()
    }
}

/// One frame; slices borrow from the message it was decoded from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The fields are those of 01 §3, by name.
pub enum Frame<'a> {
    Connect { version: u16, groups: List32<'a>, sent_at_ms: u64 },
    ConnectAck { version: u16, server_time_ms: u64, min_enc: u8 },
    AuthChallenge { challenge: &'a [u8] },
    Auth { device_key: PublicKey, signature: Signature },
    AuthAck { key_packages_remaining: u32, write_mode: u8, build_digest: &'a [u8], access_set: u8, min_enc: u8 },
    Access { body: &'a [u8] },
    Sub { group: GroupId, from_seq: u64 },
    SubAck { group: GroupId, head_seq: u64 },
    Recon { group: GroupId, payload: &'a [u8] },
    Push { envelope: &'a [u8] },
    Send { envelope: &'a [u8] },
    SendAck { hash: Hash, seq: u64 },
    Blob { payload: &'a [u8] },
    Bye { reason: &'a [u8] },
    Error { code: Code, retry_after_s: u32, detail: &'a [u8] },
    Wrap { body: &'a [u8] },
    Handshake { group: GroupId, seq: u64, message: &'a [u8] },
    Join { body: &'a [u8] },
    Drop { payload: &'a [u8] },
    Invite { body: &'a [u8] },
    Live { group: GroupId, epoch: u64, ct: &'a [u8] },
    Keys(Keys<'a>),
    Call { call_id: CallId, group: GroupId, epoch: u64, kind: u8, body: &'a [u8] },
    Media { call_id: CallId, stream: [u8; 4], seq: u64, ct: &'a [u8] },
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Wake<'a> {
    Register { handle: [u8; 16], categories: u8, expires_at_ms: u64 },
    Registered { expires_at_ms: u64 },
    Clear,
    Cleared,
    Query,
    Capability { enabled: bool, register_url: &'a str },
}

impl<'a> Frame<'a> {
    /// Decodes one whole message, in the order of checks of 01 §1.3 and §2.
    ///
    /// # Errors
    /// The refusal of 01 §7 and whether the socket ends.
    pub fn decode(_message: &'a [u8]) -> Result<Self, DecodeError> {
        todo!()
    }

    /// Appends the frame's only encoding to `out`.
    pub fn encode(&self, _out: &mut Vec<u8>) {
        todo!()
    }

    /// The frame's permanent tag, 1 to 25.
    pub fn tag(&self) -> u8 {
        todo!()
    }

    /// The frame's name as in 01 §3, for metrics.
    pub fn name(&self) -> &'static str {
        todo!()
    }
}

/// Appends an ERROR frame.
pub fn encode_refusal(_refusal: &Refusal, _out: &mut Vec<u8>) {
    todo!()
}

/// Appends the head of a PUSH frame that carries `envelope_bytes` bytes of envelope: the envelope follows unchanged.
pub fn push_head(_envelope_bytes: usize, _out: &mut Vec<u8>) {
    todo!()
}
