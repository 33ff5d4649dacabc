//! The serving side of a baseline: one thread.

use super::socket::Socket;
use super::{ACK_BYTES, Plan, READ_BYTES, STREAM_BATCH, Work};
use crate::error::{Doing, Error};
use mio::{Events, Poll, Token};
use std::fs::File;
use std::io::{self, Write};
use std::net::TcpStream;

/// See the module.
pub(super) struct Server {
    work: Work,
    message_bytes: usize,
    poll: Poll,
    sockets: Vec<Socket>,
    log: File,
}

impl Server {
    pub(super) fn new(plan: &Plan, log: File) -> Result<Self, Error> {
        Ok(Self {
            work: plan.work,
            message_bytes: plan.message_bytes,
            poll: Poll::new().doing("make an epoll instance")?,
            sockets: Vec::new(),
            log,
        })
    }

    /// Takes a connection over; the writer of a fan-out is the first.
    pub(super) fn add(&mut self, stream: TcpStream) -> Result<(), Error> {
        let socket = Socket::new(&self.poll, stream, self.sockets.len())?;
        self.sockets.push(socket);
        Ok(())
    }

    /// Until the first connection ends.
    pub(super) fn serve(&mut self) -> Result<(), Error> {
        let mut events = Events::with_capacity(1024);
        let mut buffer = vec![0; READ_BYTES];
        let mut batch = Vec::new();
        let mut owed = vec![0; self.sockets.len()];
        loop {
            match self.poll.poll(&mut events, None) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result.doing("wait for sockets")?,
            }
            for event in &events {
                let Token(number) = event.token();
                if event.is_readable() || event.is_read_closed() {
                    while let Some(count) = self.sockets[number].read(&mut buffer)? {
                        if count == 0 {
                            return Ok(());
                        }
                        match self.work {
                            Work::Durable => {
                                owed[number] += self.sockets[number].messages(count, self.message_bytes);
                                batch.extend_from_slice(&buffer[..count]);
                            }
                            _ => self.forward(number, &buffer[..count])?,
                        }
                        if count < READ_BYTES {
                            break;
                        }
                    }
                }
                self.sockets[number].flush()?;
            }
            if !batch.is_empty() {
                self.log.write_all(&batch).doing("append")?;
                self.log.sync_data().doing("sync")?;
                batch.clear();
                for (socket, owed) in self.sockets.iter_mut().zip(&mut owed) {
                    let ack_bytes = std::mem::take(owed) * ACK_BYTES;
                    if ack_bytes > 0 {
                        socket.out.resize(socket.out.len() + ack_bytes, 0x5a);
                        socket.flush()?;
                    }
                }
            }
        }
    }

    fn forward(&mut self, number: usize, bytes: &[u8]) -> Result<(), Error> {
        let message_bytes = self.message_bytes;
        let sockets = self.sockets.len();
        let mut deliver = |number: usize, batched: bool| {
            let socket: &mut Socket = &mut self.sockets[number];
            let size = if batched { bytes.len() } else { message_bytes };
            for piece in bytes.chunks(size) {
                socket.out.extend_from_slice(piece);
                socket.flush()?;
            }
            Ok(())
        };
        match self.work {
            Work::Echo { batched } => deliver(number, batched),
            Work::Fanout { batched } => (1..sockets).try_for_each(|to| deliver(to, batched)),
            Work::Stream => {
                let socket = &mut self.sockets[number];
                socket
                    .out
                    .resize(socket.out.len() + STREAM_BATCH * message_bytes, 0x5a);
                socket.flush()
            }
            Work::Durable => Ok(()),
        }
    }
}
