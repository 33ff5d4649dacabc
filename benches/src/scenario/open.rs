//! Opening and authenticating: `--connections` are being opened at any time; an operation is TCP (and TLS), upgrade,
//! CONNECT, AUTH up to AUTH_ACK, and the close after it.

use super::{Bench, RAMP, TICK, row};
use crate::args::BenchArgs;
use crate::error::{Doing, Error};
use crate::inflight::{Latencies, latencies, record};
use crate::link::Link;
use crate::measure::{Row, Window};
use crate::peer::{self, auth_frame, connect_frame, upgrade_request, upgraded};
use crate::wsframe::{self, Inbound};
use drover_wire::frame::Frame;
use drover_wire::id::GroupId;
use ed25519_dalek::SigningKey;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Connections of the reference setting.
const CONNECTIONS: usize = 64;
/// Bytes asked for by one read.
const READ_BYTES: usize = 4096;

/// Measures it.
pub(super) fn run(args: &BenchArgs) -> Result<Row, Error> {
    let connections = args.connections.unwrap_or(CONNECTIONS).max(1);
    let bench = Bench::enter(args, connections, false)?;
    let group = bench.workspace.groups(1)[0];
    let mut opener = Opener::new(&bench, group)?;
    for slot in 0..connections {
        let attempt = opener.attempt(slot)?;
        opener.attempts.push(attempt);
    }
    let mut runs = Vec::new();
    for _ in 0..args.runs.max(1) {
        opener.work(RAMP)?;
        opener.opened = 0;
        opener.latencies.reset();
        let window = Window::open(bench.server.as_ref())?;
        opener.work(Duration::from_secs_f64(args.seconds))?;
        let taken = std::mem::replace(&mut opener.latencies, latencies());
        runs.push(window.close(opener.opened, taken)?);
    }
    let what = format!("open, authenticate, close; {connections} at a time");
    Ok(row("open", what, runs))
}

struct Opener<'a> {
    bench: &'a Bench,
    named: [GroupId; 2],
    poll: Poll,
    attempts: Vec<Attempt>,
    opened: u64,
    latencies: Latencies,
}

/// One connection on its way to AUTH_ACK.
struct Attempt {
    link: Link,
    started: Instant,
    inbound: Vec<u8>,
    out: Vec<u8>,
    upgraded: bool,
    ready: bool,
}

impl<'a> Opener<'a> {
    fn new(bench: &'a Bench, group: GroupId) -> Result<Self, Error> {
        Ok(Self {
            bench,
            named: bench.workspace.named(group),
            poll: Poll::new().doing("make an epoll instance")?,
            attempts: Vec::new(),
            opened: 0,
            latencies: latencies(),
        })
    }

    /// Begins to open the connection of this slot.
    fn attempt(&self, slot: usize) -> Result<Attempt, Error> {
        let started = Instant::now();
        let link = self.bench.target.connect()?;
        link.set_nonblocking()?;
        self.poll
            .registry()
            .register(
                &mut SourceFd(&link.as_raw_fd()),
                Token(slot),
                Interest::READABLE | Interest::WRITABLE,
            )
            .doing("watch a socket")?;
        Ok(Attempt {
            link,
            started,
            inbound: Vec::new(),
            out: upgrade_request(&self.bench.target).into_bytes(),
            upgraded: false,
            ready: false,
        })
    }

    /// Opens one connection after another for this long.
    fn work(&mut self, length: Duration) -> Result<(), Error> {
        let mut events = Events::with_capacity(1024);
        let deadline = Instant::now() + length;
        while Instant::now() < deadline {
            match self.poll.poll(&mut events, Some(TICK)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result.doing("wait for sockets")?,
            }
            for event in &events {
                let Token(slot) = event.token();
                let device = self.bench.workspace.device(slot);
                let attempt = &mut self.attempts[slot];
                attempt.advance(device, &self.named)?;
                if attempt.ready {
                    let latency = attempt.started.elapsed();
                    record(&mut self.latencies, latency.as_nanos() as u64, 1);
                    self.opened += 1;
                    // Replacing it closes it.
                    self.attempts[slot] = self.attempt(slot)?;
                }
            }
        }
        Ok(())
    }
}

impl Attempt {
    /// Reads what is there, answers it, writes what can be written.
    fn advance(&mut self, device: &SigningKey, named: &[GroupId]) -> Result<(), Error> {
        self.write()?;
        let mut buffer = [0; READ_BYTES];
        loop {
            match self.link.read(&mut buffer) {
                Ok(0) => return Err(Error::Unexpected("the relay ended a connection".into())),
                Ok(count) => self.inbound.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).doing("receive"),
            }
        }
        if !self.upgraded {
            let Some(end) = upgraded(&self.inbound)? else {
                return Ok(());
            };
            self.inbound.drain(..end);
            self.upgraded = true;
            wsframe::put_message(&connect_frame(named), &mut self.out);
        }
        while let Some((inbound, len)) = wsframe::first(&self.inbound)? {
            if let Inbound::Message(message) = inbound {
                match peer::decode(message)? {
                    Frame::ConnectAck { .. } => (),
                    Frame::AuthChallenge { challenge } => {
                        wsframe::put_message(&auth_frame(device, challenge), &mut self.out);
                    }
                    Frame::AuthAck { .. } => self.ready = true,
                    frame => return Err(peer::unexpected(&frame)),
                }
            }
            self.inbound.drain(..len);
        }
        self.write()
    }

    fn write(&mut self) -> Result<(), Error> {
        while !self.out.is_empty() {
            match self.link.write(&self.out) {
                Ok(count) => drop(self.out.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).doing("send"),
            }
        }
        match self.link.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error).doing("send"),
            _ => Ok(()),
        }
    }
}
