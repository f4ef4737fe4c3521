//! The random generator of the engines' tests, models and simulated disks.
//!
//! Owns: the sequence of a seed, so that a printed seed repeats a run. Must not: choose a seed; be used by an engine,
//! because its numbers can be guessed. Does no I/O. Used on any thread, one generator for each.

/// Random generator splitmix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Builds a generator whose numbers follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Builds a generator that follows from `seed` and `purpose`, unrelated to those of other seeds and purposes.
    pub fn of(seed: u64, purpose: u64) -> Self {
        Self(Self(seed ^ purpose.wrapping_mul(0x2545_f491_4f6c_dd1d)).next())
    }

    /// Returns the next number of the sequence.
    #[allow(clippy::should_implement_trait, reason = "it has no end and is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Returns a number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns true once in `times` calls on average.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Returns one element of `from`, which must not be empty.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}
