//! The world around an engine shard, over real sockets: the connections, what is queued for them, and the
//! engine's [`Effects`] on both. Whatever must be told to the engine in return is noted here and told by the loop
//! ([`crate::turn`]), never within an effect.

use crate::admission::Admission;
use crate::config::WakeSink;
use crate::conn::{Conn, Moving, Phase};
use crate::driver::Driver;
use crate::lobby::Lobby;
use crate::mailbox::{Letter, Mailbox};
use crate::metrics::{Metrics, position};
use crate::offload::Offload;
use crate::slab::Slab;
use crate::timers::{Deadline, Timers};
use crate::write::{self, Flush};
use bytes::Bytes;
use drover_engine::code;
use drover_engine::effects::{CloseHow, CloseReason, CodeCheck, Effects, StoreRequest, Stores};
use drover_engine::event::Ticket;
use drover_engine::outbox::{Outbound, Room};
use drover_engine::shard::{Session, ShardMessage};
use drover_engine::wake::Wake;
use drover_engine::{ConnId, Now};
use std::io::IoSlice;
use std::mem;
use std::sync::Arc;

/// A close frame without status (02 §1).
const CLOSE: &[u8] = &[0x88, 0x00];
/// A close frame with status 1012, service restart (02 decision 14).
const CLOSE_RESTART: &[u8] = &[0x88, 0x02, 0x03, 0xf4];
/// An empty ping.
const PING: &[u8] = &[0x89, 0x00];

/// What a connection that has not authenticated may keep of an unfinished message without being counted. No message
/// that is of use before AUTH is as long: a CONNECT with 256 groups has 9 KiB.
const UNKNOWN_BYTES: usize = 64 << 10;
/// What all such connections of a shard may keep beyond that. A message of 1 MiB is understood before AUTH too, so that
/// it gets the answer it deserves, but not from hundreds of strangers at once.
const HOARDED_BYTES_MAX: usize = 16 << 20;

/// What all shards share.
pub(crate) struct Shared {
    pub(crate) doors: Box<[Arc<Mailbox>]>,
    pub(crate) stores: Stores,
    pub(crate) offload: Offload,
    pub(crate) lobby: Arc<Lobby>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) wakes: Option<WakeSink>,
}

/// See the module.
pub(crate) struct World<D: Driver> {
    pub(crate) driver: D,
    pub(crate) conns: Slab<Conn<D::Socket>>,
    pub(crate) timers: Timers,
    pub(crate) now: Now,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) shared: Arc<Shared>,
    /// Number of this shard.
    pub(crate) me: usize,
    /// Messages that came in since the turn began. What goes out is batched already: a replay to one reader must not be
    /// slowed down for the number of its messages.
    pub(crate) turn_messages: u64,
    /// MEDIA queued since the turn began. Each is a write of its own unless a turn gathers several.
    pub(crate) turn_media: u64,
    /// To be written at the end of the turn.
    pub(crate) dirty: Vec<ConnId>,
    /// The engine is to be told that they are closed.
    pub(crate) closed: Vec<ConnId>,
    /// The engine is to be told that they have room.
    pub(crate) roomy: Vec<ConnId>,
    /// They may be read again.
    pub(crate) resumed: Vec<ConnId>,
    /// They are to be sent to another shard.
    pub(crate) moving: Vec<ConnId>,
    pub(crate) scratch: write::Scratch,
    flushes: Vec<Flush>,
    /// What [`World::weigh`] has counted.
    pub(crate) hoarded_bytes: usize,
    /// See [`crate::RelayConfig::copy_below`].
    copy_below: usize,
}

impl<D: Driver> World<D> {
    pub(crate) fn new(
        driver: D,
        me: usize,
        request_ms: u64,
        copy_below: usize,
        metrics: Arc<Metrics>,
        shared: Arc<Shared>,
        now: Now,
    ) -> Self {
        Self {
            driver,
            conns: Slab::new(),
            timers: Timers::new(request_ms),
            now,
            metrics,
            shared,
            me,
            turn_messages: 0,
            turn_media: 0,
            dirty: Vec::new(),
            closed: Vec::new(),
            roomy: Vec::new(),
            resumed: Vec::new(),
            moving: Vec::new(),
            scratch: write::Scratch::default(),
            flushes: Vec::new(),
            hoarded_bytes: 0,
            copy_below,
        }
    }

    /// Counts what a connection keeps of an unfinished message before it has authenticated, and ends it if all of them
    /// keep too much.
    pub(crate) fn weigh(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        let bytes = match conn.known {
            true => 0,
            false => conn.codec.kept_bytes().saturating_sub(UNKNOWN_BYTES),
        };
        self.hoarded_bytes = self.hoarded_bytes - conn.hoard_bytes + bytes;
        conn.hoard_bytes = bytes;
        if bytes > 0 && self.hoarded_bytes > HOARDED_BYTES_MAX {
            self.metrics.oversize.add(1);
            self.end(id);
        }
    }

    fn open(&mut self, id: ConnId) -> Option<&mut Conn<D::Socket>> {
        self.conns.get_mut(id).filter(|conn| conn.is_open())
    }

    /// Puts the connection on the list of those to be written.
    pub(crate) fn mark_dirty(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(id)
            && !conn.dirty
        {
            conn.dirty = true;
            self.dirty.push(id);
        }
    }

    /// Writes what the socket takes, and sees to what follows from that.
    pub(crate) fn flush(&mut self, id: ConnId) {
        let mut flushes = Vec::with_capacity(1);
        flushes.extend(self.begin_flush(id));
        self.flush_each(&mut flushes);
    }

    /// The same for all connections that are to be written at the end of the turn.
    pub(crate) fn flush_dirty(&mut self) {
        let mut flushes = mem::take(&mut self.flushes);
        let mut dirty = mem::take(&mut self.dirty);
        for id in dirty.drain(..) {
            if let Some(conn) = self.conns.get_mut(id) {
                conn.dirty = false;
                flushes.extend(self.begin_flush(id));
            }
        }
        // What follows from a write may queue something again, for the next turn.
        self.dirty = dirty;
        self.flush_each(&mut flushes);
        self.flushes = flushes;
    }

    fn begin_flush(&mut self, id: ConnId) -> Option<Flush> {
        let conn = self.conns.get_mut(id).filter(|conn| !conn.blocked)?;
        let shed = conn.outbox.expire_media(self.now.mono_ms);
        self.metrics.media_shed.add(shed as u64);
        Some(Flush::of(id))
    }

    /// Round by round, each of them one write to each connection that still has something to write.
    fn flush_each(&mut self, flushes: &mut Vec<Flush>) {
        while !flushes.is_empty() {
            for batch in flushes.chunks_mut(write::BATCH_MAX) {
                let copied = write::write(
                    &mut self.driver,
                    &mut self.conns,
                    batch,
                    &mut self.scratch,
                    self.copy_below,
                );
                self.metrics.copied_bytes.add(copied as u64);
            }
            flushes.retain(|flush| !self.is_flushed(flush));
        }
    }

    /// Whether nothing more can be written to the connection now; if so, sees to what follows from that.
    fn is_flushed(&mut self, flush: &Flush) -> bool {
        match flush.taken {
            Ok(bytes) => self.metrics.bytes_out.add(bytes as u64),
            Err(write::Lost) => {
                self.metrics.peer_lost.add(1);
                self.end(flush.id);
            }
        }
        let Some(conn) = self.conns.get_mut(flush.id) else {
            return true;
        };
        if !conn.blocked && conn.can_write() {
            return false;
        }
        let moved = flush.has_written || conn.outbox.is_empty();
        if conn.watched && moved && conn.outbox.room().is_quarter() {
            conn.watched = false;
            self.roomy.push(flush.id);
        }
        if matches!(conn.phase, Phase::Leaving) && !conn.has_output() {
            self.linger(flush.id);
        }
        true
    }

    /// All is written: our direction ends, and what still comes in is dropped until the peer ends too.
    fn linger(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        conn.phase = Phase::Lingering;
        let socket = conn.socket;
        if let Some(tls) = &mut conn.tls {
            tls.end();
            // If the socket doesn't take the alert, the end of the stream has to do.
            let _ = self.driver.write(socket, &[IoSlice::new(&tls.take_unsent())]);
        }
        self.driver.end_write(socket);
        if conn.ended {
            self.end(id);
        } else {
            self.timers.start(Deadline::Linger, self.now.mono_ms, id);
        }
    }

    /// The connection is over, now. The engine is told if it knows it.
    pub(crate) fn end(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.remove(id) {
            self.hoarded_bytes -= conn.hoard_bytes;
            if conn.is_open() {
                self.closed.push(id);
            }
            self.metrics.sockets.sub(1);
            self.driver.close(conn.socket);
        }
    }

    /// Begins the end of a connection: what is queued and then `last` leaves, nothing that comes in is looked at.
    pub(crate) fn leave(&mut self, id: ConnId, last: Bytes) {
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        if conn.is_open() {
            self.closed.push(id);
        }
        conn.phase = Phase::Leaving;
        conn.codec = Default::default();
        self.hoarded_bytes -= mem::take(&mut conn.hoard_bytes);
        conn.watched = false;
        conn.behind = false;
        conn.force(last, 1);
        // What still comes is dropped, but the end is to be seen.
        self.driver.resume(conn.socket);
        self.timers.start(Deadline::Flush, self.now.mono_ms, id);
        self.mark_dirty(id);
    }
}

impl<D: Driver> Effects for World<D> {
    fn room(&mut self, id: ConnId) -> Room {
        let Some(conn) = self.open(id) else {
            return Room::NONE;
        };
        let room = conn.outbox.room();
        if conn.blocked || room.is_half() {
            return room;
        }
        self.flush(id);
        self.open(id).map_or(Room::NONE, |conn| conn.outbox.room())
    }

    fn send(&mut self, id: ConnId, out: Outbound) -> bool {
        let Some(conn) = self.open(id) else { return false };
        let messages = u64::from(out.messages);
        if !conn.outbox.push(out) {
            return false;
        }
        if !conn.dirty {
            conn.dirty = true;
            self.dirty.push(id);
        }
        self.metrics.messages_out.add(messages);
        true
    }

    fn media(&mut self, id: ConnId, message: &Bytes) {
        let Some(conn) = self.conns.get_mut(id).filter(|conn| conn.is_open()) else {
            return;
        };
        if !conn.outbox.carries_media() {
            self.driver.keep_unsent_short(conn.socket);
        }
        let message = if conn.blocked {
            // It may wait for long: in memory of its own, not in the chunk that was read.
            self.metrics.copied_bytes.add(message.len() as u64);
            Bytes::copy_from_slice(message)
        } else {
            message.clone()
        };
        let shed = conn.outbox.push_media(self.now.mono_ms, message);
        if !conn.dirty {
            conn.dirty = true;
            self.dirty.push(id);
        }
        self.turn_media += 1;
        self.metrics.media_shed.add(shed as u64);
        self.metrics.messages_out.add(1);
    }

    fn watch_room(&mut self, id: ConnId) {
        if let Some(conn) = self.open(id) {
            conn.watched = true;
            self.mark_dirty(id);
        }
    }

    fn close(&mut self, id: ConnId, how: CloseHow, reason: CloseReason) {
        let Some(conn) = self.open(id) else { return };
        if how == CloseHow::Evict {
            conn.outbox.clear(true);
        }
        self.metrics.closed[position(reason)].add(1);
        let last = if how == CloseHow::Restart {
            CLOSE_RESTART
        } else {
            CLOSE
        };
        self.leave(id, Bytes::from_static(last));
        if how == CloseHow::Evict {
            self.flush(id);
            if self
                .conns
                .get_mut(id)
                .is_some_and(|conn| matches!(conn.phase, Phase::Leaving))
            {
                // The socket is full: the close frame can't leave, so the connection ends without.
                self.end(id);
            }
        }
    }

    fn ping(&mut self, id: ConnId) {
        let Some(conn) = self.open(id) else { return };
        // With no slot left it counts as sent: the probe's deadline runs all the same (02 §9).
        if conn.outbox.room().messages > 0 {
            conn.force(Bytes::from_static(PING), 1);
            self.mark_dirty(id);
        }
    }

    fn resume(&mut self, id: ConnId) {
        if let Some(conn) = self.open(id)
            && conn.paused
        {
            conn.paused = false;
            self.resumed.push(id);
        }
    }

    fn authenticated(&mut self, id: ConnId) {
        let Some(conn) = self.open(id) else { return };
        conn.known = true;
        if let Some(seat) = conn.seat.as_mut() {
            seat.authenticated();
        }
        let socket = conn.socket;
        self.driver.settle(socket);
    }

    fn migrate(&mut self, id: ConnId, shard: usize, session: Box<Session>) {
        debug_assert!(shard < self.shared.doors.len());
        if let Some(conn) = self.open(id) {
            conn.phase = Phase::Moving(Box::new(Moving { shard, session }));
            self.moving.push(id);
        }
    }

    fn post(&mut self, shard: usize, message: ShardMessage) {
        self.shared.doors[shard].post(Letter::Posted(message));
    }

    fn store(&mut self, ticket: Ticket, request: StoreRequest) {
        let door = self.shared.doors[self.me].clone();
        self.shared
            .stores
            .submit(request, move |answer| door.post(Letter::Stored(ticket, answer)));
    }

    fn wake(&mut self, wakes: Vec<Wake>) {
        if let Some(sink) = &self.shared.wakes {
            sink(wakes);
        }
    }

    fn offload(&mut self, ticket: Ticket, check: CodeCheck) -> bool {
        let door = self.shared.doors[self.me].clone();
        self.shared
            .offload
            .run(move || door.post(Letter::Offloaded(ticket, code::matches(&check))))
    }
}
