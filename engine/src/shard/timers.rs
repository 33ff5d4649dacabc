//! What time does to a connection and to memory: deadlines, idle probes (02 §2), indexes that nobody uses.

use super::{SWEEP_MS, Session, Shard};
use crate::effects::{CloseHow, CloseReason, Effects};
use crate::event::ConnId;
use crate::group::Loaded;
use crate::limits::{PROBE_MS, PROVISIONAL_CHECK_MS, STALL_MS};
use crate::realm::Admission;
use crate::session::State;
use drover_wire::error::{Code, Refusal};
use std::cmp::Reverse;

impl Shard {
    /// Sees to it that the connection's timers are looked at by then.
    pub(super) fn arm(&mut self, conn: ConnId, at_ms: u64) {
        let Some(session) = self.session(conn) else { return };
        if session.armed_ms.is_none_or(|armed| at_ms < armed) {
            session.armed_ms = Some(at_ms);
            self.timers.push(Reverse((at_ms, conn)));
        }
    }

    pub(super) fn tick<E: Effects>(&mut self, fx: &mut E) {
        let now = self.now.mono_ms;
        while let Some(&Reverse((at, conn))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            if let Some(session) = self.session(conn).filter(|s| s.armed_ms == Some(at)) {
                session.armed_ms = None;
                self.deadline(conn, fx);
            }
        }
        self.collect_on_time(fx);
        if now >= self.next_sweep_ms {
            self.next_sweep_ms = now + SWEEP_MS;
            self.sweep_indexes();
            self.sweep_registered();
        }
    }

    /// One of a connection's timers is due: acts on whichever has run out and arms the next (02 §2).
    pub(super) fn deadline<E: Effects>(&mut self, conn: ConnId, fx: &mut E) {
        let now = self.now.mono_ms;
        let (handshake_ms, idle_ms) = (self.config.handshake_timeout_ms, self.config.idle_timeout_ms);
        let stalled = |s: &mut Session| s.stalled_ms;
        // Closed sessions too: their last frames may wait for a peer that reads no more.
        if let Some(since) = self.session(conn).and_then(stalled)
            && now >= since + STALL_MS
        {
            // It may have read too little for the transport to tell.
            self.room(conn, fx);
            if self.session(conn).and_then(stalled) == Some(since) {
                self.detach(conn);
                fx.close(conn, CloseHow::Flush, CloseReason::SlowReader);
                return;
            }
        }
        let Some(session) = self.session(conn) else { return };
        let late = Refusal::plain(Code::RateLimited).after(5);
        let mut next = session.stalled_ms.map_or(u64::MAX, |since| since + STALL_MS);
        match session.state {
            State::Closed => {}
            State::Fresh | State::Challenged | State::Judging => {
                if now >= session.opened_ms + handshake_ms {
                    return self.fail(conn, late, CloseReason::HandshakeDeadline, fx);
                }
                next = next.min(session.opened_ms + handshake_ms);
            }
            State::Ready | State::Bootstrapping => {
                // A connection we don't read can't be silent.
                if session.paused {
                    session.active_ms = now;
                }
                next = next.min(match session.probe_ms {
                    Some(sent) if now >= sent + PROBE_MS.min(idle_ms) => {
                        return self.fail(conn, late, CloseReason::IdleDeadline, fx);
                    }
                    Some(sent) => sent + PROBE_MS.min(idle_ms),
                    None if now >= session.active_ms + idle_ms => {
                        session.probe_ms = Some(now);
                        fx.ping(conn);
                        now + PROBE_MS.min(idle_ms)
                    }
                    None => session.active_ms + idle_ms,
                });
                if session.provisional {
                    if self.has_lapsed(conn) {
                        return self.evict(conn, fx);
                    }
                    next = next.min(now + PROVISIONAL_CHECK_MS);
                }
            }
        }
        if next != u64::MAX {
            self.arm(conn, next);
        }
    }

    /// Whether the grant that admitted this session is dead by now and no set has taken its place (05 D11).
    pub(super) fn has_lapsed(&mut self, conn: ConnId) -> bool {
        let wall_ms = self.now.wall_ms;
        let Some(session) = self.session(conn).filter(|s| s.provisional) else {
            return false;
        };
        let (Some(slot), Some(entry)) = (session.realm, session.entry) else {
            return false;
        };
        let admission = self.realm_mut(slot).map(|r| r.admits_entry(&entry, wall_ms));
        if let Some(session) = self.session(conn) {
            // Once it is in the set, its removal is what ends it.
            session.provisional = admission != Some(Admission::InSet);
        }
        admission == Some(Admission::Refused)
    }

    /// Indexes of groups nobody has used lately go when there are too many of them; what is about to be committed,
    /// or listened to, stays.
    pub(super) fn sweep_indexes(&mut self) {
        let size = |loaded: &Loaded| match loaded {
            Loaded::Warm(index) => index.bytes(),
            _ => 0,
        };
        let mut total: usize = self
            .groups
            .iter()
            .map(|g| size(&g.envelopes) + size(&g.handshakes))
            .sum();
        if total <= self.config.index_bytes_max {
            return;
        }
        let mut idle: Vec<(u64, usize)> = self
            .groups
            .iter()
            .enumerate()
            .filter(|(_, g)| g.subscribers.is_empty() && g.used_ms + SWEEP_MS <= self.now.mono_ms)
            .filter(|(at, _)| !self.drops.is_running(*at as u32))
            .map(|(at, g)| (g.used_ms, at))
            .collect();
        idle.sort_unstable();
        for (_, at) in idle {
            if total <= self.config.index_bytes_max {
                break;
            }
            let group = &mut self.groups[at];
            for loaded in [&mut group.envelopes, &mut group.handshakes] {
                if matches!(loaded, Loaded::Warm(index) if index.is_settled()) {
                    total -= size(loaded);
                    *loaded = Loaded::Cold;
                }
            }
        }
    }
}
