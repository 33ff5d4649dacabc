//! Everything outside the shards: what there is of it, its time and its misfortunes, the process that begins and ends,
//! and the operator who mints workspaces. What happens to it has files of its own.

use super::agenda::{Agenda, Happening};
use super::clock::Clock;
use super::mail::{Letter, Mailbox};
use super::net::{Line, Net};
use crate::codes;
use crate::coverage::Coverage;
use crate::dice::Dice;
use crate::model::Model;
use crate::plan::{Fault, Plan};
use crate::sabotage::Saboteur;
use crate::store::SimStore;
use crate::trace::Trace;
use drover_engine::bootstrap::Banner;
use drover_engine::effects::Stores;
use drover_engine::metrics::Metrics;
use drover_engine::shard::{Operator, ShardMessage};
use drover_engine::wake::Category;
use drover_engine::{Directory, Now};
use drover_wire::id::{GroupId, PublicKey, Token};
use ed25519_dalek::SigningKey;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

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
    pub(super) mail: Vec<Mailbox>,
    /// By shard: when its next turn is due.
    pub(super) turns: Vec<Option<u64>>,
    pub(super) writes_due: Vec<bool>,
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
    /// By shard and ticket: the workspaces that a request changes, or reads as a whole.
    pub(super) concerned: BTreeMap<(usize, u64), Vec<usize>>,
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
            concerned: BTreeMap::new(),
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
        self.concerned.clear();
        for line in 0..self.net.conns.len() {
            if self.net.conns[line].held {
                self.sever(line);
            }
        }
        self.net.restart();
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
