//! The choice of the key that an event touches: uniform and zipfian picks.
//!
//! Owns: the distributions. Must not: keep a generator, because each caller has a sequence of its own. Plain values, used
//! on any thread.

use crate::rng::Rng;

/// Distribution of picks over the keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Skew {
    /// Every key is picked equally often.
    Uniform,
    /// The key of rank r has the weight `r^-exponent`.
    Zipfian {
        /// Exponent of the weights: over 0 and not 1. YCSB's default is 0.99.
        exponent: f64,
    },
}

/// Picks indexes in `0..count` at random.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Picker {
    count: u64,
    zipf: Option<Zipf>,
}

impl Picker {
    /// Makes a picker among `count` keys; `count` must not be 0.
    pub fn new(count: u64, skew: Skew) -> Self {
        let zipf = match skew {
            Skew::Uniform => None,
            Skew::Zipfian { exponent } => Some(Zipf::new(count, exponent)),
        };
        Self { count, zipf }
    }

    /// Picks the next index. Rank 0 is the hottest. Synthetic keys are unordered, so hot keys do not cluster on disk.
    pub fn pick(&self, rng: &mut Rng) -> u64 {
        match &self.zipf {
            None => rng.below(self.count),
            Some(zipf) => zipf.pick(rng) - 1,
        }
    }
}

/// Rejection-inversion sampling (Hörmann and Derflinger 1996, "Rejection-inversion to generate variates from monotone
/// discrete distributions"): constant time and memory for any number of keys.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Zipf {
    count: f64,
    exponent: f64,
    h_x1: f64,
    h_n: f64,
    s: f64,
}

impl Zipf {
    fn new(count: u64, exponent: f64) -> Self {
        let mut zipf = Self { count: count as f64, exponent, h_x1: 0.0, h_n: 0.0, s: 0.0 };
        zipf.h_x1 = zipf.h_integral(1.5) - 1.0;
        zipf.h_n = zipf.h_integral(zipf.count + 0.5);
        zipf.s = 2.0 - zipf.h_integral_inverse(zipf.h_integral(2.5) - zipf.h(2.0));
        zipf
    }

    fn h(&self, x: f64) -> f64 {
        x.powf(-self.exponent)
    }

    /// Returns the integral of `h`, up to a constant: (x^(1-e) - 1) / (1-e).
    fn h_integral(&self, x: f64) -> f64 {
        let one_minus = 1.0 - self.exponent;
        (x.powf(one_minus) - 1.0) / one_minus
    }

    fn h_integral_inverse(&self, y: f64) -> f64 {
        let one_minus = 1.0 - self.exponent;
        (1.0 + y * one_minus).max(0.0).powf(1.0 / one_minus)
    }

    fn pick(&self, rng: &mut Rng) -> u64 {
        loop {
            let u = self.h_n + rng.unit() * (self.h_x1 - self.h_n);
            let x = self.h_integral_inverse(u);
            let k = (x + 0.5).floor().clamp(1.0, self.count);
            if k - x <= self.s || u >= self.h_integral(k + 0.5) - self.h(k) {
                return k as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(skew: Skew) -> [u32; 10] {
        let picker = Picker::new(10, skew);
        let mut rng = Rng::new(1);
        let mut counts = [0u32; 10];
        for _ in 0..200_000 {
            counts[picker.pick(&mut rng) as usize] += 1;
        }
        counts
    }

    #[test]
    fn uniform_is_flat() {
        assert!(counts(Skew::Uniform).iter().all(|&n| (19_000..21_000).contains(&n)));
    }

    #[test]
    fn zipfian_follows_its_weights() {
        let exponent = 0.99;
        let weights: Vec<f64> = (1..=10).map(|rank| f64::from(rank).powf(-exponent)).collect();
        let total: f64 = weights.iter().sum();
        for (count, weight) in counts(Skew::Zipfian { exponent }).iter().zip(&weights) {
            let expected = 200_000.0 * weight / total;
            assert!((f64::from(*count) - expected).abs() < expected * 0.05, "count={count} expected={expected}");
        }
    }
}
