//! Writes the pairs of a load into the engine, in batches that each carry a checkpoint, so that it can stop anywhere.
//!
//! Owns: the loop, the sizes of batches, and which of them are flushed. Gives the spill back up to the position that
//! the store holds durably, and no further. Must not: finish a store that lacks pairs. Runs on the main thread; the
//! thread `digest` counts the pairs of a sorted chunk while the engine takes it.

use std::collections::VecDeque;
use std::thread;

use anyhow::{Context as _, Result, anyhow, ensure};
use engine_api::{Durability, Engine as _, Key, Value};
use engine_latency::Measured;
use engines::Digest;
use solana::{ChainCheckpoint, MapPhase};

use crate::args::LoadArgs;
use crate::limits::BATCH_PAIRS;
use crate::order::{Chunk, Mark, Ordered, Tally};
use crate::progress::Progress;
use crate::rank::Order;
use crate::sample::Sampler;
use crate::setup::Setup;
use crate::signal::Stop;

/// One commit in this many is synced, and the others are buffered. This bounds the work that a load repeats after an OS
/// crash.
const SYNC_EVERY_COMMITS: u64 = 100;

/// The state of a load that writes its pairs into the engine.
pub(crate) struct Fill<'a> {
    args: &'a LoadArgs,
    setup: &'a Setup,
    engine: &'a Measured,
    ordered: &'a Ordered,
    checkpoint: ChainCheckpoint,
    /// Digest of all loaded pairs. `None` when an earlier run has loaded a part of them.
    pub(crate) digest: Option<Digest>,
    commits: u64,
    /// Positions up to which the spill is given back once the store holds their pairs durably, in ascending order.
    marks: VecDeque<Mark>,
    progress: Progress,
    pub(crate) sampler: Sampler<'a>,
    stop: &'a Stop,
}

impl<'a> Fill<'a> {
    /// Continues where the store stands, at the checkpoint `begun`.
    pub(crate) fn new(
        args: &'a LoadArgs,
        setup: &'a Setup,
        engine: &'a Measured,
        ordered: &'a Ordered,
        begun: ChainCheckpoint,
        stop: &'a Stop,
    ) -> Self {
        let every = args.sample_every.unwrap_or((ordered.records / 200).max(10_000));
        let progress = Progress::new(Some(ordered.records), setup.options.label()).seen_by(&args.seen);
        progress.start_at(begun.seq);
        Self {
            args,
            setup,
            engine,
            ordered,
            checkpoint: ChainCheckpoint { source: ordered.source_id, slot: None, phase: MapPhase::Loading, ..begun },
            // Pairs loaded by an earlier run are not read again, so there is no digest after a resume.
            digest: (begun.seq == 0).then(Digest::default),
            commits: 0,
            marks: VecDeque::new(),
            progress,
            sampler: Sampler::new(engine, &args.dir, every, begun.seq),
            stop,
        }
    }

    /// Writes all pairs that the store does not hold yet, until the load is asked to stop.
    ///
    /// # Errors
    /// Errors of the engine, with the way out; errors of reading the spill or giving it back, naming the file.
    pub(crate) fn pairs(&mut self) -> Result<Tally> {
        if self.setup.order == Order::Sorted { self.chunks() } else { self.batches() }
    }

    fn batches(&mut self) -> Result<Tally> {
        let batch_pairs = self.args.batch.unwrap_or(BATCH_PAIRS).min(self.setup.buffers.batch_pairs);
        let mut batch: Vec<(Key, Value)> = Vec::new();
        let (ordered, skip) = (self.ordered, self.checkpoint.seq);
        let tally = ordered.for_each(skip, self.args.on_duplicate, &mut |chunk| {
            self.marks.extend(chunk.mark.clone());
            self.expect(chunk);
            for pair in &chunk.pairs {
                batch.push(*pair);
                if batch.len() as u64 == batch_pairs {
                    self.commit(&batch)?;
                    batch.clear();
                }
            }
            Ok(self.stop.asked().is_none())
        })?;
        if !batch.is_empty() && self.stop.asked().is_none() {
            self.commit(&batch)?;
        }
        Ok(tally)
    }

    fn chunks(&mut self) -> Result<Tally> {
        let (ordered, skip) = (self.ordered, self.checkpoint.seq);
        ordered.for_each(skip, self.args.on_duplicate, &mut |chunk| {
            if self.stop.asked().is_some() {
                return Ok(false);
            }
            self.marks.extend(chunk.mark.clone());
            self.expect(chunk);
            if !chunk.pairs.is_empty() {
                self.chunk(&chunk.pairs)?;
            }
            Ok(self.stop.asked().is_none())
        })
    }

    /// Sets the number of pairs that the progress counts to. Several records of a key make one pair, so the share of
    /// such records up to here is taken for that of all.
    fn expect(&mut self, chunk: &Chunk) {
        let Tally { pairs, .. } = chunk.tally;
        let expected = u128::from(pairs) * u128::from(self.ordered.records) / u128::from(chunk.tally.records().max(1));
        self.progress.expect(expected as u64);
    }

    fn chunk(&mut self, pairs: &[(Key, Value)]) -> Result<()> {
        let mut checkpoint = self.checkpoint;
        checkpoint.seq += pairs.len() as u64;
        // The thread `digest` adds the pairs to the digest while the engine waits for the device.
        let digest = thread::scope(|scope| {
            let begin = |mut digest: Digest| {
                thread::Builder::new().name("digest".to_owned()).spawn_scoped(scope, move || {
                    pairs.iter().for_each(|(key, value)| digest.add(key, value));
                    digest
                })
            };
            let adding = self.digest.map(begin).transpose().context("cannot start the thread of the digest")?;
            self.engine.load_sorted(pairs, &checkpoint.write()).with_context(|| self.failed())?;
            adding.map(|adding| adding.join().map_err(|_| anyhow!("the thread of the digest panicked"))).transpose()
        });
        self.digest = digest?;
        self.reached(checkpoint)?;
        // The engine's bulk path flushes each chunk.
        self.give_back()
    }

    fn commit(&mut self, batch: &[(Key, Value)]) -> Result<()> {
        let mut checkpoint = self.checkpoint;
        checkpoint.seq += batch.len() as u64;
        self.commits += 1;
        // Flush at each mark too, because only then may the spill be given back.
        let synced = self.args.synced
            || self.commits.is_multiple_of(SYNC_EVERY_COMMITS)
            || self.marks.front().is_some_and(|mark| mark.pairs() <= checkpoint.seq);
        let durability = if synced { Durability::Synced } else { Durability::Buffered };
        self.write(batch, &checkpoint, durability).with_context(|| self.failed())?;
        if let Some(digest) = &mut self.digest {
            batch.iter().for_each(|(key, value)| digest.add(key, value));
        }
        self.reached(checkpoint)?;
        if synced { self.give_back() } else { Ok(()) }
    }

    fn write(
        &self,
        batch: &[(Key, Value)],
        checkpoint: &ChainCheckpoint,
        durability: Durability,
    ) -> engine_api::Result<()> {
        let mut txn = self.engine.begin()?;
        for (key, value) in batch {
            txn.put(key, value)?;
        }
        txn.commit(&checkpoint.write(), durability)
    }

    /// Notes that the engine has taken all pairs up to this checkpoint.
    fn reached(&mut self, checkpoint: ChainCheckpoint) -> Result<()> {
        self.checkpoint = checkpoint;
        self.progress.set(checkpoint.seq);
        self.sampler.at(checkpoint.seq)
    }

    /// Gives the spill back up to the last mark that the store has reached. All pairs up to the checkpoint must be
    /// durable.
    fn give_back(&mut self) -> Result<()> {
        let reached = self.marks.iter().take_while(|mark| mark.pairs() <= self.checkpoint.seq).count();
        let last = self.marks.drain(..reached).next_back();
        last.map_or(Ok(()), |mark| self.ordered.give_back(&mark)).with_context(|| self.failed())
    }

    /// Context for an engine's error, because engines do not know their directory.
    fn failed(&self) -> String {
        let (dir, seq) = (self.args.dir.display(), self.checkpoint.seq);
        let way_on = self.args.way_on();
        format!("the load has stopped: dir={dir} committed_pairs={seq}: fix the cause, then {way_on}")
    }

    /// Makes the last commit: it is flushed, and it alone carries the slot with its blockhash, and says that the map is
    /// whole.
    pub(crate) fn finish(&mut self, tally: Tally) -> Result<()> {
        ensure!(
            self.checkpoint.seq == tally.pairs,
            "the store is ahead of its source: committed={} pairs={}: was the source changed?",
            self.checkpoint.seq,
            tally.pairs
        );
        (self.checkpoint.slot, self.checkpoint.blockhash) = (self.args.slot, self.ordered.blockhash);
        self.checkpoint.phase = MapPhase::Ready;
        // A copy has the checkpoint of the store that it is of.
        let last = self.setup.source.stored().map_or_else(|| self.checkpoint.write(), |of| of.checkpoint().clone());
        let commit = || self.engine.inner().begin()?.commit(&last, Durability::Synced);
        commit().with_context(|| self.failed())?;
        if self.args.settle {
            self.progress.message("settling");
            self.engine.settle()?;
        }
        self.sampler.take(self.checkpoint.seq)?;
        self.progress.clear();
        Ok(())
    }

    /// Ends the load where it is, and returns the number of pairs committed.
    pub(crate) fn end(self) -> u64 {
        self.progress.clear();
        self.checkpoint.seq
    }
}
