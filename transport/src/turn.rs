//! A shard's loop (architecture.md §5): wait, read what came, hand it to the engine, write what it queued, wait.
//! One turn reads the clocks once, gives the engine's batch to the store once and writes to each connection once.

use crate::Shard;
use crate::chunk::Chunk;
use crate::clock::{self, Pace};
use crate::conn::{Conn, Phase};
use crate::driver::{Driver, Ready};
use crate::input::{self, Share};
use crate::line::Line;
use crate::listen::{self, Spare};
use crate::lobby::Refusal;
use crate::mailbox::{Letter, Mailbox};
use crate::pages::PublicPages;
use crate::parcel::Parcel;
use crate::stop::Stop;
use crate::timers::Deadline;
use crate::tls::{Certificates, TlsSession};
use crate::world::World;
use drover_engine::effects::{CloseHow, CloseReason, Effects};
use drover_engine::{ConnId, Event};
use std::io;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connections accepted in one turn. Each costs ten microseconds or more, also one that is closed at once.
const ACCEPTS_MAX: usize = 32;
/// So many frames of MEDIA going out count as one message coming in, for the length of a turn: 80 calls of five (20 000
/// frames in, 80 000 out per second) get 0.3 ms, 20 calls none, for a turn without company costs more than it saves
/// (docs/performance.md).
const MEDIA_PER_MESSAGE: u64 = 5;
/// Letters read in one turn.
const LETTERS_MAX: usize = 8_192;

/// What one shard's thread runs.
pub(crate) struct Turn<D: Driver> {
    pub(crate) shard: Shard,
    pub(crate) world: World<D>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) stop: Arc<Stop>,
    pub(crate) certificates: Option<Arc<Certificates>>,
    pub(crate) trusted_proxy_hops: usize,
    pub(crate) public: Option<Arc<dyn PublicPages>>,
    /// Records are decrypted into this.
    pub(crate) plain: Chunk,
    /// There may be more to read from them than one turn's share.
    pub(crate) unread: Vec<ConnId>,
    /// What the connection being served has had of this turn.
    pub(crate) used: Share,
    /// Those whose shares of a turn take long.
    pub(crate) slow: Line,
    /// Those who are not upgraded yet.
    pub(crate) fresh: Line,
    /// Those whose messages are long.
    pub(crate) long: Line,
    /// Those who send what brings nothing forward.
    pub(crate) idle: Line,
    letters: Vec<Letter>,
    pace: Pace,
    spare: Spare,
    /// Connections may wait to be accepted.
    acceptable: bool,
    /// Not before this moment.
    accept_from_ms: u64,
    /// [`Event::Drain`] was given.
    pub(crate) draining: bool,
    /// It was reported that this shard has nothing left to do.
    drained: bool,
}

/// The parts a [`Turn`] is made of that are the same for all drivers.
pub(crate) struct Parts {
    pub(crate) shard: Shard,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) stop: Arc<Stop>,
    pub(crate) certificates: Option<Arc<Certificates>>,
    pub(crate) trusted_proxy_hops: usize,
    pub(crate) public: Option<Arc<dyn PublicPages>>,
    pub(crate) turn_max: Duration,
}

impl<D: Driver> Turn<D> {
    pub(crate) fn new(world: World<D>, parts: Parts) -> Self {
        Self {
            shard: parts.shard,
            world,
            mailbox: parts.mailbox,
            stop: parts.stop,
            certificates: parts.certificates,
            trusted_proxy_hops: parts.trusted_proxy_hops,
            public: parts.public,
            plain: Chunk::default(),
            unread: Vec::new(),
            used: Share::default(),
            slow: Line::new(input::SLOW_TURN, input::SLOW_REST),
            fresh: Line::new(input::FRESH_TURN, 0),
            long: Line::new(input::LONG_TURN, 0),
            idle: Line::new(input::IDLE_TURN, input::IDLE_REST),
            letters: Vec::new(),
            pace: Pace::new(parts.turn_max),
            spare: Spare::new(),
            acceptable: true,
            accept_from_ms: 0,
            draining: false,
            drained: false,
        }
    }

    /// Runs until the relay stops.
    ///
    /// # Errors
    /// Only if the system refuses to wait for events, after which the shard can't serve.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let (mut ended, mut rest) = (Instant::now(), Duration::ZERO);
        while !self.stop.is_over(clock::mono_ms(ended)) {
            self.wait(ended, rest)?;
            let began = Instant::now();
            self.world.now = clock::now(began);
            self.turn();
            let media = mem::take(&mut self.world.turn_media);
            let messages = mem::take(&mut self.world.turn_messages) + media / MEDIA_PER_MESSAGE;
            self.world.metrics.turns.add(1);
            self.world.metrics.count_buffers(self.world.driver.buffers());
            ended = Instant::now();
            rest = self.pace.rest(began, ended, messages);
        }
        // Whoever is still here after the deadline is cut off.
        for id in self.world.conns.ids() {
            self.world.close(id, CloseHow::Evict, CloseReason::Shutdown);
        }
        Ok(())
    }

    /// Gathers for the time of `rest` and waits until there is something to do; the last turn ended at `ended`.
    fn wait(&mut self, ended: Instant, rest: Duration) -> io::Result<()> {
        if self.has_leftovers() {
            // There is nothing to gather first.
            return self.world.driver.wait(Duration::ZERO, Some(Duration::ZERO));
        }
        let timeout = self.timeout(clock::mono_ms(ended + rest));
        if timeout != Some(Duration::ZERO) && self.mailbox.may_sleep() {
            let waited = self.world.driver.wait(rest, timeout);
            self.mailbox.awake();
            waited
        } else {
            self.world.driver.wait(rest, Some(Duration::ZERO))
        }
    }

    /// How long there is nothing to do if nothing comes.
    fn timeout(&self, mono_ms: u64) -> Option<Duration> {
        let accept = self.acceptable.then_some(self.accept_from_ms);
        let stop = if self.draining {
            self.stop.deadline_ms()
        } else {
            None
        };
        let next = [
            self.shard.next_wake_ms(),
            self.world.timers.next_ms(),
            accept,
            stop,
        ];
        let next = next.into_iter().flatten().min();
        let next = next.map(|at_ms| Duration::from_millis(at_ms.saturating_sub(mono_ms)));
        let lines = [
            self.slow.opens_in(self.shard.is_answering()),
            self.fresh.opens_in(false),
            self.long.opens_in(false),
            self.idle.opens_in(false),
        ];
        lines.into_iter().chain([next]).flatten().min()
    }

    /// Whether this turn has left something for the next.
    fn has_leftovers(&self) -> bool {
        let world = &self.world;
        let lists = [
            &self.unread,
            &world.roomy,
            &world.closed,
            &world.resumed,
            &world.moving,
            &world.dirty,
        ];
        lists.into_iter().any(|list| !list.is_empty())
    }

    fn turn(&mut self) {
        self.read_letters();
        // Before those who have something new.
        for id in mem::take(&mut self.unread) {
            self.serve(id);
        }
        while let Some(ready) = self.world.driver.next() {
            match ready {
                Ready::Accept => self.acceptable = true,
                Ready::Received { slot, data } => self.received(slot, data),
                Ready::Ended { slot } => self.ended(slot),
                Ready::Lost { slot } => self.lost(slot),
                Ready::Writable { slot } => self.writable(slot),
            }
            self.settle();
        }
        if self.acceptable && self.world.now.mono_ms >= self.accept_from_ms {
            self.accept();
        }
        self.serve_fresh();
        self.serve_slow();
        self.serve_line(|turn| &mut turn.long);
        self.serve_line(|turn| &mut turn.idle);
        self.deadlines();
        self.settle();
        self.shard.end_of_turn(self.world.now, &mut self.world);
        self.settle();
        self.world.flush_dirty();
        if self.draining && !self.drained {
            self.drained = self.shard.drained() && !self.has_conversations();
            if self.drained {
                self.stop.one_drained(&self.world.shared.doors);
            }
        }
    }

    fn read_letters(&mut self) {
        let mut letters = mem::take(&mut self.letters);
        self.mailbox.take(LETTERS_MAX, &mut letters);
        let now = self.world.now;
        for letter in letters.drain(..) {
            match letter {
                Letter::Stored(ticket, answer) => {
                    self.shard
                        .handle(now, Event::Stored { ticket, answer }, &mut self.world);
                }
                Letter::Offloaded(ticket, matches) => {
                    self.shard
                        .handle(now, Event::Offloaded { ticket, matches }, &mut self.world);
                }
                Letter::Posted(message) => self.shard.handle(now, Event::Posted(message), &mut self.world),
                Letter::Parcel(parcel) => self.arrive(*parcel),
                Letter::Drain => {
                    if !mem::replace(&mut self.draining, true) {
                        self.shard.handle(now, Event::Drain, &mut self.world);
                    }
                }
                Letter::Look => {}
            }
            self.settle();
        }
        self.letters = letters;
    }

    fn writable(&mut self, slot: u32) {
        let Some(id) = self.world.conns.id_at(slot) else {
            return;
        };
        if let Some(conn) = self.world.conns.get_mut(id)
            && mem::take(&mut conn.blocked)
            && (conn.has_output() || conn.watched)
        {
            self.world.mark_dirty(id);
        }
    }

    /// Tells the engine what has come of its effects, until nothing more comes of that.
    pub(crate) fn settle(&mut self) {
        let now = self.world.now;
        loop {
            if let Some(id) = pop_first(&mut self.world.closed) {
                self.shard
                    .handle(now, Event::Closed { conn: id }, &mut self.world);
            } else if let Some(id) = pop_first(&mut self.world.moving) {
                self.depart(id);
            } else if let Some(id) = pop_first(&mut self.world.resumed) {
                if let Some(conn) = self.world.conns.get_mut(id) {
                    conn.behind = true;
                    self.serve(id);
                }
            } else if let Some(id) = pop_first(&mut self.world.roomy) {
                if self.world.conns.get_mut(id).is_some_and(|conn| conn.is_open()) {
                    self.shard.handle(now, Event::Room { conn: id }, &mut self.world);
                }
            } else {
                return;
            }
        }
    }

    fn deadlines(&mut self) {
        let now = self.world.now;
        while let Some((deadline, id)) = self.world.timers.due(now.mono_ms) {
            let Some(conn) = self.world.conns.get_mut(id) else {
                continue;
            };
            match (deadline, &conn.phase) {
                (Deadline::Request, Phase::Request(_)) => self.world.metrics.head_deadline.add(1),
                (Deadline::Flush, Phase::Leaving) | (Deadline::Linger, Phase::Lingering) => {}
                _ => continue,
            }
            self.world.end(id);
        }
        if self
            .shard
            .next_wake_ms()
            .is_some_and(|at_ms| at_ms <= now.mono_ms)
        {
            self.shard.handle(now, Event::Tick, &mut self.world);
        }
    }

    fn accept(&mut self) {
        if let Some(certificates) = &self.certificates
            && certificates.check_due(self.world.now.mono_ms)
        {
            let certificates = certificates.clone();
            self.world.shared.offload.run(move || certificates.check());
        }
        for _ in 0..ACCEPTS_MAX {
            match self.world.driver.accept() {
                Ok(Some((socket, peer))) => {
                    let shared = &self.world.shared;
                    let place = match shared.lobby.enter(peer.ip(), shared.admission.taken()) {
                        Ok(place) => place,
                        // Closed at once, so that a flood costs neither a descriptor nor a line in the log.
                        Err(refusal) => {
                            let metrics = &self.world.metrics;
                            match refusal {
                                Refusal::HalfOpen => metrics.accept_half_open.add(1),
                                Refusal::Descriptors => metrics.accept_descriptor_limit.add(1),
                            }
                            self.world.driver.close(socket);
                            continue;
                        }
                    };
                    self.world.metrics.accepted.add(1);
                    let id = self.world.conns.next_id();
                    let tls = self
                        .certificates
                        .as_ref()
                        .map(|certificates| TlsSession::new(certificates.current()));
                    let watched = self.world.driver.watch(socket, id.slot);
                    match (watched, tls.transpose()) {
                        (Ok(()), Ok(tls)) => {
                            self.world.conns.insert(Conn::accepted(socket, peer, place, tls));
                            self.world.metrics.sockets.add(1);
                            self.world
                                .timers
                                .start(Deadline::Request, self.world.now.mono_ms, id);
                        }
                        _ => {
                            self.world.driver.close(socket);
                            self.world.metrics.accept_errors.add(1);
                        }
                    }
                }
                Ok(None) => {
                    self.acceptable = false;
                    return;
                }
                Err(error) if listen::is_about_one_connection(&error) => {}
                Err(error) => {
                    if listen::is_descriptor_limit(&error) {
                        let driver = &mut self.world.driver;
                        let accept = || Ok(driver.accept()?.map(|(socket, _)| driver.close(socket)));
                        let (turned_away, none_left) = self.spare.turn_away(accept);
                        self.world.metrics.accept_descriptor_limit.add(turned_away);
                        self.acceptable = !none_left;
                    } else {
                        self.world.metrics.accept_errors.add(1);
                    }
                    self.accept_from_ms = self.world.now.mono_ms + listen::BACK_OFF_MS;
                    return;
                }
            }
        }
    }

    /// Sends a connection to the shard the engine chose.
    fn depart(&mut self, id: ConnId) {
        let Some(conn) = self.world.conns.remove(id) else {
            return;
        };
        self.world.hoarded_bytes -= conn.hoard_bytes;
        let Conn {
            socket,
            outbox,
            mut codec,
            mut tls,
            seat,
            phase,
            paused,
            ..
        } = *conn;
        self.world.metrics.sockets.sub(1);
        let Phase::Moving(moving) = phase else { return };
        match self.world.driver.release(socket) {
            Ok((stream, mut rest)) => {
                self.world.metrics.migrated.add(1);
                match &mut tls {
                    Some(tls) => tls.keep(&mut rest),
                    None => codec.keep(&mut rest),
                }
                let parcel = Parcel {
                    stream,
                    tls,
                    codec,
                    outbox,
                    seat,
                    session: moving.session,
                    paused,
                };
                self.world.shared.doors[moving.shard].post(Letter::Parcel(Box::new(parcel)));
            }
            Err(error) => tracing::error!(%error, "a connection can't be moved to its shard"),
        }
    }

    /// Takes in a connection from another shard.
    fn arrive(&mut self, parcel: Parcel) {
        let Parcel {
            stream,
            tls,
            codec,
            outbox,
            seat,
            session,
            paused,
        } = parcel;
        let id = self.world.conns.next_id();
        let driver = &mut self.world.driver;
        let adopted = driver.adopt(stream).and_then(|socket| {
            let watched = driver.watch(socket, id.slot);
            watched.map(|()| socket).inspect_err(|_| driver.close(socket))
        });
        let socket = match adopted {
            Ok(socket) => socket,
            Err(error) => {
                tracing::error!(%error, "a connection can't be taken in");
                return;
            }
        };
        let conn = Conn {
            socket,
            outbox,
            codec,
            tls,
            place: None,
            seat,
            phase: Phase::Open,
            ended: false,
            blocked: false,
            dirty: false,
            paused,
            behind: false,
            received: (0, 0),
            used: (0, Share::default()),
            slow: 0,
            idle: false,
            queued: false,
            dropped_bytes: 0,
            watched: false,
            known: false,
            hoard_bytes: 0,
        };
        if paused {
            driver.pause(socket);
        }
        self.world.conns.insert(conn);
        self.world.metrics.sockets.add(1);
        self.world.mark_dirty(id);
        self.shard.handle(
            self.world.now,
            Event::Arrived { conn: id, session },
            &mut self.world,
        );
        self.used = Share::default();
        self.resume(id);
    }

    /// Whether a peer may still be waiting for something to be written.
    fn has_conversations(&mut self) -> bool {
        let conns = &mut self.world.conns;
        conns.ids().into_iter().any(|id| {
            conns
                .get_mut(id)
                .is_some_and(|conn| !matches!(conn.phase, Phase::Request(_)))
        })
    }
}

/// Takes the oldest. The lists are short: most hold nothing most of the time.
fn pop_first(list: &mut Vec<ConnId>) -> Option<ConnId> {
    if list.is_empty() {
        None
    } else {
        Some(list.remove(0))
    }
}
