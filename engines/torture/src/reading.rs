//! The agent's actions in addition to writing: reads, held readers, copies, settling.
//!
//! Owns: the readers that are held. Must not: change the store. Runs on the agent's main thread.

use std::fs;
use std::path::PathBuf;

use engine_api::{Engine, Reader};
use engines::OpenMode;

use crate::agent::say;
use crate::column::Column;
use crate::model::{Check, Model};
use crate::rng::Rng;

/// Number of gets in one check.
const GETS: usize = 60;
/// Number of readers that are held at once.
const HELD_MAX: usize = 2;

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
pub(crate) const ALL: u64 = 63;

/// The readers of one open store.
pub(crate) struct Readings<'e> {
    column: Column,
    habits: u64,
    copies: PathBuf,
    held: Vec<(Box<dyn Reader + 'e>, Model)>,
}

impl<'e> Readings<'e> {
    pub(crate) fn new(column: Column, habits: u64, copies: PathBuf) -> Self {
        Self { column, habits, copies, held: Vec::new() }
    }

    pub(crate) fn reopens(&self) -> bool {
        self.habits & REOPEN != 0
    }

    /// Does one random action of the habits, or nothing. `model` is the expected content of the store.
    pub(crate) fn some(&mut self, engine: &'e dyn Engine, model: &Model, rng: &mut Rng) -> Check {
        let chosen = match rng.below(60) {
            0..12 => GET,
            12..14 => SCAN,
            14..20 => HOLD,
            20 => SETTLE,
            21 => COPY,
            _ => return Ok(()),
        };
        match chosen & self.habits {
            GET => model.check_gets(&mut *engine.reader()?, rng, GETS)?,
            SCAN => {
                let mut reader = engine.reader()?;
                model.check_scan(&mut *reader)?;
                model.check_scan_from(&mut *reader, rng)?;
            }
            HOLD => self.hold(engine, model, rng)?,
            SETTLE => {
                engine.settle()?;
                model.check_gets(&mut *engine.reader()?, rng, GETS)?;
            }
            COPY => self.copy(engine, model, rng)?,
            _ => return Ok(()),
        }
        say(format_args!("did {GETS}"));
        Ok(())
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
            1 => then.check_scan(&mut **reader).and_then(|()| then.check_scan_from(&mut **reader, rng)),
            2 => {
                self.held.swap_remove(chosen);
                Ok(())
            }
            _ => then.check_gets(&mut **reader, rng, GETS),
        }
    }

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
        let copy = engines::open(&dir, &self.column.options(rng), OpenMode::Existing)?;
        model.check_store(&*copy, rng)?;
        drop(copy);
        Ok(remove()?)
    }
}
