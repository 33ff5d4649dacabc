//! The shard's commits: the open batch goes to the store with the deletions of a turn, and comes back durable or not at
//! all (architecture.md §3).

use super::{Batch, charge};
use crate::effects::{Effects, StoreRequest};
use crate::event::ConnId;
use crate::group::{Loaded, Run, SealedRun};
use crate::message;
use crate::session::Owed;
use crate::shard::{Pending, Shard, Waiter};
use crate::wake::Category;
use bytes::Bytes;
use drover_storage::StoreError;
use drover_storage::log::{Append, AppendBatch, StreamId, StreamKind};
use drover_wire::error::Code;

impl Shard {
    /// Hands the open batch to the store unless one is under way.
    pub(in crate::shard) fn submit_batch<E: Effects>(&mut self, fx: &mut E) {
        if self.ingest.under_way.is_some() || (self.ingest.open.is_empty() && self.drops.is_idle()) {
            return;
        }
        let mut batch = std::mem::take(&mut self.ingest.open);
        let mut request = AppendBatch::default();
        for &slot in &batch.groups {
            let group = &mut self.groups[slot as usize];
            let Run {
                buffer,
                items,
                writers,
            } = std::mem::take(&mut group.run);
            let (bytes, stream) = (
                Bytes::from(buffer),
                StreamId {
                    kind: StreamKind::Envelopes,
                    group: group.id,
                },
            );
            request.appends.extend(items.iter().map(|item| Append {
                stream,
                seq: item.seq,
                id: item.id,
                bytes: bytes.slice(item.envelope as usize..item.end as usize),
                budget_bytes: item.ct_bytes,
            }));
            let cost = items.iter().map(|i| i.cost).sum();
            batch.runs.push(SealedRun {
                group: slot,
                bytes,
                items,
                writers,
                cost,
            });
        }
        for handshake in &batch.handshakes {
            let group = self.groups[handshake.group as usize].id;
            request.appends.push(Append {
                stream: StreamId {
                    kind: StreamKind::Handshakes,
                    group,
                },
                seq: handshake.seq,
                id: handshake.id,
                bytes: handshake.message.clone(),
                budget_bytes: handshake.message.len() as u32,
            });
        }
        batch.parts = self.add_deletions(&mut request);
        for part in &batch.parts {
            charge(&mut batch.usage, part.realm, 0);
        }
        for &(slot, _) in &batch.usage {
            let id = self.realms[slot as usize].id.clone();
            // What is held so far: this batch is the newest of it.
            let total = self.realm_mut(slot).map_or(0, |r| r.log_bytes);
            request.usage.push((id, total));
        }
        self.ingest.under_way = Some(batch);
        let ticket = self.ticket(Pending::Batch);
        fx.store(ticket, StoreRequest::Append(request));
    }

    pub(in crate::shard) fn batch_done<E: Effects>(&mut self, result: Result<(), StoreError>, fx: &mut E) {
        let Some(batch) = self.ingest.under_way.take() else {
            return;
        };
        match result {
            Ok(()) => self.batch_committed(batch, fx),
            Err(error) => self.batch_failed(batch, error, fx),
        }
        self.load_deferred(fx);
    }

    fn batch_committed<E: Effects>(&mut self, batch: Batch, fx: &mut E) {
        self.ingest.ended += 1;
        self.metrics.commits.add(1);
        let count: usize = batch.runs.iter().map(|r| r.items.len()).sum();
        self.metrics.envelopes_accepted.add(count as u64);
        for handshake in &batch.handshakes {
            if let Loaded::Warm(index) = &mut self.groups[handshake.group as usize].handshakes {
                index.committed(1);
            }
        }
        for run in &batch.runs {
            if let Loaded::Warm(index) = &mut self.groups[run.group as usize].envelopes {
                index.committed(run.items.len());
            }
        }
        for handshake in &batch.handshakes {
            self.deliver_handshake(handshake, fx);
        }
        for run in &batch.runs {
            self.deliver(run, fx);
        }
        self.wake_after(&batch, fx);
        for part in &batch.parts {
            self.part_deleted(part, fx);
        }
        for conn in batch.waiting {
            self.flush_owed(conn, fx);
        }
        // Whoever waits for an open batch that holds nothing repeated what was under way: that is durable now.
        if self.ingest.open.is_empty() && !self.ingest.open.waiting.is_empty() {
            self.ingest.ended += 1;
            for conn in std::mem::take(&mut self.ingest.open.waiting) {
                self.flush_owed(conn, fx);
            }
        }
    }

    /// What was accepted wakes absent devices, once for each realm and category (12 §5). A realm given up meanwhile is
    /// read again for it.
    fn wake_after<E: Effects>(&mut self, batch: &Batch, fx: &mut E) {
        if self.config.push.is_none() {
            return;
        }
        let handshakes = batch.handshakes.iter().map(|h| (h.group, Category::Handshake));
        let messages = batch.runs.iter().map(|r| (r.group, Category::Message));
        let mut events: Vec<(u32, Category)> = handshakes
            .chain(messages)
            .map(|(group, category)| (self.groups[group as usize].realm, category))
            .chain(batch.given_up.iter().copied())
            .collect();
        events.sort_unstable();
        events.dedup();
        for (realm, category) in events {
            let id = self.realms[realm as usize].id.clone();
            self.when_loaded(&id, Waiter::Wake(category), fx);
        }
    }

    /// Takes back what the store did not keep, and everything decided on top of it: the open batch may hold
    /// duplicates of what just failed, so it fails too (decisions.md 47).
    fn batch_failed<E: Effects>(&mut self, failed: Batch, error: StoreError, fx: &mut E) {
        self.metrics.commits_failed.add(1);
        // While the disk is full every batch comes here, as many as clients send.
        if let Some(suppressed) = self.ingest.failures.due(self.now.mono_ms) {
            tracing::warn!(%error, suppressed, "a commit failed");
        }
        // A full disk refuses what takes room, and what gives it back for being in one batch with it.
        let took_room = !(failed.runs.is_empty() && failed.handshakes.is_empty());
        let is_again =
            error == StoreError::NotCommitted && took_room && !failed.parts.is_empty() && !self.draining;
        let open = std::mem::take(&mut self.ingest.open);
        let durable_to = self.ingest.ended;
        self.ingest.ended += 2; // the failed batch, and the open one whose number was the next
        // Only what was handed to the store can have an unknown outcome.
        let unknown: Vec<u32> = match error {
            StoreError::NotCommitted => Vec::new(),
            _ => failed.usage.iter().map(|(slot, _)| *slot).collect(),
        };
        for batch in [failed, open] {
            for &(slot, bytes) in &batch.usage {
                if let Some(realm) = self.realm_mut(slot) {
                    realm.log_bytes -= bytes;
                }
                self.metrics.log_bytes.sub(bytes);
            }
            for part in &batch.parts {
                if let Some(realm) = self.realm_mut(part.realm) {
                    realm.log_bytes += part.bytes;
                }
                self.metrics.log_bytes.add(part.bytes);
            }
            for slot in batch
                .groups
                .iter()
                .copied()
                .chain(batch.handshakes.iter().map(|h| h.group))
            {
                let group = &mut self.groups[slot as usize];
                let unsealed = std::mem::take(&mut group.run);
                for item in unsealed.items.iter().chain(
                    batch
                        .runs
                        .iter()
                        .filter(|r| r.group == slot)
                        .flat_map(|r| r.items.iter()),
                ) {
                    group.backlog.roll_back(item.seq);
                }
                for loaded in [&mut group.envelopes, &mut group.handshakes] {
                    if let Loaded::Warm(index) = loaded {
                        index.roll_back();
                    }
                }
            }
            for part in &batch.parts {
                match is_again {
                    true => self.part_again(part),
                    false => self.part_failed(part.group, fx),
                }
            }
            for conn in batch.waiting {
                self.fail_waiting(conn, durable_to, fx);
            }
        }
        for slot in unknown {
            self.drop_realm(slot, fx);
        }
        if is_again {
            // Before anything new comes to travel with them.
            self.submit_batch(fx);
        }
    }

    /// Whatever this connection was owed after a batch later than `durable_to` becomes `retry/backpressure`.
    pub(in crate::shard) fn fail_waiting<E: Effects>(&mut self, conn: ConnId, durable_to: u64, fx: &mut E) {
        let refusal = self.jittered(Code::Backpressure.into());
        let map = self.session(conn).is_some_and(|s| s.map);
        let Some(session) = self.session(conn) else { return };
        let mut errors = 0;
        for owed in &mut session.owed {
            if let Owed::Ack { batch, .. } | Owed::After { batch, .. } = owed
                && *batch > durable_to
            {
                *owed = Owed::Ready(message::refusal(&refusal, map));
                errors += 1;
            }
        }
        for _ in 0..errors {
            self.count_error(Code::Backpressure);
        }
        self.flush_owed(conn, fx);
    }
}
