//! HdrHistogram's bucket index, restated for a fixed configuration so that a recorder needs no histogram object.
//!
//! Owns: the mapping between values and bucket indices for 1 ns to 60 s at 3 significant digits. The formula is
//! HdrHistogram's (Gil Tene; `AbstractHistogram.countsArrayIndex` in the Java original, `Histogram::index_for` in the
//! `hdrhistogram` crate): values below 2048 have a bucket each, and every further power of two is cut into 1024
//! buckets. A test checks that the results equal the crate's.

use hdrhistogram::Histogram;

/// Smallest recorded value in ns. A shorter duration is recorded as this one.
pub(crate) const LOW_NS: u64 = 1;
/// Largest recorded value in ns. A longer duration is recorded as this one.
pub(crate) const HIGH_NS: u64 = 60_000_000_000;
/// Number of significant decimal digits that a recorded value keeps.
pub(crate) const SIGNIFICANT_DIGITS: u8 = 3;
/// Number of buckets between [`LOW_NS`] and [`HIGH_NS`].
pub(crate) const BUCKETS: usize = index_for(HIGH_NS) + 1;

/// Base-2 logarithm of the number of values that have a bucket each: the first power of two above 2 * 10^3.
const SUB_BUCKET_BITS: u32 = 11;
const SUB_BUCKET_HALF_BITS: u32 = SUB_BUCKET_BITS - 1;
const SUB_BUCKET_HALF: usize = 1 << SUB_BUCKET_HALF_BITS;
const SUB_BUCKET_MASK: u64 = (1 << SUB_BUCKET_BITS) - 1;

/// Returns the index of the bucket that holds `nanos`, which must not exceed [`HIGH_NS`].
pub(crate) const fn index_for(nanos: u64) -> usize {
    let bucket = u64::BITS - SUB_BUCKET_BITS - (nanos | SUB_BUCKET_MASK).leading_zeros();
    ((bucket as usize) << SUB_BUCKET_HALF_BITS) + (nanos >> bucket) as usize
}

/// Returns the smallest value of the bucket at `index`, in ns.
pub(crate) const fn value_for(index: usize) -> u64 {
    let bucket = (index >> SUB_BUCKET_HALF_BITS).saturating_sub(1);
    ((index - (bucket << SUB_BUCKET_HALF_BITS)) as u64) << bucket
}

/// Builds an empty histogram with the bounds and digits of this module.
pub(crate) fn empty_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(LOW_NS, HIGH_NS, SIGNIFICANT_DIGITS)
        .expect("the three constants are a valid configuration")
}

const _: () = assert!(SUB_BUCKET_HALF * 2 == SUB_BUCKET_MASK as usize + 1 && BUCKETS * 8 < 256 << 10);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn buckets_are_those_of_the_crate(exponent in 0u32..36, fraction in 0.0f64..1.0) {
            let nanos = ((2f64.powi(exponent as i32) * (1.0 + fraction)) as u64).clamp(LOW_NS, HIGH_NS);
            let low = value_for(index_for(nanos));
            prop_assert_eq!(low, empty_histogram().lowest_equivalent(nanos));
            prop_assert_eq!(index_for(low), index_for(nanos));
        }
    }

    #[test]
    fn the_edges_are_in_range() {
        assert_eq!(value_for(index_for(LOW_NS)), LOW_NS);
        assert_eq!(index_for(HIGH_NS) + 1, BUCKETS);
        assert!(BUCKETS <= empty_histogram().distinct_values());
    }
}
