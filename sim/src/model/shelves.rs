//! Key packages (07 A): each is handed out once at most, whatever dies in between; what was acknowledged lies on its
//! shelf until somebody may have had it.

use super::Violation;
use crate::world::Line;
use drover_wire::id::PublicKey;
use std::collections::BTreeMap;

/// A device's shelf in a workspace.
type Shelf = (usize, PublicKey);

struct Package {
    shelf: Shelf,
    acknowledged: bool,
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
}

impl Shelves {
    /// The relay is handed a publication.
    pub fn publishes<'a>(&mut self, line: Line, shelf: Shelf, packages: impl Iterator<Item = &'a [u8]>) {
        self.unanswered(line);
        let packages: Vec<Vec<u8>> = packages.map(<[u8]>::to_vec).collect();
        for package in &packages {
            let (acknowledged, handed) = (false, false);
            self.packages.insert(
                package.clone(),
                Package {
                    shelf,
                    acknowledged,
                    handed,
                },
            );
        }
        self.asked.insert(line, Asked::Publish(packages));
    }

    /// The relay is handed a fetch.
    pub fn fetches(&mut self, line: Line, shelf: Shelf, count: u8) {
        self.unanswered(line);
        let there = self.packages.iter();
        let there = there.filter(|(_, p)| p.shelf == shelf && p.acknowledged && !p.handed);
        let there = there.map(|(bytes, _)| bytes.clone()).collect();
        self.asked.insert(line, Asked::Fetch(shelf, count.into(), there));
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
                package.acknowledged = true;
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
        let mut handed = 0;
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
        }
        self.handed += handed;
        if handed > count {
            return broken(
                "a fetch gets what it asked for",
                &format!("{handed} packages for {count}"),
            );
        }
        let others = self.asked.values().filter_map(|asked| match asked {
            Asked::Fetch(other, count, _) if *other == shelf => Some(*count),
            _ => None,
        });
        let gone = others.sum::<u64>() + self.lost.get(&shelf).copied().unwrap_or_default();
        let left = there.iter().filter(|bytes| !self.packages[*bytes].handed).count() as u64;
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
