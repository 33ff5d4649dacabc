//! Raw forwarding of calls: one thread, one epoll loop, fixed-length messages from each connection to the others of its
//! call. Nothing is parsed, unmasked or judged; bytes are copied to each recipient's buffer and each buffer is written
//! once per turn. The load is the relay's own, and like the relay it is a process of its own, so the two differ in what the
//! server does and nothing else.

use super::socket::Socket;
use crate::args::ForwarderArgs;
use crate::error::{Doing, Error};
use crate::process::Process;
use mio::{Events, Poll, Token};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes asked for by one read.
const READ_BYTES: usize = 64 << 10;

/// A forwarder's process. It ends with the first of its connections, or when this is dropped.
pub(crate) struct Forwarder {
    child: Child,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// Whose CPU time is charged.
    pub(crate) process: Process,
}

impl Forwarder {
    /// Starts this program as one.
    pub(crate) fn start(args: &ForwarderArgs) -> Result<Self, Error> {
        let head: Vec<String> = args.head.iter().map(u8::to_string).collect();
        let mut child = Command::new(std::env::current_exe().doing("find this program")?)
            .args(["bench", "raw-forwarder"])
            .args(["--connections", &args.connections.to_string()])
            .args(["--participants", &args.participants.to_string()])
            .args(["--message-bytes", &args.message_bytes.to_string()])
            .args(["--cut-bytes", &args.cut_bytes.to_string()])
            .args(["--head", &head.join(",")])
            .args(["--turn-us", &args.turn_us.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .doing("start the raw forwarder")?;
        let mut line = String::new();
        if let Some(said) = child.stdout.take() {
            BufReader::new(said)
                .read_line(&mut line)
                .doing("read where the raw forwarder listens")?;
        }
        let address = line
            .trim()
            .parse()
            .map_err(|_| Error::Spawn("the raw forwarder ended before it listened".into()))?;
        let process = Process::new(child.id())?;
        Ok(Self {
            child,
            address,
            process,
        })
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        // Both only fail when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The forwarder's life: says where it listens, waits for its connections, and serves them until one ends.
pub(crate) fn run(args: &ForwarderArgs, said: &mut dyn Write) -> Result<(), Error> {
    let listener = TcpListener::bind("127.0.0.1:0").doing("listen")?;
    let address = listener.local_addr().doing("listen")?;
    writeln!(said, "{address}")
        .and_then(|()| said.flush())
        .doing("say where it listens")?;
    serve(args, &listener)
}

/// The ends of as many connections to a forwarder.
pub(crate) fn connect(address: SocketAddr, connections: usize) -> Result<Vec<TcpStream>, Error> {
    (0..connections)
        .map(|_| TcpStream::connect(address).doing("connect"))
        .collect()
}

/// Serves the connections it was told of.
pub(crate) fn serve(forwarding: &ForwarderArgs, listener: &TcpListener) -> Result<(), Error> {
    let mut poll = Poll::new().doing("make an epoll instance")?;
    let mut sockets = Vec::new();
    for number in 0..forwarding.connections {
        let (stream, _) = listener.accept().doing("accept")?;
        sockets.push(Socket::new(&poll, stream, number)?);
    }
    let turn = Duration::from_micros(forwarding.turn_us);
    let mut events = Events::with_capacity(1024);
    let mut buffer = vec![0; READ_BYTES];
    let mut carries = vec![Vec::new(); sockets.len()];
    let mut dirty: Vec<usize> = Vec::new();
    loop {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => result.doing("wait for sockets")?,
        }
        let began = Instant::now();
        for event in &events {
            let Token(number) = event.token();
            dirty.push(number);
            if !(event.is_readable() || event.is_read_closed()) {
                continue;
            }
            while let Some(count) = sockets[number].read(&mut buffer)? {
                if count == 0 {
                    return Ok(());
                }
                let carry: &mut Vec<u8> = &mut carries[number];
                carry.extend_from_slice(&buffer[..count]);
                let whole = carry.len() / forwarding.message_bytes * forwarding.message_bytes;
                let first = number / forwarding.participants * forwarding.participants;
                for to in (first..first + forwarding.participants).filter(|&to| to != number) {
                    for message in carry[..whole].chunks(forwarding.message_bytes) {
                        sockets[to].out.extend_from_slice(&forwarding.head);
                        sockets[to]
                            .out
                            .extend_from_slice(&message[forwarding.cut_bytes..]);
                    }
                    dirty.push(to);
                }
                carry.drain(..whole);
                if count < READ_BYTES {
                    break;
                }
            }
        }
        for number in dirty.drain(..) {
            sockets[number].flush()?;
        }
        thread::sleep(turn.saturating_sub(began.elapsed()));
    }
}
