//! Snapshots that are held while the store changes.
//!
//! Owns: a reader that is kept on the writer's thread, and threads that read at the same time. Must not: write.

use std::sync::atomic::{AtomicBool, Ordering};

use engine_api::{Engine, Key, Reader, Value};

use crate::model::{Bad, Check, Model, Sum, shown, wrong};
use crate::support::{Rng, at};

/// Stores with more pairs than this are scanned seldom.
const SCAN_PAIRS: u64 = 100_000;

/// A reader that stays on its snapshot, and the answers that it must keep giving.
pub(crate) struct Held<'e> {
    reader: Box<dyn Reader + 'e>,
    seq: u64,
    sum: Sum,
    samples: Vec<(Key, Option<Value>)>,
}

impl<'e> Held<'e> {
    /// Opens a reader on the newest state, which is the model's.
    pub(crate) fn new(engine: &'e dyn Engine, model: &Model, rng: &mut Rng) -> Check<Self> {
        let mut held = Self { reader: engine.reader()?, seq: 0, sum: Sum::default(), samples: Vec::new() };
        held.remember(model, rng)?;
        Ok(held)
    }

    /// Moves the reader to the newest state.
    pub(crate) fn refresh(&mut self, model: &Model, rng: &mut Rng) -> Check {
        self.reader.refresh()?;
        self.remember(model, rng)
    }

    fn remember(&mut self, model: &Model, rng: &mut Rng) -> Check {
        (self.seq, self.sum) = (model.seq, model.sum);
        self.samples = (0..100).map(|_| model.sample(rng)).collect();
        self.check(rng)
    }

    /// Compares the snapshot with its remembered content.
    pub(crate) fn check(&mut self, rng: &mut Rng) -> Check {
        let found = self.reader.checkpoint()?;
        if found != at(self.seq) {
            return wrong(format!("a held snapshot of seq={} says {found:?}", self.seq));
        }
        for (key, expected) in &self.samples {
            let got = self.reader.get(key)?;
            if got != *expected {
                let (seq, key) = (self.seq, shown(key));
                return wrong(format!("a held snapshot of seq={seq} gives key={key} {got:x?} not {expected:x?}"));
            }
        }
        if rng.below(if self.sum.pairs > SCAN_PAIRS { 64 } else { 4 }) == 0 {
            let sum = Sum::of(&mut *self.reader)?;
            if sum != self.sum {
                return wrong(format!("a held snapshot of seq={} scans {sum:?} not {:?}", self.seq, self.sum));
            }
        }
        Ok(())
    }
}

/// Reads during writes until told to stop. Each snapshot must be exactly the content of its checkpoint.
///
/// # Errors
/// The first wrong answer, or the engine's error.
pub(crate) fn watch(engine: &dyn Engine, mut model: Model, stop: &AtomicBool, seed: u64) -> Check {
    let mut rng = Rng(seed);
    let mut reader = engine.reader()?;
    // ORDERING: Relaxed: the flag guards no other memory.
    while !stop.load(Ordering::Relaxed) {
        if rng.below(4) != 0 {
            reader.refresh()?;
        } else {
            reader = engine.reader()?;
        }
        let seq = reader.checkpoint()?.seq;
        if seq < model.seq {
            return wrong(format!("a reader went back: seq={seq} before={}", model.seq));
        }
        model.advance_to(seq);
        for _ in 0..rng.below(4) {
            model.check_gets(&mut *reader, &mut rng, 300)?;
        }
        if rng.below(if model.sum.pairs > SCAN_PAIRS { 64 } else { 4 }) == 0 {
            model.check_scan(&mut *reader)?;
        }
    }
    Ok(())
}

/// Runs `work` while `threads` other threads read the store. A reading thread that finds an error sets the flag that
/// `work` checks.
///
/// # Errors
/// A wrong answer before an error of the engine, whichever thread met it.
pub(crate) fn beside<T>(
    engine: &dyn Engine,
    model: &Model,
    threads: u64,
    seed: u64,
    work: impl FnOnce(&AtomicBool) -> Check<T>,
) -> Check<T> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watchers: Vec<_> = (0..threads)
            .map(|n| {
                let (model, stop) = (model.clone(), &stop);
                scope.spawn(move || {
                    let seen = watch(engine, model, stop, seed ^ n);
                    // ORDERING: Relaxed: as in `watch`.
                    stop.store(true, Ordering::Relaxed);
                    seen
                })
            })
            .collect();
        let mut outcome = work(&stop);
        // ORDERING: Relaxed: as in `watch`.
        stop.store(true, Ordering::Relaxed);
        for watcher in watchers {
            let seen = watcher.join().unwrap_or_else(|_| wrong("a reader's thread panicked"));
            match seen {
                Err(bad) if outcome.is_ok() || matches!(bad, Bad::Wrong(_)) => outcome = Err(bad),
                _ => {}
            }
        }
        outcome
    })
}
