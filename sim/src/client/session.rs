//! A client's connection and what it keeps beyond it: the frames it is owed answers for, the envelopes it holds, what
//! it has sent and not seen acknowledged. What it reads is told to the model; what it does is for its [kinds](super).

mod held;
mod reading;

pub use held::Held;
use held::Reconciling;

use super::{Ask, Notice};
use crate::model::{Subscription, envelopes};
use crate::world::{Line, Outside};
use bytes::Bytes;
use drover_client::recon::Reconciler;
use drover_client::{Identity, SealedEnvelope};
use drover_wire::envelope::Envelope;
use drover_wire::error::Code;
use drover_wire::frame::{Frame, List32Buf, Wake};
use drover_wire::id::{GroupId, Hash};
use drover_wire::map::{MapFrame, Span};
use drover_wire::recon::{self, OPEN_END};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What the source addresses of all clients begin with.
pub const SOURCES: &str = "198.51.100.";
/// How long a client waits for an answer before it gives a connection up.
const PATIENCE_US: u64 = 60_000_000;

/// Lists of one reconciliation before payloads go on with it.
const LISTS_MAX: u32 = 8;

/// Where the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There is none.
    Down,
    /// Open, and nothing said: JOIN is for this.
    Fresh,
    /// CONNECT is sent.
    Greeting,
    /// AUTH is sent.
    Proving,
    /// AUTH_ACK has come.
    Ready,
}

/// An answer that is due, in the order of the frames.
#[derive(Clone, Debug)]
enum Due {
    Connect,
    Auth,
    Send(GroupId, Hash),
    Handshake(GroupId, Hash),
    Sub {
        group: GroupId,
        from: u64,
    },
    Replayed(GroupId),
    Recon(GroupId),
    Ask(Ask),
    /// What was said in calls before it is answered only if it is refused.
    Said,
}

/// A durable write that is not acknowledged.
struct Unacked {
    frame: Bytes,
    group: GroupId,
    /// It was sent on an earlier connection.
    earlier: bool,
    /// Frames of it on this connection without an answer.
    under_way: usize,
    not_before_us: u64,
}

/// See the module.
pub struct Session {
    /// The client.
    pub client: usize,
    /// Its name in traces.
    pub name: String,
    /// Its workspace.
    pub workspace: usize,
    /// Its key.
    pub identity: Identity,
    /// What CONNECT names.
    pub groups: Vec<GroupId>,
    /// Where its connection is.
    pub state: State,
    /// Its connection.
    pub line: Option<Line>,
    /// It does not dial before.
    pub retry_at_us: u64,
    /// It dials without being asked.
    pub dials: bool,
    /// By group.
    pub held: BTreeMap<GroupId, Held>,
    due: VecDeque<Due>,
    waits_since_us: u64,
    unacked: BTreeMap<Hash, Unacked>,
    /// Sent on this connection: not pushed to it.
    sent_here: BTreeSet<Hash>,
    /// Unanswered frames on this connection at most.
    window: usize,
    /// Told to the kinds.
    pub notices: Vec<Notice>,
    /// It speaks the map form.
    pub map: bool,
    /// The version it offers.
    pub version: u16,
    /// Groups of which something was acknowledged on this connection.
    pub proved: BTreeSet<GroupId>,
    /// Refused since it was last admitted.
    pub refused: Option<Code>,
    source: String,
}

impl Session {
    pub(crate) fn new(
        client: usize,
        name: String,
        workspace: usize,
        identity: Identity,
        groups: Vec<GroupId>,
        window: usize,
    ) -> Self {
        let held = groups.iter().map(|group| (*group, Held::default())).collect();
        Self {
            client,
            source: format!("{SOURCES}{}", client + 1),
            name,
            workspace,
            identity,
            groups,
            state: State::Down,
            line: None,
            retry_at_us: 0,
            dials: true,
            held,
            due: VecDeque::new(),
            waits_since_us: 0,
            unacked: BTreeMap::new(),
            sent_here: BTreeSet::new(),
            window,
            notices: Vec::new(),
            map: false,
            version: 4,
            proved: BTreeSet::new(),
            refused: None,
        }
    }

    /// The source address of its connections.
    pub fn source(&self) -> &str {
        &self.source
    }

    // ---- the connection

    /// Dials, and says nothing yet.
    pub fn open(&mut self, out: &mut Outside) {
        self.line = out.open(self.client);
        if self.line.is_some() {
            self.state = State::Fresh;
            self.waits_since_us = out.now_us();
        } else {
            self.back_off(out);
        }
    }

    /// CONNECT.
    pub fn greet(&mut self, out: &mut Outside) {
        let list: List32Buf = self.groups.iter().copied().collect();
        self.state = State::Greeting;
        self.say(
            &Frame::Connect {
                version: self.version,
                groups: list.as_list(),
                sent_at_ms: 0,
            },
            Some(Due::Connect),
            out,
        );
    }

    /// The client leaves without a word.
    pub fn hang_up(&mut self, out: &mut Outside) {
        if let Some(line) = self.line {
            out.hang_up(line);
            self.lost(out);
        }
    }

    /// The connection is gone.
    pub fn lost(&mut self, out: &mut Outside) {
        self.line = None;
        self.state = State::Down;
        for due in std::mem::take(&mut self.due) {
            if let Due::Ask(ask) = due {
                self.notices.push(Notice::Lost(ask));
            }
        }
        self.sent_here.clear();
        self.proved.clear();
        for write in self.unacked.values_mut() {
            write.under_way = 0;
            write.earlier = true;
        }
        for held in self.held.values_mut() {
            held.recon = None;
            held.behind |= held.subscription.take().is_some();
        }
        self.back_off(out);
    }

    fn back_off(&mut self, out: &mut Outside) {
        let pause = if self.refused.is_some() {
            out.dice.skewed(1_000_000, 30_000_000)
        } else {
            out.dice.skewed(1_000, 2_000_000)
        };
        self.retry_at_us = out.now_us() + pause;
    }

    fn say(&mut self, frame: &Frame<'_>, due: Option<Due>, out: &mut Outside) {
        let bytes = self.encode(frame);
        self.say_bytes(bytes, due, out);
    }

    /// The frame in this session's form, where it has two.
    fn encode(&self, frame: &Frame<'_>) -> Bytes {
        let mut bytes = Vec::new();
        let map = match *frame {
            _ if !self.map => None,
            Frame::Connect { version, groups, .. } => Some(MapFrame::Connect { version, groups }),
            Frame::Auth {
                device_key,
                signature,
            } => Some(MapFrame::Proof {
                device_key,
                signature,
            }),
            Frame::Send { envelope } => Envelope::decode(envelope).ok().map(MapFrame::Send),
            Frame::Recon { group, payload } => Some(MapFrame::Recon { group, payload }),
            _ => None,
        };
        match map {
            Some(map) => map.encode(&mut bytes),
            None => frame.encode(&mut bytes),
        }
        bytes.into()
    }

    fn say_bytes(&mut self, bytes: Bytes, due: Option<Due>, out: &mut Outside) {
        let Some(line) = self.line else { return };
        if self.due.is_empty() {
            self.waits_since_us = out.now_us();
        }
        self.due.extend(due);
        out.say(line, bytes);
    }

    // ---- what a client does

    /// Whether another frame may be sent before an answer comes.
    pub fn may_say(&self) -> bool {
        // In the map form an acknowledgement looks like a PUSH: one thing at a time tells them apart.
        let window = if self.map { 1 } else { self.window };
        self.state == State::Ready && self.due.len() < window && !self.talks()
    }

    /// Whether it has yet to learn what became of what it said in calls.
    pub fn talks(&self) -> bool {
        matches!(self.due.back(), Some(Due::Said))
    }

    /// CALL and MEDIA, with a WAKE query behind them: refusals that come before its answer are theirs.
    pub fn talk(&mut self, frames: &[Frame<'_>], out: &mut Outside) {
        for frame in frames {
            self.say(frame, None, out);
        }
        self.say(&Frame::Wake(Wake::Query), Some(Due::Said), out);
    }

    /// Sends an envelope, now and again until it is acknowledged; returns its content address.
    pub fn send(&mut self, group: GroupId, ct: &[u8], out: &mut Outside) -> Hash {
        let envelope = SealedEnvelope::new(group, 0, ct.to_vec()).expect("a ciphertext of some bytes");
        let (hash, encoded) = (envelope.hash(), envelope.encode());
        let frame = self.encode(&Frame::Send { envelope: &encoded });
        self.write(group, hash, frame, Due::Send(group, hash), out);
        hash
    }

    /// Publishes a handshake message, now and again until it is acknowledged.
    pub fn publish(&mut self, group: GroupId, message: &[u8], out: &mut Outside) {
        let id = Hash::of(&[&group.0, message]);
        let mut frame = Vec::new();
        Frame::Handshake {
            group,
            seq: 0,
            message,
        }
        .encode(&mut frame);
        self.write(group, id, frame.into(), Due::Handshake(group, id), out);
    }

    fn write(&mut self, group: GroupId, id: Hash, frame: Bytes, due: Due, out: &mut Outside) {
        let write = self.unacked.entry(id).or_insert(Unacked {
            frame: frame.clone(),
            group,
            earlier: false,
            under_way: 0,
            not_before_us: 0,
        });
        if self.state == State::Ready {
            write.under_way += 1;
            self.sent_here.insert(id);
            self.say_bytes(frame, Some(due), out);
        }
    }

    /// SUB from here, with a WAKE query behind it that is answered when the replay is over.
    pub fn subscribe(&mut self, group: GroupId, from: u64, out: &mut Outside) {
        let asked = self
            .due
            .iter()
            .any(|due| matches!(due, Due::Sub { group: g, .. } | Due::Replayed(g) if *g == group));
        let active = self.held.get(&group).is_some_and(|h| h.subscription.is_some());
        if asked || self.state != State::Ready {
            return;
        }
        if self.map {
            return self.subscribe_map(group, from, out);
        }
        // From 1 on, SUB_ACK's head is never 0, and so never taken for a notice of the subscription there is.
        let from = if active { from.max(1) } else { from };
        self.say(
            &Frame::Sub {
                group,
                from_seq: from,
            },
            Some(Due::Sub { group, from }),
            out,
        );
        self.say(&Frame::Wake(Wake::Query), Some(Due::Replayed(group)), out);
    }

    fn subscribe_map(&mut self, group: GroupId, from: u64, out: &mut Outside) {
        let Some(held) = self
            .held
            .get_mut(&group)
            .filter(|held| held.subscription.is_none())
        else {
            return;
        };
        held.subscription = Some(Subscription::headless(group, from, &mut out.model));
        let groups: List32Buf = [group].into_iter().collect();
        let mut bytes = Vec::new();
        MapFrame::Sub {
            groups: groups.as_list(),
            from_seq: Some(from),
            no_backfill: None,
        }
        .encode(&mut bytes);
        self.say_bytes(bytes.into(), None, out);
        self.say(&Frame::Wake(Wake::Query), Some(Due::Replayed(group)), out);
    }

    /// Begins a reconciliation unless one is under way.
    pub fn reconcile(&mut self, group: GroupId, out: &mut Outside) {
        let Some(held) = self.held.get_mut(&group) else {
            return;
        };
        if held.recon.is_some() || self.state != State::Ready {
            return;
        }
        let owed = out
            .model
            .on_disk(|disk| disk.stream(envelopes(group)).map(|(_, r)| r.id).collect());
        if self.map && out.dice.chance(0.5) {
            let whole = held.spans([(0, OPEN_END)].into_iter());
            held.recon = Some((Reconciling::Lists(1), owed));
            return self.ask_by_list(group, whole, out);
        }
        self.ask_by_payload(group, owed, out);
    }

    /// Begins to reconcile by payloads; `owed` was on disk when the reconciliation began.
    fn ask_by_payload(&mut self, group: GroupId, owed: BTreeSet<Hash>, out: &mut Outside) {
        let Some(held) = self.held.get_mut(&group) else {
            return;
        };
        let mut reconciler = Reconciler::new(0);
        let payload = reconciler.open(&held.items);
        held.recon = Some((Reconciling::Payload(reconciler), owed));
        held.fresh.clear();
        let payload = &payload;
        self.say(&Frame::Recon { group, payload }, Some(Due::Recon(group)), out);
    }

    fn ask_by_list(&mut self, group: GroupId, spans: Vec<Span>, out: &mut Outside) {
        let mut bytes = Vec::new();
        MapFrame::ReconList { group, spans }.encode(&mut bytes);
        self.say_bytes(bytes.into(), Some(Due::Recon(group)), out);
    }

    /// LIVE.
    pub fn beat(&mut self, group: GroupId, ct: &[u8], out: &mut Outside) {
        out.model.beats.insert((group, ct.to_vec()));
        self.say(&Frame::Live { group, epoch: 0, ct }, None, out);
    }

    /// A request of a kind.
    pub fn ask(&mut self, frame: &Frame<'_>, ask: Ask, out: &mut Outside) {
        self.say(frame, Some(Due::Ask(ask)), out);
    }

    /// What has to be done anyway: dial, send again, subscribe again, catch up. Returns whether all of it is done.
    pub fn duties(&mut self, out: &mut Outside) -> bool {
        let now = out.now_us();
        if self.line.is_some() && !self.due.is_empty() && now > self.waits_since_us + PATIENCE_US {
            self.hang_up(out);
        }
        match self.state {
            State::Down if self.dials && now >= self.retry_at_us => {
                self.open(out);
                if self.state == State::Fresh {
                    self.greet(out);
                }
                return false;
            }
            State::Ready if !(self.talks() || self.map && !self.due.is_empty()) => {}
            _ => return false,
        }
        let mut done = true;
        let waiting: Vec<Hash> = self
            .unacked
            .iter()
            .filter(|(_, w)| w.under_way == 0 && w.not_before_us <= now)
            .map(|(id, _)| *id)
            .collect();
        done &= self.unacked.is_empty();
        for id in waiting {
            if !self.may_say() {
                break;
            }
            self.say_again(id, out);
        }
        for group in self.groups.clone() {
            let Some(held) = self.held.get_mut(&group) else {
                continue;
            };
            let resubscribe = held
                .subscription
                .as_ref()
                .is_none_or(|s| s.handshakes_cut && !self.map);
            let behind = held.behind || held.subscription.as_ref().is_some_and(|s| s.behind);
            if held.wants && resubscribe {
                done = false;
                let from = held.items.last().map_or(0, |item| recon::item_seq(item) + 1);
                self.subscribe(group, from, out);
            } else if behind {
                done = false;
                self.reconcile(group, out);
            }
        }
        done && self.due.is_empty()
    }

    /// Sends a write again that may have been sent before.
    fn say_again(&mut self, id: Hash, out: &mut Outside) {
        let Some(write) = self.unacked.get_mut(&id) else {
            return;
        };
        write.under_way += 1;
        let (frame, group) = (write.frame.clone(), write.group);
        self.sent_here.insert(id);
        let due = match Frame::decode(&frame) {
            Ok(Frame::Handshake { .. }) => Due::Handshake(group, id),
            _ => Due::Send(group, id),
        };
        self.say_bytes(frame, Some(due), out);
    }

    /// One of the writes without an answer, twice.
    pub fn repeat_one(&mut self, out: &mut Outside) {
        let ids: Vec<Hash> = self.unacked.keys().copied().collect();
        if let Some(id) = out.dice.pick(&ids).copied()
            && self.may_say()
        {
            self.say_again(id, out);
        }
    }

    /// Nobody takes what it wrote any more.
    pub fn give_up_writes(&mut self) {
        self.unacked.clear();
    }

    /// Whether it waits for nothing.
    pub fn is_idle(&self) -> bool {
        self.due.is_empty() && self.unacked.is_empty()
    }

    /// What it waits for, for a trace.
    pub fn describe(&self) -> String {
        format!(
            "{} {:?}, due {:?}, {} unacknowledged, refused {:?}",
            self.name,
            self.state,
            self.due,
            self.unacked.len(),
            self.refused
        )
    }

    /// The end: what its subscriptions still lack.
    pub fn settled(&self, out: &mut Outside) {
        for held in self.held.values() {
            if let Some(subscription) = &held.subscription {
                subscription.settled(&self.name, &self.sent_here, &mut out.model);
            }
        }
    }
}
