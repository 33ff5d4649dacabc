//! The retention notice (09 §9): how many envelopes are older than the operator's window. Only counted.
//!
//! Receipt times rise with the numbers, unless the clock was set back meanwhile. So a group whose oldest envelope is
//! young enough costs one read of one record, and in any other the boundary is found by halving: no payload but a few
//! single ones is read, however many are overdue.

use crate::collector::Overdue;
use crate::effects::{Effects, StoreRequest};
use crate::event::StoreAnswer;
use crate::shard::{Pending, Shard};
use drover_storage::log::{IndexEntry, Record, StreamId, StreamKind};
use drover_storage::{RealmId, StoreError};
use drover_wire::envelope::Envelope;
use drover_wire::id::GroupId;

const DAY_MS: u64 = 86_400_000;

/// The count under way on this shard.
pub(super) struct Count {
    cutoff_ms: u64,
    wall_ms: u64,
    /// Groups still to be looked at, by realm.
    groups: Vec<(RealmId, GroupId)>,
    /// The last realm that was found to have any.
    counted: Option<RealmId>,
    at: Option<At>,
    overdue: Overdue,
}

/// The group being looked at.
struct At {
    realm: RealmId,
    stream: StreamId,
    /// Once the oldest is known to be overdue.
    search: Option<Search>,
}

/// Of these entries those below `low` are overdue and those from `high` on are not.
struct Search {
    entries: Vec<IndexEntry>,
    low: usize,
    high: usize,
}

impl Search {
    /// The one to look at next.
    fn middle(&self) -> Option<(usize, u64)> {
        let at = self.low + (self.high - self.low) / 2;
        (self.low < self.high).then(|| (at, self.entries[at].seq))
    }
}

impl Shard {
    /// Begins once the realms are swept.
    pub(super) fn count_overdue<E: Effects>(&mut self, fx: &mut E) {
        let wall_ms = self.now.wall_ms;
        let window_ms = self.config.retention_days.map(|days| days.saturating_mul(DAY_MS));
        let Some(window_ms) = window_ms else {
            return self.end_share(fx);
        };
        let groups = self.directory.groups_of_shard(self.index, self.config.shards);
        let Some(share) = &mut self.collector.share else {
            return;
        };
        share.overdue = Some(Count {
            cutoff_ms: wall_ms.saturating_sub(window_ms),
            wall_ms,
            groups,
            counted: None,
            at: None,
            overdue: Overdue::default(),
        });
        self.next_group(fx);
    }

    fn next_group<E: Effects>(&mut self, fx: &mut E) {
        let draining = self.draining;
        let Some(count) = self.collector.share.as_mut().and_then(|s| s.overdue.as_mut()) else {
            return;
        };
        match count.groups.pop().filter(|_| !draining) {
            Some((realm, group)) => {
                let stream = StreamId {
                    kind: StreamKind::Envelopes,
                    group,
                };
                count.at = Some(At {
                    realm,
                    stream,
                    search: None,
                });
                let ticket = self.ticket(Pending::Overdue);
                fx.store(
                    ticket,
                    StoreRequest::Read {
                        stream,
                        from: 0,
                        records_max: 1,
                        bytes_max: 1,
                    },
                );
            }
            None => self.overdue_counted(fx),
        }
    }

    fn overdue_counted<E: Effects>(&mut self, fx: &mut E) {
        if let Some(share) = &mut self.collector.share
            && let Some(count) = share.overdue.take()
        {
            share.sum.retention_overdue = count.overdue;
        }
        self.end_share(fx);
    }

    /// A store's answer about the group being looked at.
    pub(in crate::shard) fn overdue_read<E: Effects>(&mut self, answer: StoreAnswer, fx: &mut E) {
        let Some(count) = self.collector.share.as_mut().and_then(|s| s.overdue.as_mut()) else {
            return;
        };
        let next = match answer {
            StoreAnswer::Read(records) => records.and_then(|records| count.seen(records.first())),
            StoreAnswer::Index(entries) => entries.map(|entries| count.listed(entries)),
            _ => return,
        };
        match next {
            Ok(Some(request)) => {
                let ticket = self.ticket(Pending::Overdue);
                fx.store(ticket, request);
            }
            Ok(None) => self.next_group(fx),
            Err(error) => {
                tracing::warn!(%error, "envelopes past the retention window could not be counted");
                count.overdue = Overdue::default();
                count.groups.clear();
                self.step_failed();
                self.overdue_counted(fx);
            }
        }
    }
}

impl Count {
    /// A record was read, or is not there any more: what to ask next, `None` if this group is done.
    fn seen(&mut self, record: Option<&Record>) -> Result<Option<StoreRequest>, StoreError> {
        let Some(at) = &mut self.at else { return Ok(None) };
        let ts_ms = match record {
            Some(record) => {
                let envelope = Envelope::decode(&record.bytes).map_err(|_| StoreError::Damaged)?;
                Some(envelope.ts_ms)
            }
            None => None,
        };
        match &mut at.search {
            None => match ts_ms.filter(|ts_ms| *ts_ms < self.cutoff_ms) {
                Some(oldest_ms) => {
                    let days = self.wall_ms.saturating_sub(oldest_ms) / DAY_MS;
                    self.overdue.oldest_days = self.overdue.oldest_days.max(days);
                    if self.counted.as_ref() != Some(&at.realm) {
                        self.counted = Some(at.realm.clone());
                        self.overdue.workspaces += 1;
                    }
                    Ok(Some(StoreRequest::Index(at.stream)))
                }
                None => Ok(None),
            },
            Some(search) => {
                if let Some((middle, _)) = search.middle() {
                    // One that a DROP took meanwhile was older than what it left.
                    if ts_ms.is_none_or(|ts_ms| ts_ms < self.cutoff_ms) {
                        search.low = middle + 1;
                    } else {
                        search.high = middle;
                    }
                }
                Ok(self.look_on())
            }
        }
    }

    fn listed(&mut self, entries: Vec<IndexEntry>) -> Option<StoreRequest> {
        if let Some(at) = &mut self.at {
            at.search = Some(Search {
                // The first one is what was read.
                low: entries.len().min(1),
                high: entries.len(),
                entries,
            });
        }
        self.look_on()
    }

    fn look_on(&mut self) -> Option<StoreRequest> {
        let at = self.at.as_ref()?;
        let search = at.search.as_ref()?;
        match search.middle() {
            Some((_, seq)) => Some(StoreRequest::ReadSeqs {
                stream: at.stream,
                seqs: vec![seq],
                bytes_max: 1,
            }),
            None => {
                self.overdue.envelopes += search.low as u64;
                None
            }
        }
    }
}
