//! JOIN commit and park: what a seat's holder does after reserving it (06 §9, §10).

use super::join::GENERIC;
use super::{Answered, Op, Origin, Shard, Step};
use crate::effects::Effects;
use crate::realm::Realm;
use crate::records::{self, Grant, Invite, InviteState, Seat};
use drover_storage::control::{ControlBatch, Write};
use drover_wire::id::{EntryHash, GroupId, Hash, Nonce, PublicKey, Token};
use drover_wire::join::Response;

/// Who claims to hold which seat.
#[derive(Clone, Debug)]
pub(crate) struct SeatRequest {
    pub(crate) origin: Origin,
    token: Token,
    nonce: Nonce,
    device_hash: EntryHash,
}

/// A scope commit in line.
#[derive(Clone, Debug)]
pub(crate) struct CommitScope {
    pub(crate) seat: SeatRequest,
    pub(crate) group: GroupId,
}

/// A scope commit on its way to the store; with it, perhaps, the consumption of the seat.
#[derive(Debug)]
pub(crate) struct Committed {
    pub(crate) commit: CommitScope,
    consumed: Option<Consumed>,
}

#[derive(Debug)]
struct Consumed {
    seat: Seat,
    grant: Option<Grant>,
    /// The invite, spent by its last seat.
    spent: Option<Invite>,
}

/// A parked seat on its way to the store.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) request: SeatRequest,
    seat: Seat,
    grant: Option<Grant>,
}

/// A request whose widths could match a seat.
pub(super) fn seat_request(
    realm: &Realm,
    origin: Origin,
    token: &[u8],
    nonce: &[u8],
    device: &[u8],
) -> Option<SeatRequest> {
    Some(SeatRequest {
        origin,
        token: Token::from_slice(token)?,
        nonce: Nonce::from_slice(nonce)?,
        device_hash: EntryHash::of(&PublicKey::from_slice(device)?, &realm.salt),
    })
}

/// `H("weald invite scope-commit v1" ‖ token ‖ nonce ‖ group)`.
fn receipt(commit: &CommitScope) -> Hash {
    Hash::of(&[
        b"weald invite scope-commit v1",
        &commit.seat.token.0,
        &commit.seat.nonce.0,
        &commit.group.0,
    ])
}

/// The seat a request may act on, and its invite: rows 1 to 6 of 06 §9.
fn held<'a>(realm: &'a Realm, request: &SeatRequest, wall_ms: u64) -> Option<(&'a Seat, &'a Invite)> {
    let seat = realm.seats.get(&(request.token, request.nonce))?;
    let invite = realm.invites.get(&request.token)?;
    let open = match invite.state {
        InviteState::Live => true,
        InviteState::Spent => seat.consumed,
        InviteState::Revoked => false,
    };
    let holds = !seat.released
        && open
        && seat.device_hash == request.device_hash.0
        && wall_ms < invite.expires_ms
        && (seat.consumed || wall_ms < seat.expires_ms);
    holds.then_some((seat, invite))
}

/// The grant of a device, extended to an invite's end; a voided one stays void (06 §9).
fn extended_grant(realm: &Realm, device: &EntryHash, expires_ms: u64, wall_ms: u64) -> Option<Grant> {
    let existing = realm.grants.get(device);
    if existing.is_some_and(|g| g.voided.is_some()) {
        return None;
    }
    let longest = existing
        .filter(|g| g.is_live(wall_ms))
        .map_or(expires_ms, |g| g.expires_ms.max(expires_ms));
    let seen_version = existing.and_then(|g| g.seen_version);
    Some(Grant {
        expires_ms: longest,
        seen_version,
        voided: None,
    })
}

impl Shard {
    pub(super) fn start_commit<E: Effects>(&mut self, slot: u32, commit: CommitScope, fx: &mut E) {
        let wall_ms = self.now.wall_ms;
        let Some(realm) = self.realm_mut(slot) else { return };
        let CommitScope { seat: request, group } = &commit;
        let Some((seat, invite)) = held(realm, request, wall_ms).filter(|(_, i)| i.has_scope(&group.0))
        else {
            return self.send_answer(request.origin, Err(GENERIC.into()), fx);
        };
        let known = realm.commits.contains(&(request.token, request.nonce, *group));
        let done = invite
            .scopes
            .chunks_exact(32)
            .filter_map(GroupId::from_slice)
            .filter(|scope| scope == group || realm.commits.contains(&(request.token, request.nonce, *scope)))
            .count();
        if known && (seat.consumed || done < invite.scope_count()) {
            let receipt = receipt(&commit);
            let answer = Ok(Answered::Join(Response::Committed { receipt }.encode()));
            return self.send_answer(request.origin, answer, fx);
        }
        let consumed = (!seat.consumed && done == invite.scope_count()).then(|| {
            let others = realm.seats.iter().any(|((token, nonce), s)| {
                *token == request.token && *nonce != request.nonce && !s.consumed && !s.released
            });
            let spent = (invite.remaining == 0 && !others).then(|| Invite {
                state: InviteState::Spent,
                record: Vec::new(),
                refreshed: Vec::new(),
                ..invite.clone()
            });
            let grant = extended_grant(realm, &request.device_hash, invite.expires_ms, wall_ms);
            Consumed {
                seat: Seat {
                    consumed: true,
                    ..*seat
                },
                grant,
                spent,
            }
        });
        let mut writes: Vec<Write> = vec![records::put_raw(
            records::commit_key(&request.token, &request.nonce, group),
            bytes::Bytes::new(),
        )];
        if let Some(consumed) = &consumed {
            writes.push(records::put(
                records::seat_key(&request.token, &request.nonce),
                &consumed.seat,
            ));
            writes.extend(
                consumed
                    .grant
                    .iter()
                    .map(|g| records::put(records::grant_key(&request.device_hash), g)),
            );
            writes.extend(
                consumed
                    .spent
                    .iter()
                    .map(|i| records::put(records::invite_key(&request.token), i)),
            );
        }
        let batch = ControlBatch {
            writes,
            ..ControlBatch::default()
        };
        self.commit(
            slot,
            batch,
            Step::Committed(Box::new(Committed { commit, consumed })),
            fx,
        );
    }

    pub(super) fn committed<E: Effects>(&mut self, slot: u32, committed: Committed, fx: &mut E) {
        let Committed { commit, consumed } = committed;
        let Some(realm) = self.realm_mut(slot) else { return };
        let (token, nonce) = (commit.seat.token, commit.seat.nonce);
        realm.commits.insert((token, nonce, commit.group));
        let mut dead = None;
        if let Some(Consumed { seat, grant, spent }) = consumed {
            realm.seats.insert((token, nonce), seat);
            if let Some(grant) = grant {
                realm.grants.insert(commit.seat.device_hash, grant);
            }
            if let Some(invite) = spent {
                dead = realm.invites.insert(token, invite);
            }
        }
        let receipt = receipt(&commit);
        let answer = Ok(Answered::Join(Response::Committed { receipt }.encode()));
        self.send_answer(commit.seat.origin, answer, fx);
        if let Some(invite) = dead {
            self.delete_bundles(slot, &token, &invite, fx);
        }
    }

    /// Park (06 §10, D4): once per reservation, while the invite is live and the seat is running.
    pub(super) fn start_park<E: Effects>(&mut self, slot: u32, request: &SeatRequest, fx: &mut E) {
        let wall_ms = self.now.wall_ms;
        let Some(realm) = self.realm_mut(slot) else { return };
        let found = held(realm, request, wall_ms)
            .filter(|(seat, invite)| seat.is_running(wall_ms) && invite.state == InviteState::Live);
        let Some((seat, invite)) = found else {
            return self.send_answer(request.origin, Err(GENERIC.into()), fx);
        };
        if seat.extended {
            let answer = Ok(Answered::Join(
                Response::Parked {
                    expires_at_ms: seat.expires_ms,
                }
                .encode(),
            ));
            return self.send_answer(request.origin, answer, fx);
        }
        let grant = extended_grant(realm, &request.device_hash, invite.expires_ms, wall_ms);
        let seat = Seat {
            expires_ms: invite.expires_ms,
            extended: true,
            ..*seat
        };
        let mut writes = vec![records::put(
            records::seat_key(&request.token, &request.nonce),
            &seat,
        )];
        writes.extend(
            grant
                .iter()
                .map(|g| records::put(records::grant_key(&request.device_hash), g)),
        );
        let batch = ControlBatch {
            writes,
            ..ControlBatch::default()
        };
        let parked = Parked {
            request: request.clone(),
            seat,
            grant,
        };
        self.commit(slot, batch, Step::Parked(Box::new(parked)), fx);
    }

    pub(super) fn parked<E: Effects>(&mut self, slot: u32, parked: Parked, fx: &mut E) {
        let Parked { request, seat, grant } = parked;
        let Some(realm) = self.realm_mut(slot) else { return };
        realm.seats.insert((request.token, request.nonce), seat);
        if let Some(grant) = grant {
            realm.grants.insert(request.device_hash, grant);
        }
        self.note_founders(slot); // it may be a founder's
        let answer = Ok(Answered::Join(
            Response::Parked {
                expires_at_ms: seat.expires_ms,
            }
            .encode(),
        ));
        self.send_answer(request.origin, answer, fx);
    }
}

/// Kept here so that the two operations of a seat read side by side.
impl From<CommitScope> for Op {
    fn from(commit: CommitScope) -> Self {
        Op::Commit(commit)
    }
}
