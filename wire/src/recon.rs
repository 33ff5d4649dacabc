//! Range reconciliation (03): the payload, the fingerprint, the split, and both roles.
//!
//! Items are kept as 40 bytes, `u64be(seq) ‖ id`, in ascending order: exactly what the fingerprint hashes, so that a
//! range is hashed with one call over contiguous memory.

use crate::error::Code;
use crate::id::Hash;

/// `u64be(seq) ‖ id`; byte order is item order.
pub type Item = [u8; 40];

/// The upper bound of every last range.
pub const OPEN_END: u64 = u64::MAX;
/// At most this many items are listed by id instead of split.
pub const IDLIST_ITEMS: usize = 16;
/// Parts a differing range is split into.
pub const SPLIT_FACTOR: usize = 8;
/// Ranges in one message.
pub const RANGES_MAX: usize = 1024;
/// Ids in one range.
pub const IDS_MAX: usize = 4096;

/// An item from its parts.
pub fn item(seq: u64, id: &Hash) -> Item {
    let mut out = [0; 40];
    out[..8].copy_from_slice(&seq.to_be_bytes());
    out[8..].copy_from_slice(&id.0);
    out
}

/// The item's seq.
pub fn item_seq(item: &Item) -> u64 {
    u64::from_be_bytes(item[..8].try_into().unwrap_or_default())
}

/// The item's id.
pub fn item_id(item: &Item) -> Hash {
    Hash(item[8..].try_into().unwrap_or_default())
}

/// What a range says about itself (03 §2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing to do here.
    Skip,
    /// The fingerprint of the sender's items.
    Fingerprint(Hash),
    /// The ids of the sender's items, strictly ascending by bytes.
    Ids(Vec<Hash>),
}

/// `[previous upper, upper)` and what the sender holds in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// Exclusive upper bound over seq values.
    pub upper: u64,
    /// What the sender says.
    pub mode: Mode,
}

/// Decodes a payload in the order of checks of 03 §2.
///
/// # Errors
/// `reject/noncanonical_cbor` or `reject/malformed_header`, row by row.
pub fn decode(_payload: &[u8]) -> Result<Vec<Range>, Code> {
    todo!()
}

/// Appends a payload of these ranges to `out`.
pub fn encode(_ranges: &[Range], _out: &mut Vec<u8>) {
    todo!()
}

/// The fingerprint of these items (03 §3).
pub fn fingerprint(_items: &[Item]) -> Hash {
    todo!()
}

/// The client's first message for the items it holds (03 §4).
pub fn opening(_items: &[Item]) -> Vec<Range> {
    todo!()
}

/// The relay's answer to one message (03 §5): ranges to send back, and the items owed to the peer.
#[derive(Debug, Default)]
pub struct Answer {
    /// One range for each incoming one, or more where it was split.
    pub ranges: Vec<Range>,
    /// Items (by index into the relay's list) to push, in ascending id order.
    pub owed: Vec<u32>,
}

/// Answers `incoming` for a relay that holds `items`.
pub fn answer(_items: &[Item], _incoming: &[Range]) -> Answer {
    todo!()
}

/// Reopens the spans whose owed items were cut off (03 §7): in `answer`, the ranges of each incoming span that
/// contains one of the `unsent` items are replaced so that the client comes back.
pub fn reopen(_answer: &mut Answer, _items: &[Item], _incoming: &[Range], _unsent: &[u32]) {
    todo!()
}

/// The client's step (03 §5).
#[derive(Debug, Default)]
pub struct Step {
    /// Ids the client lacks.
    pub want: Vec<Hash>,
    /// Ids the relay lacks.
    pub send: Vec<Hash>,
    /// What to send next; `None` when every range was settled.
    pub ranges: Option<Vec<Range>>,
}

/// One client step over the relay's answer.
pub fn client_step(_items: &[Item], _incoming: &[Range]) -> Step {
    todo!()
}
