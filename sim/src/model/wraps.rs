//! Recovery wraps (07 B): a slot's epoch only rises, an acknowledged one is never lost, and a tag is one group's.

use super::Violation;
use crate::world::Line;
use drover_wire::id::{GroupId, WrapTag};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
struct Slot {
    /// Epochs that the relay was handed.
    handed: BTreeSet<u64>,
    /// The highest that it acknowledged, and whose.
    acknowledged: Option<(u64, GroupId)>,
}

/// A frame that the relay works on, one of each connection at most.
struct Asked {
    tag: WrapTag,
    group: GroupId,
    epoch: u64,
    /// Acknowledged before it was handed over.
    before: Option<(u64, GroupId)>,
}

/// See the module.
#[derive(Default)]
pub struct Wraps {
    slots: BTreeMap<WrapTag, Slot>,
    asked: BTreeMap<Line, Asked>,
}

impl Wraps {
    /// The highest epoch that somebody stored, or tried to.
    pub fn newest(&self, tag: &WrapTag) -> u64 {
        self.slots
            .get(tag)
            .and_then(|slot| slot.handed.last().copied())
            .unwrap_or(0)
    }

    /// The highest that was acknowledged, with its group.
    pub fn acknowledged(&self, tag: &WrapTag) -> Option<(u64, GroupId)> {
        self.slots.get(tag)?.acknowledged
    }

    /// The relay is handed one.
    pub fn stores(&mut self, line: Line, tag: WrapTag, group: GroupId, epoch: u64) {
        let slot = self.slots.entry(tag).or_default();
        slot.handed.insert(epoch);
        let before = slot.acknowledged;
        self.asked.insert(
            line,
            Asked {
                tag,
                group,
                epoch,
                before,
            },
        );
    }

    /// It is acknowledged with this tag.
    pub fn stored(&mut self, line: Line, tag: &[u8]) -> Result<(), Violation> {
        let Some(asked) = self.asked.remove(&line).filter(|asked| asked.tag.0 == tag) else {
            return broken(
                "answers come in the order of the frames",
                "a wrap nobody stored".to_owned(),
            );
        };
        if let Some((epoch, group)) = asked.before
            && (epoch >= asked.epoch || group != asked.group)
        {
            let what = format!("epoch {} was taken after {epoch}", asked.epoch);
            return broken("a recovery wrap never goes back", what);
        }
        let slot = self.slots.entry(asked.tag).or_default();
        slot.acknowledged = slot.acknowledged.max(Some((asked.epoch, asked.group)));
        Ok(())
    }

    /// It is refused because the slot holds this epoch.
    pub fn refused(&mut self, line: Line, detail: &[u8]) -> Result<(), Violation> {
        let Some(asked) = self.asked.remove(&line) else {
            return Ok(());
        };
        let held = detail.try_into().map(u64::from_be_bytes);
        let slot = self.slots.entry(asked.tag).or_default();
        let least = asked.before.map_or(0, |(epoch, _)| epoch).max(asked.epoch);
        match held {
            Ok(held) if held >= least && slot.handed.contains(&held) => Ok(()),
            _ => {
                let what = format!(
                    "epoch {} is refused, the slot is said to hold {held:?}",
                    asked.epoch
                );
                broken("an acknowledged recovery wrap survives", what)
            }
        }
    }
}

fn broken(rule: &'static str, what: String) -> Result<(), Violation> {
    Err(Violation { rule, what })
}
