//! What each step of a sweep finds to do: a look at the realm's memory, or at a partition that was read whole, and what
//! is to be written for it. Nothing is changed here.

use super::realm::Sweep;
use crate::collector::Collected;
use crate::limits::{SWEPT_BYTES_PER_COMMIT, SWEPT_PER_COMMIT};
use crate::realm::Realm;
use crate::records::{self, Invite, InviteState, Seat, Shelf, WrapSlot};
use crate::shard::keys::{package_key, packages_partition, shelf_write, split_package_key};
use crate::shard::wake::handle_key;
use crate::shard::wrap::wraps_partition;
use bytes::Bytes;
use drover_storage::control::{ControlBatch, DirectoryKey, DirectoryKind, Write};
use drover_storage::{RealmId, StoreError};
use drover_wire::id::{EntryHash, Hash, Nonce, Token};
use hashbrown::{HashMap, HashSet};
use std::collections::VecDeque;

/// What memory does once the commit is durable.
#[derive(Debug)]
pub(super) enum Change {
    Nothing,
    Wakes(Vec<EntryHash>),
    Handoff,
    Shelves {
        shelves: Vec<(Hash, Shelf)>,
        /// What was taken off them.
        packages: Vec<(Hash, u64)>,
    },
    Seats {
        seats: Vec<((Token, Nonce), Seat)>,
        invites: HashMap<Token, Invite>,
    },
    Invites(Vec<(Token, Invite)>),
    Tombstones(HashSet<Token>),
    Attempts(Vec<(Token, [u8; 32])>),
}

/// One commit of a step.
#[derive(Debug)]
pub(super) struct Found {
    /// `None`: the realm's own.
    pub(super) partition: Option<RealmId>,
    pub(super) batch: ControlBatch,
    pub(super) change: Change,
    pub(super) counts: Collected,
}

impl Found {
    fn new(writes: Vec<Write>, change: Change, counts: Collected) -> Self {
        let batch = ControlBatch {
            writes,
            ..ControlBatch::default()
        };
        Self {
            partition: None,
            batch,
            change,
            counts,
        }
    }
}

/// The partition a step reads whole; `None` for one that looks at memory.
pub(super) fn whole_partition(step: Sweep, realm: &RealmId) -> Option<RealmId> {
    match step {
        Sweep::Wraps => Some(wraps_partition(realm)),
        Sweep::Strays => Some(packages_partition(realm)),
        _ => None,
    }
}

/// The first things a step finds in memory, as many as one commit takes.
pub(super) fn in_memory(realm: &Realm, step: Sweep, wall_ms: u64) -> Option<Found> {
    match step {
        Sweep::Wakes => wakes(realm, wall_ms),
        Sweep::Handoff => handoff(realm, wall_ms),
        Sweep::Packages => packages(realm, wall_ms),
        Sweep::Seats => seats(realm, wall_ms),
        Sweep::Invites => invites(realm, wall_ms),
        Sweep::Tombstones => tombstones(realm, wall_ms),
        Sweep::Attempts => attempts(realm, wall_ms),
        Sweep::Wraps | Sweep::Strays => None,
    }
}

fn wakes(realm: &Realm, wall_ms: u64) -> Option<Found> {
    let expired: Vec<_> = realm.wakes.expired(wall_ms).take(SWEPT_PER_COMMIT).collect();
    if expired.is_empty() {
        return None;
    }
    let entries: Vec<EntryHash> = expired.iter().map(|(entry, _)| *entry).collect();
    let counts = Collected {
        push_handles_dropped: expired.len() as u64,
        ..Collected::default()
    };
    let writes = entries
        .iter()
        .map(records::wake_key)
        .map(records::remove)
        .collect();
    let mut found = Found::new(writes, Change::Wakes(entries), counts);
    found.batch.directory = expired
        .iter()
        .map(|(_, handle)| (handle_key(handle), None))
        .collect();
    Some(found)
}

/// The sealed bootstrap invite is not served any more (06 §10).
fn handoff(realm: &Realm, wall_ms: u64) -> Option<Found> {
    realm.handoff.as_ref().filter(|h| h.expires_ms <= wall_ms)?;
    let counts = Collected {
        handoffs_dropped: 1,
        ..Collected::default()
    };
    let writes = vec![records::remove(records::HANDOFF.to_vec())];
    Some(Found::new(writes, Change::Handoff, counts))
}

fn packages(realm: &Realm, wall_ms: u64) -> Option<Found> {
    let mut packages = Vec::new();
    let mut shelves = Vec::new();
    for (hash, shelf) in &realm.shelves {
        let expired = shelf.entries.iter().filter(|e| wall_ms >= e.expires_ms);
        let before = packages.len();
        packages.extend(expired.map(|e| (*hash, e.id)));
        if packages.len() > before {
            let mut shelf = shelf.clone();
            shelf.entries.retain(|e| wall_ms < e.expires_ms);
            shelves.push((*hash, shelf));
        }
        if packages.len() >= SWEPT_PER_COMMIT {
            break;
        }
    }
    if packages.is_empty() {
        return None;
    }
    let counts = Collected {
        key_packages_expired: packages.len() as u64,
        ..Collected::default()
    };
    let writes = shelves
        .iter()
        .map(|(hash, shelf)| shelf_write(hash, shelf))
        .collect();
    Some(Found::new(writes, Change::Shelves { shelves, packages }, counts))
}

/// Lapsed reservations give their seats back, never above what the invite has (06 §10).
fn seats(realm: &Realm, wall_ms: u64) -> Option<Found> {
    let lapsed = realm
        .seats
        .iter()
        .filter(|(_, seat)| !seat.consumed && !seat.released && seat.expires_ms <= wall_ms)
        .take(SWEPT_PER_COMMIT);
    let seats: Vec<((Token, Nonce), Seat)> = lapsed
        .map(|(key, seat)| {
            let seat = Seat {
                released: true,
                ..*seat
            };
            (*key, seat)
        })
        .collect();
    if seats.is_empty() {
        return None;
    }
    let mut invites: HashMap<Token, Invite> = HashMap::new();
    for ((token, _), _) in &seats {
        let Some(stored) = realm.invites.get(token) else {
            continue;
        };
        if stored.state == InviteState::Live {
            let invite = invites.entry(*token).or_insert_with(|| stored.clone());
            invite.remaining = invite.uses.min(invite.remaining.saturating_add(1));
        }
    }
    let counts = Collected {
        invite_seats_released: seats.len() as u64,
        ..Collected::default()
    };
    let mut writes: Vec<Write> = (seats.iter())
        .map(|((token, nonce), seat)| records::put(records::seat_key(token, nonce), seat))
        .collect();
    writes.extend(
        invites
            .iter()
            .map(|(token, invite)| records::put(records::invite_key(token), invite)),
    );
    Some(Found::new(writes, Change::Seats { seats, invites }, counts))
}

/// Live invites past their end are spent; what was earned by them stays.
fn invites(realm: &Realm, wall_ms: u64) -> Option<Found> {
    let ended = realm
        .invites
        .iter()
        .filter(|(_, invite)| invite.state == InviteState::Live && invite.expires_ms <= wall_ms)
        .take(SWEPT_PER_COMMIT);
    let spent: Vec<(Token, Invite)> = ended
        .map(|(token, invite)| {
            let invite = Invite {
                state: InviteState::Spent,
                record: Vec::new(),
                refreshed: Vec::new(),
                ..invite.clone()
            };
            (*token, invite)
        })
        .collect();
    if spent.is_empty() {
        return None;
    }
    let counts = Collected {
        invites_expired: spent.len() as u64,
        ..Collected::default()
    };
    let writes = spent
        .iter()
        .map(|(token, invite)| records::put(records::invite_key(token), invite));
    Some(Found::new(writes.collect(), Change::Invites(spent), counts))
}

/// Revoked and spent invites past their end, none of whose devices has a live grant: nothing is decided by them any more
/// (06 D10), and their tokens are free. The relay's own first invite stays with its genesis record.
fn tombstones(realm: &Realm, wall_ms: u64) -> Option<Found> {
    let mut needed: HashSet<Token> = HashSet::new();
    for ((token, _), seat) in &realm.seats {
        let grant = realm.grants.get(&EntryHash(seat.device_hash));
        if grant.is_some_and(|grant| grant.is_live(wall_ms)) {
            needed.insert(*token);
        }
    }
    let over = |invite: &Invite| {
        invite.state != InviteState::Live && !invite.bootstrap && invite.expires_ms <= wall_ms
    };
    let tokens: HashSet<Token> = realm
        .invites
        .iter()
        .filter(|(token, invite)| over(invite) && !needed.contains(*token))
        .map(|(token, _)| *token)
        .take(SWEPT_PER_COMMIT)
        .collect();
    if tokens.is_empty() {
        return None;
    }
    let mut keys: Vec<Vec<u8>> = tokens.iter().map(records::invite_key).collect();
    let seats = realm.seats.keys().filter(|(token, _)| tokens.contains(token));
    keys.extend(seats.map(|(token, nonce)| records::seat_key(token, nonce)));
    let commits = realm
        .commits
        .iter()
        .filter(|(token, _, _)| tokens.contains(token));
    keys.extend(commits.map(|(token, nonce, group)| records::commit_key(token, nonce, group)));
    let attempts = realm.attempts.keys().filter(|(token, _)| tokens.contains(token));
    keys.extend(attempts.map(|(token, source)| records::attempt_key(token, source)));
    let writes = keys.into_iter().map(records::remove).collect();
    let directory = tokens.iter().map(|token| {
        let key = DirectoryKey {
            kind: DirectoryKind::Token,
            name: token.0.to_vec(),
        };
        (key, None)
    });
    let directory = directory.collect();
    let mut found = Found::new(writes, Change::Tombstones(tokens), Collected::default());
    found.batch.directory = directory;
    Some(found)
}

fn attempts(realm: &Realm, wall_ms: u64) -> Option<Found> {
    let idle: Vec<(Token, [u8; 32])> = realm
        .attempts
        .iter()
        .filter(|(_, attempt)| !attempt.is_live(wall_ms))
        .map(|(key, _)| *key)
        .take(SWEPT_PER_COMMIT)
        .collect();
    if idle.is_empty() {
        return None;
    }
    let keys = idle
        .iter()
        .map(|(token, source)| records::attempt_key(token, source));
    let writes = keys.map(records::remove).collect();
    Some(Found::new(writes, Change::Attempts(idle), Collected::default()))
}

/// What a step finds in a partition that was read whole, in commits of a bounded size.
///
/// # Errors
/// [`StoreError::Damaged`] if a record can't be read.
pub(super) fn in_partition(
    realm: &Realm,
    step: Sweep,
    stored: &[(Vec<u8>, Bytes)],
    in_use: &HashSet<(Hash, u64)>,
    wall_ms: u64,
) -> Result<VecDeque<Found>, StoreError> {
    let mut writes = Vec::new();
    match step {
        Sweep::Wraps => {
            for (key, value) in stored {
                // Only looked at: most slots stay as they are.
                if !records::get::<records::PriorExpiry>(value)?.is_over(wall_ms) {
                    continue;
                }
                let slot: WrapSlot = records::get(value)?;
                writes.push(records::put(key.clone(), &WrapSlot { prior: None, ..slot }));
            }
        }
        Sweep::Strays => {
            for (key, _) in stored {
                let (shelf, id) = split_package_key(key).ok_or(StoreError::Damaged)?;
                let listed = realm
                    .shelves
                    .get(&shelf)
                    .is_some_and(|s| s.entries.iter().any(|e| e.id == id));
                if !listed && !in_use.contains(&(shelf, id)) {
                    writes.push(records::remove(package_key(&shelf, id)));
                }
            }
        }
        _ => {}
    }
    let partition = whole_partition(step, &realm.id);
    let mut found = VecDeque::new();
    let mut writes = writes.into_iter().peekable();
    while writes.peek().is_some() {
        let (mut part, mut bytes) = (Vec::new(), 0);
        while part.len() < SWEPT_PER_COMMIT
            && bytes < SWEPT_BYTES_PER_COMMIT
            && let Some(write) = writes.next()
        {
            bytes += write.value.as_ref().map_or(0, Bytes::len);
            part.push(write);
        }
        let counts = Collected {
            recovery_wraps_dropped: if step == Sweep::Wraps {
                part.len() as u64
            } else {
                0
            },
            ..Collected::default()
        };
        found.push_back(Found {
            partition: partition.clone(),
            ..Found::new(part, Change::Nothing, counts)
        });
    }
    Ok(found)
}
