//! The engine in a store's directory: the options that it gets, its opening for reading alone, and the remedies for
//! damage.
//!
//! Owns: the options that a store remembers. Must not: check the directory or take its lock. Runs on the thread that
//! opens the store.

use std::error::Error as _;
use std::io;
use std::path::Path;

use engine_api::{Code, Engine, Error, ErrorKind, Options, Result};

use crate::content::Holds;
use crate::list::EngineKind;
use crate::marker::Identity;
use crate::options::EngineOptions;

/// Adds the options that the store keeps, or will keep if it is new.
pub(crate) fn effective(options: &EngineOptions, known: Option<&Identity>) -> EngineOptions {
    let mut options = options.clone();
    options.options.extend(kept(&options, known));
    options
}

/// Returns the options that the marker of a store has once it was opened with these.
pub(crate) fn kept(options: &EngineOptions, known: Option<&Identity>) -> Options {
    (options.engine.descriptor().kept)(&options.options, known.map(|known| &known.options))
}

impl EngineOptions {
    /// Whether lookups of absent keys are answered by a filter in memory, in a store with these options.
    pub fn has_filter_in_memory(&self) -> bool {
        (self.engine.descriptor().has_filter_in_memory)(&effective(self, None).options)
    }
}

/// Opens the engine whose files are in `data`, and whose pairs have this meaning, for reading alone.
///
/// # Errors
/// `FixInput` if the engine cannot; any error of opening it.
pub(crate) fn open_engine(data: &Path, options: &EngineOptions, holds: &Holds) -> Result<Box<dyn Engine>> {
    match options.engine.descriptor().open_read_only {
        Some(open) => open(data, &options.settings_for(holds)),
        None => Err(Error::wrong(
            Code::Engine,
            format!(
                "the engine cannot open a store for reading alone: engine={} dir={}: start the service on it, and ask that",
                options.engine,
                data.display()
            ),
        )),
    }
}

/// Adds the possible remedies to the error of an engine that cannot open its files, because they are damaged or the
/// device does not give them.
pub(crate) fn with_way_out(dir: &Path, engine: EngineKind, error: Error) -> Error {
    let cause = match error.kind() {
        ErrorKind::DataDamaged => "",
        _ if is_of_device(&error) => "the device fails, as dmesg shows: ",
        _ => return error,
    };
    if engine.descriptor().repair.is_none() || error.has_way_out() {
        return error;
    }
    error.with_way_out(&format!(
        "{cause}restore a snapshot, or try `{} repair --dir {}`, which keeps all that can be read",
        program::called("bootstrap"),
        dir.display()
    ))
}

fn is_of_device(error: &Error) -> bool {
    let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    io.is_some_and(|io| io.raw_os_error() == Some(libc::EIO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_damage_or_of_the_device_names_a_way_out_and_no_other_does() {
        let told = |engine, error| with_way_out(Path::new("/map"), engine, error);
        let io = |code| Error::io("cannot read file=/map/data/MANIFEST", io::Error::from_raw_os_error(code));
        for error in [Error::new(ErrorKind::DataDamaged, "WAL is damaged"), io(libc::EIO)] {
            let kind = error.kind();
            let told = told(EngineKind::Strata, error);
            assert!(told.to_string().contains("try `bootstrap repair --dir /map`"), "{told}");
            assert_eq!(told.kind(), kind);
        }
        for other in [io(libc::EACCES), io(libc::EMFILE), Error::new(ErrorKind::Reopen, "poisoned")] {
            let said = other.to_string();
            assert_eq!(told(EngineKind::Strata, other).to_string(), said);
        }
        assert!(!told(EngineKind::Redb, io(libc::EIO)).to_string().contains("repair"), "redb has no repair");
    }
}
