//! `bootstrap.toml` in the store's directory: which source a load reads and whether it has ended.
//!
//! Owns: that file. How far a load has come is the engine's checkpoint, never this file's word.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::identity::Stamp;
use crate::order::Order;

const FILE: &str = "bootstrap.toml";

/// A load's identity and outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    /// The source in words.
    pub(crate) source: String,
    /// The source and its order as a number, as in the checkpoint.
    pub(crate) source_id: String,
    /// Records in the source, duplicates included.
    pub(crate) records: u64,
    /// Distinct pairs loaded; set when the load is complete.
    pub(crate) pairs: Option<u64>,
    /// The slot that the pairs were said to stand for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) slot: Option<u64>,
    /// The order of the load; `None` for a migration, and in the file of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) order: Option<Order>,
    /// The digest of a file's or standard input's records, as hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
    /// What the file system said of the file when it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stamp: Option<Stamp>,
}

impl State {
    pub(crate) fn read(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(FILE);
        match fs::read_to_string(&path) {
            Ok(text) => toml::from_str(&text).map(Some).with_context(|| format!("cannot read file={}", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read file={}", path.display())),
        }
    }

    pub(crate) fn write(&self, dir: &Path) -> Result<()> {
        write_atomically(&dir.join(FILE), toml::to_string(self)?.as_bytes())
    }
}

/// Replaces `path` by a complete file or leaves it as it was.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let part = path.with_extension("part");
    let write = || {
        let mut file = File::create(&part)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&part, path)?;
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    };
    write().with_context(|| format!("cannot write file={}", path.display()))
}
