//! What a shard loop needs of the system below it. One implementation now, [`Epoll`](crate::epoll::Epoll); an
//! io_uring driver fits beside it: its completions become [`Ready`]s, [`Driver::read`] hands out what a receive
//! already brought, and [`Driver::write`] takes bytes over and says how many.

use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// What happened to one thing a driver watches.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ready {
    /// Connections can be accepted.
    Accept,
    /// Something happened to the socket of this slot.
    Socket {
        /// The slot it was adopted with.
        slot: u32,
        /// Bytes, or the end of the stream, can be read.
        readable: bool,
        /// A write that was refused may be tried again.
        writable: bool,
        /// The peer will send no more: read to the end.
        ended: bool,
        /// Both directions are gone.
        lost: bool,
    },
}

/// One shard's access to the system. Everything but [`Driver::wait`] returns at once.
pub(crate) trait Driver {
    /// A connected socket in the driver's care.
    type Socket;

    /// Waits until something happens, the shard's mailbox wakes it, or the time is over (`None`: as long as it
    /// takes).
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()>;

    /// What happened, one thing at a time.
    fn next(&mut self) -> Option<Ready>;

    /// Accepts one connection; `None` if none waits.
    fn accept(&mut self) -> io::Result<Option<(TcpStream, SocketAddr)>>;

    /// Takes a non-blocking socket into care. Bytes that wait in it already are reported.
    fn adopt(&mut self, stream: TcpStream, slot: u32) -> io::Result<Self::Socket>;

    /// Gives a socket out of care, to be adopted by another shard's driver.
    fn release(&mut self, socket: Self::Socket) -> io::Result<TcpStream>;

    /// Reads. A call that does not fill `into` has read all there was, unless the stream has ended.
    fn read(&mut self, socket: &mut Self::Socket, into: &mut [u8]) -> io::Result<usize>;

    /// Writes. After a call that did not take everything, [`Ready`] says when to go on.
    fn write(&mut self, socket: &mut Self::Socket, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Keeps what the system holds unsent for this socket short, from now on: MEDIA that is written next is not to wait
    /// behind megabytes of a replay that the peer has yet to take.
    fn keep_unsent_short(&mut self, socket: &mut Self::Socket);

    /// Tells the peer that nothing more comes; reading goes on.
    fn end_write(&mut self, socket: &mut Self::Socket);

    /// Closes.
    fn close(&mut self, socket: Self::Socket);
}
