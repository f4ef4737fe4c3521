//! The keys and values of a stream: known ones from the seed or a file, and keys that the stream creates.
//!
//! Owns: the bytes of every update's key and value, by id. Must not: know the state of a key. Used by the `chain`
//! thread, by each connection's task and by `loadgen archive`.

use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use workload::{Key, Pairs, Value};

use crate::stream::options::Workload;

/// Bit that is set in the id of a key outside the known ones.
pub(super) const CREATED: u64 = 1 << 63;

/// The keys and values for the ids that updates carry.
#[derive(Debug)]
pub struct Keys {
    pairs: Pairs,
    created_values: Pairs,
    file: Option<Vec<Key>>,
    known: u64,
}

impl Keys {
    /// Loads the known keys of `options`, from its file if it names one.
    pub(crate) fn load(options: &Workload) -> Result<Self> {
        let file = options.keys.as_deref().map(read_keys).transpose()?;
        let known = file.as_ref().map_or(options.pairs, |keys| keys.len() as u64);
        let created_values = Pairs::new(options.seed ^ 0x0063_7265_6174_6564);
        Ok(Self { pairs: Pairs::new(options.seed), created_values, file, known })
    }

    /// Returns the number of known keys.
    pub(crate) fn known(&self) -> u64 {
        self.known
    }

    /// Returns the address for an update's id.
    pub(crate) fn key(&self, id: u64) -> Key {
        if id & CREATED != 0 {
            return self.pairs.absent_key(id & !CREATED);
        }
        match &self.file {
            Some(keys) => keys[id as usize],
            None => self.pairs.key(id),
        }
    }

    /// Returns the value for an update's id at `version`.
    pub(crate) fn value(&self, id: u64, version: u32) -> Value {
        let pairs = if id & CREATED == 0 { self.pairs } else { self.created_values };
        pairs.value(id & !CREATED, version)
    }
}

fn read_keys(path: &Path) -> Result<Vec<Key>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read keys: file={}", path.display()))?;
    let mut keys = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let key = workload::pubkey(line.trim());
        keys.push(key.map_err(|wrong| anyhow!("{wrong} file={} line={}", path.display(), index + 1))?);
    }
    ensure!(!keys.is_empty(), "no keys in file={}", path.display());
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        let key = bs58::encode(pair[0]).into_string();
        anyhow::bail!("key given twice: file={} key={key}; remove one of the lines", path.display());
    }
    Ok(keys)
}
