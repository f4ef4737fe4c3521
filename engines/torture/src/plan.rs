//! The content of every batch, as a pure function of a store's seed, the batch's number, and its epoch.
//!
//! Owns: the key spaces, keys and values, the batches and chunks. Must not: do I/O, or remember anything. The supervisor,
//! its agents and their reading threads use it, and so agree on the content of a batch without exchanging it.
//!
//! A batch that is attempted again, because it was lost or refused, has another epoch and therefore another content. So
//! a lost batch cannot come back unnoticed. A key carries its own number in its last eight bytes, so that whoever reads
//! it knows its expected value without a map.

use engine_api::{Checkpoint, Key, Value};
use engine_kit::Rng;

/// Number of keys that are overwritten and deleted again and again.
const SMALL: u64 = 1_000;
/// Number of keys that share their first bytes, in groups.
const NEAR: u64 = 60_000;
/// Number of bytes that the keys of each group share. The rest of the first 24 bytes tells them apart, or only the
/// number at the end if there is no rest.
const NEAR_SHARED: [usize; 8] = [3, 4, 7, 8, 9, 15, 20, 24];
/// One batch in this many is a sorted chunk, with keys above all existing ones.
const CHUNK_EVERY: u64 = 19;
/// Number of pairs in the largest chunk, and of key numbers reserved for each.
const CHUNK_PAIRS_MAX: u64 = 6_000;

const SPACE_SMALL: u64 = 0;
const SPACE_LARGE: u64 = 1;
const SPACE_NEAR: u64 = 2;
const SPACE_CHUNKS: u64 = 3;
const SPACE_SHIFT: u32 = 56;

/// Puts a key, or deletes it if the stamp is zero. The stamp determines the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) id: u64,
    pub(crate) stamp: u64,
}

impl Op {
    /// Returns the value to put, or `None` for a delete.
    pub(crate) fn value(self) -> Option<Value> {
        (self.stamp != 0).then(|| value(self.stamp))
    }
}

/// Work that a checkpoint's number stands for.
pub(crate) enum Work {
    /// Changes for one transaction. A key may occur twice.
    Batch(Vec<Op>),
    /// Sorted pairs for [`engine_api::Engine::load_sorted`]. They have no epoch: a load that was cut short is repeated with the
    /// same pairs.
    Chunk(Vec<Op>),
}

/// Description of everything that one store may ever contain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    seed: u64,
    chunks: bool,
    most: u64,
    /// Number of keys in the large space.
    large: u64,
    /// Number of these keys in use at the first batch, and the number added by each batch.
    grows: (u64, u64),
    /// Number of consecutive batches of the same kind.
    phase: u64,
}

impl Plan {
    /// Builds the plan of a seed. `chunks` says whether there are sorted chunks among the batches; most batches have up
    /// to `most` changes; `large` is the number of keys in the largest space.
    pub(crate) fn new(seed: u64, chunks: bool, most: u64, large: u64) -> Self {
        let mut rng = Rng::of(seed, 5);
        let grows = rng.pick(&[(large, 0), (1_000, 500)]);
        let longest = rng.pick(&[6, 48]);
        Self { seed, chunks, most, large, grows, phase: 1 + rng.below(longest) }
    }

    /// Returns the work of number `seq`, counted from 1.
    pub(crate) fn work(&self, seq: u64, epoch: u64) -> Work {
        if self.is_chunk(seq) {
            return Work::Chunk(self.chunk(seq));
        }
        let mut phase = Rng::of(self.seed.rotate_left(32), seq / self.phase);
        let (space, deletes) = (phase.below(4), phase.pick(&[2, 5, 20, 1_000]));
        let most = phase.pick(&[4, self.most, self.most, self.most]).min(self.most);
        let mut rng = Rng::of(self.seed ^ epoch << 40, seq);
        let length = match rng.below(12) {
            0 => rng.below(2),
            1 => 1 + rng.below(most * 4),
            _ => 1 + rng.below(most),
        };
        let op = |_| {
            let id = self.pick(&mut rng, space, seq);
            Op { id, stamp: if rng.once_in(deletes) { 0 } else { rng.next() | 1 } }
        };
        Work::Batch((0..length).map(op).collect())
    }

    /// Returns the pairs of the chunk with number `seq`, or `None` if that is not a chunk.
    pub(crate) fn chunk_of(&self, seq: u64) -> Option<Vec<Op>> {
        self.is_chunk(seq).then(|| self.chunk(seq))
    }

    /// Returns the checkpoint of a batch, whose bytes and their length depend on number and epoch.
    pub(crate) fn checkpoint(&self, seq: u64, epoch: u64) -> Checkpoint {
        if seq == 0 {
            return Checkpoint::default();
        }
        // A chunk has no epoch, and neither has its checkpoint.
        let epoch = if self.is_chunk(seq) { 0 } else { epoch };
        let mut rng = Rng::of(self.seed ^ epoch << 40, seq);
        // Most are as long as the service's. The first eight bytes are always there, because they tell epochs apart.
        let length = rng.pick(&[96, 96, 8, 500, Checkpoint::BYTES_MAX as u64]) as usize;
        let bytes: Vec<u8> = std::iter::repeat_with(|| rng.next() as u8).take(length).collect();
        Checkpoint::new(seq, &bytes)
    }

    fn is_chunk(&self, seq: u64) -> bool {
        self.chunks && seq % CHUNK_EVERY == CHUNK_EVERY - 1
    }

    fn chunk(&self, seq: u64) -> Vec<Op> {
        let mut rng = Rng::of(!self.seed, seq);
        let pairs = rng.pick(&[0, 1, 200, CHUNK_PAIRS_MAX]);
        let first = (SPACE_CHUNKS << SPACE_SHIFT) + seq / CHUNK_EVERY * CHUNK_PAIRS_MAX;
        (first..first + pairs).map(|id| Op { id, stamp: rng.next() | 1 }).collect()
    }

    /// Returns the number of a random key, mostly of one space, that batch `seq` may change.
    fn pick(&self, rng: &mut Rng, space: u64, seq: u64) -> u64 {
        let loaded = if self.chunks { seq / CHUNK_EVERY * CHUNK_PAIRS_MAX } else { 0 };
        let (first, more) = self.grows;
        let large = self.large.min(first + more * seq);
        if loaded > 0 && rng.once_in(16) {
            return SPACE_CHUNKS << SPACE_SHIFT | rng.below(loaded);
        }
        match space {
            0 => rng.below(SMALL),
            1 => SPACE_LARGE << SPACE_SHIFT | rng.below(large),
            // Skewed: low numbers come often.
            2 => {
                let most = 1 + rng.below(large);
                let most = 1 + rng.below(most);
                SPACE_LARGE << SPACE_SHIFT | rng.below(most)
            }
            _ => SPACE_NEAR << SPACE_SHIFT | rng.below(NEAR),
        }
    }

    /// Returns the number of a key that some batch up to `seq` may have written.
    pub(crate) fn any_id(&self, rng: &mut Rng, seq: u64) -> u64 {
        let space = rng.below(4);
        self.pick(rng, space, seq)
    }

    /// Returns the key with this number.
    pub(crate) fn key(&self, id: u64) -> Key {
        let (space, n) = (id >> SPACE_SHIFT, id & ((1 << SPACE_SHIFT) - 1));
        let mut key = [0; 32];
        if id == 0 {
            // The key of the System program, which is a key like any other.
            return key;
        }
        fill(&mut key[..24], self.seed ^ id);
        // The greatest keys are for chunks.
        key[0] = key[0].min(0xfe);
        match space {
            SPACE_NEAR => {
                let group = n as usize % NEAR_SHARED.len();
                let mut shared = [0; 24];
                fill(&mut shared, !self.seed ^ group as u64);
                shared[0] = shared[0].min(0xfe);
                key[..NEAR_SHARED[group]].copy_from_slice(&shared[..NEAR_SHARED[group]]);
            }
            SPACE_CHUNKS => key[..8].copy_from_slice(&(u64::MAX << 48 | n).to_be_bytes()),
            _ => {}
        }
        key[24..].copy_from_slice(&id.to_be_bytes());
        key
    }

    /// Returns the number of a key, if this plan has it.
    pub(crate) fn id(&self, key: &Key) -> Option<u64> {
        let id = u64::from_be_bytes(std::array::from_fn(|i| key[24 + i]));
        (id >> SPACE_SHIFT <= SPACE_CHUNKS && self.key(id) == *key).then_some(id)
    }

    /// Returns the index of a key's number in a table of all of them, where chunks come last.
    pub(crate) fn place(&self, id: u64) -> usize {
        let before = match id >> SPACE_SHIFT {
            SPACE_SMALL => 0,
            SPACE_LARGE => SMALL,
            SPACE_NEAR => SMALL + self.large,
            _ => SMALL + self.large + NEAR,
        };
        (before + (id & ((1 << SPACE_SHIFT) - 1))) as usize
    }

    /// Returns the key at an index of that table.
    pub(crate) fn key_at(&self, place: usize) -> Key {
        let place = place as u64;
        let (large, near) = (SMALL + self.large, SMALL + self.large + NEAR);
        self.key(match place {
            _ if place < SMALL => place,
            _ if place < large => SPACE_LARGE << SPACE_SHIFT | (place - SMALL),
            _ if place < near => SPACE_NEAR << SPACE_SHIFT | (place - large),
            _ => SPACE_CHUNKS << SPACE_SHIFT | (place - near),
        })
    }
}

/// Returns the value that a stamp determines. Some values are all zero, which is not absence.
pub(crate) fn value(stamp: u64) -> Value {
    let mut value = [0; 32];
    if !stamp.is_multiple_of(61) {
        fill(&mut value, stamp);
    }
    value
}

fn fill(bytes: &mut [u8], seed: u64) {
    let mut rng = Rng::new(seed);
    bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&rng.next().to_be_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_above_everything_before_it_and_a_batch_changes_with_its_epoch() {
        let plan = Plan::new(3, true, 100, 40_000);
        let mut greatest = [0; 32];
        for seq in 1..400 {
            match plan.work(seq, 1) {
                Work::Chunk(ops) => {
                    let keys: Vec<Key> = ops.iter().map(|op| plan.key(op.id)).collect();
                    assert!(keys.is_sorted_by(|a, b| a < b));
                    assert!(keys.first().is_none_or(|first| *first > greatest), "seq={seq}");
                    greatest = keys.last().map_or(greatest, |last| *last);
                    assert_eq!(plan.checkpoint(seq, 1), plan.checkpoint(seq, 2));
                }
                Work::Batch(ops) => {
                    greatest = ops.iter().map(|op| plan.key(op.id)).fold(greatest, Key::max);
                    let Work::Batch(other) = plan.work(seq, 2) else { panic!("an epoch makes no chunk") };
                    assert!(ops.is_empty() || ops != other, "seq={seq}");
                    assert_ne!(plan.checkpoint(seq, 1), plan.checkpoint(seq, 2));
                }
            }
        }
        assert_eq!(greatest[0], 0xff);
    }

    #[test]
    fn a_key_tells_its_number_and_each_number_has_its_place() {
        let plan = Plan::new(4, true, 100, 40_000);
        let mut rng = Rng::new(1);
        for _ in 0..4_000 {
            let id = plan.any_id(&mut rng, 300);
            let mut key = plan.key(id);
            assert_eq!((plan.id(&key), plan.key_at(plan.place(id))), (Some(id), key));
            key[9] ^= 1;
            assert_eq!(plan.id(&key), None);
        }
    }
}
