//! Everything outside the shards, and what happens to it: the net, the store's pace, mail between shards, misfortune.

use super::agenda::{Agenda, Happening};
use super::clock::Clock;
use super::net::{Input, Line, Net, Phase};
use crate::codes;
use crate::coverage::Coverage;
use crate::dice::Dice;
use crate::model::Model;
use crate::plan::{Fault, Plan};
use crate::sabotage::Saboteur;
use crate::store::{SimStore, Verdict};
use crate::trace::Trace;
use bytes::Bytes;
use drover_engine::bootstrap::Banner;
use drover_engine::effects::{StoreRequest, Stores};
use drover_engine::event::{StoreAnswer, Ticket};
use drover_engine::metrics::Metrics;
use drover_engine::shard::{Operator, Session, ShardMessage};
use drover_engine::wake::Category;
use drover_engine::{Directory, Now};
use drover_storage::StoreError;
use drover_storage::log::StreamKind;
use drover_wire::id::{GroupId, PublicKey, Token};
use ed25519_dalek::SigningKey;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

/// Mail for a shard.
pub(super) enum Letter {
    Stored(Ticket, StoreAnswer),
    Offloaded(Ticket, bool),
    Posted(ShardMessage),
    /// A connection was accepted.
    Opened(Line),
    /// A connection with its state.
    Parcel(Line, Box<Session>),
}

/// One shard's, written to by the stores' answers as well.
type Mailbox = Arc<Mutex<VecDeque<Letter>>>;

/// See the module.
pub struct Outside {
    /// What was drawn.
    pub plan: Plan,
    /// What clients do, and how long ordinary things take.
    pub dice: Dice,
    /// What goes wrong.
    pub(crate) misfortune: Dice,
    /// What the saboteur does.
    pub(crate) sabotage: Dice,
    pub(crate) agenda: Agenda,
    pub(crate) clock: Clock,
    pub(crate) net: Net,
    /// What is on disk, and what is on its way there.
    pub store: Arc<SimStore>,
    /// By shard, with the saboteur in between.
    pub(super) stores: Vec<Stores>,
    mail: Vec<Mailbox>,
    /// By shard: when its next turn is due.
    turns: Vec<Option<u64>>,
    writes_due: Vec<bool>,
    /// Counts the processes.
    pub(super) process: u64,
    pub(crate) saboteur: Option<Box<dyn Saboteur>>,
    /// What may be expected.
    pub model: Model,
    pub(crate) trace: Trace,
    /// What came to pass.
    pub coverage: Coverage,
    pub(super) metrics: Vec<Arc<Metrics>>,
    /// By workspace: what its mint printed.
    pub banners: Vec<Option<Banner>>,
    /// By workspace: invites that are open.
    pub invites: Vec<Vec<Token>>,
    /// Every group there is, with its workspace.
    pub groups: BTreeMap<GroupId, usize>,
    /// Clients that the ringer has just rung.
    pub(super) woken: Vec<usize>,
    /// Of the process that runs.
    pub(super) directory: Option<Arc<Directory>>,
    /// By client: its workspace and its device.
    pub(super) who: Vec<(usize, PublicKey)>,
    /// The same clients' keys: authorizers sign together when one of them asks.
    pub(super) keys: Vec<SigningKey>,
    healed: bool,
    /// By shard and ticket: the workspaces of what is on its way to the log.
    pub(super) appends: BTreeMap<(usize, u64), BTreeSet<(usize, Category)>>,
}

impl Outside {
    pub(super) fn new(plan: Plan, saboteur: Option<Box<dyn Saboteur>>, with_text: bool) -> Self {
        let (seed, shards) = (plan.seed.seed, plan.shards);
        let store = Arc::new(SimStore::default());
        Self {
            dice: Dice::new(seed, "clients"),
            misfortune: Dice::new(seed, "misfortune"),
            sabotage: Dice::new(seed, "sabotage"),
            agenda: Agenda::default(),
            clock: Clock::new(),
            net: Net::new(shards, plan.socket_bytes),
            model: Model::new(store.clone(), plan.workspaces, plan.calls_max),
            store,
            stores: Vec::new(),
            mail: Vec::new(),
            turns: Vec::new(),
            writes_due: Vec::new(),
            process: 0,
            saboteur,
            trace: Trace::new(with_text),
            coverage: Coverage::default(),
            metrics: Vec::new(),
            banners: vec![None; plan.workspaces],
            invites: vec![Vec::new(); plan.workspaces],
            groups: BTreeMap::new(),
            woken: Vec::new(),
            directory: None,
            who: Vec::new(),
            keys: Vec::new(),
            healed: false,
            appends: BTreeMap::new(),
            plan,
        }
    }

    /// The world's time.
    pub fn now_us(&self) -> u64 {
        self.agenda.now_us()
    }

    pub(super) fn now(&mut self) -> Now {
        self.clock.now()
    }

    /// The relay's wall clock.
    pub fn wall_ms(&mut self) -> u64 {
        self.clock.now().wall_ms
    }

    /// Whether nothing goes wrong any more.
    pub fn is_healed(&self) -> bool {
        self.healed
    }

    pub(super) fn heal(&mut self) {
        self.healed = true;
        self.clock.heal();
        self.note(b"h", |line| line.push_str("nothing goes wrong any more"));
        for line in 0..self.net.conns.len() {
            self.net.conns[line].reading = true;
            self.schedule_read(line);
        }
    }

    /// Whether this fault happens now.
    pub fn strikes(&mut self, fault: Fault) -> bool {
        !self.healed && self.misfortune.chance(self.plan.probability(fault))
    }

    /// Its workspace can't be founded: nobody waits for it.
    pub fn abandon(&mut self, workspace: usize) {
        self.note(b"a", |line| {
            let _ = write!(line, "workspace {workspace} is given up");
        });
    }

    // ---- traces

    pub(super) fn note(&mut self, data: &[u8], line: impl FnOnce(&mut String)) {
        self.trace.note(self.agenda.now_us(), data, line);
    }

    pub(super) fn note_line(&mut self, kind: u8, line: Line, what: impl FnOnce(&mut String)) {
        let data = [&[kind][..], &(line as u32).to_le_bytes()].concat();
        let client = self.net.conns[line].client;
        self.trace.note(self.agenda.now_us(), &data, |text| {
            let _ = write!(text, "line {line} (client {client}) {} ", kind as char);
            what(text);
        });
    }

    pub(super) fn trace_bytes(&mut self, bytes: &[u8]) {
        self.trace.hash_bytes(bytes);
    }

    // ---- the process

    pub(super) fn begin_process(&mut self) {
        self.process += 1;
        self.clock.restart();
        let shards = self.plan.shards;
        self.mail = (0..shards).map(|_| Mailbox::default()).collect();
        self.turns = vec![None; shards];
        self.writes_due = vec![false; shards];
        if let Some(saboteur) = &mut self.saboteur
            && self.process > 1
        {
            let sabotage = &mut self.sabotage;
            self.store.tamper(|disk| saboteur.restarts(disk, sabotage));
        }
        self.stores = (0..shards)
            .map(|shard| {
                let caller = Arc::new(self.store.caller(shard));
                let stores = Stores {
                    log: caller.clone(),
                    control: caller,
                };
                match &mut self.saboteur {
                    Some(saboteur) => saboteur.wraps(stores),
                    None => stores,
                }
            })
            .collect();
    }

    pub(super) fn count_shards(&mut self) {
        for metrics in std::mem::take(&mut self.metrics) {
            self.coverage.shard(&metrics);
        }
    }

    pub(super) fn end_process(&mut self) {
        self.coverage.add("crashes", 1);
        self.count_shards();
        self.note(b"!", |line| line.push_str("the process dies"));
        let misfortune = &mut self.misfortune;
        self.store.crash(|queued| misfortune.below(queued + 1));
        self.mail.clear();
        self.stores.clear();
        self.directory = None;
        self.model.calls.restarts();
        self.model.wakes.restarts();
        self.appends.clear();
        for line in 0..self.net.conns.len() {
            if self.net.conns[line].held {
                self.sever(line);
            }
        }
        self.net.restart();
    }

    // ---- shards

    /// A shard has its turn soon.
    pub(super) fn wake(&mut self, shard: usize) {
        let pause_us = if self.strikes(Fault::Order) {
            self.misfortune.skewed(10, 2_000_000)
        } else {
            self.misfortune.between(1, 40)
        };
        self.wake_at(shard, self.now_us() + pause_us);
    }

    pub(super) fn wake_at(&mut self, shard: usize, at_us: u64) {
        let Some(turn) = self.turns.get_mut(shard) else {
            return;
        };
        if turn.is_none_or(|due| at_us < due) {
            *turn = Some(at_us);
            let process = self.process;
            self.agenda.add(at_us, Happening::Turn { shard, process });
        }
    }

    /// Whether this is the turn that was due; others were meanwhile called for earlier.
    pub(super) fn turn_begins(&mut self, shard: usize) -> bool {
        if self.turns[shard] != Some(self.now_us()) {
            return false;
        }
        self.turns[shard] = None;
        self.note(&[b't', shard as u8], |line| {
            let _ = write!(line, "shard {shard} has its turn");
        });
        true
    }

    pub(super) fn post(&mut self, shard: usize, letter: Letter) {
        if let Some(mailbox) = self.mail.get(shard) {
            mailbox
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push_back(letter);
            self.wake(shard);
        }
    }

    /// The letters of this turn: all there are, or the first few.
    pub(super) fn letters(&mut self, shard: usize) -> Vec<Letter> {
        let mailbox = self.mail[shard].clone();
        let mut mailbox = mailbox.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = mailbox.len();
        let most = if self.strikes(Fault::Order) {
            1 + self.misfortune.below(waiting)
        } else {
            waiting
        };
        let letters = mailbox.drain(..most.min(waiting)).collect();
        if !mailbox.is_empty() {
            self.wake(shard);
        }
        letters
    }

    /// Connections of a shard with something to read, in some order.
    pub(super) fn readable(&mut self, shard: usize) -> Vec<Line> {
        let mut lines = std::mem::take(&mut self.net.readable[shard]);
        for at in (1..lines.len()).rev() {
            let other = self.misfortune.below(at + 1);
            lines.swap(at, other);
        }
        lines
    }

    pub(super) fn depart(&mut self, line: Line) {
        let conn = &mut self.net.conns[line];
        if let Phase::Moving(to, session) = std::mem::replace(&mut conn.phase, Phase::Travelling) {
            self.net.forget(line);
            self.coverage.add("moves between shards", 1);
            self.note_line(b'm', line, |text| {
                let _ = write!(text, "moves to shard {to}");
            });
            self.post(to, Letter::Parcel(line, session));
        }
    }

    // ---- the store

    pub(super) fn ask_store(&mut self, shard: usize, ticket: Ticket, request: StoreRequest) {
        let name = format!("{request:?}");
        let name = name.split(['(', ' ']).next().unwrap_or_default().to_owned();
        self.note(&[&[b'w', shard as u8], name.as_bytes()].concat(), |line| {
            let _ = write!(line, "shard {shard} asks the store: {name} {}", ticket.0);
        });
        if let StoreRequest::Append(batch) = &request {
            let streams = batch.appends.iter().map(|append| append.stream);
            let of = streams.filter_map(|stream| {
                let category = match stream.kind {
                    StreamKind::Envelopes => Category::Message,
                    StreamKind::Handshakes => Category::Handshake,
                };
                Some((*self.groups.get(&stream.group)?, category))
            });
            let of = of.collect();
            self.appends.insert((shard, ticket.0), of);
        }
        let mailbox = self.mail[shard].clone();
        self.stores[shard].submit(request, move |answer| {
            mailbox
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push_back(Letter::Stored(ticket, answer));
        });
        let process = self.process;
        for read in self.store.fresh_reads() {
            let failure = self.strikes(Fault::FailedRead).then_some(StoreError::Unknown);
            let at = self.now_us() + self.misfortune.skewed(20, 20_000);
            let happening = Happening::ReadEnds {
                read,
                failure,
                process,
            };
            self.agenda.add(at, happening);
        }
        self.schedule_writes(shard);
        // A saboteur may have answered at once.
        self.wake(shard);
    }

    fn schedule_writes(&mut self, caller: usize) {
        if self.store.waiting(caller) == 0 || std::mem::replace(&mut self.writes_due[caller], true) {
            return;
        }
        let pause_us = if self.strikes(Fault::SlowWrite) {
            self.misfortune.skewed(10_000, 30_000_000)
        } else {
            self.misfortune.skewed(50, 3_000)
        };
        let (at, process) = (self.now_us() + pause_us, self.process);
        self.agenda.add(at, Happening::Writes { caller, process });
    }

    /// One sync: some of the caller's writes end, in their order.
    pub(super) fn end_writes(&mut self, caller: usize) {
        self.writes_due[caller] = false;
        let count = 1 + self.misfortune.below(self.store.waiting(caller));
        for _ in 0..count {
            let verdict = if self.strikes(Fault::FailedWrite) {
                Verdict::NotCommitted
            } else if self.strikes(Fault::UnknownWrite) {
                if self.misfortune.chance(0.5) {
                    Verdict::UnknownKept
                } else {
                    Verdict::UnknownLost
                }
            } else {
                Verdict::Done
            };
            if self.store.write(caller, verdict) {
                match verdict {
                    Verdict::Done => {}
                    Verdict::NotCommitted => self.coverage.add("writes failed", 1),
                    _ => self.coverage.add("writes unknown", 1),
                }
                self.note(&[b'v', caller as u8, verdict as u8], |line| {
                    let _ = write!(line, "shard {caller}'s oldest write ends: {verdict:?}");
                });
            }
        }
        self.schedule_writes(caller);
        self.wake(caller);
    }

    pub(super) fn end_read(&mut self, read: u64, failure: Option<StoreError>) {
        self.store.read(read, failure);
        for shard in 0..self.plan.shards {
            self.wake(shard);
        }
    }

    // ---- the net

    /// A client dials. `None` while there is no process, or none that listens.
    pub(crate) fn open(&mut self, client: usize) -> Option<Line> {
        if self.stores.is_empty() {
            return None;
        }
        let shard = self.dice.below(self.plan.shards);
        let (line, _) = self.net.open(client, shard);
        self.note_line(b'o', line, |text| {
            let _ = write!(text, "opens on shard {shard}");
        });
        self.post(shard, Letter::Opened(line));
        Some(line)
    }

    fn latency_us(&mut self) -> u64 {
        self.dice.skewed(20, 50_000)
    }

    /// A client writes a message.
    pub(crate) fn say(&mut self, line: Line, message: Bytes) {
        let latency = self.latency_us();
        self.note_line(b'>', line, |text| text.push_str(&super::told::describe(&message)));
        self.trace_bytes(&message);
        self.net
            .write(line, Input::Message(message), latency, &mut self.agenda);
    }

    pub(super) fn say_activity(&mut self, line: Line) {
        let latency = self.latency_us();
        self.net.write(line, Input::Activity, latency, &mut self.agenda);
    }

    /// A client closes its end; what it wrote may still arrive.
    pub(crate) fn hang_up(&mut self, line: Line) {
        self.note_line(b'-', line, |text| text.push_str("hangs up"));
        self.net.conns[line].held = false;
        let at = self.now_us() + 50_000 + self.latency_us();
        self.agenda.add(at, Happening::Notices(line));
    }

    /// The socket dies; both ends learn of it, each in its time.
    pub(super) fn cut(&mut self, line: Line) {
        self.coverage.add("sockets cut", 1);
        self.note_line(b'/', line, |text| text.push_str("is cut"));
        self.sever(line);
        let at = self.now_us() + self.misfortune.skewed(10, 400_000_000);
        self.agenda.add(at, Happening::Notices(line));
    }

    /// The client reads no more for a while.
    pub(super) fn deafen(&mut self, line: Line) {
        self.coverage.add("readers that stop", 1);
        self.note_line(b'd', line, |text| text.push_str("reads no more"));
        self.net.conns[line].reading = false;
        let at = self.now_us() + self.misfortune.skewed(1_000, 60_000_000);
        self.agenda.add(at, Happening::ReadsAgain(line));
    }

    fn sever(&mut self, line: Line) {
        let kept = self.misfortune.below(self.net.unread(line) + 1);
        self.net.cut(line, kept);
        let at = self.now_us() + self.misfortune.skewed(10, 10_000_000);
        self.agenda.add(at, Happening::Hears(line));
    }

    pub(super) fn flush(&mut self, line: Line) {
        let latency = self.latency_us();
        let mono_ms = self.now().mono_ms;
        let conn = &mut self.net.conns[line];
        if conn.outbox.carries_media() && !matches!(conn.phase, Phase::Gone) {
            let lane_ms = match &mut self.saboteur {
                Some(saboteur) => saboteur.ages(mono_ms),
                None => mono_ms,
            };
            let shed = conn.outbox.expire_media(lane_ms);
            self.model.calls.expires(line, mono_ms, shed);
        }
        self.net
            .flush(line, latency, mono_ms, &mut self.agenda, &mut self.model.calls);
    }

    pub(super) fn flush_dirty(&mut self, shard: usize) {
        for line in std::mem::take(&mut self.net.dirty[shard]) {
            if std::mem::take(&mut self.net.conns[line].dirty) {
                self.flush(line);
            }
        }
    }

    pub(super) fn schedule_read(&mut self, line: Line) {
        let latency = self.latency_us();
        self.net.schedule_read(line, latency, &mut self.agenda);
    }

    /// The private half of a device's key.
    pub fn key_of(&self, device: &PublicKey) -> Option<SigningKey> {
        let at = self.who.iter().position(|(_, known)| known == device)?;
        self.keys.get(at).cloned()
    }

    // ---- the operator

    /// The operator makes a workspace exist, and asks again while it can't be told whether it does.
    pub(super) fn mint(&mut self, workspace: usize, shards: usize) {
        let again = self.now_us() + 2_000_000;
        if self.banners[workspace].is_some() {
            return;
        }
        self.agenda.add(again, Happening::Mint(workspace));
        let Some(minted) = codes::minted(workspace) else {
            return;
        };
        let exists = self
            .model
            .on_disk(|disk| disk.is_minted(&codes::realm(workspace)));
        if exists {
            // It was printed, or would have been.
            self.model.hides(&minted.banner.token.0, 6);
            self.banners[workspace] = Some(minted.banner);
        } else if !self.stores.is_empty() {
            let operator = Operator::Mint {
                minted: Box::new(minted),
                reply: Box::new(|_| {}),
            };
            let (shard, message) = ShardMessage::operator(codes::realm(workspace), operator, shards);
            self.post(shard, Letter::Posted(message));
        }
    }
}
