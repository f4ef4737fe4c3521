//! `bootstrap verify`: compares a store with a source, which must have the same pairs and no others.
//!
//! Owns: the two methods of comparing, and the printed result. Must not: write to the store, or hold either map in
//! memory. Threads: main reads the source; `store` scans the store.
//!
//! First both are read once and their digests compared, which needs no disk. If the digests differ, or a key may come
//! more than once, the source is sorted next to the store and merged with a scan. The merge finds each key that
//! differs. A key that comes more than once in the source must have its last value in the store.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use bytesize::ByteSize;
use engine_api::{Checkpoint, Engine};
use engines::{Digest, EngineKind};
use solana::{ChainCheckpoint, Extract};

use crate::meaning::extraction;
use crate::order::{WorkDir, spilled_records};
use crate::out::{say, tell};
use crate::paths;
use crate::progress::Progress;
use crate::running::warn_of_part;
use crate::scan::{digest_until, open_to_scan};
use crate::seen::Seen;
use crate::served;
use crate::side_by_side::SideBySide;
use crate::sides::Counts;
use crate::signal::Stop;
use crate::source::{Source, SourceArgs};
use crate::state::State;
use crate::undo::Undo;

/// Compares a store with a source
///
/// Both are read once if they are equal and no key occurs more than once. Otherwise the source is sorted, on disk with
/// 73 bytes a pair if it does not fit into memory, and the first ten keys that differ are named.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct VerifyArgs {
    /// Directory of the store; nothing in it is changed
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Engine that the store must have [default: the engine in its marker]
    #[arg(long, value_enum, value_name = "ENGINE")]
    pub(crate) engine: Option<EngineKind>,
    /// Memory of the engine [default: an eighth of the memory that this process may use]
    #[arg(long, value_name = "BYTES", value_parser = engines::size)]
    pub(crate) memory: Option<ByteSize>,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Meaning of the values that are taken from a snapshot archive [default: that of the store's values]
    #[arg(long, value_name = "EXTRACT", requires = "input", value_parser = extraction())]
    pub(crate) extract: Option<Extract>,
    /// Directory in which the source is sorted if necessary [default: DIR.verify]
    #[arg(long, value_name = "DIR")]
    pub(crate) work_dir: Option<PathBuf>,
    /// Sort even where the disk looks too small
    #[arg(long)]
    pub(crate) skip_disk_check: bool,
}

/// Pairs between two updates of the progress, and two checks for a signal.
const LOOK_EVERY_PAIRS: u64 = 1 << 16;
/// Time between two updates of the progress while the other thread works alone.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Verifies the store. The exit code is 0 when it holds exactly the source's pairs, 1 when not, and 128 + signal when
/// it was asked to stop.
pub(crate) fn run(args: &VerifyArgs) -> Result<u8> {
    let stop = Stop::install()?;
    let source = Source::new(&args.source, extract(args)?, &Seen::default())?;
    let records = source.count_hint()?;
    source.check_records_before(&args.source)?;
    let work = paths::work_dir(&args.dir, args.work_dir.as_deref(), ".verify", &args.source)?;
    if served::ask(&args.dir)?.is_some() {
        let way_out = "compare it with a snapshot archive by `service audit`, which does not stop it, or verify a snapshot \
                       of the store";
        return Err(served::refusal(&args.dir, way_out));
    }
    let engine = open_to_scan(&args.dir, args.engine, args.memory)?;
    warn_of_part(&args.dir)?;
    let kept_in = work.path.clone();
    let verify = Verify { args, source: &source, records, work, engine: &*engine, stop: &stop };
    let outcome = verify.run();
    if let Some(code) = stop.asked() {
        let kept = spilled_records(&kept_in);
        tell!("stopped; the store was not changed, and the same command {}", next_start(kept.is_some()));
        return Ok(code);
    }
    let code = outcome?;
    engine.close()?;
    Ok(code)
}

/// Says how the next comparison with the same source begins, after this one was stopped.
pub(crate) fn next_start(is_kept: bool) -> &'static str {
    if is_kept { "goes on with the sorted part of the source" } else { "begins again" }
}

/// Returns the asked extraction, or that of the store.
fn extract(args: &VerifyArgs) -> Result<Option<Extract>> {
    if args.extract.is_some() {
        return Ok(args.extract);
    }
    let known = engines::inspect(&args.dir)?.and_then(|known| known.holds.extract);
    known.map(|name| Ok(name.parse()?)).transpose()
}

/// Evidence that the store has followed a stream since it was loaded.
struct Followed {
    loaded_pairs: u64,
    checkpoint: Checkpoint,
}

struct Verify<'a> {
    args: &'a VerifyArgs,
    source: &'a Source,
    /// Number of records in the source, if it is known before reading.
    records: Option<u64>,
    /// Directory in which the source is sorted, if that is necessary.
    work: WorkDir,
    engine: &'a dyn Engine,
    stop: &'a Stop,
}

impl Verify<'_> {
    fn run(&self) -> Result<u8> {
        let followed = self.followed()?;
        self.warn_of_slot()?;
        // Compare digests only if the source can be read twice and may be equal. Otherwise sort it right away. An
        // archive is always sorted, because only then is the newest version of each account known.
        if followed.is_none() && !self.source.is_read_once() && !self.source.has_versions() {
            let (given, held) = self.digests()?;
            self.args.source.check_records(given.pairs())?;
            if given == held {
                let pairs = held.pairs();
                say!("equal: records={pairs} stored_pairs={pairs}");
                return Ok(0);
            }
        }
        let (records, counts) = self.side_by_side()?;
        self.args.source.check_records(records)?;
        let Counts { pairs, other_pairs, only_here, only_there, different } = counts;
        if counts.unequal() == 0 {
            say!("equal: records={records} stored_pairs={other_pairs}");
            return Ok(0);
        }
        say!(
            "not equal: records={records} expected_pairs={pairs} stored_pairs={other_pairs} different={different} \
             missing={only_here} only_in_store={only_there}"
        );
        if let Some(hint) = counts.hint() {
            say!("{hint}");
        }
        if let Some(Followed { loaded_pairs, checkpoint }) = followed {
            let shown = solana::shown(&checkpoint);
            say!(
                "the store has followed a stream since its load: loaded_pairs={loaded_pairs} {shown}. \
                 Against this source {different} keys changed, {only_there} were added and {only_here} were removed. \
                 Only a source of that slot can be equal."
            );
            if self.source.has_versions() {
                say!(
                    "`{} audit --dir {} --archive ARCHIVE` takes back the changes since the archive's slot, and \
                     compares such a store",
                    program::called("service"),
                    self.args.dir.display()
                );
            }
        }
        Ok(1)
    }

    /// Warns, before the source is read, if it is of another slot than the store. Both slots have to be known.
    fn warn_of_slot(&self) -> Result<()> {
        let stored = ChainCheckpoint::read(&self.engine.checkpoint()?).ok().and_then(|checkpoint| checkpoint.slot);
        if let Some((store, source)) = stored.zip(self.source.slot()).filter(|(store, source)| store != source) {
            let lacks_incremental = store > source && self.args.source.incremental.is_none();
            tell!(
                "the store is at slot={store}, the source at slot={source}: only a source of that slot of the store can be \
                 equal{}",
                if lacks_incremental { "; was the store loaded with --incremental?" } else { "" }
            );
        }
        Ok(())
    }

    /// Tells whether the store has changed since its load. A load ends with `seq` equal to its number of pairs, and
    /// later commits have greater numbers.
    fn followed(&self) -> Result<Option<Followed>> {
        let loaded = State::read_or_tell(&self.args.dir).and_then(|state| state.pairs);
        let checkpoint = self.engine.checkpoint()?;
        let followed = loaded.filter(|loaded_pairs| checkpoint.seq > *loaded_pairs);
        Ok(followed.map(|loaded_pairs| Followed { loaded_pairs, checkpoint }))
    }

    /// Reads the source and the store at the same time, and returns the digests of both.
    fn digests(&self) -> Result<(Digest, Digest)> {
        let scanned = AtomicU64::new(0);
        // Each pair is read in the source and in the store, and counts as half a pair each time.
        let half = |given: u64, held: u64| (given / 2).saturating_add(held / 2);
        let total = self.records.map(|records| self.stored().map(|stored| half(records, stored))).transpose()?;
        let mut progress = Progress::new(total, "reading source and store");
        let both = thread::scope(|scope| {
            let scanning = thread::Builder::new()
                .name("store".to_owned())
                // ORDERING: Relaxed: the value is only shown as progress.
                .spawn_scoped(scope, || {
                    digest_until(self.engine, self.stop, &|pairs| scanned.store(pairs, Ordering::Relaxed))
                })
                .context("cannot start the thread of the scan")?;
            let mut given = Digest::default();
            let read = self.source.for_each(&mut |record| {
                given.add(&record.1, &record.2);
                if given.pairs().is_multiple_of(LOOK_EVERY_PAIRS) {
                    // ORDERING: Relaxed: the value is only shown as progress.
                    progress.set(half(given.pairs(), scanned.load(Ordering::Relaxed)));
                    self.stop.look()?;
                }
                Ok(())
            });
            while read.is_ok() && !scanning.is_finished() {
                thread::sleep(LOOK_EVERY);
                progress.set(half(given.pairs(), scanned.load(Ordering::Relaxed)));
            }
            let held = scanning.join().map_err(|_| anyhow!("the scan has panicked: this is a bug"))?;
            read?;
            anyhow::Ok((given, held?.context("stopped")?))
        });
        progress.clear();
        both
    }

    /// Sorts the source and merges it with a scan of the store. Returns the number of the source's records, and the
    /// differences.
    fn side_by_side(&self) -> Result<(u64, Counts)> {
        let sides = SideBySide {
            source: self.source,
            seed: self.args.source.seed,
            records: self.records,
            engine: self.engine,
            dir: &self.args.dir,
            memory: self.args.memory,
            undo: &Undo::nothing(),
            work: &self.work,
            skip_disk_check: self.args.skip_disk_check,
            stop: self.stop,
        };
        let compared = sides.compare(&mut |line| say!("{line}"))?;
        Ok((compared.records, compared.counts))
    }

    /// Returns the number of pairs in the store; for RocksDB it is an estimate.
    fn stored(&self) -> Result<u64> {
        Ok(self.engine.stats()?.pairs_estimate)
    }
}
