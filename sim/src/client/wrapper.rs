//! Stores recovery wraps: newer ones, the same again, older ones, now and then under another group's tag. At the end
//! it stores again what it knows to be stored, to hear that it is.

use super::{Ask, Kind, Notice, Session};
use crate::world::Outside;
use drover_wire::frame::Frame;
use drover_wire::id::{GroupId, Hash, WrapTag};
use drover_wire::wrap::Wrap;

/// Tags of a group.
const TAGS: u8 = 2;

/// See the module.
#[derive(Default)]
pub struct Wrapper {
    waits: bool,
    /// What is asked about at the end; `None` before.
    last: Option<Vec<(WrapTag, GroupId, u64)>>,
    ends: bool,
}

fn tag(group: &GroupId, number: u8) -> WrapTag {
    WrapTag(Hash::of(&[b"tag", &group.0, &[number]]).0)
}

impl Wrapper {
    fn store(&mut self, tag: WrapTag, group: GroupId, epoch: u64, me: &mut Session, out: &mut Outside) {
        self.waits = true;
        let ct = epoch.to_be_bytes();
        let body = Wrap {
            group,
            epoch,
            tag,
            ct: &ct,
        }
        .encode();
        me.ask(&Frame::Wrap { body: &body }, Ask::Wrap, out);
    }
}

impl Kind for Wrapper {
    fn act(&mut self, me: &mut Session, out: &mut Outside) {
        if self.waits {
            return;
        }
        if self.ends {
            let all = || me.groups.iter().flat_map(|g| (0..TAGS).map(move |n| tag(g, n)));
            let last = self.last.get_or_insert_with(|| {
                let known = |t: WrapTag| out.model.wraps.acknowledged(&t).map(|(epoch, g)| (t, g, epoch));
                all().filter_map(known).collect()
            });
            match last.pop() {
                Some((tag, group, epoch)) => self.store(tag, group, epoch, me, out),
                None => self.ends = false,
            }
            return;
        }
        let Some(group) = out.dice.pick(&me.groups).copied() else {
            return;
        };
        let of = if out.dice.chance(0.1) {
            out.dice.pick(&me.groups).copied()
        } else {
            None
        };
        let tag = tag(&of.unwrap_or(group), out.dice.below(TAGS.into()) as u8);
        let epoch = out.model.wraps.newest(&tag) + out.dice.between(0, 3);
        self.store(tag, group, epoch.saturating_sub(1), me, out);
    }

    fn told(&mut self, notice: &Notice, _me: &mut Session, _out: &mut Outside) {
        if let Notice::Answered(Ask::Wrap, _) | Notice::Refused(Ask::Wrap, _) | Notice::Lost(Ask::Wrap) =
            notice
        {
            self.waits = false;
        }
    }

    fn is_busy(&self) -> bool {
        self.waits || self.ends
    }

    fn heal(&mut self) {
        self.ends = true;
    }
}
