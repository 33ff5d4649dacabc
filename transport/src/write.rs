//! Writing what is queued for a connection: one gathering write, or one encryption and one write.

use crate::conn::Conn;
use crate::driver::Driver;
use drover_engine::outbox::Outbox;
use std::io::{self, IoSlice};

/// Runs offered to one gathering write.
const SLICES_MAX: usize = 64;
/// Plaintext encrypted at a time: four full records. What the socket doesn't take of it is kept as ciphertext, so
/// this bounds that too.
const SEAL_BYTES_MAX: usize = 65_536;

/// Buffers of a shard that every encrypted write uses.
#[derive(Default)]
pub(crate) struct Scratch {
    plain: Vec<u8>,
    cipher: Vec<u8>,
}

/// How much left.
pub(crate) struct Written {
    pub(crate) bytes: usize,
    /// Bytes of messages that were copied for it.
    pub(crate) copied: usize,
}

/// The socket is gone.
#[derive(Debug)]
pub(crate) struct Lost;

/// Writes until nothing is queued or the socket is full, and notes which.
pub(crate) fn write<D: Driver>(
    driver: &mut D,
    conn: &mut Conn<D::Socket>,
    scratch: &mut Scratch,
    copy_below: usize,
) -> Result<Written, Lost> {
    if conn.tls.is_some() {
        write_sealed(driver, conn, scratch)
    } else {
        write_plain(driver, conn, &mut scratch.plain, copy_below)
    }
}

fn write_plain<D: Driver>(
    driver: &mut D,
    conn: &mut Conn<D::Socket>,
    joined: &mut Vec<u8>,
    copy_below: usize,
) -> Result<Written, Lost> {
    let (mut bytes, mut copied) = (0, 0);
    while !conn.blocked && !conn.outbox.is_empty() {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let used = conn.outbox.gather(&mut slices);
        let offered: usize = slices[..used].iter().map(|slice| slice.len()).sum();
        let mut fewer = [IoSlice::new(&[]); SLICES_MAX];
        let used = join_small(&slices[..used], copy_below, joined, &mut fewer);
        let taken = offer(driver, &mut conn.socket, &fewer[..used])?;
        conn.blocked = taken < offered;
        copied += joined.len();
        conn.outbox.advance(taken);
        bytes += taken;
    }
    Ok(Written { bytes, copied })
}

/// Copies neighbours that are shorter than `copy_below` into one piece; the rest stays where it lies. Returns how many
/// of `fewer` are used.
fn join_small<'a>(
    slices: &[IoSlice<'a>],
    copy_below: usize,
    joined: &'a mut Vec<u8>,
    fewer: &mut [IoSlice<'a>; SLICES_MAX],
) -> usize {
    joined.clear();
    let is_small = |slice: &IoSlice<'_>| slice.len() < copy_below;
    let stretches = || slices.chunk_by(|a, b| is_small(a) && is_small(b));
    for stretch in stretches().filter(|stretch| stretch.len() > 1) {
        stretch.iter().for_each(|slice| joined.extend_from_slice(slice));
    }
    let mut rest = &joined[..];
    let mut used = 0;
    for (piece, stretch) in fewer.iter_mut().zip(stretches()) {
        *piece = match stretch {
            [one] => *one,
            many => {
                let (these, others) = rest.split_at(many.iter().map(|slice| slice.len()).sum());
                rest = others;
                IoSlice::new(these)
            }
        };
        used += 1;
    }
    used
}

fn write_sealed<D: Driver>(
    driver: &mut D,
    conn: &mut Conn<D::Socket>,
    scratch: &mut Scratch,
) -> Result<Written, Lost> {
    let Some(tls) = &mut conn.tls else {
        return Err(Lost);
    };
    let (mut bytes, mut copied) = (0, 0);
    while !conn.blocked {
        scratch.cipher.clear();
        if tls.has_unsent() {
            scratch.cipher.append(&mut tls.take_unsent());
        } else if !conn.outbox.is_empty() && tls.is_established() {
            gather(&conn.outbox, &mut scratch.plain);
            tls.seal(&scratch.plain, &mut scratch.cipher).map_err(|_| Lost)?;
            conn.outbox.advance(scratch.plain.len());
            copied += scratch.plain.len();
        } else {
            break;
        }
        let taken = offer(driver, &mut conn.socket, &[IoSlice::new(&scratch.cipher)])?;
        bytes += taken;
        if taken < scratch.cipher.len() {
            conn.blocked = true;
            tls.put_unsent(&scratch.cipher[taken..]);
        }
    }
    Ok(Written { bytes, copied })
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

/// One write; nothing taken means that the socket is full.
fn offer<D: Driver>(driver: &mut D, socket: &mut D::Socket, slices: &[IoSlice<'_>]) -> Result<usize, Lost> {
    loop {
        match driver.write(socket, slices) {
            Ok(taken) => return Ok(taken),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            Err(_) => return Err(Lost),
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
        let slices: Vec<IoSlice<'_>> = all.iter().map(|bytes| IoSlice::new(bytes)).collect();
        for (copy_below, pieces, copied) in
            [(0, 8, 0), (4, 8, 0), (100, 6, 107), (101, 3, 307), (1000, 1, 512)]
        {
            let mut joined = vec![9; 30];
            let mut fewer = [IoSlice::new(&[]); SLICES_MAX];
            let used = join_small(&slices, copy_below, &mut joined, &mut fewer);
            assert_eq!(used, pieces, "{copy_below}");
            let written: Vec<u8> = fewer[..used].iter().flat_map(|slice| slice.to_vec()).collect();
            assert_eq!(written, all.concat());
            assert_eq!(joined.len(), copied);
        }
    }
}
