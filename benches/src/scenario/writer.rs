//! One connection that sends envelopes of one group.

use crate::error::Error;
use crate::inflight::{InFlight, Latencies};
use crate::lane::Lane;
use crate::peer;
use drover_wire::id::GroupId;

/// See the module.
pub(super) struct Writer {
    lane: Lane,
    in_flight: InFlight,
    /// SEND_ACKs of the read that is being handed over.
    arrived: usize,
}

impl Writer {
    /// `size_bytes` is that of a ciphertext.
    pub(super) fn new(group: GroupId, size_bytes: usize) -> Self {
        Self {
            lane: Lane::new(group, size_bytes),
            in_flight: InFlight::default(),
            arrived: 0,
        }
    }

    /// See [`Lane::prepare`].
    pub(super) fn prepare(&mut self, count: usize) {
        self.lane.prepare(count);
    }

    /// SENDs without an answer.
    pub(super) fn under_way(&self) -> usize {
        self.in_flight.count()
    }

    /// Takes a SEND_ACK, whose hash and encoded seq these are. It counts from [`Writer::finish`] on.
    pub(super) fn acknowledged<'a>(&mut self, message: &'a [u8]) -> Result<(&'a [u8; 32], &'a [u8]), Error> {
        let (hash, seq) = send_ack(message)?;
        if !self.lane.acknowledged(hash) {
            return Err(Error::Unexpected("a SEND_ACK out of order".into()));
        }
        self.arrived += 1;
        Ok((hash, seq))
    }

    /// The read was handed over at `now_ns`; how many SENDs it finished.
    pub(super) fn finish(&mut self, now_ns: u64, latencies: &mut Latencies) -> Result<usize, Error> {
        let arrived = std::mem::take(&mut self.arrived);
        if !self.in_flight.finished(arrived, now_ns, latencies) {
            return Err(Error::Unexpected("more SEND_ACKs than SENDs".into()));
        }
        Ok(arrived)
    }

    /// Sends the next `count`.
    pub(super) fn send(&mut self, count: usize, now_ns: u64, out: &mut Vec<u8>) {
        for _ in 0..count {
            self.lane.put_next(out);
        }
        self.in_flight.sent(count, now_ns);
    }
}

/// Hash and encoded seq of a SEND_ACK; anything else is decoded in full, to say what it is.
pub(super) fn send_ack(message: &[u8]) -> Result<(&[u8; 32], &[u8]), Error> {
    if let [0x82, 12, 0x82, 0x58, 32, rest @ ..] = message
        && let Some((hash, seq)) = rest.split_first_chunk()
    {
        return Ok((hash, seq));
    }
    Err(peer::unexpected(&peer::decode(message)?))
}
