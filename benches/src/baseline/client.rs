//! The loading side of a baseline: the calling thread.

use super::socket::Socket;
use super::{ACK_BYTES, Plan, RAMP, READ_BYTES, STREAM_BATCH, TICK, Work};
use crate::error::{Doing, Error};
use crate::inflight::{InFlight, Latencies, latencies};
use crate::measure::{Run, Window};
use crate::process::Process;
use mio::{Events, Poll, Token};
use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Bytes of a reader's request for the next batch.
const REQUEST_BYTES: usize = 50;
/// How long answers may be outstanding after the last request.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);

/// See the module.
pub(super) struct Client {
    work: Work,
    message_bytes: usize,
    window: usize,
    period: Option<Duration>,
    poll: Poll,
    events: Events,
    sockets: Vec<Socket>,
    /// Of each socket: the messages it waits for.
    in_flight: Vec<InFlight>,
    buffer: Vec<u8>,
    epoch: Instant,
    /// Whether finished operations are followed by new ones.
    open: bool,
    /// When the next message of a paced fan-out is due.
    next: Instant,
    done: u64,
    latencies: Latencies,
}

impl Client {
    pub(super) fn new(plan: &Plan) -> Result<Self, Error> {
        Ok(Self {
            work: plan.work,
            message_bytes: plan.message_bytes,
            window: plan.window,
            period: plan
                .rate
                .map(|rate| Duration::from_secs_f64(1.0 / rate.max(1e-3))),
            poll: Poll::new().doing("make an epoll instance")?,
            events: Events::with_capacity(1024),
            sockets: Vec::new(),
            in_flight: Vec::new(),
            buffer: vec![0; READ_BYTES],
            epoch: Instant::now(),
            open: false,
            next: Instant::now(),
            done: 0,
            latencies: latencies(),
        })
    }

    /// Takes a connection over; the writer of a fan-out is the first.
    pub(super) fn add(&mut self, stream: TcpStream) -> Result<(), Error> {
        let socket = Socket::new(&self.poll, stream, self.sockets.len())?;
        self.sockets.push(socket);
        self.in_flight.push(InFlight::default());
        Ok(())
    }

    /// One run of this length.
    pub(super) fn measure(&mut self, server: &Process, length: Duration) -> Result<Run, Error> {
        self.open = true;
        self.next = Instant::now();
        for number in 0..self.sockets.len() {
            self.send(number)?;
        }
        let started = Instant::now();
        while started.elapsed() < RAMP {
            self.turn()?;
        }
        self.done = 0;
        self.latencies.reset();
        let window = Window::open(Some(server))?;
        while window.elapsed() < length {
            self.turn()?;
        }
        let run = window.close(self.done, std::mem::replace(&mut self.latencies, latencies()))?;
        self.open = false;
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        while self.in_flight.iter().any(|under_way| under_way.count() > 0) {
            if Instant::now() > deadline {
                return Err(Error::Unexpected("a baseline that does not end".into()));
            }
            self.turn()?;
        }
        Ok(run)
    }

    fn turn(&mut self) -> Result<(), Error> {
        let timeout = match self.period {
            Some(_) if self.open => self.next.saturating_duration_since(Instant::now()),
            _ => TICK,
        };
        let mut events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        match self.poll.poll(&mut events, Some(timeout)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            result => result.doing("wait for sockets")?,
        }
        for event in &events {
            let Token(number) = event.token();
            if event.is_readable() {
                self.receive(number)?;
                self.send(number)?;
            }
            self.sockets[number].flush()?;
        }
        self.events = events;
        if matches!(self.work, Work::Fanout { .. }) {
            self.send(0)?;
        }
        Ok(())
    }

    fn receive(&mut self, number: usize) -> Result<(), Error> {
        let answer_bytes = match self.work {
            Work::Durable => ACK_BYTES,
            _ => self.message_bytes,
        };
        let socket = &mut self.sockets[number];
        while let Some(count) = socket.read(&mut self.buffer)? {
            let messages = socket.messages(count, answer_bytes);
            self.done += messages as u64;
            let now_ns = self.epoch.elapsed().as_nanos() as u64;
            if count == 0 || !self.in_flight[number].finished(messages, now_ns, &mut self.latencies) {
                return Err(Error::Unexpected("a baseline that answers what it likes".into()));
            }
            if count < READ_BYTES {
                break;
            }
        }
        Ok(())
    }

    /// Sends what this socket may send now.
    fn send(&mut self, number: usize) -> Result<(), Error> {
        if !self.open {
            return Ok(());
        }
        let now_ns = self.epoch.elapsed().as_nanos() as u64;
        let waited_for = self.in_flight[number].count();
        let bytes = match self.work {
            Work::Echo { .. } | Work::Durable => {
                let count = self.window - waited_for;
                self.in_flight[number].sent(count, now_ns);
                count * self.message_bytes
            }
            Work::Stream if waited_for == 0 => {
                self.in_flight[number].sent(STREAM_BATCH, now_ns);
                REQUEST_BYTES
            }
            Work::Fanout { .. } if number == 0 => {
                let count = self.fanout_room();
                for subscriber in &mut self.in_flight[1..] {
                    subscriber.sent(count, now_ns);
                }
                count * self.message_bytes
            }
            Work::Stream | Work::Fanout { .. } => 0,
        };
        let socket = &mut self.sockets[number];
        socket.out.resize(socket.out.len() + bytes, 0x5a);
        socket.flush()
    }

    /// Messages the writer of a fan-out may send now.
    fn fanout_room(&mut self) -> usize {
        let Some(period) = self.period else {
            let slowest = self.in_flight.iter().map(InFlight::count).max();
            return self.window.saturating_sub(slowest.unwrap_or(0));
        };
        let mut count = 0;
        while self.next <= Instant::now() {
            self.next += period;
            count += 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        bench: BenchArgs,
    }

    #[test]
    fn every_baseline_runs_to_its_end() {
        let line = "bench baseline --seconds 0.05 --runs 1 --connections 3 --window 4";
        let mut args = Cli::parse_from(line.split(' ')).bench;
        let mut rows = ingest(&args).expect("ingest");
        rows.extend(fanout(&args).expect("fanout"));
        rows.extend(replay(&args).expect("replay"));
        args.rate = Some(200.0);
        rows.extend(fanout(&args).expect("paced"));
        for row in rows {
            assert!(row.runs[0].ops > 0, "{}", row.name);
            assert!(
                row.runs[0].server.is_some_and(|time| time.ran_ns > 0),
                "{}",
                row.name
            );
        }
    }
}
