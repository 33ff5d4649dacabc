//! Key packages (07 A): each is handed out once at most, whatever dies in between, the oldest first; what was
//! acknowledged lies on its shelf until somebody may have had it, and is counted at AUTH.

use super::Violation;
use crate::world::Line;
use drover_wire::id::PublicKey;
use std::collections::BTreeMap;

/// A device's shelf in a workspace.
type Shelf = (usize, PublicKey);

struct Package {
    shelf: Shelf,
    /// Its place among all that were acknowledged.
    acknowledged: Option<u64>,
    handed: bool,
}

/// A frame that the relay works on, one of each connection at most.
enum Asked {
    Publish(Vec<Vec<u8>>),
    /// With what the shelf certainly held when it was asked for.
    Fetch(Shelf, u64, Vec<Vec<u8>>),
}

/// See the module.
#[derive(Default)]
pub struct Shelves {
    packages: BTreeMap<Vec<u8>, Package>,
    asked: BTreeMap<Line, Asked>,
    /// Packages that fetches without an answer may have taken.
    lost: BTreeMap<Shelf, u64>,
    /// Packages handed out.
    pub handed: u64,
    /// Packages acknowledged.
    acknowledged: u64,
}

impl Shelves {
    /// The relay is handed a publication.
    pub fn publishes<'a>(&mut self, line: Line, shelf: Shelf, packages: impl Iterator<Item = &'a [u8]>) {
        self.unanswered(line);
        let packages: Vec<Vec<u8>> = packages.map(<[u8]>::to_vec).collect();
        for package in &packages {
            self.packages.insert(
                package.clone(),
                Package {
                    shelf,
                    acknowledged: None,
                    handed: false,
                },
            );
        }
        self.asked.insert(line, Asked::Publish(packages));
    }

    /// The relay is handed a fetch.
    pub fn fetches(&mut self, line: Line, shelf: Shelf, count: u8) {
        self.unanswered(line);
        let there = self.packages.iter();
        let there = there.filter(|(_, p)| p.shelf == shelf && p.acknowledged.is_some() && !p.handed);
        let there = there.map(|(bytes, _)| bytes.clone()).collect();
        self.asked.insert(line, Asked::Fetch(shelf, count.into(), there));
    }

    /// Packages that fetches under way or without an answer may have taken off a shelf.
    fn gone(&self, shelf: &Shelf) -> u64 {
        let others = self.asked.values().filter_map(|asked| match asked {
            Asked::Fetch(other, count, _) if other == shelf => Some(*count),
            _ => None,
        });
        others.sum::<u64>() + self.lost.get(shelf).copied().unwrap_or_default()
    }

    /// The device of a shelf is told at AUTH how many lie there (02 §5).
    pub fn counted(&self, shelf: Shelf, told: u32) -> Result<(), Violation> {
        let there = self.packages.values().filter(|p| p.shelf == shelf && !p.handed);
        let most = there.clone().count() as u64;
        let acknowledged = there.filter(|p| p.acknowledged.is_some()).count() as u64;
        let least = acknowledged.saturating_sub(self.gone(&shelf));
        match (least..=most).contains(&u64::from(told)) {
            true => Ok(()),
            false => broken(
                "AUTH_ACK counts the shelf",
                &format!("{told} packages, and there are {least} to {most}"),
            ),
        }
    }

    fn unanswered(&mut self, line: Line) {
        if let Some(Asked::Fetch(shelf, count, _)) = self.asked.remove(&line) {
            *self.lost.entry(shelf).or_default() += count;
        }
    }

    /// The last publication is acknowledged.
    pub fn published(&mut self, line: Line, remaining: u32) -> Result<(), Violation> {
        let Some(Asked::Publish(packages)) = self.asked.remove(&line) else {
            return broken(
                "answers come in the order of the frames",
                "a publication nobody made",
            );
        };
        for package in packages {
            if let Some(package) = self.packages.get_mut(&package) {
                self.acknowledged += 1;
                package.acknowledged = Some(self.acknowledged);
            }
        }
        // Undelivered ones go back even onto a full shelf (07 A3).
        if remaining > 100 + 8 * self.asked.len() as u32 + 8 {
            return broken("a shelf holds a hundred key packages", &remaining.to_string());
        }
        Ok(())
    }

    /// Packages leave; none at all if the shelf was empty.
    pub fn hands<'a>(
        &mut self,
        line: Line,
        packages: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), Violation> {
        let Some(Asked::Fetch(shelf, count, there)) = self.asked.remove(&line) else {
            return broken(
                "answers come in the order of the frames",
                "packages nobody asked for",
            );
        };
        let (mut handed, mut places) = (0, Vec::new());
        for bytes in packages {
            handed += 1;
            let Some(package) = self.packages.get_mut(bytes) else {
                return broken("key packages come as they were published", "nobody's came");
            };
            if package.shelf != shelf {
                return broken(
                    "key packages are of the device that was asked for",
                    "another's came",
                );
            }
            if std::mem::replace(&mut package.handed, true) {
                return broken("a key package is handed out once", "one came again");
            }
            places.extend(package.acknowledged);
        }
        self.handed += handed;
        if handed > count {
            return broken(
                "a fetch gets what it asked for",
                &format!("{handed} packages for {count}"),
            );
        }
        let gone = self.gone(&shelf);
        let left = there
            .iter()
            .map(|bytes| &self.packages[bytes])
            .filter(|p| !p.handed);
        let (left, oldest_left) = (
            left.clone().count() as u64,
            left.filter_map(|p| p.acknowledged).min(),
        );
        // What somebody else took for nothing goes back to the end.
        let is_in_order = places.iter().copied().chain(oldest_left).is_sorted();
        if gone == 0 && !is_in_order {
            return broken(
                "the oldest key packages go first",
                &format!("{places:?}, and {oldest_left:?} stays"),
            );
        }
        if handed == 0 && left > gone {
            let what =
                format!("{left} packages were acknowledged and are nowhere, {gone} may be on their way");
            return broken("an acknowledged key package is there", &what);
        }
        Ok(())
    }
}

fn broken(rule: &'static str, what: &str) -> Result<(), Violation> {
    Err(Violation {
        rule,
        what: what.to_owned(),
    })
}
