//! One blocking connection: upgrade, CONNECT, AUTH, and requests with one answer.

use crate::error::{Doing, Error};
use crate::link::{Link, Target};
use crate::wsframe::{self, Inbound};
use drover_wire::frame::{Frame, List32Buf, PROTOCOL_VERSION};
use drover_wire::id::{GroupId, PublicKey};
use ed25519_dalek::SigningKey;
use std::io::{self, Read, Write};
use std::net::TcpStream;

/// Bytes asked for by one read.
const READ_BYTES: usize = 16 << 10;

/// See the module.
pub(crate) struct Peer {
    link: Link,
    inbound: Vec<u8>,
}

impl Peer {
    /// A stream that carries messages without an upgrade.
    pub(crate) fn raw(stream: TcpStream) -> Result<Self, Error> {
        stream.set_nodelay(true).doing("set TCP_NODELAY")?;
        Ok(Self {
            link: Link::Plain(stream),
            inbound: Vec::new(),
        })
    }

    /// Connects and upgrades.
    pub(crate) fn open(target: &Target) -> Result<Self, Error> {
        let mut peer = Self {
            link: target.connect()?,
            inbound: Vec::new(),
        };
        peer.link
            .write_all(upgrade_request(target).as_bytes())
            .doing("send the upgrade request")?;
        loop {
            if let Some(end) = upgraded(&peer.inbound)? {
                peer.inbound.drain(..end);
                return Ok(peer);
            }
            peer.read_more()?;
        }
    }

    /// Opens a connection of this device that names these groups, up to AUTH_ACK.
    pub(crate) fn authenticated(
        target: &Target,
        device: &SigningKey,
        groups: &[GroupId],
    ) -> Result<Self, Error> {
        let mut peer = Self::open(target)?;
        peer.authenticate(device, groups)?;
        Ok(peer)
    }

    /// CONNECT and AUTH.
    pub(crate) fn authenticate(&mut self, device: &SigningKey, groups: &[GroupId]) -> Result<(), Error> {
        self.send(&connect_frame(groups))?;
        self.answer(|frame| matches!(frame, Frame::ConnectAck { .. }).then_some(()))?;
        let auth = self.answer(|frame| match frame {
            Frame::AuthChallenge { challenge } => Some(auth_frame(device, challenge)),
            _ => None,
        })?;
        self.send(&auth)?;
        self.answer(|frame| matches!(frame, Frame::AuthAck { .. }).then_some(()))
    }

    /// Sends one frame.
    pub(crate) fn send(&mut self, frame: &[u8]) -> Result<(), Error> {
        let mut out = Vec::new();
        wsframe::put_message(frame, &mut out);
        self.link.write_all(&out).doing("send")?;
        self.link.flush().doing("send")
    }

    /// Waits for the next frame, which has to be one that `pick` takes.
    pub(crate) fn answer<T>(&mut self, pick: impl Fn(Frame<'_>) -> Option<T>) -> Result<T, Error> {
        loop {
            match wsframe::first(&self.inbound)? {
                Some((Inbound::Message(message), len)) => {
                    let frame = decode(message)?;
                    let picked = pick(frame).ok_or_else(|| unexpected(&frame))?;
                    self.inbound.drain(..len);
                    return Ok(picked);
                }
                Some((Inbound::Close, _)) => return Err(Error::Unexpected("the relay closed".into())),
                Some((_, len)) => drop(self.inbound.drain(..len)),
                None => self.read_more()?,
            }
        }
    }

    /// Whether the relay has ended the connection by now. From here on the peer can't wait any more.
    pub(crate) fn has_ended(&mut self) -> Result<bool, Error> {
        self.link.set_nonblocking()?;
        loop {
            match wsframe::first(&self.inbound)? {
                Some((Inbound::Close, _)) => return Ok(true),
                Some((_, len)) => {
                    self.inbound.drain(..len);
                    continue;
                }
                None => (),
            }
            let mut buffer = [0; 512];
            match self.link.read(&mut buffer) {
                Ok(0) => return Ok(true),
                Ok(count) => self.inbound.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(true),
                Err(error) => return Err(error).doing("receive"),
            }
        }
    }

    /// The stream, and what was read from it but not yet asked for.
    pub(crate) fn into_parts(self) -> (Link, Vec<u8>) {
        (self.link, self.inbound)
    }

    /// The socket, if it is a plain one.
    pub(crate) fn into_tcp(self) -> Option<std::net::TcpStream> {
        match self.link {
            Link::Plain(stream) => Some(stream),
            Link::Tls(_) => None,
        }
    }

    fn read_more(&mut self) -> Result<(), Error> {
        let held = self.inbound.len();
        self.inbound.resize(held + READ_BYTES, 0);
        let read = self.link.read(&mut self.inbound[held..]);
        self.inbound
            .truncate(held + read.as_ref().map_or(0, |count| *count));
        match read.doing("receive")? {
            0 => Err(Error::Unexpected("the relay ended the connection".into())),
            _ => Ok(()),
        }
    }
}

/// The upgrade request; the key is of no interest to anybody.
pub(crate) fn upgrade_request(target: &Target) -> String {
    format!(
        "GET {} HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{}\r\n",
        target.path(),
        target.authority(),
        target.forwarded_line()
    )
}

/// Where the answer to the upgrade ends; `None` while it is not whole.
pub(crate) fn upgraded(bytes: &[u8]) -> Result<Option<usize>, Error> {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    if bytes.starts_with(b"HTTP/1.1 101") {
        return Ok(Some(end + 4));
    }
    let line = bytes.split(|&byte| byte == b'\r').next().unwrap_or_default();
    Err(Error::Unexpected(format!(
        "the upgrade was answered {}",
        String::from_utf8_lossy(line)
    )))
}

/// CONNECT naming these groups.
pub(crate) fn connect_frame(groups: &[GroupId]) -> Vec<u8> {
    let groups: List32Buf = groups.iter().copied().collect();
    encoded(&Frame::Connect {
        version: PROTOCOL_VERSION,
        groups: groups.as_list(),
        sent_at_ms: 0,
    })
}

/// AUTH over this challenge.
pub(crate) fn auth_frame(device: &SigningKey, challenge: &[u8]) -> Vec<u8> {
    encoded(&Frame::Auth {
        device_key: public_key(device),
        signature: drover_wire::access::sign(device, challenge),
    })
}

/// The public half.
pub(crate) fn public_key(device: &SigningKey) -> PublicKey {
    PublicKey(device.verifying_key().to_bytes())
}

/// The frame's encoding.
pub(crate) fn encoded(frame: &Frame<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    frame.encode(&mut out);
    out
}

/// Decodes a frame of the relay; an ERROR becomes an error.
pub(crate) fn decode(message: &[u8]) -> Result<Frame<'_>, Error> {
    match Frame::decode(message) {
        Ok(Frame::Error {
            code, retry_after_s, ..
        }) => Err(Error::Refused { code, retry_after_s }),
        Ok(frame) => Ok(frame),
        Err(error) => Err(Error::Unexpected(format!(
            "a frame that does not decode: {error:?}"
        ))),
    }
}

/// A frame out of place.
pub(crate) fn unexpected(frame: &Frame<'_>) -> Error {
    Error::Unexpected(format!("the relay sent {}", frame.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upgrade_answers() {
        let ok = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x82";
        assert_eq!(upgraded(ok).expect("accepted"), Some(ok.len() - 1));
        assert_eq!(upgraded(&ok[..20]).expect("not whole"), None);
        let full =
            upgraded(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\n\r\n").expect_err("refused");
        assert!(full.to_string().contains("503"), "{full}");
    }
}
