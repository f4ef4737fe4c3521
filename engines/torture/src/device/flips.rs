//! Flipped bits in a closed store: never a wrong value. A flip must cause an error that names the place, or have no
//! effect if the byte holds nothing.
//!
//! Owns: the choice of bits, and the demands on their detection. Must not: change the given store; it flips bits in
//! copies. Runs on the thread of the device's life.

use std::fmt;
use std::io;
use std::sync::Arc;

use engine_api::{Engine, Error, ErrorKind};
use engine_kit::Rng;
use engine_strata::StrataEngine;
use engine_strata::faulty::FaultyStorage;
use engine_strata::storage::Storage;

use super::{OPTIONS, again};
use crate::model::{Bad, Check, Model, wrong};
use crate::totals::Totals;

const FLIPS: u64 = 12;
const PAGE_BYTES: u64 = 4096;

/// A flipped bit: file, place and former byte.
struct Flip {
    name: String,
    offset: u64,
    /// Value of the byte before the flip.
    byte: u8,
}

impl fmt::Display for Flip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "flipped in {} offset={} byte={}", self.name, self.offset, self.byte)
    }
}

/// Flips bits in copies of a closed store that has the model's content.
pub(super) fn flips(closed: &FaultyStorage, model: &Model, rng: &mut Rng, totals: &mut Totals) -> Check {
    for _ in 0..FLIPS {
        let copy = closed.after_crash(rng.next());
        let flip = flip(&copy, rng).map_err(|e| Bad::Wrong(format!("a bit cannot be flipped: {e}")))?;
        if let Some(flip) = flip {
            totals.flipped_bits += 1;
            totals.reopenings += 1;
            match noticed(&copy, &flip, model, rng) {
                Err(Bad::Wrong(why)) => return wrong(format!("{flip}: {why}")),
                Err(Bad::Error(error)) => names_the_place(&flip, &error)?,
                Ok(()) => {}
            }
        }
    }
    Ok(())
}

fn flip(storage: &FaultyStorage, rng: &mut Rng) -> io::Result<Option<Flip>> {
    let names = storage.names();
    let Some(name) = names.get(rng.below(names.len().max(1) as u64) as usize) else { return Ok(None) };
    let file = storage.open_write(name)?;
    let length = file.len_bytes()?;
    if length == 0 {
        return Ok(None);
    }
    // Prefer the end of the file at times: the sections after the pages and the footer are small but no less important.
    let tail = rng.pick(&[length, length.min(8 * PAGE_BYTES), length.min(PAGE_BYTES)]);
    let offset = length - tail + rng.below(tail);
    let mut byte = [0];
    file.read_at(&mut byte, offset)?;
    file.write_at(&[byte[0] ^ (1 << rng.below(8))], offset)?;
    file.sync_data()?;
    Ok(Some(Flip { name: name.clone(), offset, byte: byte[0] }))
}

/// Opens the store and reads everything. An error of the engine means that it noticed the flip.
fn noticed(storage: &FaultyStorage, flip: &Flip, model: &Model, rng: &mut Rng) -> Check {
    let engine = StrataEngine::open_on(Arc::new(storage.clone()), &OPTIONS)?;
    let seq = engine.checkpoint()?.seq;
    let mut reader = engine.reader()?;
    if flip.name.ends_with(".wal") {
        // A record that is not whole ends the replay: every batch before it must be there.
        if seq > model.seq {
            return wrong(format!("seq={seq} of {}", model.seq));
        }
        let before = again(model, seq);
        before.check_scan(&mut *reader)?;
        return before.check_gets(&mut *reader, rng, 500);
    }
    if seq != model.seq {
        return wrong(format!("seq={seq} of {}", model.seq));
    }
    let gets = model.check_gets(&mut *reader, rng, 500);
    let scan = model.check_scan(&mut *reader);
    // A wrong answer counts as a failure, whatever else was found.
    match (gets, scan) {
        (Err(Bad::Wrong(why)), _) | (_, Err(Bad::Wrong(why))) => return wrong(why),
        (gets, scan) => gets.and(scan)?,
    }
    engine.scrub()?;
    // Zeros between the sections hold no data, nor does a file that no manifest names.
    if flip.byte == 0 || !storage.names().contains(&flip.name) {
        return Ok(());
    }
    wrong("nobody noticed")
}

fn names_the_place(flip: &Flip, error: &Error) -> Check {
    let said = error.to_string();
    let offset = !flip.name.ends_with(".seg") || said.contains("offset=");
    if error.kind() == ErrorKind::DataDamaged && said.contains(&flip.name) && said.contains("file=") && offset {
        return Ok(());
    }
    wrong(format!("{flip}: kind={:?} {said}", error.kind()))
}
