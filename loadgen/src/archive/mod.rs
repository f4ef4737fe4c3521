//! Snapshot archives of Solana, as a validator writes them: `loadgen archive`.
//!
//! ```text
//! chain --blocks--> story --file of accounts--> writer: tar, hash, packing --> tmp-... --> snapshot-SLOT-HASH.tar.zst
//! ```
//! Owns: the run from options to whole archives with their digests. Must not: know the programs that load them. Runs on
//! one thread. Memory: 4 bytes for each known key, one file of accounts (12 MiB at most), some 100 bytes for each such
//! file, 16 bytes for each update of the blocks since the full archive, and some 20 bytes for each account that these
//! touch.
//!
//! Every file of accounts is made twice where the manifest, which comes before the files, lists their lengths.
//!
//! The archives of a workload tell the story of `loadgen stream` with the same options. Load a map from the full
//! archive and then from an incremental one, and let it follow the stream from the archive's slot to the end: it then
//! has the digest that the stream states.

mod manifest;
mod oddity;
mod options;
mod others;
mod pack;
mod page;
mod progress;
pub mod records;
mod story;
pub mod tar;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

pub use oddity::Oddity;
pub use options::{ArchiveArgs, Like, Plan, options};
pub use pack::Packing;
pub use page::Counts;
use program::say;
pub use story::At;
pub use writer::{ArchiveWriter, Written};

use crate::commands::stop_flag;
use crate::stream::Keys;
use crate::stream::chain::{Block, Chain};
use progress::Progress;
use story::Story;

/// Text after the options in `loadgen archive --help`.
pub const EXAMPLES: &str = "\
Writes DIR/snapshot-SLOT-HASH.tar.zst, and DIR/incremental-snapshot-BASE-SLOT-HASH.tar.zst for each of \
--incremental-slots, byte by byte as agave writes them. They hold the accounts of `loadgen stream` with the same options \
at their slots: load one, follow the stream from its slot, and the map has the digest that the stream states at its end. \
An incremental archive has every change since the full one: load the full one and the newest incremental one.

Some of the accounts are there to mislead a careless reader, see --without. They leave no pair in the map that --extract \
names.

Prints a line for each archive when it is whole: `full slot=… blocks=… files=… records=… digest=PAIRS:HEX file=…`, and \
`incremental base=… slot=…` with the digest of both together. `solkv-bootstrap info --digest` must print the same \
digest for the map. The name of an unfinished archive begins with `tmp-`; Ctrl-C removes it.

A stream begins at the slot of a full archive without --slots-after. For later archives start it with --no-wait and \
enough --replay-slots, so that it has their slots when it is asked for them.

Examples:
  solkv-loadgen archive --out /data/archives --pairs 2000000 --seed 1 --extract token-owner
  solkv-loadgen stream --pairs 2000000 --seed 1 --extract token-owner
  solkv-loadgen archive --out /data/archives --pairs 20000000 --slots-after 50 --incremental-slots 50,50
  solkv-loadgen stream --pairs 20000000 --no-wait --replay-slots 100000 --rate 20000
  solkv-loadgen archive --out /data/archives --pairs 5000 --pack lz4 --without large,padding";

/// An archive that is whole and on the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Archived {
    /// Slot of the full archive, for an incremental one.
    pub base: Option<u64>,
    /// Slot whose state the archive holds.
    pub slot: u64,
    /// Blocks of the stream up to the slot.
    pub blocks: u64,
    /// Path under which the archive lies.
    pub file: PathBuf,
    /// Bytes of the tar before packing.
    pub unpacked_bytes: u64,
    /// Bytes of the archive as a file.
    pub packed_bytes: u64,
    /// Digest of the map at the slot, as `PAIRS:HEX`: that of an incremental archive counts the full one in.
    pub digest: String,
    /// Numbers of its files and records.
    #[serde(flatten)]
    pub counts: Counts,
}

/// A step of the writing.
pub enum Step<'a> {
    /// Before each file of accounts. If an error ends the writing here, the archive that is not whole is removed.
    At(At),
    /// After an archive has got its name. If an error ends the writing here, the archive stays.
    Whole(&'a Archived),
}

/// A caller that follows the writing, and may stop it: any error ends the writing.
pub type Watch<'a> = dyn FnMut(Step<'_>) -> Result<()> + 'a;

/// Runs `loadgen archive`.
///
/// # Errors
/// Those of [`write()`], a signal, and I/O errors of the report.
pub fn run(args: &ArchiveArgs) -> Result<()> {
    let (stop, mut progress) = (stop_flag()?, Progress::new());
    let archives = write(&args.plan, &args.out, &mut |step| {
        match step {
            Step::At(at) => {
                // ORDERING: Relaxed: the flag carries no other data.
                let stopped = stop.load(Ordering::Relaxed);
                ensure!(
                    !stopped,
                    "stopped by a signal: slot={}: nothing is left of this archive; start again",
                    at.slot
                );
                progress.show(at);
            }
            Step::Whole(archive) => show(archive),
        }
        Ok(())
    })?;
    let Some(path) = &args.report else { return Ok(()) };
    let report = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"), "options": args.plan, "archives": archives,
    });
    let text = serde_json::to_string_pretty(&report)?;
    std::fs::write(path, text).with_context(|| format!("cannot write report: file={}", path.display()))
}

/// Writes the archives of a plan into the directory `dir`: the full one, then the incremental ones.
///
/// # Errors
/// Options that [`Plan::check`] refuses, a stream that ends before the archive's slot, I/O errors with the file's name,
/// and the errors of `watch`. Archives that were whole before stay.
pub fn write(plan: &Plan, dir: &Path, watch: &mut Watch<'_>) -> Result<Vec<Archived>> {
    plan.check()?;
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make directory: dir={}", dir.display()))?;
    let keys = Arc::new(Keys::load(&plan.workload)?);
    let mut chain = Chain::new(plan.workload.clone(), Arc::clone(&keys));
    let mut archives: Vec<Archived> = Vec::new();
    let mut base_files = Vec::new();
    let mut blocks = Vec::new();
    let mut made = 0;
    for (number, more) in std::iter::once(&plan.slots_after).chain(&plan.incremental_slots).enumerate() {
        for _ in 0..*more {
            blocks.push(next_block(&mut chain, made)?);
            made += 1;
        }
        let base = archives.first().map(|full| full.slot);
        let slot = blocks.last().map_or(plan.workload.start_slot - 1, |block| block.slot);
        let form = (plan.like, plan.oddities());
        let story = Story::new(&plan.workload, &keys, form, number as u64, (base, slot), &blocks);
        let mut writer = ArchiveWriter::create(dir, base, slot, plan.pack, plan.like == Like::Firedancer)?;
        let mut files = match plan.like {
            Like::Agave => story.list(&mut |at| watch(Step::At(at)))?,
            Like::AgaveUnlisted | Like::Firedancer => Vec::new(),
        };
        // A bank has the files of its base too, although an incremental archive lacks them.
        files.extend_from_slice(&base_files);
        let counts = story.write(&mut writer, &files, &mut |at| watch(Step::At(at)))?;
        drop(story);
        let Written { path: file, unpacked_bytes, packed_bytes, .. } = writer.finish()?;
        let digest = chain.digest().to_string();
        let archive = Archived { base, slot, blocks: made, file, unpacked_bytes, packed_bytes, digest, counts };
        watch(Step::Whole(&archive))?;
        archives.push(archive);
        // An incremental archive has every change since the full one, which has all that came before.
        if base.is_none() {
            blocks.clear();
            base_files = files;
        }
    }
    Ok(archives)
}

fn next_block(chain: &mut Chain, made: u64) -> Result<Arc<Block>> {
    let events = chain.events();
    chain.next_sealed().with_context(|| {
        format!(
            "the stream ends before the archive's slot: blocks={made} events={events}: give more --events, or smaller \
             --slots-after and --incremental-slots"
        )
    })
}

/// Prints the line of an archive that is whole.
fn show(archive: &Archived) {
    let kind = archive.base.map_or_else(|| "full".to_owned(), |base| format!("incremental base={base}"));
    let Archived { slot, blocks, digest, counts, .. } = archive;
    let (files, records, file) = (counts.files, counts.records, archive.file.display());
    say!("{kind} slot={slot} blocks={blocks} files={files} records={records} digest={digest} file={file}");
}
