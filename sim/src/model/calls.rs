//! Calls (10): who is in which, and so who hears whom. Kept by what the relay is handed, with budgets and windows of
//! its own; what the relay makes of each CALL and MEDIA is held against it at once.
//!
//! A connection may end a moment before anybody outside can see it: its last answers wait for a full queue. While the
//! relay counts fewer sessions than are known of ([`Calls::is_sure`]), whoever is missing may be missing; at all other
//! times, and that is nearly always, everything must be as it is here, to the frame.

mod budget;
mod lane;
mod ring;

use super::Violation;
use crate::world::Line;
use budget::{Minute, Speech};
use drover_wire::error::Code;
use drover_wire::frame::Frame;
use drover_wire::id::{CallId, GroupId};
use lane::Lane;
use ring::Ring;
use std::collections::{BTreeMap, BTreeSet};

/// The first version that is sent CALL and MEDIA (10 §2).
const VERSION: u16 = 3;
/// The longest audio of a MEDIA (10 §1).
const CT_MAX: usize = 1500;

/// What the relay counts of calls: what became of a frame is read off before and after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// CALL and MEDIA frames handled.
    pub frames: u64,
    /// Refusals, by position in [`Code::ALL`].
    pub errors: [u64; 25],
    /// MEDIA of connections that were not in the call.
    pub denied: u64,
    /// CALL frames that a full queue shed, per recipient.
    pub shed: u64,
    /// Calls that are open.
    pub open: usize,
}

impl Counts {
    /// The refusal that came between.
    fn refusal(&self, before: &Counts) -> Option<Code> {
        let at = (0..self.errors.len()).find(|&n| self.errors[n] > before.errors[n])?;
        Code::ALL.get(at).copied()
    }
}

#[derive(Debug)]
struct Call {
    group: GroupId,
    members: Vec<Line>,
    touched_ms: u64,
}

/// One connection, as far as calls go.
#[derive(Default)]
struct Talker {
    workspace: usize,
    version: u16,
    /// Groups it has SUBscribed to, answered or not.
    asked: BTreeSet<GroupId>,
    /// Those that were answered.
    listens: BTreeSet<GroupId>,
    calls: Minute,
    speech: Speech,
    lane: Lane,
}

/// A CALL or MEDIA that the relay is handling.
struct Handling {
    line: Line,
    mono_ms: u64,
    wall_ms: u64,
    message: Vec<u8>,
    before: Counts,
    is_sure: bool,
    reached: Vec<Line>,
}

/// See the module.
#[derive(Default)]
pub struct Calls {
    /// Calls there may be.
    calls_max: usize,
    calls: BTreeMap<CallId, Call>,
    talkers: BTreeMap<Line, Talker>,
    /// Connections that the relay has admitted and not ended, as far as can be seen.
    present: BTreeSet<Line>,
    /// The relay's own count of them.
    counted: u64,
    handling: Option<Handling>,
    /// Audio by its receiver, call, and stream: the last number heard.
    heard: BTreeMap<(Line, CallId, [u8; 4]), u64>,
    /// Shed, delivered, kept off: for the coverage.
    pub(super) tally: BTreeMap<&'static str, u64>,
    broken: Option<Violation>,
}

impl Calls {
    pub(crate) fn new(calls_max: usize) -> Self {
        Self {
            calls_max,
            ..Self::default()
        }
    }

    fn fail(&mut self, rule: &'static str, what: impl FnOnce() -> String) {
        if self.broken.is_none() {
            self.broken = Some(Violation { rule, what: what() });
        }
    }

    /// The first rule that was broken since the last look.
    pub(crate) fn broken(&mut self) -> Option<Violation> {
        self.broken.take()
    }

    /// What came to pass since the last look.
    pub(crate) fn tally(&mut self) -> BTreeMap<&'static str, u64> {
        std::mem::take(&mut self.tally)
    }

    fn count(&mut self, what: &'static str, times: usize) {
        *self.tally.entry(what).or_default() += times as u64;
    }

    // ---- connections

    /// A process of its own: nobody is there.
    pub(crate) fn restarts(&mut self) {
        *self = Self {
            tally: std::mem::take(&mut self.tally),
            broken: self.broken.take(),
            ..Self::new(self.calls_max)
        };
    }

    /// A connection offered this version.
    pub(crate) fn greeted(&mut self, line: Line, workspace: usize, version: u16) {
        let talker = self.talkers.entry(line).or_default();
        (talker.workspace, talker.version) = (workspace, version);
    }

    /// A connection was admitted; so many sessions the relay counts now.
    pub(crate) fn admitted(&mut self, line: Line, counted: u64) {
        if counted > self.counted {
            self.present.insert(line);
        }
        self.counted = counted;
    }

    /// So many sessions the relay counts now.
    pub(crate) fn counts(&mut self, counted: u64) {
        self.counted = counted;
    }

    /// Whether every connection that ended in the relay is seen to have ended.
    pub(crate) fn is_sure(&self) -> bool {
        self.present.len() as u64 == self.counted
    }

    /// A connection has ended: it is in no call any more (10 §3).
    pub(crate) fn gone(&mut self, line: Line) {
        self.present.remove(&line);
        self.leave_all(line);
        if let Some(talker) = self.talkers.get_mut(&line) {
            talker.asked.clear();
            talker.listens.clear();
        }
    }

    fn leave_all(&mut self, line: Line) {
        self.calls.retain(|_, call| {
            call.members.retain(|member| *member != line);
            !call.members.is_empty()
        });
    }

    /// The relay is handed a SUB.
    pub(crate) fn subscribes(&mut self, line: Line, group: GroupId) {
        self.talkers.entry(line).or_default().asked.insert(group);
    }

    /// A SUB_ACK is queued.
    pub(crate) fn subscribed(&mut self, line: Line, group: GroupId) {
        self.talkers.entry(line).or_default().listens.insert(group);
    }

    /// The end, when no connection is on its way out: so many calls are open. Who is in each was heard when the roll
    /// was called.
    pub(crate) fn settle(&mut self, open: usize) {
        let (present, counted) = (self.present.len(), self.counted);
        if !self.is_sure() {
            self.fail("who is gone is in no session", || {
                format!("{counted} sessions are counted, {present} connections are there")
            });
        }
        let known = self.calls.len();
        if open != known {
            self.fail("a call is there while somebody is in it", || {
                format!("{open} are open in the end, and should be {known}")
            });
        }
        self.count("calls open in the end", known);
    }

    // ---- one frame

    /// The relay is about to handle this CALL or MEDIA.
    pub(crate) fn begins(&mut self, line: Line, mono_ms: u64, wall_ms: u64, message: &[u8], before: Counts) {
        self.handling = Some(Handling {
            line,
            mono_ms,
            wall_ms,
            message: message.to_vec(),
            before,
            is_sure: self.is_sure(),
            reached: Vec::new(),
        });
    }

    /// A CALL or MEDIA is queued for this connection.
    pub(crate) fn reaches(&mut self, line: Line, message: &[u8]) {
        match &mut self.handling {
            Some(handling) if handling.message == message => handling.reached.push(line),
            _ => self.fail("CALL and MEDIA are forwarded as they came", || {
                format!("line {line} is sent {} other bytes", message.len())
            }),
        }
    }

    /// It has been handled. `groups` are all groups that somebody's workspace has, with the workspace. Returns the
    /// workspace and the moment of an offer that was taken.
    pub(crate) fn ends(&mut self, after: Counts, groups: &BTreeMap<GroupId, usize>) -> Option<(usize, u64)> {
        let handling = self.handling.take()?;
        if after.frames == handling.before.frames {
            // Its session was over.
            if handling.is_sure {
                let line = handling.line;
                self.fail("who is admitted is heard", || format!("line {line}"));
            }
            self.gone(handling.line);
            return None;
        }
        let mut offered = None;
        match Frame::decode(&handling.message.clone()) {
            Ok(Frame::Media {
                call_id, stream, ct, ..
            }) => self.media(&handling, &after, call_id, stream, ct.len()),
            Ok(Frame::Call {
                call_id,
                group,
                kind,
                body,
                ..
            }) => {
                let frame = Ring {
                    call_id,
                    group,
                    kind,
                    body_bytes: body.len(),
                };
                self.call(&handling, &after, &frame, groups);
                let is_taken = kind == 1 && after.refusal(&handling.before).is_none();
                offered = is_taken.then(|| (self.talkers[&handling.line].workspace, handling.wall_ms));
            }
            _ => {}
        }
        if handling.is_sure && self.is_sure() && after.open != self.calls.len() {
            let open = after.open;
            let known = self.calls.len();
            self.fail("a call is there while somebody is in it", || {
                format!("{open} are open, and should be {known}")
            });
        }
        offered
    }

    fn media(&mut self, h: &Handling, after: &Counts, call_id: CallId, stream: [u8; 4], ct_bytes: usize) {
        let refusal = after.refusal(&h.before);
        let denied = after.denied > h.before.denied;
        let talker = self.talkers.entry(h.line).or_default();
        let is_member = self
            .calls
            .get(&call_id)
            .is_some_and(|c| c.members.contains(&h.line));
        // 10 §5, row by row.
        let (mut expected, mut is_denied) = (None, false);
        if ct_bytes > CT_MAX {
            expected = Some(Code::EnvelopeTooLarge);
        } else {
            if !talker.speech.takes(h.wall_ms, call_id, stream, ct_bytes) {
                expected = Some(Code::GroupIngressLimited);
            } else if !is_member {
                (expected, is_denied) = (Some(Code::WriterNotInAccessSet), true);
            }
            if expected.is_some() && !talker.speech.complains(h.wall_ms) {
                return self.silent(h, refusal, denied, is_denied);
            }
        }
        if refusal != expected || denied != is_denied {
            let line = h.line;
            self.fail("MEDIA is taken as its budgets and its call say", || {
                format!(
                    "line {line}, {call_id:?} {stream:?}: {refusal:?} (denied {denied}), not {expected:?}"
                )
            });
        }
        if let Some(code) = expected {
            self.count(refused_as(code), 1);
            return self.reached_nobody(h);
        }
        let Some(call) = self.calls.get_mut(&call_id) else {
            return;
        };
        call.touched_ms = h.mono_ms;
        let hears = |line: &Line| self.talkers.get(line).is_some_and(|t| t.version >= VERSION);
        let others: Vec<Line> = call
            .members
            .iter()
            .filter(|line| **line != h.line && hears(line))
            .copied()
            .collect();
        self.count("MEDIA heard", others.len());
        if let Some(stranger) = h.reached.iter().find(|line| !others.contains(line)) {
            let (line, stranger) = (h.line, *stranger);
            return self.fail("MEDIA reaches the other participants and nobody else", || {
                format!("line {stranger} is sent what line {line} says in {call_id:?}: {others:?} are in it")
            });
        }
        for line in &others {
            match h.reached.iter().filter(|reached| *reached == line).count() {
                1 => {}
                0 if !h.is_sure => self.leave_all(*line), // its end has yet to be seen
                times => self.fail("MEDIA reaches the other participants and nobody else", || {
                    format!("line {line} is sent what is said in {call_id:?} {times} times")
                }),
            }
        }
    }

    /// A refusal that is kept back: one was told within the second.
    fn silent(&mut self, h: &Handling, refusal: Option<Code>, denied: bool, is_denied: bool) {
        if refusal.is_some() || denied != is_denied {
            let line = h.line;
            self.fail("MEDIA is refused at most once a second", || {
                format!("line {line}: {refusal:?}, denied {denied}")
            });
        }
        self.count("MEDIA refused in silence", 1);
        self.reached_nobody(h);
    }

    fn reached_nobody(&mut self, h: &Handling) {
        if let Some(reached) = h.reached.first() {
            let (line, reached) = (h.line, *reached);
            self.fail("what is refused reaches nobody", || {
                format!("line {reached} is sent what line {line} may not say")
            });
        }
    }

    // ---- the lane of each connection

    /// MEDIA is queued for a connection: so many frames were shed for it, if that was said.
    pub(crate) fn queues(&mut self, line: Line, mono_ms: u64, message: &[u8], shed: Option<usize>) {
        let lane = &mut self.talkers.entry(line).or_default().lane;
        let expected = lane.push(mono_ms, message);
        self.shed(line, expected, shed.unwrap_or(expected));
    }

    /// What was too old in its lane is shed: so many frames.
    pub(crate) fn expires(&mut self, line: Line, mono_ms: u64, shed: usize) {
        if let Some(talker) = self.talkers.get_mut(&line) {
            let expected = talker.lane.expire(mono_ms);
            self.shed(line, expected, shed);
        }
    }

    fn shed(&mut self, line: Line, expected: usize, shed: usize) {
        self.count("MEDIA shed", expected);
        if expected != shed {
            self.fail("MEDIA is shed by age and number, and counted", || {
                format!("line {line}: {shed} frames are said to be shed, {expected} are too old or too many")
            });
        }
    }

    /// What waits for an evicted connection is dropped.
    pub(crate) fn clears(&mut self, line: Line) {
        if let Some(talker) = self.talkers.get_mut(&line) {
            talker.lane.clear();
        }
    }

    /// The first byte of a message is written to a connection.
    pub(crate) fn starts(&mut self, line: Line, mono_ms: u64, message: &[u8]) {
        let is_media = message.first() == Some(&0x82) && crate::world::is_media(message);
        let Some(talker) = self.talkers.get_mut(&line) else {
            return;
        };
        if !is_media && talker.lane.is_empty() {
            return;
        }
        if let Err((rule, what)) = talker.lane.start(mono_ms, is_media.then_some(message)) {
            self.fail(rule, || format!("line {line}: {what}"));
        }
    }

    /// Its last byte is.
    pub(crate) fn finishes(&mut self, line: Line) {
        if let Some(talker) = self.talkers.get_mut(&line) {
            talker.lane.finish();
        }
    }

    // ---- the other end

    /// A client reads audio.
    pub(crate) fn hears(&mut self, line: Line, version: u16, message: &Frame<'_>) {
        let &Frame::Media {
            call_id,
            stream,
            seq,
            ct,
        } = message
        else {
            return;
        };
        let whole = ct.iter().all(|byte| *byte == seq as u8);
        if version < VERSION || !whole || line == speaker(stream) {
            self.fail("MEDIA is for the others' ears, as it was said", || {
                format!("line {line} of version {version} hears {call_id:?} {stream:?} {seq}")
            });
        }
        if let Some(before) = self
            .heard
            .insert((line, call_id, stream), seq)
            .filter(|b| *b >= seq)
        {
            self.fail("a stream keeps its order", || {
                format!("line {line} hears {call_id:?} {stream:?} {seq} after {before}")
            });
        }
    }

    /// The group of a call.
    pub fn group(&self, call_id: CallId) -> Option<GroupId> {
        self.calls.get(&call_id).map(|call| call.group)
    }

    /// Calls this connection is in, for one who wants to know whether the relay agrees.
    pub fn of(&self, line: Line) -> Vec<CallId> {
        let calls = self.calls.iter();
        calls
            .filter(|(_, call)| call.members.contains(&line))
            .map(|(id, _)| *id)
            .collect()
    }
}

/// The stream of a connection with this number, of that connection.
pub fn stream(line: Line, number: u8) -> [u8; 4] {
    let [.., a, b, c] = (line as u64).to_be_bytes();
    [a, b, c, number]
}

fn speaker([a, b, c, _]: [u8; 4]) -> Line {
    u32::from_be_bytes([0, a, b, c]) as Line
}

fn refused_as(code: Code) -> &'static str {
    match code {
        Code::GroupIngressLimited => "MEDIA over budget",
        Code::WriterNotInAccessSet => "CALL or MEDIA denied",
        Code::RateLimited => "CALLs without a seat",
        _ => "CALL or MEDIA refused",
    }
}
