//! Where inputs come from: random numbers with a fixed seed, and bytes read as a script.

use std::ops::Range;

/// splitmix64: the same numbers on every machine and with every toolchain, so that a round can be run again.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Numbers that depend on `seed` alone.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is at least 1.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// A number in the range.
    pub fn within(&mut self, range: Range<usize>) -> usize {
        range.start + self.below(range.len())
    }

    /// Yes, once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of these.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// So many bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    /// A number of any width up to `max`; those at which an encoding changes come often.
    pub fn uint(&mut self, max: u64) -> u64 {
        const BORDERS: [u64; 14] = [
            0,
            1,
            23,
            24,
            0xff,
            0x100,
            0xffff,
            0x1_0000,
            0xffff_ffff,
            0x1_0000_0000,
            i64::MAX as u64,
            1 << 63,
            u64::MAX - 1,
            u64::MAX,
        ];
        let value = match self.below(4) {
            0 => *self.pick(&BORDERS),
            1 => max.saturating_sub(self.next() % 2),
            _ => self.next() >> self.below(64),
        };
        if value > max { value % (max + 1) } else { value }
    }
}

/// Bytes read as a script: what is asked for, and zeroes once they are used up.
#[derive(Clone, Debug)]
pub struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    /// From its first byte.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether nothing is left.
    pub const fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub const fn u8(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    /// The next two bytes.
    pub const fn u16(&mut self) -> u16 {
        u16::from_be_bytes([self.u8(), self.u8()])
    }

    /// A number of any width: its number of bytes, then these.
    pub fn uint(&mut self) -> u64 {
        let width = usize::from(self.u8()) % 9;
        self.take(width)
            .iter()
            .fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    /// A number below `end`, which is at least 1.
    pub fn below(&mut self, end: usize) -> usize {
        usize::from(self.u8()) % end.max(1)
    }

    /// Up to `len` bytes.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// All that is left.
    pub const fn rest(&mut self) -> &'a [u8] {
        let rest = self.0;
        self.0 = &[];
        rest
    }
}
