//! Keeps its shelf of key packages filled, and takes packages off the shelves of others.

use super::{Ask, Kind, Notice, Session};
use crate::world::Outside;
use drover_wire::frame::{BytesListBuf, Frame, Keys};

/// Fetches at most, to see at the end that nothing is lost.
const LAST_FETCHES: u32 = 25;

/// See the module.
#[derive(Default)]
pub struct Stocker {
    made: u64,
    waits: bool,
    /// Fetches left, at the end.
    last: u32,
}

impl Kind for Stocker {
    fn act(&mut self, me: &mut Session, out: &mut Outside) {
        if self.waits {
            return;
        }
        self.waits = true;
        if self.last > 0 || out.dice.chance(0.5) {
            let all = &out.model.access[me.workspace].devices;
            let device = match self.last {
                0 => out.dice.pick(all).copied(),
                _ => Some(me.identity.public()),
            };
            self.last = self.last.saturating_sub(1);
            let count = if self.last == 0 && out.dice.chance(0.05) {
                9
            } else {
                out.dice.between(1, 8) as u8
            };
            let device = device.unwrap_or(me.identity.public());
            return me.ask(&Frame::Keys(Keys::Fetch { device, count }), Ask::Keys, out);
        }
        let count = if out.dice.chance(0.1) {
            60
        } else {
            out.dice.skewed(1, 6)
        };
        let packages: Vec<Vec<u8>> = (0..count)
            .map(|_| {
                self.made += 1;
                super::sender::ciphertext(me.client, self.made, out)
            })
            .collect();
        let list: BytesListBuf = packages.iter().collect();
        let packages = list.as_list();
        me.ask(&Frame::Keys(Keys::Publish { packages }), Ask::Keys, out);
    }

    fn told(&mut self, notice: &Notice, _me: &mut Session, _out: &mut Outside) {
        match notice {
            Notice::Answered(Ask::Keys, frame) => {
                self.waits = false;
                if let Ok(Frame::Keys(Keys::None)) = Frame::decode(frame) {
                    self.last = 0;
                }
            }
            Notice::Refused(Ask::Keys, _) | Notice::Lost(Ask::Keys) => self.waits = false,
            _ => {}
        }
    }

    fn is_busy(&self) -> bool {
        self.waits || self.last > 0
    }

    fn heal(&mut self) {
        self.last = LAST_FETCHES;
    }
}
