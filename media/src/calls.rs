//! One shard's calls and who is in them (10 §3). A call's group lives on one shard, and so do all its participants:
//! forwarding is a look-up and a walk over at most five entries of plain memory.

use crate::limits::{JOIN_RETRY_S, PARTICIPANTS_MAX};
use crate::table::{CallTable, Life, Standing};
use drover_wire::error::{Code, Refusal};
use drover_wire::id::{CallId, GroupId};
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use std::sync::Arc;

/// A connection in a call; `P` is what the shard knows it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Participant<P> {
    /// The connection. A participant is a connection, not a device.
    pub id: P,
    /// Whether it is sent MEDIA: below version 3 it only keeps its seat (decisions.md 7).
    pub hears: bool,
}

/// Why somebody may not join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinRefused {
    /// The id belongs to another group's call.
    OtherGroup,
    /// The call has its five.
    CallFull,
    /// The process has its calls.
    TableFull,
    /// The connection has its share of them.
    ShareTaken,
}

impl JoinRefused {
    /// The answer, where `calls_max` calls may be open in the process.
    pub fn refusal(self, calls_max: usize) -> Refusal {
        let limited = |limit: usize| Refusal::number(Code::RateLimited, limit as u64).after(JOIN_RETRY_S);
        match self {
            Self::OtherGroup => Refusal::number(Code::WriterNotInAccessSet, 0),
            Self::CallFull => limited(PARTICIPANTS_MAX),
            Self::TableFull | Self::ShareTaken => limited(calls_max),
        }
    }
}

#[derive(Debug)]
struct Call<P> {
    group: GroupId,
    /// In the order they joined.
    participants: Vec<Participant<P>>,
    life: Arc<Life>,
}

impl<P: Copy + PartialEq> Call<P> {
    fn has(&self, id: P) -> bool {
        self.participants.iter().any(|participant| participant.id == id)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Calls<P> {
    table: Arc<CallTable>,
    /// Never without participants. One that was dropped for being idle stays until somebody looks.
    calls: HashMap<CallId, Call<P>>,
}

impl<P: Copy + PartialEq> Calls<P> {
    /// A shard's calls; `table` is the one of the process.
    pub fn new(table: Arc<CallTable>) -> Self {
        Self {
            table,
            calls: HashMap::new(),
        }
    }

    /// An offer or an answer (10 §3): joins the call, or opens it if there is none. `calls_max` may be open in the
    /// process; of those a connection may be in a quarter, at least one, when it opens another. A participant that
    /// asks again changes nothing but that the call is alive (10 decision 5).
    ///
    /// # Errors
    /// See [`JoinRefused`]; nothing has changed then.
    pub fn join(
        &mut self,
        mono_ms: u64,
        call_id: CallId,
        group: GroupId,
        who: Participant<P>,
        calls_max: usize,
    ) -> Result<(), JoinRefused> {
        let calls = &self.calls;
        let may_open = |open: usize| {
            let held = calls
                .values()
                .filter(|call| call.has(who.id) && !call.life.is_dropped())
                .count();
            if open >= calls_max {
                Err(JoinRefused::TableFull)
            } else if held >= (calls_max / 4).max(1) {
                Err(JoinRefused::ShareTaken)
            } else {
                Ok(())
            }
        };
        let standing = self.table.join(mono_ms, call_id, group, may_open);
        self.calls.retain(|_, call| !call.life.is_dropped());
        match standing? {
            Standing::OtherGroup => Err(JoinRefused::OtherGroup),
            Standing::Opened(life) => {
                let participants = vec![who];
                self.calls.insert(
                    call_id,
                    Call {
                        group,
                        participants,
                        life,
                    },
                );
                Ok(())
            }
            Standing::Open => {
                let Some(call) = self.calls.get_mut(&call_id) else {
                    debug_assert!(false, "a call of a group is on the group's shard");
                    return Err(JoinRefused::OtherGroup);
                };
                if !call.has(who.id) {
                    if call.participants.len() >= PARTICIPANTS_MAX {
                        return Err(JoinRefused::CallFull);
                    }
                    call.participants.push(who);
                }
                call.life.refresh(mono_ms);
                Ok(())
            }
        }
    }

    /// A decline or a bye (10 §3): the connection leaves if it is in, and nobody minds if it is not.
    ///
    /// # Errors
    /// [`JoinRefused::OtherGroup`]: nobody leaves and nothing is to be forwarded.
    pub fn leave(&mut self, mono_ms: u64, call_id: CallId, group: GroupId, id: P) -> Result<(), JoinRefused> {
        if self.table.is_elsewhere(call_id, group) {
            return Err(JoinRefused::OtherGroup);
        }
        if let Entry::Occupied(mut entry) = self.calls.entry(call_id)
            && entry.get().group == group
            && entry.get().has(id)
        {
            let call = entry.get_mut();
            call.life.refresh(mono_ms);
            call.participants.retain(|participant| participant.id != id);
            if call.participants.is_empty() {
                let call = entry.remove();
                self.table.close(call_id, &call.life);
            }
        }
        Ok(())
    }

    /// The connection is gone, for whatever reason: it is in no call any more. Nobody is told.
    pub fn gone(&mut self, id: P) {
        let table = &self.table;
        self.calls.retain(|call_id, call| {
            call.participants.retain(|participant| participant.id != id);
            if call.participants.is_empty() {
                table.close(*call_id, &call.life);
            }
            !call.participants.is_empty()
        });
    }

    /// A MEDIA frame of `sender`: calls `deliver` for every other participant that hears, in the order they joined, and
    /// returns how many that were. `None` if the sender is not in that call, or there is no such call: the two are not
    /// told apart.
    #[inline]
    pub fn forward(
        &mut self,
        mono_ms: u64,
        call_id: CallId,
        sender: P,
        mut deliver: impl FnMut(P),
    ) -> Option<usize> {
        let call = self.calls.get(&call_id)?;
        if !call.has(sender) || !call.life.refresh(mono_ms) {
            return None;
        }
        let others = call.participants.iter().filter(|p| p.hears && p.id != sender);
        let mut count = 0;
        for participant in others {
            deliver(participant.id);
            count += 1;
        }
        Some(count)
    }

    /// Who is in a call, in the order they joined.
    pub fn participants(&self, call_id: CallId) -> &[Participant<P>] {
        match self.calls.get(&call_id) {
            Some(call) if !call.life.is_dropped() => &call.participants,
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::IDLE_MS;

    const MAX: usize = 8;
    const CALL: CallId = CallId([0xc1; 16]);

    fn group(n: u8) -> GroupId {
        GroupId([n; 32])
    }

    fn calls() -> Calls<u32> {
        Calls::new(Arc::default())
    }

    fn who(id: u32) -> Participant<u32> {
        Participant { id, hears: true }
    }

    fn open(calls: &mut Calls<u32>, n: u8, id: u32) -> Result<(), JoinRefused> {
        calls.join(0, CallId([n; 16]), group(1), who(id), MAX)
    }

    fn heard(calls: &mut Calls<u32>, at: u64, sender: u32) -> Option<Vec<u32>> {
        let mut to = Vec::new();
        calls.forward(at, CALL, sender, |id| to.push(id))?;
        Some(to)
    }

    /// W10.2, W10.12, W10.19
    #[test]
    fn media_goes_to_every_other_participant_that_hears() {
        let mut c = calls();
        assert_eq!(heard(&mut c, 0, 1), None, "no such call");
        c.join(0, CALL, group(1), who(1), MAX).unwrap();
        assert_eq!(heard(&mut c, 0, 1), Some(vec![]));
        c.join(0, CALL, group(1), who(2), MAX).unwrap();
        c.join(0, CALL, group(1), Participant { id: 3, hears: false }, MAX)
            .unwrap();
        assert_eq!(heard(&mut c, 0, 1), Some(vec![2]));
        assert_eq!(heard(&mut c, 0, 3), Some(vec![1, 2]), "it may speak");
        assert_eq!(heard(&mut c, 0, 4), None, "not in the call");
        c.leave(0, CALL, group(1), 4).unwrap();
        c.leave(0, CALL, group(1), 1).unwrap();
        assert_eq!(heard(&mut c, 0, 1), None);
        c.gone(2);
        c.gone(3);
        assert_eq!(
            (c.table.open(), c.calls.len()),
            (0, 0),
            "it goes with its last participant"
        );
    }

    /// W10.3
    #[test]
    fn five_seats() {
        let mut c = calls();
        for id in 1..=5 {
            c.join(0, CALL, group(1), who(id), MAX).unwrap();
        }
        let full = c.join(0, CALL, group(1), who(6), MAX).unwrap_err();
        assert_eq!(full.refusal(MAX), Refusal::number(Code::RateLimited, 5).after(5));
        assert_eq!(
            c.join(0, CALL, group(1), who(5), MAX),
            Ok(()),
            "a member of a full call"
        );
        assert_eq!(c.participants(CALL).len(), 5);
        c.leave(0, CALL, group(1), 3).unwrap();
        assert_eq!(c.join(0, CALL, group(1), who(6), MAX), Ok(()));
        assert_eq!(heard(&mut c, 0, 1), Some(vec![2, 4, 5, 6]));
    }

    /// W10.4
    #[test]
    fn ceiling_and_share() {
        let mut c = calls();
        assert_eq!((open(&mut c, 1, 1), open(&mut c, 2, 1)), (Ok(()), Ok(())));
        assert_eq!(
            open(&mut c, 3, 1),
            Err(JoinRefused::ShareTaken),
            "a quarter of eight"
        );
        for (n, id) in (3..=8).zip([2, 2, 3, 3, 4, 4]) {
            assert_eq!(open(&mut c, n, id), Ok(()));
        }
        for n in 3..=8 {
            assert_eq!(open(&mut c, n, 1), Ok(()), "others' calls are not counted");
        }
        assert_eq!(open(&mut c, 9, 5), Err(JoinRefused::TableFull));
        assert_eq!(
            open(&mut c, 9, 1),
            Err(JoinRefused::TableFull),
            "before the share"
        );
        let refusal = JoinRefused::TableFull.refusal(MAX);
        assert_eq!(refusal, Refusal::number(Code::RateLimited, 8).after(5));
        assert_eq!(open(&mut c, 1, 9), Ok(()), "an open call may be joined");
        c.gone(2);
        assert_eq!(c.table.open(), 8, "somebody is left in them");
        for n in 3..=8 {
            c.leave(0, CallId([n; 16]), group(1), 1).unwrap();
        }
        assert_eq!((open(&mut c, 9, 5), open(&mut c, 10, 5)), (Ok(()), Ok(())));
        // At least one, however small the table.
        let mut c = calls();
        c.join(0, CALL, group(1), who(1), 1).unwrap();
        c.leave(0, CALL, group(1), 1).unwrap();
        assert_eq!(c.join(0, CALL, group(1), who(1), 1), Ok(()));
    }

    /// W10.5
    #[test]
    fn an_id_belongs_to_one_group() {
        let mut c = calls();
        c.join(0, CALL, group(1), who(1), MAX).unwrap();
        let refused = c.join(0, CALL, group(2), who(2), MAX).unwrap_err();
        assert_eq!(
            refused.refusal(MAX),
            Refusal::number(Code::WriterNotInAccessSet, 0)
        );
        assert_eq!(c.leave(0, CALL, group(2), 1), Err(JoinRefused::OtherGroup));
        assert_eq!(heard(&mut c, 0, 1), Some(vec![]), "it is still in");
        // The same on another shard.
        let mut other = Calls::new(c.table.clone());
        assert_eq!(
            other.join(0, CALL, group(2), who(2), MAX),
            Err(JoinRefused::OtherGroup)
        );
        assert_eq!(other.leave(0, CALL, group(2), 2), Err(JoinRefused::OtherGroup));
        c.gone(1);
        assert_eq!(other.join(0, CALL, group(2), who(2), MAX), Ok(()));
    }

    /// W10.17, on one shard and on two.
    #[test]
    fn an_idle_call_goes_at_the_next_join() {
        let mut c = calls();
        let mut other = Calls::new(c.table.clone());
        c.join(0, CALL, group(1), who(1), 2).unwrap();
        assert_eq!(heard(&mut c, 5, 1), Some(vec![]));
        c.join(6, CALL, group(1), who(1), 2).unwrap();
        assert_eq!(
            heard(&mut c, 10 + IDLE_MS, 1),
            Some(vec![]),
            "nobody has joined: it is still there"
        );
        c.join(10 + IDLE_MS, CallId([2; 16]), group(1), who(2), 2)
            .unwrap();
        let late = 10 + 2 * IDLE_MS;
        let refused = other.join(late - 1, CallId([3; 16]), group(3), who(3), 2);
        assert_eq!(refused, Err(JoinRefused::TableFull), "one millisecond short");
        assert_eq!(heard(&mut c, late - 1, 1), Some(vec![]));
        assert_eq!(other.join(late, CallId([3; 16]), group(3), who(3), 2), Ok(()));
        assert_eq!(
            c.forward(late, CallId([2; 16]), 2, |_| ()),
            None,
            "dropped elsewhere"
        );
        assert_eq!(heard(&mut c, late, 1), Some(vec![]), "the active one lives");
        assert_eq!(
            c.join(late, CallId([2; 16]), group(1), who(2), 2),
            Err(JoinRefused::TableFull)
        );
        c.gone(2);
        c.gone(1);
        assert_eq!(c.table.open(), 1);
        // What was dropped and opened again by somebody else is not closed by who was in it before.
        let late = late + IDLE_MS;
        c.join(late, CALL, group(1), who(1), 2).unwrap();
        other.join(late + IDLE_MS, CALL, group(3), who(3), 2).unwrap();
        c.gone(1);
        assert_eq!(other.participants(CALL).len(), 1);
        assert_eq!(c.table.open(), 1);
    }
}
