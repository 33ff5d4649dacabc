//! What may be expected of the relay, and the only place where the invariants of architecture.md §9 are judged. The
//! model learns from what clients were told and looks at the disk; it never asks the engine.
//!
//! | Invariant | Judged in |
//! | --- | --- |
//! | 1: an acknowledged SEND survives, a duplicate gets its first seq | [`Model::acknowledged`], [`Model::reconciled`], [`Model::missing`] |
//! | 2: seq rises, handshakes are dense | [`Model::number`], [`Subscription`] |
//! | 3: nothing to or from a removed device | [`Model::leaves`], [`Model::taken`], [`Model::number`] |
//! | 4: no class of frames starves another | [`Calls`] |
//! | 5: what is bounded stays in its bound | [`Model::queued`] |
//! | 6: everything after the cursor, or a notice | [`Subscription`] |
//! | 7: nothing in the log that identifies | [`Model::logged`] |
//! | a key package is handed out once (07 A3) | [`Shelves`] |
//! | a recovery wrap never goes back (07 B2) | [`Wraps`] |
//! | who sleeps is woken, and nobody else (12 §5) | [`Wakes`] |
//!
//! 8 needs several nodes, which do not exist yet.

mod access;
mod calls;
mod shelves;
mod subscription;
mod wakes;
mod wraps;

pub use access::Access;
pub use calls::{Calls, Counts, stream};
pub use shelves::Shelves;
pub use subscription::Subscription;
pub use wakes::{Row, WINDOW_MS, Wakes};
pub use wraps::Wraps;

use crate::client::SOURCES;
use crate::codes::{CODE, realm};
use crate::log::hex;
use crate::store::{Image, SimStore};
use crate::world::Line;
use drover_engine::outbox::{COST_MAX, MESSAGES_MAX, Outbox};
use drover_storage::log::{StreamId, StreamKind};
use drover_wire::drop::Request as DropRequest;
use drover_wire::envelope::Envelope;
use drover_wire::id::{GroupId, Hash, PublicKey};
use drover_wire::join;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which, in short: runs that break the same one fail alike.
    pub rule: &'static str,
    /// What was seen.
    pub what: String,
}

/// A group's envelopes.
pub const fn envelopes(group: GroupId) -> StreamId {
    StreamId {
        kind: StreamKind::Envelopes,
        group,
    }
}

/// A group's handshakes.
pub const fn handshakes(group: GroupId) -> StreamId {
    StreamId {
        kind: StreamKind::Handshakes,
        group,
    }
}

/// What is known of one stream.
#[derive(Default)]
struct Known {
    by_seq: BTreeMap<u64, Hash>,
    by_id: BTreeMap<Hash, u64>,
    acknowledged: BTreeSet<Hash>,
    /// Handed to the engine by a device that was entitled to.
    entitled: BTreeSet<Hash>,
    /// A DROP may have taken them.
    doomed: BTreeSet<Hash>,
    /// A DROP that ran named them: they stay.
    anchors: BTreeSet<Hash>,
    /// A DROP named them, whatever became of it: they may stay.
    named: BTreeSet<Hash>,
}

/// See the module.
pub struct Model {
    store: Arc<SimStore>,
    /// The first broken rule.
    pub violation: Option<Violation>,
    streams: BTreeMap<StreamId, Known>,
    /// By connection: the DROP that has no answer yet.
    dropping: BTreeMap<Line, DropRequest>,
    /// By workspace.
    pub access: Vec<Access>,
    /// Beats on their way: what a LIVE frame may carry.
    pub beats: BTreeSet<(GroupId, Vec<u8>)>,
    /// Envelopes acknowledged.
    pub acks: u64,
    /// Who hears whom.
    pub calls: Calls,
    /// Who was given which key packages.
    pub shelves: Shelves,
    /// What lies in which slot.
    pub wraps: Wraps,
    /// Who asked to be woken.
    pub wakes: Wakes,
    /// What no line of the log may hold.
    secrets: Vec<String>,
}

impl Model {
    pub(crate) fn new(store: Arc<SimStore>, workspaces: usize, calls_max: usize) -> Self {
        Self {
            store,
            violation: None,
            streams: BTreeMap::new(),
            dropping: BTreeMap::new(),
            access: (0..workspaces).map(|_| Access::default()).collect(),
            beats: BTreeSet::new(),
            acks: 0,
            calls: Calls::new(calls_max),
            shelves: Shelves::default(),
            wraps: Wraps::default(),
            wakes: Wakes::default(),
            secrets: vec![CODE.to_owned(), SOURCES.to_owned()],
        }
    }

    /// The log may not show this name, not so many bytes of it.
    pub fn hides(&mut self, name: &[u8], bytes: usize) {
        self.secrets.push(hex(name, bytes));
    }

    /// The engine wrote this into the log.
    pub fn logged(&mut self, line: &str) {
        if self.secrets.iter().any(|secret| line.contains(secret)) {
            self.fail("the log identifies nobody", || line.to_owned());
        }
    }

    /// A rule is broken.
    pub fn fail(&mut self, rule: &'static str, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(Violation { rule, what: what() });
        }
    }

    /// A rule of another part of the model is broken.
    pub(crate) fn judge(&mut self, judged: Result<(), Violation>) {
        if let Err(violation) = judged {
            self.violation.get_or_insert(violation);
        }
    }

    /// Looks at what is durable.
    pub fn on_disk<R>(&self, look: impl FnOnce(&Image) -> R) -> R {
        self.store.on_disk(look)
    }

    /// Somebody was told that this record has this number: it is durable (architecture.md §3), has had no other number,
    /// and no other record has had this one.
    pub fn number(&mut self, stream: StreamId, seq: u64, id: Hash) {
        let durable = self.on_disk(|disk| disk.record(stream, seq).map(|r| r.id));
        let doomed = self.streams.get(&stream).is_some_and(|k| k.doomed.contains(&id));
        if durable != Some(id) && !(doomed && durable.is_none()) {
            self.fail("durable before told", || {
                format!("{stream:?} {seq} was told as {id:?}, on disk is {durable:?}")
            });
        }
        let known = self.streams.entry(stream).or_default();
        let (other, before) = (known.by_seq.insert(seq, id), known.by_id.insert(id, seq));
        let entitled = known.entitled.contains(&id);
        if other.is_some_and(|other| other != id) {
            self.fail("one number, one record", || {
                format!("{stream:?} {seq} was {other:?} and is {id:?}")
            });
        }
        if before.is_some_and(|before| before != seq) && !doomed {
            self.fail("a duplicate gets its first seq", || {
                format!("{stream:?} {id:?} was {before:?} and is {seq}")
            });
        }
        if !entitled {
            self.fail("nothing from a removed device", || {
                format!("{stream:?} {seq}: {id:?} came from nobody who might write")
            });
        }
    }

    /// An envelope came to somebody, in either form: it is the one that is stored, to the last field.
    pub fn same(&mut self, envelope: &Envelope<'_>) {
        let stream = envelopes(envelope.group);
        let bytes = self.on_disk(|disk| disk.record(stream, envelope.seq).map(|r| r.bytes.clone()));
        let stored = bytes.as_deref().and_then(|bytes| Envelope::decode(bytes).ok());
        if let Some(stored) = stored.filter(|stored| stored != envelope) {
            self.fail("an envelope is the same in either form", || {
                format!("{stored:?} is stored, {envelope:?} came")
            });
        }
    }

    /// A client was told that its record is stored.
    pub fn acknowledged(&mut self, stream: StreamId, seq: u64, id: Hash) {
        self.number(stream, seq, id);
        self.acks += 1;
        self.streams.entry(stream).or_default().acknowledged.insert(id);
    }

    /// The engine is handed a record by this device.
    pub fn taken(&mut self, workspace: usize, device: &PublicKey, stream: StreamId, id: Hash) {
        if !self.access[workspace].is_cut(device) {
            self.streams.entry(stream).or_default().entitled.insert(id);
        }
    }

    /// The engine is handed a JOIN by this device.
    pub fn joins(&mut self, workspace: usize, device: &PublicKey, body: &[u8]) {
        if let Some(join::Request::Reserve { code: CODE, .. }) = join::Request::decode(body) {
            self.access[workspace].seats(device);
        }
    }

    /// A frame of this tag leaves for a device; `admitted` on a connection that has seen its AUTH_ACK.
    pub fn leaves(&mut self, workspace: usize, device: &PublicKey, tag: u8) {
        if matches!(tag, 15 | 18) {
            self.access[workspace].seat_answered(device);
        }
        // CONNECT_ACK, AUTH_CHALLENGE, BYE, ERROR and JOIN are for anybody.
        if !matches!(tag, 2 | 3 | 14 | 15 | 18) && self.access[workspace].is_cut(device) {
            self.fail("nothing to a removed device", || {
                format!("a frame of tag {tag} left for {device:?} after its removal was acknowledged")
            });
        }
    }

    /// What waits for one connection.
    pub fn queued(&mut self, outbox: &Outbox) {
        let room = outbox.room();
        if room.messages > MESSAGES_MAX || room.cost > COST_MAX {
            self.fail("bounds", || format!("an outbox has room for {room:?}"));
        }
    }

    /// A client that held `held` when a reconciliation ended that began when the group held `owed`.
    pub fn reconciled(&mut self, group: GroupId, owed: &BTreeSet<Hash>, held: &BTreeMap<Hash, u64>) {
        let doomed = self.streams.get(&envelopes(group)).map(|k| &k.doomed);
        let gone = |id: &Hash| doomed.is_some_and(|doomed| doomed.contains(id));
        if let Some(missing) = owed.iter().find(|id| !held.contains_key(*id) && !gone(id)) {
            self.fail("reconciliation leaves nothing out", || {
                format!("{group:?}: {missing:?} was there when it began and not held when it ended")
            });
        }
    }

    /// The relay lacks what it acknowledged: a DROP may have taken it, nothing else.
    pub fn missing(&mut self, group: GroupId, ids: &[Hash]) {
        let doomed = self.streams.get(&envelopes(group)).map(|k| &k.doomed);
        let lost = ids
            .iter()
            .find(|id| doomed.is_none_or(|doomed| !doomed.contains(*id)));
        if let Some(lost) = lost.copied() {
            self.fail("an acknowledged SEND survives", || {
                format!("{group:?}: the relay lacks {lost:?}")
            });
        }
    }

    /// The engine is handed a DROP: from now on what it takes may be gone.
    pub fn drops(&mut self, line: Line, request: DropRequest) {
        let known = self.streams.entry(envelopes(request.group)).or_default();
        known
            .named
            .extend(request.snapshots.iter().chain([&request.checkpoint]));
        self.dropping.insert(line, request);
        self.dooms();
    }

    /// Something was appended: a DROP's checkpoint may have been on its way, a second time and under another number, and
    /// what it takes lies below that.
    pub fn dooms(&mut self) {
        for request in self.dropping.values() {
            let stream = envelopes(request.group);
            let known = self.streams.entry(stream).or_default();
            let named = |id: &Hash| *id == request.checkpoint || request.snapshots.contains(id);
            self.store.on_disk(|disk| {
                let barrier = disk.stream(stream).find(|(_, r)| r.id == request.checkpoint);
                let Some((barrier, _)) = barrier else { return };
                let below = disk.records_between(stream, 0, barrier).map(|(_, id)| id);
                let taken = below.filter(|id| !named(id) && !known.anchors.contains(id));
                known.doomed.extend(taken);
            });
        }
    }

    /// Its answer leaves, or its connection has ended: it begins no more.
    pub fn drop_ends(&mut self, line: Line) {
        self.dropping.remove(&line);
    }

    /// The process dies: no DROP is under way any more.
    pub fn restarts(&mut self) {
        self.dropping.clear();
        self.calls.restarts();
        self.wakes.restarts();
    }

    /// A DROP is said to have run: what it takes is gone, and what it names stays.
    pub fn dropped(&mut self, request: &DropRequest, who: &str) {
        let stream = envelopes(request.group);
        let known = self.streams.entry(stream).or_default();
        known
            .anchors
            .extend(request.snapshots.iter().chain([&request.checkpoint]));
        let left = self.store.on_disk(|disk| {
            let barrier = disk.stream(stream).find(|(_, r)| r.id == request.checkpoint);
            let (barrier, _) = barrier?;
            disk.records_between(stream, 0, barrier)
                .find(|(_, id)| known.doomed.contains(id) && !known.named.contains(id))
        });
        if let Some((seq, id)) = left {
            self.fail("a DROP takes what lies below", || {
                format!("{who}: {stream:?} still holds {seq}, {id:?}")
            });
        }
    }

    /// The end: every record on disk was somebody's, and everything acknowledged is on disk.
    pub fn settle(&mut self) {
        let mut lost = None;
        let mut strange = None;
        self.store.on_disk(|disk| {
            for (stream, known) in &self.streams {
                for id in &known.acknowledged {
                    let held = known.by_id.get(id).and_then(|seq| disk.record(*stream, *seq));
                    if held.is_none_or(|r| r.id != *id) && !known.doomed.contains(id) {
                        lost = Some((*stream, *id));
                    }
                }
            }
            for stream in disk.streams() {
                let mut last = None;
                for (seq, record) in disk.stream(stream) {
                    let known = self.streams.get(&stream);
                    if !known.is_some_and(|k| k.entitled.contains(&record.id)) {
                        strange = Some((stream, seq, record.id));
                    }
                    let dense = last.map_or(0, |last| last + 1);
                    if stream.kind == StreamKind::Handshakes && seq != dense {
                        strange = Some((stream, seq, record.id));
                    }
                    last = Some(seq);
                }
            }
        });
        for workspace in 0..self.access.len() {
            let realm = realm(workspace);
            let (counted, held) = self.on_disk(|disk| {
                let groups = disk.groups_of(&realm);
                let held = disk.streams().into_iter().filter(|s| groups.contains(&s.group));
                let bytes = held.flat_map(|s| disk.stream(s).map(|(_, r)| u64::from(r.budget_bytes)));
                (disk.usage(&realm), bytes.sum::<u64>())
            });
            if counted != held {
                self.fail("the log budget counts what is held", || {
                    format!("{realm:?}: {counted} bytes are counted, {held} are held")
                });
            }
        }
        if let Some((stream, id)) = lost {
            self.fail("an acknowledged SEND survives", || {
                format!("{stream:?}: {id:?} is not on disk")
            });
        }
        if let Some((stream, seq, id)) = strange {
            self.fail("nothing from a removed device", || {
                format!("{stream:?} holds {seq}, {id:?}, that nobody might write, or out of line")
            });
        }
    }

    /// What a reader has to hold in the end: what the disk holds.
    pub fn compare(&mut self, who: &str, group: GroupId, held: &BTreeMap<Hash, u64>) {
        let stored: BTreeMap<Hash, u64> = self.on_disk(|disk| {
            disk.stream(envelopes(group))
                .map(|(seq, record)| (record.id, seq))
                .collect()
        });
        let lacks: Vec<_> = stored.iter().filter(|(id, _)| !held.contains_key(*id)).collect();
        let more: Vec<_> = held.iter().filter(|(id, _)| !stored.contains_key(*id)).collect();
        // What was dropped and sent again has another number, which RECON does not tell those who hold it still.
        let doomed = self.streams.get(&envelopes(group)).map(|known| &known.doomed);
        let renumbered = |id: &Hash| doomed.is_some_and(|doomed| doomed.contains(id));
        let other = stored.iter().find(|(id, seq)| {
            let known = held.get(*id);
            known.is_some_and(|known| known != *seq) && !renumbered(id)
        });
        if !lacks.is_empty() || !more.is_empty() || other.is_some() {
            let what = format!(
                "{who}, {group:?}: lacks {lacks:?}, has besides {more:?}, numbers otherwise {other:?}"
            );
            self.fail("every reader holds the acknowledged set", || what);
        }
    }
}
