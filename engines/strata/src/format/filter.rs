//! Filter planes: blocked Bloom filters of 8, 4 and 4 bits a key, in a delta of 8, 4 and 8. Each plane is a complete filter
//! with a hash of its own, so as many planes are loaded as the memory allows, and their error rates multiply.
//!
//! Owns: the bytes of a plane (FORMAT.md, "Filter plane"). Must not: do I/O.

use crate::huge;

/// Number of filter planes in a segment.
pub(crate) const PLANES: usize = 3;
/// Number of kinds of planes: the first and the second one, the third one of the base, and that of a delta.
const KINDS: usize = PLANES + 1;
/// Bits a key in each kind of plane. The first plane alone ends 39 of 40 gets of absent keys. The other two have half its
/// size in the base, so that they fit into smaller amounts of spare memory. An absent key asks every delta, so that of a
/// delta lets less through.
const BITS_PER_KEY: [u64; KINDS] = [8, 4, 4, 8];
/// Bits set a key: near the optimum of ln 2 of the bits, less a little because blocks of one cache line fill unevenly.
const PROBES: [u32; KINDS] = [5, 3, 3, 5];
/// A block is one cache line, so that a lookup costs one cache miss a plane.
const BLOCK_BYTES: usize = 64;

/// Returns the kind of the plane with this number, 0 to 2. `base`, whether its segment is of the base, is asked only for the
/// third one, so that a get of a present key does not fetch it.
#[inline]
pub(crate) fn plane_kind(plane: usize, base: impl FnOnce() -> bool) -> usize {
    if plane == PLANES - 1 && !base() { KINDS - 1 } else { plane }
}

/// Size in bytes of a plane of this kind for this many keys.
pub(crate) fn plane_bytes(kind: usize, keys: u64) -> usize {
    (keys * BITS_PER_KEY[kind]).div_ceil(8 * BLOCK_BYTES as u64).max(1) as usize * BLOCK_BYTES
}

/// Sets the bits of all keys with these hashes in a plane of this kind. `bytes`: the whole plane.
pub(crate) fn insert_all(bytes: &mut [u8], kind: usize, hashes: &[u64]) {
    match kind {
        0 => insert_each::<0>(bytes, hashes),
        1 => insert_each::<1>(bytes, hashes),
        2 => insert_each::<2>(bytes, hashes),
        _ => insert_each::<3>(bytes, hashes),
    }
}

/// As [`insert_all`], with a number of probes that the compiler knows.
fn insert_each<const KIND: usize>(bytes: &mut [u8], hashes: &[u64]) {
    let length = bytes.len();
    for hash in hashes {
        let spot = Spot::of(KIND, *hash);
        let block = &mut bytes[block_at(length, spot.place)..][..BLOCK_BYTES];
        for probe in 0..PROBES[KIND] {
            let bit = spot.bits >> (9 * probe);
            block[(bit >> 3 & 63) as usize] |= 1 << (bit & 7);
        }
    }
}

const _: () = assert!(KINDS == 4);

/// Where and which bits one key sets in planes of one kind, independent of their size. It is computed once for all
/// segments.
#[derive(Clone, Copy)]
pub(crate) struct Spot {
    place: u64,
    bits: u64,
    probes: u32,
}

impl Spot {
    #[inline]
    pub(crate) fn of(kind: usize, hash: u64) -> Self {
        let place = placed(kind, hash);
        Self { place, bits: mix(place), probes: PROBES[kind] }
    }

    /// Prefetches the cache line that [`Spot::is_set`] reads.
    #[inline]
    pub(crate) fn prefetch(self, bytes: &[u8]) {
        huge::prefetch(bytes.as_ptr().wrapping_add(block_at(bytes.len(), self.place)));
    }

    /// Whether the key may be among the inserted ones. It is never false for a key that was inserted.
    #[inline]
    pub(crate) fn is_set(self, bytes: &[u8]) -> bool {
        let block = &bytes[block_at(bytes.len(), self.place)..][..BLOCK_BYTES];
        // Test every bit without branches: a branch for each would be mispredicted about once a key.
        let mut all = 1;
        for probe in 0..self.probes {
            let bit = self.bits >> (9 * probe);
            all &= block[(bit >> 3 & 63) as usize] >> (bit & 7);
        }
        all & 1 == 1
    }
}

/// Returns the key's position in a plane as a fraction of 2^64.
#[inline]
fn placed(kind: usize, hash: u64) -> u64 {
    mix(hash ^ (kind as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Returns the byte offset of the block at this position.
#[inline]
fn block_at(length: usize, place: u64) -> usize {
    let blocks = (length / BLOCK_BYTES) as u128;
    ((u128::from(place) * blocks) >> 64) as usize * BLOCK_BYTES
}

/// The finaliser of MurmurHash3 (Appleby): a bijection on 64 bits.
#[inline]
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::secret::Seed;

    /// False positives of each kind in a million absent keys.
    const ERRORS_PER_MILLION: [u64; KINDS] = [25_000, 155_000, 155_000, 25_000];

    /// Number of absent keys, in a million, that pass planes of these kinds.
    fn errors_per_million(kinds: &[usize]) -> u64 {
        kinds.iter().fold(1_000_000, |through, kind| through * ERRORS_PER_MILLION[*kind] / 1_000_000)
    }

    fn may_contain(bytes: &[u8], kind: usize, hash: u64) -> bool {
        Spot::of(kind, hash).is_set(bytes)
    }

    #[test]
    fn nothing_inserted_is_missed_and_errors_multiply() {
        let keys = 100_000u64;
        let hash_of = |n: u64| {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&n.to_be_bytes());
            Seed::fixed().hash(&key)
        };
        let mut planes: [Vec<u8>; KINDS] = std::array::from_fn(|n| vec![0; plane_bytes(n, keys)]);
        for (n, plane) in planes.iter_mut().enumerate() {
            insert_all(plane, n, &(0..keys).map(hash_of).collect::<Vec<_>>());
            assert!((0..keys).all(|key| may_contain(plane, n, hash_of(key))));
        }
        let errors = |kinds: &[usize]| {
            let absent = (keys..2 * keys).map(hash_of);
            absent.filter(|hash| kinds.iter().all(|n| may_contain(&planes[*n], *n, *hash))).count()
        };
        for base in [true, false] {
            let kinds: [usize; PLANES] = std::array::from_fn(|plane| plane_kind(plane, || base));
            for loaded in 0..=PLANES {
                let kinds = &kinds[..loaded];
                let (found, said) = (errors(kinds) as f64, errors_per_million(kinds) as f64 / 10.0);
                let off = 0.15 * said + 4.0 * said.sqrt();
                assert!((found - said).abs() <= off, "kinds={kinds:?} errors={found} said={said} of 100,000");
            }
        }
    }
}
