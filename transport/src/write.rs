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
}

/// The socket is gone.
#[derive(Debug)]
pub(crate) struct Lost;

/// Writes until nothing is queued or the socket is full, and notes which.
pub(crate) fn write<D: Driver>(
    driver: &mut D,
    conn: &mut Conn<D::Socket>,
    scratch: &mut Scratch,
) -> Result<Written, Lost> {
    if conn.tls.is_some() {
        write_sealed(driver, conn, scratch)
    } else {
        write_plain(driver, conn)
    }
}

fn write_plain<D: Driver>(driver: &mut D, conn: &mut Conn<D::Socket>) -> Result<Written, Lost> {
    let mut bytes = 0;
    while !conn.blocked && !conn.outbox.is_empty() {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let used = conn.outbox.gather(&mut slices);
        let offered: usize = slices[..used].iter().map(|slice| slice.len()).sum();
        let taken = offer(driver, &mut conn.socket, &slices[..used])?;
        conn.blocked = taken < offered;
        conn.outbox.advance(taken);
        bytes += taken;
    }
    Ok(Written { bytes })
}

fn write_sealed<D: Driver>(
    driver: &mut D,
    conn: &mut Conn<D::Socket>,
    scratch: &mut Scratch,
) -> Result<Written, Lost> {
    let Some(tls) = &mut conn.tls else {
        return Err(Lost);
    };
    let mut bytes = 0;
    while !conn.blocked {
        scratch.cipher.clear();
        if tls.has_unsent() {
            scratch.cipher.append(&mut tls.take_unsent());
        } else if !conn.outbox.is_empty() && tls.is_established() {
            gather(&conn.outbox, &mut scratch.plain);
            tls.seal(&scratch.plain, &mut scratch.cipher).map_err(|_| Lost)?;
            conn.outbox.advance(scratch.plain.len());
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
    Ok(Written { bytes })
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
