//! DROP: everything of a group below a checkpoint goes, save what a checkpoint rests on (09 §2 to §4).
//!
//! An instruction is judged in one step, on memory. From there on what it does is fixed: nothing below its barrier comes
//! or goes but by a DROP, and a group has one at a time. So it holds up nobody: its stages wait for the store by
//! themselves, outside of the realm's line, and the deletion itself goes in parts, each in the shard's next commit beside
//! the SENDs of that turn and with the log budget it leaves. A crash between two parts leaves counts that are right; the
//! same instruction again does the rest.
//!
//! Anchors are stored before anything is deleted, for good, in a partition of their own for each group.

use super::{Pending, Shard};
use crate::effects::{Effects, StoreRequest};
use crate::event::{ConnId, StoreAnswer, Ticket};
use crate::group::{Index, Loaded};
use crate::limits::{DELETES_PER_COMMIT, DROP_PER_MINUTE};
use crate::message;
use crate::realm::Realm;
use crate::records;
use crate::retention::destruction_name;
use crate::session::Waiting;
use bytes::Bytes;
use drover_storage::control::{ControlBatch, Outcome, Write};
use drover_storage::log::{AppendBatch, Delete, IndexEntry, StreamId, StreamKind};
use drover_storage::{RealmId, StoreError};
use drover_wire::drop::{Answer, Request, Verdict};
use drover_wire::error::{Code, Refusal};
use drover_wire::frame::Frame;
use drover_wire::id::{GroupId, Hash};
use drover_wire::recon::item_seq;
use drover_wire::retention::Destruction;
use hashbrown::{HashMap, HashSet};
use minicbor::{Decode, Encode};
use std::collections::VecDeque;
use std::fmt::Write as _;

const ANCHOR: &[u8] = b"anchor/";
const CHECKPOINT: &[u8] = b"checkpoint/";

/// What is known of a checkpoint: where it stands, and what DROPs below it have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
struct Checkpoint {
    #[n(0)]
    barrier: u64,
    #[n(1)]
    epoch: u64,
    /// Envelopes and ciphertext bytes deleted, all runs together.
    #[n(2)]
    deleted: u64,
    #[n(3)]
    bytes: u64,
    /// Of the last run.
    #[n(4)]
    kept: u64,
    #[n(5)]
    ran_ms: u64,
}

/// What a DROP deletes.
#[derive(Debug, Default)]
struct Doomed {
    /// Ascending.
    entries: Vec<IndexEntry>,
    /// Of these the first were handed to the store,
    taken: usize,
    /// and the first are gone.
    gone: usize,
    /// Anchors below the barrier.
    kept: u64,
}

impl Doomed {
    /// What goes of a stream: everything below the barrier but the anchors, whose numbers ascend. One pass over a long
    /// list on the shard's thread, and none if nothing is kept.
    fn below(barrier: u64, mut entries: Vec<IndexEntry>, anchors: &[u64]) -> Self {
        entries.truncate(entries.partition_point(|entry| entry.seq < barrier));
        let listed = entries.len();
        let mut kept = anchors.iter().copied().peekable();
        if kept.peek().is_some_and(|&first| first < barrier) {
            entries.retain(|entry| {
                while kept.next_if(|&seq| seq < entry.seq).is_some() {}
                kept.peek() != Some(&entry.seq)
            });
        }
        Self {
            kept: (listed - entries.len()) as u64,
            entries,
            ..Self::default()
        }
    }

    fn bytes(&self) -> u64 {
        self.entries.iter().map(|e| u64::from(e.budget_bytes)).sum()
    }
}

/// What a run waits for.
#[derive(Debug)]
enum Stage {
    /// The anchors there are.
    Anchors,
    /// What lies in the stream.
    Listing {
        /// Numbers of the anchors in the group, ascending.
        anchors: Vec<u64>,
        writes: Vec<Write>,
    },
    /// The new anchors and the checkpoint being stored.
    Keeping(Doomed),
    /// Parts being deleted.
    Deleting(Doomed),
    /// What was done being noted.
    Noting(Answer),
}

/// A DROP that was judged good.
#[derive(Debug)]
struct Run {
    conn: ConnId,
    named: HashSet<Hash>,
    checkpoint: Hash,
    known: Checkpoint,
    stage: Stage,
    /// The store's answer it waits for, unless parts are being deleted.
    ticket: Ticket,
    /// DROPs of the group that came meanwhile, with their frames parked.
    waiting: Vec<ConnId>,
    /// The realm was given up: the group's next DROP waits for the answer under way, and nothing else is done.
    given_up: bool,
}

/// The DROPs of a shard, by group.
#[derive(Debug, Default)]
pub(super) struct Drops {
    runs: HashMap<u32, Run>,
    /// Those with something to delete that was not handed to the store, in turn.
    queue: VecDeque<u32>,
}

impl Drops {
    /// Nothing waits to be deleted.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether a DROP runs on this group, whose index has to stay.
    pub(super) fn is_running(&self, group: u32) -> bool {
        self.runs.contains_key(&group)
    }

    /// A realm is given up. What is being deleted is settled before it is read again; any other answer is waited for.
    pub(super) fn forget(&mut self, is_of_realm: impl Fn(u32) -> bool) {
        self.queue.retain(|group| !is_of_realm(*group));
        self.runs.retain(|group, run| {
            let concerned = is_of_realm(*group);
            run.given_up |= concerned;
            !(concerned && matches!(run.stage, Stage::Deleting(_)))
        });
    }
}

/// What a batch deletes of one group.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) group: u32,
    pub(super) realm: u32,
    entries: usize,
    /// Given back to the realm's log budget.
    pub(super) bytes: u64,
}

fn anchors_partition(realm: &RealmId, group: &GroupId) -> RealmId {
    let mut name = format!("{}/anchors/", realm.0);
    for byte in group.as_bytes() {
        let _ = write!(name, "{byte:02x}"); // a String takes whatever it is given
    }
    RealmId(name.into())
}

fn anchor_key(hash: &Hash) -> Vec<u8> {
    records::key(ANCHOR, &[&hash.0])
}

fn checkpoint_key(hash: &Hash) -> Vec<u8> {
    records::key(CHECKPOINT, &[&hash.0])
}

/// Judges an instruction against one state (09 §3, rows 5 to 11); the checkpoint's number is the barrier.
fn judge(realm: &Realm, index: &Index, request: &Request, now_s: u64) -> Result<u64, Verdict> {
    let chain = realm.retention(&request.group).ok_or(Verdict::NoRetentionChain)?;
    if chain.frozen.is_some() {
        return Err(Verdict::GroupFrozen);
    }
    let control = chain.control.as_ref().ok_or(Verdict::NoRetentionChain)?;
    if request.epoch != control.epoch {
        return Err(Verdict::StaleEpoch(control.epoch));
    }
    if !request.is_signed_by(&control.verifier) {
        return Err(Verdict::BadSignature);
    }
    let not_before_s = match (request.policy_version, &request.destruction_digest) {
        (Some(version), _) => chain
            .policy
            .as_ref()
            .filter(|policy| policy.version == version)
            .map(|policy| policy.not_before_s),
        (None, Some(target)) => Hash::from_slice(target).and_then(|target| {
            let name = destruction_name(Destruction::DROP_BEFORE, &target);
            Some(realm.destructions.get(&(request.group, name))?.not_before_s)
        }),
        (None, None) => None,
    };
    if now_s < not_before_s.ok_or(Verdict::NoAuthorization)? {
        return Err(Verdict::AuthorizationNotDue);
    }
    let held = |hash: &Hash| index.find(hash).filter(|(_, durable)| *durable);
    let missing = named(request).iter().filter(|hash| held(hash).is_none()).count();
    match held(&request.checkpoint) {
        Some((barrier, _)) if missing == 0 => Ok(barrier),
        _ => Err(Verdict::IncompleteManifest(missing as u64)),
    }
}

/// The checkpoint and its snapshots, each once.
fn named(request: &Request) -> HashSet<Hash> {
    let snapshots = request.snapshots.iter().copied();
    snapshots.chain([request.checkpoint]).collect()
}

/// The anchors in a group's partition, and what is known of one of its checkpoints.
fn read_anchors(
    stored: &[(Vec<u8>, Bytes)],
    checkpoint: &Hash,
) -> Result<(HashSet<Hash>, Option<Checkpoint>), StoreError> {
    let (mut anchors, mut known) = (HashSet::new(), None);
    for (key, value) in stored {
        if let Some(hash) = key.strip_prefix(ANCHOR) {
            anchors.insert(Hash::from_slice(hash).ok_or(StoreError::Damaged)?);
        } else if let Some(hash) = key.strip_prefix(CHECKPOINT) {
            if hash == checkpoint.as_ref() {
                known = Some(records::get(value)?);
            }
        } else {
            return Err(StoreError::Damaged);
        }
    }
    Ok((anchors, known))
}

impl Shard {
    pub(super) fn drop_below<E: Effects>(
        &mut self,
        conn: ConnId,
        payload: &[u8],
        message: &Bytes,
        fx: &mut E,
    ) {
        if let Err(refusal) = self.begin_drop(conn, payload, message, fx) {
            self.refuse(conn, refusal, fx);
        }
    }

    fn begin_drop<E: Effects>(
        &mut self,
        conn: ConnId,
        payload: &[u8],
        message: &Bytes,
        fx: &mut E,
    ) -> Result<(), Refusal> {
        if self.config.read_only {
            return Err(Code::ServiceReadOnly.into());
        }
        if self.has_lapsed(conn) {
            self.evict(conn, fx); // 05 D11
            return Ok(());
        }
        self.charge_frame(conn, |b| &mut b.drop, DROP_PER_MINUTE)?;
        // The checkpoint may be on its way to the store.
        if self.waits_its_turn(conn, message) {
            return Ok(());
        }
        let request = Request::decode(payload)?;
        let group = self.authorize(conn, &request.group)?;
        if let Some(run) = self.drops.runs.get_mut(&group) {
            run.waiting.push(conn);
            self.park(conn, message);
            return Ok(());
        }
        if !self.has_index(conn, group, StreamKind::Envelopes, message, fx) {
            return Ok(());
        }
        let now_s = self.now_s();
        let place = &self.groups[group as usize];
        let (super::RealmState::Ready(realm), Loaded::Warm(index)) =
            (&self.realms[place.realm as usize].state, &place.envelopes)
        else {
            return Err(Code::Backpressure.into());
        };
        let barrier = match judge(realm, index, &request, now_s) {
            Ok(barrier) => barrier,
            Err(verdict) => {
                let payload = Answer::Against(verdict).encode();
                self.reply(conn, message::frame(&Frame::Drop { payload: &payload }), fx);
                return Ok(());
            }
        };
        let partition = anchors_partition(&realm.id, &request.group);
        if let Some(session) = self.session(conn) {
            session.waiting = Waiting::Working;
        }
        let ticket = self.ticket(Pending::Drop { group });
        let run = Run {
            conn,
            named: named(&request),
            checkpoint: request.checkpoint,
            known: Checkpoint {
                barrier,
                epoch: request.epoch,
                ..Checkpoint::default()
            },
            stage: Stage::Anchors,
            ticket,
            waiting: Vec::new(),
            given_up: false,
        };
        self.drops.runs.insert(group, run);
        fx.store(ticket, StoreRequest::Load(partition));
        Ok(())
    }

    /// The store has answered one stage of a run.
    pub(super) fn drop_stored<E: Effects>(
        &mut self,
        ticket: Ticket,
        group: u32,
        answer: StoreAnswer,
        fx: &mut E,
    ) {
        let Some(mut run) = self.drops.runs.remove(&group) else {
            return;
        };
        if run.ticket != ticket {
            self.drops.runs.insert(group, run); // a run before this one was given up
            return;
        }
        if run.given_up {
            return self.retry.extend(run.waiting);
        }
        let stage = std::mem::replace(&mut run.stage, Stage::Anchors);
        match (stage, answer) {
            (Stage::Anchors, StoreAnswer::Load(result)) => {
                match result.and_then(|stored| read_anchors(&stored, &run.checkpoint)) {
                    Ok((anchors, known)) => self.anchors_read(group, run, anchors, known, fx),
                    Err(_) => self.end_run(group, run, Err(Code::Backpressure.into()), fx),
                }
            }
            (Stage::Listing { anchors, writes }, StoreAnswer::Index(Ok(entries))) => {
                let doomed = Doomed::below(run.known.barrier, entries, &anchors);
                self.keep(group, run, doomed, writes, fx);
            }
            (Stage::Keeping(doomed), StoreAnswer::Commit(Ok(Outcome::Applied))) => {
                self.begin_deleting(group, run, doomed, fx);
            }
            // The counts are true, noted or not.
            (Stage::Noting(answer), StoreAnswer::Commit(_)) => self.end_run(group, run, Ok(answer), fx),
            _ => self.end_run(group, run, Err(Code::Backpressure.into()), fx),
        }
    }

    fn anchors_read<E: Effects>(
        &mut self,
        group: u32,
        mut run: Run,
        mut anchors: HashSet<Hash>,
        known: Option<Checkpoint>,
        fx: &mut E,
    ) {
        let mut writes: Vec<Write> = Vec::new();
        for hash in &run.named {
            if anchors.insert(*hash) {
                writes.push(records::put_raw(anchor_key(hash), Bytes::new()));
            }
        }
        match known {
            Some(known) => run.known = known,
            None => writes.push(records::put(checkpoint_key(&run.checkpoint), &run.known)),
        }
        let Loaded::Warm(index) = &self.groups[group as usize].envelopes else {
            return self.end_run(group, run, Err(Code::Backpressure.into()), fx);
        };
        let held = anchors.iter().filter_map(|hash| index.find(hash));
        let mut anchors: Vec<u64> = held.map(|(seq, _)| seq).collect();
        anchors.sort_unstable();
        let barrier = run.known.barrier;
        let below = index.durable().partition_point(|item| item_seq(item) < barrier);
        // A listing is worth its while only if something goes.
        if below == anchors.partition_point(|&seq| seq < barrier) {
            let doomed = Doomed {
                kept: below as u64,
                ..Doomed::default()
            };
            return self.keep(group, run, doomed, writes, fx);
        }
        let stream = StreamId {
            kind: StreamKind::Envelopes,
            group: self.groups[group as usize].id,
        };
        let stage = Stage::Listing { anchors, writes };
        self.await_store(group, run, stage, StoreRequest::Index(stream), fx);
    }

    /// Stores what stays for good before anything goes.
    fn keep<E: Effects>(&mut self, group: u32, run: Run, doomed: Doomed, writes: Vec<Write>, fx: &mut E) {
        if writes.is_empty() {
            return self.begin_deleting(group, run, doomed, fx);
        }
        self.commit_anchors(group, run, Stage::Keeping(doomed), writes, fx);
    }

    fn begin_deleting<E: Effects>(&mut self, group: u32, mut run: Run, doomed: Doomed, fx: &mut E) {
        if doomed.entries.is_empty() {
            let answer = Answer::Ran {
                deleted: 0,
                bytes: 0,
                kept: doomed.kept,
            };
            return self.end_run(group, run, Ok(answer), fx);
        }
        run.stage = Stage::Deleting(doomed);
        self.drops.runs.insert(group, run);
        self.drops.queue.push_back(group);
        if self.draining {
            self.abandon_drops(fx);
        }
    }

    /// Adds the next deletions to a batch on its way to the store, and gives back what they counted.
    pub(super) fn add_deletions(&mut self, request: &mut AppendBatch) -> Vec<Part> {
        let (mut parts, mut room) = (Vec::new(), DELETES_PER_COMMIT);
        while room > 0
            && let Some(slot) = self.drops.queue.pop_front()
        {
            let Some(Run {
                stage: Stage::Deleting(doomed),
                ..
            }) = self.drops.runs.get_mut(&slot)
            else {
                continue;
            };
            let rest = &doomed.entries[doomed.taken..];
            let entries = rest[..rest.len().min(room)].to_vec();
            doomed.taken += entries.len();
            room -= entries.len();
            if doomed.taken < doomed.entries.len() {
                self.drops.queue.push_back(slot);
            }
            let place = &self.groups[slot as usize];
            let (realm, stream) = (
                place.realm,
                StreamId {
                    kind: StreamKind::Envelopes,
                    group: place.id,
                },
            );
            let counted = entries.iter().map(|e| u64::from(e.budget_bytes)).sum();
            let mut bytes = 0;
            if let Some(realm) = self.realm_mut(realm) {
                bytes = realm.log_bytes.min(counted);
                realm.log_bytes -= bytes;
            }
            self.metrics.log_bytes.sub(bytes);
            parts.push(Part {
                group: slot,
                realm,
                entries: entries.len(),
                bytes,
            });
            request.deletes.push(Delete { stream, entries });
        }
        parts
    }

    /// A part is gone for good.
    pub(super) fn part_deleted<E: Effects>(&mut self, part: &Part, fx: &mut E) {
        let Some(Run {
            stage: Stage::Deleting(doomed),
            ..
        }) = self.drops.runs.get_mut(&part.group)
        else {
            return;
        };
        doomed.gone += part.entries;
        if doomed.gone < doomed.entries.len() {
            if self.draining {
                self.part_failed(part.group, fx);
            }
            return;
        }
        let Some(mut run) = self.drops.runs.remove(&part.group) else {
            return;
        };
        if let Stage::Deleting(doomed) = std::mem::replace(&mut run.stage, Stage::Anchors) {
            self.forget_deleted(part.group, &doomed);
            // What nobody can be sent any more is no backlog.
            let barrier = run.known.barrier;
            self.groups[part.group as usize]
                .backlog
                .sent(0, barrier - 1, None);
            let (deleted, bytes, kept) = (doomed.entries.len() as u64, doomed.bytes(), doomed.kept);
            let known = Checkpoint {
                deleted: run.known.deleted + deleted,
                bytes: run.known.bytes + bytes,
                kept,
                ran_ms: self.now.wall_ms,
                ..run.known
            };
            let writes = vec![records::put(checkpoint_key(&run.checkpoint), &known)];
            let answer = Answer::Ran { deleted, bytes, kept };
            self.commit_anchors(part.group, run, Stage::Noting(answer), writes, fx);
        }
    }

    /// A part is not gone, but may be if it is tried without the SENDs it was with.
    pub(super) fn part_again(&mut self, part: &Part) {
        let Some(Run {
            stage: Stage::Deleting(doomed),
            ..
        }) = self.drops.runs.get_mut(&part.group)
        else {
            return;
        };
        doomed.taken -= part.entries;
        self.drops.queue.retain(|queued| *queued != part.group);
        self.drops.queue.push_front(part.group);
    }

    /// A part is not gone, so the run ends here: what went before it stays gone, and the instruction can be repeated.
    pub(super) fn part_failed<E: Effects>(&mut self, group: u32, fx: &mut E) {
        self.drops.queue.retain(|queued| *queued != group);
        if let Some(run) = self.drops.runs.remove(&group) {
            if let Stage::Deleting(doomed) = &run.stage {
                self.forget_deleted(group, doomed);
            }
            self.end_run(group, run, Err(Code::Backpressure.into()), fx);
        }
    }

    /// The process ends: a run ends with the part it has under way, or at once.
    pub(super) fn abandon_drops<E: Effects>(&mut self, fx: &mut E) {
        for group in std::mem::take(&mut self.drops.queue) {
            let is_under_way = |run: &Run| matches!(&run.stage, Stage::Deleting(d) if d.gone < d.taken);
            if !self.drops.runs.get(&group).is_some_and(is_under_way) {
                self.part_failed(group, fx);
            }
        }
    }

    /// The index holds no more what the store does not.
    fn forget_deleted(&mut self, group: u32, doomed: &Doomed) {
        if let Loaded::Warm(index) = &mut self.groups[group as usize].envelopes {
            index.remove(&doomed.entries[..doomed.gone]);
        }
    }

    fn commit_anchors<E: Effects>(
        &mut self,
        group: u32,
        run: Run,
        stage: Stage,
        writes: Vec<Write>,
        fx: &mut E,
    ) {
        let place = &self.groups[group as usize];
        let realm = &self.realms[place.realm as usize].id;
        let partition = anchors_partition(realm, &place.id);
        let batch = ControlBatch {
            writes,
            ..ControlBatch::default()
        };
        self.await_store(group, run, stage, StoreRequest::Commit(partition, batch), fx);
    }

    fn await_store<E: Effects>(
        &mut self,
        group: u32,
        mut run: Run,
        stage: Stage,
        request: StoreRequest,
        fx: &mut E,
    ) {
        let ticket = self.ticket(Pending::Drop { group });
        (run.stage, run.ticket) = (stage, ticket);
        self.drops.runs.insert(group, run);
        fx.store(ticket, request);
    }

    /// Answers, and lets the group's next DROP have its turn.
    fn end_run<E: Effects>(&mut self, group: u32, run: Run, result: Result<Answer, Refusal>, fx: &mut E) {
        debug_assert!(!self.drops.runs.contains_key(&group), "it was taken out");
        self.retry.extend(run.waiting);
        match result {
            Ok(answer) => {
                let payload = answer.encode();
                self.answered(run.conn, message::frame(&Frame::Drop { payload: &payload }), fx);
            }
            Err(refusal) => self.answered_refusal(run.conn, refusal, fx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(seq: u64) -> IndexEntry {
        IndexEntry {
            seq,
            id: Hash::of(&[&seq.to_be_bytes()]),
            bytes: 1,
            budget_bytes: 2,
        }
    }

    #[test]
    fn what_lies_below_the_barrier_goes_but_for_anchors() {
        let below = |barrier, anchors: &[u64]| {
            let doomed = Doomed::below(barrier, [1, 2, 4, 5, 9].map(entry).to_vec(), anchors);
            let seqs: Vec<u64> = doomed.entries.iter().map(|e| e.seq).collect();
            (seqs, doomed.kept, doomed.bytes())
        };
        assert_eq!(below(5, &[]), (vec![1, 2, 4], 0, 6));
        assert_eq!(below(5, &[5]), (vec![1, 2, 4], 0, 6));
        assert_eq!(below(9, &[1, 4, 9]), (vec![2, 5], 2, 4));
        assert_eq!(below(10, &[3, 9]), (vec![1, 2, 4, 5], 1, 8), "3 is not there");
        assert_eq!(below(1, &[1]), (vec![], 0, 0));
    }
}
