//! Bytes of one connection in, WebSocket messages out (RFC 6455). Whole binary messages, which is nearly everything,
//! are unmasked where they lie and handed on as slices; all else goes through tungstenite ([`super::slow`]).
//!
//! A frame that is not all here yet is moved to the connection's own buffer, which grows with the bytes that come
//! and never by the length a peer declares.

use super::mask::unmask;
use super::slow::Slow;
use bytes::{Bytes, BytesMut};
use drover_engine::Inbound;
use drover_wire::ws;

/// Largest message, and largest fragment of one (02 §1): beyond it the connection is dropped.
pub const MESSAGE_BYTES_MAX: usize = 1_056_768;
/// Longest frame head: two bytes, eight of length, four of key.
const HEAD_BYTES_MAX: usize = 14;
/// First byte of nearly every frame: FIN, no reserved bit, binary.
const WHOLE_BINARY: u8 = 0x82;

/// The bit of the opcode that all control frames have.
const CONTROL: u8 = 0x08;

/// What a client sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A binary message.
    Message(Inbound),
    /// A fragment of one that has not ended, with its bytes: nothing to be done, but it was work.
    Part(usize),
    /// A text message, whatever it says.
    Text,
    /// A ping, with its payload.
    Ping(Bytes),
    /// A pong.
    Pong,
    /// A close frame, with the payload to answer it with.
    Close(Bytes),
}

/// Why a connection can't go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A message or fragment above [`MESSAGE_BYTES_MAX`].
    Oversize,
    /// Anything else RFC 6455 forbids.
    Protocol,
}

/// A frame's first bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    /// FIN, reserved bits and opcode.
    pub(super) first: u8,
    pub(super) masked: bool,
    pub(super) head_bytes: usize,
    pub(super) payload_bytes: usize,
}

/// How much of a head is there.
enum Parsed {
    Head(Head),
    /// So many bytes in all are needed to know more.
    Needs(usize),
}

impl Head {
    #[inline]
    fn parse(bytes: &[u8], in_message: bool) -> Result<Parsed, Failure> {
        let [first, second, rest @ ..] = bytes else {
            return Ok(Parsed::Needs(2));
        };
        let masked = second & 0x80 != 0;
        if *first != WHOLE_BINARY || !masked || in_message {
            allowed(*first, *second, in_message)?;
        }
        let (length_bytes, payload_bytes) = match second & 0x7f {
            126 => match rest {
                [a, b, ..] => (2, u64::from(u16::from_be_bytes([*a, *b]))),
                _ => return Ok(Parsed::Needs(4)),
            },
            127 => match rest.first_chunk::<8>() {
                Some(length) => (8, u64::from_be_bytes(*length)),
                None => return Ok(Parsed::Needs(10)),
            },
            short => (0, u64::from(short)),
        };
        if payload_bytes > MESSAGE_BYTES_MAX as u64 {
            return Err(Failure::Oversize);
        }
        if first & CONTROL != 0 && payload_bytes > 125 {
            return Err(Failure::Protocol);
        }
        let head_bytes = 2 + length_bytes + if masked { 4 } else { 0 };
        if bytes.len() < head_bytes {
            return Ok(Parsed::Needs(head_bytes));
        }
        Ok(Parsed::Head(Head {
            first: *first,
            masked,
            head_bytes,
            payload_bytes: payload_bytes as usize,
        }))
    }

    fn frame_bytes(&self) -> usize {
        self.head_bytes + self.payload_bytes
    }
}

/// Whether a frame may begin like this. What a head tells is told at once: nobody gets a megabyte buffered that can only
/// be refused.
fn allowed(first: u8, second: u8, in_message: bool) -> Result<(), Failure> {
    let (fin, reserved, opcode) = (first & 0x80 != 0, first & 0x70 != 0, first & 0x0f);
    let fits = match opcode {
        0 => in_message,
        1 | 2 => !in_message,
        8..=10 => fin,
        _ => false,
    };
    if fits && !reserved && second & 0x80 != 0 {
        Ok(())
    } else {
        Err(Failure::Protocol)
    }
}

/// The state of one connection's inbound direction.
#[derive(Default)]
pub struct Codec {
    /// The beginning of a frame, or what a paused connection has not looked at yet.
    tail: BytesMut,
    /// There while a fragmented message is open.
    slow: Option<Box<Slow>>,
}

impl Codec {
    /// The next item of `data`. `None` once all of it is taken: what is incomplete is kept.
    ///
    /// # Errors
    /// [`Failure`]: the connection has to end, and nothing more may be asked for.
    #[inline]
    pub fn next(&mut self, data: &mut BytesMut) -> Result<Option<Item>, Failure> {
        let (head, frame) = if self.tail.is_empty() {
            match Head::parse(data, self.slow.is_some())? {
                Parsed::Head(head) if data.len() >= head.frame_bytes() => {
                    (head, data.split_to(head.frame_bytes()))
                }
                _ => {
                    self.keep(data);
                    return Ok(None);
                }
            }
        } else {
            match self.complete(data)? {
                Some(whole) => whole,
                None => return Ok(None),
            }
        };
        let item = self.frame(head, frame)?;
        Ok(Some(item.unwrap_or(Item::Part(head.payload_bytes))))
    }

    /// Moves bytes from `data` to the frame whose beginning is kept, no more than it needs.
    fn complete(&mut self, data: &mut BytesMut) -> Result<Option<(Head, BytesMut)>, Failure> {
        loop {
            let start = &self.tail[..self.tail.len().min(HEAD_BYTES_MAX)];
            let (needs, head) = match Head::parse(start, self.slow.is_some())? {
                Parsed::Needs(bytes) => (bytes, None),
                Parsed::Head(head) => (head.frame_bytes(), Some(head)),
            };
            let missing = needs.saturating_sub(self.tail.len());
            if missing == 0 {
                if let Some(head) = head {
                    let frame = self.tail.split_to(head.frame_bytes());
                    if self.tail.is_empty() {
                        self.tail = BytesMut::new();
                    }
                    return Ok(Some((head, frame)));
                }
            } else if data.is_empty() {
                return Ok(None);
            } else {
                let piece = data.split_to(missing.min(data.len()));
                self.tail.extend_from_slice(&piece);
            }
        }
    }

    #[inline]
    fn frame(&mut self, head: Head, mut frame: BytesMut) -> Result<Option<Item>, Failure> {
        if head.first == WHOLE_BINARY && head.masked && self.slow.is_none() {
            let key = [
                frame[head.head_bytes - 4],
                frame[head.head_bytes - 3],
                frame[head.head_bytes - 2],
                frame[head.head_bytes - 1],
            ];
            let (space, payload) = frame.split_at_mut(head.head_bytes);
            unmask(payload, key);
            // Without its key a head has room for the one this message is forwarded with.
            let head_at = ws::head_before(payload.len(), space).unwrap_or(head.head_bytes);
            bytes::Buf::advance(&mut frame, head_at);
            let message = Inbound::framed(frame.freeze(), head.head_bytes - head_at);
            return Ok(Some(Item::Message(message)));
        }
        let mut slow = self.slow.take().unwrap_or_default();
        let item = slow.frame(head, &frame)?;
        if slow.in_message() {
            self.slow = Some(slow);
        }
        Ok(item)
    }

    /// Puts `data` aside, in a buffer of the connection's own, so that it pins nothing that is shared.
    pub fn keep(&mut self, data: &mut BytesMut) {
        if !data.is_empty() {
            self.tail.extend_from_slice(data);
        }
        *data = BytesMut::new();
    }

    /// Puts `data` back that [`Self::take_kept`] has given, less what was looked at since: without a copy.
    pub(crate) fn put_back(&mut self, data: BytesMut) {
        debug_assert!(self.tail.is_empty());
        self.tail = data;
    }

    /// Takes back what [`Self::keep`] put aside, to be looked at again.
    pub fn take_kept(&mut self) -> BytesMut {
        std::mem::take(&mut self.tail)
    }

    /// Bytes put aside.
    pub fn kept_bytes(&self) -> usize {
        self.tail.len() + self.slow.as_ref().map_or(0, |slow| slow.open_bytes())
    }
}
