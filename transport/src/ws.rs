//! The WebSocket codec of a server (RFC 6455), without I/O.
//!
//! | Module | Story |
//! | --- | --- |
//! | `codec` | bytes in, messages out; whole binary messages without a copy |
//! | `slow` | everything else, by tungstenite |
//! | `mask` | unmasking |

mod codec;
mod mask;
mod slow;
#[cfg(test)]
mod tests;

pub use codec::{Codec, Failure, Item, MESSAGE_BYTES_MAX};
pub use slow::control_frame;
