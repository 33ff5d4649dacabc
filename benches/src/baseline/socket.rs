//! A socket of a baseline, on either side.

use crate::error::{Doing, Error};
use mio::net::TcpStream;
use mio::{Interest, Poll, Token};
use std::io::{self, Read, Write};

/// A socket and what could not be written yet.
pub(crate) struct Socket {
    stream: TcpStream,
    pub(crate) out: Vec<u8>,
    /// Bytes of a message that is not whole.
    partial: usize,
}

impl Socket {
    /// Watched by `poll` under this number.
    pub(crate) fn new(poll: &Poll, stream: std::net::TcpStream, number: usize) -> Result<Self, Error> {
        stream.set_nodelay(true).doing("set TCP_NODELAY")?;
        stream.set_nonblocking(true).doing("make a socket non-blocking")?;
        let mut stream = TcpStream::from_std(stream);
        poll.registry()
            .register(
                &mut stream,
                Token(number),
                Interest::READABLE | Interest::WRITABLE,
            )
            .doing("watch a socket")?;
        Ok(Self {
            stream,
            out: Vec::new(),
            partial: 0,
        })
    }

    /// Bytes read; 0 at the end, `None` when there is nothing to read.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Error> {
        match self.stream.read(buffer) {
            Ok(count) => Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            // The client ended the run with something unread.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(Some(0)),
            Err(error) => Err(error).doing("receive"),
        }
    }

    /// Whole messages in `count` more bytes.
    pub(crate) fn messages(&mut self, count: usize, message_bytes: usize) -> usize {
        let bytes = self.partial + count;
        self.partial = bytes % message_bytes;
        bytes / message_bytes
    }

    /// Writes what the kernel takes.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        let mut written = 0;
        while written < self.out.len() {
            match self.stream.write(&self.out[written..]) {
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).doing("send"),
            }
        }
        self.out.drain(..written);
        Ok(())
    }
}
