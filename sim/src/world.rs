//! The world: a relay process of real shards between a simulated net and a simulated store, clients at the other end of
//! the net, and time. One thing happens after the other, in an order that the seed decides.
//!
//! The borders are production's: [`drover_engine::Effects`] for what a shard does, [`Shard::message`],
//! [`Shard::handle`] and [`Shard::end_of_turn`] for what it is told, the two store traits behind it.

mod agenda;
mod clock;
mod dial;
mod disk;
mod mail;
mod net;
mod outside;
mod people;
mod stages;
mod told;
mod turn;
mod view;
mod words;

pub use agenda::Happening;
pub use clock::EPOCH_MS;
pub(crate) use net::is_media;
pub use net::{Line, messages};
pub use outside::Outside;
pub use words::tag_of;

use crate::client::{Client, State};
use crate::coverage::Coverage;
use crate::model::WINDOW_MS;
use crate::plan::{Fault, Feature, Plan};
use crate::sabotage::Saboteur;
use crate::world::mail::Letter;
use crate::world::net::{Output, Phase};
use crate::world::stages::Stage;
use drover_engine::config::Push;
use drover_engine::metrics::Metrics;
use drover_engine::shard::Challenges;
use drover_engine::{Config, Directory, Shard};
use std::sync::Arc;

/// See the module.
pub struct World {
    config: Arc<Config>,
    shards: Vec<Shard>,
    clients: Vec<Client>,
    out: Outside,
    happened: u64,
}

/// What a run came to.
#[derive(Debug)]
pub struct Summary {
    /// Things that happened.
    pub happened: u64,
    /// What came to pass.
    pub coverage: Coverage,
    /// The number of the trace.
    pub hash: u64,
    /// The broken rule, if one was.
    pub violation: Option<crate::model::Violation>,
    /// The trace, if it was asked for.
    pub lines: Vec<String>,
}

impl World {
    /// Drawn, and not begun.
    pub fn new(plan: Plan, saboteur: Option<Box<dyn Saboteur>>, with_text: bool) -> Self {
        let config = Arc::new(Config {
            shards: plan.shards,
            index_bytes_max: plan.index_bytes,
            recon_piece_items: 16,
            live_frames_per_minute: 100_000,
            max_concurrent_calls: Some(plan.calls_max),
            push: plan.has(Feature::Wakes).then(|| Push {
                register_url: "https://ringer.example/v1/handles".into(),
                coalesce_ms: WINDOW_MS,
            }),
            ..Config::default()
        });
        let mut out = Outside::new(plan, saboteur, with_text);
        let clients = people::draw(&mut out);
        Self {
            config,
            shards: Vec::new(),
            clients,
            out,
            happened: 0,
        }
    }

    /// Runs to the end, or to the first broken rule.
    pub fn run(mut self) -> Summary {
        self.start();
        for workspace in 0..self.out.plan.workspaces {
            self.out.agenda.add(0, Happening::Mint(workspace));
        }
        for client in 0..self.clients.len() {
            self.soon(client);
        }
        let mut stage = Stage::Wild;
        while stage != Stage::Over && self.out.model.violation.is_none() {
            self.until_rest(stage);
            stage = self.next_stage(stage);
        }
        self.finish()
    }

    fn finish(mut self) -> Summary {
        self.out.count_shards();
        for (what, times) in self.out.model.calls.tally() {
            self.out.coverage.add(what, times);
        }
        let handed = self.out.model.shelves.handed;
        self.out.coverage.add("key packages handed out", handed);
        self.out.coverage.add("happenings", self.happened);
        self.out.coverage.add("acknowledgements", self.out.model.acks);
        Summary {
            happened: self.happened,
            coverage: self.out.coverage,
            hash: self.out.trace.hash(),
            violation: self.out.model.violation.clone(),
            lines: self.out.trace.into_lines(),
        }
    }

    /// What goes wrong between two happenings.
    fn misfortunes(&mut self) {
        if self.out.strikes(Fault::Clock) {
            let what = self.out.clock.fault(&mut self.out.misfortune);
            self.out.note(b"k", |line| line.push_str(&what));
            for shard in 0..self.shards.len() {
                self.wake_shard(shard);
            }
        }
        if !self.shards.is_empty() && self.out.strikes(Fault::Crash) {
            let pause_us = self.out.misfortune.skewed(1_000, 5_000_000);
            self.crash(pause_us);
        }
        for fault in [Fault::Cut, Fault::Deaf] {
            if self.out.strikes(fault) {
                let held: Vec<Line> = self.clients.iter().filter_map(|c| c.session.line).collect();
                match self.out.misfortune.pick(&held).copied() {
                    Some(line) if fault == Fault::Cut => self.out.cut(line),
                    Some(line) => self.out.deafen(line),
                    None => {}
                }
            }
        }
    }

    // ---- the process

    fn start(&mut self) {
        self.out.begin_process();
        let directory = self
            .out
            .stores
            .first()
            .map(|stores| Directory::open(&*stores.control));
        let directory = match directory {
            Some(Ok(directory)) => Arc::new(directory),
            _ => {
                return self
                    .out
                    .model
                    .fail("the store opens", || "the directory can't be read".to_owned());
            }
        };
        self.out.directory = Some(directory.clone());
        let challenges = Arc::new(Challenges::with_secret(self.out.dice.bytes()));
        self.shards = (0..self.config.shards)
            .map(|index| {
                let (config, directory) = (self.config.clone(), directory.clone());
                let metrics: Arc<Metrics> = Arc::default();
                self.out.metrics.push(metrics.clone());
                Shard::new(index, config, directory, metrics, challenges.clone())
            })
            .collect();
        for shard in 0..self.shards.len() {
            self.out.wake(shard);
        }
    }

    /// The process dies, and starts again after this long.
    fn crash(&mut self, pause_us: u64) {
        self.shards.clear();
        self.out.end_process();
        let at = self.out.now_us() + pause_us;
        self.out.agenda.add(at, Happening::Starts);
    }

    fn wake_shard(&mut self, shard: usize) {
        if self.shards.get(shard).is_some_and(Shard::is_answering) {
            self.out.wake(shard);
        }
        if let Some(at_ms) = self.shards.get(shard).and_then(Shard::next_wake_ms) {
            let at_us = self.out.clock.when_mono(at_ms);
            self.out.wake_at(shard, at_us);
        }
    }

    fn happen(&mut self, happening: Happening) {
        let lives = |process| process == self.out.process && !self.shards.is_empty();
        match happening {
            Happening::Turn { shard, process } if lives(process) => {
                if self.out.turn_begins(shard) {
                    self.turn(shard);
                }
            }
            Happening::Writes { caller, process } if lives(process) => self.out.end_writes(caller),
            Happening::ReadEnds {
                read,
                failure,
                process,
            } if lives(process) => self.out.end_read(read, failure),
            Happening::Hashed {
                shard,
                ticket,
                matches,
                process,
            } if lives(process) => {
                self.out.post(shard, Letter::Offloaded(ticket, matches));
            }
            Happening::Turn { .. }
            | Happening::Writes { .. }
            | Happening::ReadEnds { .. }
            | Happening::Hashed { .. } => {}
            Happening::Arrives(line) => {
                if let Some(shard) = self.out.net.arrive(line)
                    && !self.shards.is_empty()
                {
                    self.out.wake(shard);
                }
            }
            Happening::Reads(line) => self.client_reads(line),
            Happening::Hears(line) => self.client_hears(line),
            Happening::Notices(line) => {
                let conn = &mut self.out.net.conns[line];
                if matches!(conn.phase, Phase::Leaving) {
                    conn.phase = Phase::Gone;
                } else if matches!(conn.phase, Phase::Moving(..) | Phase::Travelling) {
                    let at = self.out.now_us() + 1_000;
                    self.out.agenda.add(at, Happening::Notices(line));
                } else if conn.is_open() && !self.shards.is_empty() {
                    conn.phase = Phase::Gone;
                    let shard = conn.shard;
                    self.out.net.closed.push_back(line);
                    self.out.wake(shard);
                }
            }
            Happening::ReadsAgain(line) => {
                self.out.net.conns[line].reading = true;
                self.out.schedule_read(line);
            }
            Happening::Acts(client) => self.client_acts(client),
            Happening::Mint(workspace) => self.out.mint(workspace, self.config.shards),
            Happening::Starts => {
                if self.shards.is_empty() {
                    self.out.note(b"s", |line| line.push_str("the process starts"));
                    self.start();
                }
            }
        }
    }

    // ---- clients

    /// Puts its next turn on the agenda, soon.
    fn soon(&mut self, client: usize) {
        self.clients[client].rests = false;
        self.acts_in(client, 0);
    }

    fn acts_in(&mut self, client: usize, pause_us: u64) {
        if !std::mem::replace(&mut self.clients[client].acts_due, true) {
            let at = self.out.now_us() + pause_us;
            self.out.agenda.add(at, Happening::Acts(client));
        }
    }

    /// The ringer has rung: whoever sleeps dials.
    fn wakes_up(&mut self, client: usize) {
        let session = &mut self.clients[client].session;
        if session.state == State::Down {
            session.retry_at_us = self.out.now_us();
            self.acts_in(client, 1_000);
        }
    }

    fn client_acts(&mut self, client: usize) {
        let person = &mut self.clients[client];
        person.acts_due = false;
        let excused =
            self.out.is_healed() && !self.out.model.access[person.session.workspace].lists(&person.device());
        if excused {
            // It has no say here any more.
            person.session.give_up_writes();
            person.rests = true;
            return self.acts_in(client, 5_000_000);
        }
        person.rests = person.act(&mut self.out);
        let pause_us = match (person.session.state, person.rests) {
            (_, true) => 5_000_000,
            (State::Down, _) => person
                .session
                .retry_at_us
                .saturating_sub(self.out.now_us())
                .clamp(1_000, 5_000_000),
            _ => self.out.dice.skewed(200, 300_000),
        };
        self.acts_in(client, pause_us);
    }

    fn client_reads(&mut self, line: Line) {
        if !self.out.net.conns[line].held {
            return;
        }
        let unread = self.out.net.unread(line);
        let most = if self.out.misfortune.chance(0.2) {
            self.out.misfortune.skewed(1, unread.max(1) as u64) as usize
        } else {
            unread
        };
        let client = self.out.net.conns[line].client;
        for output in self.out.net.read(line, most) {
            match output {
                Output::Message(message) => {
                    self.out
                        .note_line(b'<', line, |text| text.push_str(&words::describe(&message)));
                    self.out.trace_bytes(&message);
                    if self.clients[client].session.line == Some(line) {
                        self.clients[client].receive(&message, &mut self.out);
                    }
                }
                Output::Ping => self.out.say_activity(line),
                Output::Close => {}
            }
        }
        let conn = &self.out.net.conns[line];
        if self.out.net.is_backed_up(line) && !matches!(conn.phase, Phase::Gone) && !self.shards.is_empty() {
            let shard = conn.shard;
            self.out.net.mark_dirty(line);
            self.out.wake(shard);
        }
        self.out.schedule_read(line);
        self.acts_in(client, 100);
    }

    fn client_hears(&mut self, line: Line) {
        // What had arrived is read first.
        if self.out.net.conns[line].held && self.out.net.unread(line) > 0 {
            self.out.net.conns[line].reading = true;
            self.client_reads(line);
        }
        let conn = &mut self.out.net.conns[line];
        let client = conn.client;
        if std::mem::take(&mut conn.held) && self.clients[client].session.line == Some(line) {
            self.out.note_line(b'x', line, |text| text.push_str("is gone"));
            self.clients[client].lost(&mut self.out);
            self.acts_in(client, 100);
        }
    }
}
