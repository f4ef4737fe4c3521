//! The actions in addition to writing: reads, held readers, copies, settling.
//!
//! Owns: the readers that are held. Must not: change the store. Runs on the thread that writes.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use engine_api::{Durability, Engine, Reader};
use engine_kit::Rng;

use crate::beside::MANY_PAIRS;
use crate::model::{Check, Model, wrong};
use crate::telling::say;
use crate::writer::write;

/// Number of gets in one check.
const GETS: usize = 60;
/// Number of readers that are held at once.
const HELD_MAX: usize = 3;

/// Habit: gets between the batches.
pub(crate) const GET: u64 = 1;
/// Habit: scans between the batches, whole ones and from a key.
pub(crate) const SCAN: u64 = 2;
/// Habit: readers that stay on an old snapshot.
pub(crate) const HOLD: u64 = 4;
/// Habit: waiting for flushes and compactions.
pub(crate) const SETTLE: u64 = 8;
/// Habit: copies of the store, which are opened and compared.
pub(crate) const COPY: u64 = 16;
/// Habit: closing, or dropping, the store and opening it again.
pub(crate) const REOPEN: u64 = 32;
/// Habit: threads that read all the time.
pub(crate) const WATCH: u64 = 64;
/// Habit: scrubs before the store is closed or dropped.
pub(crate) const SCRUB: u64 = 128;
pub(crate) const ALL: u64 = 255;

/// The readers of one open store.
pub(crate) struct Readings<'e> {
    habits: u64,
    copies: PathBuf,
    held: Vec<(Box<dyn Reader + 'e>, Model)>,
    began: Instant,
    /// Time that the slow actions have taken.
    slow: Duration,
}

impl<'e> Readings<'e> {
    /// Builds the readings of a store that was just opened. `copies` is where its copies go.
    pub(crate) fn new(habits: u64, copies: PathBuf) -> Self {
        Self { habits, copies, held: Vec::new(), began: Instant::now(), slow: Duration::ZERO }
    }

    pub(crate) fn reopens(&self) -> bool {
        self.habits & REOPEN != 0
    }

    /// Does one random action of the habits, or nothing, and returns the number of gets. `model` is the expected content
    /// of the store.
    pub(crate) fn some(&mut self, engine: &'e dyn Engine, model: &Model, rng: &mut Rng) -> Check<u64> {
        let chosen = match rng.below(60) {
            0..12 => GET,
            12..14 => SCAN,
            14..20 => HOLD,
            20 => SETTLE,
            21 => COPY,
            _ => return Ok(0),
        };
        // On a large store slow actions get a third of the time.
        let is_slow = ![GET, HOLD].contains(&chosen) && model.pairs > MANY_PAIRS;
        if is_slow && self.slow * 3 > self.began.elapsed() {
            return Ok(0);
        }
        let begun = Instant::now();
        match chosen & self.habits {
            GET => model.check_gets(&mut *engine.reader()?, rng, GETS)?,
            SCAN => {
                let mut reader = engine.reader()?;
                model.check_scan(&mut *reader)?;
                model.check_scan_from(&mut *reader, rng)?;
            }
            HOLD => self.hold(engine, model, rng)?,
            SETTLE => settle(engine, model, rng)?,
            COPY => self.copy(engine, model, rng)?,
            _ => return Ok(0),
        }
        if is_slow {
            self.slow += begun.elapsed();
        }
        Ok(GETS as u64)
    }

    /// Compares everything that the held readers see with the content from when they were opened.
    pub(crate) fn check_held(&mut self) -> Check {
        self.held.iter_mut().try_for_each(|(reader, then)| then.check_scan(&mut **reader))
    }

    /// Opens a reader to hold if there are too few. Otherwise checks, refreshes, or drops one of those held.
    fn hold(&mut self, engine: &'e dyn Engine, model: &Model, rng: &mut Rng) -> Check {
        if self.held.len() < HELD_MAX {
            self.held.push((engine.reader()?, model.clone()));
            return Ok(());
        }
        let chosen = rng.below(HELD_MAX as u64) as usize;
        let (reader, then) = &mut self.held[chosen];
        match rng.below(5) {
            0 => {
                reader.refresh()?;
                *then = model.clone();
                then.check_gets(&mut **reader, rng, GETS)
            }
            1 if then.pairs <= MANY_PAIRS || rng.once_in(16) => {
                then.check_scan(&mut **reader).and_then(|()| then.check_scan_from(&mut **reader, rng))
            }
            2 => {
                self.held.swap_remove(chosen);
                Ok(())
            }
            _ => then.check_gets(&mut **reader, rng, GETS),
        }
    }

    /// Copies the store and writes to the copy. The store must not show those writes, which later checks would find.
    fn copy(&self, engine: &dyn Engine, model: &Model, rng: &mut Rng) -> Check {
        let remove = || {
            fs::remove_dir_all(&self.copies).or_else(|e| match e.kind() {
                std::io::ErrorKind::NotFound => Ok(()),
                _ => Err(engine_api::Error::io("cannot remove a copy", e)),
            })
        };
        // Leftovers of a copy that was cut short.
        remove()?;
        fs::create_dir(&self.copies).map_err(|e| engine_api::Error::io("cannot make room for a copy", e))?;
        let dir = self.copies.join("store");
        engine.snapshot(&dir)?;
        let copy = model.column.open(&dir, rng)?;
        model.check_store(&*copy, rng)?;
        let mut later = model.clone();
        write(&*copy, &mut later, Durability::Buffered, rng, &mut |_| {})?;
        copy.settle()?;
        later.check_store(&*copy, rng)?;
        drop(copy);
        Ok(remove()?)
    }
}

/// Waits for flushes and merges, after which an engine that counts its pairs must count the model's.
fn settle(engine: &dyn Engine, model: &Model, rng: &mut Rng) -> Check {
    say(format_args!("settling {}", if model.column.merges_groups(&engine.stats()?) { "groups" } else { "all" }));
    engine.settle()?;
    say("settled");
    let stats = engine.stats()?;
    let counted = stats.pairs_estimate;
    if model.column.counts_pairs(&stats) && counted != model.pairs {
        return wrong(format!("settled, and pairs_estimate={counted} expected={}", model.pairs));
    }
    model.check_gets(&mut *engine.reader()?, rng, GETS)
}
