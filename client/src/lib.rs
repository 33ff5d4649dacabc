//! Async client library for Weald relays: sealed envelopes over WebSocket, kept in sync by cursor and reconciliation.
//!
//! ```no_run
//! use drover_client::{Client, Cursor, Event, Identity, RelayUrl, SealedEnvelope};
//! use drover_client::wire::id::GroupId;
//!
//! # async fn run(root: GroupId, seed: [u8; 32]) -> Result<(), drover_client::Error> {
//! let url: RelayUrl = "wss://relay.example".parse()?;
//! let client = Client::builder(url, Identity::from_seed(&seed)).groups([root]).start()?;
//!
//! // Durable once this returns; sent again by itself until then.
//! let ack = client.send(SealedEnvelope::new(root, 7, b"ciphertext".to_vec())?).await?;
//! println!("stored under cursor {}", ack.seq);
//!
//! // Everything missed so far, then everything new, across reconnects.
//! let mut events = client.subscribe(root, Cursor::Stored).await?;
//! loop {
//!     match events.next().await? {
//!         Event::Handshake { seq, message } => println!("commit {seq}: {} bytes", message.len()),
//!         Event::Envelope(envelope) => println!("envelope {:?}", envelope.hash()),
//!         _ => {}
//!     }
//! }
//! # }
//! ```
//!
//! | Module | Story |
//! | --- | --- |
//! | [`client`] | [`Client`]: reconnects, resends, subscribes, reconciles |
//! | [`connection`] | [`Connection`]: one socket, driven by hand |
//! | [`events`] | what a [`Subscription`] delivers |
//! | [`store`] | the [`Store`] of what the client holds |
//! | [`access`] | [`Workspace`]: access sets, their successors, publication |
//! | [`founding`], [`joining`], [`invites`] | how a workspace and its people begin |
//! | [`keys`] | key packages on the relay's shelf, and recovery wraps |
//! | [`retention`] | what a group still needs, what may go, and letting it go |
//! | [`call`] | [`Call`]: a place in a call, its audio out and in |
//! | [`wake`] | whether and for what a sleeping device is woken |
//! | [`payload`] | what is inside an envelope: author chains, attestation. Relays never see it |
//! | [`identity`], [`url`], [`tls`], [`clock`] | keys, addresses, certificates, clocks |
//! | [`raw`] | a socket without a session, for tools that send what no client would |
//! | `bare` | the session without a socket; feature `bare` |
//! | [`recon`], [`backoff`] | the pure parts, for other drivers |
//! | [`limits`] | every ceiling and its reason |
//!
//! References such as "02 §6" are to the sections of spec/weald.

#![forbid(unsafe_code)]

pub mod access;
pub mod backoff;
#[cfg(feature = "bare")]
pub mod bare;
pub mod call;
pub mod client;
pub mod clock;
pub mod connection;
mod envelope;
mod error;
pub mod events;
pub mod founding;
pub mod identity;
pub mod invites;
pub mod joining;
pub mod keys;
pub mod limits;
pub mod payload;
mod random;
pub mod raw;
pub mod recon;
pub mod retention;
mod session;
pub mod store;
pub mod tls;
mod transport;
pub mod url;
pub mod wake;

pub use drover_wire as wire;

pub use access::{SetDraft, Workspace};
pub use call::{Call, CallEvent};
pub use client::{Client, ClientBuilder, Cursor, Status};
pub use connection::{Connection, Exchange, Hello, Incoming, SendAck, SessionInfo};
pub use envelope::SealedEnvelope;
pub use error::{Error, Refusal};
pub use events::{Event, Subscription};
pub use founding::Founding;
pub use identity::Identity;
pub use joining::{InviteLink, Reservation};
pub use recon::Reconciled;
pub use store::{MemoryStore, Store};
pub use tls::Tls;
pub use transport::Endpoint;
pub use url::RelayUrl;
