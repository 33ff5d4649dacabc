//! The loop: many connections in one thread, one [`Load`] that says what is sent and judges what arrives.
//!
//! A turn reads every socket that has something, hands the messages over one by one without copying, and writes what
//! the load wants sent once per socket.

use crate::error::{Doing, Error};
use crate::link::Link;
use crate::peer::Peer;
use crate::wsframe::{self, Inbound};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Bytes asked for by one read: enough to drain a socket, little enough to stay in the cache.
const READ_BYTES: usize = 256 << 10;
/// The largest part of a frame that can be left over from the read before.
const CARRY_BYTES_MAX: usize = drover_wire::frame::FRAME_BYTES_MAX + 16;
/// Sockets reported by one wait.
const EVENTS_MAX: usize = 1024;

/// What is done over the connections of a [`Net`].
pub(crate) trait Load {
    /// A message arrived.
    fn message(&mut self, connection: usize, message: &[u8]) -> Result<(), Error>;

    /// All messages of a read were handed over: settle them, and append what is to be sent now.
    fn settle(&mut self, connection: usize, now_ns: u64, out: &mut Vec<u8>) -> Result<(), Error>;
}

struct Conn {
    link: Link,
    /// The beginning of a frame that is not whole.
    carry: Vec<u8>,
    out: Vec<u8>,
    /// Bytes of `out` that were written.
    written: usize,
}

/// See the module.
pub(crate) struct Net {
    poll: Poll,
    events: Events,
    conns: Vec<Conn>,
    buffer: Vec<u8>,
    epoch: Instant,
    /// Ends a wait.
    timer: OwnedFd,
}

/// The token of [`Net::timer`].
const TIMER: Token = Token(usize::MAX);

impl Net {
    /// A loop without connections.
    pub(crate) fn new() -> Result<Self, Error> {
        let poll = Poll::new().doing("make an epoll instance")?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(io::Error::from)
            .doing("make a timer")?;
        poll.registry()
            .register(&mut SourceFd(&timer.as_raw_fd()), TIMER, Interest::READABLE)
            .doing("watch a timer")?;
        Ok(Self {
            poll,
            timer,
            events: Events::with_capacity(EVENTS_MAX),
            conns: Vec::new(),
            buffer: vec![0; CARRY_BYTES_MAX + READ_BYTES],
            epoch: Instant::now(),
        })
    }

    /// Takes a connection over; connections are numbered from 0.
    pub(crate) fn add(&mut self, peer: Peer) -> Result<usize, Error> {
        let (link, carry) = peer.into_parts();
        link.set_nonblocking()?;
        let number = self.conns.len();
        self.poll
            .registry()
            .register(
                &mut SourceFd(&link.as_raw_fd()),
                Token(number),
                Interest::READABLE | Interest::WRITABLE,
            )
            .doing("watch a socket")?;
        self.conns.push(Conn {
            link,
            carry,
            out: Vec::new(),
            written: 0,
        });
        Ok(number)
    }

    /// Nanoseconds since the loop was made.
    pub(crate) fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// As [`Net::turn`], but the wait ends on the microsecond, where epoll's own ends on the millisecond.
    pub(crate) fn turn_until(&mut self, due_ns: u64, load: &mut impl Load) -> Result<(), Error> {
        let wait_ns = due_ns.saturating_sub(self.now_ns());
        if wait_ns == 0 {
            return self.turn(Some(Duration::ZERO), load);
        }
        let once = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: Timespec {
                tv_sec: (wait_ns / 1_000_000_000) as i64,
                tv_nsec: (wait_ns % 1_000_000_000) as i64,
            },
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)
            .map_err(io::Error::from)
            .doing("set a timer")?;
        self.turn(None, load)
    }

    /// Waits for at most this long, then serves every socket that is ready.
    pub(crate) fn turn(&mut self, timeout: Option<Duration>, load: &mut impl Load) -> Result<(), Error> {
        match self.poll.poll(&mut self.events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            result => result.doing("wait for sockets")?,
        }
        for event in self.events.iter().filter(|event| event.token() != TIMER) {
            let Token(number) = event.token();
            let conn = &mut self.conns[number];
            if event.is_readable() || event.is_read_closed() {
                conn.receive(number, &mut self.buffer, load)?;
                let now_ns = self.epoch.elapsed().as_nanos() as u64;
                load.settle(number, now_ns, &mut conn.out)?;
            }
            conn.flush()?;
        }
        Ok(())
    }

    /// Sends one frame, outside of a read.
    pub(crate) fn send(&mut self, number: usize, frame: &[u8]) -> Result<(), Error> {
        let conn = &mut self.conns[number];
        wsframe::put_message(frame, &mut conn.out);
        conn.flush()
    }

    /// Asks the load what this connection is to send now, outside of a read.
    pub(crate) fn nudge(&mut self, number: usize, load: &mut impl Load) -> Result<(), Error> {
        let now_ns = self.now_ns();
        let conn = &mut self.conns[number];
        load.settle(number, now_ns, &mut conn.out)?;
        conn.flush()
    }
}

impl Conn {
    fn receive(&mut self, number: usize, buffer: &mut [u8], load: &mut impl Load) -> Result<(), Error> {
        loop {
            let held = self.carry.len();
            buffer[..held].copy_from_slice(&self.carry);
            let read = match self.link.read(&mut buffer[held..held + READ_BYTES]) {
                Ok(0) => return Err(Error::Unexpected("the relay ended a connection".into())),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).doing("receive"),
            };
            let bytes = &buffer[..held + read];
            let mut at = 0;
            while let Some((inbound, len)) = wsframe::first(&bytes[at..])? {
                match inbound {
                    Inbound::Message(message) => load.message(number, message)?,
                    Inbound::Ping(payload) => wsframe::put_pong(payload, &mut self.out),
                    Inbound::Pong => (),
                    Inbound::Close => return Err(Error::Unexpected("the relay closed a connection".into())),
                }
                at += len;
            }
            self.carry.clear();
            self.carry.extend_from_slice(&bytes[at..]);
            if read < READ_BYTES && self.link.short_read_is_last() {
                return Ok(());
            }
        }
    }

    fn flush(&mut self) -> Result<(), Error> {
        while self.written < self.out.len() {
            match self.link.write(&self.out[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(error).doing("send"),
            }
        }
        self.out.clear();
        self.written = 0;
        match self.link.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error).doing("send"),
            _ => Ok(()),
        }
    }
}
