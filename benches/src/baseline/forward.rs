//! Raw forwarding of calls: one thread, one epoll loop, fixed-length messages from each connection to the others of its
//! call. Nothing is parsed, unmasked or judged; bytes are copied to each recipient's buffer and each buffer is written
//! once per turn. The load is the relay's own, so the two differ in what the server does and nothing else.

use super::socket::Socket;
use crate::error::{Doing, Error};
use crate::process::Process;
use mio::{Events, Poll, Token};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Bytes asked for by one read.
const READ_BYTES: usize = 64 << 10;

/// What is forwarded, and how.
pub(crate) struct Forwarding {
    /// Connections per call, in the order they connect.
    pub(crate) participants: usize,
    /// Bytes of a message as it arrives.
    pub(crate) message_bytes: usize,
    /// Bytes in front of it that are replaced by `head`.
    pub(crate) cut_bytes: usize,
    /// What a recipient is sent first.
    pub(crate) head: Vec<u8>,
    /// Shortest time between two turns.
    pub(crate) turn: Duration,
}

/// A forwarder that runs until its connections end.
pub(crate) struct Forwarder {
    /// Whose CPU time is charged.
    pub(crate) process: Process,
    serving: JoinHandle<Result<(), Error>>,
}

impl Forwarder {
    /// Starts one; returns the clients' ends of its connections.
    pub(crate) fn start(forwarding: Forwarding, connections: usize) -> Result<(Self, Vec<TcpStream>), Error> {
        let listener = TcpListener::bind("127.0.0.1:0").doing("listen")?;
        let address = listener.local_addr().doing("listen")?;
        let poll = Poll::new().doing("make an epoll instance")?;
        let (mut sockets, mut clients) = (Vec::new(), Vec::new());
        for number in 0..connections {
            clients.push(TcpStream::connect(address).doing("connect")?);
            sockets.push(Socket::new(&poll, listener.accept().doing("accept")?.0, number)?);
        }
        let (sender, process) = mpsc::channel();
        let serving = thread::spawn(move || {
            // The receiver waits for it.
            let _ = sender.send(Process::this_thread());
            serve(forwarding, poll, sockets)
        });
        let process = process
            .recv()
            .map_err(|_| Error::Unexpected("the serving thread ended".into()))??;
        Ok((Self { process, serving }, clients))
    }

    /// Waits for the end, which comes with the first connection's.
    pub(crate) fn join(self) -> Result<(), Error> {
        self.serving
            .join()
            .map_err(|_| Error::Unexpected("the serving thread panicked".into()))?
    }
}

fn serve(forwarding: Forwarding, mut poll: Poll, mut sockets: Vec<Socket>) -> Result<(), Error> {
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
        thread::sleep(forwarding.turn.saturating_sub(began.elapsed()));
    }
}
