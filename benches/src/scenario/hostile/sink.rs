//! What an attack before the upgrade costs where no relay is attacked: one thread accepts its sockets, reads no more than
//! a relay has to before it refuses a head, and closes. The client works with the relay meanwhile, so what it notices is
//! the attackers' own work and the system's.

use crate::error::{Doing, Error};
use crate::link::Target;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// A head that is longer is refused, as by the relay.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Sockets held, as many as the relay holds before their upgrade; who comes beyond is closed at once.
const HELD_MAX: usize = 1_024;
/// Sockets accepted in a row.
const ACCEPTS_MAX: usize = 32;
/// The end of the measurement is looked for so often.
const LOOK: Duration = Duration::from_millis(20);
const LISTENER: Token = Token(usize::MAX);
const REFUSAL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// See the module.
pub(super) struct Sink {
    pub(super) target: Target,
    over: Arc<AtomicBool>,
    thread: thread::JoinHandle<Result<(), Error>>,
}

impl Sink {
    pub(super) fn begin() -> Result<Self, Error> {
        let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = TcpListener::bind(any).doing("listen")?;
        let address = listener.local_addr().doing("find out the port")?;
        let over = Arc::<AtomicBool>::default();
        let until = over.clone();
        Ok(Self {
            target: Target::parse(&format!("ws://{address}/relay"))?,
            over,
            thread: thread::spawn(move || Drain::new(listener)?.run(&until)),
        })
    }

    pub(super) fn end(self) -> Result<(), Error> {
        self.over.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .unwrap_or_else(|_| Err(Error::Unexpected("the sink's thread panicked".into())))
    }
}

struct Held {
    stream: TcpStream,
    read: usize,
    /// The last bytes read, to find the end of a head.
    tail: [u8; 4],
}

struct Drain {
    poll: Poll,
    listener: TcpListener,
    acceptable: bool,
    held: Vec<Option<Held>>,
    free: Vec<usize>,
    buffer: Vec<u8>,
}

impl Drain {
    fn new(mut listener: TcpListener) -> Result<Self, Error> {
        let poll = Poll::new().doing("make an epoll instance")?;
        poll.registry()
            .register(&mut listener, LISTENER, Interest::READABLE)
            .doing("watch the listener")?;
        Ok(Self {
            poll,
            listener,
            acceptable: true,
            held: (0..HELD_MAX).map(|_| None).collect(),
            free: (0..HELD_MAX).collect(),
            buffer: vec![0; HEAD_BYTES_MAX],
        })
    }

    fn run(mut self, over: &AtomicBool) -> Result<(), Error> {
        let mut events = Events::with_capacity(1024);
        while !over.load(Ordering::Relaxed) {
            let timeout = if self.acceptable { Duration::ZERO } else { LOOK };
            match self.poll.poll(&mut events, Some(timeout)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result.doing("wait for sockets")?,
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.acceptable = true,
                    Token(at) => self.read(at),
                }
            }
            self.accept()?;
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<(), Error> {
        for _ in 0..ACCEPTS_MAX {
            let mut stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.acceptable = false;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error).doing("accept"),
            };
            // Without a place it is closed here.
            if let Some(at) = self.free.pop() {
                self.poll
                    .registry()
                    .register(&mut stream, Token(at), Interest::READABLE)
                    .doing("watch a socket")?;
                self.held[at] = Some(Held {
                    stream,
                    read: 0,
                    tail: [0; 4],
                });
            }
        }
        Ok(())
    }

    /// Reads up to the end of a head or beyond what one may have, then the socket is closed.
    fn read(&mut self, at: usize) {
        let Some(held) = &mut self.held[at] else { return };
        let is_over = loop {
            match held.stream.read(&mut self.buffer) {
                Ok(0) => break true,
                Ok(count) => {
                    held.read += count;
                    for &byte in &self.buffer[count.saturating_sub(4)..count] {
                        held.tail.rotate_left(1);
                        held.tail[3] = byte;
                    }
                    if held.read >= HEAD_BYTES_MAX || held.tail == *b"\r\n\r\n" {
                        // Whether it arrives is the attacker's affair.
                        let _ = held.stream.write(REFUSAL);
                        break true;
                    }
                    if count < self.buffer.len() {
                        break false;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break false,
                Err(_) => break true,
            }
        };
        if is_over {
            self.held[at] = None;
            self.free.push(at);
        }
    }
}
