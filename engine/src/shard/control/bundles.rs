//! An invite's larger values: its record and its sealed bundles, in a partition beside the realm's (06 §7, §8).

use super::{Answered, Origin, Shard};
use crate::effects::{Effects, StoreRequest};
use crate::records::{self, Invite, Refreshed};
use crate::shard::Pending;
use crate::shard::gather::Then;
use bytes::Bytes;
use drover_storage::control::ControlBatch;
use drover_storage::{RealmId, StoreError};
use drover_wire::error::Code;
use drover_wire::id::{GroupId, Token};
use drover_wire::invite::Record;
use drover_wire::join::{Bundle, Response};

/// A JOIN bundles request whose ciphertexts are being read.
#[derive(Debug)]
pub(crate) struct BundleRead {
    origin: Origin,
    group: GroupId,
    /// The invite's record, if it was small enough to be at hand.
    record: Option<Vec<u8>>,
    stored_ms: u64,
    refreshed: Vec<Refreshed>,
}

/// The partition of a realm's larger invite values.
pub(super) fn invites_partition(realm: &RealmId) -> RealmId {
    RealmId(format!("{}/invites", realm.0).into())
}

/// Where an invite's record lies.
pub(super) fn record_key(token: &Token) -> Vec<u8> {
    records::key(b"record/", &[&token.0])
}

/// Where a refreshed bundle lies.
pub(super) fn bundle_key(token: &Token, group: &[u8; 32], epoch: u64) -> Vec<u8> {
    records::key(b"bundle/", &[&token.0, group, &epoch.to_be_bytes()])
}

impl Shard {
    pub(super) fn read_bundles<E: Effects>(
        &mut self,
        slot: u32,
        origin: Origin,
        token: &[u8],
        group: &[u8],
        fx: &mut E,
    ) {
        let wall_ms = self.now.wall_ms;
        let Some(realm) = self.realm_mut(slot) else { return };
        let live = Token::from_slice(token).and_then(|t| Some((t, realm.live_invite(&t, wall_ms)?)));
        let found = live
            .zip(GroupId::from_slice(group))
            .filter(|((_, invite), g)| invite.has_scope(&g.0));
        let Some(((token, invite), group)) = found else {
            let answer = Ok(Answered::Join(Response::Bundles(Vec::new()).encode()));
            return self.send_answer(origin, answer, fx);
        };
        let refreshed: Vec<Refreshed> = invite
            .refreshed
            .iter()
            .filter(|r| r.group == group.0)
            .copied()
            .collect();
        let mut keys: Vec<Vec<u8>> = refreshed
            .iter()
            .map(|r| bundle_key(&token, &r.group, r.epoch))
            .collect();
        let record = (!invite.record.is_empty()).then(|| invite.record.clone());
        if record.is_none() {
            keys.push(record_key(&token));
        }
        let read = BundleRead {
            origin,
            group,
            record,
            stored_ms: invite.stored_ms,
            refreshed,
        };
        let partition = invites_partition(&realm.id);
        self.gather(&partition, keys, Then::Bundles(read), fx);
    }

    pub(in crate::shard) fn bundles_read<E: Effects>(
        &mut self,
        read: &BundleRead,
        values: Result<Vec<Option<Bytes>>, StoreError>,
        fx: &mut E,
    ) {
        let Ok(values) = values else {
            return self.send_answer(read.origin, Err(Code::Backpressure.into()), fx);
        };
        let stored = read
            .record
            .as_deref()
            .or_else(|| values.get(read.refreshed.len())?.as_deref());
        let record = stored.and_then(|bytes| Record::decode(bytes).ok());
        let issued = record
            .iter()
            .flat_map(|r| &r.bundles)
            .filter(|(g, _, _)| *g == read.group);
        let mut bundles: Vec<(u64, u64, &[u8])> = issued
            .map(|(_, epoch, ct)| (read.stored_ms, *epoch, ct.as_slice()))
            .collect();
        bundles.extend(
            read.refreshed
                .iter()
                .zip(&values)
                .filter_map(|(meta, ct)| Some((meta.uploaded_ms, meta.epoch, ct.as_deref()?))),
        );
        // Newest upload first, then the higher epoch.
        bundles.sort_by_key(|(uploaded, epoch, _)| std::cmp::Reverse((*uploaded, *epoch)));
        let bundles = bundles
            .into_iter()
            .map(|(_, epoch, ct)| Bundle {
                group: read.group,
                epoch,
                ct,
            })
            .collect();
        self.send_answer(
            read.origin,
            Ok(Answered::Join(Response::Bundles(bundles).encode())),
            fx,
        );
    }

    pub(super) fn read_record<E: Effects>(&mut self, slot: u32, origin: Origin, token: &[u8], fx: &mut E) {
        let wall_ms = self.now.wall_ms;
        let Some(realm) = self.realm_mut(slot) else { return };
        let live = Token::from_slice(token).and_then(|t| Some((t, realm.live_invite(&t, wall_ms)?)));
        match live {
            Some((token, invite)) if invite.record.is_empty() => {
                let partition = invites_partition(&realm.id);
                self.gather(&partition, vec![record_key(&token)], Then::Record(origin), fx);
            }
            live => {
                let record = live.map_or(&[][..], |(_, invite)| &invite.record);
                let answer = Ok(Answered::Join(Response::Record { record }.encode()));
                self.send_answer(origin, answer, fx);
            }
        }
    }

    /// A lookup that fails answers like a record that is not served (06 D11).
    pub(in crate::shard) fn record_read<E: Effects>(
        &mut self,
        origin: Origin,
        values: Result<Vec<Option<Bytes>>, StoreError>,
        fx: &mut E,
    ) {
        let record = values
            .ok()
            .and_then(|mut v| v.pop().flatten())
            .unwrap_or_default();
        self.send_answer(
            origin,
            Ok(Answered::Join(Response::Record { record: &record }.encode())),
            fx,
        );
    }

    /// An invite is dead: its record and bundles serve nobody any more. A failure leaves bytes nobody reads.
    pub(in crate::shard) fn delete_bundles<E: Effects>(
        &mut self,
        slot: u32,
        token: &Token,
        invite: &Invite,
        fx: &mut E,
    ) {
        let Some(realm) = self.realm_mut(slot) else { return };
        let partition = invites_partition(&realm.id);
        let mut writes = vec![records::remove(record_key(token))];
        writes.extend(
            invite
                .refreshed
                .iter()
                .map(|r| records::remove(bundle_key(token, &r.group, r.epoch))),
        );
        let ticket = self.ticket(Pending::Forgotten);
        fx.store(
            ticket,
            StoreRequest::Commit(
                partition,
                ControlBatch {
                    writes,
                    ..ControlBatch::default()
                },
            ),
        );
    }
}
