//! A store as a source: its pairs, which come in key order and are loaded without a spill, or the entries of a store that is
//! derived from it, which come in any order.
//!
//! Owns: the open store, its description, and the digest of all that was read. Must not: write to the store, or
//! decide whether it may be copied. Threads: main checks it; `order` reads it.

use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Error, Result, bail};
use derived::{Origin, Position, values};
use engine_api::{Checkpoint, Engine, ErrorKind, Key};
use engines::{Digest, Holds, Identity, Loaded};
use solana::ChainCheckpoint;

use super::Record;
use crate::out::tell;

/// State of the new store after an error of reading this one, with the way out.
const INCOMPLETE: &str =
    "the new store is incomplete: fix the cause and continue with --resume, or remove the new store";

/// An open store whose pairs are loaded into another one.
#[derive(Clone)]
pub(crate) struct Stored(Arc<Inner>);

struct Inner {
    dir: PathBuf,
    /// The store as messages and the state file describe it. Its checkpoint is a part of that, so a load does not
    /// continue after the store has moved on.
    shown: String,
    known: Identity,
    /// Checkpoint of the new store: that of this one, or that of the derived store.
    checkpoint: Checkpoint,
    /// Where the derived store will stand whose entries are read; `None` if the pairs are.
    derived: Option<Position>,
    pairs_estimate: u64,
    memory_bytes: u64,
    open: Mutex<Open>,
}

struct Open {
    engine: Box<dyn Engine>,
    /// Digest of all pairs, once they were read.
    read: Option<Digest>,
}

impl Stored {
    /// Takes an open store as a source. `known` is its marker's content, `memory_bytes` the memory of its engine.
    ///
    /// # Errors
    /// Errors of the engine.
    pub(crate) fn new(dir: &Path, engine: Box<dyn Engine>, known: Identity, memory_bytes: u64) -> Result<Self> {
        let checkpoint = engine.checkpoint()?;
        Ok(Self(Arc::new(Inner {
            dir: dir.to_owned(),
            shown: format!("{}{} {}", Self::place(dir)?, engine.label(), solana::shown(&checkpoint)),
            known,
            checkpoint,
            derived: None,
            pairs_estimate: engine.stats()?.pairs_estimate,
            memory_bytes,
            open: Mutex::new(Open { engine, read: None }),
        })))
    }

    /// Takes the entries of the store `values`, which is derived from this one, instead of its pairs. With `feed_id` the new store
    /// follows that feed, of which this store is a state.
    ///
    /// # Errors
    /// Errors of the engine; a checkpoint that no map has; a map that is between two slots.
    pub(crate) fn with_values_of(self, feed_id: Option<u64>) -> Result<Self> {
        let Some(inner) = Arc::into_inner(self.0) else { bail!("the store is read already: this is a bug") };
        let at = ChainCheckpoint::read(&inner.checkpoint)?;
        // In the middle of a heal the map has a part of a slot.
        at.refuse_unless_whole()?;
        let slot = at.slot;
        let seq = inner.checkpoint.seq;
        let mut position = Position::new(inner.checkpoint, slot)?;
        position.origin = feed_id.map_or(position.origin, Origin::Feed);
        let shown = format!("{} derived={}", inner.shown, values::NAME);
        Ok(Self(Arc::new(Inner { checkpoint: position.write(seq), derived: Some(position), shown, ..inner })))
    }

    /// Whether the entries of a derived store are read.
    pub(crate) fn is_derived(&self) -> bool {
        self.0.derived.is_some()
    }

    /// Returns the meaning of the pairs or entries that are read, for the marker of the new store.
    pub(crate) fn holds(&self) -> Holds {
        if self.is_derived() { derived::terms(values::NAME).holds } else { self.0.known.holds.clone() }
    }

    /// Returns the beginning of the description of a store in `dir`, in whatever state it is.
    ///
    /// # Errors
    /// The current directory is gone.
    pub(crate) fn place(dir: &Path) -> Result<String> {
        let dir = std::path::absolute(dir).with_context(|| format!("cannot name dir={}", dir.display()))?;
        Ok(format!("store dir={} engine=", dir.display()))
    }

    /// Whether a source with this description was the same store, perhaps in an earlier state.
    pub(crate) fn was(&self, source: &str) -> bool {
        Self::place(&self.0.dir).is_ok_and(|place| source.starts_with(&place))
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// Returns the checkpoint, which the new store takes over.
    pub(crate) fn checkpoint(&self) -> &Checkpoint {
        &self.0.checkpoint
    }

    pub(crate) fn pairs_estimate(&self) -> u64 {
        self.0.pairs_estimate
    }

    /// Returns the memory of the store's engine in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.0.memory_bytes
    }

    /// Checks the store's checksums, if its engine does not check them while reading.
    ///
    /// # Errors
    /// Damage, naming this store and the way out.
    pub(crate) fn check(&self) -> Result<()> {
        let engine = self.0.known.engine;
        if engine.descriptor().has_checksums && !engine.descriptor().checks_reads {
            tell!("the store to read is checked first, because engine={engine} compares no checksums while it reads");
        }
        engines::check_before_copy(engine, &mut *self.open_store().engine).map_err(|error| self.failed(error))
    }

    /// Calls `take` with every pair in ascending order, or with the entry of each, until it fails.
    ///
    /// # Errors
    /// Damage, naming this store and the way out; the error of `take`.
    pub(crate) fn for_each(&self, take: &mut dyn FnMut(Record) -> Result<()>) -> Result<()> {
        let mut open = self.open_store();
        let (mut read, mut last, mut ended): (_, Option<Key>, _) = (Digest::default(), None, Ok(()));
        let secret = self.0.derived.as_ref().map(|position| &position.secret);
        let scanned = open.engine.reader().and_then(|mut reader| {
            reader.scan(&mut |key, value| {
                let is_next = last.replace(*key).is_none_or(|last| last < *key);
                let (key, value) = secret.map_or((*key, *value), |secret| values::entry(secret, key, value));
                ended = match is_next {
                    true => take((read.pairs(), key, value)),
                    false => Err(self.failed(unordered(read.pairs() + 1)).context(INCOMPLETE)),
                };
                read.add(&key, &value);
                if ended.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
        });
        scanned.map_err(|error| self.failed(error)).context(INCOMPLETE)?;
        ended?;
        open.read = Some(read);
        Ok(())
    }

    /// Returns the entry for the marker of the new store, once all pairs were read. It keeps the slot of this store's
    /// load.
    ///
    /// # Errors
    /// The store is unchanged since its load, and yet does not hold the loaded pairs. Engines without checksums return
    /// wrong pairs without an error.
    pub(crate) fn loaded(&self) -> Result<(Loaded, Digest)> {
        let Inner { dir, known, checkpoint, .. } = &*self.0;
        let read = self.open_store().read.context("the store was not read: this is a bug")?;
        let (seq, pairs, digest) = (checkpoint.seq, read.pairs(), read.to_string());
        let loaded = known.loaded_at(seq).filter(|_| !self.is_derived());
        if let Some(how) = loaded.and_then(|loaded| loaded.difference(pairs, &digest)) {
            bail!(
                "the store to read does not hold the pairs that were loaded: dir={0} {how}: `scrub --dir {0}` gives \
                 details; the new store holds the same wrong pairs: remove it",
                dir.display()
            );
        }
        Ok((Loaded { seq, pairs, digest: Some(digest), slot: known.loaded_slot() }, read))
    }

    fn open_store(&self) -> MutexGuard<'_, Open> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names this store in an error of damage, so that it is not looked for in the new store.
    fn failed(&self, error: engine_api::Error) -> Error {
        let is_damage = error.kind() == ErrorKind::DataDamaged;
        let error = Error::from(error);
        if !is_damage {
            return error;
        }
        let dir = self.0.dir.display();
        error.context(format!("the store to read is damaged: dir={dir}: `scrub --dir {dir}` gives details"))
    }
}

fn unordered(pair: u64) -> engine_api::Error {
    engine_api::Error::new(ErrorKind::DataDamaged, format!("keys do not ascend: pair={pair}"))
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.shown)
    }
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.shown)
    }
}
