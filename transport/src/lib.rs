//! Front ends of Drover: sockets, TLS and WebSocket on one side, the engine's shards on the other
//! (architecture.md §5). One thread per shard runs a loop; nothing on its way takes a lock or meets another thread.
//!
//! | Module | Story |
//! | --- | --- |
//! | `relay` | bind, start, look at, stop: what the binary uses |
//! | `config` | what the binary tells it |
//! | `turn`, `input`, `write` | the shard loop; from socket to engine; from outbox to socket |
//! | `world` | the engine's effects over real sockets |
//! | `conn`, `slab`, `parcel` | one connection, a shard's table of them, one on its way to another shard |
//! | `driver`, `io` | what the loop needs of the system; which driver gives it, and why |
//! | `epoll`, `uring`, `tokio_uring` | the drivers. Unsafe code is in `uring::ring` and nowhere else |
//! | [`http`], [`ws`], `tls` | the request before the WebSocket, its frames, and TLS below, all without I/O |
//! | `pages` | what the binary adds to the pages of `http` |
//! | `listen`, `lobby`, `admission` | binding and accepting; how many sockets and connections there may be |
//! | `mailbox`, `offload`, `stop` | how other threads reach a shard, what is computed elsewhere, stopping |
//! | `clock`, `timers`, `chunk`, `metrics` | time, deadlines, the read buffer, what is counted |
//!
//! Other front ends. One that works on sockets (Noise over TCP) is another state of a connection beside TLS and the
//! WebSocket codec, on the same loop. One with threads of its own (QUIC) reaches the shards as everybody else does,
//! by letters to their mailboxes, and is handed what an outbox holds at the end of a turn; the loop needs a second
//! kind of socket for that, and nothing else of it changes.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod admission;
mod chunk;
mod clock;
mod config;
mod conn;
mod driver;
mod epoll;
pub mod http;
mod input;
mod io;
mod line;
mod listen;
mod lobby;
#[cfg(target_os = "linux")]
mod locked;
mod mailbox;
mod metrics;
mod offload;
mod pages;
mod parcel;
mod relay;
mod slab;
mod stop;
mod timers;
mod tls;
#[cfg(target_os = "linux")]
mod tokio_uring;
mod turn;
#[cfg(target_os = "linux")]
mod uring;
mod world;
mod write;
pub mod ws;

#[cfg(test)]
mod double;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use double::Shard;
#[cfg(not(test))]
pub(crate) use drover_engine::Shard;

pub use config::{BindError, COPY_BELOW, RelayConfig, TURN_US_MAX, TlsError, TlsSource, WakeSink};
pub use io::{Io, IoDriver};
pub use lobby::DESCRIPTORS_RESERVED;
pub use metrics::{CLOSE_REASON_LABELS, Snapshot};
pub use pages::{Page, PublicPages};
pub use relay::{Bound, Relay};
