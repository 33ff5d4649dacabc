//! One core's worth of realms and connections: events in, effects out.
//!
//! This file is the hub: it takes events. [`dispatch`] decodes frames and asks the state × frame table, [`answers`] keeps
//! answers in request order, [`stored`] asks the store and hands what it answers to whoever waits, [`realms`] reads
//! workspaces into memory, [`timers`] runs the deadlines.
//! The flows live beside it: [`admission`] (CONNECT, AUTH), [`control`] (ACCESS, JOIN, INVITE, minting), [`ingest`]
//! (SEND, HANDSHAKE, commits), [`fanout`], [`replay`] (SUB), [`reconcile`] (RECON), [`live`], [`calls`], [`keys`],
//! [`wrap`], [`mod@wake`], [`retention`] and [`drops`], [`collector`]; [`map_form`] is the second codec, and [`later`]
//! answers the frames whose flow is still to come.

mod admission;
mod answers;
mod calls;
mod collector;
pub(crate) mod control;
mod dispatch;
mod drops;
mod fanout;
mod gather;
mod ingest;
mod keys;
mod later;
mod live;
mod map_form;
mod realms;
mod reconcile;
mod replay;
mod retention;
mod stored;
mod timers;
mod wake;
mod wrap;

pub use crate::session::Session;
pub use control::operator::{MintOutcome, Operator, Reply};
pub(crate) use keys::Taken;

use crate::collector::Collected;
use crate::config::Config;
use crate::directory::Directory;
use crate::effects::{CloseHow, CloseReason, Effects};
use crate::event::{ConnId, Event, Flow, Inbound, Now, Ticket};
use crate::group::Group;
use crate::limits::ANSWERS_WAITING_MAX;
use crate::metrics::Metrics;
use crate::realm::{Admission, Realm};
use crate::session::{State, Waiting};
use crate::wake::{Category, Wake, WakeHandle};
use bytes::Bytes;
use drover_media::{Calls, MediaFrame};
use drover_storage::RealmId;
use drover_wire::error::{Code, Refusal};
use drover_wire::id::{EntryHash, GroupId, PublicKey};
use hashbrown::HashMap;
use ingest::Ingest;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stored::Pending;

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
        Ok(Self::with_secret(secret))
    }

    /// With this secret, from which everything follows that a shard does by chance: challenges, the spread of retry
    /// intervals and of collector passes. For a world that repeats itself; a relay draws a fresh one ([`Challenges::new`]).
    pub fn with_secret(secret: [u8; 32]) -> Self {
        Self {
            secret,
            nonce: AtomicU64::new(0),
        }
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
    /// Something of this category was stored after the realm was given up.
    Wake(Category),
    Sweep,
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
    /// Connections whose RECON is being answered, in the order they asked.
    answering: VecDeque<ConnId>,
    /// Devices to be woken at the end of this turn.
    woken: Vec<Wake>,
    /// Registrations of the last hour by principal; reconnecting does not clear them (12 §3).
    registered: HashMap<EntryHash, wake::Registered>,
    collector: collector::Collector,
    calls: Calls<ConnId>,
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

/// MEDIA's tag.
const MEDIA_TAG: usize = 24;
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
        let calls = Calls::new(directory.calls().clone());
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
            answering: VecDeque::new(),
            woken: Vec::new(),
            registered: HashMap::new(),
            collector: collector::Collector::default(),
            calls,
            deferred: Vec::new(),
            jitter: secret,
            preload,
            next_sweep_ms: SWEEP_MS,
            secret,
            draining: false,
        }
    }

    /// One whole inbound message of a connection.
    pub fn message<E: Effects>(
        &mut self,
        now: Now,
        conn: ConnId,
        message: impl Into<Inbound>,
        fx: &mut E,
    ) -> Flow {
        self.now = now;
        let message = message.into();
        let Some(session) = self.session(conn) else {
            return Flow::Pause;
        };
        if session.state == State::Closed {
            return Flow::Pause;
        }
        session.active_ms = now.mono_ms;
        session.probe_ms = None;
        session.charged = false;
        session.refused = false;
        if session.state == State::Judging {
            // It moved here and its AUTH is still being judged: handled once that is done.
            session.waiting = Waiting::Parked(message.into_payload());
            session.paused = true;
            return Flow::Pause;
        }
        match MediaFrame::parse(message.payload()) {
            Some(frame) if session.state == State::Ready => {
                self.metrics.frames_in[MEDIA_TAG].add(1);
                self.media(conn, &frame, message, fx);
            }
            _ => self.dispatch(conn, message.into_payload(), fx),
        }
        if !self.retry.is_empty() {
            self.settle(fx);
        }
        match self.flow(conn) {
            Flow::Continue if self.session(conn).is_some_and(|session| session.refused) => Flow::Refused,
            flow => flow,
        }
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
            Event::Answer => self.go_on_answering(fx),
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

    /// Whether an [`Event::Answer`] would find something to do.
    pub fn is_answering(&self) -> bool {
        !self.answering.is_empty()
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
        self.leave_calls(conn);
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
