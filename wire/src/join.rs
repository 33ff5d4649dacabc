//! JOIN bodies (06 §4).

use crate::id::{GroupId, Hash};

/// A decoded request; widths are as received, since a wrong one only fails to match (06 §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Request<'a> {
    Reserve {
        token: &'a [u8],
        code: &'a str,
        nonce: &'a [u8],
        device: &'a [u8],
    },
    Bundles {
        token: &'a [u8],
        group: &'a [u8],
    },
    Commit {
        token: &'a [u8],
        nonce: &'a [u8],
        device: &'a [u8],
        group: &'a [u8],
    },
    Record {
        token: &'a [u8],
    },
    Park {
        token: &'a [u8],
        nonce: &'a [u8],
        device: &'a [u8],
    },
}

impl<'a> Request<'a> {
    /// Decodes a whole request; any failure is the one generic refusal (06 §4).
    pub fn decode(_body: &'a [u8]) -> Option<Self> {
        todo!()
    }
    /// The canonical encoding.
    pub fn encode(&self) -> Vec<u8> {
        todo!()
    }
}

/// A sealed bundle (06 §4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Bundle<'a> {
    pub group: GroupId,
    pub epoch: u64,
    pub ct: &'a [u8],
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Response<'a> {
    Reserved { expires_at_ms: u64 },
    Bundles(Vec<Bundle<'a>>),
    Committed { receipt: Hash },
    Record { record: &'a [u8] },
    Parked { expires_at_ms: u64 },
}

impl<'a> Response<'a> {
    /// Decodes the answer to a request of this step (0 to 3; 4 answers as 0).
    pub fn decode(_step: u8, _body: &'a [u8]) -> Option<Self> {
        todo!()
    }
    /// The canonical encoding.
    pub fn encode(&self) -> Vec<u8> {
        todo!()
    }
}
