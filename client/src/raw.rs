//! One WebSocket and no protocol: for tools that send bytes no session would, and look at whatever comes back.

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::tungstenite::Message;

use crate::error::Error;
use crate::transport::{self, Endpoint, WebSocket};

/// What is sent as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// A binary message: a frame, or what only looks like one.
    Binary(Bytes),
    /// A text message, which no frame is.
    Text(String),
    /// A WebSocket ping.
    Ping(Bytes),
    /// The closing handshake, without a status.
    Close,
}

/// What the relay sent, or that it ended the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A binary message.
    Binary(Bytes),
    /// A text message; a relay sends none.
    Text,
    /// The answer to a ping.
    Pong(Bytes),
    /// The end: by a closing handshake, with its status if it had one, or without.
    Closed(Option<u16>),
}

/// See the module.
pub struct RawConnection(WebSocket);

impl RawConnection {
    /// Connects and upgrades.
    ///
    /// # Errors
    /// No connection, a certificate that is not accepted, or a refused upgrade.
    pub async fn open(endpoint: &Endpoint) -> Result<Self, Error> {
        Ok(Self(transport::open(endpoint).await?))
    }

    /// Sends one message. That the relay has already gone is no error here: the next [`receive`](Self::receive) says
    /// so, after whatever it still sent.
    ///
    /// # Errors
    /// None but failures of this side, such as a message over the buffer's size.
    pub async fn send(&mut self, message: Outgoing) -> Result<(), Error> {
        let message = match message {
            Outgoing::Binary(bytes) => Message::Binary(bytes),
            Outgoing::Text(text) => Message::Text(text.into()),
            Outgoing::Ping(payload) => Message::Ping(payload),
            Outgoing::Close => Message::Close(None),
        };
        match self.0.send(message).await.map_err(Error::from) {
            Err(Error::Io(_) | Error::Closed { .. }) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The next message; pings are answered unseen. Once closed, closed for good.
    ///
    /// # Errors
    /// A breach of the WebSocket protocol by the relay.
    pub async fn receive(&mut self) -> Result<Received, Error> {
        loop {
            return Ok(match self.0.next().await {
                Some(Ok(Message::Binary(bytes))) => Received::Binary(bytes),
                Some(Ok(Message::Text(_))) => Received::Text,
                Some(Ok(Message::Pong(payload))) => Received::Pong(payload),
                Some(Ok(Message::Ping(_) | Message::Frame(_))) => continue,
                Some(Ok(Message::Close(frame))) => Received::Closed(frame.map(|frame| frame.code.into())),
                None => Received::Closed(None),
                Some(Err(error)) => match Error::from(error) {
                    Error::Io(_) | Error::Closed { .. } => Received::Closed(None),
                    error => return Err(error),
                },
            });
        }
    }
}
