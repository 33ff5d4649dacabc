//! Rules its workspace: takes devices in and out, promotes and demotes, issues invites and ends them. Whoever is no
//! authorizer does nothing here; so a member becomes an admin by being promoted.

use super::founder::{dated, state_of};
use super::{Ask, Kind, Notice, Session};
use crate::codes;
use crate::world::Outside;
use drover_client::Workspace;
use drover_wire::access::AccessSet;
use drover_wire::frame::Frame;
use drover_wire::id::{GroupId, Hash, PublicKey, Signature, Token};
use drover_wire::invite::Record;
use drover_wire::invite_admin::Request;
use ed25519_dalek::SigningKey;

/// An invite's life, ms.
const INVITE_MS: u64 = 7 * 86_400_000;

/// See the module.
#[derive(Default)]
pub struct Admin {
    /// It waits for an answer.
    asked: bool,
    /// What became of a publication is not known: the relay is asked first.
    unsure: bool,
}

impl Admin {
    fn publish(&mut self, set: &AccessSet, me: &mut Session, out: &mut Outside) {
        out.model.access[me.workspace].proposed(set);
        self.asked = true;
        let body = set.encode();
        me.ask(&Frame::Access { body: &body }, Ask::Publish(set.digest()), out);
    }

    /// A successor of the head, changed in one way.
    fn next_set(&self, me: &Session, out: &mut Outside) -> Option<AccessSet> {
        let access = &out.model.access[me.workspace];
        let workspace = Workspace::new(access.salt?, access.head()?.clone());
        let all = access.devices.clone();
        let admins = workspace.head().authorizers.clone();
        let me_key = me.identity.public();
        let founder = all.first().copied();
        let recovery = &workspace.head().recovery;
        let (inside, outside): (Vec<PublicKey>, Vec<PublicKey>) =
            all.iter().copied().partition(|device| workspace.admits(device));
        let may_go: Vec<PublicKey> = inside
            .into_iter()
            .filter(|d| Some(*d) != founder && !recovery.contains(d))
            .collect();
        let mut draft = workspace.draft();
        // What authorizers sign together needs two of them.
        let alone = admins.len() < 2 && out.dice.chance(0.5);
        match if alone { 3 } else { out.dice.below(5) } {
            0 => draft.remove(out.dice.pick(&may_go)?),
            1 | 2 => draft.add(out.dice.pick(&outside)?),
            3 => draft.add_authorizer(out.dice.pick(&may_go).filter(|d| !admins.contains(d))?),
            _ => {
                let others: Vec<_> = admins
                    .into_iter()
                    .filter(|d| *d != me_key && Some(*d) != founder)
                    .collect();
                draft.remove_authorizer(out.dice.pick(&others)?)
            }
        };
        Some(dated(draft.sign(&me.identity).ok()?, &me.identity, out))
    }

    fn create(&mut self, me: &mut Session, out: &mut Outside) {
        let token = codes::token(me.workspace, out.dice.below(codes::TOKENS));
        let Some(code_hash) = codes::hash(&token) else {
            return;
        };
        let mut scopes = me.groups.clone();
        scopes.sort_unstable();
        let wall_ms = out.wall_ms();
        let record = Record {
            token,
            workspace: me.groups[0].0,
            issuer: me.identity.public(),
            issued_at_ms: wall_ms,
            expires_ms: wall_ms + INVITE_MS,
            uses: 1 + out.dice.below(2) as u8,
            code_hash: Hash(code_hash),
            bundles: scopes
                .iter()
                .map(|g: &GroupId| (*g, 1, b"sealed".to_vec()))
                .collect(),
            scopes,
            caps: vec![b"chat.read".to_vec(), b"chat.write".to_vec()],
            update_pub: [0x33; 32],
            sig: Signature([0; 64]),
        }
        .signed(&SigningKey::from_bytes(&me.identity.seed()));
        let body = Request::Create {
            record: &record.encode(),
        }
        .encode();
        self.asked = true;
        me.ask(&Frame::Invite { body: &body }, Ask::Create(token), out);
    }

    fn revoke(&mut self, token: &Token, me: &mut Session, out: &mut Outside) {
        let body = Request::Revoke { token: &token.0 }.encode();
        self.asked = true;
        me.ask(&Frame::Invite { body: &body }, Ask::Revoke(*token), out);
    }
}

impl Kind for Admin {
    fn act(&mut self, me: &mut Session, out: &mut Outside) {
        if self.asked {
            return;
        }
        if self.unsure {
            self.asked = true;
            return me.ask(&Frame::Access { body: b"" }, Ask::State, out);
        }
        let head = out.model.access[me.workspace].head();
        if !head.is_some_and(|set| set.authorizers.contains(&me.identity.public())) {
            return;
        }
        let open = out.invites[me.workspace].clone();
        match out.dice.below(4) {
            0 if open.is_empty() => self.create(me, out),
            0 => {
                if let Some(token) = out.dice.pick(&open).copied() {
                    self.revoke(&token, me, out);
                }
            }
            1 => self.create(me, out),
            _ => {
                if let Some(set) = self.next_set(me, out) {
                    self.publish(&set, me, out);
                }
            }
        }
    }

    fn told(&mut self, notice: &Notice, me: &mut Session, out: &mut Outside) {
        match notice {
            Notice::Answered(Ask::State, frame) => {
                (self.asked, self.unsure) = (false, state_of(frame).is_none());
            }
            Notice::Answered(Ask::Publish(_), _) => self.asked = false,
            Notice::Answered(Ask::Create(token), _) => {
                self.asked = false;
                if !out.invites[me.workspace].contains(token) {
                    out.invites[me.workspace].push(*token);
                }
            }
            Notice::Answered(Ask::Revoke(token), _) => {
                self.asked = false;
                out.invites[me.workspace].retain(|t| t != token);
            }
            Notice::Refused(Ask::Publish(_), _) | Notice::Lost(Ask::Publish(_)) => {
                (self.asked, self.unsure) = (false, true);
            }
            Notice::Refused(..) | Notice::Lost(_) => self.asked = false,
            Notice::Answered(..) | Notice::Admitted => {}
        }
    }

    fn heal(&mut self) {
        self.unsure = true;
    }

    fn is_busy(&self) -> bool {
        self.asked || self.unsure
    }
}
