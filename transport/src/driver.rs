//! What a shard loop needs of the system below it: sockets whose bytes come by themselves, writes to many of them at
//! once, a wait. Shaped after completions; [`Epoll`](crate::epoll::Epoll) makes them out of readiness.
//!
//! | Driver | Bytes come in | Bytes go out |
//! | --- | --- | --- |
//! | [`Epoll`](crate::epoll::Epoll) | read into a chunk that all sockets share | one call for each socket |
//! | `uring` | a multishot receive for each socket fills slots of one pool, which are handed on as they are | one submission for all sockets |
//! | `tokio-uring` | a task for each socket, with a buffer of its own | as in `epoll` before a socket is settled, then one task each |
//!
//! The store's log is not among it: docs/io_uring.md has the measurement.

use bytes::BytesMut;
use drover_storage::handoff::Wake;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// What happened.
#[derive(Debug)]
pub(crate) enum Ready {
    /// Connections can be accepted.
    Accept,
    /// Bytes came in.
    Received {
        /// The slot the socket is watched with, here and below.
        slot: u32,
        /// What came, at least a byte.
        data: BytesMut,
    },
    /// The peer sends nothing more, and all it sent was handed out.
    Ended {
        /// Whose.
        slot: u32,
    },
    /// Both directions are gone.
    Lost {
        /// Whose.
        slot: u32,
    },
    /// A write that did not take everything may be gone on with.
    Writable {
        /// Whose.
        slot: u32,
    },
}

/// What is to be written to one socket: a range of the slices that go with it.
pub(crate) struct Write<S> {
    /// To whom.
    pub(crate) socket: S,
    /// Its first slice.
    pub(crate) from: usize,
    /// The slice after its last.
    pub(crate) to: usize,
}

/// One shard's access to the system. Made and used on the shard's thread. Everything but [`Driver::wait`] returns at
/// once.
pub(crate) trait Driver: Sized {
    /// Names a connected socket in the driver's care. The socket is open until [`Driver::close`] or
    /// [`Driver::release`].
    type Socket: Copy;

    /// Gathers what happens for the time of `rest`, then waits until something has happened, the shard is woken, or
    /// `timeout` is over (`None`: as long as it takes).
    fn wait(&mut self, rest: Duration, timeout: Option<Duration>) -> io::Result<()>;

    /// What happened, one thing at a time.
    fn next(&mut self) -> Option<Ready>;

    /// Accepts one connection, with Nagle's algorithm off; `None` if none waits.
    fn accept(&mut self) -> io::Result<Option<(Self::Socket, SocketAddr)>>;

    /// Takes in a socket that another shard's driver released.
    fn adopt(&mut self, stream: TcpStream) -> io::Result<Self::Socket>;

    /// From now on what happens to the socket is told. Bytes that wait in it already are too.
    fn watch(&mut self, socket: Self::Socket, slot: u32) -> io::Result<()>;

    /// Gives a socket out of care, with what was received and not told yet.
    fn release(&mut self, socket: Self::Socket) -> io::Result<(TcpStream, BytesMut)>;

    /// The socket's peer is known: it is not released any more, and more may be received of it at a time.
    fn settle(&mut self, socket: Self::Socket);

    /// Nothing more is to be received for now, so that the peer has to wait. What came already may still be told.
    fn pause(&mut self, socket: Self::Socket);

    /// Receiving goes on.
    fn resume(&mut self, socket: Self::Socket);

    /// Writes to one socket what it takes. After a call that did not take everything, [`Ready::Writable`] says when to
    /// go on.
    fn write(&mut self, socket: Self::Socket, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    /// [`Driver::write`] to many sockets, each of them once; `outcomes` gets theirs in order.
    fn write_each(
        &mut self,
        writes: &[Write<Self::Socket>],
        slices: &[IoSlice<'_>],
        outcomes: &mut Vec<io::Result<usize>>,
    ) {
        for write in writes {
            outcomes.push(self.write(write.socket, &slices[write.from..write.to]));
        }
    }

    /// Keeps what the system holds unsent for this socket short, from now on: MEDIA that is written next is not to wait
    /// behind megabytes of a replay that the peer has yet to take.
    fn keep_unsent_short(&mut self, socket: Self::Socket);

    /// Tells the peer that nothing more comes; receiving goes on.
    fn end_write(&mut self, socket: Self::Socket);

    /// Closes.
    fn close(&mut self, socket: Self::Socket);

    /// What became of the buffers that bytes came in with.
    fn buffers(&self) -> Buffers {
        Buffers::default()
    }
}

/// A driver's receive buffers, for the metrics. All zero where there is no pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Buffers {
    /// Slots there are.
    pub(crate) slots: u64,
    /// Slots that got new memory because somebody still held what came in with the old.
    pub(crate) renewed: u64,
    /// Receives that ended because no slot was left, and were begun again.
    pub(crate) starved: u64,
}

/// Bytes that a driver may tell of a socket that is not settled before [`Driver::pause`] takes effect: as much may have
/// to be kept of a stranger.
pub(crate) const UNKNOWN_READ_BYTES: usize = 16 << 10;
/// Bytes the system may hold unsent for a socket that carries MEDIA: enough to keep a fast peer busy until the next
/// turn.
pub(crate) const UNSENT_BYTES: u32 = 131_072;

/// Ends a driver's wait, from any thread.
pub(crate) enum Waker {
    /// Of mio's poll.
    Poll(mio::Waker),
    /// One that the driver watches.
    #[cfg(target_os = "linux")]
    Eventfd(std::sync::Arc<std::os::fd::OwnedFd>),
    /// Of a runtime that the driver runs.
    #[cfg(target_os = "linux")]
    Notify(std::sync::Arc<tokio::sync::Notify>),
}

#[cfg(target_os = "linux")]
impl Waker {
    /// An eventfd and who writes to it.
    pub(crate) fn eventfd() -> io::Result<(Self, std::sync::Arc<std::os::fd::OwnedFd>)> {
        use rustix::event::{EventfdFlags, eventfd};
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let eventfd = std::sync::Arc::new(eventfd);
        Ok((Self::Eventfd(eventfd.clone()), eventfd))
    }
}

impl Wake for Waker {
    fn wake(&self) {
        // Writing to an eventfd can only fail if its counter is full, and then the shard is awake.
        match self {
            Self::Poll(waker) => {
                let _ = waker.wake();
            }
            #[cfg(target_os = "linux")]
            Self::Notify(happened) => happened.notify_one(),
            #[cfg(target_os = "linux")]
            Self::Eventfd(eventfd) => {
                let _ = rustix::io::write(eventfd, &1_u64.to_ne_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests;
