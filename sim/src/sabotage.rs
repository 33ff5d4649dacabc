//! Saboteurs: what goes wrong here, nobody may do, and the simulator has to find it. Each sits on a border of the
//! engine; each is one file.

use crate::dice::Dice;
use crate::store::Image;
use crate::world::Line;
use drover_engine::effects::{CloseHow, Stores};
use drover_engine::outbox::Outbound;

/// One way to break the rules.
pub trait Saboteur {
    /// Puts something between a shard and its stores.
    fn wraps(&mut self, stores: Stores) -> Stores {
        stores
    }

    /// The process starts again on this disk.
    fn restarts(&mut self, _disk: &mut Image, _dice: &mut Dice) {}

    /// The engine queues messages for a connection; what is queued instead, and where. Whether the engine is told that
    /// they fit follows from those that go where it wanted.
    fn sends(&mut self, line: Line, run: Outbound, _dice: &mut Dice) -> Vec<(Line, Outbound)> {
        vec![(line, run)]
    }

    /// The engine ends a connection; whether it ends.
    fn closes(&mut self, _line: Line, _how: CloseHow) -> bool {
        true
    }
}

/// The saboteur of this name; an error lists those there are.
pub fn by_name(name: &str) -> Result<crate::report::Hire, String> {
    let found = ALL.iter().find(|(known, _)| *known == name);
    found.map(|(_, hire)| *hire).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|(name, _)| *name).collect();
        format!("no saboteur is called {name}; there are {}", names.join(", "))
    })
}

/// All of them.
pub const ALL: &[(&str, crate::report::Hire)] = &[];
