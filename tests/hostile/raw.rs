//! Sockets that say whatever they are told.

use crate::relay::Relay;
use drover_client::Identity;
use drover_client::connection::encode;
use drover_client::wire::frame::{Frame, List32Buf, PROTOCOL_VERSION};
use drover_client::wire::id::GroupId;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

/// How long a peer that takes nothing more is offered bytes.
const OFFERED: Duration = Duration::from_millis(500);

/// A WebSocket request.
pub(crate) const UPGRADE: &[u8] =
    b"GET /relay HTTP/1.1\r\nHost: relay\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// A connection from 127.0.0.`source`.
pub(crate) async fn connect(relay: &Relay, source: u8) -> std::io::Result<Raw> {
    let address: SocketAddr = relay.address().parse().unwrap();
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from(([127, 0, 0, source], 0)))?;
    Ok(Raw(socket.connect(address).await?))
}

/// The same, upgraded; otherwise the status, or nothing where the server just closed.
pub(crate) async fn upgraded(relay: &Relay, source: u8) -> Result<Raw, Option<u16>> {
    let mut raw = connect(relay, source).await.map_err(|_| None)?;
    raw.0.write_all(UPGRADE).await.map_err(|_| None)?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match raw.0.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return Err(None),
        }
    }
    let status = std::str::from_utf8(&head[9..12]).unwrap().parse().unwrap();
    match status {
        101 => Ok(raw),
        _ => Err(Some(status)),
    }
}

pub(crate) struct Raw(pub(crate) TcpStream);

impl Raw {
    /// Writes all of it unless the peer ends or stops taking; how many bytes it took.
    pub(crate) async fn push(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while taken < bytes.len() {
            match tokio::time::timeout(OFFERED, self.0.write(&bytes[taken..])).await {
                Ok(Ok(count)) if count > 0 => taken += count,
                _ => break,
            }
        }
        taken
    }

    /// CONNECT and AUTH.
    pub(crate) async fn authenticate(&mut self, device: &Identity, group: GroupId) {
        let groups: List32Buf = [group].into_iter().collect();
        let connect = Frame::Connect {
            version: PROTOCOL_VERSION,
            groups: groups.as_list(),
            sent_at_ms: 0,
        };
        self.0.write_all(&message(&encode(&connect))).await.unwrap();
        self.frame().await; // CONNECT_ACK
        let challenge = self.frame().await;
        let Frame::AuthChallenge { challenge } = Frame::decode(&challenge).unwrap() else {
            panic!("no challenge")
        };
        let auth = Frame::Auth {
            device_key: device.public(),
            signature: device.sign(challenge),
        };
        self.0.write_all(&message(&encode(&auth))).await.unwrap();
        let answer = self.frame().await;
        assert!(matches!(Frame::decode(&answer), Ok(Frame::AuthAck { .. })));
    }

    /// The payload of the next frame.
    pub(crate) async fn frame(&mut self) -> Vec<u8> {
        let mut head = [0; 2];
        self.0.read_exact(&mut head).await.unwrap();
        let length = match head[1] & 0x7f {
            126 => usize::from(self.0.read_u16().await.unwrap()),
            127 => self.0.read_u64().await.unwrap() as usize,
            short => usize::from(short),
        };
        let mut payload = vec![0; length];
        self.0.read_exact(&mut payload).await.unwrap();
        payload
    }

    /// Whether the server has ended it, after reading what it had to say.
    pub(crate) async fn is_ended(&mut self) -> bool {
        let mut rest = [0; 4096];
        loop {
            match tokio::time::timeout(Duration::from_millis(1), self.0.read(&mut rest)).await {
                Ok(Ok(0) | Err(_)) => return true,
                Ok(Ok(_)) => {}
                Err(_) => return false,
            }
        }
    }
}

/// A masked frame: `first` is FIN and opcode. The key is zero, so the payload stands as it is.
pub(crate) fn framed(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = head(first, payload.len() as u64);
    frame.extend_from_slice(payload);
    frame
}

/// A head that declares a length.
pub(crate) fn head(first: u8, length: u64) -> Vec<u8> {
    let mut head = vec![first];
    match length {
        0..126 => head.push(0x80 | length as u8),
        126..=0xffff => {
            head.push(0x80 | 126);
            head.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            head.push(0x80 | 127);
            head.extend_from_slice(&length.to_be_bytes());
        }
    }
    head.extend_from_slice(&[0; 4]);
    head
}

/// A whole binary message.
pub(crate) fn message(payload: &[u8]) -> Vec<u8> {
    framed(0x82, payload)
}
