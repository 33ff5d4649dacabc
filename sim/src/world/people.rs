//! Who is there: drawn from the seed, a workspace after the other.

use super::Outside;
use crate::client::{Client, Kind, Session};
use crate::client::{
    admin, caller, founder, handshaker, joiner, keeper, live, reconciler, recovery, sender, sleeper, stocker,
    subscriber, wrapper,
};
use crate::codes;
use crate::plan::Feature;
use drover_client::Identity;
use drover_wire::id::{GroupId, Hash};
use ed25519_dalek::SigningKey;

/// The clients of all workspaces; their numbers are their places.
pub(super) fn draw(out: &mut Outside) -> Vec<Client> {
    let mut clients = Vec::new();
    for workspace in 0..out.plan.workspaces {
        let mut cast = Cast {
            workspace,
            groups: (0..out.plan.groups)
                .map(|n| GroupId(Hash::of(&[b"group", &[workspace as u8, n as u8]]).0))
                .collect(),
            clients: &mut clients,
            out,
        };
        cast.draw();
    }
    clients
}

struct Cast<'a> {
    workspace: usize,
    groups: Vec<GroupId>,
    clients: &'a mut Vec<Client>,
    out: &'a mut Outside,
}

impl Cast<'_> {
    fn draw(&mut self) {
        let plan = self.out.plan.clone();
        for group in &self.groups {
            self.out.model.hides(&group.0, 7);
            self.out.groups.insert(*group, self.workspace);
        }
        for number in 0..codes::TOKENS {
            self.out.model.hides(&codes::token(self.workspace, number).0, 6);
        }
        let founder = self.identity(0);
        let recovery = self.identity(100);
        let replacement = self.identity(101);
        let successor = self.identity(102);
        let members: Vec<Identity> = (0..plan.members).map(|n| self.identity(1 + n as u8)).collect();
        let keys = members.iter().map(Identity::public).collect();

        let nonce = self.out.dice.bytes();
        let mut kinds: Vec<Box<dyn Kind>> = vec![
            Box::new(founder::Founder::new(keys, recovery.public(), nonce)),
            Box::<admin::Admin>::default(),
        ];
        if self.out.dice.chance(0.6) {
            kinds.push(Box::<keeper::Keeper>::default());
        }
        kinds.extend(self.ordinary());
        self.add("founder", founder, kinds, plan.actions);
        for (n, member) in members.into_iter().enumerate() {
            let mut kinds = self.ordinary();
            if self.out.dice.chance(0.5) {
                kinds.push(Box::<admin::Admin>::default());
            }
            self.add(&format!("member {n}"), member, kinds, plan.actions);
        }
        for n in 0..plan.joiners {
            let identity = self.identity(50 + n as u8);
            let nonce = self.out.dice.bytes();
            let mut kinds: Vec<Box<dyn Kind>> = vec![Box::new(joiner::Joiner::new(nonce))];
            kinds.extend(self.ordinary());
            self.add(&format!("joiner {n}"), identity, kinds, plan.actions);
        }
        let spent = recovery::Recovery::new(replacement.public(), successor.public());
        self.add("recovery", recovery, vec![Box::new(spent)], plan.actions);
        let mut kinds = self.ordinary();
        kinds.push(Box::<admin::Admin>::default());
        self.add("replacement", replacement, kinds, plan.actions);
        let devices = self.out.who.iter().filter(|(w, _)| *w == self.workspace);
        self.out.model.access[self.workspace].devices = devices.map(|(_, device)| *device).collect();
    }

    fn identity(&self, number: u8) -> Identity {
        Identity::from_seed(&Hash::of(&[b"device", &[self.workspace as u8, number]]).0)
    }

    /// What an ordinary device does: one to three kinds of it.
    fn ordinary(&mut self) -> Vec<Box<dyn Kind>> {
        let dice = &mut self.out.dice;
        let mut kinds: Vec<Box<dyn Kind>> = Vec::new();
        if self.out.plan.has(Feature::Calls) && dice.chance(0.8) {
            kinds.push(Box::<caller::Caller>::default());
        }
        if self.out.plan.has(Feature::Keys) && dice.chance(0.5) {
            kinds.push(Box::<stocker::Stocker>::default());
        }
        if self.out.plan.has(Feature::Wraps) && dice.chance(0.4) {
            kinds.push(Box::<wrapper::Wrapper>::default());
        }
        if self.out.plan.has(Feature::Wakes) && dice.chance(0.5) {
            kinds.push(Box::<sleeper::Sleeper>::default());
        }
        for _ in 0..dice.between(1, 3) {
            kinds.push(match dice.below(10) {
                0..4 => Box::<sender::Sender>::default(),
                4..7 => Box::<subscriber::Subscriber>::default(),
                7 => Box::<reconciler::Reconciling>::default(),
                8 => Box::<handshaker::Handshaker>::default(),
                _ => Box::<live::Beating>::default(),
            });
        }
        kinds
    }

    fn add(&mut self, name: &str, identity: Identity, kinds: Vec<Box<dyn Kind>>, actions: u32) {
        let number = self.clients.len();
        self.out.who.push((self.workspace, identity.public()));
        self.out.model.hides(&identity.public().0, 6);
        self.out.keys.push(SigningKey::from_bytes(&identity.seed()));
        let name = format!("{name} of {}", self.workspace);
        let mut session = Session::new(
            number,
            name,
            self.workspace,
            identity,
            self.groups.clone(),
            self.out.plan.burst.max(16),
        );
        session.map = self.out.plan.has(Feature::Maps) && self.out.dice.chance(0.4);
        if self.out.dice.chance(0.05) {
            session.version = 2;
        }
        self.clients.push(Client::new(session, kinds, actions));
    }
}
