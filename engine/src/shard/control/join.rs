//! JOIN: redeeming an invite before authentication (06 §4 to §9). Attempts are charged before the hash; every "no" is
//! the same answer.

use super::seats::{CommitScope, seat_request};
use super::{Answered, Op, Origin, Request, Shard, Step};
use crate::effects::{CodeCheck, Effects};
use crate::event::ConnId;
use crate::limits::{
    CODE_COOLDOWN_MS, CODE_TRIES_PER_SOURCE, CODE_TRIES_PER_TOKEN, JOIN_PER_MINUTE, RESERVATION_MS,
};
use crate::realm::Realm;
use crate::records::{self, Attempt, Grant, Invite, InviteState, Seat};
use crate::shard::Pending;
use bytes::Bytes;
use drover_storage::control::{ControlBatch, Write};
use drover_wire::error::{Code, Refusal};
use drover_wire::id::{EntryHash, GroupId, Hash, Nonce, PublicKey, Token};
use drover_wire::invite::canonical_code;
use drover_wire::join::{self, Response};

/// A reservation on its way through charge, hash and seat.
#[derive(Clone, Debug)]
pub(crate) struct Reserve {
    pub(crate) origin: Origin,
    token: Token,
    nonce: Nonce,
    device_hash: EntryHash,
    source: [u8; 32],
    /// The canonical symbols; `None` for something that is no code.
    code: Option<[u8; 12]>,
}

/// A code that is being hashed.
pub(crate) struct CodeTry {
    reserve: Reserve,
}

/// A charge on its way to the store.
pub(crate) struct Charged {
    pub(crate) reserve: Reserve,
    attempt: Attempt,
    swept: Vec<[u8; 32]>,
    /// Whether the code is looked at.
    proceed: bool,
}

/// A seat on its way to the store.
pub(crate) struct Seated {
    pub(crate) reserve: Reserve,
    attempt: Option<Attempt>,
    invite: Option<Invite>,
    seats: Vec<(Nonce, Seat)>,
    grant: Option<Grant>,
    answer: Result<u64, ()>,
}

/// The one answer to every JOIN that means no.
pub(super) const GENERIC: Code = Code::SeatsExhausted;

impl Shard {
    pub(in crate::shard) fn join<E: Effects>(
        &mut self,
        conn: ConnId,
        body: &[u8],
        message: &Bytes,
        fx: &mut E,
    ) {
        if let Err(refusal) = self.begin_join(conn, body, message, fx) {
            self.refuse(conn, refusal, fx);
        }
    }

    fn begin_join<E: Effects>(
        &mut self,
        conn: ConnId,
        body: &[u8],
        message: &Bytes,
        fx: &mut E,
    ) -> Result<(), Refusal> {
        self.charge_frame(conn, |b| &mut b.join, JOIN_PER_MINUTE)?;
        if self.waits_its_turn(conn, message) {
            return Ok(());
        }
        let request = join::Request::decode(body).ok_or(GENERIC)?;
        let durable = matches!(
            request,
            join::Request::Reserve { .. } | join::Request::Commit { .. } | join::Request::Park { .. }
        );
        if durable && self.config.read_only {
            return Err(Code::ServiceReadOnly.into()); // before the token is looked at (06 D9)
        }
        let token = match request {
            join::Request::Reserve { token, .. }
            | join::Request::Bundles { token, .. }
            | join::Request::Commit { token, .. }
            | join::Request::Record { token }
            | join::Request::Park { token, .. } => token,
        };
        let realm = Token::from_slice(token).and_then(|t| self.directory.token(&t));
        let Some(realm) = realm else {
            // An unknown token answers as a dead one (06 §8, D5).
            let body = match request {
                join::Request::Bundles { .. } => Response::Bundles(Vec::new()).encode(),
                join::Request::Record { .. } => Response::Record { record: &[] }.encode(),
                _ => return Err(GENERIC.into()),
            };
            self.receive_answer(conn, Ok(Answered::Join(body)), fx);
            return Ok(());
        };
        let source = self
            .session(conn)
            .map(|s| s.peer.source.clone())
            .unwrap_or_default();
        self.request(
            conn,
            &realm,
            Request::Join {
                source,
                body: message.slice_ref(body),
            },
            fx,
        );
        Ok(())
    }

    pub(super) fn serve_join<E: Effects>(
        &mut self,
        slot: u32,
        origin: Origin,
        source: &str,
        body: &[u8],
        fx: &mut E,
    ) {
        let Some(realm) = self.realm_mut(slot) else { return };
        let answer: super::Answer = match join::Request::decode(body) {
            Some(join::Request::Reserve {
                token,
                code,
                nonce,
                device,
            }) => match reserve(realm, origin, source, token, code, nonce, device) {
                Some(reserve) => return self.enqueue(slot, Op::Charge(reserve), fx),
                None => Err(GENERIC.into()),
            },
            Some(join::Request::Bundles { token, group }) => {
                return self.read_bundles(slot, origin, token, group, fx);
            }
            Some(join::Request::Record { token }) => return self.read_record(slot, origin, token, fx),
            Some(join::Request::Commit {
                token,
                nonce,
                device,
                group,
            }) => match seat_request(realm, origin, token, nonce, device).zip(GroupId::from_slice(group)) {
                Some((seat, group)) => {
                    return self.enqueue(slot, Op::Commit(CommitScope { seat, group }), fx);
                }
                None => Err(GENERIC.into()),
            },
            Some(join::Request::Park { token, nonce, device }) => {
                match seat_request(realm, origin, token, nonce, device) {
                    Some(seat) => return self.enqueue(slot, Op::Park(seat), fx),
                    None => Err(GENERIC.into()),
                }
            }
            None => Err(GENERIC.into()),
        };
        self.send_answer(origin, answer, fx);
    }

    /// Steps 1 to 3 of 06 §5.
    pub(super) fn start_charge<E: Effects>(&mut self, slot: u32, reserve: Reserve, fx: &mut E) {
        let wall_ms = self.now.wall_ms;
        let Some(realm) = self.realm_mut(slot) else { return };
        let own = realm
            .attempts
            .get(&(reserve.token, reserve.source))
            .copied()
            .unwrap_or_default();
        let others = tries(realm, &reserve.token, Some(&reserve.source), wall_ms);
        let cooling = own.cooldown_until_ms > wall_ms;
        if cooling
            || tries(realm, &reserve.token, None, wall_ms) >= CODE_TRIES_PER_TOKEN
            || realm.live_invite(&reserve.token, wall_ms).is_none()
        {
            return self.send_answer(reserve.origin, Err(GENERIC.into()), fx);
        }
        let swept: Vec<[u8; 32]> = realm
            .attempts
            .iter()
            .filter(|((token, _), a)| *token == reserve.token && !a.is_live(wall_ms))
            .map(|((_, source), _)| *source)
            .collect();
        let mut attempt = if swept.contains(&reserve.source) || own.failures == 0 {
            Attempt {
                failures: 0,
                window_started_ms: wall_ms,
                cooldown_until_ms: 0,
            }
        } else {
            own
        };
        attempt.failures += 1;
        if attempt.failures >= CODE_TRIES_PER_SOURCE {
            attempt.cooldown_until_ms = wall_ms + CODE_COOLDOWN_MS;
        }
        let proceed =
            attempt.failures <= CODE_TRIES_PER_SOURCE && attempt.failures + others <= CODE_TRIES_PER_TOKEN;
        let mut writes: Vec<Write> = swept
            .iter()
            .filter(|s| **s != reserve.source)
            .map(|source| records::remove(records::attempt_key(&reserve.token, source)))
            .collect();
        writes.push(records::put(
            records::attempt_key(&reserve.token, &reserve.source),
            &attempt,
        ));
        let batch = ControlBatch {
            writes,
            ..ControlBatch::default()
        };
        self.commit(
            slot,
            batch,
            Step::Charge(Charged {
                reserve,
                attempt,
                swept,
                proceed,
            }),
            fx,
        );
    }

    pub(super) fn charged<E: Effects>(&mut self, slot: u32, charged: Charged, fx: &mut E) {
        let Charged {
            reserve,
            attempt,
            swept,
            proceed,
        } = charged;
        let Some(realm) = self.realm_mut(slot) else { return };
        for source in swept {
            realm.attempts.remove(&(reserve.token, source));
        }
        realm.attempts.insert((reserve.token, reserve.source), attempt);
        let code_hash = realm.invites.get(&reserve.token).map(|i| i.code_hash);
        let (Some(code), Some(code_hash), true) = (reserve.code, code_hash, proceed) else {
            return self.send_answer(reserve.origin, Err(GENERIC.into()), fx);
        };
        let check = CodeCheck {
            code,
            token: reserve.token.0,
            code_hash,
        };
        let ticket = self.ticket(Pending::Code {
            realm: slot,
            check: CodeTry {
                reserve: reserve.clone(),
            },
        });
        if !fx.offload(ticket, check) {
            self.pending.remove(&ticket);
            self.enqueue(slot, Op::Refund(reserve), fx); // saturated: nothing was tried (06 D18)
        }
    }

    pub(super) fn start_refund<E: Effects>(&mut self, slot: u32, reserve: Reserve, fx: &mut E) {
        let Some(realm) = self.realm_mut(slot) else { return };
        let attempt = refund(realm, &reserve);
        let write = records::put(records::attempt_key(&reserve.token, &reserve.source), &attempt);
        let batch = ControlBatch {
            writes: vec![write],
            ..ControlBatch::default()
        };
        self.commit(slot, batch, Step::Refund(reserve, attempt), fx);
    }

    pub(super) fn refunded<E: Effects>(
        &mut self,
        slot: u32,
        reserve: &Reserve,
        attempt: Attempt,
        fx: &mut E,
    ) {
        if let Some(realm) = self.realm_mut(slot) {
            realm.attempts.insert((reserve.token, reserve.source), attempt);
        }
        self.send_answer(reserve.origin, Err(Code::Backpressure.into()), fx);
    }

    pub(in crate::shard) fn code_checked<E: Effects>(
        &mut self,
        slot: u32,
        check: CodeTry,
        matches: bool,
        fx: &mut E,
    ) {
        if matches {
            self.enqueue(slot, Op::Seat(check.reserve), fx);
        } else {
            self.send_answer(check.reserve.origin, Err(GENERIC.into()), fx);
        }
    }

    /// Steps 5 to 8 of 06 §5: the refund, and in the same commit the seat and its grant.
    pub(super) fn start_seat<E: Effects>(&mut self, slot: u32, reserve: Reserve, fx: &mut E) {
        let wall_ms = self.now.wall_ms;
        let Some(realm) = self.realm_mut(slot) else { return };
        let seated = seat(realm, reserve, wall_ms);
        let (token, device_hash) = (seated.reserve.token, seated.reserve.device_hash);
        let mut writes = Vec::new();
        if let Some(attempt) = &seated.attempt {
            writes.push(records::put(
                records::attempt_key(&token, &seated.reserve.source),
                attempt,
            ));
        }
        if let Some(invite) = &seated.invite {
            writes.push(records::put(records::invite_key(&token), invite));
        }
        for (nonce, seat) in &seated.seats {
            writes.push(records::put(records::seat_key(&token, nonce), seat));
        }
        if let Some(grant) = &seated.grant {
            writes.push(records::put(records::grant_key(&device_hash), grant));
        }
        let batch = ControlBatch {
            writes,
            ..ControlBatch::default()
        };
        self.commit(slot, batch, Step::Seat(Box::new(seated)), fx);
    }

    pub(super) fn seated<E: Effects>(&mut self, slot: u32, seated: Seated, fx: &mut E) {
        let Some(realm) = self.realm_mut(slot) else { return };
        let Seated {
            reserve,
            attempt,
            invite,
            seats,
            grant,
            answer,
        } = seated;
        if let Some(attempt) = attempt {
            realm.attempts.insert((reserve.token, reserve.source), attempt);
        }
        if let Some(invite) = invite {
            realm.invites.insert(reserve.token, invite);
        }
        for (nonce, seat) in seats {
            realm.seats.insert((reserve.token, nonce), seat);
        }
        if let Some(grant) = grant {
            realm.grants.insert(reserve.device_hash, grant);
        }
        self.note_founders(slot);
        let answer = match answer {
            Ok(expires_at_ms) => Ok(Answered::Join(Response::Reserved { expires_at_ms }.encode())),
            Err(()) => Err(GENERIC.into()),
        };
        self.send_answer(reserve.origin, answer, fx);
    }
}

fn reserve(
    realm: &Realm,
    origin: Origin,
    source: &str,
    token: &[u8],
    code: &str,
    nonce: &[u8],
    device: &[u8],
) -> Option<Reserve> {
    let source = if source.is_empty() { "unknown" } else { source };
    Some(Reserve {
        origin,
        token: Token::from_slice(token)?,
        nonce: Nonce::from_slice(nonce)?,
        device_hash: EntryHash::of(&PublicKey::from_slice(device)?, &realm.salt),
        source: Hash::of(&[source.as_bytes(), &realm.salt.0]).0,
        code: canonical_code(code),
    })
}

/// Failures on a token over all sources, one perhaps excepted.
fn tries(realm: &Realm, token: &Token, except: Option<&[u8; 32]>, wall_ms: u64) -> u32 {
    realm
        .attempts
        .iter()
        .filter(|((t, source), a)| t == token && Some(source) != except && a.is_live(wall_ms))
        .map(|(_, a)| a.failures)
        .sum()
}

/// One attempt given back.
fn refund(realm: &Realm, reserve: &Reserve) -> Attempt {
    let mut attempt = realm
        .attempts
        .get(&(reserve.token, reserve.source))
        .copied()
        .unwrap_or_default();
    attempt.failures = attempt.failures.saturating_sub(1);
    if attempt.failures < CODE_TRIES_PER_SOURCE {
        attempt.cooldown_until_ms = 0;
    }
    attempt
}

/// Decides a seat for a code that matched.
fn seat(realm: &Realm, reserve: Reserve, wall_ms: u64) -> Seated {
    let attempt = Some(refund(realm, &reserve));
    let refused = |reserve: Reserve| Seated {
        reserve,
        attempt,
        invite: None,
        seats: Vec::new(),
        grant: None,
        answer: Err(()),
    };
    let existing = realm.grants.get(&reserve.device_hash);
    if existing.is_some_and(|g| g.voided.is_some()) {
        return refused(reserve); // 6
    }
    if let Some(seat) = realm.seats.get(&(reserve.token, reserve.nonce)) {
        // 7: idempotent per nonce; a nonce of another device, or one whose seat is gone, is no answer (D8).
        let again = seat.is_reserved(wall_ms) && seat.device_hash == reserve.device_hash.0;
        let expires = seat.expires_ms;
        let mut seated = refused(reserve);
        if again {
            seated.answer = Ok(expires);
        }
        return seated;
    }
    let Some(invite) = realm.live_invite(&reserve.token, wall_ms) else {
        return refused(reserve);
    };
    let mut invite = invite.clone();
    // D7: lapsed seats of this token are free again.
    let mut seats: Vec<(Nonce, Seat)> = realm
        .seats
        .iter()
        .filter(|((t, _), s)| *t == reserve.token && !s.consumed && !s.released && s.expires_ms <= wall_ms)
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
    invite.remaining = invite
        .uses
        .min(invite.remaining.saturating_add(seats.len().min(255) as u8));
    if invite.remaining == 0 || invite.state != InviteState::Live {
        return refused(reserve);
    }
    invite.remaining -= 1;
    let expires_ms = (wall_ms + RESERVATION_MS).min(invite.expires_ms);
    seats.push((
        reserve.nonce,
        Seat {
            device_hash: reserve.device_hash.0,
            expires_ms,
            consumed: false,
            released: false,
            extended: false,
        },
    ));
    // D15: never shorten a grant that another invite gave.
    let longest = existing
        .filter(|g| g.is_live(wall_ms))
        .map_or(expires_ms, |g| g.expires_ms.max(expires_ms));
    let grant = Some(Grant {
        expires_ms: longest,
        seen_version: None,
        voided: None,
    });
    Seated {
        reserve,
        attempt,
        invite: Some(invite),
        seats,
        grant,
        answer: Ok(expires_ms),
    }
}
