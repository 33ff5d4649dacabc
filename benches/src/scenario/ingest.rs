//! Durable SENDs: every connection keeps a window of them under way; an operation is a SEND with its SEND_ACK.

use super::writer::Writer;
use super::{Bench, DRAIN_TIMEOUT, RAMP, TICK, WARM_UP, row, turn_until};
use crate::args::BenchArgs;
use crate::error::Error;
use crate::inflight::{Latencies, latencies};
use crate::measure::{Row, Run, Window};
use crate::net::{Load, Net};
use drover_wire::id::GroupId;
use std::time::{Duration, Instant};

/// More envelopes than the warm-up's rate asks for, so that a faster run finds them ready too.
const SPARE: f64 = 1.5;

/// Connections of the reference setting.
const CONNECTIONS: usize = 64;
/// Ciphertext of the reference setting, bytes.
const SIZE_BYTES: usize = 256;

/// Measures it.
pub(super) fn run(args: &BenchArgs) -> Result<Row, Error> {
    let connections = args.connections.unwrap_or(CONNECTIONS).max(1);
    let size_bytes = args.size_or(SIZE_BYTES);
    let bench = Bench::enter(args, connections, false)?;
    let groups = bench.workspace.groups(args.groups.unwrap_or(connections).max(1));
    let mut net = Net::new()?;
    let mut load = Ingest::new(args.window);
    for connection in 0..connections {
        let group = groups[connection % groups.len()];
        net.add(bench.workspace.connect(&bench.target, connection, group)?)?;
        load.add_writer(group, size_bytes);
    }
    let warm_rate = warm_up(&mut net, &mut load)?;
    let mut runs = Vec::new();
    for _ in 0..args.runs.max(1) {
        load.prepare((warm_rate * (args.seconds + RAMP.as_secs_f64()) * SPARE) as usize);
        runs.push(measure(args, &bench, &mut net, &mut load)?);
    }
    let what = format!(
        "durable SEND, {connections} connections, {} groups, {size_bytes} B, window {}",
        groups.len(),
        args.window
    );
    Ok(row("ingest", what, runs))
}

/// Loads the relay for a while; returns SENDs per second.
fn warm_up(net: &mut Net, load: &mut Ingest) -> Result<f64, Error> {
    let started = Instant::now();
    load.start(net)?;
    while started.elapsed() < WARM_UP {
        net.turn(Some(TICK), load)?;
    }
    let rate = load.acknowledged as f64 / started.elapsed().as_secs_f64();
    load.stop(net)?;
    Ok(rate)
}

fn measure(args: &BenchArgs, bench: &Bench, net: &mut Net, load: &mut Ingest) -> Result<Run, Error> {
    load.start(net)?;
    let started = Instant::now();
    while started.elapsed() < RAMP {
        net.turn(Some(TICK), load)?;
    }
    load.latencies.reset();
    load.acknowledged = 0;
    let window = Window::open(bench.server.as_ref())?;
    let length = Duration::from_secs_f64(args.seconds);
    while window.elapsed() < length {
        net.turn(Some(TICK), load)?;
    }
    let run = window.close(
        load.acknowledged,
        std::mem::replace(&mut load.latencies, latencies()),
    )?;
    load.stop(net)?;
    Ok(run)
}

/// Many writers, closed loop.
pub(super) struct Ingest {
    writers: Vec<Writer>,
    window: usize,
    /// Whether finished operations are followed by new ones.
    open: bool,
    /// SENDs to go in all while open; `usize::MAX` when time ends it.
    pub(super) left: usize,
    pub(super) acknowledged: u64,
    latencies: Latencies,
    /// (seq, hash) of every SEND_ACK, if they are kept.
    pub(super) kept: Option<Vec<(u64, [u8; 32])>>,
}

impl Ingest {
    pub(super) fn new(window: usize) -> Self {
        Self {
            writers: Vec::new(),
            window: window.max(1),
            open: false,
            left: usize::MAX,
            acknowledged: 0,
            latencies: latencies(),
            kept: None,
        }
    }

    /// The next connection of the loop is a writer of this group.
    pub(super) fn add_writer(&mut self, group: GroupId, size_bytes: usize) {
        self.writers.push(Writer::new(group, size_bytes));
    }

    /// Makes sure that this many envelopes are ready in all.
    fn prepare(&mut self, count: usize) {
        let each = count / self.writers.len() + 1;
        for writer in &mut self.writers {
            writer.prepare(each);
        }
    }

    pub(super) fn start(&mut self, net: &mut Net) -> Result<(), Error> {
        self.open = true;
        (0..self.writers.len()).try_for_each(|writer| net.nudge(writer, self))
    }

    /// Sends nothing more and waits for what is under way.
    pub(super) fn stop(&mut self, net: &mut Net) -> Result<(), Error> {
        self.open = false;
        turn_until(net, self, DRAIN_TIMEOUT, "SEND_ACK", |load| {
            load.writers.iter().all(|writer| writer.under_way() == 0)
        })
    }
}

impl Load for Ingest {
    fn message(&mut self, connection: usize, message: &[u8]) -> Result<(), Error> {
        let (hash, seq) = self.writers[connection].acknowledged(message)?;
        if let Some(kept) = &mut self.kept {
            kept.push((read_uint(seq).unwrap_or_default(), *hash));
        }
        Ok(())
    }

    fn settle(&mut self, connection: usize, now_ns: u64, out: &mut Vec<u8>) -> Result<(), Error> {
        let writer = &mut self.writers[connection];
        self.acknowledged += writer.finish(now_ns, &mut self.latencies)? as u64;
        if self.open {
            let count = (self.window - writer.under_way()).min(self.left);
            self.left -= count;
            writer.send(count, now_ns, out);
        }
        Ok(())
    }
}

/// A CBOR uint at the beginning of these bytes.
pub(super) fn read_uint(bytes: &[u8]) -> Option<u64> {
    match *bytes {
        [small @ 0..24, ..] => Some(small.into()),
        [24, a, ..] => Some(a.into()),
        [25, a, b, ..] => Some(u16::from_be_bytes([a, b]).into()),
        [26, a, b, c, d, ..] => Some(u32::from_be_bytes([a, b, c, d]).into()),
        [27, a, b, c, d, e, f, g, h, ..] => Some(u64::from_be_bytes([a, b, c, d, e, f, g, h])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::writer::send_ack;
    use super::*;
    use crate::peer;
    use drover_wire::frame::Frame;
    use drover_wire::id::Hash;

    #[test]
    fn acknowledgements_are_read_as_the_codec_writes_them() {
        for seq in [1, 23, 24, 255, 256, 65_536, 1 << 40] {
            let frame = peer::encoded(&Frame::SendAck {
                hash: Hash([9; 32]),
                seq,
            });
            let (hash, rest) = send_ack(&frame).expect("a SEND_ACK");
            assert_eq!((hash, read_uint(rest)), (&[9; 32], Some(seq)));
        }
        let other = peer::encoded(&Frame::Bye { reason: b"x" });
        assert!(send_ack(&other).expect_err("not one").to_string().contains("BYE"));
    }
}
