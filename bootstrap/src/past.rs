//! The past of a store at rest: the values that keys had at a slot.
//!
//! Owns: opening the stores of the past, and the check that they stand where the map does. Must not: write to them. Runs on the
//! main thread.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow, ensure};
use derived::Position;
use derived::history::{self, At, Period};
use engine_api::{Code, Engine, Key, Value};
use solana::ChainCheckpoint;

use crate::scan::open_to_scan;

/// The past of a map, open for reading.
pub(crate) struct Past {
    periods: Vec<Arc<Period>>,
    slot: u64,
}

impl Past {
    /// Opens the past of the map in `dir`, to look at `slot`.
    ///
    /// # Errors
    /// There is none; a store of it is missing; it does not stand where the map does; the map has not reached the slot; errors of the engine.
    pub(crate) fn open(dir: &Path, map: &dyn Engine, slot: u64) -> Result<Self> {
        let at = ChainCheckpoint::read(&map.checkpoint()?)?;
        ensure!(
            at.slot.is_some_and(|newest| slot <= newest),
            "the map has not reached the slot: slot={slot} map_slot={}",
            at.slot.map_or_else(|| "none".to_owned(), |slot| slot.to_string())
        );
        let places = history::periods(dir)?;
        let (mut periods, mut newest) = (Vec::new(), None::<(Position, u64)>);
        for (first_slot, place) in places {
            let (period, position, seq) = Period::new(first_slot, open_to_scan(&place, None, None)?)?;
            periods.push(Arc::new(period));
            if let Some((before, _)) = &newest {
                history::check_adjoins(before, first_slot)?;
            }
            newest = Some((position, seq));
        }
        let wrong = match newest {
            None => Some("no past is kept: start the service with history_slots or history_bytes".to_owned()),
            Some((position, seq)) if seq != at.seq || !position.is_whole => Some(format!(
                "the past stands elsewhere than the map: seq={seq} map_seq={}: start the service on it",
                at.seq
            )),
            Some(_) => None,
        };
        match wrong {
            Some(why) => Err(anyhow!("{why}: dir={}", dir.display()).context(Code::Derived)),
            None => Ok(Self { periods, slot }),
        }
    }

    /// Returns the value of a key at the slot, of which the map has `now`.
    ///
    /// # Errors
    /// The slot is not kept, or not resolved; errors of the engine.
    pub(crate) fn value(&self, key: &Key, now: Option<Value>) -> Result<Option<Value>> {
        let slot = self.slot;
        match history::at(&self.periods, key, slot)? {
            At::Unchanged => Ok(now),
            At::Before(change) => Ok(change.before),
            At::Gone { oldest_slot } => {
                Err(anyhow!("the past does not go back that far: slot={slot} oldest_slot={oldest_slot}").context(Code::Derived))
            }
            At::Unresolved(mark) => Err(anyhow!(
                "slot={slot} is not resolved, because a heal has led the map from slot={} to slot={}: ask for one of these",
                mark.from_slot,
                mark.to_slot
            )
            .context(Code::Derived)),
        }
    }

    /// Closes the stores.
    ///
    /// # Errors
    /// Errors of the engine.
    pub(crate) fn close(self) -> Result<()> {
        self.periods.into_iter().filter_map(Arc::into_inner).try_for_each(Period::close)?;
        Ok(())
    }
}
