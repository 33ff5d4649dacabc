//! `drover bench`: a load generator for any Weald relay, and the raw baselines its figures are read against.
//!
//! One thread, one epoll loop. Everything expensive (hashing envelopes, signing, founding a workspace) happens before
//! a measured window opens; inside it a SEND is one copy of a template and a PUSH is one look at its head.
//!
//! | Module | Story |
//! | --- | --- |
//! | [`args`] | the options, the same in every scenario |
//! | `authority` | the founder: access sets, invites |
//! | `error` | what can go wrong, said so that one knows what to change |
//! | `link` | a plain or TLS byte stream |
//! | `wsframe` | WebSocket heads by hand: masked ones out, unmasked ones in |
//! | `peer` | one blocking connection: upgrade, CONNECT, AUTH, and requests |
//! | `workspace` | founding and joining a workspace, admitting devices, files of device keys |
//! | `net` | the loop: many connections, one `Load` |
//! | `lane` | envelopes of one connection, made ahead of time |
//! | `inflight` | when what is under way was sent, and latencies from it |
//! | `process` | CPU time and memory of a process, from /proc |
//! | `spawn` | a relay of this binary on a temporary directory |
//! | `machine` | what the figures were measured on |
//! | `measure` | what one run measured, and medians over runs |
//! | `scenario` | what is measured: ingest, fanout, replay, recon, idle, open, access, join, drop, hostile, media |
//! | `baseline` | the same work without a relay: echo, fan-out, append, stream, forwarding |
//! | `peers` | the same shapes of work done by Redis |
//! | `report` | what was measured as a table, as Markdown, as JSON, as a page with plots; figures that must be reached |
//! | `compare` | two such JSON files side by side, and what is worse |

#![forbid(unsafe_code)]

/// A line on standard error; if nobody can read it, the measurement goes on.
macro_rules! tell {
    ($($arg:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($arg)*);
    }};
}
pub(crate) use tell;

pub mod args;
mod authority;
mod baseline;
mod compare;
mod error;
mod inflight;
mod lane;
mod link;
mod machine;
mod measure;
mod net;
mod peer;
mod peers;
mod process;
mod report;
mod scenario;
mod spawn;
mod workspace;
mod wsframe;

pub use args::BenchCommand;
pub use error::Error;
pub use scenario::run;
