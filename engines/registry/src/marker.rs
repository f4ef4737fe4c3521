//! The marker `SOLKV`: a description of the store in a directory, readable without opening the engine.
//!
//! It is written to a temporary file and renamed, with an fsync of the file and of the directory, so it is whole or
//! absent. Its first line is the checksum of the others, because a marker that was cut short would lack entries, and
//! these would not be checked.

use std::cmp::Ordering;
use std::io::{self, ErrorKind as Io};
use std::path::Path;

use engine_api::{Code, Error, ErrorKind, Options, Result};
use serde::{Deserialize, Serialize};

use crate::checked::{self, Found};
use crate::content::{Holds, Load, LoadState, Loaded};
use crate::list::EngineKind;

pub(crate) const MARKER: &str = "SOLKV";
pub(crate) const MARKER_TEMPORARY: &str = "SOLKV.tmp";

/// Format that this build writes, and the only one it reads. Formats 1 and 2 had a checkpoint of 64 bytes that
/// contained the slot.
pub const FORMAT_VERSION: u32 = 3;

/// Description of the store in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Version of the directory's layout and of the way pairs and checkpoint are stored in the engine.
    pub format: u32,
    /// Engine whose files are in `data`.
    pub engine: EngineKind,
    /// Program and version that created the directory, such as `solkv 0.1.0`.
    pub created_by: String,
    /// Load that fills or has filled the store; `None` if the store was made empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// Seq that the store had when it was last closed or its load was completed. The store's seq never falls below it.
    /// `None` means that the engine may not have made its files yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// Meaning of the pairs, as far as a program has stated it.
    #[serde(default, skip_serializing_if = "Holds::is_unknown")]
    pub holds: Holds,
    /// Options of the engine as last opened, as far as it keeps them.
    #[serde(default, skip_serializing_if = "Options::is_empty")]
    pub options: Options,
}

/// The version and the engine's name, so that a newer format or engine is recognized even if other fields have changed.
#[derive(Deserialize)]
struct Version {
    format: u32,
    engine: Option<String>,
}

/// Options of a marker without a table of options. It has these two for every engine, and RocksDB alone takes them.
#[derive(Deserialize)]
struct Untabled {
    bloom: Option<u32>,
    profile: Option<String>,
}

impl Identity {
    pub(crate) fn new(engine: EngineKind) -> Self {
        let created_by = concat!("solkv ", env!("CARGO_PKG_VERSION")).to_owned();
        Self {
            format: FORMAT_VERSION,
            engine,
            created_by,
            load: None,
            seq: None,
            holds: Holds::default(),
            options: Options::new(),
        }
    }

    /// Returns a copy for a store that has reached `seq`, limited to the largest number in TOML.
    pub(crate) fn at(self, seq: u64) -> Self {
        Self { seq: Some(seq.min(i64::MAX as u64)), ..self }
    }

    /// Returns the result of the load, if the store still has the seq that the load ended with.
    pub fn loaded_at(&self, seq: u64) -> Option<&Loaded> {
        self.load.as_ref()?.loaded.as_ref().filter(|loaded| loaded.seq == seq)
    }

    /// Returns the slot of the chain to which the store was loaded, if it is known.
    pub fn loaded_slot(&self) -> Option<u64> {
        self.load.as_ref()?.loaded.as_ref()?.slot
    }

    /// Whether the load has not finished, so that the store holds only a part of its source.
    pub fn is_loading(&self) -> bool {
        self.load.as_ref().is_some_and(|load| load.state == LoadState::Loading)
    }
}

/// Reads the marker of `dir`; `None` if the directory or the marker is missing.
pub(crate) fn read(dir: &Path) -> Result<Option<Identity>> {
    let path = dir.join(MARKER);
    let text = match checked::read(&path) {
        Ok(None) => return Ok(None),
        Ok(Some(Found::Whole(text))) => text,
        // This is the form of an earlier version, which begins with the format.
        Ok(Some(Found::Unchecked(text))) if text.starts_with("format") => text,
        Ok(Some(Found::Unchecked(_) | Found::Damaged)) => {
            return Err(damaged(
                &path,
                "its checksum differs; if you edited the file, remove the line of the checksum",
            ));
        }
        Err(e) if io_kind(&e) == Some(Io::NotADirectory) => {
            let message =
                format!("this is a file, not a directory: dir={}: name the directory of a store", dir.display());
            return Err(Error::wrong(Code::Directory, message));
        }
        Err(e) if io_kind(&e) == Some(Io::InvalidInput) => return Err(damaged(&path, e)),
        Err(e) => return Err(e),
    };
    let version: Version = toml::from_str(&text).map_err(|e| damaged(&path, e))?;
    let (age, way_out) = match version.format.cmp(&FORMAT_VERSION) {
        Ordering::Equal => {
            refuse_unless_known(&path, version.engine.as_deref())?;
            return identity(&text).map(Some).map_err(|e| damaged(&path, e));
        }
        Ordering::Greater => ("a newer", "use that version"),
        Ordering::Less => ("an older", "load it again into another directory, or use that version"),
    };
    Err(Error::wrong(
        Code::Format,
        format!(
            "store was written by {age} solkv: file={} format={} known={FORMAT_VERSION}: {way_out}",
            path.display(),
            version.format
        ),
    ))
}

/// Refuses the store of an engine that this version does not have.
fn refuse_unless_known(path: &Path, engine: Option<&str>) -> Result<()> {
    let known = EngineKind::ALL.map(EngineKind::as_str);
    match engine.filter(|engine| !known.contains(engine)) {
        None => Ok(()),
        Some(engine) => Err(Error::wrong(
            Code::Engine,
            format!(
                "this solkv has no such engine: file={} engine={engine} known={}: use the version that made the store, or \
                 load it again into another directory",
                path.display(),
                known.join(",")
            ),
        )),
    }
}

fn identity(text: &str) -> std::result::Result<Identity, toml::de::Error> {
    let mut identity: Identity = toml::from_str(text)?;
    if identity.options.is_empty() {
        let Untabled { bloom, profile } = toml::from_str(text)?;
        let found = [("bloom", bloom.map(|bits| bits.to_string())), ("profile", profile)];
        let taken = found.into_iter().filter(|(name, _)| identity.engine.descriptor().options.contains(name));
        identity.options = taken.filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
    }
    Ok(identity)
}

/// Writes or replaces the marker of `dir` durably.
pub(crate) fn write(dir: &Path, identity: &Identity) -> Result<()> {
    let text = toml::to_string(identity)
        .map_err(|e| Error::with_source(ErrorKind::Internal, "cannot write the marker as toml", e))?;
    checked::write(&dir.join(MARKER), &text)
}

/// Returns the kind of the I/O error that caused `error`, if there was one.
fn io_kind(error: &Error) -> Option<Io> {
    std::error::Error::source(error)?.downcast_ref::<io::Error>().map(io::Error::kind)
}

fn damaged(path: &Path, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    let source = source.into();
    Error::with_source(
        ErrorKind::DataDamaged,
        format!("marker is damaged: file={} reason={source}", path.display()),
        source,
    )
    .with_way_out("put it back from a copy, or restore a snapshot")
}
