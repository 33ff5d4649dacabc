//! INVITE: administering invites (06 §11). Authority is read anew for every request.

use super::bundles::{bundle_key, invites_partition, record_key};
use super::{Op, Origin, Shard, Step};
use crate::effects::Effects;
use crate::event::ConnId;
use crate::limits::{INVITE_PER_MINUTE, RECORD_INLINE_BYTES, REFRESHED_KEPT};
use crate::message;
use crate::records::{self, Grant, Invite, InviteState, Refreshed, Seat, VoidReason};
use crate::session::Waiting;
use crate::shard::Pending;
use crate::shard::gather::Then;
use bytes::Bytes;
use drover_storage::StoreError;
use drover_storage::control::{ControlBatch, DirectoryKey, DirectoryKind};
use drover_wire::error::{Code, Refusal};
use drover_wire::frame::Frame;
use drover_wire::id::{EntryHash, GroupId, Nonce, PublicKey, Token};
use drover_wire::invite::{BUNDLE_BYTES_MAX, Record};
use drover_wire::invite_admin::{Request, Response, State, Summary};

/// An invite being created.
#[derive(Debug)]
pub(crate) struct Creation {
    pub(crate) origin: Origin,
    token: Token,
    body: Bytes,
    invite: Invite,
}

/// A creation under a token this workspace already has: is it the same record? (D6)
#[derive(Debug)]
pub(crate) struct Recreated {
    origin: Origin,
    token: Token,
    body: Bytes,
}

/// A revocation in line.
#[derive(Debug)]
pub(crate) struct Revocation {
    pub(crate) origin: Origin,
    token: Token,
}

/// A revocation on its way to the store.
#[derive(Debug)]
pub(crate) struct Revoked {
    pub(crate) origin: Origin,
    token: Token,
    invite: Invite,
    seats: Vec<(Nonce, Seat)>,
    grants: Vec<(EntryHash, Grant)>,
}

/// A bundle refresh in line.
#[derive(Debug)]
pub(crate) struct Refresh {
    pub(crate) origin: Origin,
    token: Token,
    group: GroupId,
    epoch: u64,
    ct: Bytes,
}

/// A refresh on its way to the store: its ciphertext first, then the invite that lists it.
#[derive(Debug)]
pub(crate) struct Refreshing {
    pub(crate) origin: Origin,
    token: Token,
    invite: Invite,
    pruned: Vec<Refreshed>,
}

impl Shard {
    pub(in crate::shard) fn invite<E: Effects>(
        &mut self,
        conn: ConnId,
        body: &[u8],
        message: &Bytes,
        fx: &mut E,
    ) {
        if let Err(refusal) = self.begin_invite(conn, body, message, fx) {
            self.refuse(conn, refusal, fx);
        }
    }

    fn begin_invite<E: Effects>(
        &mut self,
        conn: ConnId,
        body: &[u8],
        message: &Bytes,
        fx: &mut E,
    ) -> Result<(), Refusal> {
        if self.config.read_only {
            return Err(Code::ServiceReadOnly.into());
        }
        self.charge_frame(conn, |b| &mut b.invite, INVITE_PER_MINUTE)?;
        if self.waits_its_turn(conn, message) {
            return Ok(());
        }
        let request = Request::decode(body)?;
        let (wall_ms, origin) = (
            self.now.wall_ms,
            Origin {
                shard: self.index,
                conn,
            },
        );
        let session = self.session(conn);
        let (slot, device) = session
            .and_then(|s| s.realm.zip(s.device))
            .ok_or(Code::WriterNotInAccessSet)?;
        let realm = self.realm_mut(slot).ok_or(Code::Backpressure)?;
        let head = realm.chain.head.as_ref();
        let authority = head.is_some_and(|h| h.set.authorizers.binary_search(&device).is_ok());
        let member = head.is_some_and(|h| h.entries.contains(&EntryHash::of(&device, &realm.salt)));
        let entitled = match request {
            Request::Authority => true,
            Request::Refresh { .. } => member, // D4: any admitted member may seal newer bundles
            _ => authority,
        };
        if !entitled {
            return Err(Code::WriterNotInAccessSet.into());
        }
        let op = match request {
            Request::Authority => return self.invite_answer(conn, &Response::Authority(authority), fx),
            Request::List => {
                let response = Response::List(list(realm, wall_ms));
                return self.invite_answer(conn, &response, fx);
            }
            Request::Create { record } => {
                Op::Create(Box::new(self.creation(origin, slot, &device, record, message)?))
            }
            Request::Revoke { token } => {
                match Token::from_slice(token).filter(|t| realm.invites.contains_key(t)) {
                    Some(token) => Op::Revoke(Revocation { origin, token }),
                    // Foreign or unknown: the same answer, nothing touched.
                    None => return self.invite_answer(conn, &Response::Revoked { token }, fx),
                }
            }
            Request::Refresh {
                token,
                group,
                epoch,
                ct,
            } => {
                let found = Token::from_slice(token).zip(GroupId::from_slice(group));
                match found.filter(|_| (1..=BUNDLE_BYTES_MAX).contains(&ct.len())) {
                    Some((token, group)) => Op::Refresh(Refresh {
                        origin,
                        token,
                        group,
                        epoch,
                        ct: message.slice_ref(ct),
                    }),
                    None => return self.invite_answer(conn, &Response::Refreshed, fx), // silent (06 §7)
                }
            }
        };
        if let Some(session) = self.session(conn) {
            session.waiting = Waiting::Working;
        }
        self.enqueue(slot, op, fx);
        Ok(())
    }

    fn invite_answer<E: Effects>(
        &mut self,
        conn: ConnId,
        response: &Response<'_>,
        fx: &mut E,
    ) -> Result<(), Refusal> {
        let body = response.encode();
        self.answered(conn, message::frame(&Frame::Invite { body: &body }), fx);
        Ok(())
    }

    /// The checks of a creation, in the order of 06 §11's table, but for the token.
    fn creation(
        &mut self,
        origin: Origin,
        slot: u32,
        device: &PublicKey,
        body: &[u8],
        message: &Bytes,
    ) -> Result<Creation, Refusal> {
        let wall_ms = self.now.wall_ms;
        let record = Record::decode(body)?;
        if record.issuer != *device {
            return Err(Code::WriterNotInAccessSet.into());
        }
        let id = self.realms[slot as usize].id.clone();
        let root = GroupId(record.workspace);
        let foreign = std::iter::once(&root)
            .chain(&record.scopes)
            .any(|group| self.directory.group(group).is_some_and(|owner| owner != id));
        if foreign {
            return Err(Code::WriterNotInAccessSet.into());
        }
        record
            .judge(false, wall_ms)
            .map_err(|fault| Refusal::plain(fault.code()))?;
        let invite = Invite {
            record: if body.len() <= RECORD_INLINE_BYTES {
                body.to_vec()
            } else {
                Vec::new()
            },
            remaining: record.uses,
            state: InviteState::Live,
            bootstrap: false,
            stored_ms: wall_ms,
            expires_ms: record.expires_ms,
            code_hash: record.code_hash.0,
            uses: record.uses,
            scopes: record.scopes.iter().flat_map(|g| g.0).collect(),
            refreshed: Vec::new(),
            issued_epochs: record.bundles.iter().map(|(_, epoch, _)| *epoch).collect(),
        };
        Ok(Creation {
            origin,
            token: record.token,
            body: message.slice_ref(body),
            invite,
        })
    }

    pub(super) fn start_creation<E: Effects>(&mut self, slot: u32, creation: Box<Creation>, fx: &mut E) {
        let Creation { origin, token, .. } = *creation;
        let Some(realm) = self.realm_mut(slot) else { return };
        if let Some(existing) = realm.invites.get(&token) {
            let recreated = Recreated {
                origin,
                token,
                body: creation.body,
            };
            if existing.state != InviteState::Live {
                return self.recreated_read(recreated, Ok(Vec::new()), fx);
            }
            if !existing.record.is_empty() {
                let stored = Bytes::from(existing.record.clone());
                return self.recreated_read(recreated, Ok(vec![Some(stored)]), fx);
            }
            let partition = invites_partition(&realm.id);
            return self.gather(
                &partition,
                vec![record_key(&token)],
                Then::Recreated(recreated),
                fx,
            );
        }
        if self.directory.token(&token).is_some() {
            return self.recreated_read(
                Recreated {
                    origin,
                    token,
                    body: creation.body,
                },
                Ok(Vec::new()),
                fx,
            );
        }
        if creation.invite.record.is_empty() {
            let partition = invites_partition(&self.realms[slot as usize].id);
            let writes = vec![records::put_raw(record_key(&token), creation.body.clone())];
            let batch = ControlBatch {
                writes,
                ..ControlBatch::default()
            };
            return self.commit_to(slot, partition, batch, Step::RecordStored(creation), fx);
        }
        self.commit_invite(slot, creation, fx);
    }

    /// The record, if it was large, is stored: now the invite that makes it count.
    pub(super) fn commit_invite<E: Effects>(&mut self, slot: u32, creation: Box<Creation>, fx: &mut E) {
        let batch = ControlBatch {
            writes: vec![records::put(
                records::invite_key(&creation.token),
                &creation.invite,
            )],
            directory: vec![(
                DirectoryKey {
                    kind: DirectoryKind::Token,
                    name: creation.token.0.to_vec(),
                },
                Some(Bytes::new()),
            )],
            ..ControlBatch::default()
        };
        self.commit(slot, batch, Step::Created(creation), fx);
    }

    pub(super) fn created<E: Effects>(&mut self, slot: u32, creation: Creation, fx: &mut E) {
        let id = self.realms[slot as usize].id.clone();
        let Some(realm) = self.realm_mut(slot) else { return };
        realm.invites.insert(creation.token, creation.invite);
        self.directory.claimed_token(creation.token, &id);
        let _ = self.invite_answer(
            creation.origin.conn,
            &Response::Created {
                token: &creation.token.0,
            },
            fx,
        );
    }

    /// A token that another workspace took in the same moment.
    pub(super) fn creation_refused<E: Effects>(&mut self, creation: &Creation, fx: &mut E) {
        self.answered_refusal(creation.origin.conn, Code::MalformedHeader.into(), fx);
    }

    /// The same record again gets its token again; anything else under that token is refused (D6).
    pub(in crate::shard) fn recreated_read<E: Effects>(
        &mut self,
        recreated: Recreated,
        values: Result<Vec<Option<Bytes>>, StoreError>,
        fx: &mut E,
    ) {
        let conn = recreated.origin.conn;
        match values {
            Ok(values)
                if values
                    .first()
                    .is_some_and(|v| v.as_ref() == Some(&recreated.body)) =>
            {
                let _ = self.invite_answer(
                    conn,
                    &Response::Created {
                        token: &recreated.token.0,
                    },
                    fx,
                );
            }
            Ok(_) => self.answered_refusal(conn, Code::MalformedHeader.into(), fx),
            Err(_) => self.answered_refusal(conn, Code::Backpressure.into(), fx),
        }
    }

    pub(super) fn start_revocation<E: Effects>(&mut self, slot: u32, revocation: Revocation, fx: &mut E) {
        let Revocation { origin, token } = revocation;
        let Some(realm) = self.realm_mut(slot) else { return };
        let Some(invite) = realm
            .invites
            .get(&token)
            .filter(|i| i.state != InviteState::Revoked)
        else {
            let _ = self.invite_answer(origin.conn, &Response::Revoked { token: &token.0 }, fx);
            return;
        };
        // What stays is the tombstone: no code, no record, no ciphertext.
        let tombstone = Invite {
            state: InviteState::Revoked,
            remaining: 0,
            record: Vec::new(),
            code_hash: [0; 32],
            refreshed: Vec::new(),
            ..invite.clone()
        };
        let of_token = realm.seats.iter().filter(|((t, _), _)| *t == token);
        let seats: Vec<(Nonce, Seat)> = of_token
            .clone()
            .filter(|(_, s)| !s.consumed && !s.released)
            .map(|((_, nonce), seat)| {
                (
                    *nonce,
                    Seat {
                        released: true,
                        ..*seat
                    },
                )
            })
            .collect();
        let mut hashes: Vec<EntryHash> = of_token.map(|(_, s)| EntryHash(s.device_hash)).collect();
        hashes.sort_unstable();
        hashes.dedup();
        let grants: Vec<(EntryHash, Grant)> = hashes
            .iter()
            .filter_map(|hash| Some((*hash, *realm.grants.get(hash)?)))
            .map(|(hash, grant)| {
                (
                    hash,
                    Grant {
                        voided: grant.voided.or(Some(VoidReason::Revoked)),
                        ..grant
                    },
                )
            })
            .collect();
        let mut writes = vec![records::put(records::invite_key(&token), &tombstone)];
        writes.extend(
            seats
                .iter()
                .map(|(nonce, seat)| records::put(records::seat_key(&token, nonce), seat)),
        );
        writes.extend(
            grants
                .iter()
                .map(|(hash, grant)| records::put(records::grant_key(hash), grant)),
        );
        let revoked = Revoked {
            origin,
            token,
            invite: tombstone,
            seats,
            grants,
        };
        let batch = ControlBatch {
            writes,
            ..ControlBatch::default()
        };
        self.commit(slot, batch, Step::Revoked(Box::new(revoked)), fx);
    }

    pub(super) fn revoked<E: Effects>(&mut self, slot: u32, revoked: Revoked, fx: &mut E) {
        let Revoked {
            origin,
            token,
            invite,
            seats,
            grants,
        } = revoked;
        let Some(realm) = self.realm_mut(slot) else { return };
        let dead = realm.invites.insert(token, invite);
        for (nonce, seat) in seats {
            realm.seats.insert((token, nonce), seat);
        }
        let mut evicted: Vec<ConnId> = Vec::new();
        for (hash, grant) in grants {
            realm.grants.insert(hash, grant);
            evicted.extend(realm.registry.get(&hash).into_iter().flatten());
        }
        let _ = self.invite_answer(origin.conn, &Response::Revoked { token: &token.0 }, fx);
        if let Some(invite) = dead {
            self.delete_bundles(slot, &token, &invite, fx);
        }
        for conn in evicted {
            self.evict_or_answer(conn, origin, fx);
        }
    }

    pub(super) fn start_refresh<E: Effects>(&mut self, slot: u32, refresh: Refresh, fx: &mut E) {
        let Refresh {
            origin,
            token,
            group,
            epoch,
            ct,
        } = refresh;
        let wall_ms = self.now.wall_ms;
        let Some(realm) = self.realm_mut(slot) else { return };
        let place = |invite: &Invite| invite.scopes.chunks_exact(32).position(|s| s == group.0);
        // The bundle that came with the signed record is never overwritten.
        let found = realm
            .live_invite(&token, wall_ms)
            .filter(|invite| place(invite).is_some_and(|at| invite.issued_epochs.get(at) != Some(&epoch)));
        let Some(invite) = found else {
            let _ = self.invite_answer(origin.conn, &Response::Refreshed, fx);
            return;
        };
        let mut invite = invite.clone();
        invite
            .refreshed
            .retain(|r| r.group != group.0 || r.epoch != epoch);
        invite.refreshed.push(Refreshed {
            group: group.0,
            epoch,
            uploaded_ms: wall_ms,
        });
        let mut of_group = invite.refreshed.iter().filter(|r| r.group == group.0).count();
        let mut pruned = Vec::new();
        invite.refreshed.retain(|r| {
            let goes = r.group == group.0 && of_group > REFRESHED_KEPT;
            if goes {
                of_group -= 1;
                pruned.push(*r);
            }
            !goes
        });
        let partition = invites_partition(&realm.id);
        let writes = vec![records::put_raw(bundle_key(&token, &group.0, epoch), ct)];
        let refreshing = Refreshing {
            origin,
            token,
            invite,
            pruned,
        };
        let batch = ControlBatch {
            writes,
            ..ControlBatch::default()
        };
        self.commit_to(
            slot,
            partition,
            batch,
            Step::BundleStored(Box::new(refreshing)),
            fx,
        );
    }

    pub(super) fn commit_refresh<E: Effects>(&mut self, slot: u32, refreshing: Box<Refreshing>, fx: &mut E) {
        let writes = vec![records::put(
            records::invite_key(&refreshing.token),
            &refreshing.invite,
        )];
        let batch = ControlBatch {
            writes,
            ..ControlBatch::default()
        };
        self.commit(slot, batch, Step::Refreshed(refreshing), fx);
    }

    pub(super) fn refreshed<E: Effects>(&mut self, slot: u32, refreshing: Refreshing, fx: &mut E) {
        let Refreshing {
            origin,
            token,
            invite,
            pruned,
        } = refreshing;
        let Some(realm) = self.realm_mut(slot) else { return };
        realm.invites.insert(token, invite);
        let _ = self.invite_answer(origin.conn, &Response::Refreshed, fx);
        if !pruned.is_empty() {
            let partition = invites_partition(&self.realms[slot as usize].id);
            let writes = pruned
                .iter()
                .map(|r| records::remove(bundle_key(&token, &r.group, r.epoch)))
                .collect();
            let ticket = self.ticket(Pending::Forgotten);
            let batch = ControlBatch {
                writes,
                ..ControlBatch::default()
            };
            fx.store(ticket, crate::effects::StoreRequest::Commit(partition, batch));
        }
    }
}

/// Live, unexpired invites, oldest first (D2); the relay's own is not listed.
fn list(realm: &crate::realm::Realm, wall_ms: u64) -> Vec<Summary> {
    let mut live: Vec<(&Token, &Invite)> = realm
        .invites
        .iter()
        .filter(|(_, i)| i.state == InviteState::Live && wall_ms < i.expires_ms && !i.bootstrap)
        .collect();
    live.sort_by_key(|(token, invite)| (invite.stored_ms, **token));
    live.into_iter()
        .map(|(token, invite)| Summary {
            token: *token,
            issued_at_ms: invite.stored_ms,
            expires_ms: invite.expires_ms,
            remaining: invite.remaining,
            seats: invite.uses,
            scope_count: invite.scope_count() as u16,
            state: State::Live,
        })
        .collect()
}
