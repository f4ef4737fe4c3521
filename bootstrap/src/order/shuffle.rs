//! The shuffle: records go to buckets by a seeded hash of their key, then each bucket is deduplicated and shuffled
//! in memory. Buckets fill evenly whatever the keys are, because the hash, not the key, chooses.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use workload::Rng;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Chunker, Each, OnDuplicate, decode, encode};
use crate::limits::{BUCKET_BUFFER_BYTES, BUCKET_BYTES_MAX, BUCKETS, RECORD_BYTES};
use crate::source::Record;

pub(super) fn spill(dir: &Path, seed: u64, each: &mut Each<'_>) -> Result<()> {
    let mut buckets = Vec::with_capacity(BUCKETS);
    for bucket in 0..BUCKETS {
        let path = path(dir, bucket);
        let file = File::create(&path).with_context(|| format!("cannot create file={}", path.display()))?;
        buckets.push(BufWriter::with_capacity(BUCKET_BUFFER_BYTES, file));
    }
    each(&mut |record| {
        let bucket = (xxh3_64_with_seed(&record.1, seed) % BUCKETS as u64) as usize;
        buckets[bucket].write_all(&encode(&record)).with_context(|| format!("cannot write to dir={}", dir.display()))
    })?;
    for bucket in buckets {
        let file = bucket.into_inner().map_err(|e| e.into_error());
        file.and_then(|file| file.sync_data()).with_context(|| format!("cannot write to dir={}", dir.display()))?;
    }
    Ok(())
}

pub(super) fn for_each(dir: &Path, seed: u64, rule: OnDuplicate, chunker: &mut Chunker<'_>) -> Result<()> {
    for bucket in 0..BUCKETS {
        let mut records = unique(load(&path(dir, bucket))?, rule, chunker)?;
        // Fisher-Yates, from a generator of the seed and the bucket: the same order on every run.
        let mut rng = Rng::new(seed ^ (bucket as u64) << 32);
        for last in (1..records.len()).rev() {
            records.swap(last, rng.below(last as u64 + 1) as usize);
        }
        for (_, key, value) in records {
            if !chunker.push(key, value)? {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn path(dir: &Path, bucket: usize) -> PathBuf {
    dir.join(format!("bucket-{bucket:03}"))
}

fn load(path: &Path) -> Result<Vec<Record>> {
    let bytes = fs::metadata(path).with_context(|| format!("cannot open file={}", path.display()))?.len();
    ensure!(
        bytes <= BUCKET_BYTES_MAX as u64,
        "too many pairs to shuffle within the memory bound: bucket_bytes={bytes} max={BUCKET_BYTES_MAX}; use --order sorted"
    );
    let bytes = fs::read(path).with_context(|| format!("cannot read file={}", path.display()))?;
    let (records, rest) = bytes.as_chunks::<RECORD_BYTES>();
    ensure!(rest.is_empty(), "spill file is damaged, remove the work directory: file={}", path.display());
    Ok(records.iter().map(decode).collect())
}

/// One record a key: the last in source order.
fn unique(mut records: Vec<Record>, rule: OnDuplicate, chunker: &mut Chunker<'_>) -> Result<Vec<Record>> {
    records.sort_unstable_by_key(|record| (record.1, record.0));
    let mut kept: Vec<Record> = Vec::with_capacity(records.len());
    for record in records {
        match kept.last_mut() {
            Some(last) if last.1 == record.1 => {
                chunker.duplicate(last, &record, rule)?;
                *last = record;
            }
            _ => kept.push(record),
        }
    }
    Ok(kept)
}
