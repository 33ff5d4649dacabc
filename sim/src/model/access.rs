//! Who may do what in one workspace, as far as anybody was told.

use crate::world::Line;
use drover_client::wire::access::AccessSet;
use drover_wire::id::{EntryHash, Hash, PublicKey, Salt};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// See the module.
#[derive(Default)]
pub struct Access {
    /// Known since the founder asked.
    pub salt: Option<Salt>,
    /// Sets that somebody published, whatever became of them: members show them to each other.
    sets: BTreeMap<Hash, AccessSet>,
    /// Accepted ones.
    accepted: BTreeMap<u64, Hash>,
    /// Devices that an accepted set dropped, and no later publication takes back.
    cut: BTreeSet<PublicKey>,
    /// Devices that handed in an invite's right code and have no answer yet: a seat may be theirs at any moment, and
    /// with it they come in again (05 §10).
    seating: BTreeSet<PublicKey>,
    /// By connection: the head's version when the relay was handed each ACCESS that is not answered. Refusals are not
    /// told apart, so one may stay.
    asked: BTreeMap<Line, VecDeque<u64>>,
    /// Every device there is, to tell whom an entry means.
    pub devices: Vec<PublicKey>,
}

impl Access {
    /// The newest set that is known to be accepted.
    pub fn head(&self) -> Option<&AccessSet> {
        self.sets.get(self.accepted.last_key_value()?.1)
    }

    /// Whether the newest set lists this device.
    pub fn lists(&self, device: &PublicKey) -> bool {
        let entry = self.salt.map(|salt| EntryHash::of(device, &salt));
        let listed = |set: &AccessSet| entry.is_some_and(|e| set.entries.binary_search(&e).is_ok());
        self.head().is_some_and(listed)
    }

    /// Whether every set that anybody ever published lists this device.
    pub fn always_lists(&self, device: &PublicKey) -> bool {
        let entry = self.salt.map(|salt| EntryHash::of(device, &salt));
        let listed = |set: &AccessSet| entry.is_some_and(|e| set.entries.binary_search(&e).is_ok());
        self.head().is_some() && self.sets.values().all(listed)
    }

    /// Whether it was told that this device is out.
    pub fn is_cut(&self, device: &PublicKey) -> bool {
        self.cut.contains(device)
    }

    /// The relay is handed the right code of an invite by this device.
    pub fn seats(&mut self, device: &PublicKey) {
        self.cut.remove(device);
        self.seating.insert(*device);
    }

    /// The answer to that leaves.
    pub fn seat_answered(&mut self, device: &PublicKey) {
        self.seating.remove(device);
    }

    /// Somebody is about to publish this.
    pub fn proposed(&mut self, set: &AccessSet) {
        if let Some(salt) = self.salt {
            let back = |d: &PublicKey| set.entries.binary_search(&EntryHash::of(d, &salt)).is_ok();
            self.cut.retain(|device| !back(device));
        }
        self.sets.insert(set.digest(), set.clone());
    }

    /// The relay is handed an ACCESS.
    pub fn asks(&mut self, line: Line) {
        let version = self.head().map_or(0, |head| head.version);
        self.asked.entry(line).or_default().push_back(version);
    }

    /// This connection is told that this set is the head; an error if another one of its version was, or if it was not
    /// when the connection asked: the answer may have waited for others before it.
    pub fn accepted(&mut self, line: Line, digest: Hash) -> Result<(), String> {
        let since = self.asked.get_mut(&line).and_then(VecDeque::pop_front);
        let Some(set) = self.sets.get(&digest).cloned() else {
            return Err(format!("{digest:?} is the head and nobody published it"));
        };
        let before = self.head().cloned();
        if let Some(newer) = since.filter(|since| *since > set.version) {
            return Err(format!("version {} is the head after {newer} was", set.version));
        }
        if let Some(other) = self.accepted.insert(set.version, digest)
            && other != digest
        {
            return Err(format!(
                "version {} is both {other:?} and {digest:?}",
                set.version
            ));
        }
        let Some(salt) = self.salt else { return Ok(()) };
        if let Some(before) = before.filter(|b| b.version < set.version) {
            // Sets between the two, whose acceptance nobody was told of, may have taken somebody in and out again:
            // whoever was in the older and is not in the newer one is out in any case.
            let listed =
                |set: &AccessSet, d: &PublicKey| set.entries.binary_search(&EntryHash::of(d, &salt)).is_ok();
            let out = self.devices.iter().copied();
            let out = out.filter(|d| !self.seating.contains(d));
            self.cut
                .extend(out.filter(|d| listed(&before, d) && !listed(&set, d)));
        }
        Ok(())
    }
}
