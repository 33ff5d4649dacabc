//! What can go wrong, in types: refusals of the relay with their data, failures of the connection, misuse.

use std::fmt;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use drover_wire::error::{Class, Code};
use drover_wire::id::Hash;
use tokio_tungstenite::tungstenite;

/// An ERROR frame as received (spec/weald/04-errors-and-limits.md §1).
#[derive(Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Which entry of the registry.
    pub code: Code,
    /// Seconds to wait; 0 when the relay named none.
    pub retry_after_s: u32,
    /// Raw detail; see [`Refusal::limit`], [`Refusal::state`], [`Refusal::version`].
    pub detail: Bytes,
}

impl Refusal {
    /// What a client is to do about it.
    pub fn class(&self) -> Class {
        self.code.class()
    }

    /// The limit or count the relay named: an 8-byte detail.
    pub fn limit(&self) -> Option<u64> {
        Some(u64::from_be_bytes(self.detail.as_ref().try_into().ok()?))
    }

    /// The state hash the relay named: a 32-byte detail, such as the digest of the newest access set.
    pub fn state(&self) -> Option<Hash> {
        Hash::from_slice(&self.detail)
    }

    /// The relay's highest protocol version: a 2-byte detail, on a refused CONNECT.
    pub fn version(&self) -> Option<u16> {
        Some(u16::from_be_bytes(self.detail.as_ref().try_into().ok()?))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.class().as_str(), self.code.as_str())?;
        if self.retry_after_s > 0 {
            write!(f, ", retry after {} s", self.retry_after_s)?;
        }
        if let Some(limit) = self.limit() {
            write!(f, ", limit {limit}")?;
        } else if let Some(state) = self.state() {
            write!(f, ", state {state:?}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Refusal({self})")
    }
}

/// Why an operation failed. Cheap to clone: one failure may answer many callers.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The relay answered with an ERROR frame.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The relay refused the WebSocket upgrade (02 §1), usually 503 at capacity.
    #[error("upgrade refused with HTTP status {status}")]
    Unavailable {
        /// HTTP status.
        status: u16,
        /// Seconds of its `Retry-After`, if it named any.
        retry_after_s: Option<u32>,
    },
    /// The socket ended. `code` is the WebSocket close code, if a close frame carried one; 1012 means a restart.
    #[error("the relay closed the connection")]
    Closed {
        /// WebSocket close code.
        code: Option<u16>,
    },
    /// The connection was lost before the answer came; whether the request took effect is unknown.
    #[error("connection lost before the answer")]
    Lost,
    /// No answer in time.
    #[error("timed out")]
    Timeout,
    /// Network failure.
    #[error("i/o: {0}")]
    Io(#[source] Arc<io::Error>),
    /// The TLS configuration or the relay's certificate is not acceptable.
    #[error("tls: {0}")]
    Tls(String),
    /// The WebSocket layer failed.
    #[error("websocket: {0}")]
    WebSocket(#[source] Arc<tungstenite::Error>),
    /// The relay selected a protocol version outside what this client accepts: `version/below_client_floor`. The
    /// connection was given up, as going on would be the downgrade the floor exists to prevent.
    #[error("relay speaks protocol version {selected}, below the floor {floor}")]
    BelowClientFloor {
        /// What the relay selected.
        selected: u16,
        /// The lowest accepted.
        floor: u16,
    },
    /// The relay accepts plaintext envelopes although the client was told to insist on encryption.
    #[error("the relay does not enforce encryption")]
    PlaintextAllowed,
    /// The relay broke the protocol.
    #[error("protocol violation: {0}")]
    Protocol(&'static str),
    /// An argument that can't be; nothing was sent.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// Another access set was accepted first. Obtain it from its publisher, [`crate::Workspace::adopt`] it, retry.
    #[error("another access set came first: version {version}")]
    SetConflict {
        /// Version of the accepted head.
        version: u64,
        /// Digest of the accepted head.
        digest: Hash,
    },
    /// The local clock is too far from the relay's to issue anything that expires; everything else works.
    #[error("local clock is {skew_ms} ms from the relay's")]
    ClockSkew {
        /// Local minus relay time, milliseconds.
        skew_ms: i64,
    },
    /// The group already has a subscription on this client.
    #[error("already subscribed")]
    AlreadySubscribed,
    /// The store failed; the client stopped, since nothing it receives could be kept.
    #[error("store: {0}")]
    Store(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// The client was closed, or stopped earlier for the reason given.
    #[error("client stopped")]
    Stopped(#[source] Option<Arc<Error>>),
}

impl Error {
    /// The refusal, if the relay answered with one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Error::Refused(refusal) => Some(refusal),
            Error::Stopped(Some(why)) => why.refusal(),
            _ => None,
        }
    }

    /// The registry entry this failure has, refused by the relay or raised by the client.
    pub fn code(&self) -> Option<Code> {
        match self {
            Error::BelowClientFloor { .. } => Some(Code::BelowClientFloor),
            _ => self.refusal().map(|refusal| refusal.code),
        }
    }

    /// Whether connecting again later can help, as opposed to a person having to act.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Refused(refusal) => {
                matches!(refusal.class(), Class::Retry | Class::Quota | Class::Limit)
                    && refusal.limit() != Some(256)
            }
            Error::Unavailable { status, .. } => *status >= 500 || matches!(status, 408 | 429),
            Error::Closed { .. } | Error::Lost | Error::Timeout | Error::Io(_) | Error::WebSocket(_) => true,
            Error::Protocol(_) => true,
            _ => false,
        }
    }

    /// Seconds the relay asked to wait, if it did.
    pub fn retry_after_s(&self) -> Option<u32> {
        match self {
            Error::Refused(refusal) => Some(refusal.retry_after_s).filter(|s| *s > 0),
            Error::Unavailable { retry_after_s, .. } => *retry_after_s,
            _ => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Error::Io(Arc::new(error))
    }
}

impl From<tungstenite::Error> for Error {
    fn from(error: tungstenite::Error) -> Self {
        use tungstenite::Error as Ws;
        match error {
            Ws::Io(error) => error.into(),
            Ws::ConnectionClosed | Ws::AlreadyClosed => Error::Closed { code: None },
            // A relay that dies or evicts ends the stream without a close frame.
            Ws::Protocol(tungstenite::error::ProtocolError::ResetWithoutClosingHandshake) => {
                Error::Closed { code: None }
            }
            Ws::Http(response) => Error::Unavailable {
                status: response.status().as_u16(),
                retry_after_s: response
                    .headers()
                    .get("retry-after")
                    .and_then(|value| value.to_str().ok())
                    .and_then(|text| text.trim().parse().ok()),
            },
            other => Error::WebSocket(Arc::new(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(detail: &[u8]) -> Refusal {
        Refusal {
            code: Code::RateLimited,
            retry_after_s: 60,
            detail: Bytes::copy_from_slice(detail),
        }
    }

    #[test]
    fn detail_is_told_apart_by_length() {
        assert_eq!(refusal(&6000u64.to_be_bytes()).limit(), Some(6000));
        assert_eq!(refusal(&[0, 4]).version(), Some(4));
        assert_eq!(refusal(&[7; 32]).state(), Some(Hash([7; 32])));
        assert_eq!(refusal(&[]).limit(), None);
        assert_eq!(refusal(&[]).state(), None);
    }

    #[test]
    fn admission_refusals_are_final_and_outages_are_not() {
        let denied = Refusal {
            code: Code::WriterNotInAccessSet,
            retry_after_s: 0,
            detail: Bytes::new(),
        };
        assert!(!Error::Refused(denied).is_transient());
        assert!(Error::Refused(refusal(&[])).is_transient());
        assert!(!Error::Refused(refusal(&256u64.to_be_bytes())).is_transient());
        assert!(
            Error::Unavailable {
                status: 503,
                retry_after_s: Some(5)
            }
            .is_transient()
        );
        assert!(
            !Error::Unavailable {
                status: 404,
                retry_after_s: None
            }
            .is_transient()
        );
    }
}
