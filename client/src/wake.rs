//! Push: whether this relay wakes sleeping devices, and for what this one wants to be woken (12). Relay and registration
//! know a random handle; the token that names a phone is known to the ringer alone. Needs protocol version 4.

use std::fmt;
use std::ops::BitOr;

use drover_wire::frame::{Frame, Wake};

use crate::connection::{Exchange, Incoming, encode};
use crate::error::Error;

const WAKE: u8 = 25;

/// What a ringer minted for one device in one workspace. Never rendered: it is for no log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct WakeHandle(pub [u8; 16]);

impl fmt::Debug for WakeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WakeHandle")
    }
}

/// What to be woken for: one category or several, joined with `|`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakeFor(u8);

impl WakeFor {
    /// A stored envelope.
    pub const MESSAGE: Self = Self(1);
    /// An offered call.
    pub const CALL: Self = Self(2);
    /// An MLS handshake message.
    pub const HANDSHAKE: Self = Self(4);
    /// All of them.
    pub const ANYTHING: Self = Self(Wake::CATEGORIES_ALL);
}

impl BitOr for WakeFor {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Whether a relay wakes devices, and where a device gets its handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakeService {
    /// Off is the default, and a configuration like any other.
    pub enabled: bool,
    /// The ringer's address: https, or http on this machine; empty when off.
    pub register_url: String,
}

/// Asks whether the relay wakes devices.
///
/// # Errors
/// [`Error::Refused`]; connection failures.
pub async fn wake_service(exchange: &mut impl Exchange) -> Result<WakeService, Error> {
    let answer = ask(exchange, Wake::Query).await?;
    match answer.frame()? {
        Frame::Wake(Wake::Capability {
            enabled,
            register_url,
        }) => Ok(WakeService {
            enabled,
            register_url: register_url.to_owned(),
        }),
        _ => Err(Error::Protocol("WAKE query not answered")),
    }
}

/// Registers this device until `expires_at_ms` (milliseconds since the Unix epoch, at most 30 days ahead), replacing what
/// it registered before in this workspace. At most five in an hour.
///
/// # Errors
/// [`Error::Refused`] with `denied/push_not_configured`, `limit/push_registration_rate`, or
/// `reject/push_handle_malformed` for a time that is not ahead or a handle that another device holds; connection failures.
pub async fn register_wake(
    exchange: &mut impl Exchange,
    handle: WakeHandle,
    wanted: WakeFor,
    expires_at_ms: u64,
) -> Result<(), Error> {
    let register = Wake::Register {
        handle: handle.0,
        categories: wanted.0,
        expires_at_ms,
    };
    let answer = ask(exchange, register).await?;
    match answer.frame()? {
        Frame::Wake(Wake::Registered { expires_at_ms: until }) if until == expires_at_ms => Ok(()),
        _ => Err(Error::Protocol("WAKE register not answered")),
    }
}

/// Ends this device's registration in this workspace, if there is one.
///
/// # Errors
/// [`Error::Refused`] with `denied/push_not_configured`; connection failures.
pub async fn clear_wake(exchange: &mut impl Exchange) -> Result<(), Error> {
    let answer = ask(exchange, Wake::Clear).await?;
    match answer.frame()? {
        Frame::Wake(Wake::Cleared) => Ok(()),
        _ => Err(Error::Protocol("WAKE clear not answered")),
    }
}

async fn ask(exchange: &mut impl Exchange, wake: Wake<'_>) -> Result<Incoming, Error> {
    exchange.exchange(encode(&Frame::Wake(wake)), WAKE).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn categories_join_and_handles_stay_hidden() {
        let both = WakeFor::MESSAGE | WakeFor::CALL;
        assert_eq!(both | WakeFor::HANDSHAKE, WakeFor::ANYTHING);
        assert_eq!(format!("{:?}", WakeHandle([7; 16])), "WakeHandle");
    }
}
