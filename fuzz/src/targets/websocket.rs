//! The WebSocket codec against tungstenite: the same bytes, however they are cut, give the same messages and the same
//! verdict; and what the relay writes by hand is what tungstenite reads.

use std::io::{self, Read, Write};

use bytes::BytesMut;
use drover_transport::ws::{Codec, Item, MESSAGE_BYTES_MAX, control_frame};
use drover_wire::ws::{binary_head, head_len};
use tungstenite::protocol::{Role, WebSocketConfig, WebSocketContext};
use tungstenite::{Error, Message};

use crate::allocation;
use crate::random::{Rng, Script};

/// Heap: what came, once where it lies and once in the connection's own buffer, which may double as it grows;
/// tungstenite's buffers for fragmented messages, of which it keeps as much again; and here the items, of 40 bytes for a
/// frame of 6.
fn heap_bytes(stream_bytes: usize) -> usize {
    16 * 1024 + 32 * stream_bytes
}

/// What came out, and whether it failed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    items: Vec<Item>,
    failed: bool,
}

/// The script: how many cuts there are, where, and the stream.
pub fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let cuts = script.below(24);
    let places: Vec<usize> = (0..cuts).map(|_| usize::from(script.u16())).collect();
    let stream = script.rest();
    let mut at: Vec<usize> = places.iter().map(|place| place % (stream.len() + 1)).collect();
    at.extend([0, stream.len()]);
    at.sort_unstable();
    let pieces = at.windows(2).map(|pair| &stream[pair[0]..pair[1]]);

    let seen = allocation::within("the codec", heap_bytes(stream.len()), || ours(pieces));
    let verdict = oracle(stream);
    if seen == verdict {
        // The codec is never later than tungstenite, and sooner only with a frame whose head already tells.
    } else if let Some(missing) = missing(stream) {
        let whole = [stream, &vec![0; missing]].concat();
        assert!(seen.failed && !verdict.failed, "{seen:?} {verdict:?}");
        assert_eq!(seen, oracle(&whole));
    } else {
        panic!("{seen:?}, but tungstenite {verdict:?}");
    }
    let bytes = stream.chunks(1);
    if stream.len() < 600 {
        assert_eq!(ours(bytes), seen, "byte by byte");
    }
    seen.items.iter().for_each(written);
}

fn ours<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Seen {
    let mut codec = Codec::default();
    let mut seen = Seen::default();
    for piece in pieces {
        let mut data = BytesMut::from(piece);
        loop {
            match codec.next(&mut data) {
                Ok(Some(Item::Close(echo))) => {
                    seen.items.push(Item::Close(echo));
                    return seen;
                }
                Ok(Some(Item::Part(_))) => {}
                Ok(Some(item)) => seen.items.push(item),
                Ok(None) => break,
                Err(_) => {
                    seen.failed = true;
                    return seen;
                }
            }
        }
        assert!(codec.kept_bytes() <= 2 * MESSAGE_BYTES_MAX + 14);
    }
    seen
}

struct Memory<'a>(&'a [u8]);

impl Read for Memory<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.0.read(into)
    }
}

impl Write for Memory<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn context(role: Role) -> WebSocketContext {
    let config = WebSocketConfig::default()
        .read_buffer_size(512)
        .write_buffer_size(0)
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX));
    WebSocketContext::new(role, Some(config))
}

fn oracle(stream: &[u8]) -> Seen {
    let mut context = context(Role::Server);
    let mut memory = Memory(stream);
    let mut seen = Seen::default();
    loop {
        match context.read(&mut memory) {
            Ok(Message::Binary(bytes)) => seen.items.push(Item::Message(bytes.into())),
            Ok(Message::Text(_)) => seen.items.push(Item::Text),
            Ok(Message::Ping(payload)) => seen.items.push(Item::Ping(payload)),
            Ok(Message::Pong(_)) => seen.items.push(Item::Pong),
            // How tungstenite shows a reserved close code.
            Ok(Message::Close(Some(close))) if close.reason.as_str() == "Protocol violation" => {
                seen.failed = true;
                return seen;
            }
            Ok(Message::Close(close)) => {
                let mut echo = Vec::new();
                if let Some(close) = close {
                    echo.extend_from_slice(&u16::from(close.code).to_be_bytes());
                    echo.extend_from_slice(close.reason.as_bytes());
                }
                seen.items.push(Item::Close(echo.into()));
                return seen;
            }
            Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => return seen,
            Ok(Message::Frame(_)) | Err(_) => {
                seen.failed = true;
                return seen;
            }
        }
    }
}

/// How many bytes the last frame lacks; of one that is too long, its head.
fn missing(stream: &[u8]) -> Option<usize> {
    let mut at = 0;
    while at < stream.len() {
        let byte = |n: usize| u64::from(stream.get(at + n).copied().unwrap_or_default());
        let masked = byte(1) & 0x80 != 0;
        let (width, len) = match byte(1) & 0x7f {
            126 => (2, byte(2) << 8 | byte(3)),
            127 => (8, (2..10).fold(0, |len, n| len << 8 | byte(n))),
            len => (0, len),
        };
        at += 2 + width + 4 * usize::from(masked);
        if len > MESSAGE_BYTES_MAX as u64 {
            break;
        }
        at += len as usize;
    }
    (at > stream.len()).then(|| at - stream.len())
}

/// What the relay would write of this item, read by tungstenite's client.
fn written(item: &Item) {
    let (frame, expected) = match item {
        Item::Message(message) => {
            let payload = message.payload();
            let mut frame = Vec::new();
            binary_head(payload.len(), &mut frame);
            assert_eq!(frame.len(), head_len(payload.len()));
            frame.extend_from_slice(payload);
            // What is forwarded as it came has its head where the inbound one was.
            assert_eq!(message.clone().into_framed().0, frame);
            (frame, Message::Binary(message.clone().into_payload()))
        }
        Item::Ping(payload) => (control_frame(0xa, payload).into(), Message::Pong(payload.clone())),
        Item::Text | Item::Pong | Item::Part(_) | Item::Close(_) => return,
    };
    let read = context(Role::Client).read(&mut Memory(&frame));
    assert!(matches!(read, Ok(message) if message == expected));
}

/// Mostly legal frames; now and then each kind of illegal one.
pub fn generate(rng: &mut Rng) -> Vec<u8> {
    let cuts = rng.below(24);
    let mut script = vec![cuts as u8];
    script.extend(rng.bytes(2 * cuts));
    for _ in 0..rng.below(12) {
        let first = match rng.below(30) {
            0 => rng.next() as u8,
            1 => 0x88,
            2..6 => *rng.pick(&[0x89, 0x8a]),
            6..13 => *rng.pick(&[0x02, 0x01, 0x00, 0x80, 0x81]),
            _ => 0x82,
        };
        let payload = match rng.below(20) {
            0 => rng.uint(0xffff).to_be_bytes()[6..].to_vec(),
            1 => (*rng.pick(&[1000u16, 1001, 1004, 1005, 1006, 1015, 2999, 3000, 4999, 5000]))
                .to_be_bytes()
                .to_vec(),
            2 => {
                let len = rng.within(65_530..65_540);
                rng.bytes(len)
            }
            3..6 => "text é \u{1f980}".as_bytes()[..rng.below(13)].to_vec(),
            _ => {
                let len = rng.below(130);
                rng.bytes(len)
            }
        };
        frame(rng, first, &payload, &mut script);
    }
    script
}

fn frame(rng: &mut Rng, first: u8, payload: &[u8], out: &mut Vec<u8>) {
    let flag = if rng.once_in(50) { 0 } else { 0x80 };
    out.push(first);
    // A length may be longer than it has to be.
    match payload.len() {
        len @ 0..126 if !rng.once_in(40) => out.push(flag | len as u8),
        len @ 0..65_536 if !rng.once_in(40) => {
            out.push(flag | 126);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            out.push(flag | 127);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    if flag == 0 {
        out.extend_from_slice(payload);
    } else {
        let key = rng.bytes(4);
        out.extend_from_slice(&key);
        out.extend(payload.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key));
    }
}
