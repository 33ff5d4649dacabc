//! The driver for everywhere: mio, edge-triggered.

use crate::driver::{Driver, Ready};
use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use socket2::SockRef;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

const ACCEPT: Token = Token(0);
const WAKE: Token = Token(1);
/// Sockets come after the two above.
const FIRST_SOCKET: usize = 2;
/// Bytes the system may hold unsent for a socket that carries MEDIA: enough to keep a fast peer busy until the next turn.
const UNSENT_BYTES: u32 = 131_072;
/// What one wait can report.
const EVENTS_MAX: usize = 1024;

/// See the module.
pub(crate) struct Epoll {
    poll: Poll,
    events: Events,
    /// How many of `events` were handed out.
    next: usize,
    reported: Vec<Ready>,
    listener: TcpListener,
}

impl Epoll {
    /// A driver that accepts from `listener` (non-blocking), and what ends its wait.
    pub(crate) fn new(listener: std::net::TcpListener) -> io::Result<(Self, Waker)> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let mut listener = TcpListener::from_std(listener);
        poll.registry()
            .register(&mut listener, ACCEPT, Interest::READABLE)?;
        let events = Events::with_capacity(EVENTS_MAX);
        Ok((
            Self {
                poll,
                events,
                next: 0,
                reported: Vec::with_capacity(EVENTS_MAX),
                listener,
            },
            waker,
        ))
    }
}

fn translate(event: &Event) -> Option<Ready> {
    match event.token() {
        ACCEPT => Some(Ready::Accept),
        WAKE => None,
        Token(token) => Some(Ready::Socket {
            slot: (token - FIRST_SOCKET) as u32,
            readable: event.is_readable(),
            writable: event.is_writable(),
            ended: event.is_read_closed(),
            lost: event.is_error() || (event.is_read_closed() && event.is_write_closed()),
        }),
    }
}

impl Driver for Epoll {
    type Socket = TcpStream;

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.next = 0;
        self.reported.clear();
        match self.poll.poll(&mut self.events, timeout) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => {
                self.reported.extend(self.events.iter().filter_map(translate));
                Ok(())
            }
        }
    }

    fn next(&mut self) -> Option<Ready> {
        let ready = self.reported.get(self.next).copied();
        self.next += 1;
        ready
    }

    fn accept(&mut self) -> io::Result<Option<(std::net::TcpStream, SocketAddr)>> {
        match self.listener.accept() {
            Ok((stream, peer)) => Ok(Some((stream.into(), peer))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn adopt(&mut self, stream: std::net::TcpStream, slot: u32) -> io::Result<TcpStream> {
        let mut stream = TcpStream::from_std(stream);
        let token = Token(slot as usize + FIRST_SOCKET);
        self.poll
            .registry()
            .register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(stream)
    }

    fn release(&mut self, mut socket: TcpStream) -> io::Result<std::net::TcpStream> {
        self.poll.registry().deregister(&mut socket)?;
        Ok(socket.into())
    }

    fn read(&mut self, socket: &mut TcpStream, into: &mut [u8]) -> io::Result<usize> {
        socket.read(into)
    }

    fn write(&mut self, socket: &mut TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match slices {
            [one] => socket.write(one),
            many => socket.write_vectored(many),
        }
    }

    fn keep_unsent_short(&mut self, socket: &mut TcpStream) {
        // Where the system can't, media waits longer behind a replay; nothing else changes.
        let _ = SockRef::from(&*socket).set_tcp_notsent_lowat(UNSENT_BYTES);
    }

    fn end_write(&mut self, socket: &mut TcpStream) {
        // An error means the peer is gone, which the next read says too.
        let _ = socket.shutdown(Shutdown::Write);
    }

    fn close(&mut self, socket: TcpStream) {
        // Closing the descriptor takes it out of the epoll set.
        drop(socket);
    }
}
