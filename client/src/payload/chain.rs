//! The author chain: each author counts its payloads in each group from 0 without gaps, and each names the one before.
//! Count and link are signed and encrypted, so a relay that withholds an envelope leaves a gap it cannot close.
//!
//! | Link | Verdict |
//! | --- | --- |
//! | next count, naming the link before | [`Verdict::Linked`] |
//! | seen before, byte for byte | [`Verdict::Known`] |
//! | after a gap, or other content at a used count, that a `chain.reset` declared beforehand | [`Verdict::UnverifiedGap`] |
//! | any other gap | [`Evidence::Gap`] |
//! | any other content at a used count | [`Evidence::Fork`] |
//! | naming another link than the one before | [`Evidence::PrevSelf`] |
//! | a `chain.reset` that names another link than was seen, or resumes no later | [`Evidence::Reset`] |
//!
//! Evidence is never a reason to drop a payload: it is kept, shown as rejected, and the panel names its author. Links
//! may come in any order; what fills a gap later is judged against both neighbours, and [`AuthorChain::gaps`] tells what
//! is still open.
//!
//! A chain keeps about a hundred bytes per link, of links that carried a valid signature; [`AuthorChain::prune`] lets go
//! of what lies below a checkpoint.

use std::collections::{BTreeMap, HashSet};
use std::ops::RangeInclusive;

use drover_wire::id::{GroupId, Hash, PublicKey};

use super::{AuthorHead, Body, ChainReset, GroupHeads, Kind, Malformed, Payload};

/// What the first link of a chain names as the one before.
pub const NO_LINK: Hash = Hash([0; 32]);

/// One link, of a payload that [verified](Payload::verify).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The author's count.
    pub ctr: u64,
    /// The link it names as the one before.
    pub prev_self: Hash,
    /// Content address of its own envelope.
    pub hash: Hash,
}

impl Link {
    /// The link that `payload` is, having come in the envelope with this content address.
    pub fn of(payload: &Payload, hash: Hash) -> Self {
        Self {
            ctr: payload.ctr,
            prev_self: payload.prev_self,
            hash,
        }
    }
}

/// What a chain says about itself that an honest author and an honest relay cannot bring about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Links are missing and no reset declared it.
    Gap {
        /// Their counts.
        missing: RangeInclusive<u64>,
    },
    /// Two contents with one count.
    Fork {
        /// The count.
        ctr: u64,
        /// The content seen first.
        first: Hash,
        /// The other one.
        second: Hash,
    },
    /// The link with this count names another one than the one before it.
    PrevSelf {
        /// The count.
        ctr: u64,
    },
    /// A reset that contradicts the chain, or itself.
    Reset {
        /// The count it claims to have proved last.
        last_ctr: u64,
    },
}

/// What a link is to its chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Dense and linked.
    Linked,
    /// Seen before.
    Known,
    /// The first link of a chain whose beginning this member could not read ([`AuthorChain::joined_later`]).
    Anchored,
    /// Below a checkpoint or below the anchor: there is nothing to judge it by.
    Below,
    /// Shown as a reset of the chain by its author at that date, and not as tampering.
    UnverifiedGap(ChainReset),
    /// Kept, shown as rejected, with a split-view warning that names the author.
    Evidence(Evidence),
}

impl Verdict {
    /// Whether it is simply in order.
    pub fn is_linked(&self) -> bool {
        matches!(self, Verdict::Linked | Verdict::Known | Verdict::Anchored)
    }

    /// The evidence, if it is any.
    pub fn evidence(&self) -> Option<&Evidence> {
        match self {
            Verdict::Evidence(evidence) => Some(evidence),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    prev_self: Hash,
    hash: Hash,
    /// It follows a declared gap, so the link before it is not the one it names.
    resumed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Declared {
    reset: ChainReset,
    /// A link took the count it resumes at.
    used: bool,
}

/// One author's chain in one group, as one member has seen it.
#[derive(Clone, Debug)]
pub struct AuthorChain {
    /// The lowest count that can be judged; `None` until a first link anchors the chain.
    base: Option<u64>,
    links: BTreeMap<u64, Seen>,
    resets: BTreeMap<u64, Declared>,
    /// Links that a reset left behind.
    abandoned: HashSet<Hash>,
}

impl Default for AuthorChain {
    fn default() -> Self {
        Self::new()
    }
}

impl AuthorChain {
    /// A chain that has to be seen from its beginning.
    pub fn new() -> Self {
        Self {
            base: Some(0),
            links: BTreeMap::new(),
            resets: BTreeMap::new(),
            abandoned: HashSet::new(),
        }
    }

    /// A chain in a group that this member joined without its history: whatever link comes first anchors it.
    pub fn joined_later() -> Self {
        Self {
            base: None,
            ..Self::new()
        }
    }

    /// A chain that begins at a checkpoint's barrier for this author: what was before it is replaced by the snapshots.
    pub fn from_barrier(ctr: u64, hash: Hash) -> Self {
        let mut chain = Self {
            base: Some(ctr),
            ..Self::new()
        };
        let barrier = Seen {
            prev_self: NO_LINK,
            hash,
            resumed: true,
        };
        chain.links.insert(ctr, barrier);
        chain
    }

    /// Judges a link and remembers it, whatever the verdict.
    pub fn observe(&mut self, link: Link) -> Verdict {
        self.judge(link, None)
    }

    /// The same for the payload that carries a reset, which is itself covered by it.
    pub fn observe_reset(&mut self, link: Link, reset: &ChainReset) -> Verdict {
        if self.at(link.ctr) == Some(link.hash) || self.abandoned.contains(&link.hash) {
            return Verdict::Known;
        }
        match self.declare(reset) {
            Ok(()) => self.judge(link, Some(reset)),
            Err(evidence) => {
                self.judge(link, None);
                Verdict::Evidence(evidence)
            }
        }
    }

    /// Takes note of a reset. It excuses only what comes after it: the author tells a crash from an attack before the
    /// fact, and no receiver guesses afterwards.
    ///
    /// # Errors
    /// [`Evidence::Reset`] when it names another link than was seen, or resumes at a count it says it used.
    pub fn declare(&mut self, reset: &ChainReset) -> Result<(), Evidence> {
        let contradicted = self
            .links
            .get(&reset.last_ctr)
            .is_some_and(|seen| seen.hash != reset.last_hash);
        if contradicted || reset.resumes_at <= reset.last_ctr {
            return Err(Evidence::Reset {
                last_ctr: reset.last_ctr,
            });
        }
        // The first one stands, so that repeating a reset does not excuse a second fork.
        self.resets.entry(reset.resumes_at).or_insert(Declared {
            reset: *reset,
            used: false,
        });
        Ok(())
    }

    /// The highest link seen: what a member attests to.
    pub fn head(&self) -> Option<(u64, Hash)> {
        self.links.last_key_value().map(|(ctr, seen)| (*ctr, seen.hash))
    }

    /// The content seen with this count.
    pub fn at(&self, ctr: u64) -> Option<Hash> {
        self.links.get(&ctr).map(|seen| seen.hash)
    }

    /// The lowest count that can be judged; `None` before a chain [joined later](Self::joined_later) has a link.
    pub fn base(&self) -> Option<u64> {
        self.base
    }

    /// Counts that are missing below the head and that no reset declared.
    pub fn gaps(&self) -> impl Iterator<Item = RangeInclusive<u64>> + '_ {
        let mut next = self.base.unwrap_or(0);
        self.links.iter().filter_map(move |(ctr, seen)| {
            let from = std::mem::replace(&mut next, ctr.saturating_add(1));
            (*ctr > from && !seen.resumed).then(|| from..=ctr - 1)
        })
    }

    /// Forgets the links below this count, which a checkpoint replaced.
    pub fn prune(&mut self, below: u64) {
        self.links = self.links.split_off(&below);
        self.resets = self.resets.split_off(&below);
        self.base = Some(self.base.unwrap_or(0).max(below));
    }

    fn judge(&mut self, link: Link, own: Option<&ChainReset>) -> Verdict {
        let Link { ctr, prev_self, hash } = link;
        if self.abandoned.contains(&hash) {
            return Verdict::Known;
        }
        let Some(base) = self.base else {
            self.base = Some(ctr);
            self.insert(link, true);
            return Verdict::Anchored;
        };
        if ctr < base {
            return Verdict::Below;
        }
        let excuse = self.excuse(&link, own);
        if let Some(seen) = self.links.get(&ctr) {
            if seen.hash == hash {
                return Verdict::Known;
            }
            let Some(reset) = excuse else {
                return Verdict::Evidence(Evidence::Fork {
                    ctr,
                    first: seen.hash,
                    second: hash,
                });
            };
            let left = self.links.split_off(&ctr);
            self.abandoned.extend(left.values().map(|seen| seen.hash));
            self.insert(link, true);
            return Verdict::UnverifiedGap(reset);
        }
        let before = ctr.checked_sub(1).and_then(|before| self.links.get(&before));
        let fault = match before {
            None if ctr == 0 && prev_self == NO_LINK => None,
            None if ctr == 0 => Some(Evidence::PrevSelf { ctr }),
            // What came before was pruned.
            None if ctr == base => None,
            Some(seen) if seen.hash == prev_self => None,
            Some(_) => Some(Evidence::PrevSelf { ctr }),
            None => {
                let from = self
                    .links
                    .range(..ctr)
                    .next_back()
                    .map_or(base, |(below, _)| below + 1);
                Some(Evidence::Gap {
                    missing: from..=ctr - 1,
                })
            }
        };
        let excuse = excuse.filter(|_| fault.is_some());
        self.insert(link, excuse.is_some());
        if let Some(reset) = excuse {
            return Verdict::UnverifiedGap(reset);
        }
        if let Some(fault) = fault {
            return Verdict::Evidence(fault);
        }
        // It may have filled a gap: then the link after it has to name it.
        let after = ctr.checked_add(1).and_then(|after| self.links.get(&after));
        match after {
            Some(after) if !after.resumed && after.prev_self != hash => {
                Verdict::Evidence(Evidence::PrevSelf { ctr: ctr + 1 })
            }
            _ => Verdict::Linked,
        }
    }

    /// The reset that declared this link: it takes up the count the author named, from the link the author could prove;
    /// or it is the reset itself, written after that link and no later than that count.
    fn excuse(&self, link: &Link, own: Option<&ChainReset>) -> Option<ChainReset> {
        let own = own.filter(|reset| {
            (reset.last_ctr + 1..=reset.resumes_at).contains(&link.ctr) && link.prev_self == reset.last_hash
        });
        let declared = self.resets.get(&link.ctr);
        match (own, declared) {
            (Some(reset), _) if link.ctr < reset.resumes_at => Some(*reset),
            (_, Some(declared)) if !declared.used && link.prev_self == declared.reset.last_hash => {
                Some(declared.reset)
            }
            _ => None,
        }
    }

    fn insert(&mut self, link: Link, resumed: bool) {
        if let Some(declared) = self.resets.get_mut(&link.ctr) {
            declared.used = true;
        }
        let seen = Seen {
            prev_self: link.prev_self,
            hash: link.hash,
            resumed,
        };
        self.links.insert(link.ctr, seen);
    }
}

/// Every author's chain in one group, as one member has seen them.
#[derive(Clone, Debug)]
pub struct GroupChains {
    whole: bool,
    authors: BTreeMap<PublicKey, AuthorChain>,
}

impl GroupChains {
    /// For a member that can read the group's whole history.
    pub fn new() -> Self {
        Self {
            whole: true,
            authors: BTreeMap::new(),
        }
    }

    /// For a member that joined without the history: each chain is anchored by its first link.
    pub fn joined_later() -> Self {
        Self {
            whole: false,
            ..Self::new()
        }
    }

    /// Judges a payload that [verified](Payload::verify) and came in the envelope with this content address. Own
    /// payloads belong here too, once sent.
    ///
    /// # Errors
    /// [`Malformed`] for a reset whose body does not decode; as a link it was judged like any other.
    pub fn observe(&mut self, payload: &Payload, hash: Hash) -> Result<Verdict, Malformed> {
        let (whole, link) = (self.whole, Link::of(payload, hash));
        let chain = self.chain_mut(payload.author, whole);
        if payload.kind != Kind::CHAIN_RESET {
            return Ok(chain.observe(link));
        }
        match ChainReset::decode(&payload.body) {
            Ok(reset) => Ok(chain.observe_reset(link, &reset)),
            Err(malformed) => {
                chain.observe(link);
                Err(malformed)
            }
        }
    }

    /// Starts or replaces an author's chain at a checkpoint's barrier.
    pub fn set_barrier(&mut self, author: PublicKey, ctr: u64, hash: Hash) {
        self.authors.insert(author, AuthorChain::from_barrier(ctr, hash));
    }

    /// One author's chain.
    pub fn chain(&self, author: &PublicKey) -> Option<&AuthorChain> {
        self.authors.get(author)
    }

    /// Whether chains are judged from their beginning.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// The authors seen so far, ascending.
    pub fn authors(&self) -> impl Iterator<Item = &PublicKey> {
        self.authors.keys()
    }

    /// What to attest to for this group: every author's head, and for the agents this device issued (`issued`) that it
    /// speaks for them. `None` before anything was seen.
    pub fn heads(&self, group: GroupId, issued: impl Fn(&PublicKey) -> bool) -> Option<GroupHeads> {
        let heads: Vec<_> = self
            .authors
            .iter()
            .filter_map(|(author, chain)| {
                let (ctr, hash) = chain.head()?;
                Some(AuthorHead {
                    author: *author,
                    ctr,
                    hash,
                    proxied_for: issued(author).then_some(*author),
                })
            })
            .collect();
        (!heads.is_empty()).then_some(GroupHeads { group, heads })
    }

    fn chain_mut(&mut self, author: PublicKey, whole: bool) -> &mut AuthorChain {
        self.authors.entry(author).or_insert_with(|| {
            if whole {
                AuthorChain::new()
            } else {
                AuthorChain::joined_later()
            }
        })
    }
}

impl Default for GroupChains {
    fn default() -> Self {
        Self::new()
    }
}

/// Where a payload goes in its author's chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The count.
    pub ctr: u64,
    /// The author's previous envelope.
    pub prev_self: Hash,
}

/// The end of one's own chain in one group.
///
/// It has to survive a crash: store what [`OwnChain::sealed`] changed in the transaction that stores the sealed envelope,
/// before sending, and send a stored but unacknowledged envelope again byte for byte. Never sign it anew and never give
/// its count away: two contents with one count are what an attack looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnChain {
    next: Place,
}

impl OwnChain {
    /// A chain without links.
    pub const fn start() -> Self {
        Self {
            next: Place {
                ctr: 0,
                prev_self: NO_LINK,
            },
        }
    }

    /// Continues after this link.
    pub const fn after(ctr: u64, hash: Hash) -> Self {
        Self {
            next: Place {
                ctr: ctr.saturating_add(1),
                prev_self: hash,
            },
        }
    }

    /// Continues after lost state, in the next payload: a [`ChainReset`] with the place this chain begins at. `resumes_at`
    /// has to lie beyond every count that may have been used.
    pub const fn reset(reset: &ChainReset) -> Self {
        Self {
            next: Place {
                ctr: reset.resumes_at,
                prev_self: reset.last_hash,
            },
        }
    }

    /// Where the next payload goes. The same until [`OwnChain::sealed`].
    pub const fn next(&self) -> Place {
        self.next
    }

    /// The payload at [`OwnChain::next`] was sealed into the envelope with this content address.
    pub fn sealed(&mut self, hash: Hash) {
        *self = Self::after(self.next.ctr, hash);
    }
}

#[cfg(test)]
mod tests;
