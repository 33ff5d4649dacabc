//! Writing what is queued: for each connection one gathering write, or one encryption and one write; for many
//! connections one call of the driver.

use crate::conn::Conn;
use crate::driver::{Driver, Write};
use crate::slab::Slab;
use drover_engine::ConnId;
use drover_engine::outbox::Outbox;
use std::io::{self, IoSlice};
use std::mem;

/// Connections written to with one call of the driver.
pub(crate) const BATCH_MAX: usize = 256;
/// Runs offered to one gathering write.
const SLICES_MAX: usize = 64;
/// Plaintext encrypted at a time: four full records. What the socket doesn't take of it is kept as ciphertext, so
/// this bounds that too.
const SEAL_BYTES_MAX: usize = 65_536;
/// The largest of them that is kept for the next write.
const KEPT_BYTES_MAX: usize = 16_384;

/// Buffers of a shard that every write uses.
#[derive(Default)]
pub(crate) struct Scratch {
    plain: Vec<u8>,
    /// Ciphertext, or small messages joined: one for each connection of a call.
    buffers: Vec<Vec<u8>>,
    outcomes: Vec<io::Result<usize>>,
}

/// One connection that is being written to.
pub(crate) struct Flush {
    pub(crate) id: ConnId,
    /// Whether anything left yet.
    pub(crate) has_written: bool,
    /// What came of the last write.
    pub(crate) taken: Result<usize, Lost>,
}

impl Flush {
    pub(crate) fn of(id: ConnId) -> Self {
        Self {
            id,
            has_written: false,
            taken: Ok(0),
        }
    }
}

/// The socket is gone.
#[derive(Debug)]
pub(crate) struct Lost;

/// Writes once to each of at most [`BATCH_MAX`] connections that has something to write and whose socket is not known
/// to be full. Takes what left off their queues, and notes whose socket is full. Returns how many bytes of messages were
/// copied for it.
pub(crate) fn write<D: Driver>(
    driver: &mut D,
    conns: &mut Slab<Conn<D::Socket>>,
    flushes: &mut [Flush],
    scratch: &mut Scratch,
    copy_below: usize,
) -> usize {
    let mut copied = 0;
    let mut buffers = mem::take(&mut scratch.buffers);
    buffers.resize_with(buffers.len().max(flushes.len()), Vec::new);
    for (flush, buffer) in flushes.iter_mut().zip(&mut buffers) {
        let sealed = match conns.get_mut(flush.id) {
            Some(conn) if !conn.blocked => {
                seal(conn, &mut scratch.plain, buffer).map(|bytes| copied += bytes)
            }
            _ => Ok(()),
        };
        flush.taken = sealed.map(|()| 0);
    }

    let mut slices = Vec::with_capacity(flushes.len());
    let mut writes = Vec::with_capacity(flushes.len());
    let mut writers = Vec::with_capacity(flushes.len());
    for (place, (flush, buffer)) in flushes.iter().zip(&mut buffers).enumerate() {
        let Some(conn) = conns.get(flush.id).filter(|conn| !conn.blocked) else {
            continue;
        };
        let from = slices.len();
        if conn.tls.is_none() {
            slices.extend(conn.outbox.pieces().take(SLICES_MAX).map(IoSlice::new));
            copied += join_small(&mut slices, from, copy_below, buffer);
        } else if !buffer.is_empty() {
            slices.push(IoSlice::new(buffer));
        }
        let to = slices.len();
        if from < to {
            let offered: usize = slices[from..].iter().map(|slice| slice.len()).sum();
            let socket = conn.socket;
            writes.push(Write { socket, from, to });
            writers.push((place, offered));
        }
    }
    if !writes.is_empty() {
        driver.write_each(&writes, &slices, &mut scratch.outcomes);
    }

    for ((place, offered), outcome) in writers.into_iter().zip(scratch.outcomes.drain(..)) {
        let (flush, buffer) = (&mut flushes[place], &mut buffers[place]);
        let Some(conn) = conns.get_mut(flush.id) else {
            continue;
        };
        if let Ok(taken) = outcome {
            conn.blocked = taken < offered;
            match &mut conn.tls {
                None => conn.outbox.advance(taken),
                Some(tls) if taken < offered => tls.put_unsent(&buffer[taken..]),
                Some(_) => {}
            }
            flush.has_written |= taken > 0;
        }
        flush.taken = outcome.map_err(|_| Lost);
        buffer.clear();
        if buffer.capacity() > KEPT_BYTES_MAX {
            *buffer = Vec::new();
        }
    }
    scratch.buffers = buffers;
    copied
}

/// Under TLS what is queued is encrypted first, which takes it off the queue. Returns how many bytes of it.
fn seal<S>(conn: &mut Conn<S>, plain: &mut Vec<u8>, cipher: &mut Vec<u8>) -> Result<usize, Lost> {
    cipher.clear();
    let Some(tls) = &mut conn.tls else {
        return Ok(0);
    };
    if tls.has_unsent() {
        *cipher = tls.take_unsent();
    } else if tls.is_established() && !conn.outbox.is_empty() {
        gather(&conn.outbox, plain);
        if tls.seal(plain, cipher).is_err() {
            cipher.clear();
            return Err(Lost);
        }
        conn.outbox.advance(plain.len());
        return Ok(plain.len());
    }
    Ok(0)
}

/// Copies neighbours among the slices `from` on that are shorter than `copy_below` into one piece, which takes their place;
/// the rest stays where it lies. Returns the bytes that were copied.
fn join_small<'a>(
    slices: &mut Vec<IoSlice<'a>>,
    from: usize,
    copy_below: usize,
    joined: &'a mut Vec<u8>,
) -> usize {
    joined.clear();
    let is_small = |slice: &IoSlice<'_>| slice.len() < copy_below;
    let stretches = slices[from..].chunk_by(|a, b| is_small(a) && is_small(b));
    for stretch in stretches.filter(|stretch| stretch.len() > 1) {
        stretch.iter().for_each(|slice| joined.extend_from_slice(slice));
    }
    if joined.is_empty() {
        return 0;
    }
    let joined = &joined[..];
    let mut rest = joined;
    let (mut at, mut used) = (from, from);
    while at < slices.len() {
        let is_joined = |slice: &&IoSlice<'_>| is_small(slice);
        let count = slices[at..].iter().take_while(is_joined).count().max(1);
        if count > 1 {
            let bytes = slices[at..at + count].iter().map(|slice| slice.len()).sum();
            let (these, others) = rest.split_at(bytes);
            rest = others;
            slices[used] = IoSlice::new(these);
        } else {
            slices[used] = slices[at];
        }
        at += count;
        used += 1;
    }
    slices.truncate(used);
    joined.len()
}

/// Copies what is queued into one buffer, as much as is encrypted at a time.
fn gather(outbox: &Outbox, plain: &mut Vec<u8>) {
    plain.clear();
    for slice in outbox.pieces().take(SLICES_MAX) {
        let room = SEAL_BYTES_MAX - plain.len();
        plain.extend_from_slice(&slice[..slice.len().min(room)]);
        if plain.len() == SEAL_BYTES_MAX {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_neighbours_are_joined() {
        let lens = [5, 200, 3, 4, 100, 100, 1, 99];
        let all: Vec<Vec<u8>> = (0..).zip(lens).map(|(n, len)| vec![n; len]).collect();
        for (copy_below, pieces, copied) in
            [(0, 8, 0), (4, 8, 0), (100, 6, 107), (101, 3, 307), (1000, 1, 512)]
        {
            let mut buffer = vec![9; 30];
            // Those of another connection come first.
            let mut slices = vec![IoSlice::new(b"a"), IoSlice::new(b"b")];
            slices.extend(all.iter().map(|bytes| IoSlice::new(bytes)));
            let joined = join_small(&mut slices, 2, copy_below, &mut buffer);
            assert_eq!(slices.len(), 2 + pieces, "{copy_below}");
            let written: Vec<u8> = slices[2..].iter().flat_map(|slice| slice.to_vec()).collect();
            assert_eq!(written, all.concat());
            assert_eq!(joined, copied);
        }
    }
}
