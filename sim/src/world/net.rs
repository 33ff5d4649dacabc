//! Sockets. What the relay writes is bytes that a socket of some size takes, that arrive later, and that end anywhere
//! when the socket dies; what a client writes arrives as whole messages or not at all.

use super::agenda::{Agenda, Happening};
use super::words::tag_of;
use crate::model::Calls;
use bytes::{Buf, Bytes, BytesMut};
use drover_engine::ConnId;
use drover_engine::outbox::Outbox;
use drover_engine::shard::Session;
use std::collections::{BTreeMap, VecDeque};

/// A connection, by the order they were opened in.
pub type Line = usize;

/// What a client puts on the wire.
pub(crate) enum Input {
    /// A binary message.
    Message(Bytes),
    /// A ping or pong.
    Activity,
}

/// What a client reads.
pub(crate) enum Output {
    /// A binary message.
    Message(Bytes),
    /// A ping.
    Ping,
    /// A close frame.
    Close,
}

/// Where a connection is in its life, seen from the relay.
pub(crate) enum Phase {
    /// Frames are taken.
    Open,
    /// To be sent to that shard.
    Moving(usize, Box<Session>),
    /// On its way there.
    Travelling,
    /// Closed by the engine; what is queued still leaves.
    Leaving,
    /// Gone.
    Gone,
}

/// One connection with both its ends.
pub(crate) struct Conn {
    /// The client at the other end.
    pub(crate) client: usize,
    /// Where it lives.
    pub(crate) shard: usize,
    /// Its id there.
    pub(crate) id: ConnId,
    /// Seen from the relay.
    pub(crate) phase: Phase,
    /// Whether the client still has it.
    pub(crate) held: bool,
    /// What the engine has queued.
    pub(crate) outbox: Outbox,
    /// Sent by the client, under way.
    up: VecDeque<Input>,
    up_until_us: u64,
    /// Arrived at the relay and not read by it.
    pub(crate) inbox: VecDeque<Input>,
    /// The engine reads no more.
    pub(crate) paused: bool,
    /// It wants to know of room.
    pub(crate) watched: bool,
    /// There is something to write.
    pub(crate) dirty: bool,
    /// Written by the relay, not read by the client.
    socket: BytesMut,
    socket_max: usize,
    /// Read by the client: the beginning of a message.
    partial: BytesMut,
    /// Whether the client reads.
    pub(crate) reading: bool,
    /// A read is on the agenda.
    read_due: bool,
    /// Bytes not yet written of the message that the relay writes.
    left: usize,
}

/// All of them.
pub(crate) struct Net {
    /// By number.
    pub(crate) conns: Vec<Conn>,
    by_id: BTreeMap<(usize, ConnId), Line>,
    free: Vec<Vec<ConnId>>,
    slots: Vec<u32>,
    /// The engine is to be told that they are gone.
    pub(crate) closed: VecDeque<Line>,
    /// They are to be sent to another shard.
    pub(crate) moving: VecDeque<Line>,
    /// They may be read again.
    pub(crate) resumed: VecDeque<Line>,
    /// The engine is to be told that they have room.
    pub(crate) roomy: VecDeque<Line>,
    /// By shard: to be written at the end of the turn.
    pub(crate) dirty: Vec<Vec<Line>>,
    /// By shard: with something to read.
    pub(crate) readable: Vec<Vec<Line>>,
    socket_max: usize,
}

impl Net {
    pub(super) fn new(shards: usize, socket_max: usize) -> Self {
        Self {
            conns: Vec::new(),
            by_id: BTreeMap::new(),
            free: vec![Vec::new(); shards],
            slots: vec![0; shards],
            closed: VecDeque::new(),
            moving: VecDeque::new(),
            resumed: VecDeque::new(),
            roomy: VecDeque::new(),
            dirty: vec![Vec::new(); shards],
            readable: vec![Vec::new(); shards],
            socket_max,
        }
    }

    /// A new process: it knows nobody.
    pub(super) fn restart(&mut self) {
        let shards = self.slots.len();
        let conns = std::mem::take(&mut self.conns);
        *self = Self::new(shards, self.socket_max);
        self.conns = conns;
        for conn in &mut self.conns {
            conn.phase = Phase::Gone;
        }
    }

    /// A connection of this client, accepted on this shard.
    pub(super) fn open(&mut self, client: usize, shard: usize) -> (Line, ConnId) {
        let (line, id) = (self.conns.len(), self.next_id(shard));
        self.conns.push(Conn {
            client,
            shard,
            id,
            phase: Phase::Open,
            held: true,
            outbox: Outbox::default(),
            up: VecDeque::new(),
            up_until_us: 0,
            inbox: VecDeque::new(),
            paused: false,
            watched: false,
            dirty: false,
            socket: BytesMut::new(),
            socket_max: self.socket_max,
            partial: BytesMut::new(),
            reading: true,
            read_due: false,
            left: 0,
        });
        self.by_id.insert((shard, id), line);
        (line, id)
    }

    /// A connection with this id on that shard, if frames of it are taken.
    pub(super) fn find(&self, shard: usize, id: ConnId) -> Option<Line> {
        let line = *self.by_id.get(&(shard, id))?;
        self.conns[line].is_open().then_some(line)
    }

    /// A connection with this id on that shard, though it may be closed: as far as the engine knows, it is there.
    pub(super) fn known(&self, shard: usize, id: ConnId) -> Option<Line> {
        self.by_id.get(&(shard, id)).copied()
    }

    fn next_id(&mut self, shard: usize) -> ConnId {
        self.free[shard].pop().unwrap_or_else(|| {
            self.slots[shard] += 1;
            ConnId {
                slot: self.slots[shard] - 1,
                generation: 0,
            }
        })
    }

    /// The engine has nothing more to do with it.
    pub(super) fn forget(&mut self, line: Line) {
        let (shard, id) = (self.conns[line].shard, self.conns[line].id);
        if self.by_id.remove(&(shard, id)).is_some() {
            self.free[shard].push(ConnId {
                slot: id.slot,
                generation: id.generation + 1,
            });
        }
    }

    /// It arrives on another shard.
    pub(super) fn settle_on(&mut self, line: Line, shard: usize) -> ConnId {
        let id = self.next_id(shard);
        let conn = &mut self.conns[line];
        (conn.shard, conn.id, conn.phase, conn.paused) = (shard, id, Phase::Open, false);
        (conn.watched, conn.dirty) = (false, false);
        self.by_id.insert((shard, id), line);
        self.mark_dirty(line);
        id
    }

    pub(super) fn mark_dirty(&mut self, line: Line) {
        let conn = &mut self.conns[line];
        if !std::mem::replace(&mut conn.dirty, true) {
            self.dirty[conn.shard].push(line);
        }
    }

    pub(super) fn mark_readable(&mut self, line: Line) {
        let shard = self.conns[line].shard;
        if !self.readable[shard].contains(&line) {
            self.readable[shard].push(line);
        }
    }

    /// The client writes; it arrives after `latency_us`, behind what it wrote before.
    pub(super) fn write(&mut self, line: Line, input: Input, latency_us: u64, agenda: &mut Agenda) {
        let conn = &mut self.conns[line];
        let at = agenda.now_us().saturating_add(latency_us).max(conn.up_until_us);
        conn.up_until_us = at;
        conn.up.push_back(input);
        agenda.add(at, Happening::Arrives(line));
    }

    /// The next message arrives. Returns the shard that may read it.
    pub(super) fn arrive(&mut self, line: Line) -> Option<usize> {
        let conn = &mut self.conns[line];
        let input = conn.up.pop_front()?;
        if matches!(conn.phase, Phase::Leaving | Phase::Gone) {
            return None;
        }
        conn.inbox.push_back(input);
        self.mark_readable(line);
        Some(self.conns[line].shard)
    }

    /// Moves bytes from the outbox to the socket as far as it takes them; a read of them comes onto the agenda. `calls`
    /// is told which messages are begun and finished.
    pub(super) fn flush(
        &mut self,
        line: Line,
        latency_us: u64,
        mono_ms: u64,
        agenda: &mut Agenda,
        calls: &mut Calls,
    ) {
        let conn = &mut self.conns[line];
        if matches!(conn.phase, Phase::Gone) {
            return;
        }
        let mut moved = false;
        loop {
            let mut taken = 0;
            for slice in conn.outbox.pieces().take(16) {
                let room = conn.socket_max.saturating_sub(conn.socket.len());
                let part = slice.len().min(room);
                conn.socket.extend_from_slice(&slice[..part]);
                taken += part;
                let mut at = 0;
                while at < part {
                    if conn.left == 0 {
                        // Whole messages lie in one slice.
                        let Some((head, len)) = message_len(&slice[at..]) else {
                            break;
                        };
                        conn.left = head + len;
                        calls.starts(line, mono_ms, &slice[at..at + conn.left]);
                    }
                    let step = conn.left.min(part - at);
                    (at, conn.left) = (at + step, conn.left - step);
                    if conn.left == 0 {
                        calls.finishes(line);
                    }
                }
                if part < slice.len() {
                    break;
                }
            }
            if taken == 0 {
                break;
            }
            conn.outbox.advance(taken);
            moved = true;
        }
        if conn.watched && (moved || conn.outbox.is_empty()) && conn.outbox.room().is_quarter() {
            conn.watched = false;
            self.roomy.push_back(line);
        }
        if matches!(conn.phase, Phase::Leaving) && conn.outbox.is_empty() {
            conn.phase = Phase::Gone;
            conn.inbox.clear();
            agenda.add(agenda.now_us().saturating_add(latency_us), Happening::Hears(line));
        }
        if moved {
            self.schedule_read(line, latency_us, agenda);
        }
    }

    pub(super) fn schedule_read(&mut self, line: Line, latency_us: u64, agenda: &mut Agenda) {
        let conn = &mut self.conns[line];
        if conn.held && conn.reading && !conn.read_due && !conn.socket.is_empty() {
            conn.read_due = true;
            agenda.add(agenda.now_us().saturating_add(latency_us), Happening::Reads(line));
        }
    }

    /// The client reads what the socket holds, at most so many bytes; what it makes of them.
    pub(super) fn read(&mut self, line: Line, bytes_max: usize) -> Vec<Output> {
        let conn = &mut self.conns[line];
        conn.read_due = false;
        let taken = conn.socket.len().min(bytes_max);
        let part = conn.socket.split_to(taken);
        conn.partial.extend_from_slice(&part);
        let mut outputs = Vec::new();
        while let Some(output) = conn.next_message() {
            outputs.push(output);
        }
        outputs
    }

    /// Whether both ends of every connection agree whether there is one.
    pub(super) fn is_settled(&self) -> bool {
        let agree = |conn: &Conn| match conn.held {
            true => conn.is_open(),
            false => matches!(conn.phase, Phase::Gone),
        };
        self.closed.is_empty() && self.conns.iter().all(agree)
    }

    /// Bytes that wait in the socket.
    pub(super) fn unread(&self, line: Line) -> usize {
        self.conns[line].socket.len()
    }

    /// What of it the relay can't write yet.
    pub(super) fn is_backed_up(&self, line: Line) -> bool {
        !self.conns[line].outbox.is_empty()
    }

    /// The socket dies: what has not arrived never does, and of what waits for the client only the first bytes are
    /// ever read.
    pub(super) fn cut(&mut self, line: Line, bytes_kept: usize) {
        let conn = &mut self.conns[line];
        conn.up.clear();
        conn.socket.truncate(bytes_kept);
        conn.socket_max = 0;
    }
}

impl Conn {
    /// Whether frames are taken.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    fn next_message(&mut self) -> Option<Output> {
        let bytes = &mut self.partial;
        let (head, len) = message_len(bytes)?;
        if bytes.len() < head + len {
            return None;
        }
        let opcode = bytes[0];
        bytes.advance(head);
        let payload = bytes.split_to(len).freeze();
        Some(match opcode {
            0x89 => Output::Ping,
            0x88 => Output::Close,
            _ => Output::Message(payload),
        })
    }
}

/// Lengths of the head and of the payload of the WebSocket message that begins here.
pub(crate) fn message_len(bytes: &[u8]) -> Option<(usize, usize)> {
    match *bytes.get(1)? {
        126 => Some((4, u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?).into())),
        127 => Some((
            10,
            u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?) as usize,
        )),
        short => Some((2, short.into())),
    }
}

/// Whether this message, its head included, is MEDIA.
pub(crate) fn is_media(message: &[u8]) -> bool {
    messages(message)
        .next()
        .is_some_and(|payload| tag_of(payload) == 24)
}

/// The payloads of the messages in a run.
pub fn messages(mut run: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (head, len) = message_len(run)?;
        let payload = run.get(head..head + len)?;
        run = &run[head + len..];
        Some(payload)
    })
}
