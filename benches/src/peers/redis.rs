//! Redis: its server on a temporary directory, and a client that speaks as much of its protocol as is needed.

use crate::args::BenchArgs;
use crate::baseline::Socket;
use crate::error::{Doing, Error};
use crate::inflight::{InFlight, Latencies, latencies};
use crate::measure::{Run, Window};
use crate::process::Process;
use mio::{Events, Poll, Token};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const START_TIMEOUT: Duration = Duration::from_secs(10);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);
const RAMP: Duration = Duration::from_millis(300);
const TICK: Duration = Duration::from_millis(5);
const READ_BYTES: usize = 256 << 10;

/// What it is asked to do.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// Every connection appends to one of so many streams.
    Streams { streams: usize },
    /// The first connection publishes to all others.
    PubSub,
}

/// A running server.
pub(super) struct Redis {
    child: Child,
    address: String,
    /// Its name and version.
    pub(super) version: String,
    _dir: TempDir,
}

impl Redis {
    /// Starts one that syncs every write before it answers. `None` if it is not installed.
    pub(super) fn start(args: &BenchArgs) -> Result<Option<Self>, Error> {
        let Ok(output) = Command::new("redis-server").arg("--version").output() else {
            return Ok(None);
        };
        let text = String::from_utf8_lossy(&output.stdout);
        let number = text.split_whitespace().find_map(|word| word.strip_prefix("v="));
        let dir = match &args.dir {
            Some(parent) => tempfile::tempdir_in(parent),
            None => tempfile::tempdir(),
        }
        .doing("make a temporary directory")?;
        // Redis takes no port of the system's choice; this one was free a moment ago.
        let address = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .doing("find a free port")?;
        let child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &address.port().to_string()])
            .args(["--appendonly", "yes", "--appendfsync", "always", "--save", ""])
            .args(["--client-output-buffer-limit", "pubsub", "0", "0", "0"])
            .arg("--dir")
            .arg(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .doing("spawn redis-server")?;
        let redis = Self {
            child,
            address: address.to_string(),
            version: format!("Redis {}", number.unwrap_or("of unknown version")),
            _dir: dir,
        };
        let deadline = Instant::now() + START_TIMEOUT;
        while TcpStream::connect(&redis.address).is_err() {
            if Instant::now() > deadline {
                return Err(Error::Spawn("redis-server does not listen".into()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Some(redis))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", parts.len()).into_bytes();
    for part in parts {
        bytes.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
        bytes.extend_from_slice(part);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// One connection.
struct Connection {
    socket: Socket,
    in_flight: InFlight,
    /// What it sends for one operation.
    request: Vec<u8>,
    /// Lines seen of an answer that is not whole.
    lines: usize,
}

struct Client {
    work: Work,
    poll: Poll,
    connections: Vec<Connection>,
    /// Bytes of a message to a subscriber.
    message_bytes: usize,
    window: usize,
    buffer: Vec<u8>,
    epoch: Instant,
    open: bool,
    done: u64,
    latencies: Latencies,
}

/// Runs the work.
pub(super) fn measure(
    server: &Redis,
    args: &BenchArgs,
    work: Work,
    connections: usize,
    size_bytes: usize,
) -> Result<Vec<Run>, Error> {
    // Bytes that don't compress, though nothing here tries.
    let value: Vec<u8> = (0..size_bytes as u64)
        .map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect();
    let poll = Poll::new().doing("make an epoll instance")?;
    let mut all = Vec::with_capacity(connections);
    for number in 0..connections {
        let mut stream = TcpStream::connect(&server.address).doing("connect to redis-server")?;
        let request = match work {
            Work::Streams { streams } => {
                let stream = format!("group-{:04}", number % streams);
                command(&[b"XADD", stream.as_bytes(), b"*", b"d", &value])
            }
            Work::PubSub if number == 0 => command(&[b"PUBLISH", b"group", &value]),
            Work::PubSub => {
                let subscribe = command(&[b"SUBSCRIBE", b"group"]);
                stream.write_all(&subscribe).doing("subscribe")?;
                let mut answer = vec![0; "*3\r\n$9\r\nsubscribe\r\n$5\r\ngroup\r\n:1\r\n".len()];
                stream.read_exact(&mut answer).doing("subscribe")?;
                Vec::new()
            }
        };
        all.push(Connection {
            socket: Socket::new(&poll, stream, number)?,
            in_flight: InFlight::default(),
            request,
            lines: 0,
        });
    }
    let mut client = Client {
        work,
        poll,
        connections: all,
        message_bytes: command(&[b"message", b"group", &value]).len(),
        window: args.window.max(1),
        buffer: vec![0; READ_BYTES],
        epoch: Instant::now(),
        open: false,
        done: 0,
        latencies: latencies(),
    };
    let process = Process::new(server.child.id())?;
    (0..args.runs.max(1))
        .map(|_| client.run(&process, Duration::from_secs_f64(args.seconds)))
        .collect()
}

impl Client {
    fn run(&mut self, process: &Process, length: Duration) -> Result<Run, Error> {
        self.open = true;
        let mut events = Events::with_capacity(1024);
        for number in 0..self.connections.len() {
            self.send(number)?;
        }
        let started = Instant::now();
        while started.elapsed() < RAMP {
            self.turn(&mut events)?;
        }
        self.done = 0;
        self.latencies.reset();
        let window = Window::open(Some(process))?;
        while window.elapsed() < length {
            self.turn(&mut events)?;
        }
        let run = window.close(self.done, std::mem::replace(&mut self.latencies, latencies()))?;
        self.open = false;
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        while self.connections.iter().any(|c| c.in_flight.count() > 0) {
            if Instant::now() > deadline {
                return Err(Error::Unexpected("a redis-server that does not answer".into()));
            }
            self.turn(&mut events)?;
        }
        Ok(run)
    }

    fn turn(&mut self, events: &mut Events) -> Result<(), Error> {
        match self.poll.poll(events, Some(TICK)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            result => result.doing("wait for sockets")?,
        }
        for event in events.iter() {
            let Token(number) = event.token();
            if event.is_readable() {
                self.receive(number)?;
                self.send(number)?;
            }
            self.connections[number].socket.flush()?;
        }
        if matches!(self.work, Work::PubSub) {
            self.send(0)?;
        }
        Ok(())
    }

    fn receive(&mut self, number: usize) -> Result<(), Error> {
        let connection = &mut self.connections[number];
        while let Some(count) = connection.socket.read(&mut self.buffer)? {
            let bytes = &self.buffer[..count];
            if count == 0 || bytes.first() == Some(&b'-') {
                let what = String::from_utf8_lossy(bytes).into_owned();
                return Err(Error::Unexpected(format!("redis-server answered {what:?}")));
            }
            let finished = match self.work {
                Work::PubSub if number > 0 => connection.socket.messages(count, self.message_bytes),
                // A number is one line; a stream's new id is two, its length and itself.
                work => {
                    let lines = connection.lines + bytes.iter().filter(|b| **b == b'\n').count();
                    let of_answer = if matches!(work, Work::PubSub) { 1 } else { 2 };
                    connection.lines = lines % of_answer;
                    lines / of_answer
                }
            };
            let counts = !matches!(self.work, Work::PubSub) || number > 0;
            let now_ns = self.epoch.elapsed().as_nanos() as u64;
            let mut unheeded = latencies();
            let heeded = if counts {
                &mut self.latencies
            } else {
                &mut unheeded
            };
            if !connection.in_flight.finished(finished, now_ns, heeded) {
                return Err(Error::Unexpected(
                    "a redis-server that answers what it likes".into(),
                ));
            }
            if counts {
                self.done += finished as u64;
            }
            if count < READ_BYTES {
                break;
            }
        }
        Ok(())
    }

    /// Sends what this connection may send now.
    fn send(&mut self, number: usize) -> Result<(), Error> {
        if !self.open {
            return Ok(());
        }
        let now_ns = self.epoch.elapsed().as_nanos() as u64;
        let waits_for = match self.work {
            Work::Streams { .. } => self.connections[number].in_flight.count(),
            Work::PubSub if number > 0 => return Ok(()),
            Work::PubSub => {
                let counts = self.connections.iter().map(|c| c.in_flight.count());
                counts.max().unwrap_or_default()
            }
        };
        let count = self.window.saturating_sub(waits_for);
        if matches!(self.work, Work::PubSub) {
            let subscribers = &mut self.connections[1..];
            subscribers
                .iter_mut()
                .for_each(|c| c.in_flight.sent(count, now_ns));
        }
        let connection = &mut self.connections[number];
        connection.in_flight.sent(count, now_ns);
        for _ in 0..count {
            connection.socket.out.extend_from_slice(&connection.request);
        }
        connection.socket.flush()
    }
}
