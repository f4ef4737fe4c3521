//! The row of stores that the past is kept in, each with a period of slots.
//!
//! Owns: recording changes in the newest store, when a period ends, and which one is removed. Must not: remove a store that a
//! limit does not ask for, or let a full disk end the recording. Runs on `derived`; readers take a list of the stores.
//!
//! A period's directory has its final name only once the store is complete, and loses it before it is removed. So a crash
//! leaves nothing that a start takes for a period.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use derived::history::{self, NAME, Period, Unresolved};
use derived::{Origin, Position};
use engine_api::{Checkpoint, Durability, Error, ErrorKind, Result};
use engines::{EngineOptions, OpenMode};
use tracing::{info, warn};

use super::follower::{Part, Target};
use crate::base::lock;

/// Number of periods that a limit is divided into: so much of the past is kept beyond the limit at most.
const PERIODS: u64 = 7;

/// Interval at which the limits are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Name of the directory that is no period yet, and ending of one that is no period any more.
const PARTIAL: &str = "partial";
pub(super) const GONE: &str = "gone";

/// Limits of the past; 0 is none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) slots: u64,
    pub(super) bytes: u64,
}

/// The stores that are open, in the order of their slots. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Row {
    periods: Arc<Mutex<Vec<Arc<Period>>>>,
}

/// The one writer of a row.
pub(super) struct Recorder {
    row: Row,
    /// Directory of the map and its derived stores.
    map: PathBuf,
    options: EngineOptions,
    limits: Limits,
    /// Periods that are removed once nobody reads them.
    removed: Vec<Arc<Period>>,
    looked: Option<Instant>,
}

impl Row {
    /// Returns the stores, for one request.
    pub(super) fn periods(&self) -> Vec<Arc<Period>> {
        lock(&self.periods).clone()
    }

    /// Closes the stores once nobody reads them any more; the feed has all that they lack.
    pub(super) fn close(&self) {
        for period in std::mem::take(&mut *lock(&self.periods)) {
            if let Some(Err(failed)) = Arc::into_inner(period).map(Period::close) {
                warn!(error = %failed, derived = NAME, "a store of the past was not closed in good order");
            }
        }
    }
}

impl Recorder {
    /// Opens the row of the map in `map`, or begins one that stands at `begins`. Returns the newest store's position and its seq.
    ///
    /// # Errors
    /// Errors of the engine; I/O errors; a store of the row is missing; `begins` is not the end of a slot.
    pub(super) fn open(
        map: &Path,
        options: EngineOptions,
        limits: Limits,
        begins: impl FnOnce() -> Result<(Position, u64)>,
    ) -> Result<(Self, Position, u64)> {
        let row_dir = derived::dir(map, NAME);
        // Of a `bootstrap derive --history --drop` that was killed.
        remove(&row_dir.with_extension(GONE))?;
        fs::create_dir_all(&row_dir).map_err(|source| failed("create", &row_dir, source))?;
        clean(&row_dir)?;
        let mut recorder =
            Self { row: Row::default(), map: map.to_owned(), options, limits, removed: Vec::new(), looked: None };
        let mut newest: Option<(Position, u64)> = None;
        for (first_slot, place) in history::periods(map)? {
            let engine = engines::open_on(&place, &recorder.options, OpenMode::Existing, &derived::terms(NAME))?;
            let (period, position, seq) = Period::new(first_slot, engine)?;
            if let Some((before, before_seq)) = &newest {
                if (seq, Some(first_slot)) < (*before_seq, before.slot) {
                    // It was begun, and could not be opened: the changes went on into the one before.
                    period.close()?;
                    remove_named(&place)?;
                    continue;
                }
                history::check_adjoins(before, first_slot)?;
            }
            lock(&recorder.row.periods).push(Arc::new(period));
            newest = Some((position, seq));
        }
        let (position, seq) = match newest {
            Some(newest) => newest,
            None => {
                let (position, seq) = begins()?;
                recorder.begin(&position, seq)?;
                (position, seq)
            }
        };
        Ok((recorder, position, seq))
    }

    pub(super) fn row(&self) -> Row {
        self.row.clone()
    }

    /// Begins a period after the slot at which the row stands.
    fn begin(&mut self, at: &Position, seq: u64) -> Result<()> {
        let first_slot = at.slot.ok_or_else(|| Error::new(ErrorKind::FixInput, "the map has no slot yet"))?;
        let (place, terms) = (history::period_dir(&self.map, first_slot), derived::terms(NAME));
        // One name, so that one that fails again and again leaves one directory.
        let partial = derived::dir(&self.map, NAME).join(PARTIAL);
        remove(&partial)?;
        let engine = engines::open_on(&partial, &self.options, OpenMode::Create, &terms)?;
        engine.begin()?.commit(&at.write(seq), Durability::Synced)?;
        engine.close()?;
        rename(&partial, &place)?;
        let opened = engines::open_on(&place, &self.options, OpenMode::Existing, &terms);
        let (period, ..) = opened.and_then(|engine| Period::new(first_slot, engine)).inspect_err(|_| {
            // Else changes that go on into the period before would be looked for in this one, if it is not empty then.
            rename(&place, &partial).ok();
        })?;
        lock(&self.row.periods).push(Arc::new(period));
        info!(derived = NAME, first_slot, "a period of the past begins");
        Ok(())
    }

    /// Begins a period, and removes the oldest ones, where the limits ask for it.
    fn look(&mut self, at: &Position, seq: u64) -> Result<()> {
        self.looked = Some(Instant::now());
        let (periods, Some(slot)) = (self.row.periods(), at.slot) else { return Ok(()) };
        let sizes = periods.iter().map(|period| period.disk_bytes()).collect::<Result<Vec<u64>>>()?;
        let mut first_slots: Vec<u64> = periods.iter().map(|period| period.first_slot).collect();
        // The count of those who read a period decides whether it can be removed.
        drop(periods);
        let (Some(newest_slot), Some(newest_bytes)) = (first_slots.last(), sizes.last()) else { return Ok(()) };
        let Limits { slots, bytes } = self.limits;
        let has_slots = slots > 0 && slot.saturating_sub(*newest_slot) >= slots.div_ceil(PERIODS);
        let has_bytes = bytes > 0 && *newest_bytes > bytes / PERIODS;
        if (has_slots || has_bytes) && slot > *newest_slot {
            self.begin(at, seq)?;
            first_slots.push(slot);
        }
        let (mut left_bytes, mut dropped) = (sizes.iter().sum::<u64>(), 0);
        for (next_slot, oldest_bytes) in first_slots.iter().skip(1).zip(&sizes) {
            // The next period alone goes back as far as is asked for.
            let is_old = slots > 0 && slot.saturating_sub(*next_slot) >= slots;
            let is_over = bytes > 0 && left_bytes > bytes;
            if !is_old && !is_over {
                break;
            }
            (left_bytes, dropped) = (left_bytes - oldest_bytes, dropped + 1);
        }
        let gone: Vec<_> = lock(&self.row.periods).drain(..dropped).collect();
        self.removed.extend(gone);
        self.remove_unread()
    }

    /// Removes the periods that are no longer listed, and that nobody reads.
    fn remove_unread(&mut self) -> Result<()> {
        // In the order of their slots: one that stays alone, because it is read, would leave a hole after it at the next start.
        while self.removed.first().is_some_and(|period| Arc::strong_count(period) == 1) {
            let first_slot = self.removed.remove(0).first_slot;
            remove_named(&history::period_dir(&self.map, first_slot))?;
            info!(derived = NAME, first_slot, "the oldest period of the past is removed");
        }
        Ok(())
    }
}

impl Target for Recorder {
    const NAME: &'static str = NAME;

    fn commit(&mut self, part: &Part<'_>, to: &Position) -> Result<()> {
        let newest = lock(&self.row.periods).last().cloned();
        let newest = newest.ok_or_else(|| Error::new(ErrorKind::Internal, "there is no period of the past"))?;
        // A heal without a difference ends with a change that changes nothing.
        let changes = part.changes().filter(|(_, change)| change.old != change.new);
        let mut records = changes.map(|(seq, change)| (change.slot, seq, change.key, change.old));
        let jumped = part.ends().filter(|end| end.is_healed && end.parent_slot + 1 < end.slot);
        let unresolved: Vec<_> =
            jumped.map(|end| Unresolved { from_slot: end.parent_slot, to_slot: end.slot }).collect();
        newest.record(&mut records, &unresolved, part.seq, to)?;
        // Else it counts as read, should it be the one to remove.
        drop(newest);
        if to.is_whole
            && self.looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY)
            && let Err(failed) = self.look(to, part.seq)
        {
            warn!(error = %failed, derived = NAME, "the periods of the past cannot be changed now: tried again later");
        }
        Ok(())
    }
}

/// Returns the position of a row that begins where the map stands.
///
/// # Errors
/// The map is within a slot, or has none.
pub(super) fn beginning(map: &Checkpoint, slot: Option<u64>, feed_id: u64) -> Result<(Position, u64)> {
    let no_slot = || {
        Error::new(ErrorKind::Retry, "the map is at no slot yet, or between two: the past begins at a start with one")
    };
    let slot = slot.ok_or_else(no_slot)?;
    let position = Position { origin: Origin::Feed(feed_id), ..Position::new(map.clone(), Some(slot))? };
    Ok((position, map.seq))
}

/// Removes stores that a crash has left unfinished.
fn clean(row: &Path) -> Result<()> {
    let entries = fs::read_dir(row).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    for entry in entries.map_err(|source| failed("list", row, source))? {
        let path = entry.path();
        if path.extension().is_some_and(|ending| ending == GONE) || path.ends_with(PARTIAL) {
            remove(&path)?;
        }
    }
    Ok(())
}

/// Removes a period: it loses its name first.
fn remove_named(place: &Path) -> Result<()> {
    let gone = place.with_extension(GONE);
    rename(place, &gone)?;
    remove(&gone)
}

/// Removes a directory with all in it, if it is there.
pub(super) fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed("remove", dir, error)),
        _ => Ok(()),
    }
}

/// Gives a directory another name, durably.
pub(super) fn rename(from: &Path, to: &Path) -> Result<()> {
    let renamed = fs::rename(from, to).and_then(|()| File::open(to.parent().unwrap_or(to))?.sync_all());
    renamed.map_err(|source| failed("rename", from, source))
}

fn failed(verb: &str, dir: &Path, source: std::io::Error) -> Error {
    Error::io(format!("cannot {verb} a directory: dir={}", dir.display()), source)
}
