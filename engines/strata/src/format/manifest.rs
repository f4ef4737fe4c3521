//! The manifest: the segments of each run, the WAL file where replay starts, and the checkpoint that the runs stand
//! for.
//!
//! Owns: its bytes (FORMAT.md, "Manifest"). The file is replaced as a whole: after a crash the old or the new one is
//! there.

use std::collections::BTreeSet;

use engine_api::{Checkpoint, Error, ErrorKind, Key, Result};

use crate::file::{read_whole, replace, shown};
use crate::format::NUMBER_MAX;
use crate::format::footer::SegmentInfo;
use crate::format::secret::{SALT_BYTES, SEED_BYTES, Seed, WalKey};
use crate::storage::Storage;

/// The way out for files of another version.
pub(crate) const OTHER_VERSION: &str =
    "load the store anew, or copy it with the program that wrote it to another engine, and back with this one";
/// Name of the manifest file.
pub(crate) const NAME: &str = "MANIFEST";
const MAGIC: [u8; 8] = *b"stratamf";
/// Format version that is written, and the only one that is read. No older version was ever released.
const VERSION: u32 = 6;
const SEGMENT_BYTES: usize = 24 + 64;

/// Decoded content of a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// Seed of the hash of keys. It never changes, because the filters on the device are made with it.
    pub(crate) seed: Seed,
    /// Key that the salts of the WAL files are made with.
    pub(crate) wal_key: WalKey,
    /// Number for the next new file. A number is never given twice.
    pub(crate) next_id: u64,
    /// WAL files with a lower number are already in the runs.
    pub(crate) wal_floor: u64,
    /// Number of the last batch that is in the runs.
    pub(crate) batch: u64,
    /// Checkpoint of the state that the runs hold.
    pub(crate) checkpoint: Checkpoint,
    /// Segments of each run: deltas, newest first, then the base, which may be empty.
    pub(crate) runs: Vec<Vec<SegmentInfo>>,
    /// Where the merge into the base continues.
    pub(crate) merge_at: Key,
    /// For each run but the last one, where the merge into the base was when it began with the run.
    pub(crate) joined_at: Vec<Key>,
}

impl Manifest {
    /// Reads the store's manifest; `None` if there is no such file.
    pub(crate) fn read(storage: &dyn Storage) -> Result<Option<Self>> {
        let Some(bytes) = read_whole(storage, NAME)? else { return Ok(None) };
        let wrong =
            |e: Error| Error::new(e.kind(), format!("manifest cannot be used: file={} {e}", shown(storage, NAME)));
        Self::decode(&bytes).map(Some).map_err(wrong)
    }

    /// Replaces the store's manifest durably.
    pub(crate) fn write(&self, storage: &dyn Storage) -> Result<()> {
        replace(storage, NAME, &self.encode()?)
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let mut out = vec![0; 4];
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.seed.to_bytes());
        out.extend_from_slice(&(self.seed.prefix_bytes() as u32).to_le_bytes());
        out.extend_from_slice(&self.wal_key.to_bytes());
        for word in [self.next_id, self.wal_floor, self.batch] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.checkpoint.encode()?);
        out.extend_from_slice(&(self.runs.len() as u64).to_le_bytes());
        for run in &self.runs {
            out.extend_from_slice(&(run.len() as u64).to_le_bytes());
            for segment in run {
                for word in [segment.id, segment.records, segment.tombstones] {
                    out.extend_from_slice(&word.to_le_bytes());
                }
                out.extend_from_slice(&segment.first);
                out.extend_from_slice(&segment.last);
            }
        }
        out.extend_from_slice(&self.merge_at);
        out.extend_from_slice(self.joined_at.as_flattened());
        let crc = crc32c::crc32c(&out[4..]);
        out[..4].copy_from_slice(&crc.to_le_bytes());
        Ok(out)
    }

    /// Decodes arbitrary bytes into a manifest or an error.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut input = Input(bytes);
        let crc = u32::from_le_bytes(input.take()?);
        if crc != crc32c::crc32c(input.0) {
            return Err(damaged("wrong checksum"));
        }
        let version = u32::from_le_bytes(input.take()?);
        if input.take::<8>()? != MAGIC {
            return Err(damaged("not a manifest"));
        }
        if version != VERSION {
            return Err(Error::new(
                ErrorKind::FixInput,
                format!("written by another strata: version={version} known={VERSION}"),
            )
            .with_way_out(OTHER_VERSION));
        }
        let (seed, prefix_bytes) = (input.take::<SEED_BYTES>()?, u32::from_le_bytes(input.take()?));
        let seed = Seed::from_bytes(&seed, prefix_bytes)
            .ok_or_else(|| damaged("filters of a part of a key that no store has"))?;
        let wal_key = WalKey::from_bytes(&input.take::<SALT_BYTES>()?);
        let (next_id, wal_floor, batch) = (input.word()?, input.word()?, input.word()?);
        if next_id.max(batch) > NUMBER_MAX {
            return Err(damaged("a number that no store comes to"));
        }
        let checkpoint;
        (checkpoint, input.0) = Checkpoint::decode_first(input.0)?;
        let mut runs = Vec::new();
        for _ in 0..input.count(8)? {
            let mut run: Vec<SegmentInfo> = Vec::new();
            for _ in 0..input.count(SEGMENT_BYTES)? {
                let (id, records, tombstones) = (input.word()?, input.word()?, input.word()?);
                let (first, last): (Key, Key) = (input.take()?, input.take()?);
                let after = run.last().is_none_or(|before| before.last < first);
                if first > last || !after || id >= next_id || records == 0 || tombstones > records {
                    return Err(damaged("segments out of order"));
                }
                run.push(SegmentInfo { id, records, tombstones, first, last });
            }
            runs.push(run);
        }
        let merge_at: Key = input.take()?;
        // The last run is the base, so there is one delta fewer than runs.
        let joined_at = (1..runs.len()).map(|_| input.take()).collect::<Result<Vec<Key>>>()?;
        if runs.is_empty() || !input.0.is_empty() {
            return Err(damaged("wrong length"));
        }
        // A step of the merge begins where the one before has ended, which is never within a segment.
        let is_within = |base: &Vec<SegmentInfo>| base.iter().any(|one| one.first < merge_at && merge_at <= one.last);
        if runs.last().is_some_and(is_within) {
            return Err(damaged("a merge that continues within a segment of the base"));
        }
        let mut ids = BTreeSet::new();
        if !runs.iter().flatten().all(|segment| ids.insert(segment.id)) {
            return Err(damaged("a segment is named twice"));
        }
        let tombstones = runs.last().into_iter().flatten().any(|segment| segment.tombstones > 0);
        if tombstones || wal_floor > next_id {
            return Err(damaged("a base with tombstones, or a WAL floor beyond every file"));
        }
        Ok(Self { seed, wal_key, next_id, wal_floor, batch, checkpoint, runs, merge_at, joined_at })
    }
}

fn damaged(why: &str) -> Error {
    Error::new(ErrorKind::DataDamaged, why.to_owned())
}

/// A cursor that takes bytes from the front of a slice.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk().ok_or_else(|| damaged("too short"))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn word(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    /// Reads a number of items of at least `bytes` each. A number larger than the rest could hold is damage.
    fn count(&mut self, bytes: usize) -> Result<u64> {
        let count = self.word()?;
        if count > (self.0.len() / bytes) as u64 {
            return Err(damaged("a count beyond the end"));
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Manifest {
        let segment = |id: u64, n: u8| SegmentInfo { id, records: 5, tombstones: 1, first: [n; 32], last: [n + 1; 32] };
        Manifest {
            seed: Seed::fixed(),
            wal_key: WalKey::from_bytes(&[7; SALT_BYTES]),
            next_id: 9,
            wal_floor: 4,
            batch: 17,
            checkpoint: Checkpoint::new(3, &[8; 100]),
            runs: vec![vec![segment(1, 1)], vec![segment(2, 1), segment(3, 7)], vec![]],
            merge_at: [5; 32],
            joined_at: vec![[5; 32], [2; 32]],
        }
    }

    #[test]
    fn what_is_encoded_is_decoded_and_a_flipped_bit_is_not() {
        let bytes = sample().encode().expect("short enough");
        assert_eq!(Manifest::decode(&bytes).expect("whole"), sample());
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(&flipped).is_err());
        }
    }

    #[test]
    fn an_older_and_a_newer_version_are_named() {
        for version in [5, 7] {
            let mut bytes = sample().encode().expect("short enough");
            bytes[4] = version;
            let crc = crc32c::crc32c(&bytes[4..]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
            let error = Manifest::decode(&bytes).expect_err("another version");
            assert_eq!(error.kind(), ErrorKind::FixInput);
            assert!(error.to_string().contains(&format!("version={version}")), "{error}");
        }
    }

    #[test]
    fn what_cannot_be_true_of_any_store_is_refused_behind_a_right_checksum() {
        type Change = fn(&mut Manifest);
        let changes: [(&str, Change); 11] = [
            ("a number twice", |manifest| manifest.runs[0][0].id = 3),
            ("a number that was not given", |manifest| manifest.runs[0][0].id = 9),
            ("no records", |manifest| manifest.runs[0][0].records = 0),
            ("too many tombstones", |manifest| manifest.runs[0][0].tombstones = 6),
            ("ranges that overlap", |manifest| manifest.runs[1][0].last = [7; 32]),
            ("tombstones in the base", |manifest| drop(manifest.runs.pop())),
            ("a floor beyond every file", |manifest| manifest.wal_floor = 10),
            ("a run without its beginning", |manifest| manifest.joined_at.truncate(1)),
            ("a merge within a segment", |manifest| {
                manifest.runs = vec![vec![SegmentInfo { tombstones: 0, ..manifest.runs[0][0] }]];
                manifest.joined_at.clear();
                manifest.merge_at = [2; 32];
            }),
            ("a file's number at the end of all", |manifest| manifest.next_id = u64::MAX),
            ("a batch at the end of all", |manifest| manifest.batch = u64::MAX - 1),
        ];
        for (what, change) in changes {
            let mut manifest = sample();
            change(&mut manifest);
            let error = Manifest::decode(&manifest.encode().expect("short enough")).expect_err(what);
            assert_eq!(error.kind(), ErrorKind::DataDamaged, "{what}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_manifest_or_an_error(mut bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Manifest::decode(&bytes);
            if bytes.len() > 4 {
                // Again with a right checksum, so that decoding gets past it.
                let crc = crc32c::crc32c(&bytes[4..]);
                bytes[..4].copy_from_slice(&crc.to_le_bytes());
                let _ = Manifest::decode(&bytes);
            }
        }
    }
}
