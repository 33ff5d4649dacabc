//! The store's pace: when writes and reads end, and how.

use super::agenda::Happening;
use super::mail::Letter;
use super::outside::Outside;
use crate::codes;
use crate::plan::Fault;
use crate::store::Verdict;
use drover_engine::effects::StoreRequest;
use drover_engine::event::Ticket;
use drover_engine::wake::Category;
use drover_storage::log::StreamKind;
use drover_storage::{RealmId, StoreError};
use std::fmt::Write;
use std::sync::PoisonError;

impl Outside {
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
        let realms: Vec<&RealmId> = match &request {
            StoreRequest::Append(batch) => batch.usage.iter().map(|(realm, _)| realm).collect(),
            StoreRequest::Commit(realm, _)
            | StoreRequest::Claim(realm, _)
            | StoreRequest::Load(realm)
            | StoreRequest::Usage(realm) => vec![realm],
            _ => Vec::new(),
        };
        let concerned = realms.into_iter().filter_map(codes::workspace_of).collect();
        self.concerned.insert((shard, ticket.0), concerned);
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
}
