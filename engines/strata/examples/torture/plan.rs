//! The plan of writes: every change of a store as a pure function of a seed and the change's number.
//!
//! Owns: the key spaces, keys and values, changes, and random sizes. Must not: do I/O or remember anything. Used on any
//! thread of the program and of its child, which thus agree on a content without communication.
//!
//! A key carries its own number in its last eight bytes, so that whoever reads it knows its expected value.

use engine_api::{Key, Value};
use solkv_engine_strata::{Sizes, StrataOptions};

use crate::support::Rng;

/// Number of keys that are overwritten again and again.
const SMALL: u64 = 4_000;
/// Number of keys that share their first bytes, in groups.
const NEAR: u64 = 60_000;
/// Number of bytes that the keys of each group share. The rest of the first 24 bytes tells them apart, or only the
/// number at the end if there is no rest.
const NEAR_SHARED: [usize; 8] = [3, 4, 7, 8, 9, 15, 20, 24];
/// One change in BULK_EVERY loads sorted pairs above all other keys.
const BULK_EVERY: u64 = 48;
/// Number of key numbers reserved for each bulk load.
const BULK_ROOM: u64 = 6_000;

const SPACE_SMALL: u64 = 0;
const SPACE_LARGE: u64 = 1;
const SPACE_NEAR: u64 = 2;
const SPACE_BULK: u64 = 3;
const SPACE_SHIFT: u32 = 56;

/// Puts a key, or deletes it if the stamp is zero. The stamp determines the value.
#[derive(Clone, Copy)]
pub(crate) struct Op {
    pub(crate) id: u64,
    pub(crate) stamp: u64,
}

/// One numbered change, which a checkpoint's seq stands for.
pub(crate) enum Change {
    /// A transaction, in which a key may occur twice.
    Batch(Vec<Op>),
    /// A load of sorted pairs above every key in the store.
    Bulk(Vec<Op>),
}

/// All changes of one store.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    seed: u64,
    /// Number of keys in the large space.
    large: u64,
    /// Number of these keys in use at the first change, and the number added by each change.
    grows: (u64, u64),
    /// Number of consecutive changes of the same kind.
    phase: u64,
}

impl Change {
    pub(crate) fn ops(&self) -> &[Op] {
        match self {
            Self::Batch(ops) | Self::Bulk(ops) => ops,
        }
    }
}

impl Plan {
    /// Makes a plan for a store on a real device.
    pub(crate) fn killed(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let large = [2_000_000, 2_000_000, 200_000][rng.below(3) as usize];
        let phase = 1 + rng.below(48);
        Self { seed, large, grows: [(large, 0), (1_000, 500)][rng.below(2) as usize], phase }
    }

    /// Makes a plan for a store in memory, which is smaller and more mixed.
    pub(crate) fn device(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let (large, phase) = (30_000, 1 + rng.below(6));
        Self { seed, large, grows: [(large, 0), (200, 300)][rng.below(2) as usize], phase }
    }

    /// Returns change number `seq`, counted from 1.
    pub(crate) fn change(&self, seq: u64) -> Change {
        let mut rng = Rng(self.seed ^ seq.wrapping_mul(0x2545_f491_4f6c_dd1d));
        if seq % BULK_EVERY == BULK_EVERY - 1 {
            let pairs = [0, 1, 200, BULK_ROOM][rng.below(4) as usize];
            let first = seq / BULK_EVERY * BULK_ROOM;
            let op = |n| Op { id: SPACE_BULK << SPACE_SHIFT | (first + n), stamp: rng.next() | 1 };
            return Change::Bulk((0..pairs).map(op).collect());
        }
        let mut phase = Rng(!self.seed ^ (seq / self.phase).wrapping_mul(0x9e6c_63d0_876a_68ed));
        let space = phase.below(4);
        let deletes = [2, 5, 20, 1_000][phase.below(4) as usize];
        let most = [4, 300, 300, 3_000, 10_000][phase.below(5) as usize];
        let length = match rng.below(200) {
            0 => 0,
            // More operations than a small memtable holds.
            1 => 40_000,
            _ if most == 10_000 => most,
            _ => 1 + rng.below(most),
        };
        let op = |_| {
            let id = self.pick(&mut rng, space, seq);
            let stamp = if rng.below(deletes) == 0 { 0 } else { rng.next() | 1 };
            Op { id, stamp }
        };
        Change::Batch((0..length).map(op).collect())
    }

    fn pick(&self, rng: &mut Rng, space: u64, seq: u64) -> u64 {
        let bulked = seq / BULK_EVERY * BULK_ROOM;
        let (first, more) = self.grows;
        let large = self.large.min(first + more * seq);
        if bulked > 0 && rng.below(16) == 0 {
            return SPACE_BULK << SPACE_SHIFT | rng.below(bulked);
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

    /// Returns the number of a key that some change up to `seq` may have written.
    pub(crate) fn any_id(&self, rng: &mut Rng, seq: u64) -> u64 {
        let space = rng.below(4);
        self.pick(rng, space, seq)
    }

    /// Returns the key with this number.
    pub(crate) fn key(&self, id: u64) -> Key {
        let (space, n) = (id >> SPACE_SHIFT, id & ((1 << SPACE_SHIFT) - 1));
        let mut key = [0; 32];
        if id == 0 {
            return key;
        }
        fill(&mut key[..24], self.seed ^ id);
        match space {
            SPACE_NEAR => {
                let group = n as usize % NEAR_SHARED.len();
                fill(&mut key[..24], self.seed ^ n.wrapping_mul(0x9e37_79b9));
                let mut shared = [0; 24];
                fill(&mut shared, !self.seed ^ group as u64);
                key[..NEAR_SHARED[group]].copy_from_slice(&shared[..NEAR_SHARED[group]]);
            }
            SPACE_BULK => key[..8].copy_from_slice(&(u64::MAX << 48 | n).to_be_bytes()),
            _ => {}
        }
        if space != SPACE_BULK {
            // Keep the greatest keys for bulk loads.
            key[0] = key[0].min(0xfe);
        }
        key[24..].copy_from_slice(&id.to_be_bytes());
        key
    }

    /// Returns the number of a key, if this plan has it.
    pub(crate) fn id(&self, key: &Key) -> Option<u64> {
        let id = u64::from_be_bytes(std::array::from_fn(|i| key[24 + i]));
        (id >> SPACE_SHIFT <= SPACE_BULK && self.key(id) == *key).then_some(id)
    }

    /// Returns the index of a key's number in a table of all of them.
    pub(crate) fn place(&self, id: u64) -> usize {
        let n = id & ((1 << SPACE_SHIFT) - 1);
        let before = match id >> SPACE_SHIFT {
            SPACE_SMALL => 0,
            SPACE_LARGE => SMALL,
            SPACE_NEAR => SMALL + self.large,
            _ => SMALL + self.large + NEAR,
        };
        (before + n) as usize
    }

    /// Returns the number at an index of that table.
    pub(crate) fn at_place(&self, place: usize) -> u64 {
        let place = place as u64;
        let (large, near) = (SMALL + self.large, SMALL + self.large + NEAR);
        match place {
            _ if place < SMALL => place,
            _ if place < large => SPACE_LARGE << SPACE_SHIFT | (place - SMALL),
            _ if place < near => SPACE_NEAR << SPACE_SHIFT | (place - large),
            _ => SPACE_BULK << SPACE_SHIFT | (place - near),
        }
    }

    /// Length of the table before any bulk load.
    pub(crate) fn places(&self) -> usize {
        (SMALL + self.large + NEAR) as usize
    }
}

/// Returns random sizes for a device or a directory: half of the time those that follow from the memory, otherwise
/// small ones, so that the base has many segments, which merges replace in groups. Each opening has its own.
pub(crate) fn sizes(options: &StrataOptions, rng: &mut Rng, (mem_records, segment_records): (usize, u64)) -> Sizes {
    let own = Sizes::of(options);
    if rng.below(2) == 0 {
        return own;
    }
    let wal_bytes = if rng.below(2) == 0 { 64 << 10 } else { own.wal_bytes };
    Sizes { mem_records: mem_records << rng.below(3), segment_records: segment_records << rng.below(4), wal_bytes }
}

/// Returns the value that a stamp determines. Some values are all zeros, which must not count as absence.
pub(crate) fn value(stamp: u64) -> Value {
    let mut value = [0; 32];
    if !stamp.is_multiple_of(61) {
        fill(&mut value, stamp);
    }
    value
}

fn fill(bytes: &mut [u8], seed: u64) {
    let mut rng = Rng(seed);
    bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&rng.next().to_be_bytes()));
}
