//! The driver on the tokio-uring runtime, so that users can compare it. The runtime has neither multishot operations,
//! nor pools, nor a way to end an operation, so here
//!
//! - every socket has a task that reads into a buffer of the socket's own, and a second one that writes copies;
//! - a socket that may still move to another shard is read and written as under epoll, through the runtime's own:
//!   a read that is under way could not be taken back.

mod socket;

use crate::driver::{Driver, Ready, UNSENT_BYTES, Waker};
use crate::locked;
use bytes::BytesMut;
use socket::{Events, Socket, Stage, accept_ready, finish, receive};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::{self, IoSlice, Write};
use std::mem;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio_uring::Runtime;

/// What waits to be written by the ring at most, and as much may be under way.
const WRITE_BYTES_MAX: usize = 262_144;
/// Passes over the tasks in one wait.
const PASSES_MAX: usize = 32;
/// Entries of the ring.
const SUBMISSIONS: u32 = 1_024;

/// See the module.
pub(crate) struct TokioUring {
    runtime: Runtime,
    listener: Rc<TcpListener>,
    events: Rc<Events>,
    sockets: Vec<Option<Rc<Socket>>>,
    free: Vec<u32>,
    /// Tasks begin within the runtime only.
    tasks: Vec<Pin<Box<dyn Future<Output = ()>>>>,
    may_move: bool,
}

fn runtime() -> io::Result<Runtime> {
    locked::make(|| Runtime::new(tokio_uring::builder().entries(SUBMISSIONS)))
}

impl TokioUring {
    /// A driver for this thread that accepts from `listener` (non-blocking). With `may_move` sockets can be released
    /// until they are settled.
    pub(crate) fn new(listener: TcpListener, happened: Arc<Notify>, may_move: bool) -> io::Result<Self> {
        let runtime = runtime()?;
        let listener = Rc::new(listener);
        let events = Rc::new(Events {
            queue: RefCell::default(),
            happened,
            turn: Cell::new(0),
            turned: Notify::new(),
        });
        let accepting = accept_ready(listener.clone(), events.clone());
        Ok(Self {
            runtime,
            listener,
            events,
            sockets: Vec::new(),
            free: Vec::new(),
            tasks: vec![Box::pin(accepting)],
            may_move,
        })
    }

    /// Whether the kernel allows it.
    ///
    /// # Errors
    /// What does not work.
    pub(crate) fn probe() -> Result<(), String> {
        // One operation through a ring.
        let tried = std::thread::spawn(|| runtime().map(|runtime| runtime.block_on(tokio_uring::no_op())));
        match tried.join() {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error)) | Err(error)) => Err(format!("a ring: {error}")),
            Err(_) => Err("the runtime has failed".to_owned()),
        }
    }

    fn socket(&self, key: u32) -> Option<&Rc<Socket>> {
        self.sockets.get(key as usize)?.as_ref()
    }

    fn insert(&mut self, stream: TcpStream) -> io::Result<u32> {
        stream.set_nonblocking(true)?;
        let socket = Some(Rc::new(Socket {
            stage: RefCell::new(Stage::Loose(Rc::new(stream))),
            slot: Cell::new(u32::MAX),
            paused: Cell::new(false),
            settling: Cell::new(!self.may_move),
            closed: Cell::new(false),
            outgoing: RefCell::default(),
            writing: Cell::new(false),
            blocked: Cell::new(false),
            ending: Cell::new(false),
            changed: Notify::new(),
            written: Notify::new(),
        }));
        Ok(match self.free.pop() {
            Some(key) => {
                self.sockets[key as usize] = socket;
                key
            }
            None => {
                self.sockets.push(socket);
                self.sockets.len() as u32 - 1
            }
        })
    }

    fn remove(&mut self, key: u32) -> Option<Rc<Socket>> {
        let socket = self.sockets.get_mut(key as usize)?.take()?;
        self.free.push(key);
        socket.closed.set(true);
        socket.changed.notify_one();
        // What is not told yet is about nobody.
        let slot = socket.slot.get();
        self.events
            .queue
            .borrow_mut()
            .retain(|ready| slot_of(ready) != Some(slot));
        Some(socket)
    }
}

fn slot_of(ready: &Ready) -> Option<u32> {
    match ready {
        Ready::Accept => None,
        Ready::Received { slot, .. }
        | Ready::Ended { slot }
        | Ready::Lost { slot }
        | Ready::Writable { slot } => Some(*slot),
    }
}

impl Driver for TokioUring {
    type Socket = u32;

    fn wait(&mut self, rest: Duration, timeout: Option<Duration>) -> io::Result<()> {
        let began = Instant::now();
        self.events.begin_turn();
        let tasks = mem::take(&mut self.tasks);
        let events = self.events.clone();
        self.runtime.block_on(async {
            tasks.into_iter().for_each(|task| drop(tokio_uring::spawn(task)));
            // The runtime submits only when it has nothing to do; waiting for this makes it.
            let _ = tokio_uring::no_op().await;
            if !events.queue.borrow().is_empty() || timeout == Some(Duration::ZERO) {
                return;
            }
            let happened = events.happened.notified();
            match timeout {
                Some(timeout) => drop(tokio::time::timeout(timeout, happened).await),
                None => happened.await,
            }
        });
        let left = rest.saturating_sub(began.elapsed());
        if !left.is_zero() {
            // What was to be written is under way, and its results and what else comes is gathered.
            std::thread::sleep(left);
        }
        // The runtime polls some sixty tasks at a time, so as often as that brings something.
        let events = self.events.clone();
        self.runtime.block_on(async {
            for _ in 0..PASSES_MAX {
                let before = events.queue.borrow().len();
                let _ = tokio_uring::no_op().await;
                tokio::task::yield_now().await;
                if events.queue.borrow().len() == before {
                    break;
                }
            }
        });
        Ok(())
    }

    fn next(&mut self) -> Option<Ready> {
        self.events.queue.borrow_mut().pop_front()
    }

    fn accept(&mut self) -> io::Result<Option<(u32, SocketAddr)>> {
        match self.listener.accept() {
            Ok((stream, peer)) => Ok(Some((self.insert(stream)?, peer))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn adopt(&mut self, stream: TcpStream) -> io::Result<u32> {
        let key = self.insert(stream)?;
        if let Some(socket) = self.socket(key) {
            // A connection moves once.
            socket.settling.set(true);
        }
        Ok(key)
    }

    fn watch(&mut self, key: u32, slot: u32) -> io::Result<()> {
        if let Some(socket) = self.socket(key).cloned() {
            socket.slot.set(slot);
            self.tasks.push(Box::pin(receive(socket, self.events.clone())));
        }
        Ok(())
    }

    fn release(&mut self, key: u32) -> io::Result<(TcpStream, BytesMut)> {
        let mut rest = BytesMut::new();
        if let Some(socket) = self.socket(key) {
            let slot = socket.slot.get();
            for ready in &mut *self.events.queue.borrow_mut() {
                if let Ready::Received { slot: whose, data } = ready
                    && *whose == slot
                {
                    rest.unsplit(data.split());
                }
            }
        }
        let socket = self.remove(key).ok_or(io::ErrorKind::NotConnected)?;
        let stream = socket.loose().ok_or(io::ErrorKind::Unsupported)?;
        *socket.stage.borrow_mut() = Stage::Gone;
        // The task still waits on the other descriptor, until it sees that it is over.
        Ok((stream.try_clone()?, rest))
    }

    fn settle(&mut self, key: u32) {
        if let Some(socket) = self.socket(key) {
            socket.settling.set(true);
            socket.changed.notify_one();
        }
    }

    fn keep_unsent_short(&mut self, key: u32) {
        let Some(socket) = self.socket(key) else { return };
        if let Some(stream) = socket.loose() {
            let _ = socket2::SockRef::from(&*stream).set_tcp_notsent_lowat(UNSENT_BYTES);
        }
    }

    fn pause(&mut self, key: u32) {
        if let Some(socket) = self.socket(key) {
            socket.paused.set(true);
        }
    }

    fn resume(&mut self, key: u32) {
        if let Some(socket) = self.socket(key)
            && socket.paused.replace(false)
        {
            socket.changed.notify_one();
        }
    }

    fn write(&mut self, key: u32, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(socket) = self.socket(key) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let offered: usize = slices.iter().map(|slice| slice.len()).sum();
        if let Some(stream) = socket.loose() {
            let taken = match (&*stream).write_vectored(slices) {
                Ok(taken) => taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Err(error) => return Err(error),
            };
            if taken < offered {
                socket.blocked.set(true);
                socket.changed.notify_one();
            }
            return Ok(taken);
        }
        let mut outgoing = socket.outgoing.borrow_mut();
        let before = outgoing.len();
        outgoing.reserve(offered.min(WRITE_BYTES_MAX - before));
        for slice in slices {
            let room = WRITE_BYTES_MAX - outgoing.len();
            outgoing.extend_from_slice(&slice[..slice.len().min(room)]);
        }
        let taken = outgoing.len() - before;
        socket.writing.set(true);
        socket.blocked.set(taken < offered);
        socket.written.notify_one();
        Ok(taken)
    }

    fn end_write(&mut self, key: u32) {
        let Some(socket) = self.socket(key) else { return };
        if let Some(stream) = socket.loose() {
            let _ = stream.shutdown(Shutdown::Write);
        } else if socket.writing.get() {
            socket.ending.set(true);
        } else if let Some(stream) = socket.settled() {
            let _ = stream.shutdown(Shutdown::Write);
        }
    }

    fn close(&mut self, key: u32) {
        if let Some(socket) = self.remove(key) {
            if socket.settled().is_some() {
                self.tasks.push(Box::pin(finish(socket)));
            } else {
                // Where a task still waits on it, until it sees that it is over.
                *socket.stage.borrow_mut() = Stage::Gone;
            }
        }
    }
}

/// What ends a wait of this driver.
pub(crate) fn waker() -> (Waker, Arc<Notify>) {
    let happened = Arc::new(Notify::new());
    (Waker::Notify(happened.clone()), happened)
}
