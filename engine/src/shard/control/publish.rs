//! ACCESS: the state query and the publication of a set (05 §5, §7, §9).

use super::{Answered, Op, Origin, Request, Shard, Step};
use crate::chain::{Acceptance, GenesisGate, Head, Probation, Rotation};
use crate::effects::{Effects, StoreRequest};
use crate::event::ConnId;
use crate::limits::ACCESS_PER_MINUTE;
use crate::realm::Realm;
use crate::records::{self, Grant, InviteState, Transparency, VoidReason};
use crate::shard::Pending;
use crate::shard::admission::group_key;
use crate::shard::wake::handle_key;
use crate::wake::WakeHandle;
use bytes::Bytes;
use drover_storage::RealmId;
use drover_storage::control::{Check, ControlBatch, Write};
use drover_wire::access::{AccessSet, AccessState};
use drover_wire::cbor::Writer;
use drover_wire::error::{Code, Refusal};
use drover_wire::id::{EntryHash, GroupId, Hash, Nonce, Token};

/// A publication in line.
#[derive(Debug)]
pub(crate) struct Publication {
    pub(crate) origin: Origin,
    body: Bytes,
    set: AccessSet,
    groups: Box<[GroupId]>,
}

/// A publication that was judged acceptable.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) publication: Publication,
    acceptance: Acceptance,
    /// Groups being claimed for the founder.
    claiming: Vec<GroupId>,
}

/// A publication on its way to the store, with everything its commit changes: what is written is what is applied,
/// however long the store takes.
#[derive(Debug)]
pub(crate) struct Committing {
    pub(crate) publication: Publication,
    acceptance: Acceptance,
    changes: Changes,
    /// When it was decided: rotations and redemption are dated by this.
    wall_ms: u64,
}

/// The answer to a state query: salt and head, nothing else (05 §5.1).
pub(super) fn state(realm: &Realm) -> Vec<u8> {
    let head = realm.chain.head.as_ref().map(|h| (h.set.version, h.digest));
    AccessState {
        salt: realm.salt,
        head,
    }
    .encode()
}

/// What acceptance changes beside the chain itself; computed once, written and then applied.
#[derive(Debug)]
struct Changes {
    grants: Vec<(EntryHash, Grant)>,
    probations: Vec<(drover_wire::id::PublicKey, Probation)>,
    /// The founder's seat, consumed.
    seat: Option<(Token, Nonce)>,
    /// What the transparency log gains, in order.
    transparency: Vec<Transparency>,
    /// Wake registrations of those removed.
    wakes: Vec<(EntryHash, WakeHandle)>,
}

impl Shard {
    pub(in crate::shard) fn access<E: Effects>(
        &mut self,
        conn: ConnId,
        body: &[u8],
        message: &Bytes,
        fx: &mut E,
    ) {
        if let Err(refusal) = self.begin_access(conn, body, message, fx) {
            self.refuse(conn, refusal, fx);
        }
    }

    fn begin_access<E: Effects>(
        &mut self,
        conn: ConnId,
        body: &[u8],
        message: &Bytes,
        fx: &mut E,
    ) -> Result<(), Refusal> {
        if !body.is_empty() && self.config.read_only {
            return Err(Code::ServiceReadOnly.into());
        }
        // A founder whose reservation lapsed is told so by the judge (D4); a guest's socket ends (D11).
        if !body.is_empty() && self.is_founded(conn) && self.has_lapsed(conn) {
            self.evict(conn, fx);
            return Ok(());
        }
        self.charge_frame(conn, |b| &mut b.access, ACCESS_PER_MINUTE)?;
        if self.waits_its_turn(conn, message) {
            return Ok(());
        }
        let set = if body.is_empty() {
            None
        } else {
            Some(AccessSet::decode(body)?)
        };
        let target = self.access_target(conn, set.as_ref()).ok_or(Code::GroupUnknown)?;
        let groups = self.session(conn).map(|s| s.named.clone()).unwrap_or_default();
        let request = match set {
            None => Request::Query,
            Some(_) => Request::Publish {
                body: message.slice_ref(body),
                groups,
            },
        };
        self.request(conn, &target, request, fx);
        Ok(())
    }

    fn is_founded(&mut self, conn: ConnId) -> bool {
        let bound = self.session(conn).and_then(|s| s.realm);
        bound
            .and_then(|slot| self.realm_mut(slot))
            .is_some_and(|realm| realm.chain.head.is_some())
    }

    /// The workspace a query or publication is about (05 §5.1, §6.3).
    fn access_target(&mut self, conn: ConnId, set: Option<&AccessSet>) -> Option<RealmId> {
        let wall_ms = self.now.wall_ms;
        let session = self.session(conn)?;
        let (bound, device, named) = (session.realm, session.device, session.named.clone());
        if let Some(slot) = bound {
            return Some(self.realms[slot as usize].id.clone());
        }
        self.directory
            .owners(&named)
            .into_iter()
            .next()
            .or_else(|| match set {
                None => self.directory.founding(&device?, wall_ms),
                Some(set) if set.authorizers.len() == 1 => {
                    self.directory.founding(&set.authorizers[0], wall_ms)
                }
                Some(_) => None,
            })
    }

    pub(super) fn enqueue_publication<E: Effects>(
        &mut self,
        slot: u32,
        origin: Origin,
        body: Bytes,
        groups: Box<[GroupId]>,
        fx: &mut E,
    ) {
        match AccessSet::decode(&body) {
            Ok(set) => self.enqueue(
                slot,
                Op::Publish(Box::new(Publication {
                    origin,
                    body,
                    set,
                    groups,
                })),
                fx,
            ),
            Err(code) => self.send_answer(origin, Err(code.into()), fx),
        }
    }

    pub(super) fn start_publication<E: Effects>(&mut self, slot: u32, publication: Publication, fx: &mut E) {
        let acceptance = match self.judge_publication(slot, &publication.set) {
            Ok(acceptance) => acceptance,
            Err(refusal) => return self.send_answer(publication.origin, Err(refusal), fx),
        };
        let Some(realm) = self.realm_mut(slot) else { return };
        let genesis = realm.chain.head.is_none();
        let id = realm.id.clone();
        let claiming = if genesis {
            self.unclaimed(&publication.groups, slot)
        } else {
            Vec::new()
        };
        let judged = Box::new(Judged {
            publication,
            acceptance,
            claiming,
        });
        if judged.claiming.is_empty() {
            return self.commit_publication(slot, judged, fx);
        }
        // A founder's groups exist before the set that opens them: a crash between the two leaves claims of a
        // workspace nobody has founded, which the next attempt finds its own (05 D17).
        if let Some(realm) = self.realm_mut(slot) {
            realm.busy = true;
        }
        let keys = judged.claiming.iter().map(group_key).collect();
        let ticket = self.ticket(Pending::Control {
            realm: slot,
            step: Step::Claim(judged),
        });
        fx.store(ticket, StoreRequest::Claim(id, keys));
    }

    pub(super) fn founding_groups_claimed<E: Effects>(
        &mut self,
        slot: u32,
        judged: Box<Judged>,
        owners: &[RealmId],
        fx: &mut E,
    ) {
        for (group, owner) in judged.claiming.iter().zip(owners) {
            self.directory.claimed_group(*group, owner);
        }
        // The seat may have lapsed meanwhile: what is committed is judged at the moment it is dated.
        match self.judge_publication(slot, &judged.publication.set) {
            Ok(acceptance) => {
                let judged = Judged {
                    acceptance,
                    ..*judged
                };
                self.commit_publication(slot, Box::new(judged), fx);
            }
            Err(refusal) => self.send_answer(judged.publication.origin, Err(refusal), fx),
        }
    }

    fn judge_publication(&mut self, slot: u32, set: &AccessSet) -> Result<Acceptance, Refusal> {
        let wall_ms = self.now.wall_ms;
        let realm = self.realm_mut(slot).ok_or(Code::Backpressure)?;
        let seats: Vec<(EntryHash, u64)> = realm.founders(wall_ms).collect();
        let gate = realm.is_unspent().then_some(GenesisGate { reservations: &seats });
        realm.chain.judge(set, &realm.salt, wall_ms, gate)
    }

    fn commit_publication<E: Effects>(&mut self, slot: u32, judged: Box<Judged>, fx: &mut E) {
        let wall_ms = self.now.wall_ms;
        let Some(realm) = self.realm_mut(slot) else { return };
        let changes = changes(realm, &judged, wall_ms);
        let Judged {
            publication,
            acceptance,
            ..
        } = *judged;
        let committing = Box::new(Committing {
            publication,
            acceptance,
            changes,
            wall_ms,
        });
        let batch = batch(realm, &committing);
        self.commit(slot, batch, Step::Publish(committing), fx);
    }

    /// The set is durable: memory follows, the publisher is answered, then the removed are cut off (decisions.md 14).
    pub(super) fn published<E: Effects>(&mut self, slot: u32, committing: Committing, fx: &mut E) {
        let Some(realm) = self.realm_mut(slot) else { return };
        let Committing {
            publication,
            acceptance,
            changes,
            wall_ms,
        } = committing;
        realm.grants.extend(changes.grants);
        for (entry, _) in &changes.wakes {
            realm.wakes.remove(entry);
        }
        realm.wakes.stir();
        realm.chain.probations.extend(changes.probations);
        if let Some(rotation) = &acceptance.rotation {
            // The lineage rests under both keys: a later set may list the spent one again (D15).
            realm.chain.rotations.insert(rotation.spent, wall_ms);
            realm.chain.rotations.insert(rotation.successor, wall_ms);
        }
        if let Some((token, nonce)) = changes.seat {
            if let Some(seat) = realm.seats.get_mut(&(token, nonce)) {
                seat.consumed = true;
            }
            if let Some(invite) = realm.invites.get_mut(&token) {
                (invite.state, invite.remaining) = (InviteState::Spent, 0);
            }
            if let Some(genesis) = &mut realm.genesis {
                genesis.redeemed_ms = Some(wall_ms);
            }
            realm.handoff = None;
        }
        for entry in changes.transparency {
            realm.transparency = (realm.transparency.0 + 1, Hash(entry.entry_hash));
        }
        realm.chain.head = Some(Head::new(publication.set));
        let mut evicted: Vec<ConnId> = Vec::new();
        for entry in &acceptance.removed {
            evicted.extend(realm.registry.get(entry).into_iter().flatten());
        }
        self.note_founders(slot);
        self.send_answer(
            publication.origin,
            Ok(Answered::Access(acceptance.digest.0.to_vec())),
            fx,
        );
        for conn in evicted {
            self.evict_or_answer(conn, publication.origin, fx);
        }
    }
}

/// The effects of 05 §9 on everything but the chain.
fn changes(realm: &Realm, judged: &Judged, wall_ms: u64) -> Changes {
    let (set, acceptance) = (&judged.publication.set, &judged.acceptance);
    let mut grants = Vec::new();
    for (hash, grant) in realm.grants.iter().filter(|(_, g)| g.voided.is_none()) {
        let listed = set.entries.binary_search(hash).is_ok();
        if listed && grant.seen_version.is_none() {
            grants.push((
                *hash,
                Grant {
                    seen_version: Some(set.version),
                    ..*grant
                },
            ));
        } else if !listed && (grant.seen_version.is_some() || acceptance.removed.contains(hash)) {
            grants.push((
                *hash,
                Grant {
                    voided: Some(VoidReason::Superseded),
                    ..*grant
                },
            )); // D9
        }
    }
    let mut probations = Vec::new();
    if let Some(rotation) = &acceptance.rotation {
        probations.push((
            rotation.device,
            Probation {
                introduced_version: set.version,
                pinned: set.pending.clone(),
                cleared_version: None,
            },
        ));
    }
    for device in &acceptance.cleared {
        if let Some(probation) = realm.chain.probations.get(device) {
            probations.push((
                *device,
                Probation {
                    cleared_version: Some(set.version),
                    ..probation.clone()
                },
            ));
        }
    }
    let genesis = realm.genesis.as_ref().filter(|_| acceptance.founder.is_some());
    let seat = genesis.and_then(|genesis| {
        let token = Token(genesis.token);
        realm
            .seats
            .iter()
            .find(|((t, _), s)| {
                *t == token && s.is_running(wall_ms) && Some(EntryHash(s.device_hash)) == acceptance.founder
            })
            .map(|(key, _)| *key)
    });
    let transparency = transparency(realm, judged, genesis, wall_ms);
    let removed = acceptance.removed.iter();
    let wakes = removed.filter_map(|entry| Some((*entry, WakeHandle(realm.wakes.get(entry)?.handle))));
    Changes {
        wakes: wakes.collect(),
        grants,
        probations,
        seat,
        transparency,
    }
}

/// What the transparency log gains: the genesis, a rotation, the end of probations, removals (05 §13, D13,
/// decisions.md 38). A rotation says itself whose entry it removes.
fn transparency(
    realm: &Realm,
    judged: &Judged,
    genesis: Option<&records::Genesis>,
    wall_ms: u64,
) -> Vec<Transparency> {
    let (set, acceptance) = (&judged.publication.set, &judged.acceptance);
    let mut log: Vec<(&str, Vec<u8>)> = Vec::new();
    if let Some(genesis) = genesis {
        let fingerprint = crate::bootstrap::genesis_fingerprint(&genesis.public_key);
        let founder = acceptance.founder.map_or([0; 32], |e| e.0);
        let mut body = Vec::new();
        let mut w = Writer::new(&mut body);
        w.array(4).bytes(genesis.public_key).bytes(fingerprint);
        w.bytes(set.signer).bytes(founder);
        log.push(("genesis", body));
    }
    let mut note = |kind, concerned: &[[u8; 32]]| {
        let mut body = Vec::new();
        let mut w = Writer::new(&mut body);
        w.array(1 + concerned.len()).uint(set.version);
        for name in concerned {
            w.bytes(name);
        }
        log.push((kind, body));
    };
    if let Some(rotation) = &acceptance.rotation {
        let Rotation {
            spent,
            successor,
            device,
        } = rotation;
        note("recovery", &[spent.0, successor.0, device.0]);
    } else if !acceptance.removed.is_empty() {
        note(
            "removal",
            &acceptance.removed.iter().map(|e| e.0).collect::<Vec<_>>(),
        );
    }
    if !acceptance.cleared.is_empty() {
        let cleared: Vec<_> = acceptance.cleared.iter().map(|key| key.0).collect();
        note("probation_cleared", &cleared);
    }
    let mut prev_hash = realm.transparency.1.0;
    log.into_iter()
        .map(|(kind, body)| {
            let entry_hash = Hash::of(&[&prev_hash, &body]).0;
            let entry = Transparency {
                kind: kind.to_owned(),
                body,
                prev_hash,
                entry_hash,
                recorded_ms: wall_ms,
            };
            prev_hash = entry_hash;
            entry
        })
        .collect()
}

fn batch(realm: &Realm, committing: &Committing) -> ControlBatch {
    let Committing {
        publication,
        acceptance,
        changes,
        wall_ms,
    } = committing;
    let (set, wall_ms) = (&publication.set, *wall_ms);
    let head = |version: u64| Bytes::copy_from_slice(&version.to_be_bytes());
    let cas = match &realm.chain.head {
        None => Check::Absent(records::HEAD.to_vec()),
        Some(prior) => Check::Equals(records::HEAD.to_vec(), head(prior.set.version)),
    };
    let mut writes = vec![
        records::put_raw(records::HEAD.to_vec(), head(set.version)),
        records::put_raw(
            records::key(records::SET, &[&set.version.to_be_bytes()]),
            publication.body.clone(),
        ),
    ];
    writes.extend(
        changes
            .grants
            .iter()
            .map(|(hash, grant)| records::put(records::grant_key(hash), grant)),
    );
    for (device, probation) in &changes.probations {
        let stored = records::Probation {
            introduced_version: probation.introduced_version,
            pinned: probation.pinned.iter().flat_map(|e| e.0).collect(),
            cleared_version: probation.cleared_version,
        };
        writes.push(records::put(records::probation_key(device), &stored));
    }
    if let Some(rotation) = &acceptance.rotation {
        let at = Bytes::copy_from_slice(&wall_ms.to_be_bytes());
        for key in [&rotation.spent, &rotation.successor] {
            writes.push(records::put_raw(records::rotation_key(key), at.clone()));
        }
    }
    if let Some((token, nonce)) = changes.seat {
        writes.extend(consume(realm, &token, &nonce, wall_ms));
    }
    for (seq, entry) in (realm.transparency.0..).zip(&changes.transparency) {
        writes.push(records::put(
            records::key(records::TRANSPARENCY, &[&seq.to_be_bytes()]),
            entry,
        ));
    }
    let wakes = changes.wakes.iter();
    writes.extend(
        wakes
            .clone()
            .map(|(entry, _)| records::remove(records::wake_key(entry))),
    );
    ControlBatch {
        checks: vec![cas],
        writes,
        directory: wakes.map(|(_, handle)| (handle_key(handle), None)).collect(),
    }
}

/// Genesis consumption (06 §13): the seat is used, the invite spent, the key redeemed, the sealed handoff deleted.
fn consume(realm: &Realm, token: &Token, nonce: &Nonce, wall_ms: u64) -> Vec<Write> {
    let mut writes = Vec::new();
    if let Some(seat) = realm.seats.get(&(*token, *nonce)) {
        writes.push(records::put(
            records::seat_key(token, nonce),
            &records::Seat {
                consumed: true,
                ..*seat
            },
        ));
    }
    if let Some(invite) = realm.invites.get(token) {
        let spent = records::Invite {
            state: InviteState::Spent,
            remaining: 0,
            ..invite.clone()
        };
        writes.push(records::put(records::invite_key(token), &spent));
    }
    if let Some(genesis) = &realm.genesis {
        let redeemed = records::Genesis {
            redeemed_ms: Some(wall_ms),
            ..genesis.clone()
        };
        writes.push(records::put(records::GENESIS.to_vec(), &redeemed));
    }
    if realm.handoff.is_some() {
        writes.push(records::remove(records::HANDOFF.to_vec()));
    }
    writes
}
