//! An evicted connection stays, and hears what is said in calls.

use super::{Saboteur, Way};
use crate::world::Line;
use bytes::Bytes;
use drover_engine::effects::CloseHow;

#[derive(Default)]
pub(super) struct RevokedEar {
    evicted: Vec<Line>,
}

impl Saboteur for RevokedEar {
    fn closes(&mut self, line: Line, how: CloseHow) -> bool {
        if how == CloseHow::Evict {
            self.evicted.push(line);
        }
        how != CloseHow::Evict
    }

    fn speaks(&mut self, line: Line, _: &Bytes) -> Vec<(Line, Way)> {
        let all = self.evicted.iter().chain([&line]);
        all.map(|line| (*line, Way::Lane)).collect()
    }
}
