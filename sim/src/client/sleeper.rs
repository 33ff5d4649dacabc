//! Registers to be woken, changes its mind, and sleeps: without a connection, until it is woken or has slept enough.

use super::{Ask, Kind, Notice, Session};
use crate::world::Outside;
use drover_wire::frame::{Frame, Wake};
use drover_wire::id::Hash;

/// See the module.
#[derive(Default)]
pub struct Sleeper {
    registered: u8,
    waits: bool,
    is_registered: bool,
}

impl Kind for Sleeper {
    fn act(&mut self, me: &mut Session, out: &mut Outside) {
        if self.waits {
            return;
        }
        if self.is_registered && out.dice.chance(0.7) {
            if me.is_idle() {
                out.coverage.add("sleeps", 1);
                me.hang_up(out);
                me.retry_at_us = out.now_us() + out.dice.skewed(1_000_000, 60_000_000);
            }
            return;
        }
        self.waits = true;
        if self.is_registered && out.dice.chance(0.3) {
            return me.ask(&Frame::Wake(Wake::Clear), Ask::Wake, out);
        }
        self.registered += 1;
        let name = Hash::of(&[b"handle", &me.identity.public().0, &[self.registered / 2]]);
        let mut handle = [0; 16];
        handle.copy_from_slice(&name.0[..16]);
        out.model.hides(&handle, 6);
        let wake = Wake::Register {
            handle,
            categories: out.dice.between(1, 7) as u8,
            expires_at_ms: out.wall_ms() + out.dice.skewed(10_000, 2_500_000_000),
        };
        me.ask(&Frame::Wake(wake), Ask::Wake, out);
    }

    fn told(&mut self, notice: &Notice, _me: &mut Session, _out: &mut Outside) {
        match notice {
            Notice::Answered(Ask::Wake, frame) => {
                self.waits = false;
                self.is_registered = matches!(Frame::decode(frame), Ok(Frame::Wake(Wake::Registered { .. })));
            }
            Notice::Refused(Ask::Wake, _) | Notice::Lost(Ask::Wake) => self.waits = false,
            _ => {}
        }
    }

    fn is_busy(&self) -> bool {
        self.waits
    }
}
