//! A small seeded generator, and the mixing of bits that it is made of.
//!
//! Owns: the sequence of a seed, on which every tool must agree to the bit. Must not: take a seed from the clock or the
//! system. Plain values, used on any thread.

/// A seeded generator (splitmix64). Unlike a library's, its sequence is the same on all platforms and in all versions.
#[derive(Clone, Copy, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Starts the sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// Returns the next 64 uniform bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a uniform number in `0..bound`; `bound` must not be 0. Multiply-shift (Lemire 2019), with a bias below
    /// 2^-32 for bounds under 2^32.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a uniform number in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns `true` with probability `share`.
    pub fn chance(&mut self, share: f64) -> bool {
        self.unit() < share
    }
}

/// Mixes 64 bits by the finaliser of splitmix64 (Steele, Lea, Flood 2014), which is a bijection.
pub(crate) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
