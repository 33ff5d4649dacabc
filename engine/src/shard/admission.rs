//! CONNECT and AUTH: the challenge, the double admission read, and the one move to the realm's shard (02 §4, §5).

use super::{Pending, Posted, Shard, ShardMessage, Verdict, Waiter};
use crate::directory::Directory;
use crate::effects::{CloseReason, Effects, StoreRequest};
use crate::event::ConnId;
use crate::limits::{GROUPS_PER_CONNECTION, GROUPS_PER_WORKSPACE, PROVISIONAL_CHECK_MS};
use crate::message;
use crate::realm::Admission;
use crate::session::{Judging, State, Waiting};
use drover_storage::control::{DirectoryKey, DirectoryKind};
use drover_storage::{RealmId, StoreError};
use drover_wire::access::verify;
use drover_wire::error::{Code, Refusal};
use drover_wire::frame::{Frame, List32, PROTOCOL_VERSION};
use drover_wire::id::{EntryHash, GroupId, PublicKey, Signature};
use drover_wire::map::{AuthState, MapFrame, WriteMode};

impl Shard {
    pub(super) fn connect<E: Effects>(
        &mut self,
        conn: ConnId,
        version: u16,
        groups: List32<'_>,
        map: bool,
        fx: &mut E,
    ) {
        if groups.len() > GROUPS_PER_CONNECTION {
            let refusal = Refusal::number(Code::RateLimited, GROUPS_PER_CONNECTION as u64);
            return self.fail(conn, refusal, CloseReason::Protocol, fx);
        }
        let selected = version.min(PROTOCOL_VERSION);
        let named: Box<[GroupId]> = groups.iter().map(|g| GroupId(*g)).collect();
        let challenge = self.challenge(selected, &named);
        let Some(session) = self.session(conn) else { return };
        session.state = State::Challenged;
        session.version = selected;
        session.named = named;
        session.challenge = Some(Box::new(challenge));
        session.map = map;
        let min_enc = u8::from(self.config.min_enc_mls);
        if map {
            let (groups, state) = (List32::default(), self.auth_state(0));
            self.reply(
                conn,
                message::map_frame(
                    &MapFrame::Connect {
                        version: selected,
                        groups,
                    },
                    0,
                ),
                fx,
            );
            let challenge = MapFrame::Auth {
                key: &challenge,
                state,
            };
            return self.reply(conn, message::map_frame(&challenge, 0), fx);
        }
        let ack = Frame::ConnectAck {
            version: selected,
            server_time_ms: self.now.wall_ms,
            min_enc,
        };
        self.reply(conn, message::frame(&ack), fx);
        self.reply(
            conn,
            message::frame(&Frame::AuthChallenge {
                challenge: &challenge,
            }),
            fx,
        );
    }

    /// What the map form says of relay and device before and after the proof.
    fn auth_state(&self, key_packages_remaining: u32) -> AuthState<'static> {
        let write_mode = if self.config.read_only {
            WriteMode::ReadOnly {
                reason: Some(Code::ServiceReadOnly.as_str()),
            }
        } else {
            WriteMode::Full
        };
        AuthState {
            relay_time_ms: self.now.wall_ms,
            key_packages_remaining,
            write_mode,
            min_enc: u8::from(self.config.min_enc_mls),
        }
    }

    /// 02 §4; the selected version is covered as well (02 decision 8), which only the relay can tell.
    fn challenge(&self, version: u16, groups: &[GroupId]) -> [u8; 32] {
        let (secret, nonce) = self.challenges.next();
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(b"weald relay challenge v1")
            .update(secret)
            .update(&nonce.to_be_bytes());
        hasher
            .update(&self.now.wall_ms.to_be_bytes())
            .update(&version.to_be_bytes());
        for group in groups {
            hasher.update(&group.0);
        }
        *hasher.finalize().as_bytes()
    }

    pub(super) fn auth<E: Effects>(
        &mut self,
        conn: ConnId,
        device: PublicKey,
        signature: &Signature,
        fx: &mut E,
    ) {
        let Some(session) = self.session(conn) else { return };
        let challenge = session.challenge.take();
        let named = session.named.clone();
        if !challenge.is_some_and(|c| verify(&device, &c[..], signature)) {
            return self.refuse_auth(conn, Code::WriterNotInAccessSet, fx);
        }
        session.device = Some(device);
        if !self.config.access_set {
            // Any key may connect, bound to no workspace (05 D12).
            if let Some(session) = self.session(conn) {
                session.entry = Some(EntryHash(*blake3::hash(&device.0).as_bytes()));
            }
            return self.become_ready(conn, State::Ready, fx);
        }
        let mut candidates = self.directory.owners(&named);
        if candidates.is_empty() {
            candidates.extend(self.directory.founding(&device, self.now.wall_ms));
        }
        if candidates.is_empty() {
            return self.refuse_auth(conn, Code::GroupUnknown, fx);
        }
        if let Some(session) = self.session(conn) {
            session.state = State::Judging;
            session.judging = Some(Box::new(Judging {
                device,
                candidates: candidates.into(),
                first: None,
                is_unsure: false,
                chosen: None,
                claimed: false,
            }));
        }
        self.ask_next(conn, fx);
    }

    fn refuse_auth<E: Effects>(&mut self, conn: ConnId, code: Code, fx: &mut E) {
        self.fail(conn, code.into(), CloseReason::Protocol, fx);
    }

    /// Asks the next candidate, wherever its shard is.
    fn ask_next<E: Effects>(&mut self, conn: ConnId, fx: &mut E) {
        let Some(judging) = self.session(conn).and_then(|s| s.judging.as_mut()) else {
            return;
        };
        let device = judging.device;
        if let Some(realm) = judging.candidates.pop_front() {
            let shard = Directory::shard_of(&realm, self.config.shards);
            if shard == self.index {
                self.when_loaded(
                    &realm,
                    Waiter::Ask {
                        from: shard,
                        conn,
                        device,
                    },
                    fx,
                );
            } else {
                fx.post(
                    shard,
                    ShardMessage(Posted::Ask {
                        from: self.index,
                        conn,
                        realm,
                        device,
                    }),
                );
            }
            return;
        }
        // Nobody admits: the first candidate decides how that is said (05 §6.2 b, f).
        // Unless one of them could not be asked: it might have admitted.
        let is_unsure = judging.is_unsure;
        match judging.first.take() {
            _ if is_unsure => self.refuse_auth(conn, Code::Backpressure, fx),
            Some((realm, Verdict::Judged(Admission::Founding, entry))) => self.choose(conn, realm, entry, fx),
            _ => self.refuse_auth(conn, Code::WriterNotInAccessSet, fx),
        }
    }

    pub(super) fn verdict<E: Effects>(&mut self, conn: ConnId, realm: RealmId, verdict: Verdict, fx: &mut E) {
        let Some(judging) = self.session(conn).and_then(|s| s.judging.as_mut()) else {
            return;
        };
        match verdict {
            Verdict::Judged(Admission::InSet | Admission::Provisional, entry) => {
                self.choose(conn, realm, entry, fx)
            }
            _ => {
                judging.is_unsure |= verdict == Verdict::StoreDown;
                if judging.first.is_none() {
                    judging.first = Some((realm, verdict));
                }
                self.ask_next(conn, fx);
            }
        }
    }

    /// The first read is done: the connection goes to the realm, where the second one is made.
    fn choose<E: Effects>(&mut self, conn: ConnId, realm: RealmId, entry: EntryHash, fx: &mut E) {
        let shard = Directory::shard_of(&realm, self.config.shards);
        if let Some(judging) = self.session(conn).and_then(|s| s.judging.as_mut()) {
            judging.chosen = Some((realm, entry));
        }
        if shard == self.index {
            self.finish_auth(conn, fx);
        } else if let Some(session) = self.take_session(conn) {
            fx.migrate(conn, shard, session);
        }
    }

    /// The second read, with everything that follows it, in one step of the realm's own shard: whichever side of it a
    /// removal commits on, either the read refuses or the registry closes the socket (02 §5).
    pub(super) fn finish_auth<E: Effects>(&mut self, conn: ConnId, fx: &mut E) {
        let Some(judging) = self.session(conn).and_then(|s| s.judging.as_ref()) else {
            return;
        };
        let (device, claimed) = (judging.device, judging.claimed);
        let Some((id, first_entry)) = judging.chosen.clone() else {
            return;
        };
        let slot = self.realm_slot(&id, fx);
        let wall_ms = self.now.wall_ms;
        let Some(realm) = self.realm_mut(slot) else {
            return self.when_loaded(&id, Waiter::Finish { conn }, fx);
        };
        let (admission, entry) = realm.admits(&device, wall_ms);
        if entry != first_entry || admission == Admission::Refused {
            return self.refuse_auth(conn, Code::WriterNotInAccessSet, fx);
        }
        if admission == Admission::InSet && !claimed {
            let unknown = self.unknown_groups(conn, slot);
            if !unknown.is_empty() {
                let keys = unknown.iter().map(group_key).collect();
                let ticket = self.ticket(Pending::Claim {
                    conn,
                    groups: unknown,
                });
                return fx.store(ticket, StoreRequest::Claim(id, keys));
            }
        }
        let Some(realm) = self.realm_mut(slot) else { return };
        let state = if admission == Admission::Founding {
            State::Bootstrapping
        } else {
            State::Ready
        };
        let device_slot = realm.device_slot(&device);
        realm.registry.entry(entry).or_default().push(conn);
        if let Some(session) = self.session(conn) {
            session.realm = Some(slot);
            session.entry = Some(entry);
            session.provisional = admission == Admission::Provisional;
            session.device_slot = device_slot;
            session.judging = None;
        }
        self.become_ready(conn, state, fx);
    }

    /// Groups named in CONNECT that nobody owns yet, as many as the workspace's ceiling allows (05 §10).
    pub(super) fn unknown_groups(&mut self, conn: ConnId, slot: u32) -> Vec<GroupId> {
        let named = self.session(conn).map(|s| s.named.clone()).unwrap_or_default();
        self.unclaimed(&named, slot)
    }

    /// Of these groups the ones without an owner, once each, within the workspace's ceiling.
    pub(super) fn unclaimed(&mut self, groups: &[GroupId], slot: u32) -> Vec<GroupId> {
        let id = self.realms[slot as usize].id.clone();
        let mut unknown: Vec<GroupId> = Vec::new();
        for group in groups {
            if self.directory.group(group).is_none() && !unknown.contains(group) {
                unknown.push(*group);
            }
        }
        let room = GROUPS_PER_WORKSPACE.saturating_sub(self.directory.group_count(&id));
        if unknown.len() > room {
            // Every AUTH that names one more comes here.
            let now_ms = self.now.mono_ms;
            if let Some(suppressed) = self
                .realm_mut(slot)
                .and_then(|realm| realm.groups_full.due(now_ms))
            {
                tracing::warn!(
                    rows = GROUPS_PER_WORKSPACE,
                    suppressed,
                    "a workspace has all the groups it may have"
                );
            }
            unknown.truncate(room);
        }
        unknown
    }

    pub(super) fn groups_claimed<E: Effects>(
        &mut self,
        conn: ConnId,
        groups: &[GroupId],
        owners: Result<Vec<RealmId>, StoreError>,
        fx: &mut E,
    ) {
        match owners {
            Ok(owners) => {
                for (group, owner) in groups.iter().zip(&owners) {
                    self.directory.claimed_group(*group, owner);
                }
                if let Some(judging) = self.session(conn).and_then(|s| s.judging.as_mut()) {
                    judging.claimed = true;
                    self.finish_auth(conn, fx);
                }
            }
            Err(_) => self.refuse_auth(conn, Code::Backpressure, fx),
        }
    }

    fn become_ready<E: Effects>(&mut self, conn: ConnId, state: State, fx: &mut E) {
        let now = self.now.mono_ms;
        let wall_ms = self.now.wall_ms;
        let Some(session) = self.session(conn) else { return };
        session.state = state;
        session.active_ms = now;
        let provisional = session.provisional;
        let shelf = session.realm.zip(session.device);
        let key_packages_remaining = shelf
            .and_then(|(slot, device)| self.realm_mut(slot)?.shelves.get(&super::keys::shelf_of(&device)))
            .map_or(0, |shelf| shelf.live(wall_ms) as u32);
        if state == State::Ready {
            self.metrics.ready.add(1);
        }
        self.arm(conn, now + self.config.idle_timeout_ms);
        if provisional {
            self.arm(conn, now + PROVISIONAL_CHECK_MS);
        }
        fx.authenticated(conn);
        let config = self.config.clone();
        let ack = Frame::AuthAck {
            key_packages_remaining,
            write_mode: u8::from(config.read_only),
            build_digest: config.build_digest.as_bytes(),
            access_set: u8::from(config.access_set),
            min_enc: u8::from(config.min_enc_mls),
        };
        let device = self.session(conn).filter(|s| s.map).and_then(|s| s.device);
        let out = match device {
            Some(device) => {
                let state = self.auth_state(key_packages_remaining);
                message::map_frame(
                    &MapFrame::Auth {
                        key: &device.0,
                        state,
                    },
                    0,
                )
            }
            None => message::frame(&ack),
        };
        self.reply(conn, out, fx);
        if self
            .session(conn)
            .is_some_and(|s| matches!(s.waiting, Waiting::Parked(_)))
        {
            self.retry.push(conn); // it came while AUTH was judged
        }
        self.update_flow(conn, fx);
    }
}

/// A group's name in the directory.
pub(super) fn group_key(group: &GroupId) -> DirectoryKey {
    DirectoryKey {
        kind: DirectoryKind::Group,
        name: group.0.to_vec(),
    }
}
