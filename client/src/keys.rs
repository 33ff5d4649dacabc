//! Key material a relay keeps for others: one-time key packages on each device's shelf, and group secrets sealed for
//! recovery (07 A, B). All of it is opaque to the relay.

use bytes::Bytes;
use drover_wire::error::Code;
use drover_wire::frame::{BytesListBuf, FRAME_BYTES_MAX, Frame, Keys};
use drover_wire::id::PublicKey;
use drover_wire::wrap::Wrap;

use crate::connection::{Exchange, encode};
use crate::error::Error;
use crate::limits::{KEY_FETCH_MAX, KEY_PACKAGE_BYTES_MAX, SEALED_BYTES_MAX};

const WRAP: u8 = 16;
const KEYS: u8 = 22;

/// Puts key packages on this device's own shelf, all or none, for 90 days. Answers with how many are on it now; the shelf
/// holds 100. Needs protocol version 2.
///
/// A publish whose answer was lost may have been stored, and sending it again stores it twice: ask
/// [`crate::SessionInfo::key_packages_remaining`] of the next session first.
///
/// # Errors
/// [`Error::Invalid`] for a package over 131 072 bytes, or packages that together don't fit into one frame;
/// [`Error::Refused`] with `quota/seats_exhausted` for a full shelf; connection failures.
pub async fn publish_key_packages<T: AsRef<[u8]>>(
    exchange: &mut impl Exchange,
    packages: &[T],
) -> Result<u32, Error> {
    if packages
        .iter()
        .any(|package| package.as_ref().len() > KEY_PACKAGE_BYTES_MAX)
    {
        return Err(Error::Invalid("key package over 131 072 bytes"));
    }
    let list: BytesListBuf = packages.iter().collect();
    let frame = encode(&Frame::Keys(Keys::Publish {
        packages: list.as_list(),
    }));
    if frame.len() > FRAME_BYTES_MAX {
        return Err(Error::Invalid("key packages that don't fit into one frame"));
    }
    let answer = exchange.exchange(frame, KEYS).await?;
    match answer.frame()? {
        Frame::Keys(Keys::Published { remaining }) => Ok(remaining),
        _ => Err(Error::Protocol("KEYS publish not answered")),
    }
}

/// Takes up to `count` key packages, 1 to 8, off a device's shelf, oldest first; none is given out twice. Empty when the
/// shelf is.
///
/// # Errors
/// [`Error::Invalid`] for another count; [`Error::Refused`] with `denied/writer_not_in_access_set` for a device that is
/// not in the session's workspace; connection failures.
pub async fn fetch_key_packages(
    exchange: &mut impl Exchange,
    device: PublicKey,
    count: u8,
) -> Result<Vec<Bytes>, Error> {
    if !(1..=KEY_FETCH_MAX).contains(&count) {
        return Err(Error::Invalid("count outside 1 to 8"));
    }
    let frame = encode(&Frame::Keys(Keys::Fetch { device, count }));
    let answer = exchange.exchange(frame, KEYS).await?;
    match answer.frame()? {
        Frame::Keys(Keys::None) => Ok(Vec::new()),
        Frame::Keys(Keys::Bundles { packages }) if packages.len() <= usize::from(count) => {
            Ok(packages.iter().map(|package| answer.share(package)).collect())
        }
        _ => Err(Error::Protocol("KEYS fetch not answered")),
    }
}

/// What became of a wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrapStored {
    /// It is current; what it replaced stays readable for 30 days.
    Now,
    /// The slot holds this epoch or a later one already, the epoch stored if the relay named it. The answer to repeating
    /// a wrap that was stored but whose acknowledgement was lost.
    NotNewer(Option<u64>),
}

/// Stores a group secret sealed for recovery in its slot (07 B). No frame reads it back: devices recover from the copies
/// in the group's log, [`crate::payload::RecoveryWrap`].
///
/// # Errors
/// [`Error::Invalid`] for a ciphertext of 0 or more than 262 144 bytes; [`Error::Refused`]; connection failures.
pub async fn store_wrap(exchange: &mut impl Exchange, wrap: &Wrap<'_>) -> Result<WrapStored, Error> {
    if wrap.ct.is_empty() || wrap.ct.len() > SEALED_BYTES_MAX {
        return Err(Error::Invalid("wrap of 0 or more than 262 144 bytes"));
    }
    let frame = encode(&Frame::Wrap { body: &wrap.encode() });
    let answer = match exchange.exchange(frame, WRAP).await {
        Err(Error::Refused(refusal)) if refusal.code == Code::WrapNotNewer => {
            return Ok(WrapStored::NotNewer(refusal.limit()));
        }
        answer => answer?,
    };
    match answer.frame()? {
        Frame::Wrap { body } if body == wrap.tag.0 => Ok(WrapStored::Now),
        _ => Err(Error::Protocol("WRAP not acknowledged")),
    }
}
