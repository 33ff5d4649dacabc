//! The stages of a run: wild at first; then everything heals, and one thing after the other is settled and compared.

use super::{Line, World};
use crate::client::Client;

/// No run is longer than so many happenings.
const HAPPENINGS_MAX: u64 = 400_000;
/// It goes wild for no more than so many of them, and for two hours.
const WILD_MAX: u64 = 12_000;
/// See [`WILD_MAX`].
const WILD_US: u64 = 7_200_000_000;
/// No world takes longer than that to come to rest, once it is healed: three hours.
const REST_US: u64 = 10_800_000_000;

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Everything goes wrong.
    Wild,
    /// Nothing goes wrong any more; everybody finishes what they began.
    Healed,
    /// Everybody sends one more envelope in each group, so that whoever is owed a notice gets it: it comes before the
    /// next frame of the group (02 §9).
    Nudged,
    /// Everybody reconciles.
    Reconciling,
    /// Everybody may leave its calls.
    Parting,
    /// Everybody says a word in every call there may be.
    RollCall,
    /// All is compared.
    Over,
}

impl World {
    /// Lets things happen until every client rests.
    pub(super) fn until_rest(&mut self, stage: Stage) {
        let patience = self.out.now_us() + REST_US;
        while self.out.model.violation.is_none() && !self.rests(stage) {
            self.happened += 1;
            if self.happened > HAPPENINGS_MAX || self.out.now_us() > patience {
                let waits = self.clients.iter();
                let waits = waits.filter(|c| !c.rests || self.may_read(c) && !self.is_connected(c));
                let waits: Vec<_> = waits.map(|c| c.session.describe()).collect();
                return self.out.model.fail("the world comes to rest", || {
                    format!("{stage:?}: {}", waits.join("; "))
                });
            }
            if stage == Stage::Wild {
                self.misfortunes();
            }
            let Some(happening) = self.out.agenda.next() else {
                return self.out.model.fail("the world comes to rest", || {
                    format!("{stage:?}: nothing happens any more")
                });
            };
            self.out.clock.now_us = self.out.agenda.now_us();
            self.happen(happening);
            for line in crate::log::lines() {
                self.out.coverage.add("log lines", 1);
                self.out.model.logged(&line);
            }
            if let Some(broken) = self.out.model.calls.broken() {
                self.out.model.fail(broken.rule, || broken.what);
            }
            for complaint in self.out.store.complaints() {
                self.out.model.fail("the store's rules are kept", || complaint);
            }
        }
    }

    fn rests(&self, stage: Stage) -> bool {
        if stage == Stage::Wild {
            let founded = |access: &crate::model::Access| access.head().is_some();
            return self.happened > WILD_MAX
                || self.out.now_us() > WILD_US
                || self.out.model.access.iter().all(founded)
                    && self.clients.iter().all(|c| c.rests || !self.may_read(c));
        }
        let whole = |client: &Client| client.session.held.values().all(|held| held.whole);
        self.clients.iter().all(|client| {
            client.rests
                && (!self.may_read(client)
                    || self.is_connected(client) && (stage < Stage::Reconciling || whole(client)))
        }) && (stage < Stage::Parting || self.out.net.is_settled())
    }

    /// Whether the newest set lists it.
    pub(super) fn may_read(&self, client: &Client) -> bool {
        self.out.model.access[client.session.workspace].lists(&client.device())
    }

    /// Whether somebody else of its workspace was there to send it something.
    fn has_company(&self, at: usize) -> bool {
        let workspace = self.clients[at].session.workspace;
        let others = self
            .clients
            .iter()
            .enumerate()
            .filter(|(other, c)| *other != at && c.session.workspace == workspace && self.may_read(c));
        others.count() > 0
    }

    /// Whether both ends have the connection.
    pub(super) fn is_connected(&self, client: &Client) -> bool {
        let open = |line: Line| self.out.net.conns[line].is_open();
        client.session.line.is_some_and(open)
    }

    pub(super) fn next_stage(&mut self, stage: Stage) -> Stage {
        for client in 0..self.clients.len() {
            self.soon(client);
        }
        match stage {
            Stage::Wild => {
                self.out.heal();
                // What was acknowledged survives this one as it did all others.
                if self.shards.is_empty() {
                    self.start();
                } else {
                    self.crash(0);
                }
                self.clients.iter_mut().for_each(Client::heal);
                Stage::Healed
            }
            Stage::Healed => {
                for client in 0..self.clients.len() {
                    if self.may_read(&self.clients[client]) {
                        self.clients[client].nudge(&mut self.out);
                    }
                }
                Stage::Nudged
            }
            Stage::Nudged => {
                for at in 0..self.clients.len() {
                    if self.may_read(&self.clients[at]) && self.has_company(at) {
                        self.clients[at].session.settled(&mut self.out);
                    }
                    let client = &mut self.clients[at];
                    client.wants_whole = true;
                    client
                        .session
                        .held
                        .values_mut()
                        .for_each(|held| held.whole = false);
                }
                Stage::Reconciling
            }
            Stage::Reconciling => {
                self.clients.iter_mut().for_each(Client::part);
                Stage::Parting
            }
            Stage::Parting => {
                self.clients.iter_mut().for_each(Client::answer_the_roll);
                Stage::RollCall
            }
            Stage::RollCall | Stage::Over => {
                self.out.calls_settle();
                self.out.model.settle();
                for client in &self.clients {
                    if self.may_read(client) {
                        for (group, held) in &client.session.held {
                            let name = &client.session.name;
                            self.out.model.compare(name, *group, &held.envelopes);
                        }
                    }
                }
                Stage::Over
            }
        }
    }
}
