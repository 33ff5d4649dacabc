//! The list of segments, in a partition of the control store: which segments are sealed, which are gone, and what realms
//! held when that was last written. A change of it is one control commit, and so is the switch from old segments to new.

use super::format::Rest;
use crate::control::{ControlBatch, ControlStore, Outcome, Write};
use crate::{RealmId, StoreError};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::mpsc;

/// No workspace is called so: those begin with `ws:`.
pub(crate) const PARTITION: &str = "drover:log";
const SEGMENT: &[u8] = b"segment/";
const USAGE: &[u8] = b"usage/";
const WRITER: &[u8] = b"writer/";
/// How far a migration has come.
const MIGRATED: &[u8] = b"migrated";
/// From which number on streams go on after a repair.
const FIRST_SEQ: &[u8] = b"first-seq";

/// In place of a writer's number: the segment comes from a migration or a compaction.
pub(super) const REWRITTEN: u64 = u32::MAX as u64;

/// What the list says of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is complete; its index may have to be made again.
    Sealed {
        /// Who wrote it; [`REWRITTEN`] if nobody did.
        writer: u64,
        salt: u64,
        length: u64,
        last_lsn: u64,
    },
    /// What it held lies elsewhere or is deleted; its file may still be there.
    Removed,
}

impl State {
    /// Whether a migration or a compaction made it.
    #[cfg(test)]
    pub(super) fn is_rewritten(&self) -> bool {
        matches!(
            self,
            Self::Sealed {
                writer: REWRITTEN,
                ..
            }
        )
    }

    fn encode(self) -> Bytes {
        let Self::Sealed {
            writer,
            salt,
            length,
            last_lsn,
        } = self
        else {
            return Bytes::from_static(&[0]);
        };
        let mut bytes = vec![1];
        [writer, salt, length, last_lsn]
            .iter()
            .for_each(|n| bytes.extend_from_slice(&n.to_le_bytes()));
        bytes.into()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = Rest(bytes);
        match rest.array()? {
            [0] => rest.0.is_empty().then_some(Self::Removed),
            [1] => {
                let sealed = Self::Sealed {
                    writer: rest.u64()?,
                    salt: rest.u64()?,
                    length: rest.u64()?,
                    last_lsn: rest.u64()?,
                };
                rest.0.is_empty().then_some(sealed)
            }
            _ => None,
        }
    }
}

fn partition() -> RealmId {
    RealmId(PARTITION.into())
}

fn segment_key(number: u64) -> Vec<u8> {
    [SEGMENT, &number.to_be_bytes()].concat()
}

fn usage_key(realm: &RealmId) -> Vec<u8> {
    [USAGE, realm.0.as_bytes()].concat()
}

fn two(a: u64, b: u64) -> Bytes {
    [a.to_le_bytes(), b.to_le_bytes()].concat().into()
}

/// One change of the list; all of it happens or nothing.
#[derive(Default)]
pub(super) struct Change(Vec<Write>);

impl Change {
    pub(super) fn set(&mut self, number: u64, state: State) {
        self.0.push(Write {
            key: segment_key(number),
            value: Some(state.encode()),
        });
    }

    pub(super) fn forget(&mut self, number: u64) {
        self.0.push(Write {
            key: segment_key(number),
            value: None,
        });
    }

    /// A writer's newest sealed segment and the last commit in it. Outlives that segment, which may be rewritten.
    pub(super) fn wrote(&mut self, writer: u32, number: u64, last_lsn: u64) {
        self.0.push(Write {
            key: [WRITER, &writer.to_be_bytes()].concat(),
            value: Some(two(number, last_lsn)),
        });
    }

    /// What a realm holds, as the commit `lsn` said.
    pub(super) fn usage(&mut self, realm: &RealmId, lsn: u64, bytes: u64) {
        self.0.push(Write {
            key: usage_key(realm),
            value: Some(two(lsn, bytes)),
        });
    }

    /// A migration has come as far as this.
    pub(super) fn migrated(&mut self, cursor: Bytes) {
        self.0.push(Write {
            key: MIGRATED.to_vec(),
            value: Some(cursor),
        });
    }

    /// See [`super::SegmentLog::first_seq`].
    pub(super) fn first_seq(&mut self, seq: u64) {
        self.0.push(Write {
            key: FIRST_SEQ.to_vec(),
            value: Some(Bytes::copy_from_slice(&seq.to_le_bytes())),
        });
    }

    /// Makes it durable; waits for that.
    pub(super) fn commit(self, control: &dyn ControlStore) -> Result<(), StoreError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let batch = ControlBatch {
            writes: self.0,
            ..ControlBatch::default()
        };
        match wait(|done| control.commit(partition(), batch, done))? {
            Outcome::Applied => Ok(()),
            // There is nothing to be refused for.
            Outcome::Refused => Err(StoreError::Damaged),
        }
    }
}

/// Calls and waits for the answer; one that is never given is unknown.
fn wait<T: Send + 'static>(call: impl FnOnce(crate::Done<T>)) -> Result<T, StoreError> {
    let (sender, receiver) = mpsc::sync_channel(1);
    call(Box::new(move |result| {
        let _ = sender.send(result);
    }));
    receiver.recv().unwrap_or(Err(StoreError::Unknown))
}

/// The list as it is.
#[derive(Default)]
pub(super) struct List {
    /// By number, ascending.
    pub(super) segments: Vec<(u64, State)>,
    /// By writer: the number of its newest sealed segment, and that of the last commit in it.
    pub(super) writers: HashMap<u32, (u64, u64)>,
    /// What realms hold, with the number of the commit that said so.
    pub(super) usage: HashMap<RealmId, (u64, u64)>,
    /// How far a migration has come.
    pub(super) migrated: Option<Bytes>,
    /// See [`super::SegmentLog::first_seq`]; 0 if no repair ever set it.
    pub(super) first_seq: u64,
}

/// Reads it.
pub(super) fn load(control: &dyn ControlStore) -> Result<List, StoreError> {
    let mut list = List::default();
    for (key, value) in wait(|done| control.load(partition(), done))? {
        if let Some(number) = key.strip_prefix(SEGMENT) {
            let number = number.try_into().map_err(|_| StoreError::Damaged)?;
            let state = State::decode(&value).ok_or(StoreError::Damaged)?;
            list.segments.push((u64::from_be_bytes(number), state));
        } else if let Some(realm) = key.strip_prefix(USAGE) {
            let realm = std::str::from_utf8(realm).map_err(|_| StoreError::Damaged)?;
            let usage = decode_two(&value).ok_or(StoreError::Damaged)?;
            list.usage.insert(RealmId(realm.into()), usage);
        } else if let Some(writer) = key.strip_prefix(WRITER) {
            let writer = writer.try_into().map_err(|_| StoreError::Damaged)?;
            let newest = decode_two(&value).ok_or(StoreError::Damaged)?;
            list.writers.insert(u32::from_be_bytes(writer), newest);
        } else if key == MIGRATED {
            list.migrated = Some(value);
        } else if key == FIRST_SEQ {
            let seq = value[..].try_into().map_err(|_| StoreError::Damaged)?;
            list.first_seq = u64::from_le_bytes(seq);
        } else {
            return Err(StoreError::Damaged);
        }
    }
    Ok(list)
}

/// What a realm held when that was last written.
pub(super) fn usage(control: &dyn ControlStore, realm: &RealmId, done: crate::Done<u64>) {
    control.get(
        partition(),
        usage_key(realm),
        Box::new(move |result| {
            done(result.and_then(|value| {
                match value {
                    None => Ok(0),
                    Some(value) => decode_two(&value)
                        .map(|(_, bytes)| bytes)
                        .ok_or(StoreError::Damaged),
                }
            }));
        }),
    );
}

fn decode_two(value: &[u8]) -> Option<(u64, u64)> {
    let mut rest = Rest(value);
    let (a, b) = (rest.u64()?, rest.u64()?);
    rest.0.is_empty().then_some((a, b))
}
