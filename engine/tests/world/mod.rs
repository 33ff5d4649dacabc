//! A deterministic world around real shards at the production borders: virtual clocks, connections with a reader that
//! may stop, a real store behind injected faults and delays, and mail between shards in an order the test
//! may choose. Everything happens in [`World::pump`], on one thread, in a fixed order; nothing sleeps.

mod access;
mod chain;
mod conn;
mod control;
mod drive;
mod store;

pub use access::*;
pub use chain::*;
pub use control::*;
pub use drive::*;
pub use store::{Fault, Kind, Store};

use bytes::Bytes;
use conn::{Conn, Input, Phase};
use drover_engine::directory::Directory;
use drover_engine::effects::{CloseHow, CloseReason, CodeCheck, Effects, StoreRequest, Stores};
use drover_engine::event::{StoreAnswer, Ticket};
use drover_engine::metrics::Metrics;
use drover_engine::outbox::{Outbound, Room};
use drover_engine::shard::{Challenges, Session, ShardMessage};
use drover_engine::wake::Wake;
use drover_engine::{Config, ConnId, Event, Flow, Now, Peer, Shard};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// A connection of the world, by the order it was opened in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct C(pub usize);

/// The wall clock when a world begins.
pub const EPOCH_MS: u64 = 1_700_000_000_000;

/// Longest wait for the store's threads: a hang is a failure, not a pause.
const STORE_PATIENCE: Duration = Duration::from_secs(20);

enum Work {
    Store(StoreRequest),
    Code(CodeCheck),
}

impl Work {
    fn kind(&self) -> Kind {
        match self {
            Work::Store(StoreRequest::Append(_)) => Kind::Append,
            Work::Store(StoreRequest::Index(_)) => Kind::Index,
            Work::Store(StoreRequest::Read { .. }) => Kind::Read,
            Work::Store(StoreRequest::ReadSeqs { .. }) => Kind::ReadSeqs,
            Work::Store(StoreRequest::Usage(_)) => Kind::Usage,
            Work::Store(StoreRequest::Load(_)) => Kind::Load,
            Work::Store(StoreRequest::Get(..)) => Kind::Get,
            Work::Store(StoreRequest::Commit(..)) => Kind::Commit,
            Work::Store(StoreRequest::Claim(..)) => Kind::Claim,
            Work::Code(_) => Kind::Code,
        }
    }
}

struct Job {
    shard: usize,
    ticket: Ticket,
    work: Work,
}

enum Letter {
    Posted(ShardMessage),
    /// A connection with its state.
    Parcel(usize, Box<Session>),
}

/// Everything outside the shards.
struct Outside {
    conns: Vec<Conn>,
    by_id: HashMap<(usize, ConnId), usize>,
    /// Per shard: slots given back with their next generation, and how many there are.
    free: Vec<Vec<ConnId>>,
    slots: Vec<u32>,
    jobs: VecDeque<Job>,
    letters: Vec<VecDeque<Letter>>,
    closed: VecDeque<usize>,
    moving: VecDeque<usize>,
    resumed: VecDeque<usize>,
    roomy: VecDeque<usize>,
    /// Devices to be woken.
    wakes: Vec<Wake>,
    /// The monotonic clock, and MEDIA frames shed.
    mono_ms: u64,
    media_shed: usize,
    /// Codes hashed so far.
    hashes: usize,
    refuse_offload: bool,
}

/// See the module.
pub struct World {
    pub config: Arc<Config>,
    pub now: Now,
    pub store: Arc<Store>,
    pub metrics: Vec<Arc<Metrics>>,
    pub directory: Arc<Directory>,
    shards: Vec<Shard>,
    out: Outside,
    /// Kinds of requests that are neither run nor answered for now.
    held: HashSet<Kind>,
    /// Mail between shards stays where it is; the test delivers it.
    pub hold_letters: bool,
    /// The newest letter of a shard is delivered first.
    pub newest_letter_first: bool,
    /// Frames one connection may have read in one turn.
    pub reads_per_turn: usize,
    /// What every one-time code is answered with, instead of being hashed.
    pub code_verdict: Option<bool>,
    _folder: Option<tempfile::TempDir>,
}

/// A configuration that differs from the default where a test says.
pub fn config(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config::default();
    change(&mut config);
    config
}

impl World {
    /// One shard, default settings.
    pub fn new() -> Self {
        Self::with(Config::default())
    }

    pub fn with(config: Config) -> Self {
        // Memory if the system offers some: a test never needs to survive a power cut.
        let folder = tempfile::tempdir_in("/dev/shm")
            .or_else(|_| tempfile::tempdir())
            .expect("a folder");
        let store = Store::open(folder.path());
        let mut world = Self::on(store, config);
        world._folder = Some(folder);
        world
    }

    /// The same on a given store, which may hold something.
    pub fn on(store: Store, config: Config) -> Self {
        let store = Arc::new(store);
        let (config, now) = (
            Arc::new(config),
            Now {
                mono_ms: 1_000,
                wall_ms: EPOCH_MS,
            },
        );
        let directory = Arc::new(Directory::open(&*store).expect("an empty directory"));
        let mut world = Self {
            now,
            store,
            metrics: Vec::new(),
            directory,
            shards: Vec::new(),
            out: Outside::new(config.shards),
            held: HashSet::new(),
            hold_letters: false,
            newest_letter_first: false,
            reads_per_turn: usize::MAX,
            config,
            code_verdict: None,
            _folder: None,
        };
        world.start();
        world
    }

    fn start(&mut self) {
        let challenges = Arc::new(Challenges::new().expect("randomness"));
        self.metrics = (0..self.config.shards).map(|_| Arc::default()).collect();
        self.shards = (0..self.config.shards)
            .map(|index| {
                Shard::new(
                    index,
                    self.config.clone(),
                    self.directory.clone(),
                    self.metrics[index].clone(),
                    challenges.clone(),
                )
            })
            .collect();
    }

    /// The process dies and starts again on the same store: connections and requests not yet run are lost.
    pub fn restart(&mut self) {
        self.restart_with(|_| {});
    }

    /// The same with other settings.
    pub fn restart_with(&mut self, change: impl FnOnce(&mut Config)) {
        let mut config = (*self.config).clone();
        change(&mut config);
        self.config = Arc::new(config);
        for conn in &mut self.out.conns {
            conn.phase = Phase::Gone;
        }
        let conns = std::mem::take(&mut self.out.conns);
        self.out = Outside::new(self.config.shards);
        (self.out.conns, self.out.mono_ms) = (conns, self.now.mono_ms);
        self.held.clear();
        self.directory = Arc::new(Directory::open(&*self.store).expect("the directory"));
        self.start();
        self.pump();
    }

    // ---- time

    /// Lets time pass on both clocks, every timer at its moment.
    pub fn advance(&mut self, ms: u64) {
        let end = self.now.mono_ms + ms;
        self.pump();
        loop {
            let next = self.shards.iter().filter_map(Shard::next_wake_ms).min();
            let Some(at) = next.filter(|&at| at <= end) else {
                break;
            };
            self.step(at.saturating_sub(self.now.mono_ms));
        }
        self.step(end - self.now.mono_ms);
    }

    fn step(&mut self, ms: u64) {
        self.now.mono_ms += ms;
        self.now.wall_ms += ms;
        self.out.mono_ms = self.now.mono_ms;
        let now = self.now;
        for shard in 0..self.shards.len() {
            if self.shards[shard]
                .next_wake_ms()
                .is_some_and(|at| at <= now.mono_ms)
            {
                self.handle(shard, Event::Tick);
            }
        }
        self.pump();
    }

    /// Moves the wall clock alone.
    pub fn set_wall(&mut self, wall_ms: u64) {
        self.now.wall_ms = wall_ms;
    }

    // ---- connections

    /// A connection accepted on this shard.
    pub fn open_on(&mut self, shard: usize, source: &str) -> C {
        let id = self.out.next_id(shard);
        let at = self.out.conns.len();
        self.out.conns.push(Conn::new(shard, id, source));
        self.out.by_id.insert((shard, id), at);
        let peer = Peer {
            source: source.into(),
        };
        self.handle(shard, Event::Opened { conn: id, peer });
        C(at)
    }

    pub fn open(&mut self) -> C {
        self.open_on(0, "203.0.113.7")
    }

    /// Puts a message on the wire; it is read when the world is pumped.
    pub fn push(&mut self, c: C, message: impl Into<Bytes>) {
        self.out.conns[c.0]
            .inbox
            .push_back(Input::Message(message.into()));
    }

    /// Puts a text message on the wire.
    pub fn push_text(&mut self, c: C) {
        self.out.conns[c.0].inbox.push_back(Input::Text);
    }

    /// Puts a ping on the wire.
    pub fn push_ping(&mut self, c: C) {
        self.out.conns[c.0].inbox.push_back(Input::Ping);
    }

    /// Puts a pong on the wire.
    pub fn push_pong(&mut self, c: C) {
        self.out.conns[c.0].inbox.push_back(Input::Pong);
    }

    /// Pongs the client has read.
    pub fn pongs(&self, c: C) -> usize {
        self.out.conns[c.0].pongs
    }

    /// The client goes away.
    pub fn hang_up(&mut self, c: C) {
        let conn = &mut self.out.conns[c.0];
        if conn.is_open() {
            conn.phase = Phase::Gone;
            self.out.closed.push_back(c.0);
        }
        self.pump();
    }

    /// The client stops reading; its socket takes this many bytes more.
    pub fn stop_reading(&mut self, c: C, socket_bytes_max: usize) {
        let conn = &mut self.out.conns[c.0];
        (conn.reading, conn.socket_bytes_max) = (false, socket_bytes_max);
    }

    pub fn read_again(&mut self, c: C) {
        self.out.conns[c.0].reading = true;
        self.out.conns[c.0].dirty = true;
        self.pump();
    }

    /// The client takes about this many bytes and stops again.
    pub fn read_some(&mut self, c: C, bytes: usize) {
        self.out.conns[c.0].socket_bytes_max += bytes;
        self.out.conns[c.0].dirty = true;
        self.pump();
    }

    /// The next message the client has read.
    pub fn take(&mut self, c: C) -> Option<Bytes> {
        self.out.conns[c.0].received.pop_front()
    }

    /// All messages the client has read.
    pub fn take_all(&mut self, c: C) -> Vec<Bytes> {
        self.out.conns[c.0].received.drain(..).collect()
    }

    /// How the relay ended the connection, if it did.
    pub fn closed(&self, c: C) -> Option<(CloseHow, CloseReason)> {
        self.out.conns[c.0].closed
    }

    /// Whether the relay still takes frames of this connection.
    pub fn is_open(&self, c: C) -> bool {
        self.out.conns[c.0].is_open()
    }

    pub fn pings(&self, c: C) -> usize {
        self.out.conns[c.0].pings
    }

    /// Messages sent by the client that the relay has not read.
    pub fn unread(&self, c: C) -> usize {
        self.out.conns[c.0].inbox.len()
    }

    pub fn room(&self, c: C) -> Room {
        self.out.conns[c.0].outbox.room()
    }

    pub fn is_authenticated(&self, c: C) -> bool {
        self.out.conns[c.0].authenticated
    }

    /// The shard the connection lives on, and how often it moved.
    pub fn place(&self, c: C) -> (usize, usize) {
        (self.out.conns[c.0].shard, self.out.conns[c.0].moves)
    }

    // ---- the store and other shards

    /// Requests of this kind wait until [`World::release`].
    pub fn hold(&mut self, kind: Kind) {
        self.held.insert(kind);
    }

    pub fn release(&mut self, kind: Kind) {
        self.held.remove(&kind);
        self.pump();
    }

    /// What waits of this kind is let through in the next turn.
    pub fn let_through(&mut self, kind: Kind) {
        self.held.remove(&kind);
    }

    /// Lets the oldest waiting request of this kind through.
    pub fn release_one(&mut self, kind: Kind) {
        let at = self.out.jobs.iter().position(|job| job.work.kind() == kind);
        let job = at
            .and_then(|at| self.out.jobs.remove(at))
            .expect("a request waits");
        self.run(job);
        self.pump();
    }

    pub fn waiting(&self, kind: Kind) -> usize {
        self.out.jobs.iter().filter(|job| job.work.kind() == kind).count()
    }

    /// The oldest waiting request of this kind fails, without having been run.
    pub fn fail_one(&mut self, kind: Kind, fault: Fault) {
        self.store.fail_next(kind, fault);
        self.release_one(kind);
    }

    /// Devices to be woken since the last look.
    pub fn wakes(&mut self) -> Vec<Wake> {
        self.pump();
        std::mem::take(&mut self.out.wakes)
    }

    /// MEDIA frames shed for a recipient.
    pub fn media_shed(&self) -> usize {
        self.out.media_shed
    }

    pub fn refuse_offload(&mut self, refuse: bool) {
        self.out.refuse_offload = refuse;
    }

    /// One-time codes hashed so far.
    pub fn hashes(&self) -> usize {
        self.out.hashes
    }

    /// Posts a message from outside (the operator's surface).
    pub fn post(&mut self, shard: usize, message: ShardMessage) {
        self.out.letters[shard].push_back(Letter::Posted(message));
    }

    pub fn letters(&self, shard: usize) -> usize {
        self.out.letters[shard].len()
    }

    /// Delivers one held letter.
    pub fn deliver_letter(&mut self, shard: usize, at: usize) {
        if let Some(letter) = self.out.letters[shard].remove(at) {
            self.letter(shard, letter);
        }
        self.pump();
    }

    pub fn drain(&mut self) {
        for shard in 0..self.shards.len() {
            self.handle(shard, Event::Drain);
        }
        self.pump();
    }

    pub fn drained(&self) -> bool {
        self.shards.iter().all(Shard::drained)
    }

    // ---- turns

    /// Runs turns until nothing happens any more by itself.
    pub fn pump(&mut self) {
        for _ in 0..1_000_000 {
            if !self.turn() {
                return;
            }
        }
        panic!("the world never comes to rest");
    }

    /// One turn of every shard; returns whether anything happened.
    pub fn turn(&mut self) -> bool {
        let mut busy = false;
        for shard in 0..self.shards.len() {
            let count = if self.hold_letters {
                0
            } else {
                self.out.letters[shard].len()
            };
            for _ in 0..count {
                let queue = &mut self.out.letters[shard];
                let letter = if self.newest_letter_first {
                    queue.pop_back()
                } else {
                    queue.pop_front()
                };
                if let Some(letter) = letter {
                    self.letter(shard, letter);
                    busy = true;
                }
            }
        }
        let mut jobs: VecDeque<Job> = std::mem::take(&mut self.out.jobs);
        let mut kept = VecDeque::new();
        while let Some(job) = jobs.pop_front() {
            if self.held.contains(&job.work.kind()) {
                kept.push_back(job);
            } else {
                self.run(job);
                busy = true;
            }
        }
        kept.append(&mut self.out.jobs);
        self.out.jobs = kept;
        for at in 0..self.out.conns.len() {
            busy |= self.read(at, self.reads_per_turn) > 0;
        }
        for shard in 0..self.shards.len() {
            if self.shards[shard].is_answering() {
                self.handle(shard, Event::Answer);
                busy = true;
            }
            let (now, mut view) = (
                self.now,
                View {
                    me: shard,
                    out: &mut self.out,
                },
            );
            self.shards[shard].end_of_turn(now, &mut view);
        }
        self.settle();
        for at in 0..self.out.conns.len() {
            if std::mem::take(&mut self.out.conns[at].dirty) {
                busy |= self.out.flush(at);
            }
        }
        busy | self.settle()
    }

    fn letter(&mut self, shard: usize, letter: Letter) {
        match letter {
            Letter::Posted(message) => self.handle(shard, Event::Posted(message)),
            Letter::Parcel(at, session) => {
                let id = self.out.next_id(shard);
                let conn = &mut self.out.conns[at];
                (conn.shard, conn.id, conn.phase, conn.paused) = (shard, id, Phase::Open, false);
                (conn.watched, conn.dirty) = (false, true);
                conn.moves += 1;
                self.out.by_id.insert((shard, id), at);
                self.handle(shard, Event::Arrived { conn: id, session });
                self.read(at, usize::MAX);
            }
        }
    }

    fn run(&mut self, job: Job) {
        let Job { shard, ticket, work } = job;
        match work {
            Work::Code(check) => {
                self.out.hashes += 1;
                let matches = self
                    .code_verdict
                    .unwrap_or_else(|| drover_engine::code::matches(&check));
                self.handle(shard, Event::Offloaded { ticket, matches });
            }
            Work::Store(request) => {
                let answer = self.run_now(request);
                self.handle(shard, Event::Stored { ticket, answer });
            }
        }
    }

    /// Runs one request to its end: the store's threads work, this one waits for their answer.
    pub fn run_now(&self, request: StoreRequest) -> StoreAnswer {
        let (answer, answered) = mpsc::channel();
        let stores = Stores {
            log: self.store.clone(),
            control: self.store.clone(),
        };
        stores.submit(request, move |result| {
            let _ = answer.send(result);
        });
        answered.recv_timeout(STORE_PATIENCE).expect("the store answers")
    }

    /// Commits past the shards, as another process would have.
    pub fn commit_behind(
        &self,
        realm: &drover_storage::RealmId,
        batch: drover_storage::control::ControlBatch,
    ) {
        let answer = self.run_now(StoreRequest::Commit(realm.clone(), batch));
        assert!(matches!(
            answer,
            StoreAnswer::Commit(Ok(drover_storage::control::Outcome::Applied))
        ));
    }

    /// What the store holds of a realm.
    pub fn records(&self, realm: &drover_storage::RealmId) -> Vec<(Vec<u8>, Bytes)> {
        match self.run_now(StoreRequest::Load(realm.clone())) {
            StoreAnswer::Load(Ok(records)) => records,
            other => panic!("{other:?}"),
        }
    }

    /// Lets the engine read up to `most` messages of a connection.
    fn read(&mut self, at: usize, most: usize) -> usize {
        let mut count = 0;
        while count < most && self.out.conns[at].is_open() && !self.out.conns[at].paused {
            let conn = &mut self.out.conns[at];
            let (shard, id) = (conn.shard, conn.id);
            let Some(input) = conn.inbox.pop_front() else {
                break;
            };
            count += 1;
            match input {
                Input::Message(_) | Input::Ping => {
                    let (now, mut view) = (
                        self.now,
                        View {
                            me: shard,
                            out: &mut self.out,
                        },
                    );
                    let flow = match input {
                        Input::Message(message) => self.shards[shard].message(now, id, message, &mut view),
                        _ => self.shards[shard].pinged(now, id, Bytes::from_static(&[0x8a, 0]), &mut view),
                    };
                    if flow == Flow::Pause {
                        self.out.conns[at].paused = true;
                    }
                    self.settle();
                }
                Input::Text => self.handle(shard, Event::Text { conn: id }),
                Input::Pong => self.handle(shard, Event::Activity { conn: id }),
            }
        }
        count
    }

    fn handle(&mut self, shard: usize, event: Event) {
        let (now, mut view) = (
            self.now,
            View {
                me: shard,
                out: &mut self.out,
            },
        );
        self.shards[shard].handle(now, event, &mut view);
        self.settle();
    }

    /// Tells the engine what came of its effects, as the transport does.
    fn settle(&mut self) -> bool {
        let mut busy = false;
        loop {
            if let Some(at) = self.out.closed.pop_front() {
                let (shard, id) = (self.out.conns[at].shard, self.out.conns[at].id);
                let (now, mut view) = (
                    self.now,
                    View {
                        me: shard,
                        out: &mut self.out,
                    },
                );
                self.shards[shard].handle(now, Event::Closed { conn: id }, &mut view);
                self.out.forget(shard, id);
            } else if let Some(at) = self.out.moving.pop_front() {
                let conn = &mut self.out.conns[at];
                let (shard, id) = (conn.shard, conn.id);
                if let Phase::Moving(to, session) = std::mem::replace(&mut conn.phase, Phase::Gone) {
                    self.out.forget(shard, id);
                    self.out.letters[to].push_back(Letter::Parcel(at, session));
                }
            } else if let Some(at) = self.out.resumed.pop_front() {
                self.read(at, self.reads_per_turn);
            } else if let Some(at) = self.out.roomy.pop_front() {
                if self.out.conns[at].is_open() {
                    let (shard, id) = (self.out.conns[at].shard, self.out.conns[at].id);
                    let (now, mut view) = (
                        self.now,
                        View {
                            me: shard,
                            out: &mut self.out,
                        },
                    );
                    self.shards[shard].handle(now, Event::Room { conn: id }, &mut view);
                }
            } else {
                return busy;
            }
            busy = true;
        }
    }
}

impl Outside {
    fn new(shards: usize) -> Self {
        Self {
            conns: Vec::new(),
            by_id: HashMap::new(),
            free: vec![Vec::new(); shards],
            slots: vec![0; shards],
            jobs: VecDeque::new(),
            letters: (0..shards).map(|_| VecDeque::new()).collect(),
            closed: VecDeque::new(),
            moving: VecDeque::new(),
            resumed: VecDeque::new(),
            roomy: VecDeque::new(),
            wakes: Vec::new(),
            mono_ms: 1_000,
            media_shed: 0,
            hashes: 0,
            refuse_offload: false,
        }
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

    fn forget(&mut self, shard: usize, id: ConnId) {
        self.by_id.remove(&(shard, id));
        self.free[shard].push(ConnId {
            slot: id.slot,
            generation: id.generation + 1,
        });
    }

    fn flush(&mut self, at: usize) -> bool {
        let conn = &mut self.conns[at];
        if matches!(conn.phase, Phase::Gone) {
            return false;
        }
        self.media_shed += conn.outbox.expire_media(self.mono_ms);
        let moved = conn.flush();
        if conn.watched && (moved || conn.outbox.is_empty()) && conn.outbox.room().is_quarter() {
            conn.watched = false;
            self.roomy.push_back(at);
        }
        if matches!(conn.phase, Phase::Leaving) && conn.outbox.is_empty() {
            conn.phase = Phase::Gone;
        }
        moved
    }
}

/// What one shard sees of the outside.
struct View<'a> {
    me: usize,
    out: &'a mut Outside,
}

impl View<'_> {
    fn open(&mut self, id: ConnId) -> Option<(usize, &mut Conn)> {
        let at = *self.out.by_id.get(&(self.me, id))?;
        let conn = &mut self.out.conns[at];
        conn.is_open().then_some((at, conn))
    }
}

impl Effects for View<'_> {
    fn room(&mut self, id: ConnId) -> Room {
        let Some((at, conn)) = self.open(id) else {
            return Room::NONE;
        };
        let room = conn.outbox.room();
        if room.is_half() {
            return room;
        }
        self.out.flush(at);
        self.out.conns[at].outbox.room()
    }

    fn send(&mut self, id: ConnId, out: Outbound) -> bool {
        let Some((_, conn)) = self.open(id) else {
            return false;
        };
        conn.dirty = true;
        conn.outbox.push(out)
    }

    fn media(&mut self, id: ConnId, message: &Bytes) {
        let mono_ms = self.out.mono_ms;
        if let Some((_, conn)) = self.open(id) {
            conn.dirty = true;
            let shed = conn.outbox.push_media(mono_ms, message.clone());
            self.out.media_shed += shed;
        }
    }

    fn watch_room(&mut self, id: ConnId) {
        if let Some((_, conn)) = self.open(id) {
            (conn.watched, conn.dirty) = (true, true);
        }
    }

    fn close(&mut self, id: ConnId, how: CloseHow, reason: CloseReason) {
        let Some((at, conn)) = self.open(id) else { return };
        if how == CloseHow::Evict {
            conn.outbox.clear(true);
        }
        conn.closed = Some((how, reason));
        conn.phase = Phase::Leaving;
        (conn.watched, conn.dirty) = (false, true);
        conn.inbox.clear();
        self.out.closed.push_back(at);
    }

    fn ping(&mut self, id: ConnId) {
        if let Some((_, conn)) = self.open(id)
            && conn.outbox.room().messages > 0
        {
            conn.outbox.force(Outbound {
                bytes: Bytes::from_static(&[0x89, 0]),
                messages: 1,
                cost: 0,
            });
            conn.dirty = true;
        }
    }

    fn resume(&mut self, id: ConnId) {
        if let Some((at, conn)) = self.open(id)
            && conn.paused
        {
            conn.paused = false;
            self.out.resumed.push_back(at);
        }
    }

    fn authenticated(&mut self, id: ConnId) {
        if let Some((_, conn)) = self.open(id) {
            conn.authenticated = true;
        }
    }

    fn migrate(&mut self, id: ConnId, shard: usize, session: Box<Session>) {
        if let Some((at, conn)) = self.open(id) {
            conn.phase = Phase::Moving(shard, session);
            self.out.moving.push_back(at);
        }
    }

    fn post(&mut self, shard: usize, message: ShardMessage) {
        self.out.letters[shard].push_back(Letter::Posted(message));
    }

    fn store(&mut self, ticket: Ticket, request: StoreRequest) {
        let work = Work::Store(request);
        self.out.jobs.push_back(Job {
            shard: self.me,
            ticket,
            work,
        });
    }

    fn wake(&mut self, wakes: Vec<Wake>) {
        assert!(!wakes.is_empty(), "nobody is told of nothing");
        self.out.wakes.extend(wakes);
    }

    fn offload(&mut self, ticket: Ticket, check: CodeCheck) -> bool {
        if self.out.refuse_offload {
            return false;
        }
        let work = Work::Code(check);
        self.out.jobs.push_back(Job {
            shard: self.me,
            ticket,
            work,
        });
        true
    }
}
