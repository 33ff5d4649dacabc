//! A socket of the tokio-uring driver and its tasks: one that reads, one that writes copies, one that ends what is under
//! way when it was closed. They tell the loop what happens; the loop changes the socket's cells and notifies them.

use crate::driver::{Ready, UNSENT_BYTES};
use bytes::BytesMut;
use socket2::SockRef;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, Read};
use std::mem;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

/// What a read is offered. Every socket has so much waiting.
const READ_BYTES: usize = 4_096;
/// Reads from one settled socket in a turn.
const READS_MAX: u32 = 4;
/// The least of a buffer that is read into again.
const REST_BYTES_MIN: usize = 1_024;
/// How long bytes of a closed socket may still be on their way out.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// What happened, from the tasks to the loop.
pub(super) struct Events {
    pub(super) queue: RefCell<VecDeque<Ready>>,
    pub(super) happened: Arc<Notify>,
    /// Waits of the loop so far: in between it has looked at what was told.
    pub(super) turn: Cell<u64>,
    pub(super) turned: Notify,
}

impl Events {
    /// The loop begins to wait: it has looked at everything.
    pub(super) fn begin_turn(&self) {
        self.turn.set(self.turn.get() + 1);
        self.turned.notify_waiters();
    }

    /// Waits until it has looked at what was told, and paused or closed whom it wanted to.
    async fn next_turn(&self) {
        let now = self.turn.get();
        while self.turn.get() == now {
            self.turned.notified().await;
        }
    }

    pub(super) fn tell(&self, ready: Ready) {
        self.queue.borrow_mut().push_back(ready);
        self.happened.notify_one();
    }
}

/// How a socket is used.
pub(super) enum Stage {
    /// It may move: non-blocking, by readiness.
    Loose(Rc<TcpStream>),
    /// By the ring.
    Settled(Rc<tokio_uring::net::TcpStream>),
    /// Out of care.
    Gone,
}

pub(super) struct Socket {
    pub(super) stage: RefCell<Stage>,
    pub(super) slot: Cell<u32>,
    pub(super) paused: Cell<bool>,
    pub(super) settling: Cell<bool>,
    pub(super) closed: Cell<bool>,
    /// Copies on their way out.
    pub(super) outgoing: RefCell<Vec<u8>>,
    pub(super) writing: Cell<bool>,
    /// The loop waits to write more.
    pub(super) blocked: Cell<bool>,
    /// The direction we write ends after what is on its way.
    pub(super) ending: Cell<bool>,
    /// Told when one of these has changed.
    pub(super) changed: Notify,
    pub(super) written: Notify,
}

impl Socket {
    pub(super) fn loose(&self) -> Option<Rc<TcpStream>> {
        match &*self.stage.borrow() {
            Stage::Loose(stream) => Some(stream.clone()),
            _ => None,
        }
    }

    pub(super) fn settled(&self) -> Option<Rc<tokio_uring::net::TcpStream>> {
        match &*self.stage.borrow() {
            Stage::Settled(stream) => Some(stream.clone()),
            _ => None,
        }
    }

    /// Waits until receiving is wanted; false if it never is again.
    async fn is_wanted(&self) -> bool {
        while self.paused.get() && !self.closed.get() {
            self.changed.notified().await;
        }
        !self.closed.get()
    }
}

/// Has the runtime tell when the descriptor is ready.
#[expect(
    deprecated,
    reason = "what took its place is unsafe; these types of the standard library keep their descriptor open"
)]
fn register<T: AsRawFd>(descriptor: Rc<T>, interest: Interest) -> io::Result<AsyncFd<Rc<T>>> {
    AsyncFd::with_interest(descriptor, interest)
}

/// Tells when connections wait.
pub(super) async fn accept_ready(listener: Rc<TcpListener>, events: Rc<Events>) {
    let Ok(listener) = register(listener, Interest::READABLE) else {
        return;
    };
    while let Ok(mut guard) = listener.readable().await {
        events.tell(Ready::Accept);
        guard.clear_ready();
    }
}

/// Reads from one socket until that is over.
pub(super) async fn receive(socket: Rc<Socket>, events: Rc<Events>) {
    receive_loose(&socket, &events).await;
    if socket.closed.get() || !socket.settling.get() {
        return;
    }
    let stage = mem::replace(&mut *socket.stage.borrow_mut(), Stage::Gone);
    let Stage::Loose(stream) = stage else { return };
    let slot = socket.slot.get();
    // Nobody else holds it any more.
    let stream = Rc::try_unwrap(stream)
        .ok()
        .filter(|stream| stream.set_nonblocking(false).is_ok());
    let Some(stream) = stream else {
        events.tell(Ready::Lost { slot });
        return;
    };
    // For all, since options can't be set any more once it is the runtime's.
    let _ = SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES);
    let stream = Rc::new(tokio_uring::net::TcpStream::from_std(stream));
    *socket.stage.borrow_mut() = Stage::Settled(stream.clone());
    tokio_uring::spawn(send(socket.clone(), events.clone()));
    if socket.blocked.replace(false) {
        events.tell(Ready::Writable { slot });
    }

    let mut buffer = BytesMut::with_capacity(READ_BYTES);
    let (mut turn, mut reads) = (0, 0);
    while socket.is_wanted().await {
        if turn != events.turn.get() {
            (turn, reads) = (events.turn.get(), 0);
        } else if reads == READS_MAX {
            events.next_turn().await;
            continue;
        }
        reads += 1;
        let (read, filled) = stream.read(buffer).await;
        buffer = filled;
        if socket.closed.get() {
            return;
        }
        match read {
            Ok(0) => return events.tell(Ready::Ended { slot }),
            Ok(_) => {
                let data = buffer.split();
                events.tell(Ready::Received { slot, data });
                if buffer.capacity() < REST_BYTES_MIN && !buffer.try_reclaim(READ_BYTES) {
                    buffer = BytesMut::with_capacity(READ_BYTES);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return events.tell(Ready::Lost { slot }),
        }
    }
}

/// Reads and tells of room to write, by readiness, until the socket is settled or over.
async fn receive_loose(socket: &Rc<Socket>, events: &Events) {
    if socket.settling.get() {
        return;
    }
    let Some(stream) = socket.loose() else { return };
    let interest = Interest::READABLE | Interest::WRITABLE;
    let Ok(stream) = register(stream, interest) else {
        return events.tell(Ready::Lost {
            slot: socket.slot.get(),
        });
    };
    let mut is_over = false;
    while !socket.closed.get() && (is_over || !socket.settling.get()) {
        let slot = socket.slot.get();
        let (wants_read, wants_write) = (!socket.paused.get() && !is_over, socket.blocked.get());
        tokio::select! {
            guard = stream.writable(), if wants_write => {
                let Ok(mut guard) = guard else { return };
                if socket.closed.get() {
                    return;
                }
                guard.clear_ready();
                socket.blocked.set(false);
                events.tell(Ready::Writable { slot });
            }
            guard = stream.readable(), if wants_read => {
                let Ok(mut guard) = guard else { return };
                if socket.closed.get() {
                    // Its slot may be another socket's by now, and what it holds its new shard's.
                    return;
                }
                match read_piece(guard.get_inner()) {
                    Ok(data) if data.is_empty() => {
                        is_over = true;
                        events.tell(Ready::Ended { slot });
                    }
                    Ok(data) => {
                        events.tell(Ready::Received { slot, data });
                        // One piece a turn, so that no stranger is told more of than can be kept.
                        events.next_turn().await;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => {
                        is_over = true;
                        events.tell(Ready::Lost { slot });
                    }
                }
            }
            () = socket.changed.notified() => {}
        }
    }
}

/// A piece in a buffer that is no longer than it, since it may be a byte, and kept.
fn read_piece(mut stream: &TcpStream) -> io::Result<BytesMut> {
    let mut buffer = [0; READ_BYTES];
    let bytes = stream.read(&mut buffer)?;
    Ok(BytesMut::from(&buffer[..bytes]))
}

/// Writes the copies of one settled socket.
async fn send(socket: Rc<Socket>, events: Rc<Events>) {
    let Some(stream) = socket.settled() else { return };
    loop {
        let bytes = mem::take(&mut *socket.outgoing.borrow_mut());
        if !socket.closed.get() && socket.blocked.replace(false) {
            events.tell(Ready::Writable {
                slot: socket.slot.get(),
            });
        }
        if bytes.is_empty() {
            socket.writing.set(false);
            if socket.ending.replace(false) {
                // An error means the peer is gone, which the next read says too.
                let _ = stream.shutdown(Shutdown::Write);
            }
            if socket.closed.get() {
                return;
            }
            socket.written.notified().await;
            continue;
        }
        let (written, _) = stream.write_all(bytes).await;
        if written.is_err() {
            socket.writing.set(false);
            if !socket.closed.get() {
                events.tell(Ready::Lost {
                    slot: socket.slot.get(),
                });
            }
            return;
        }
    }
}

/// Ends what is under way on a settled socket that was closed: a read can't be taken back otherwise.
pub(super) async fn finish(socket: Rc<Socket>) {
    let Some(stream) = socket.settled() else { return };
    let end = tokio::time::Instant::now() + LAST_WRITE;
    while socket.writing.get() && tokio::time::Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let _ = stream.shutdown(Shutdown::Both);
    *socket.stage.borrow_mut() = Stage::Gone;
    socket.written.notify_one();
}
