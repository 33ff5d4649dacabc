//! The transport's own deadlines. Each kind has one length, so each is a queue in order of time; an entry whose
//! connection has moved on is simply ignored when its time comes.

use drover_engine::ConnId;
use std::collections::VecDeque;

/// Time for what is queued to leave when a connection ends (02 §2, writer drain).
const FLUSH_MS: u64 = 5_000;
/// Time the peer has to end its side after we ended ours, before the socket is closed whatever it does.
const LINGER_MS: u64 = 1_000;

/// Which deadline has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deadline {
    /// The HTTP request (and TLS handshake) is not complete.
    Request,
    /// The outbox is not empty.
    Flush,
    /// The peer has not closed.
    Linger,
}

/// See the module.
pub(crate) struct Timers {
    request_ms: u64,
    requests: VecDeque<(u64, ConnId)>,
    flushes: VecDeque<(u64, ConnId)>,
    lingers: VecDeque<(u64, ConnId)>,
}

impl Timers {
    pub(crate) fn new(request_ms: u64) -> Self {
        Self {
            request_ms,
            requests: VecDeque::new(),
            flushes: VecDeque::new(),
            lingers: VecDeque::new(),
        }
    }

    pub(crate) fn start(&mut self, deadline: Deadline, now_ms: u64, conn: ConnId) {
        match deadline {
            Deadline::Request => self.requests.push_back((now_ms + self.request_ms, conn)),
            Deadline::Flush => self.flushes.push_back((now_ms + FLUSH_MS, conn)),
            Deadline::Linger => self.lingers.push_back((now_ms + LINGER_MS, conn)),
        }
    }

    /// The earliest moment at which something may be due.
    pub(crate) fn next_ms(&self) -> Option<u64> {
        [&self.requests, &self.flushes, &self.lingers]
            .into_iter()
            .filter_map(|queue| Some(queue.front()?.0))
            .min()
    }

    /// One deadline that has passed.
    pub(crate) fn due(&mut self, now_ms: u64) -> Option<(Deadline, ConnId)> {
        let queues = [
            (&mut self.requests, Deadline::Request),
            (&mut self.flushes, Deadline::Flush),
            (&mut self.lingers, Deadline::Linger),
        ];
        for (queue, deadline) in queues {
            if let Some((_, conn)) = queue.pop_front_if(|(at_ms, _)| *at_ms <= now_ms) {
                return Some((deadline, conn));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_come_due_in_order() {
        let conn = |slot| ConnId { slot, generation: 0 };
        let mut timers = Timers::new(10_000);
        timers.start(Deadline::Request, 0, conn(1));
        timers.start(Deadline::Flush, 0, conn(2));
        timers.start(Deadline::Linger, 0, conn(3));
        assert_eq!(timers.next_ms(), Some(LINGER_MS));
        assert_eq!(timers.due(999), None);
        assert_eq!(timers.due(1_000), Some((Deadline::Linger, conn(3))));
        assert_eq!(timers.due(10_000), Some((Deadline::Request, conn(1))));
        assert_eq!(timers.due(10_000), Some((Deadline::Flush, conn(2))));
        assert_eq!((timers.due(99_999), timers.next_ms()), (None, None));
    }
}
