//! A contradiction of the store's newest block, remembered across restarts.
//!
//! Owns: the file that names the block and the reason. Must not: decide how a heal goes. Runs on the ingest-apply
//! thread.
//!
//! As long as nobody has decided between the two blocks, the store may hold values of a wrong one, and a heal needs an
//! archive with every account. The file means nothing once the store stands at another block.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use solana::ChainCheckpoint;
use tracing::warn;

use crate::chain::{Base, Gap};
use crate::readiness::Readiness;

/// Name of the file within the store's directory.
const FILE: &str = "contradiction.json";

/// The file, and the block that it names.
#[derive(Debug)]
pub(super) struct Doubt {
    path: PathBuf,
    noted: Option<Base>,
}

impl Doubt {
    /// Opens the file in the directory of a store at `checkpoint`. Tells `readiness` of the contradiction that an earlier
    /// process has noted for that block. A file that cannot be read counts as one.
    pub(super) fn begin(dir: &Path, checkpoint: &ChainCheckpoint, readiness: &Readiness) -> Self {
        let (path, base) = (dir.join(FILE), base_of(checkpoint));
        let why = match fs::read(&path) {
            Ok(bytes) => reason(&bytes, base),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => Some(format!("cannot read file={}: reason={error}", path.display())),
        };
        let noted = base.filter(|_| why.is_some());
        if let Some(detail) = why {
            warn!(slot = checkpoint.slot, detail, "the store's newest block was contradicted before the restart");
            let next_slot = checkpoint.slot.map_or(0, |slot| slot + 1);
            readiness.set_contradiction(Gap { first_slot: next_slot, last_slot: next_slot, detail, contradicts: true });
        }
        Self { path, noted }
    }

    /// Notes the contradiction of a store at `checkpoint`, if there is one. Flushes the file, once for each block.
    pub(super) fn remember(&mut self, readiness: &Readiness, checkpoint: &ChainCheckpoint) {
        let Some((gap, base)) = readiness.contradiction().zip(base_of(checkpoint)) else { return };
        if self.noted == Some(base) {
            return;
        }
        let text = json!({ "slot": base.slot, "blockhash": base58(base), "reason": gap.detail }).to_string();
        match write(&self.path, text.as_bytes()) {
            Ok(()) => self.noted = Some(base),
            // It is tried again with the next message.
            Err(error) => {
                warn!(%error, file = %self.path.display(), "a restart will not know that the newest block is contradicted");
            }
        }
    }
}

fn base_of(checkpoint: &ChainCheckpoint) -> Option<Base> {
    checkpoint.slot.map(|slot| Base { slot, blockhash: checkpoint.blockhash })
}

/// Returns the reason if it is about `base`.
fn reason(bytes: &[u8], base: Option<Base>) -> Option<String> {
    let Ok(noted) = serde_json::from_slice::<Value>(bytes) else {
        return Some(format!("{FILE} cannot be read"));
    };
    let is_of = |base: &Base| noted["slot"] == base.slot && noted["blockhash"] == base58(*base);
    base.filter(is_of).map(|_| noted["reason"].as_str().unwrap_or_default().to_owned())
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

fn base58(base: Base) -> String {
    bs58::encode(base.blockhash).into_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingest::State;

    #[test]
    fn a_contradiction_is_remembered_for_its_block_alone() {
        let temp = tempfile::tempdir().unwrap();
        let at = |slot, hash| ChainCheckpoint { slot: Some(slot), blockhash: [hash; 32], ..ChainCheckpoint::default() };
        let open = |checkpoint| {
            let state = State::at(checkpoint);
            let doubt = Doubt::begin(temp.path(), &checkpoint, &state.readiness);
            (doubt, state.readiness.contradiction().map(|gap| gap.detail.clone()), state)
        };
        let remember = |checkpoint, detail: &str| {
            let (mut doubt, _, state) = open(checkpoint);
            let gap = Gap { first_slot: 12, last_slot: 12, detail: detail.to_owned(), contradicts: true };
            state.readiness.set_contradiction(gap);
            doubt.remember(&state.readiness, &checkpoint);
        };
        assert_eq!(open(at(11, 1)).1, None);
        remember(at(11, 1), "another parent");
        assert_eq!(open(at(11, 1)).1.as_deref(), Some("another parent"));
        for other in [at(11, 2), at(12, 1), ChainCheckpoint::default()] {
            assert_eq!(open(other).1, None, "{other:?}");
        }
        remember(at(11, 2), "the next one");
        assert_eq!((open(at(11, 1)).1, open(at(11, 2)).1.as_deref()), (None, Some("the next one")));
        fs::write(temp.path().join(FILE), "{").unwrap();
        assert!(open(at(11, 1)).1.is_some(), "nobody knows what it said");
    }
}
