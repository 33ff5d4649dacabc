//! What a subscription delivers, and the bounded queue between the client's task and its reader.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use drover_wire::id::{CallId, GroupId};
use tokio::sync::Notify;

use crate::envelope::SealedEnvelope;
use crate::error::Error;
use crate::limits::{QUEUE_BYTES_MAX, QUEUE_EVENTS_MAX};

/// Something that happened in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The next MLS handshake message: dense from 0, each exactly once, own ones included (07 part C).
    Handshake {
        /// Its number in the group.
        seq: u64,
        /// The message, opaque.
        message: Bytes,
    },
    /// An envelope not held before; it is in the store already. Cursors may have gaps and may come out of order.
    Envelope(SealedEnvelope),
    /// A live beat: unstored, possibly lost (11).
    Live {
        /// The group's epoch.
        epoch: u64,
        /// Ciphertext.
        ct: Bytes,
    },
    /// A call signal: unstored (10).
    Call {
        /// The call.
        call_id: CallId,
        /// The group's epoch.
        epoch: u64,
        /// 1 offer, 2 answer, 3 decline, 4 bye.
        kind: u8,
        /// Ciphertext, possibly empty.
        body: Bytes,
    },
    /// Everything the relay held when the subscription (re)started has been delivered; what follows is live.
    CaughtUp,
    /// The relay, or this reader, could not keep up and envelopes were skipped. They are being reconciled: they follow
    /// as [`Event::Envelope`], then [`Event::CaughtUp`]. Live beats and calls of that time are lost.
    Downgraded,
    /// The connection was lost; the client reconnects and resumes. Live beats of the meantime are lost.
    Disconnected,
}

impl Event {
    /// What it costs in the queue, as the relay counts: 256 + payload (02 §9).
    fn cost(&self) -> usize {
        256 + match self {
            Event::Handshake { message, .. } => message.len(),
            Event::Envelope(envelope) => envelope.ct().len(),
            Event::Live { ct, .. } => ct.len(),
            Event::Call { body, .. } => body.len(),
            Event::CaughtUp | Event::Downgraded | Event::Disconnected => 0,
        }
    }

    /// Whether it is about the stream rather than part of it.
    fn is_news(&self) -> bool {
        matches!(self, Event::CaughtUp | Event::Downgraded | Event::Disconnected)
    }
}

/// A bounded queue of events with one reader. Never blocks its writer: a full queue refuses.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    inner: Mutex<Inner>,
    /// Woken when an event or the end comes.
    readable: Notify,
    /// Woken when room was made or the reader left.
    drained: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Inner {
    events: VecDeque<Event>,
    cost: usize,
    /// Why no event will come any more.
    end: Option<Error>,
    reader_gone: bool,
}

impl EventQueue {
    /// An empty queue; `drained` tells the writer of room.
    pub(crate) fn new(drained: Arc<Notify>) -> Self {
        Self {
            drained,
            ..Self::default()
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues an event; `false` when the queue is full. News of the stream itself has room to spare: the reader must
    /// learn of it.
    pub(crate) fn push(&self, event: Event) -> bool {
        let mut inner = self.lock();
        if inner.is_full() && !event.is_news() {
            return false;
        }
        // Repeats say nothing new, and skipping them keeps the queue bounded whatever happens.
        if event.is_news() && inner.events.back() == Some(&event) {
            return true;
        }
        if inner.events.len() >= 2 * QUEUE_EVENTS_MAX {
            return false;
        }
        inner.cost += event.cost();
        inner.events.push_back(event);
        self.readable.notify_one();
        true
    }

    /// Whether an event with a payload would be refused.
    pub(crate) fn is_full(&self) -> bool {
        self.lock().is_full()
    }

    /// Whether a whole replay or reconciliation round fits.
    pub(crate) fn is_roomy(&self) -> bool {
        let inner = self.lock();
        inner.events.len() <= QUEUE_EVENTS_MAX / 2 && inner.cost <= QUEUE_BYTES_MAX / 2
    }

    /// Whether nobody reads any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.lock().reader_gone
    }

    /// No event will follow those queued.
    pub(crate) fn end(&self, why: Error) {
        self.lock().end.get_or_insert(why);
        self.readable.notify_one();
    }

    fn pop(&self) -> Option<Result<Event, Error>> {
        let mut inner = self.lock();
        match inner.events.pop_front() {
            Some(event) => {
                inner.cost -= event.cost();
                drop(inner);
                self.drained.notify_one();
                Some(Ok(event))
            }
            None => inner.end.clone().map(Err),
        }
    }
}

impl Inner {
    fn is_full(&self) -> bool {
        self.events.len() >= QUEUE_EVENTS_MAX || self.cost >= QUEUE_BYTES_MAX
    }
}

/// A group's event stream. Dropping it ends the subscription on this side; the wire has no unsubscribe, so the relay
/// goes on sending until the next reconnect.
#[derive(Debug)]
pub struct Subscription {
    pub(crate) group: GroupId,
    pub(crate) queue: Arc<EventQueue>,
}

impl Subscription {
    /// The group.
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// The next event; waits without limit. Cancel-safe.
    ///
    /// # Errors
    /// When no event will come any more, and then for ever: [`Error::Stopped`] after the client stopped, or the
    /// relay's refusal of this subscription.
    pub async fn next(&mut self) -> Result<Event, Error> {
        loop {
            let woken = self.queue.readable.notified();
            if let Some(result) = self.queue.pop() {
                return result;
            }
            woken.await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut inner = self.queue.lock();
        inner.reader_gone = true;
        inner.events.clear();
        inner.cost = 0;
        drop(inner);
        self.queue.drained.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat(bytes: usize) -> Event {
        Event::Live {
            epoch: 0,
            ct: vec![0; bytes].into(),
        }
    }

    #[tokio::test]
    async fn a_full_queue_refuses_payload_but_not_news() {
        let queue = Arc::new(EventQueue::default());
        let mut reader = Subscription {
            group: GroupId([0; 32]),
            queue: queue.clone(),
        };
        while queue.push(beat(1)) {}
        assert!(queue.is_full() && !queue.is_roomy());
        assert!(queue.push(Event::Downgraded));
        for _ in 0..QUEUE_EVENTS_MAX {
            assert_eq!(reader.next().await.expect("event"), beat(1));
        }
        assert_eq!(reader.next().await.expect("event"), Event::Downgraded);
        assert!(queue.is_roomy());
    }

    #[test]
    fn bytes_count_as_well() {
        let queue = EventQueue::default();
        let mut count = 0;
        while queue.push(beat(1024 * 1024)) {
            count += 1;
        }
        assert!(count <= QUEUE_BYTES_MAX / (1024 * 1024));
    }

    #[tokio::test]
    async fn the_end_comes_after_the_last_event() {
        let queue = Arc::new(EventQueue::default());
        let mut reader = Subscription {
            group: GroupId([0; 32]),
            queue: queue.clone(),
        };
        queue.push(beat(1));
        queue.end(Error::Timeout);
        assert!(reader.next().await.is_ok());
        assert!(reader.next().await.is_err());
        assert!(reader.next().await.is_err());
        drop(reader);
        assert!(queue.is_abandoned());
    }
}
