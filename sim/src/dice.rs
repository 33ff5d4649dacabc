//! Chance, from one seed. Every concern has a stream of its own, so that one that draws more or less leaves the others
//! as they were.

/// A stream of draws.
#[derive(Clone, Debug)]
pub struct Dice(fastrand::Rng);

impl Dice {
    /// The stream of this name under this seed.
    pub fn new(seed: u64, name: &str) -> Self {
        Self(fastrand::Rng::with_seed(xxhash_rust::xxh3::xxh3_64_with_seed(
            name.as_bytes(),
            seed,
        )))
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        // Nothing is drawn for what never happens: a fault that is switched off shifts no other draw of its stream.
        probability > 0.0 && self.0.f64() < probability
    }

    /// `low..=high`, every value alike.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0.u64(low..=high)
    }

    /// `0..end`; 0 if that is empty.
    pub fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { self.0.usize(0..end) }
    }

    /// `low..=high`, small values more often: every order of magnitude alike.
    pub fn skewed(&mut self, low: u64, high: u64) -> u64 {
        // By bits, in whole numbers: every machine draws the same.
        let (low, high) = (low.max(1), high.max(low).max(1));
        let bits = self.0.u32(low.ilog2()..=high.ilog2());
        let most = high.min((1 << bits) | ((1 << bits) - 1));
        self.0.u64(low.max(1 << bits)..=most)
    }

    /// One of them.
    pub fn pick<'a, T>(&mut self, these: &'a [T]) -> Option<&'a T> {
        these.get(self.below(these.len()))
    }

    /// So many bytes.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        self.0.fill(&mut out);
        out
    }
}
