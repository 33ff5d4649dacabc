//! The rare part of RFC 6455 — control frames, text, fragmented messages and everything that is wrong — by
//! tungstenite, which reads one frame at a time from memory. Made when such a frame arrives and dropped when no
//! fragmented message is open, so that an ordinary connection has none.

use super::codec::{Failure, Head, Item, MESSAGE_BYTES_MAX};
use bytes::{BufMut, Bytes, BytesMut};
use std::io::{self, Read, Write};
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::protocol::{Role, WebSocketConfig, WebSocketContext};
use tungstenite::{Error, Message};

/// tungstenite's own buffer starts at this; it grows to a frame that is larger.
const READ_BUFFER_BYTES: usize = 512;

/// What a WebSocket context is set to.
fn config() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(0)
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX))
}

/// A tungstenite context and whether a fragmented message is open in it.
pub(super) struct Slow {
    context: WebSocketContext,
    in_message: bool,
    /// Payload of that message so far.
    open_bytes: usize,
}

impl Default for Slow {
    fn default() -> Self {
        Self {
            context: WebSocketContext::new(Role::Server, Some(config())),
            in_message: false,
            open_bytes: 0,
        }
    }
}

impl Slow {
    /// Reads one whole frame.
    pub(super) fn frame(&mut self, head: Head, frame: &[u8]) -> Result<Option<Item>, Failure> {
        let (fin, opcode) = (head.first & 0x80 != 0, head.first & 0x0f);
        if opcode < 8 {
            self.in_message = !fin;
            self.open_bytes += head.payload_bytes;
        }
        if opcode == 8 && !close_code_is_allowed(head, frame) {
            // tungstenite would answer it with a code of its own instead of failing.
            return Err(Failure::Protocol);
        }
        match self.context.read(&mut Frame { bytes: frame }) {
            Ok(Message::Binary(bytes)) => Ok(Some(Item::Message(bytes.into()))),
            Ok(Message::Text(_)) => Ok(Some(Item::Text)),
            Ok(Message::Ping(payload)) => Ok(Some(Item::Ping(payload))),
            Ok(Message::Pong(_)) => Ok(Some(Item::Pong)),
            Ok(Message::Close(close)) => {
                let mut echo = BytesMut::new();
                if let Some(close) = close {
                    echo.put_u16(close.code.into());
                    echo.extend_from_slice(close.reason.as_bytes());
                }
                Ok(Some(Item::Close(echo.freeze())))
            }
            Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(Error::Capacity(_)) => Err(Failure::Oversize),
            Ok(Message::Frame(_)) | Err(_) => Err(Failure::Protocol),
        }
    }

    /// Bytes kept of a fragmented message that has begun and not ended.
    pub(super) fn open_bytes(&self) -> usize {
        self.open_bytes
    }

    /// Whether a fragmented message has begun and not ended.
    pub(super) fn in_message(&self) -> bool {
        self.in_message
    }
}

fn close_code_is_allowed(head: Head, frame: &[u8]) -> bool {
    match frame {
        // Unmasked is judged by tungstenite, and so are payloads of no or one byte.
        _ if !head.masked || head.payload_bytes < 2 => true,
        frame => {
            let (key, payload) = (&frame[head.head_bytes - 4..], &frame[head.head_bytes..]);
            let code = u16::from_be_bytes([payload[0] ^ key[0], payload[1] ^ key[1]]);
            CloseCode::from(code).is_allowed()
        }
    }
}

/// One frame as a stream that then has no more for now. What tungstenite writes (its pongs) is dropped: the
/// connection answers itself.
struct Frame<'a> {
    bytes: &'a [u8],
}

impl Read for Frame<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.bytes.read(into)
    }
}

impl Write for Frame<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An unmasked control frame (what a server sends): opcode with FIN, payload of at most 125 bytes.
pub fn control_frame(opcode: u8, payload: &[u8]) -> Bytes {
    debug_assert!(payload.len() <= 125 && opcode >= 8);
    let mut frame = BytesMut::with_capacity(2 + payload.len());
    frame.put_u8(0x80 | opcode);
    frame.put_u8(payload.len() as u8);
    frame.extend_from_slice(payload);
    frame.freeze()
}
