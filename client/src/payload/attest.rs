//! Split views: members compare how far they have seen each author, and notice who should have spoken and did not.
//!
//! Time is cut into rounds of [`ATTEST_PERIOD_MS`]. A device attests on connect and once per round while connected, so
//! one that writes in two rounds running without attesting in either is being silenced. The expected attesters are the
//! device leaves of one's own ratchet tree; nothing a relay says makes them fewer. Agents never attest: the device that
//! issued one does, for it.
//!
//! | In a finished round | Warning |
//! | --- | --- |
//! | an attester and we still differ about an author, two rounds after we first did | [`Warning::Disagreement`] |
//! | a device, or an agent of its, wrote in this round and the one before, and it attested in neither | [`Warning::Silent`] |
//! | an agent wrote, its issuing device attested, and did not cover it | [`Warning::UnproxiedAgent`] |
//! | members write, and no peer has attested for 60 minutes | [`Warning::TotalSilence`] |
//! | a relay claims fewer attesters than there are | [`Warning::ShrunkenSet`] |
//! | a device neither writes nor attests; an agent is silent with its device | nothing: a shut laptop |
//!
//! Honest people must not set these off, or nobody heeds them. Hence two refinements: a device does not have to cover an
//! agent before that has written, and silence counts only once an envelope has come whose sender, being connected, must
//! have attested since anybody last did. A member that joined without the history is not warned about what it can't read.
//!
//! [`Monitor`] is told what arrives and the time, in milliseconds of a clock that never goes back.

use std::collections::{BTreeMap, BTreeSet};

use drover_wire::id::{Hash, PublicKey};

use super::chain::GroupChains;
use super::{GroupHeads, Kind, Payload};

/// How often a connected client attests, and the length of a round: 15 minutes.
pub const ATTEST_PERIOD_MS: u64 = 15 * 60 * 1000;
/// For how long nobody may attest while others write: 60 minutes.
pub const SILENCE_MS_MAX: u64 = 60 * 60 * 1000;
/// Rounds within which a disagreement has to resolve.
pub const DISAGREEMENT_ROUNDS_MAX: u64 = 2;

/// A split-view warning, for the encryption panel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// Two members have been shown different histories of an author. Names the relay and the author.
    Disagreement {
        /// Who attested to another history than ours.
        attester: PublicKey,
        /// Whose history it is.
        author: PublicKey,
    },
    /// Its envelopes, or those of agents it issued, arrive and its attestations do not. Names the device.
    Silent {
        /// The device.
        device: PublicKey,
    },
    /// An agent writes that its device does not answer for. Names both.
    UnproxiedAgent {
        /// The agent.
        agent: PublicKey,
        /// The device that issued it.
        issuer: PublicKey,
    },
    /// Envelopes arrive and no attestation at all. Names the relay.
    TotalSilence,
    /// The relay named fewer attesters than the ratchet tree has. Names the relay.
    ShrunkenSet {
        /// Devices it left out.
        omitted: BTreeSet<PublicKey>,
    },
}

/// How much of the expected set agrees with us.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// Device leaves, ourselves included.
    pub expected: usize,
    /// Those that attested in this round or the one before and agree; we agree with ourselves.
    pub agreeing: usize,
    /// Those that did not attest. No warning by itself.
    pub unheard: BTreeSet<PublicKey>,
    /// Those that attested to something else for longer than it takes to catch up.
    pub disagreeing: BTreeSet<PublicKey>,
}

/// What a finished round came to. A warning that stands is in every report until its cause is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// For the panel; empty is good.
    pub warnings: Vec<Warning>,
    /// For the panel's fraction.
    pub agreement: Agreement,
}

/// What one attester says about one author.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    /// A link we do not have, or have with other content.
    Differs { ctr: u64, hash: Hash },
    /// Less than we had, up to this count, when it first said so.
    Behind { ours: u64 },
    /// About an author we know nothing of, in a group whose history we cannot read.
    Unreadable { ctr: u64 },
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    claim: Claim,
    since: u64,
    /// The last round in which the attester repeated it.
    said: u64,
}

#[derive(Debug, Default)]
struct Round {
    /// Devices that wrote, themselves or by an agent.
    wrote: BTreeSet<PublicKey>,
    attested: BTreeSet<PublicKey>,
    /// Agents that wrote, with their issuers.
    agents: BTreeSet<(PublicKey, PublicKey)>,
    /// Agents known when their issuer attested, with their issuers.
    owed: BTreeSet<(PublicKey, PublicKey)>,
    /// Agents their issuer attested for.
    covered: BTreeSet<(PublicKey, PublicKey)>,
}

/// Watches one group for one device.
#[derive(Debug)]
pub struct Monitor {
    me: PublicKey,
    devices: BTreeSet<PublicKey>,
    /// Number of the current round.
    number: u64,
    started_ms: u64,
    now: Round,
    before: Round,
    /// Every agent that ever wrote, with its issuer.
    agents: BTreeSet<(PublicKey, PublicKey)>,
    pending: BTreeMap<(PublicKey, PublicKey), Pending>,
    /// When a peer last attested, or the start.
    heard_ms: u64,
    /// When a peer's envelope first arrived that its sender should have attested after `heard_ms` to send.
    unattested_ms: Option<u64>,
}

impl Monitor {
    /// Starts the first round. `devices` are the device leaves of our ratchet tree, ourselves included.
    pub fn new(me: PublicKey, devices: impl IntoIterator<Item = PublicKey>, now_ms: u64) -> Self {
        Self {
            me,
            devices: devices.into_iter().collect(),
            number: 0,
            started_ms: now_ms,
            now: Round::default(),
            before: Round::default(),
            agents: BTreeSet::new(),
            pending: BTreeMap::new(),
            heard_ms: now_ms,
            unattested_ms: None,
        }
    }

    /// The ratchet tree changed.
    pub fn set_devices(&mut self, devices: impl IntoIterator<Item = PublicKey>) {
        self.devices = devices.into_iter().collect();
        self.pending
            .retain(|(attester, _), _| self.devices.contains(attester));
    }

    /// What a relay says the expected attesters are. It changes nothing about whom we expect.
    pub fn relay_claims(&self, claimed: &BTreeSet<PublicKey>) -> Option<Warning> {
        let omitted: BTreeSet<_> = self.devices.difference(claimed).copied().collect();
        (!omitted.is_empty()).then_some(Warning::ShrunkenSet { omitted })
    }

    /// A payload that [verified](Payload::verify) arrived; attestations are for [`Monitor::attested`] and ignored here.
    pub fn arrived(&mut self, payload: &Payload, now_ms: u64) {
        if payload.kind != Kind::HEAD_ATTEST {
            self.wrote(payload.author, payload.issuer(), now_ms);
        }
    }

    /// The same, of an author and, when it is an agent, the device that issued it.
    pub fn wrote(&mut self, author: PublicKey, issuer: Option<PublicKey>, now_ms: u64) {
        if issuer.unwrap_or(author) == self.me {
            return;
        }
        // An agent's envelopes come by way of its device, so they prove that device's presence.
        self.now.wrote.insert(issuer.unwrap_or(author));
        if let Some(issuer) = issuer {
            self.agents.insert((author, issuer));
            self.now.agents.insert((author, issuer));
        }
        // Whoever sent it was connected, so had to attest within a period; earlier ones prove nothing.
        if now_ms.saturating_sub(self.heard_ms) > ATTEST_PERIOD_MS {
            self.unattested_ms.get_or_insert(now_ms);
        }
    }

    /// A verified attestation about this group arrived. `view` is what we have seen ourselves. Attestations of others
    /// than expected attesters are not looked at.
    pub fn attested(&mut self, attester: PublicKey, heads: &GroupHeads, view: &GroupChains, now_ms: u64) {
        if attester == self.me || !self.devices.contains(&attester) {
            return;
        }
        self.heard_ms = now_ms;
        self.unattested_ms = None;
        self.now.attested.insert(attester);
        let issued = self.agents.iter().filter(|(_, issuer)| *issuer == attester);
        self.now.owed.extend(issued);

        let mut named = BTreeSet::new();
        for head in &heads.heads {
            let author = head.subject(&attester);
            self.now.covered.insert((author, attester));
            named.insert(author);
            self.compare((attester, author), head.ctr, head.hash, view);
        }
        // It names every author it has seen, so what it no longer says it no longer claims.
        self.pending
            .retain(|(from, author), _| *from != attester || named.contains(author));
    }

    /// Finishes the round if its time has come. Call it at least once per round.
    pub fn tick(&mut self, view: &GroupChains, now_ms: u64) -> Option<Report> {
        let rounds = now_ms.saturating_sub(self.started_ms) / ATTEST_PERIOD_MS;
        if rounds == 0 {
            return None;
        }
        let mut warnings = Vec::new();
        let mut agreement = Agreement {
            expected: self.devices.len(),
            ..Agreement::default()
        };

        self.pending
            .retain(|(_, author), pending| !resolved(pending.claim, view, author));
        for ((attester, author), pending) in &self.pending {
            if pending.overdue(self.number) {
                agreement.disagreeing.insert(*attester);
                warnings.push(Warning::Disagreement {
                    attester: *attester,
                    author: *author,
                });
            }
        }
        for device in self.now.wrote.intersection(&self.before.wrote) {
            let spoke = self.now.attested.contains(device) || self.before.attested.contains(device);
            if self.devices.contains(device) && !spoke {
                warnings.push(Warning::Silent { device: *device });
            }
        }
        for pair in self.now.agents.intersection(&self.now.owed) {
            if !self.now.covered.contains(pair) {
                let (agent, issuer) = *pair;
                warnings.push(Warning::UnproxiedAgent { agent, issuer });
            }
        }
        let silent = now_ms.saturating_sub(self.heard_ms) >= SILENCE_MS_MAX;
        let owed_for = self.unattested_ms.map_or(0, |since| now_ms.saturating_sub(since));
        if silent && owed_for >= ATTEST_PERIOD_MS {
            warnings.push(Warning::TotalSilence);
        }

        for device in &self.devices {
            let heard = self.now.attested.contains(device) || self.before.attested.contains(device);
            if *device != self.me && !heard {
                agreement.unheard.insert(*device);
            } else if !agreement.disagreeing.contains(device) {
                agreement.agreeing += 1;
            }
        }

        self.number += 1;
        self.started_ms += rounds * ATTEST_PERIOD_MS;
        let finished = std::mem::take(&mut self.now);
        // After a pause, a laptop's sleep say, the round before was one in which nothing could arrive.
        self.before = if rounds == 1 { finished } else { Round::default() };
        Some(Report { warnings, agreement })
    }

    fn compare(&mut self, key: (PublicKey, PublicKey), ctr: u64, hash: Hash, view: &GroupChains) {
        let claim = claim(&key.1, ctr, hash, view);
        let old = self.pending.get(&key).copied();
        let Some(claim) = claim else {
            self.pending.remove(&key);
            return;
        };
        let kept = match (old.map(|old| old.claim), claim) {
            // The oldest difference has to resolve; newer ones only follow from it.
            (Some(old @ Claim::Differs { .. }), Claim::Differs { .. }) if !resolved(old, view, &key.1) => {
                true
            }
            (Some(Claim::Behind { ours }), Claim::Behind { .. }) => ctr < ours,
            (Some(Claim::Unreadable { ctr: first }), Claim::Unreadable { .. }) => ctr <= first,
            _ => false,
        };
        let pending = match (old, claim) {
            (Some(old), _) if kept => Pending {
                said: self.number,
                ..old
            },
            // It writes now, so what it writes should reach us.
            (
                Some(Pending {
                    claim: Claim::Unreadable { .. },
                    ..
                }),
                Claim::Unreadable { .. },
            ) => Pending::new(Claim::Differs { ctr, hash }, self.number),
            // Still growing out of our sight.
            (
                Some(
                    old @ Pending {
                        claim: Claim::Differs { .. },
                        ..
                    },
                ),
                Claim::Unreadable { .. },
            ) => Pending {
                said: self.number,
                ..old
            },
            _ => Pending::new(claim, self.number),
        };
        self.pending.insert(key, pending);
    }
}

impl Pending {
    fn new(claim: Claim, number: u64) -> Self {
        Self {
            claim,
            since: number,
            said: number,
        }
    }

    fn overdue(&self, number: u64) -> bool {
        match self.claim {
            Claim::Differs { .. } => number - self.since >= DISAGREEMENT_ROUNDS_MAX,
            // That a device went away before it caught up says nothing; that it repeats itself does.
            Claim::Behind { .. } => self.said - self.since >= DISAGREEMENT_ROUNDS_MAX,
            Claim::Unreadable { .. } => false,
        }
    }
}

/// How a head differs from our view; `None` when it does not, or nothing can be said.
fn claim(author: &PublicKey, ctr: u64, hash: Hash, view: &GroupChains) -> Option<Claim> {
    let chain = view.chain(author);
    let base = match chain {
        Some(chain) => chain.base(),
        None => view.is_whole().then_some(0),
    };
    let Some(base) = base else {
        return Some(Claim::Unreadable { ctr });
    };
    let head = chain.and_then(|chain| chain.head());
    match chain.and_then(|chain| chain.at(ctr)) {
        Some(ours) if ours != hash => Some(Claim::Differs { ctr, hash }),
        Some(_) => head
            .filter(|(ours, _)| *ours > ctr)
            .map(|(ours, _)| Claim::Behind { ours }),
        None if ctr < base => None,
        None => Some(Claim::Differs { ctr, hash }),
    }
}

/// Whether what we have seen since settles a claim.
fn resolved(claim: Claim, view: &GroupChains, author: &PublicKey) -> bool {
    match claim {
        Claim::Differs { ctr, hash } => view
            .chain(author)
            .is_some_and(|chain| chain.at(ctr) == Some(hash) || chain.base().is_some_and(|base| ctr < base)),
        Claim::Behind { .. } | Claim::Unreadable { .. } => false,
    }
}
