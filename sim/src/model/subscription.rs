//! One subscription as its client sees it: what has to come, in what order, and when it may be left out (invariants 2
//! and 6; 02 §8, §9, §10).

use super::{Model, envelopes, handshakes};
use drover_wire::id::{GroupId, Hash};
use std::collections::BTreeSet;

/// From SUB_ACK to the end of the connection or the next SUB.
#[derive(Debug)]
pub struct Subscription {
    group: GroupId,
    /// What SUB_ACK said.
    head: u64,
    /// The highest number pushed, or what lies before the cursor.
    last: u64,
    /// Pushed since SUB_ACK, in whatever way.
    got: BTreeSet<u64>,
    /// The relay said that something is left out, and nothing was pushed since.
    excused: bool,
    /// Handshakes up to here have come.
    next_handshake: u64,
    /// Nobody says what the head is: the map form's. Until the replay is over, `true` again.
    headless: Option<bool>,
    /// The relay could not read the handshakes: they have to be asked for again.
    pub handshakes_cut: bool,
    /// The client has to reconcile before it knows everything.
    pub behind: bool,
}

impl Subscription {
    /// SUB(group, from) was answered with this head.
    pub fn new(group: GroupId, from: u64, head: u64, model: &mut Model) -> Self {
        if head < from {
            model.fail("SUB_ACK covers the cursor", || {
                format!("{group:?}: SUB from {from} got head {head}")
            });
        }
        Self {
            group,
            head,
            last: from.saturating_sub(1),
            got: BTreeSet::new(),
            excused: false,
            next_handshake: 0,
            headless: None,
            handshakes_cut: false,
            behind: false,
        }
    }

    /// A SUB of the map form was sent: what is stored may be left out anywhere, and nobody says so (docs/map-form.md).
    pub fn headless(group: GroupId, from: u64, model: &mut Model) -> Self {
        Self {
            headless: Some(true),
            ..Self::new(group, from, from, model)
        }
    }

    /// Something was left out: SUB_ACK of head 0, or the replay's ERROR.
    pub fn notice(&mut self) {
        (self.excused, self.behind) = (true, true);
    }

    /// Everything the backfill promised has come or the client knows what it lacks.
    pub fn replayed(&mut self, model: &Model) {
        if self.headless.is_some() {
            let head = model.on_disk(|disk| disk.head(envelopes(self.group)));
            (self.head, self.headless, self.behind) = (head.unwrap_or(0), Some(false), true);
            return;
        }
        let wanted = model.on_disk(|disk| {
            disk.records_between(envelopes(self.group), self.last, self.head.saturating_add(1))
                .count()
        });
        self.behind |= wanted > 0;
    }

    /// A PUSH that answers no RECON. `own` says what this connection itself sent, which is not pushed to it.
    pub fn pushed(&mut self, seq: u64, own: &BTreeSet<Hash>, model: &mut Model) {
        if seq <= self.last {
            let last = self.last;
            model.fail("a subscription's PUSHes rise", || {
                format!("{:?}: {seq} after {last}", self.group)
            });
        }
        if !std::mem::take(&mut self.excused) && self.headless != Some(true) {
            // A backfill may stop anywhere; what is committed after the head never stays out.
            let lower = if seq <= self.head && self.headless.is_none() {
                self.last
            } else {
                self.last.max(self.head)
            };
            let left_out = model.on_disk(|disk| {
                disk.records_between(envelopes(self.group), lower, seq)
                    .find(|(seq, id)| !self.got.contains(seq) && !own.contains(id))
            });
            if let Some((left_out, id)) = left_out {
                model.fail("everything after the cursor, or a notice", || {
                    format!(
                        "{:?}: {seq} was pushed, {left_out} ({id:?}) was not, and no notice came",
                        self.group
                    )
                });
            }
        }
        self.got.insert(seq);
        self.last = seq;
    }

    /// A PUSH while a RECON is under way: it may be its answer.
    pub fn pushed_meanwhile(&mut self, seq: u64) {
        self.got.insert(seq);
    }

    /// A HANDSHAKE that acknowledges nothing. `own` says what this connection itself published.
    pub fn handshake(&mut self, seq: u64, id: Hash, own: &BTreeSet<Hash>, model: &mut Model) {
        if seq < self.next_handshake {
            if !own.contains(&id) {
                let next = self.next_handshake;
                model.fail("handshakes rise", || {
                    format!("{:?}: handshake {seq}, {next} was next", self.group)
                });
            }
            return;
        }
        let left_out = model.on_disk(|disk| {
            (self.next_handshake..seq).find(|&n| {
                let record = disk.record(handshakes(self.group), n);
                record.is_none_or(|r| !own.contains(&r.id))
            })
        });
        if let Some(left_out) = left_out.filter(|_| !self.handshakes_cut) {
            model.fail("handshakes are dense", || {
                format!("{:?}: handshake {seq} came, {left_out} did not", self.group)
            });
        }
        self.next_handshake = seq + 1;
    }

    /// The end: nothing that the relay holds has stayed out.
    pub fn settled(&self, who: &str, own: &BTreeSet<Hash>, model: &mut Model) {
        if self.behind {
            return;
        }
        let lower = self.last.max(self.head);
        let left_out = model.on_disk(|disk| {
            disk.records_between(envelopes(self.group), lower, u64::MAX)
                .find(|(seq, id)| !self.got.contains(seq) && !own.contains(id))
        });
        if let Some((seq, id)) = left_out {
            model.fail("everything after the cursor, or a notice", || {
                format!(
                    "{who}, {:?}: {seq} ({id:?}) was never pushed, and no notice came",
                    self.group
                )
            });
        }
        let count = model.on_disk(|disk| disk.head(handshakes(self.group)).map_or(0, |last| last + 1));
        let missing = model.on_disk(|disk| {
            (self.next_handshake..count).find(|&n| {
                let record = disk.record(handshakes(self.group), n);
                record.is_none_or(|r| !own.contains(&r.id))
            })
        });
        if let Some(missing) = missing.filter(|_| !self.handshakes_cut) {
            model.fail("handshakes are dense", || {
                format!("{who}, {:?}: handshake {missing} never came", self.group)
            });
        }
    }
}
