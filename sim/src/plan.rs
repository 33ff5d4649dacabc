//! What a seed decides before anything happens: how large the world is, who is in it, and how often what goes wrong.
//! A plan is also what shrinking makes smaller, and what a seed line on the command line says.

use crate::dice::Dice;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// The process dies between two events and starts again on what is durable.
    Crash,
    /// A write of the store does not happen, and it is known that it didn't.
    FailedWrite,
    /// Nobody knows whether a write happened.
    UnknownWrite,
    /// A write takes seconds.
    SlowWrite,
    /// A read of the store fails.
    FailedRead,
    /// A socket dies at any byte, and either end learns of it late.
    Cut,
    /// A peer stops reading for a while, or for ever.
    Deaf,
    /// A client says again what it said before.
    Resend,
    /// Shards wait for their turn, in any order.
    Order,
    /// The clocks jump, stand still, or step back.
    Clock,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 10] = [
        Fault::Crash,
        Fault::FailedWrite,
        Fault::UnknownWrite,
        Fault::SlowWrite,
        Fault::FailedRead,
        Fault::Cut,
        Fault::Deaf,
        Fault::Resend,
        Fault::Order,
        Fault::Clock,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Fault::Crash => "crash",
            Fault::FailedWrite => "failed-write",
            Fault::UnknownWrite => "unknown-write",
            Fault::SlowWrite => "slow-write",
            Fault::FailedRead => "failed-read",
            Fault::Cut => "cut",
            Fault::Deaf => "deaf",
            Fault::Resend => "resend",
            Fault::Order => "order",
            Fault::Clock => "clock",
        }
    }

    /// The least and the most likely it ever is at each occasion.
    const fn range(self) -> (f64, f64) {
        match self {
            Fault::Crash => (0.0001, 0.003),
            Fault::FailedWrite | Fault::FailedRead => (0.002, 0.1),
            Fault::UnknownWrite => (0.001, 0.03),
            Fault::SlowWrite => (0.005, 0.2),
            Fault::Cut => (0.001, 0.03),
            Fault::Deaf => (0.002, 0.05),
            Fault::Resend => (0.01, 0.3),
            Fault::Order => (0.01, 0.5),
            Fault::Clock => (0.0005, 0.01),
        }
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Fault::ALL.into_iter().find(|fault| fault.name() == name);
        found.ok_or_else(|| {
            let names = Fault::ALL.map(Fault::name).join(", ");
            format!("no fault is called {name}; there are {names}")
        })
    }
}

/// What some worlds have and others lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Feature {
    /// CALL and MEDIA.
    Calls,
    /// KEYS.
    Keys,
    /// WRAP.
    Wraps,
    /// WAKE, with push on.
    Wakes,
    /// Clients that speak the map form.
    Maps,
}

impl Feature {
    /// All of them.
    pub const ALL: [Feature; 5] = [
        Feature::Calls,
        Feature::Keys,
        Feature::Wraps,
        Feature::Wakes,
        Feature::Maps,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Feature::Calls => "calls",
            Feature::Keys => "keys",
            Feature::Wraps => "wraps",
            Feature::Wakes => "wakes",
            Feature::Maps => "maps",
        }
    }

    /// How many worlds have it.
    const fn share(self) -> f64 {
        match self {
            Feature::Calls => 0.6,
            Feature::Keys | Feature::Wraps | Feature::Wakes | Feature::Maps => 0.4,
        }
    }
}

impl FromStr for Feature {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Feature::ALL.into_iter().find(|feature| feature.name() == name);
        found.ok_or_else(|| {
            let names = Feature::ALL.map(Feature::name).join(", ");
            format!("nothing is called {name}; there are {names}")
        })
    }
}

/// A seed, and what is held down of what it would draw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seed {
    /// The number everything is drawn from.
    pub seed: u64,
    /// At most so many members in each workspace.
    pub members: Option<usize>,
    /// At most so many actions of each client.
    pub actions: Option<u32>,
    /// At most so many workspaces.
    pub workspaces: Option<usize>,
    /// At most so many shards.
    pub shards: Option<usize>,
    /// Faults that never happen.
    pub without: BTreeSet<Fault>,
    /// Features its world lacks.
    pub lacks: BTreeSet<Feature>,
}

impl Seed {
    /// Nothing held down.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--seed {}", self.seed)?;
        for (name, value) in [
            ("members", self.members.map(|n| n as u64)),
            ("actions", self.actions.map(u64::from)),
            ("workspaces", self.workspaces.map(|n| n as u64)),
            ("shards", self.shards.map(|n| n as u64)),
        ] {
            if let Some(value) = value {
                write!(f, " --{name} {value}")?;
            }
        }
        if !self.without.is_empty() {
            let names: Vec<_> = self.without.iter().map(|fault| fault.name()).collect();
            write!(f, " --without {}", names.join(","))?;
        }
        if !self.lacks.is_empty() {
            let names: Vec<_> = self.lacks.iter().map(|feature| feature.name()).collect();
            write!(f, " --lacks {}", names.join(","))?;
        }
        Ok(())
    }
}

/// What was drawn.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What it was drawn from.
    pub seed: Seed,
    /// Shards of the relay.
    pub shards: usize,
    /// Workspaces.
    pub workspaces: usize,
    /// Groups of each.
    pub groups: usize,
    /// Members of each, its founder aside.
    pub members: usize,
    /// People who come by invite, in each.
    pub joiners: usize,
    /// What each client does before it rests.
    pub actions: u32,
    /// Bytes a socket takes of what its peer doesn't read.
    pub socket_bytes: usize,
    /// The most envelopes one action sends.
    pub burst: usize,
    /// The longest ciphertext.
    pub ct_bytes: usize,
    /// Bytes of group indexes kept in memory: small, and they are read again and again.
    pub index_bytes: usize,
    /// Calls there may be at a time.
    pub calls_max: usize,
    /// The longest audio.
    pub audio_bytes: usize,
    features: BTreeSet<Feature>,
    probabilities: [f64; Fault::ALL.len()],
}

impl Plan {
    /// Draws.
    pub fn draw(seed: &Seed) -> Self {
        let mut dice = Dice::new(seed.seed, "plan");
        let at_most =
            |drawn: u64, most: Option<usize>| (drawn as usize).min(most.unwrap_or(usize::MAX)).max(1);
        let shards = at_most(dice.between(1, 3), seed.shards);
        let workspaces = at_most(dice.between(1, 2), seed.workspaces);
        let groups = dice.between(1, 3) as usize;
        let members = at_most(dice.between(2, 6), seed.members);
        let joiners = dice.between(0, 2) as usize;
        let actions = at_most(dice.skewed(6, 60), seed.actions.map(|n| n as usize)) as u32;
        let socket_bytes = dice.skewed(64, 65_536) as usize;
        // Now and then more than a queue of 256 holds.
        let burst = if dice.chance(0.2) { 400 } else { dice.skewed(4, 40) } as usize;
        let ct_bytes = if burst < 100 {
            dice.skewed(16, 20_000)
        } else {
            dice.skewed(16, 64)
        } as usize;
        // A socket that takes a few bytes of large envelopes makes for long runs and nothing else.
        let socket_bytes = socket_bytes.max(ct_bytes / 8);
        let index_bytes = if dice.chance(0.3) { 0 } else { 256 << 20 };
        let mut probabilities = [0.0; Fault::ALL.len()];
        for (fault, probability) in Fault::ALL.into_iter().zip(&mut probabilities) {
            let (low, high) = fault.range();
            let drawn = dice.skewed((low * 1e6) as u64, (high * 1e6) as u64) as f64 / 1e6;
            let happens = dice.chance(0.6);
            if happens && !seed.without.contains(&fault) {
                *probability = drawn;
            }
        }
        let calls_max = dice.between(1, 8) as usize;
        let audio_bytes = if dice.chance(0.3) { 1_501 } else { 80 };
        let features = Feature::ALL
            .into_iter()
            .filter(|feature| dice.chance(feature.share()) && !seed.lacks.contains(feature))
            .collect();
        Self {
            seed: seed.clone(),
            shards,
            workspaces,
            groups,
            members,
            joiners,
            actions,
            socket_bytes,
            burst,
            ct_bytes,
            index_bytes,
            calls_max,
            audio_bytes,
            features,
            probabilities,
        }
    }

    /// Whether its world has this.
    pub fn has(&self, feature: Feature) -> bool {
        self.features.contains(&feature)
    }

    /// How likely a fault is at each occasion.
    pub fn probability(&self, fault: Fault) -> f64 {
        Fault::ALL
            .iter()
            .position(|f| *f == fault)
            .map_or(0.0, |at| self.probabilities[at])
    }
}
