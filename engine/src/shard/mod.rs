//! One core's worth of realms and connections: events in, effects out.
//!
//! This file is the hub: it decodes, asks the state × frame table, keeps answers in request order, and runs the
//! timers. The flows live beside it: [`admission`] (CONNECT, AUTH), [`control`] (ACCESS, JOIN, minting), [`ingest`]
//! (SEND, HANDSHAKE, commits), [`fanout`], [`replay`] (SUB), [`reconcile`] (RECON), [`live`]; [`later`] answers the
//! frames whose flow is still to come.

mod admission;
mod collector;
pub(crate) mod control;
mod drops;
mod fanout;
mod gather;
mod ingest;
mod keys;
mod later;
mod live;
mod map_form;
mod reconcile;
mod replay;
mod retention;
mod wake;
mod wrap;

pub use crate::session::Session;
pub use control::operator::{MintOutcome, Operator, Reply};
pub(crate) use keys::Taken;

use crate::collector::Collected;
use crate::config::Config;
use crate::directory::Directory;
use crate::effects::{CloseHow, CloseReason, Effects, StoreRequest};
use crate::event::{ConnId, Event, Flow, Now, StoreAnswer, Ticket};
use crate::group::{Group, Loaded};
use crate::inspect::TransparencyLog;
use crate::limits::{ANSWERS_WAITING_MAX, PROBE_MS, PROVISIONAL_CHECK_MS, STALL_MS};
use crate::message;
use crate::metrics::Metrics;
use crate::outbox::Outbound;
use crate::realm::{Admission, Realm};
use crate::session::{Allowed, Owed, State, Waiting, allowed};
use crate::wake::{Wake, WakeHandle};
use bytes::Bytes;
use drover_storage::log::{StreamId, StreamKind};
use drover_storage::{RealmId, StoreError};
use drover_wire::error::{Code, Refusal};
use drover_wire::frame::{DecodeError, Frame};
use drover_wire::id::{EntryHash, GroupId, PublicKey};
use hashbrown::HashMap;
use ingest::Ingest;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a realm says to AUTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// How it admits the device, and under which entry.
    Judged(Admission, EntryHash),
    /// Its state can't be read.
    StoreDown,
}

/// What shards and the operator's surface say to each other; opaque to the transport.
pub struct ShardMessage(Posted);

enum Posted {
    /// Does this realm admit that device?
    Ask {
        from: usize,
        conn: ConnId,
        realm: RealmId,
        device: PublicKey,
    },
    /// The answer.
    Verdict {
        conn: ConnId,
        realm: RealmId,
        verdict: Verdict,
    },
    /// A request on a connection that lives elsewhere.
    Remote {
        origin: control::Origin,
        realm: RealmId,
        request: control::Request,
    },
    /// The answer.
    Answer { conn: ConnId, answer: control::Answer },
    /// From the operator's surface.
    Operator { realm: RealmId, operator: Operator },
    /// The ringer does not know this handle.
    ForgetHandle { realm: RealmId, handle: WakeHandle },
    /// To shard 0: a pass of the collector is wanted now.
    CollectNow { listing: bool, reply: Reply<Collected> },
    /// A pass begins.
    Collect { listing: bool },
    /// To itself: the next part of it.
    CollectOn,
    /// To shard 0: this shard is done.
    Collected(Box<Collected>),
}

impl ShardMessage {
    /// A request of the operator's surface to a workspace, and the shard to post it to.
    pub fn operator(realm: RealmId, operator: Operator, shards: usize) -> (usize, Self) {
        (
            Directory::shard_of(&realm, shards),
            Self(Posted::Operator { realm, operator }),
        )
    }
}

/// What all shards of a process share for challenges: a secret and a counter (02 §4).
#[derive(Debug)]
pub struct Challenges {
    secret: [u8; 32],
    nonce: AtomicU64,
}

impl Challenges {
    /// With a fresh random secret.
    ///
    /// # Errors
    /// When the operating system gives no randomness.
    pub fn new() -> Result<Self, getrandom::Error> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret)?;
        Ok(Self {
            secret,
            nonce: AtomicU64::new(0),
        })
    }

    fn next(&self) -> (&[u8; 32], u64) {
        (&self.secret, self.nonce.fetch_add(1, Ordering::Relaxed))
    }
}

/// A control partition as it was read.
type Records = Vec<(Vec<u8>, Bytes)>;

/// A realm's place on this shard.
pub(crate) struct RealmSlot {
    id: RealmId,
    state: RealmState,
    /// It was given up while one of its control operations was under way: not read again before the answer.
    is_committing: bool,
    /// It was given up while this batch was under way with something of it: not read again before its end.
    after_batch: u64,
}

impl RealmSlot {
    fn new(id: RealmId) -> Self {
        Self {
            id,
            state: RealmState::Absent,
            is_committing: false,
            after_batch: 0,
        }
    }
}

enum RealmState {
    /// Not in memory.
    Absent,
    /// Being read, or to be read once the store has settled: its records, its byte count, and who waits.
    Loading {
        asked: bool,
        records: Option<Records>,
        usage: Option<u64>,
        waiters: Vec<Waiter>,
    },
    /// In memory.
    Ready(Box<Realm>),
}

/// Who waits for a realm to be loaded.
enum Waiter {
    /// A question of another shard's (or our own) AUTH.
    Ask {
        from: usize,
        conn: ConnId,
        device: PublicKey,
    },
    /// A connection that moved here or is about to be bound.
    Finish {
        conn: ConnId,
    },
    Remote {
        origin: control::Origin,
        request: control::Request,
    },
    Operator(Operator),
    ForgetHandle(WakeHandle),
    Sweep,
}

/// What a ticket stands for.
enum Pending {
    /// The batch under way.
    Batch,
    /// A group's index.
    Index { group: u32, kind: StreamKind },
    /// A realm's records.
    Load { realm: u32 },
    /// A realm's records, for its transparency log.
    Log { reply: Reply<Option<TransparencyLog>> },
    /// A realm's byte count.
    Usage { realm: u32 },
    /// A page of a connection's replay.
    Replay { conn: ConnId },
    /// The envelopes of a connection's RECON.
    Recon { conn: ConnId },
    /// The accepted envelope a duplicate of a map session is answered with.
    Again { conn: ConnId },
    /// Groups named by a member.
    Claim { conn: ConnId, groups: Vec<GroupId> },
    /// A stage of a group's DROP.
    Drop { group: u32 },
    /// A control operation's claim or commit.
    Control { realm: u32, step: control::Step },
    /// One of several records.
    Gather { gather: u64, at: usize },
    /// Served packages being deleted.
    Forgotten,
    /// A partition the collector looks through.
    Sweep { realm: u32, step: collector::Sweep },
    /// A record or an index the collector counts by.
    Overdue,
    /// A one-time code being hashed.
    Code { realm: u32, check: control::CodeTry },
}

struct Slot {
    generation: u32,
    session: Option<Box<Session>>,
}

/// One shard.
pub struct Shard {
    index: usize,
    config: Arc<Config>,
    directory: Arc<Directory>,
    metrics: Arc<Metrics>,
    challenges: Arc<Challenges>,
    now: Now,
    sessions: Vec<Slot>,
    realms: Vec<RealmSlot>,
    realm_slots: HashMap<RealmId, u32>,
    groups: Vec<Group>,
    group_slots: HashMap<GroupId, u32>,
    pending: HashMap<Ticket, Pending>,
    next_ticket: u64,
    ingest: Ingest,
    /// DROPs that are being done.
    drops: drops::Drops,
    /// Records being read together.
    gathers: HashMap<u64, gather::Gather>,
    next_gather: u64,
    /// Connections whose parked frame is to be handled again.
    retry: Vec<ConnId>,
    timers: BinaryHeap<Reverse<(u64, ConnId)>>,
    /// Devices to be woken at the end of this turn.
    woken: Vec<Wake>,
    /// Registrations of the last hour by principal; reconnecting does not clear them (12 §3).
    registered: HashMap<EntryHash, wake::Registered>,
    collector: collector::Collector,
    /// Realms to load as soon as nothing of them is under way any more.
    deferred: Vec<u32>,
    /// Counts the refusals that carry a spread interval.
    jitter: u64,
    /// Realms to load before anybody asks: those whose founder may come back after a restart.
    preload: Vec<RealmId>,
    next_sweep_ms: u64,
    /// Seed of the group indexes' hash tables.
    secret: u64,
    draining: bool,
}

/// How often idle groups are looked at.
const SWEEP_MS: u64 = 10_000;

impl Shard {
    /// Shard number `index` of `config.shards`.
    pub fn new(
        index: usize,
        config: Arc<Config>,
        directory: Arc<Directory>,
        metrics: Arc<Metrics>,
        challenges: Arc<Challenges>,
    ) -> Self {
        let preload = directory
            .realms()
            .into_iter()
            .filter(|r| Directory::shard_of(r, config.shards) == index && directory.group_count(r) == 0)
            .collect();
        let secret = u64::from_le_bytes(challenges.secret[..8].try_into().unwrap_or_default());
        Self {
            index,
            config,
            directory,
            metrics,
            challenges,
            now: Now {
                mono_ms: 0,
                wall_ms: 0,
            },
            sessions: Vec::new(),
            realms: Vec::new(),
            realm_slots: HashMap::new(),
            groups: Vec::new(),
            group_slots: HashMap::new(),
            pending: HashMap::new(),
            next_ticket: 0,
            ingest: Ingest::default(),
            drops: drops::Drops::default(),
            gathers: HashMap::new(),
            next_gather: 0,
            retry: Vec::new(),
            timers: BinaryHeap::new(),
            woken: Vec::new(),
            registered: HashMap::new(),
            collector: collector::Collector::default(),
            deferred: Vec::new(),
            jitter: secret,
            preload,
            next_sweep_ms: SWEEP_MS,
            secret,
            draining: false,
        }
    }

    /// One whole inbound message of a connection.
    pub fn message<E: Effects>(&mut self, now: Now, conn: ConnId, message: Bytes, fx: &mut E) -> Flow {
        self.now = now;
        let Some(session) = self.session(conn) else {
            return Flow::Pause;
        };
        if session.state == State::Closed {
            return Flow::Pause;
        }
        session.active_ms = now.mono_ms;
        session.probe_ms = None;
        session.charged = false;
        if session.state == State::Judging {
            // It moved here and its AUTH is still being judged: handled once that is done.
            session.waiting = Waiting::Parked(message);
            session.paused = true;
            return Flow::Pause;
        }
        self.dispatch(conn, message, fx);
        if !self.retry.is_empty() {
            self.settle(fx);
        }
        let Some(session) = self.session(conn) else {
            return Flow::Pause;
        };
        let flow = flow_of(session);
        session.paused = flow == Flow::Pause;
        flow
    }

    /// Anything else.
    pub fn handle<E: Effects>(&mut self, now: Now, event: Event, fx: &mut E) {
        self.now = now;
        match event {
            Event::Opened { conn, peer } => {
                self.insert(conn, Box::new(Session::new(peer, now.mono_ms)));
                self.arm(conn, now.mono_ms + self.config.handshake_timeout_ms);
                if self.draining {
                    self.fail_over(conn, fx);
                }
            }
            Event::Arrived { conn, mut session } => {
                session.armed_ms = None; // its timers stayed behind
                self.insert(conn, session);
                self.deadline(conn, fx);
                if self.draining {
                    self.fail_over(conn, fx);
                } else {
                    self.finish_auth(conn, fx);
                }
            }
            Event::Activity { conn } => {
                if let Some(session) = self.session(conn) {
                    session.active_ms = now.mono_ms;
                    session.probe_ms = None;
                }
            }
            Event::Text { conn } => self.fail(conn, Code::MalformedHeader.into(), CloseReason::Protocol, fx),
            Event::Closed { conn } => {
                self.detach(conn);
                if let Some(session) = self.take_session(conn) {
                    self.undelivered(session.owed, fx);
                }
            }
            Event::Room { conn } => self.room(conn, fx),
            Event::Stored { ticket, answer } => self.stored(ticket, answer, fx),
            Event::Offloaded { ticket, matches } => {
                if let Some(Pending::Code { realm, check }) = self.pending.remove(&ticket) {
                    self.code_checked(realm, check, matches, fx);
                }
            }
            Event::Posted(ShardMessage(posted)) => self.posted(posted, fx),
            Event::Tick => self.tick(fx),
            Event::Drain => self.drain(fx),
        }
        self.settle(fx);
    }

    /// The turn is over: the open batch goes to the store. Called once per turn, before outboxes are written.
    pub fn end_of_turn<E: Effects>(&mut self, now: Now, fx: &mut E) {
        self.now = now;
        self.begin_schedule();
        for realm in std::mem::take(&mut self.preload) {
            self.realm_slot(&realm, fx);
        }
        self.submit_batch(fx);
        if !self.woken.is_empty() {
            fx.wake(std::mem::take(&mut self.woken));
        }
    }

    /// The monotonic moment of the next timer, if any: [`Event::Tick`] is due then.
    pub fn next_wake_ms(&self) -> Option<u64> {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        // Without groups there is nothing to sweep, and an idle shard sleeps on.
        let sweep = (!self.groups.is_empty()).then_some(self.next_sweep_ms);
        [timer, sweep, self.collector.next_ms()]
            .into_iter()
            .flatten()
            .min()
    }

    /// After [`Event::Drain`]: whether nothing is left to wait for.
    pub fn drained(&self) -> bool {
        self.draining && self.ingest.is_idle() && self.drops.is_idle() && self.pending.is_empty()
    }

    // ---- sessions

    fn insert(&mut self, conn: ConnId, session: Box<Session>) {
        let at = conn.slot as usize;
        while self.sessions.len() <= at {
            self.sessions.push(Slot {
                generation: 0,
                session: None,
            });
        }
        self.sessions[at] = Slot {
            generation: conn.generation,
            session: Some(session),
        };
    }

    fn session(&mut self, conn: ConnId) -> Option<&mut Session> {
        self.sessions
            .get_mut(conn.slot as usize)
            .filter(|slot| slot.generation == conn.generation)
            .and_then(|slot| slot.session.as_deref_mut())
    }

    fn take_session(&mut self, conn: ConnId) -> Option<Box<Session>> {
        self.sessions
            .get_mut(conn.slot as usize)
            .filter(|slot| slot.generation == conn.generation)
            .and_then(|slot| slot.session.take())
    }

    /// Ends what the connection holds: its place in the registry and its subscriptions. Its answers may still leave.
    fn detach(&mut self, conn: ConnId) {
        let Some(session) = self.session(conn) else { return };
        let (realm, entry) = (session.realm.take(), session.entry);
        let was_ready = session.state == State::Ready;
        session.state = State::Closed;
        session.waiting = Waiting::No;
        session.judging = None;
        let subscribed = std::mem::take(&mut session.subscribed);
        for group in subscribed {
            if let Some(group) = self.groups.get_mut(group as usize) {
                group.subscribers.retain(|s| s.conn != conn);
            }
        }
        if let (Some(slot), Some(entry)) = (realm, entry)
            && let Some(realm) = self.realm_mut(slot)
        {
            realm.leave(&entry, conn);
        }
        if was_ready {
            self.metrics.ready.sub(1);
        }
    }

    /// Cuts a revoked device off: no frame, at once (05 §9).
    fn evict<E: Effects>(&mut self, conn: ConnId, fx: &mut E) {
        self.detach(conn);
        if let Some(session) = self.session(conn) {
            let owed = std::mem::take(&mut session.owed);
            self.undelivered(owed, fx);
            fx.close(conn, CloseHow::Evict, CloseReason::Evicted);
        }
    }

    // ---- answers

    /// Queues an answer behind those that are owed before it.
    fn reply<E: Effects>(&mut self, conn: ConnId, out: Outbound, fx: &mut E) {
        let Some(session) = self.session(conn) else { return };
        if session.owed.is_empty() && fx.send(conn, out.clone()) {
            return;
        }
        session.owed.push_back(Owed::Ready(out));
        self.flush_owed(conn, fx);
    }

    fn refuse<E: Effects>(&mut self, conn: ConnId, refusal: impl Into<Refusal>, fx: &mut E) {
        let refusal = self.jittered(refusal.into());
        self.count_error(refusal.code);
        let map = self.session(conn).is_some_and(|s| s.map);
        self.reply(conn, message::refusal(&refusal, map), fx);
    }

    /// `retry/*` carries 1 to 5 seconds, spread so that clients don't all come back at once (04 decision 6).
    fn jittered(&mut self, refusal: Refusal) -> Refusal {
        if refusal.code.class() != drover_wire::error::Class::Retry || refusal.retry_after_s != 0 {
            return refusal;
        }
        self.jitter = self.jitter.wrapping_add(1);
        let spread = self.jitter.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        refusal.after(1 + (spread % 5) as u32)
    }

    fn count_error(&self, code: Code) {
        if let Some(counter) = self.metrics.errors_sent.get(code as usize) {
            counter.add(1);
        }
    }

    /// An ERROR, then the end of the socket once it has left (02 §14).
    fn fail<E: Effects>(&mut self, conn: ConnId, refusal: Refusal, reason: CloseReason, fx: &mut E) {
        let closed = self.session(conn).is_none_or(|s| s.state == State::Closed);
        if closed {
            return;
        }
        self.detach(conn);
        self.refuse(conn, refusal, fx);
        self.close_when_flushed(conn, CloseHow::Flush, reason, fx);
    }

    /// What a connection was owed and never got: only key packages are kept for somebody else.
    fn undelivered<E: Effects>(&mut self, owed: VecDeque<Owed>, fx: &mut E) {
        for owed in owed {
            if let Owed::Bundles { taken, .. } = owed {
                self.put_back(*taken, fx);
            }
        }
    }

    fn close_when_flushed<E: Effects>(
        &mut self,
        conn: ConnId,
        how: CloseHow,
        reason: CloseReason,
        fx: &mut E,
    ) {
        if let Some(session) = self.session(conn) {
            if session.owed.is_empty() {
                session.closing = None;
                fx.close(conn, how, reason);
            } else {
                session.closing = Some((how, reason));
            }
        }
    }

    /// Lets every answer leave whose turn it is and that has room.
    fn flush_owed<E: Effects>(&mut self, conn: ConnId, fx: &mut E) {
        let done = self.ingest.done();
        let (now, stall_at) = (self.now.mono_ms, self.now.mono_ms + STALL_MS);
        let Some(session) = self.session(conn) else { return };
        let (mut full, mut progress) = (false, false);
        let mut delivered = Vec::new();
        while let Some(front) = session.owed.front() {
            match front {
                Owed::Ack { batch, .. } if *batch <= done => {
                    let room = fx.room(conn);
                    let room = room.messages.min(room.cost / crate::outbox::MESSAGE_COST);
                    full = room == 0 || !fx.send(conn, message::acks(&mut session.owed, done, room));
                }
                Owed::After { batch, .. } | Owed::Ack { batch, .. } if *batch > done => break,
                Owed::Ready(out) | Owed::After { out, .. } | Owed::Bundles { out, .. } => {
                    full = !fx.send(conn, out.clone());
                    if !full && let Some(Owed::Bundles { taken, .. }) = session.owed.pop_front() {
                        delivered.push(*taken);
                    }
                }
                Owed::Ack { .. } => break,
            }
            if full {
                break;
            }
            progress = true;
        }
        if full {
            // The peer has ten seconds for each step it makes (02 §2, decision 1).
            if progress || session.stalled_ms.is_none() {
                session.stalled_ms = Some(now);
                self.arm(conn, stall_at);
            }
            fx.watch_room(conn);
        }
        for taken in delivered {
            self.forget_packages(&taken, fx);
        }
        if full {
            return;
        }
        let Some(session) = self.session(conn) else { return };
        // A replay that waits for room goes on waiting.
        if progress || !matches!(session.waiting, Waiting::Replay(_)) {
            session.stalled_ms = None;
        }
        if session.owed.is_empty() {
            if session.owed.capacity() > 64 {
                session.owed = VecDeque::new();
            }
            if let Some((how, reason)) = session.closing.take() {
                fx.close(conn, how, reason);
                return;
            }
            if matches!(session.waiting, Waiting::Parked(_)) {
                self.retry.push(conn);
                return;
            }
        }
        self.update_flow(conn, fx);
    }

    /// Tells the transport to read on if nothing holds the connection back any more.
    fn update_flow<E: Effects>(&mut self, conn: ConnId, fx: &mut E) {
        if let Some(session) = self.session(conn)
            && session.paused
            && flow_of(session) == Flow::Continue
        {
            session.paused = false;
            fx.resume(conn);
        }
    }

    /// A frame's own work is done: its answer leaves, the connection goes on.
    fn answered<E: Effects>(&mut self, conn: ConnId, out: Outbound, fx: &mut E) {
        if let Some(session) = self.session(conn) {
            session.waiting = Waiting::No;
            self.reply(conn, out, fx);
            if self.draining {
                return self.fail_over(conn, fx);
            }
            self.update_flow(conn, fx);
        }
    }

    fn answered_refusal<E: Effects>(&mut self, conn: ConnId, refusal: Refusal, fx: &mut E) {
        let refusal = self.jittered(refusal);
        self.count_error(refusal.code);
        let map = self.session(conn).is_some_and(|s| s.map);
        self.answered(conn, message::refusal(&refusal, map), fx);
    }

    /// The outbox has room again.
    fn room<E: Effects>(&mut self, conn: ConnId, fx: &mut E) {
        self.flush_owed(conn, fx);
        let replaying = self
            .session(conn)
            .is_some_and(|s| matches!(s.waiting, Waiting::Replay(_)));
        if replaying {
            self.advance_replay(conn, fx);
        }
    }

    // ---- frames

    /// Handles frames again that waited for something.
    fn settle<E: Effects>(&mut self, fx: &mut E) {
        while let Some(conn) = self.retry.pop() {
            let Some(session) = self.session(conn) else {
                continue;
            };
            if let Waiting::Parked(_) = session.waiting
                && let Waiting::Parked(message) = std::mem::take(&mut session.waiting)
            {
                self.dispatch(conn, message, fx);
            }
            self.update_flow(conn, fx);
        }
    }

    /// Leaves a frame for later: it is handled again, whole, once what it waits for has come.
    fn park(&mut self, conn: ConnId, message: &Bytes) {
        if let Some(session) = self.session(conn) {
            session.waiting = Waiting::Parked(message.clone());
        }
    }

    fn dispatch<E: Effects>(&mut self, conn: ConnId, message: Bytes, fx: &mut E) {
        if drover_wire::map::is_map(&message) {
            return self.dispatch_map(conn, message, fx);
        }
        let frame = match Frame::decode(&message) {
            Ok(frame) => frame,
            Err(DecodeError { refusal, closes }) => {
                self.metrics.frames_in[0].add(1);
                if closes {
                    self.fail(conn, refusal, CloseReason::Protocol, fx);
                } else {
                    self.refuse(conn, refusal, fx);
                }
                return;
            }
        };
        let Some(session) = self.session(conn) else { return };
        let (state, first_time) = (session.state, !session.charged);
        if first_time {
            self.metrics.frames_in[usize::from(frame.tag())].add(1);
        }
        if allowed(state, &frame) == Allowed::No {
            return self.fail(conn, Code::MalformedHeader.into(), CloseReason::Protocol, fx);
        }
        match frame {
            Frame::Send { envelope } => self.send(conn, envelope, &message, fx),
            Frame::Connect { version, groups, .. } => self.connect(conn, version, groups, false, fx),
            Frame::Auth {
                device_key,
                signature,
            } => self.auth(conn, device_key, &signature, fx),
            Frame::Sub { group, from_seq } => self.sub(conn, group, from_seq, false, &message, fx),
            Frame::Recon { group, payload } => self.recon(conn, group, payload, &message, fx),
            Frame::Handshake {
                group, message: body, ..
            } => self.handshake(conn, group, body, &message, fx),
            Frame::Live { group, ct, .. } => self.live(conn, group, ct, &message, fx),
            Frame::Access { body } => self.access(conn, body, &message, fx),
            Frame::Join { body } => self.join(conn, body, &message, fx),
            Frame::Invite { body } => self.invite(conn, body, &message, fx),
            Frame::Wrap { body } => self.wrap(conn, body, &message, fx),
            Frame::Blob { payload } => self.blob(conn, payload, &message, fx),
            Frame::Drop { payload } => self.drop_below(conn, payload, &message, fx),
            Frame::Keys(keys) => self.keys(conn, &keys, &message, fx),
            Frame::Bye { .. } => {
                self.reply(conn, message::frame(&Frame::Bye { reason: &[] }), fx);
                self.detach(conn);
                self.close_when_flushed(conn, CloseHow::Flush, CloseReason::Client, fx);
            }
            Frame::Wake(wake) => self.wake(conn, &wake, &message, fx),
            other => self.later(conn, &other, fx),
        }
    }

    /// A frame that must see everything its connection sent before waits for the answers owed so far. Returns
    /// whether it has to.
    fn waits_its_turn(&mut self, conn: ConnId, message: &Bytes) -> bool {
        let waits = self.session(conn).is_some_and(|s| !s.owed.is_empty());
        if waits {
            self.park(conn, message);
        }
        waits
    }

    /// Whether this session may use that group (02 §5.2), and the group's slot.
    fn authorize(&mut self, conn: ConnId, group: &GroupId) -> Result<u32, Refusal> {
        let bound = self
            .session(conn)
            .and_then(|s| s.realm)
            .ok_or(Code::WriterNotInAccessSet)?;
        if let Some(&slot) = self.group_slots.get(group) {
            let group = &mut self.groups[slot as usize];
            group.used_ms = self.now.mono_ms;
            return if group.realm == bound {
                Ok(slot)
            } else {
                Err(Code::WriterNotInAccessSet.into())
            };
        }
        let owner = self.directory.group(group).ok_or(Code::GroupUnknown)?;
        if self.realms[bound as usize].id != owner {
            return Err(Code::WriterNotInAccessSet.into());
        }
        let slot = self.groups.len() as u32;
        self.groups.push(Group::new(*group, bound, self.now.mono_ms));
        self.group_slots.insert(*group, slot);
        Ok(slot)
    }

    /// Whether a stream's index is in memory; if not, it is asked for and the frame parked.
    fn has_index<E: Effects>(
        &mut self,
        conn: ConnId,
        group: u32,
        kind: StreamKind,
        message: &Bytes,
        fx: &mut E,
    ) -> bool {
        let id = self.groups[group as usize].id;
        let loaded = self.loaded(group, kind);
        match loaded {
            Loaded::Warm(_) => return true,
            // A frame handled again for another reason waits already.
            Loaded::Loading { waiters, .. } if waiters.contains(&conn) => {}
            Loaded::Loading { waiters, .. } => waiters.push(conn),
            Loaded::Cold => {
                let ticket = self.ticket(Pending::Index { group, kind });
                let waiters = vec![conn];
                *self.loaded(group, kind) = Loaded::Loading { ticket, waiters };
                fx.store(ticket, StoreRequest::Index(StreamId { kind, group: id }));
            }
        }
        self.park(conn, message);
        false
    }

    fn loaded(&mut self, group: u32, kind: StreamKind) -> &mut Loaded {
        let group = &mut self.groups[group as usize];
        match kind {
            StreamKind::Envelopes => &mut group.envelopes,
            StreamKind::Handshakes => &mut group.handshakes,
        }
    }

    // ---- the store's answers

    fn ticket(&mut self, pending: Pending) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.pending.insert(ticket, pending);
        ticket
    }

    fn stored<E: Effects>(&mut self, ticket: Ticket, answer: StoreAnswer, fx: &mut E) {
        match (self.pending.remove(&ticket), answer) {
            (Some(Pending::Batch), StoreAnswer::Append(result)) => self.batch_done(result, fx),
            (Some(Pending::Index { group, kind }), StoreAnswer::Index(result)) => {
                self.index_read(ticket, group, kind, result, fx);
            }
            (Some(Pending::Load { realm }), StoreAnswer::Load(result)) => {
                self.realm_read(realm, result.map(|r| (Some(r), None)), fx);
            }
            (Some(Pending::Log { reply }), StoreAnswer::Load(result)) => Self::log_read(reply, &result),
            (Some(Pending::Usage { realm }), StoreAnswer::Usage(result)) => {
                self.realm_read(realm, result.map(|u| (None, Some(u))), fx);
            }
            (Some(Pending::Replay { conn }), StoreAnswer::Read(result)) => self.replay_read(conn, result, fx),
            (Some(Pending::Recon { conn }), StoreAnswer::Read(result)) => self.recon_read(conn, result, fx),
            (Some(Pending::Again { conn }), StoreAnswer::Read(result)) => self.again_read(conn, result, fx),
            (Some(Pending::Claim { conn, groups }), StoreAnswer::Claim(result)) => {
                self.groups_claimed(conn, &groups, result, fx);
            }
            (Some(Pending::Drop { group }), answer) => self.drop_stored(ticket, group, answer, fx),
            (Some(Pending::Gather { gather, at }), StoreAnswer::Get(result)) => {
                self.gather_read(gather, at, result, fx);
            }
            (Some(Pending::Sweep { realm, step }), StoreAnswer::Load(result)) => {
                self.sweep_read(realm, step, result, fx);
            }
            (Some(Pending::Overdue), answer) => self.overdue_read(answer, fx),
            (Some(Pending::Forgotten), StoreAnswer::Commit(result)) => self.packages_forgotten(result),
            (Some(Pending::Control { realm, step }), StoreAnswer::Commit(result)) => {
                self.control_committed(realm, step, result, fx);
            }
            (Some(Pending::Control { realm, step }), StoreAnswer::Claim(result)) => {
                self.control_claimed(realm, step, result, fx);
            }
            (pending, _) => debug_assert!(pending.is_none(), "an answer of another shape than its request"),
        }
    }

    fn index_read<E: Effects>(
        &mut self,
        asked: Ticket,
        group: u32,
        kind: StreamKind,
        result: Result<Vec<drover_storage::log::IndexEntry>, StoreError>,
        fx: &mut E,
    ) {
        let secret = self.secret;
        let loaded = self.loaded(group, kind);
        let waiters = match std::mem::take(loaded) {
            Loaded::Loading { ticket, waiters } if ticket == asked => waiters,
            other => {
                *loaded = other; // the realm was dropped meanwhile, and perhaps loaded again
                return;
            }
        };
        match result {
            Ok(entries) => {
                let first = match kind {
                    StreamKind::Envelopes => 1,
                    StreamKind::Handshakes => 0,
                };
                *loaded = Loaded::Warm(crate::group::Index::new(&entries, first, secret));
                self.retry.extend(waiters);
            }
            Err(_) => {
                for conn in waiters {
                    let waits = |s: &mut Session| matches!(s.waiting, Waiting::Parked(_));
                    if self.session(conn).is_some_and(waits) {
                        self.answered_refusal(conn, Code::Backpressure.into(), fx);
                    }
                }
            }
        }
    }

    // ---- realms

    fn realm_mut(&mut self, slot: u32) -> Option<&mut Realm> {
        match self.realms.get_mut(slot as usize).map(|r| &mut r.state) {
            Some(RealmState::Ready(realm)) => Some(realm),
            _ => None,
        }
    }

    /// The slot of a realm of this shard; begins to load it if it isn't in memory.
    fn realm_slot<E: Effects>(&mut self, id: &RealmId, fx: &mut E) -> u32 {
        let slot = match self.realm_slots.get(id) {
            Some(&slot) => slot,
            None => {
                let slot = self.realms.len() as u32;
                self.realms.push(RealmSlot::new(id.clone()));
                self.realm_slots.insert(id.clone(), slot);
                slot
            }
        };
        let state = &mut self.realms[slot as usize].state;
        if matches!(state, RealmState::Absent) {
            *state = RealmState::Loading {
                asked: false,
                records: None,
                usage: None,
                waiters: Vec::new(),
            };
            self.load(slot, fx);
        }
        slot
    }

    /// Asks the store for a realm, but not while something of it is under way: what is read must be all there is.
    fn load<E: Effects>(&mut self, slot: u32, fx: &mut E) {
        let done = self.ingest.done();
        let place = &mut self.realms[slot as usize];
        let RealmState::Loading {
            asked: asked @ false, ..
        } = &mut place.state
        else {
            return;
        };
        if place.is_committing || place.after_batch > done {
            self.deferred.push(slot);
            return;
        }
        *asked = true;
        let id = place.id.clone();
        let load = self.ticket(Pending::Load { realm: slot });
        fx.store(load, StoreRequest::Load(id.clone()));
        let usage = self.ticket(Pending::Usage { realm: slot });
        fx.store(usage, StoreRequest::Usage(id));
    }

    fn load_deferred<E: Effects>(&mut self, fx: &mut E) {
        for slot in std::mem::take(&mut self.deferred) {
            self.load(slot, fx);
        }
    }

    /// Serves `waiter` now if the realm is in memory, else once it is.
    fn when_loaded<E: Effects>(&mut self, id: &RealmId, waiter: Waiter, fx: &mut E) {
        let slot = self.realm_slot(id, fx);
        match &mut self.realms[slot as usize].state {
            RealmState::Loading { waiters, .. } => waiters.push(waiter),
            _ => self.serve(slot, waiter, true, fx),
        }
    }

    fn realm_read<E: Effects>(
        &mut self,
        slot: u32,
        part: Result<(Option<Records>, Option<u64>), StoreError>,
        fx: &mut E,
    ) {
        let place = &mut self.realms[slot as usize];
        let RealmState::Loading {
            records,
            usage,
            waiters,
            ..
        } = &mut place.state
        else {
            return;
        };
        let loaded = match part {
            Ok((got_records, got_usage)) => {
                *records = got_records.or(records.take());
                *usage = got_usage.or(*usage);
                match (&*records, *usage) {
                    (Some(records), Some(usage)) => Realm::from_records(place.id.clone(), records, usage),
                    _ => return,
                }
            }
            Err(error) => Err(error),
        };
        let waiters = std::mem::take(waiters);
        let is_there = match loaded {
            Ok(realm) => {
                self.metrics.log_bytes.add(realm.log_bytes);
                // A creation with an unknown outcome may have claimed its token.
                for token in realm.invites.keys() {
                    self.directory.claimed_token(*token, &realm.id);
                }
                place.state = RealmState::Ready(Box::new(realm));
                self.note_founders(slot);
                true
            }
            Err(error) => {
                tracing::warn!(%error, "a workspace could not be loaded");
                place.state = RealmState::Absent;
                false
            }
        };
        for waiter in waiters {
            self.serve(slot, waiter, is_there, fx);
        }
    }

    fn serve<E: Effects>(&mut self, slot: u32, waiter: Waiter, is_there: bool, fx: &mut E) {
        let down = || Refusal::plain(Code::Backpressure);
        match waiter {
            Waiter::Ask { from, conn, device } => {
                let (wall_ms, id) = (self.now.wall_ms, self.realms[slot as usize].id.clone());
                let verdict = match self.realm_mut(slot) {
                    Some(realm) => {
                        let (admission, entry) = realm.admits(&device, wall_ms);
                        Verdict::Judged(admission, entry)
                    }
                    None => Verdict::StoreDown,
                };
                if from == self.index {
                    self.verdict(conn, id, verdict, fx);
                } else {
                    fx.post(
                        from,
                        ShardMessage(Posted::Verdict {
                            conn,
                            realm: id,
                            verdict,
                        }),
                    );
                }
            }
            Waiter::Finish { conn } if is_there => self.finish_auth(conn, fx),
            Waiter::Finish { conn } => self.fail(conn, down(), CloseReason::Protocol, fx),
            Waiter::Remote { origin, request } if is_there => self.serve_request(slot, origin, request, fx),
            Waiter::ForgetHandle(handle) if is_there => {
                self.enqueue(slot, control::Op::Wake(wake::WakeOp::Forget(handle)), fx);
            }
            Waiter::ForgetHandle(_) => {} // the next wake finds out again
            Waiter::Sweep => self.sweep_realm(slot, is_there, fx),
            Waiter::Remote { origin, request } => self.send_answer(origin, control::unread(&request), fx),
            Waiter::Operator(operator) => self.serve_operator(slot, operator, is_there, fx),
        }
    }

    /// The store's answer about this realm is unknown: forget it, end its connections, load it again on next use
    /// (decisions.md 47).
    fn drop_realm<E: Effects>(&mut self, slot: u32, fx: &mut E) {
        if !matches!(self.realms[slot as usize].state, RealmState::Ready(_)) {
            return;
        }
        let conns: Vec<ConnId> = self
            .connections()
            .filter(|(_, s)| s.realm == Some(slot))
            .map(|(c, _)| c)
            .collect();
        // What is under way is acknowledged if it becomes durable; the open batch loses what it has of this realm.
        let under_way = self.ingest.open_number() - 1;
        for conn in conns {
            self.fail_waiting(conn, under_way, fx);
            self.fail(conn, Code::Failover.into(), CloseReason::Shutdown, fx);
        }
        let groups = &self.groups;
        let involved = self
            .ingest
            .forget(slot, |group| groups[group as usize].realm == slot);
        self.drops.forget(|group| groups[group as usize].realm == slot);
        let place = &mut self.realms[slot as usize];
        if involved {
            place.after_batch = under_way;
        }
        if let RealmState::Ready(realm) = std::mem::replace(&mut place.state, RealmState::Absent) {
            place.is_committing = realm.busy;
            self.metrics.log_bytes.sub(realm.log_bytes);
            for op in realm.ops {
                op.abandon(self, fx);
            }
        }
        for group in self.groups.iter_mut().filter(|g| g.realm == slot) {
            let id = group.id;
            *group = Group::new(id, slot, self.now.mono_ms);
        }
    }

    fn connections(&self) -> impl Iterator<Item = (ConnId, &Session)> {
        self.sessions.iter().enumerate().filter_map(|(at, slot)| {
            let session = slot.session.as_deref()?;
            Some((
                ConnId {
                    slot: at as u32,
                    generation: slot.generation,
                },
                session,
            ))
        })
    }

    fn posted<E: Effects>(&mut self, posted: Posted, fx: &mut E) {
        match posted {
            Posted::Ask {
                from,
                conn,
                realm,
                device,
            } => {
                self.when_loaded(&realm, Waiter::Ask { from, conn, device }, fx);
            }
            Posted::Verdict { conn, realm, verdict } => self.verdict(conn, realm, verdict, fx),
            Posted::Remote {
                origin,
                realm,
                request,
            } => {
                self.when_loaded(&realm, Waiter::Remote { origin, request }, fx);
            }
            Posted::Answer { conn, answer } => self.receive_answer(conn, answer, fx),
            Posted::Operator { realm, operator } => self.operate(&realm, operator, fx),
            Posted::ForgetHandle { realm, handle } => self.forget_handle(&realm, handle, fx),
            Posted::CollectNow { listing, reply } => self.collect_now(listing, reply, fx),
            Posted::Collect { listing } => self.begin_share(listing, fx),
            Posted::CollectOn => self.collect_on(fx),
            Posted::Collected(sum) => self.share_done(&sum, fx),
        }
    }

    // ---- time

    /// Sees to it that the connection's timers are looked at by then.
    fn arm(&mut self, conn: ConnId, at_ms: u64) {
        let Some(session) = self.session(conn) else { return };
        if session.armed_ms.is_none_or(|armed| at_ms < armed) {
            session.armed_ms = Some(at_ms);
            self.timers.push(Reverse((at_ms, conn)));
        }
    }

    fn tick<E: Effects>(&mut self, fx: &mut E) {
        let now = self.now.mono_ms;
        while let Some(&Reverse((at, conn))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            if let Some(session) = self.session(conn).filter(|s| s.armed_ms == Some(at)) {
                session.armed_ms = None;
                self.deadline(conn, fx);
            }
        }
        self.collect_on_time(fx);
        if now >= self.next_sweep_ms {
            self.next_sweep_ms = now + SWEEP_MS;
            self.sweep_indexes();
            self.sweep_registered();
        }
    }

    /// One of a connection's timers is due: acts on whichever has run out and arms the next (02 §2).
    fn deadline<E: Effects>(&mut self, conn: ConnId, fx: &mut E) {
        let now = self.now.mono_ms;
        let (handshake_ms, idle_ms) = (self.config.handshake_timeout_ms, self.config.idle_timeout_ms);
        let stalled = |s: &mut Session| s.stalled_ms;
        // Closed sessions too: their last frames may wait for a peer that reads no more.
        if let Some(since) = self.session(conn).and_then(stalled)
            && now >= since + STALL_MS
        {
            // It may have read too little for the transport to tell.
            self.room(conn, fx);
            if self.session(conn).and_then(stalled) == Some(since) {
                self.detach(conn);
                fx.close(conn, CloseHow::Flush, CloseReason::SlowReader);
                return;
            }
        }
        let Some(session) = self.session(conn) else { return };
        let late = Refusal::plain(Code::RateLimited).after(5);
        let mut next = session.stalled_ms.map_or(u64::MAX, |since| since + STALL_MS);
        match session.state {
            State::Closed => {}
            State::Fresh | State::Challenged | State::Judging => {
                if now >= session.opened_ms + handshake_ms {
                    return self.fail(conn, late, CloseReason::HandshakeDeadline, fx);
                }
                next = next.min(session.opened_ms + handshake_ms);
            }
            State::Ready | State::Bootstrapping => {
                // A connection we don't read can't be silent.
                if session.paused {
                    session.active_ms = now;
                }
                next = next.min(match session.probe_ms {
                    Some(sent) if now >= sent + PROBE_MS.min(idle_ms) => {
                        return self.fail(conn, late, CloseReason::IdleDeadline, fx);
                    }
                    Some(sent) => sent + PROBE_MS.min(idle_ms),
                    None if now >= session.active_ms + idle_ms => {
                        session.probe_ms = Some(now);
                        fx.ping(conn);
                        now + PROBE_MS.min(idle_ms)
                    }
                    None => session.active_ms + idle_ms,
                });
                if session.provisional {
                    if self.has_lapsed(conn) {
                        return self.evict(conn, fx);
                    }
                    next = next.min(now + PROVISIONAL_CHECK_MS);
                }
            }
        }
        if next != u64::MAX {
            self.arm(conn, next);
        }
    }

    /// Whether the grant that admitted this session is dead by now and no set has taken its place (05 D11).
    fn has_lapsed(&mut self, conn: ConnId) -> bool {
        let wall_ms = self.now.wall_ms;
        let Some(session) = self.session(conn).filter(|s| s.provisional) else {
            return false;
        };
        let (Some(slot), Some(entry)) = (session.realm, session.entry) else {
            return false;
        };
        let admission = self.realm_mut(slot).map(|r| r.admits_entry(&entry, wall_ms));
        if let Some(session) = self.session(conn) {
            // Once it is in the set, its removal is what ends it.
            session.provisional = admission != Some(Admission::InSet);
        }
        admission == Some(Admission::Refused)
    }

    /// Indexes of groups nobody has used lately go when there are too many of them; what is about to be committed,
    /// or listened to, stays.
    fn sweep_indexes(&mut self) {
        let size = |loaded: &Loaded| match loaded {
            Loaded::Warm(index) => index.bytes(),
            _ => 0,
        };
        let mut total: usize = self
            .groups
            .iter()
            .map(|g| size(&g.envelopes) + size(&g.handshakes))
            .sum();
        if total <= self.config.index_bytes_max {
            return;
        }
        let mut idle: Vec<(u64, usize)> = self
            .groups
            .iter()
            .enumerate()
            .filter(|(_, g)| g.subscribers.is_empty() && g.used_ms + SWEEP_MS <= self.now.mono_ms)
            .filter(|(at, _)| !self.drops.is_running(*at as u32))
            .map(|(at, g)| (g.used_ms, at))
            .collect();
        idle.sort_unstable();
        for (_, at) in idle {
            if total <= self.config.index_bytes_max {
                break;
            }
            let group = &mut self.groups[at];
            for loaded in [&mut group.envelopes, &mut group.handshakes] {
                if matches!(loaded, Loaded::Warm(index) if index.is_settled()) {
                    total -= size(loaded);
                    *loaded = Loaded::Cold;
                }
            }
        }
    }

    // ---- shutdown

    fn drain<E: Effects>(&mut self, fx: &mut E) {
        self.draining = true;
        self.abandon_drops(fx);
        self.submit_batch(fx);
        let conns: Vec<ConnId> = self.connections().map(|(conn, _)| conn).collect();
        for conn in conns {
            self.fail_over(conn, fx);
        }
    }

    /// Tells a client to come back elsewhere or later; what it is owed leaves first (02 decision 14).
    fn fail_over<E: Effects>(&mut self, conn: ConnId, fx: &mut E) {
        // A request being worked on is answered first; that comes back here.
        let is_due = |s: &mut Session| s.state != State::Closed && !matches!(s.waiting, Waiting::Working);
        if self.session(conn).is_some_and(is_due) {
            self.detach(conn);
            self.refuse(conn, Code::Failover, fx);
            self.close_when_flushed(conn, CloseHow::Restart, CloseReason::Shutdown, fx);
        }
    }
}

fn flow_of(session: &Session) -> Flow {
    let waits = !matches!(session.waiting, Waiting::No)
        || session.owed.len() >= ANSWERS_WAITING_MAX
        || session.stalled_ms.is_some()
        || matches!(session.state, State::Closed | State::Judging);
    if waits { Flow::Pause } else { Flow::Continue }
}
