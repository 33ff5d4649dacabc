//! Keeps the retention chain of its workspace's groups, and lets go of what lies behind a checkpoint: a control, a
//! policy that the authorizers sign together, then DROP after DROP.

use super::{Ask, Kind, Notice, Session};
use crate::world::Outside;
use drover_wire::blob;
use drover_wire::drop::{Answer, Request};
use drover_wire::frame::Frame;
use drover_wire::id::{GroupId, Hash, Signature};
use drover_wire::retention::{Control, Policy};
use ed25519_dalek::SigningKey;
use std::collections::{BTreeMap, BTreeSet};

const UNSIGNED: Signature = Signature([0; 64]);

/// What it knows of one group.
#[derive(Default)]
struct Chain {
    begun: bool,
    has_policy: bool,
    /// The DROP that was asked for last.
    asked: Option<Request>,
}

/// See the module.
#[derive(Default)]
pub struct Keeper {
    chains: BTreeMap<GroupId, Chain>,
    waits: bool,
}

impl Keeper {
    fn begin(me: &mut Session, group: GroupId, key: &SigningKey, out: &mut Outside) {
        let control = Control {
            group,
            epoch: 0,
            verifier: me.identity.public(),
            prev: None,
            sig: UNSIGNED,
        };
        let payload = blob::Request::Control(control.signed(key)).encode();
        me.ask(&Frame::Blob { payload: &payload }, Ask::Begin(group), out);
    }

    /// A policy that is due at once needs more than one authorizer (08 §4); `false` if there is none to be had.
    fn policy(me: &mut Session, group: GroupId, out: &mut Outside) -> bool {
        let head = out.model.access[me.workspace].head();
        let authorizers = head.map(|set| set.authorizers.clone()).unwrap_or_default();
        if authorizers.len() < 2 {
            return false;
        }
        let mut policy = Policy {
            group,
            version: 1,
            media_after_days: 30,
            text_after_days: 0,
            not_before_s: 0,
            authorizers: authorizers.clone(),
            sigs: Vec::new(),
        };
        for key in authorizers.iter().filter_map(|device| out.key_of(device)) {
            policy = policy.signed(&key);
        }
        let payload = blob::Request::Policy(policy).encode();
        me.ask(&Frame::Blob { payload: &payload }, Ask::Policy(group), out);
        true
    }

    /// Everything below one of the envelopes it holds, save a few.
    fn let_go(me: &mut Session, group: GroupId, key: &SigningKey, out: &mut Outside) -> Option<Request> {
        let held: Vec<(u64, Hash)> = me
            .held
            .get(&group)?
            .envelopes
            .iter()
            .map(|(id, seq)| (*seq, *id))
            .collect();
        let (barrier, checkpoint) = *out.dice.pick(&held)?;
        let below: Vec<Hash> = held
            .iter()
            .filter(|(seq, _)| *seq < barrier)
            .map(|(_, id)| *id)
            .collect();
        let mut snapshots = BTreeSet::new();
        for _ in 0..out.dice.below(3) {
            snapshots.extend(out.dice.pick(&below));
        }
        let request = Request {
            group,
            checkpoint,
            snapshots: snapshots.into_iter().collect(),
            epoch: 0,
            policy_version: Some(1),
            destruction_digest: None,
            sig: UNSIGNED,
        }
        .signed(key);
        let payload = request.encode();
        me.ask(&Frame::Drop { payload: &payload }, Ask::Drop(group), out);
        Some(request)
    }
}

impl Kind for Keeper {
    fn act(&mut self, me: &mut Session, out: &mut Outside) {
        let Some(group) = out.dice.pick(&me.groups).copied().filter(|_| !self.waits) else {
            return;
        };
        let key = SigningKey::from_bytes(&me.identity.seed());
        let chain = self.chains.entry(group).or_default();
        self.waits = true;
        if !chain.begun {
            Self::begin(me, group, &key, out);
        } else if !chain.has_policy {
            self.waits = Self::policy(me, group, out);
        } else {
            chain.asked = Self::let_go(me, group, &key, out);
            self.waits = chain.asked.is_some();
        }
    }

    fn told(&mut self, notice: &Notice, me: &mut Session, out: &mut Outside) {
        let ask = match notice {
            Notice::Answered(ask, _) | Notice::Refused(ask, _) | Notice::Lost(ask) => *ask,
            Notice::Admitted => return,
        };
        let (Ask::Begin(group) | Ask::Policy(group) | Ask::Drop(group)) = ask else {
            return;
        };
        self.waits = false;
        let chain = self.chains.entry(group).or_default();
        let Notice::Answered(_, frame) = notice else {
            return;
        };
        match ask {
            Ask::Begin(_) => chain.begun = true,
            Ask::Policy(_) => chain.has_policy = true,
            _ => {
                let Ok(Frame::Drop { payload }) = Frame::decode(frame) else {
                    return;
                };
                if let (Ok(Answer::Ran { deleted, .. }), Some(request)) =
                    (Answer::decode(payload), chain.asked.take())
                {
                    out.coverage.add("DROPs", 1);
                    out.coverage.add("envelopes dropped", deleted);
                    out.model.dropped(&request, &me.name);
                }
            }
        }
    }

    fn is_busy(&self) -> bool {
        self.waits
    }
}
