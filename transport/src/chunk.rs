//! Where a shard reads into: one buffer for all its connections, cut off piece by piece, so that an idle connection
//! holds no buffer and a message is a slice of what was read.

use bytes::BytesMut;

/// What is allocated at a time. A message that is kept keeps this much alive.
const CHUNK_BYTES: usize = 131_072;
/// The least a read is offered.
const READ_BYTES_MIN: usize = 16_384;

/// The buffer. Its whole length is initialised, so reading into it needs no unsafe code.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    buffer: BytesMut,
}

impl Chunk {
    /// Room to read into, at least 16 KiB of it.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        self.space_for(READ_BYTES_MIN)
    }

    /// Room for at least `bytes`.
    pub(crate) fn space_for(&mut self, bytes: usize) -> &mut [u8] {
        if self.buffer.len() < bytes {
            let size = CHUNK_BYTES.max(bytes);
            self.buffer.clear();
            // Takes the old allocation back if nobody holds a piece of it any more.
            self.buffer.reserve(size);
            self.buffer.resize(size, 0);
        }
        &mut self.buffer
    }

    /// Cuts off the first `bytes`, which were just filled.
    pub(crate) fn take(&mut self, bytes: usize) -> BytesMut {
        self.buffer.split_to(bytes)
    }

    /// A copy of `bytes` in a piece of its own.
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> BytesMut {
        self.space_for(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.take(bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_independent_and_room_never_runs_out() {
        let mut chunk = Chunk::default();
        let mut pieces = Vec::new();
        for n in 0..100_u8 {
            chunk.space()[..5_000].fill(n);
            pieces.push(chunk.take(5_000));
        }
        for (n, piece) in pieces.iter().enumerate() {
            assert!(piece.iter().all(|byte| *byte == n as u8));
        }
        assert!(chunk.space().len() >= READ_BYTES_MIN);
        assert_eq!(&chunk.copy(b"abc")[..], b"abc");
    }
}
