//! The driver on io_uring: multishot accept and receive, one pool of receive slots, files of the ring instead of
//! descriptors of the process, one submission for all writes of a turn. What it asks of the kernel is in
//! [`ring`]; [`probe`] tries it out.

pub(crate) mod probe;
mod ring;

use crate::driver::{Buffers, Driver, Ready, Write};
use crate::listen;
use bytes::BytesMut;
use ring::{Done, File, Ring, Send, Sizes};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// What an operation is, in the upper half of its tag; the lower half is the socket's key.
const ACCEPT: u32 = 1;
const WAKE: u32 = 2;
const RECEIVE: u32 = 3;
const WRITABLE: u32 = 4;

/// Bytes of a paused socket from which on its receive is ended. A pause is short as a rule, and ending and beginning again
/// costs more than keeping so much.
const EXCESS_BYTES_MAX: usize = 64 << 10;
/// Bytes of all paused sockets from which on each socket is received from one slot at a time, until it is half as much. A
/// multishot receive fills every slot there is before it can be ended, and a few hundred sockets one after the other would
/// fill the memory with what waits for its turn.
const HELD_BYTES_MAX: usize = 4 << 20;

fn tag(what: u32, key: u32) -> ring::Tag {
    u64::from(what) << 32 | u64::from(key)
}

/// The state of a socket's receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiving {
    /// Not asked for, or over.
    No,
    /// Under way.
    Yes,
    /// Being ended.
    Ending,
    /// It found no slot and is begun again with the next wait.
    Starved,
}

struct Entry {
    file: File,
    slot: u32,
    receiving: Receiving,
    /// Waits to be writable.
    polled: bool,
    paused: bool,
    /// Told while paused.
    excess_bytes: usize,
    settled: bool,
    /// Nothing more can be received.
    over: bool,
    /// Its key is free once the operations under way have ended.
    closed: bool,
}

/// See the module.
pub(crate) struct Uring {
    ring: Ring,
    listener: TcpListener,
    waker: Arc<OwnedFd>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Accepted and not handed out.
    accepted: VecDeque<io::Result<File>>,
    /// The kernel accepts.
    accepting: bool,
    /// Open sockets that are settled.
    settled: usize,
    /// Told of sockets that are paused.
    held_bytes: usize,
    /// Nobody is received from by multishot.
    frugal: bool,
    starved: VecDeque<u32>,
    starved_total: u64,
    sends: Vec<Send>,
}

impl Uring {
    /// A driver for this thread that accepts from `listener` (non-blocking), is woken by `waker` and holds at most so
    /// many sockets.
    pub(crate) fn new(listener: TcpListener, waker: Arc<OwnedFd>, sockets: u32) -> io::Result<Self> {
        Self::sized(listener, waker, sockets, Sizes::default())
    }

    /// The same, with queues that overflow all the time.
    #[cfg(test)]
    pub(crate) fn of_few_entries(
        listener: TcpListener,
        waker: Arc<OwnedFd>,
        sockets: u32,
    ) -> io::Result<Self> {
        let few = Sizes {
            submissions: 4,
            completions: 8,
        };
        Self::sized(listener, waker, sockets, few)
    }

    fn sized(listener: TcpListener, waker: Arc<OwnedFd>, sockets: u32, sizes: Sizes) -> io::Result<Self> {
        let mut ring = Ring::new(sockets, sizes)?;
        ring.watch(&waker, tag(WAKE, 0));
        Ok(Self {
            ring,
            listener,
            waker,
            entries: Vec::new(),
            free: Vec::new(),
            accepted: VecDeque::new(),
            accepting: false,
            settled: 0,
            held_bytes: 0,
            frugal: false,
            starved: VecDeque::new(),
            starved_total: 0,
            sends: Vec::new(),
        })
    }

    fn insert(&mut self, file: File) -> u32 {
        let entry = Entry {
            file,
            slot: u32::MAX,
            receiving: Receiving::No,
            polled: false,
            paused: false,
            excess_bytes: 0,
            settled: false,
            over: false,
            closed: false,
        };
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

    /// Begins to receive if that is wanted and not under way.
    fn receive(&mut self, key: u32) {
        let entry = &mut self.entries[key as usize];
        if entry.receiving == Receiving::No && !entry.paused && !entry.over && !entry.closed {
            entry.receiving = Receiving::Yes;
            // Of a stranger only as much as can be kept: one slot.
            match entry.settled && !self.frugal {
                true => self.ring.receive(entry.file, tag(RECEIVE, key)),
                false => self.ring.receive_once(entry.file, tag(RECEIVE, key)),
            }
        }
    }

    /// A closed socket's key can be used again when nothing is under way for it.
    fn free_if_idle(&mut self, key: u32) {
        let entry = &self.entries[key as usize];
        let is_idle = matches!(entry.receiving, Receiving::No | Receiving::Starved) && !entry.polled;
        if entry.closed && is_idle {
            self.free.push(key);
        }
    }

    fn received(&mut self, key: u32, done: Done) -> Option<Ready> {
        // Taken in any case, so that the slot comes back.
        let data = self.ring.received(&done).filter(|data| !data.is_empty());
        let result = done.result();
        let entry = &mut self.entries[key as usize];
        if !done.goes_on() {
            entry.receiving = Receiving::No;
        }
        if entry.closed {
            self.free_if_idle(key);
            return None;
        }
        let slot = entry.slot;
        match (result, data) {
            (Ok(_), Some(data)) => {
                if entry.paused {
                    entry.excess_bytes += data.len();
                    self.held_bytes += data.len();
                    if entry.excess_bytes >= EXCESS_BYTES_MAX {
                        self.end_receive(key);
                    }
                    if self.held_bytes >= HELD_BYTES_MAX && !std::mem::replace(&mut self.frugal, true) {
                        (0..self.entries.len() as u32).for_each(|key| self.end_receive(key));
                    }
                }
                self.receive(key);
                Some(Ready::Received { slot, data })
            }
            (Ok(_), None) => {
                entry.over = true;
                Some(Ready::Ended { slot })
            }
            (Err(error), _) => match error.raw_os_error() {
                Some(libc::ENOBUFS) => {
                    entry.receiving = Receiving::Starved;
                    self.starved.push_back(key);
                    self.starved_total += 1;
                    None
                }
                // Ended because it was paused, and perhaps isn't any more.
                Some(libc::ECANCELED | libc::EINTR | libc::EAGAIN) => {
                    self.receive(key);
                    None
                }
                _ => {
                    entry.over = true;
                    Some(Ready::Lost { slot })
                }
            },
        }
    }

    /// Ends what is received of a socket, but for what is there already.
    fn end_receive(&mut self, key: u32) {
        let entry = &mut self.entries[key as usize];
        if entry.receiving == Receiving::Yes {
            entry.receiving = Receiving::Ending;
            self.ring.cancel(tag(RECEIVE, key));
        }
    }

    /// What was told of a paused socket is held no more.
    fn let_go(&mut self, key: u32) {
        self.held_bytes -= std::mem::take(&mut self.entries[key as usize].excess_bytes);
        self.frugal &= self.held_bytes >= HELD_BYTES_MAX / 2;
    }

    fn writable(&mut self, key: u32) -> Option<Ready> {
        let entry = &mut self.entries[key as usize];
        entry.polled = false;
        if entry.closed {
            self.free_if_idle(key);
            return None;
        }
        Some(Ready::Writable { slot: entry.slot })
    }

    /// Whoever found no slot tries again: those of the last turn are all back. If it happens, the pool was too small for
    /// what so many sockets receive in one turn. It does not grow for strangers: they take turns.
    fn feed_starved(&mut self) {
        if self.starved.is_empty() {
            return;
        }
        if !self.frugal {
            self.ring.grow_pool(2 * self.settled);
        }
        for _ in 0..self.starved.len() {
            let Some(key) = self.starved.pop_front() else {
                return;
            };
            let entry = &mut self.entries[key as usize];
            if entry.receiving == Receiving::Starved {
                entry.receiving = Receiving::No;
                self.receive(key);
            }
        }
    }

    /// A write took less than was offered: its socket is waited for.
    fn note_taken(&mut self, key: u32, offered: usize, taken: io::Result<usize>) -> io::Result<usize> {
        let taken = match taken {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            taken => taken?,
        };
        let entry = &mut self.entries[key as usize];
        if taken < offered && !entry.polled {
            entry.polled = true;
            self.ring.await_writable(entry.file, tag(WRITABLE, key));
        }
        Ok(taken)
    }
}

impl Driver for Uring {
    type Socket = u32;

    fn wait(&mut self, rest: Duration, timeout: Option<Duration>) -> io::Result<()> {
        self.feed_starved();
        self.ring.wait(rest, timeout)
    }

    fn next(&mut self) -> Option<Ready> {
        loop {
            let done = self.ring.next()?;
            let (what, key) = ((done.tag >> 32) as u32, done.tag as u32);
            let ready = match what {
                ACCEPT => {
                    self.accepting &= done.goes_on();
                    self.accepted.push_back(Ring::accepted(&done));
                    Some(Ready::Accept)
                }
                WAKE => {
                    if !done.goes_on() {
                        self.ring.watch(&self.waker, tag(WAKE, 0));
                    }
                    None
                }
                RECEIVE => self.received(key, done),
                WRITABLE => self.writable(key),
                _ => None,
            };
            if ready.is_some() {
                return ready;
            }
        }
    }

    /// The kernel accepts by itself. A plain call does what remains: it drains what waits before the kernel is asked
    /// (again), which matters at the limit of descriptors, where each has to be turned away.
    fn accept(&mut self) -> io::Result<Option<(u32, SocketAddr)>> {
        match self.accepted.pop_front() {
            Some(Ok(file)) => {
                let peer = match self.ring.install(file) {
                    Ok(descriptor) => TcpStream::from(descriptor).peer_addr(),
                    Err(error) => {
                        if listen::is_descriptor_limit(&error) {
                            self.accepted.push_front(Ok(file));
                        } else {
                            self.ring.close(file);
                        }
                        return Err(error);
                    }
                };
                match peer {
                    Ok(peer) => Ok(Some((self.insert(file), peer))),
                    Err(_) => {
                        // It has no peer any more.
                        self.ring.close(file);
                        Err(io::ErrorKind::ConnectionAborted.into())
                    }
                }
            }
            Some(Err(error)) => Err(error),
            None if self.accepting => Ok(None),
            None => match self.listener.accept() {
                Ok((stream, peer)) => Ok(Some((self.adopt(stream)?, peer))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.accepting = true;
                    self.ring.accept(&self.listener, tag(ACCEPT, 0));
                    Ok(None)
                }
                Err(error) => Err(error),
            },
        }
    }

    fn adopt(&mut self, stream: TcpStream) -> io::Result<u32> {
        let file = self.ring.fix(stream.into())?;
        Ok(self.insert(file))
    }

    fn watch(&mut self, key: u32, slot: u32) -> io::Result<()> {
        self.entries[key as usize].slot = slot;
        self.receive(key);
        Ok(())
    }

    fn release(&mut self, key: u32) -> io::Result<(TcpStream, BytesMut)> {
        let entry = &self.entries[key as usize];
        let (file, receiving) = (entry.file, entry.receiving);
        let mut rest = BytesMut::new();
        if matches!(receiving, Receiving::Yes | Receiving::Ending) {
            self.ring.cancel_now(tag(RECEIVE, key))?;
        }
        self.ring.take_all(tag(RECEIVE, key), |ring, done| {
            if let Some(data) = ring.received(&done) {
                rest.unsplit(data);
            }
        });
        self.entries[key as usize].receiving = Receiving::No;
        let descriptor = self.ring.install(file);
        self.close(key);
        Ok((descriptor?.into(), rest))
    }

    fn settle(&mut self, key: u32) {
        let entry = &mut self.entries[key as usize];
        self.settled += usize::from(!std::mem::replace(&mut entry.settled, true));
    }

    fn keep_unsent_short(&mut self, key: u32) {
        self.ring.keep_unsent_short(self.entries[key as usize].file);
    }

    fn pause(&mut self, key: u32) {
        self.entries[key as usize].paused = true;
    }

    fn resume(&mut self, key: u32) {
        self.entries[key as usize].paused = false;
        self.let_go(key);
        self.receive(key);
    }

    fn write(&mut self, key: u32, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut outcomes = Vec::with_capacity(1);
        let (from, to) = (0, slices.len());
        self.write_each(
            &[Write {
                socket: key,
                from,
                to,
            }],
            slices,
            &mut outcomes,
        );
        outcomes.pop().unwrap_or(Ok(0))
    }

    fn write_each(
        &mut self,
        writes: &[Write<u32>],
        slices: &[IoSlice<'_>],
        outcomes: &mut Vec<io::Result<usize>>,
    ) {
        self.sends.clear();
        self.sends.extend(writes.iter().map(|write| Send {
            file: self.entries[write.socket as usize].file,
            from: write.from,
            to: write.to,
        }));
        let first = outcomes.len();
        self.ring.send_each(&self.sends, slices, outcomes);
        for (write, outcome) in writes.iter().zip(&mut outcomes[first..]) {
            let offered = slices[write.from..write.to].iter().map(|slice| slice.len()).sum();
            let taken = std::mem::replace(outcome, Ok(0));
            *outcome = self.note_taken(write.socket, offered, taken);
        }
    }

    fn end_write(&mut self, key: u32) {
        // Without a descriptor to spare the peer sees the end when the socket is closed; other errors mean it is gone.
        let _ = self.ring.end_write(self.entries[key as usize].file);
    }

    fn close(&mut self, key: u32) {
        self.let_go(key);
        self.end_receive(key);
        let entry = &mut self.entries[key as usize];
        entry.closed = true;
        self.settled -= usize::from(entry.settled);
        if entry.polled {
            self.ring.cancel(tag(WRITABLE, key));
        }
        self.ring.close(entry.file);
        self.free_if_idle(key);
    }

    fn buffers(&self) -> Buffers {
        let (slots, renewed) = self.ring.slots();
        Buffers {
            slots: slots as u64,
            renewed,
            starved: self.starved_total,
        }
    }
}
