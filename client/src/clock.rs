//! How far the local clock is from the relay's, and what that forbids.
//!
//! Beyond five minutes nothing that expires is issued (invites, certificates), since others would judge it by another
//! clock. Reading, writing and syncing go on: refusing to work would be worse than a stale expiry.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::Error;
use crate::limits::CLOCK_SKEW_MAX;

/// Local clock against relay clock, judged once per connection from CONNECT_ACK's `server_time`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSkew {
    /// Local minus relay time, milliseconds. Includes the time the answer travelled.
    pub skew_ms: i64,
}

impl ClockSkew {
    /// The difference between the two readings, in milliseconds since the Unix epoch.
    pub fn between(local_ms: u64, relay_ms: u64) -> Self {
        let skew = i128::from(local_ms) - i128::from(relay_ms);
        Self {
            skew_ms: skew.clamp(i64::MIN.into(), i64::MAX.into()) as i64,
        }
    }

    /// Whether the user should be told that a clock is wrong.
    pub fn is_warning(&self) -> bool {
        u128::from(self.skew_ms.unsigned_abs()) > CLOCK_SKEW_MAX.as_millis()
    }

    /// Whether something that expires may be issued.
    ///
    /// # Errors
    /// [`Error::ClockSkew`] when the clocks differ by more than [`CLOCK_SKEW_MAX`].
    pub fn permits_issuing(&self) -> Result<(), Error> {
        if self.is_warning() {
            Err(Error::ClockSkew {
                skew_ms: self.skew_ms,
            })
        } else {
            Ok(())
        }
    }
}

/// Milliseconds since the Unix epoch by the local clock; 0 for a clock set before it.
pub fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_minutes_either_way_are_silent_and_more_is_not() {
        for (local, relay, warns) in [
            (1_000_000_000, 1_000_300_000, false),
            (1_000_300_000, 1_000_000_000, false),
            (1_000_000_000, 1_000_300_001, true),
            (1_000_300_001, 1_000_000_000, true),
            (0, u64::MAX, true),
        ] {
            let clock = ClockSkew::between(local, relay);
            assert_eq!(clock.is_warning(), warns, "{local} {relay}");
            assert_eq!(clock.permits_issuing().is_err(), warns);
        }
    }
}
