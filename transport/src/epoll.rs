//! The driver for everywhere: mio, edge-triggered.

use crate::chunk::Chunk;
use crate::driver::{Driver, Ready, UNKNOWN_READ_BYTES, UNSENT_BYTES, Waker};
use bytes::BytesMut;
use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use socket2::SockRef;
use std::io::{self, IoSlice, Read, Write};
use std::mem;
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

const ACCEPT: Token = Token(0);
const WAKE: Token = Token(1);
/// Sockets come after the two above.
const FIRST_SOCKET: usize = 2;
/// What one wait can report.
const EVENTS_MAX: usize = 1024;

struct Entry {
    stream: TcpStream,
    slot: u32,
    /// There may be bytes to read.
    readable: bool,
    /// The peer has ended its direction; there may be bytes before that.
    ended: bool,
    paused: bool,
    settled: bool,
    /// A write did not take everything.
    blocked: bool,
}

/// See the module.
pub(crate) struct Epoll {
    poll: Poll,
    events: Events,
    /// How many of `reported` were looked at.
    next: usize,
    reported: Vec<Report>,
    listener: TcpListener,
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    /// Free after the next wait: until then there may be reports about who used them.
    closed: Vec<u32>,
    /// They were paused, and there may be bytes to read.
    resumed: Vec<u32>,
    /// Who is read from, until there is no more or it is paused.
    reading: Option<u32>,
    chunk: Chunk,
}

/// What mio says, in our words.
#[derive(Clone, Copy)]
enum Report {
    Accept,
    Socket {
        key: u32,
        readable: bool,
        writable: bool,
        ended: bool,
        lost: bool,
    },
}

impl Epoll {
    /// A driver that accepts from `listener` (non-blocking), and what ends its wait.
    pub(crate) fn new(listener: std::net::TcpListener) -> io::Result<(Self, Waker)> {
        let poll = Poll::new()?;
        let waker = mio::Waker::new(poll.registry(), WAKE)?;
        let mut listener = TcpListener::from_std(listener);
        poll.registry()
            .register(&mut listener, ACCEPT, Interest::READABLE)?;
        let epoll = Self {
            poll,
            events: Events::with_capacity(EVENTS_MAX),
            next: 0,
            reported: Vec::with_capacity(EVENTS_MAX),
            listener,
            entries: Vec::new(),
            free: Vec::new(),
            closed: Vec::new(),
            resumed: Vec::new(),
            reading: None,
            chunk: Chunk::default(),
        };
        Ok((epoll, Waker::Poll(waker)))
    }

    fn entry(&mut self, key: u32) -> Option<&mut Entry> {
        self.entries.get_mut(key as usize)?.as_mut()
    }

    fn insert(&mut self, stream: TcpStream) -> u32 {
        let entry = Some(Entry {
            stream,
            slot: u32::MAX,
            readable: false,
            ended: false,
            paused: false,
            settled: false,
            blocked: false,
        });
        match self.free.pop() {
            Some(key) => {
                self.entries[key as usize] = entry;
                key
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        }
    }

    fn remove(&mut self, key: u32) -> io::Result<TcpStream> {
        let entry = self.entries.get_mut(key as usize).and_then(Option::take);
        self.closed.push(key);
        entry.map(|entry| entry.stream).ok_or_else(gone)
    }

    /// One read from whoever is read from; `None` once that is done.
    fn read(&mut self) -> Option<Ready> {
        let key = self.reading?;
        let entry = self.entries[key as usize]
            .as_mut()
            .filter(|entry| entry.readable && !entry.paused);
        let Some(entry) = entry else {
            self.reading = None;
            return None;
        };
        let slot = entry.slot;
        let mut space = self.chunk.space();
        if !entry.settled {
            space = &mut space[..UNKNOWN_READ_BYTES];
        }
        let room = space.len();
        loop {
            match entry.stream.read(space) {
                Ok(0) => {
                    entry.readable = false;
                    return Some(Ready::Ended { slot });
                }
                Ok(bytes) => {
                    // A read that does not fill the room has read all there was, unless the stream has ended.
                    entry.readable = bytes == room || entry.ended;
                    let data = self.chunk.take(bytes);
                    return Some(Ready::Received { slot, data });
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    entry.readable = false;
                    self.reading = None;
                    return (error.kind() != io::ErrorKind::WouldBlock).then_some(Ready::Lost { slot });
                }
            }
        }
    }

    /// What a report is worth telling before the socket is read.
    fn look(&mut self, report: Report) -> Option<Ready> {
        let Report::Socket {
            key,
            readable,
            writable,
            ended,
            lost,
        } = report
        else {
            return Some(Ready::Accept);
        };
        let entry = self.entry(key)?;
        entry.readable |= readable;
        entry.ended |= ended;
        let slot = entry.slot;
        if lost && entry.paused {
            // Nothing would read the loss.
            return Some(Ready::Lost { slot });
        }
        let unblocked = writable && mem::take(&mut entry.blocked);
        self.reading = Some(key);
        unblocked.then_some(Ready::Writable { slot })
    }
}

fn gone() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

fn translate(event: &Event) -> Option<Report> {
    match event.token() {
        ACCEPT => Some(Report::Accept),
        WAKE => None,
        Token(token) => Some(Report::Socket {
            key: (token - FIRST_SOCKET) as u32,
            readable: event.is_readable(),
            writable: event.is_writable(),
            ended: event.is_read_closed(),
            lost: event.is_error() || (event.is_read_closed() && event.is_write_closed()),
        }),
    }
}

impl Driver for Epoll {
    type Socket = u32;

    fn wait(&mut self, rest: Duration, timeout: Option<Duration>) -> io::Result<()> {
        self.next = 0;
        self.reported.clear();
        self.free.append(&mut self.closed);
        let mut timeout = timeout;
        if !self.resumed.is_empty() {
            // There is nothing to gather first.
            timeout = Some(Duration::ZERO);
        } else if !rest.is_zero() {
            std::thread::sleep(rest);
        }
        match self.poll.poll(&mut self.events, timeout) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => {
                self.reported.extend(self.events.iter().filter_map(translate));
                Ok(())
            }
        }
    }

    fn next(&mut self) -> Option<Ready> {
        loop {
            if self.reading.is_some() {
                if let Some(ready) = self.read() {
                    return Some(ready);
                }
            } else if let Some(key) = self.resumed.pop() {
                self.reading = Some(key);
            } else {
                let report = *self.reported.get(self.next)?;
                self.next += 1;
                if let Some(ready) = self.look(report) {
                    return Some(ready);
                }
            }
        }
    }

    fn accept(&mut self) -> io::Result<Option<(u32, SocketAddr)>> {
        match self.listener.accept() {
            Ok((stream, peer)) => {
                stream.set_nodelay(true)?;
                Ok(Some((self.insert(stream), peer)))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn adopt(&mut self, stream: std::net::TcpStream) -> io::Result<u32> {
        Ok(self.insert(TcpStream::from_std(stream)))
    }

    fn watch(&mut self, key: u32, slot: u32) -> io::Result<()> {
        let entry = self.entries[key as usize].as_mut().ok_or_else(gone)?;
        entry.slot = slot;
        let token = Token(key as usize + FIRST_SOCKET);
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut entry.stream, token, interest)
    }

    fn release(&mut self, key: u32) -> io::Result<(std::net::TcpStream, BytesMut)> {
        let mut stream = self.remove(key)?;
        self.poll.registry().deregister(&mut stream)?;
        Ok((stream.into(), BytesMut::new()))
    }

    fn settle(&mut self, key: u32) {
        if let Some(entry) = self.entry(key) {
            entry.settled = true;
        }
    }

    fn pause(&mut self, key: u32) {
        if let Some(entry) = self.entry(key) {
            entry.paused = true;
        }
    }

    fn resume(&mut self, key: u32) {
        if let Some(entry) = self.entry(key) {
            entry.paused = false;
            if entry.readable {
                self.resumed.push(key);
            }
        }
    }

    fn write(&mut self, key: u32, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let entry = self.entry(key).ok_or_else(gone)?;
        loop {
            let written = match slices {
                [one] => entry.stream.write(one),
                many => entry.stream.write_vectored(many),
            };
            let taken = match written {
                Ok(taken) => taken,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(error) => return Err(error),
            };
            entry.blocked = taken < slices.iter().map(|slice| slice.len()).sum();
            return Ok(taken);
        }
    }

    fn keep_unsent_short(&mut self, key: u32) {
        if let Some(entry) = self.entry(key) {
            // Where the system can't, media waits longer behind a replay; nothing else changes.
            let _ = SockRef::from(&entry.stream).set_tcp_notsent_lowat(UNSENT_BYTES);
        }
    }

    fn end_write(&mut self, key: u32) {
        if let Some(entry) = self.entry(key) {
            // An error means the peer is gone, which the next read says too.
            let _ = entry.stream.shutdown(Shutdown::Write);
        }
    }

    fn close(&mut self, key: u32) {
        // Closing the descriptor takes it out of the epoll set.
        drop(self.remove(key));
    }
}
