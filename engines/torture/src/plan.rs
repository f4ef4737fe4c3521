//! The content of every batch, as a pure function of a store's seed, the batch's number, and its epoch.
//!
//! Owns: the keys, their values, the batches and chunks. Must not: do I/O, or remember anything. The supervisor and its
//! agents use it, and so agree on the content of a batch without exchanging it.
//!
//! A batch that is attempted again, because it was lost or refused, has another epoch and therefore another content. So
//! a lost batch cannot come back unnoticed.

use engine_api::{Checkpoint, Key, Value};

use crate::rng::Rng;

/// Number of keys that are overwritten and deleted again and again.
const SMALL_KEYS: u64 = 500;
/// Number of keys in a second, larger range, of which most batches change new ones.
const LARGE_KEYS: u64 = 40_000;
/// One batch in this many is a sorted chunk, with keys above all existing ones.
const CHUNK_EVERY: u64 = 19;
/// Number of pairs in the largest chunk.
const CHUNK_PAIRS_MAX: u64 = 1500;
/// First byte of every key in a chunk. Other keys begin with a smaller byte.
const CHUNK_BYTE: u8 = 0xff;

/// A change of a key: a put, or a delete for `None`.
pub(crate) type Change = (Key, Option<Value>);

/// Work that a checkpoint's number stands for.
pub(crate) enum Work {
    /// Changes for one transaction. A key may occur twice.
    Batch(Vec<Change>),
    /// Sorted pairs for [`engine_api::BulkLoad`]. They have no epoch: a load that was cut short is repeated with the
    /// same pairs.
    Chunk(Vec<(Key, Value)>),
}

/// Description of everything that one store may ever contain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    seed: u64,
    chunks: bool,
    most: u64,
}

impl Plan {
    /// Builds the plan of a seed. `chunks` says whether there are sorted chunks among the batches; most batches have up
    /// to `most` changes.
    pub(crate) fn new(seed: u64, chunks: bool, most: u64) -> Self {
        Self { seed, chunks, most }
    }

    /// Returns the work of number `seq`, counted from 1.
    pub(crate) fn work(&self, seq: u64, epoch: u64) -> Work {
        if self.is_chunk(seq) {
            return Work::Chunk(self.chunk(seq));
        }
        let mut rng = Rng::of(self.seed ^ epoch << 40, seq);
        let length = match rng.below(12) {
            0 => rng.below(2),
            1 => 1 + rng.below(self.most * 4),
            _ => 1 + rng.below(self.most),
        };
        let deletes = rng.pick(&[3, 6, 30]);
        let wide = rng.once_in(2);
        let loaded = if self.chunks { seq / CHUNK_EVERY * CHUNK_PAIRS_MAX } else { 0 };
        let change = |_| {
            let key = match rng.below(16) {
                0 if loaded > 0 => chunk_key(rng.below(loaded)),
                _ => self.key(rng.below(if wide { LARGE_KEYS } else { SMALL_KEYS })),
            };
            (key, (!rng.once_in(deletes)).then(|| value(rng.next())))
        };
        Work::Batch((0..length).map(change).collect())
    }

    /// Returns the pairs of the chunk with number `seq`, or `None` if that is not a chunk.
    pub(crate) fn chunk_of(&self, seq: u64) -> Option<Vec<(Key, Value)>> {
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

    /// Returns a key that some batch may have written.
    pub(crate) fn any_key(&self, rng: &mut Rng) -> Key {
        match rng.below(4) {
            0 => chunk_key(rng.below(4 * CHUNK_PAIRS_MAX)),
            1 => self.key(rng.below(LARGE_KEYS)),
            _ => self.key(rng.below(SMALL_KEYS)),
        }
    }

    fn is_chunk(&self, seq: u64) -> bool {
        self.chunks && seq % CHUNK_EVERY == CHUNK_EVERY - 1
    }

    fn chunk(&self, seq: u64) -> Vec<(Key, Value)> {
        let mut rng = Rng::of(!self.seed, seq);
        let pairs = rng.pick(&[0, 1, 60, CHUNK_PAIRS_MAX]);
        let first = seq / CHUNK_EVERY * CHUNK_PAIRS_MAX;
        (first..first + pairs).map(|number| (chunk_key(number), value(rng.next()))).collect()
    }

    fn key(&self, number: u64) -> Key {
        let mut key = words(self.seed, number);
        key[0] = key[0].min(CHUNK_BYTE - 1);
        // The key of the System program, which is a key like any other.
        if number == 0 { [0; 32] } else { key }
    }
}

/// Returns a key of a chunk, which ascends with its number.
fn chunk_key(number: u64) -> Key {
    let mut key = words(7, number);
    key[0] = CHUNK_BYTE;
    key[1..9].copy_from_slice(&number.to_be_bytes());
    key
}

/// Returns a value. Some values are all zero, which is not absence.
fn value(stamp: u64) -> Value {
    if stamp.is_multiple_of(61) { [0; 32] } else { words(stamp, 11) }
}

fn words(seed: u64, what: u64) -> [u8; 32] {
    let mut rng = Rng::of(seed, what);
    let mut out = [0; 32];
    out.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&rng.next().to_be_bytes()));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_above_everything_before_it_and_a_batch_changes_with_its_epoch() {
        let plan = Plan::new(3, true, 100);
        let mut greatest = [0; 32];
        for seq in 1..400 {
            match plan.work(seq, 1) {
                Work::Chunk(pairs) => {
                    assert!(pairs.windows(2).all(|two| two[0].0 < two[1].0));
                    assert!(pairs.first().is_none_or(|first| first.0 > greatest), "seq={seq}");
                    greatest = pairs.last().map_or(greatest, |last| last.0);
                    assert_eq!(plan.checkpoint(seq, 1), plan.checkpoint(seq, 2));
                }
                Work::Batch(changes) => {
                    let puts = changes.iter().filter(|(_, value)| value.is_some()).map(|(key, _)| *key);
                    greatest = puts.fold(greatest, Key::max);
                    let Work::Batch(other) = plan.work(seq, 2) else { panic!("an epoch makes no chunk") };
                    assert!(changes.is_empty() || changes != other, "seq={seq}");
                    assert_ne!(plan.checkpoint(seq, 1), plan.checkpoint(seq, 2));
                }
            }
        }
        assert_eq!(greatest[0], CHUNK_BYTE);
    }
}
