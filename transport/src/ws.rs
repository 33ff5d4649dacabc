//! The WebSocket codec of a server.
//!
//! | Module | Story |
//! | --- | --- |
//! | [`codec`] | bytes in, messages out; whole binary messages without a copy |
//! | [`slow`] | everything else, by tungstenite |
//! | [`mask`] | unmasking |

pub(crate) mod codec;
mod mask;
mod slow;
#[cfg(test)]
mod tests;

pub(crate) use codec::{Codec, Failure, Item};
pub(crate) use slow::control_frame;
