//! One CALL: whether it is taken (10 §3, §4), who is in the call from then on, and who is told.

use super::{Call, Calls, Counts, Handling, VERSION, refused_as};
use drover_wire::error::Code;
use drover_wire::id::{CallId, GroupId};
use std::collections::BTreeMap;

/// Seats of a call (10 §3).
const SEATS: usize = 5;
/// A call in which nothing happens for so long goes when somebody wants another (10 §3).
const IDLE_MS: u64 = 120_000;
/// The longest body of a CALL (10 §1).
const BODY_MAX: usize = 4096;
/// What a CALL is refused with that is one too many, or finds no seat (10 §3, §4).
const LIMITED: &[Code] = &[Code::RateLimited];
/// What a CALL is refused with whose call is another group's (10 §3).
const STRANGER: &[Code] = &[Code::WriterNotInAccessSet];
/// CALLs of one connection in a minute (10 §4).
const CALLS_PER_MINUTE: u32 = 120;

/// A CALL, as far as it matters here.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) call_id: CallId,
    pub(super) group: GroupId,
    pub(super) kind: u8,
    pub(super) body_bytes: usize,
}

impl Ring {
    fn is_join(&self) -> bool {
        self.kind <= 2
    }
}

impl Calls {
    pub(super) fn call(
        &mut self,
        h: &Handling,
        after: &Counts,
        frame: &Ring,
        groups: &BTreeMap<GroupId, usize>,
    ) {
        let refusal = after.refusal(&h.before);
        let expected = self.judge(h, frame, groups);
        // A call whose participants may all be gone may have to be opened anew, and find no place.
        let may_be_new = !h.is_sure && frame.is_join() && self.calls.contains_key(&frame.call_id);
        let finds_no_place = may_be_new && refusal == Some(Code::RateLimited);
        let agrees = match (&expected, refusal) {
            (Ok(()), None) => true,
            (Err(codes), Some(code)) => codes.contains(&code) || *codes == STRANGER && finds_no_place,
            // Whoever seemed to be in the way has left, perhaps with the whole call.
            (Err(codes), None) => !h.is_sure && (*codes == STRANGER || frame.is_join() && *codes == LIMITED),
            (Ok(()), Some(_)) => finds_no_place,
        };
        if !agrees {
            let line = h.line;
            self.fail("CALL is taken as the rules say", || {
                format!("line {line}, {frame:?}: {refusal:?}, not {expected:?}")
            });
        }
        if let Some(code) = refusal {
            self.count(refused_as(code), 1);
            return self.reached_nobody(h);
        }
        self.take(h, frame);
        self.rings(h, after, frame.group);
    }

    /// 10 §4 and §3, in their order: the codes it may be refused with.
    fn judge(
        &mut self,
        h: &Handling,
        frame: &Ring,
        groups: &BTreeMap<GroupId, usize>,
    ) -> Result<(), &'static [Code]> {
        if !(1..=4).contains(&frame.kind) {
            return Err(&[Code::MalformedHeader]);
        }
        if frame.body_bytes > BODY_MAX {
            return Err(&[Code::EnvelopeTooLarge]);
        }
        let talker = self.talkers.entry(h.line).or_default();
        if !talker.calls.takes(h.wall_ms, CALLS_PER_MINUTE) {
            return Err(LIMITED);
        }
        if groups.get(&frame.group) != Some(&talker.workspace) {
            return Err(&[Code::WriterNotInAccessSet, Code::GroupUnknown]);
        }
        if frame.is_join() {
            let idle = |call: &Call| h.mono_ms.saturating_sub(call.touched_ms) >= IDLE_MS;
            let before = self.calls.len();
            self.calls.retain(|_, call| !idle(call));
            self.count("calls dropped for silence", before - self.calls.len());
        }
        match self.calls.get(&frame.call_id) {
            Some(call) if call.group != frame.group => Err(STRANGER),
            _ if !frame.is_join() => Ok(()),
            Some(call) if call.members.contains(&h.line) || call.members.len() < SEATS => Ok(()),
            Some(_) => Err(LIMITED),
            None => {
                let mine = self
                    .calls
                    .values()
                    .filter(|c| c.members.contains(&h.line))
                    .count();
                let fits = self.calls.len() < self.calls_max && mine < (self.calls_max / 4).max(1);
                if fits { Ok(()) } else { Err(LIMITED) }
            }
        }
    }

    /// It is taken: who is in the call from now on.
    fn take(&mut self, h: &Handling, frame: &Ring) {
        if frame.is_join() {
            let call = self.calls.entry(frame.call_id).or_insert_with(|| Call {
                group: frame.group,
                members: Vec::new(),
                touched_ms: h.mono_ms,
            });
            if call.group != frame.group {
                (call.group, call.members) = (frame.group, Vec::new());
            }
            if !call.members.contains(&h.line) {
                call.members.push(h.line);
            }
            call.touched_ms = h.mono_ms;
            let full = call.members.len() == SEATS;
            self.count("CALL joins", 1);
            self.count("full calls", usize::from(full));
        } else if let Some(call) = self.calls.get_mut(&frame.call_id)
            && call.members.contains(&h.line)
        {
            call.touched_ms = h.mono_ms;
            call.members.retain(|member| *member != h.line);
            if call.members.is_empty() {
                self.calls.remove(&frame.call_id);
            }
            self.count("CALL leaves", 1);
        }
    }

    /// Everybody else who listens to the group is told (10 §4 row 7), or a full queue has shed it.
    fn rings(&mut self, h: &Handling, after: &Counts, group: GroupId) {
        let mut missing = 0;
        for (line, talker) in &self.talkers {
            let times = h.reached.iter().filter(|reached| *reached == line).count();
            let may = *line != h.line && talker.version >= VERSION && talker.asked.contains(&group);
            if times > usize::from(may) {
                let (line, by) = (*line, h.line);
                return self.fail("a CALL reaches who listens and nobody else", || {
                    format!("line {line} is told {times} times of line {by}'s call in {group:?}")
                });
            }
            let must = may && self.present.contains(line) && talker.listens.contains(&group);
            missing += u64::from(must && times == 0);
        }
        let shed = after.shed - h.before.shed;
        if h.is_sure && missing > shed {
            let line = h.line;
            self.fail("a CALL reaches who listens and nobody else", || {
                format!("{missing} don't hear of line {line}'s call in {group:?}, {shed} queues were full")
            });
        }
        self.count("CALLs heard", h.reached.len());
    }
}
