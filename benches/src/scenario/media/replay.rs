//! The participant that reads a log beside its call, over and over.

use crate::error::Error;
use crate::peer::{self, encoded};
use crate::scenario::fanout::push_seq;
use crate::wsframe;
use drover_wire::frame::Frame;
use drover_wire::id::GroupId;

/// The log: some large envelopes, so that the SUBs of a minute are enough, read over and over.
pub(super) const SIZE_BYTES: usize = 28_000;
pub(super) const ENVELOPES: usize = 1_785;

/// See the module.
pub(super) struct Replay {
    group: GroupId,
    bytes_max: u64,
    pub(super) bytes: u64,
    last_seq: u64,
    head_seq: u64,
    /// Whether the next SUB is to be sent.
    is_due: bool,
}

impl Replay {
    /// Reads this many bytes of the group's log.
    pub(super) fn new(group: GroupId, bytes_max: u64) -> Self {
        Self {
            group,
            bytes_max,
            bytes: 0,
            last_seq: 0,
            head_seq: 0,
            is_due: true,
        }
    }

    /// Whether all of it was read.
    pub(super) fn is_over(&self) -> bool {
        self.bytes >= self.bytes_max
    }

    /// SUB_ACK or PUSH.
    pub(super) fn message(&mut self, message: &[u8]) -> Result<(), Error> {
        if let [0x82, 8, ..] = message {
            if let Frame::SubAck { head_seq, .. } = peer::decode(message)? {
                self.head_seq = head_seq;
            }
            return Ok(());
        }
        self.last_seq = push_seq(message)?;
        self.bytes += message.len() as u64;
        // A backfill has at most 255 envelopes; asking a little early costs nothing but what is brought twice.
        self.is_due |= self.last_seq == self.head_seq || self.last_seq.is_multiple_of(200);
        Ok(())
    }

    /// Appends the next SUB, if it is time.
    pub(super) fn ask(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.is_due) && !self.is_over() {
            let from_seq = if self.last_seq == self.head_seq {
                1
            } else {
                self.last_seq + 1
            };
            let group = self.group;
            wsframe::put_message(&encoded(&Frame::Sub { group, from_seq }), out);
        }
    }
}
