//! An evicted connection stays, and hears the call it was in.

use super::{Saboteur, Way};
use crate::world::Line;
use bytes::Bytes;
use drover_engine::effects::CloseHow;
use std::collections::BTreeSet;

#[derive(Default)]
pub(super) struct RevokedEar {
    heard: BTreeSet<Line>,
    evicted: Vec<Line>,
}

impl Saboteur for RevokedEar {
    fn closes(&mut self, line: Line, how: CloseHow) -> bool {
        let stays = how == CloseHow::Evict && self.heard.contains(&line);
        if stays {
            self.evicted.push(line);
        }
        !stays
    }

    fn speaks(&mut self, line: Line, _: &Bytes) -> Vec<(Line, Way)> {
        self.heard.insert(line);
        let all = self.evicted.iter().chain([&line]);
        all.map(|line| (*line, Way::Lane)).collect()
    }
}
