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
/// The largest buffer for ciphertext that is kept for the next write.
const KEPT_BYTES_MAX: usize = 16_384;

/// Buffers of a shard that every write uses.
#[derive(Default)]
pub(crate) struct Scratch {
    plain: Vec<u8>,
    /// Ciphertext, one for each connection of a call.
    ciphers: Vec<Vec<u8>>,
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
/// to be full. Takes what left off their queues, and notes whose socket is full.
pub(crate) fn write<D: Driver>(
    driver: &mut D,
    conns: &mut Slab<Conn<D::Socket>>,
    flushes: &mut [Flush],
    scratch: &mut Scratch,
) {
    let mut ciphers = mem::take(&mut scratch.ciphers);
    ciphers.resize_with(ciphers.len().max(flushes.len()), Vec::new);
    for (flush, cipher) in flushes.iter_mut().zip(&mut ciphers) {
        flush.taken = match conns.get_mut(flush.id) {
            Some(conn) if !conn.blocked => seal(conn, &mut scratch.plain, cipher),
            _ => Ok(0),
        };
    }

    let mut slices = Vec::with_capacity(flushes.len());
    let mut writes = Vec::with_capacity(flushes.len());
    let mut writers = Vec::with_capacity(flushes.len());
    for (place, (flush, cipher)) in flushes.iter().zip(&ciphers).enumerate() {
        let Some(conn) = conns.get(flush.id).filter(|conn| !conn.blocked) else {
            continue;
        };
        let from = slices.len();
        if conn.tls.is_none() {
            let mut pieces = [IoSlice::new(&[]); SLICES_MAX];
            let used = conn.outbox.gather(&mut pieces);
            slices.extend_from_slice(&pieces[..used]);
        } else if !cipher.is_empty() {
            slices.push(IoSlice::new(cipher));
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
        let (flush, cipher) = (&mut flushes[place], &mut ciphers[place]);
        let Some(conn) = conns.get_mut(flush.id) else {
            continue;
        };
        flush.taken = outcome.map_err(|_| Lost).map(|taken| {
            conn.blocked = taken < offered;
            match &mut conn.tls {
                None => conn.outbox.advance(taken),
                Some(tls) if taken < offered => tls.put_unsent(&cipher[taken..]),
                Some(_) => {}
            }
            flush.has_written |= taken > 0;
            taken
        });
        cipher.clear();
        if cipher.capacity() > KEPT_BYTES_MAX {
            *cipher = Vec::new();
        }
    }
    scratch.ciphers = ciphers;
}

/// Under TLS what is queued is encrypted first, which takes it off the queue.
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
    }
    Ok(0)
}

/// Copies what is queued into one buffer, as much as is encrypted at a time.
fn gather(outbox: &Outbox, plain: &mut Vec<u8>) {
    plain.clear();
    let mut slices = [IoSlice::new(&[]); SLICES_MAX];
    let used = outbox.gather(&mut slices);
    for slice in &slices[..used] {
        let room = SEAL_BYTES_MAX - plain.len();
        plain.extend_from_slice(&slice[..slice.len().min(room)]);
        if plain.len() == SEAL_BYTES_MAX {
            break;
        }
    }
}
