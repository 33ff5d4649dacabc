//! What happened, in order: as one number that tells two runs apart, and as text when somebody wants to read it.

use std::fmt::Write;
use xxhash_rust::xxh3::Xxh3;

/// Lines kept: the last ones.
const LINES_KEPT: usize = 4_000;

/// See the module.
pub struct Trace {
    hash: Xxh3,
    /// Entries so far.
    pub entries: u64,
    text: Option<std::collections::VecDeque<String>>,
}

impl Trace {
    /// With or without text.
    pub fn new(with_text: bool) -> Self {
        Self {
            hash: Xxh3::new(),
            entries: 0,
            text: with_text.then(Default::default),
        }
    }

    /// An entry: what decides (hashed), and how it reads.
    pub fn note(&mut self, at_us: u64, data: &[u8], line: impl FnOnce(&mut String)) {
        self.entries += 1;
        self.hash.update(&at_us.to_le_bytes());
        self.hash.update(&(data.len() as u32).to_le_bytes());
        self.hash.update(data);
        if let Some(text) = &mut self.text {
            let mut out = String::new();
            let _ = write!(out, "{:>12.6} ", at_us as f64 / 1e6);
            line(&mut out);
            if text.len() == LINES_KEPT {
                text.pop_front();
            }
            text.push_back(out);
        }
    }

    /// More of what decides.
    pub fn hash_bytes(&mut self, data: &[u8]) {
        self.hash.update(data);
    }

    /// The number.
    pub fn hash(&self) -> u64 {
        self.hash.digest()
    }

    /// The lines.
    pub fn into_lines(self) -> Vec<String> {
        self.text.into_iter().flatten().collect()
    }
}
