//! One connection with both its ends: the relay's outbox and framing state, a socket buffer of chosen size, and a
//! client that reads or doesn't.

use bytes::{Buf, Bytes, BytesMut};
use drover_engine::ConnId;
use drover_engine::effects::{CloseHow, CloseReason};
use drover_engine::outbox::Outbox;
use drover_engine::shard::Session;
use std::collections::VecDeque;

/// What a client puts on the wire.
pub enum Input {
    Message(Bytes),
    Text,
    Ping,
    Pong,
}

/// Where a connection is in its life, seen from the relay.
pub enum Phase {
    Open,
    /// On its way to that shard.
    Moving(usize, Box<Session>),
    /// Closed by the engine; what is queued still leaves.
    Leaving,
    Gone,
}

pub struct Conn {
    pub shard: usize,
    pub id: ConnId,
    pub source: Box<str>,
    pub phase: Phase,
    pub outbox: Outbox,
    /// Sent by the client, not read by the relay.
    pub inbox: VecDeque<Input>,
    /// The relay reads no more.
    pub paused: bool,
    pub watched: bool,
    pub dirty: bool,
    /// Bytes the socket takes while the client doesn't read.
    pub socket_bytes_max: usize,
    socket: BytesMut,
    /// Whether the client reads.
    pub reading: bool,
    /// Whole messages the client has read and the test has not looked at.
    pub received: VecDeque<Bytes>,
    pub pings: usize,
    pub pongs: usize,
    pub closed: Option<(CloseHow, CloseReason)>,
    pub authenticated: bool,
    pub moves: usize,
}

impl Conn {
    pub fn new(shard: usize, id: ConnId, source: &str) -> Self {
        Self {
            shard,
            id,
            source: source.into(),
            phase: Phase::Open,
            outbox: Outbox::default(),
            inbox: VecDeque::new(),
            paused: false,
            watched: false,
            dirty: false,
            socket_bytes_max: 0,
            socket: BytesMut::new(),
            reading: true,
            received: VecDeque::new(),
            pings: 0,
            pongs: 0,
            closed: None,
            authenticated: false,
            moves: 0,
        }
    }

    pub fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// Moves bytes outbox → socket → client as far as they go; returns whether any moved.
    pub fn flush(&mut self) -> bool {
        let mut moved = false;
        loop {
            if self.reading {
                self.read();
            }
            let max = if self.reading {
                usize::MAX
            } else {
                self.socket_bytes_max
            };
            let mut taken = 0;
            for slice in self.outbox.pieces().take(16) {
                let room = max.saturating_sub(self.socket.len());
                let part = slice.len().min(room);
                self.socket.extend_from_slice(&slice[..part]);
                taken += part;
                if part < slice.len() {
                    break;
                }
            }
            if taken == 0 {
                return moved;
            }
            self.outbox.advance(taken);
            moved = true;
        }
    }

    /// The client takes what whole messages the socket holds.
    fn read(&mut self) {
        while self.socket.len() >= 2 {
            let (head, len) = match self.socket[1] {
                126 if self.socket.len() >= 4 => {
                    (4, u64::from(u16::from_be_bytes([self.socket[2], self.socket[3]])))
                }
                127 if self.socket.len() >= 10 => (
                    10,
                    u64::from_be_bytes(self.socket[2..10].try_into().expect("8 bytes")),
                ),
                126 | 127 => return,
                short => (2, u64::from(short)),
            };
            let len = len as usize;
            if self.socket.len() < head + len {
                return;
            }
            let opcode = self.socket[0];
            self.socket.advance(head);
            let payload = self.socket.split_to(len).freeze();
            match opcode {
                0x82 => self.received.push_back(payload),
                0x89 => self.pings += 1,
                0x8a => self.pongs += 1,
                other => panic!("the relay sent a WebSocket message of head {other:#x}"),
            }
        }
    }
}
