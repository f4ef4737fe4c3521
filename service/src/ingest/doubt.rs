//! A contradiction of the store's newest block, remembered across restarts.
//!
//! Owns: the file that names the block and the reason. Must not: decide how a heal goes. Runs on the ingest-apply
//! thread.
//!
//! As long as nobody has decided between the two blocks, the store may hold values of a wrong one, and a heal needs an
//! archive with every account. The file means nothing once the store stands at another block.

use std::path::{Path, PathBuf};
use std::time::Duration;

use engines::checked::{self, Found};
use serde::{Deserialize, Serialize};
use solana::ChainCheckpoint;
use tokio::time::Instant;
use tracing::warn;

use crate::chain::{Base, Gap};
use crate::readiness::Readiness;

/// Name of the file within the store's directory.
const FILE: &str = "contradiction.toml";

/// Wait after a failed write. The disk may have room again.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The file, and the block that it names.
#[derive(Debug)]
pub(super) struct Doubt {
    path: PathBuf,
    noted: Option<Base>,
    /// End of the wait after a failed write.
    retry_at: Option<Instant>,
}

/// The text of the file.
#[derive(Debug, Deserialize, Serialize)]
struct Noted {
    slot: u64,
    blockhash: String,
    reason: String,
}

impl Doubt {
    /// Opens the file in the directory of a store at `checkpoint`. Tells `readiness` of the contradiction that an earlier
    /// process has noted for that block. A file that cannot be read counts as one.
    pub(super) fn begin(dir: &Path, checkpoint: &ChainCheckpoint, readiness: &Readiness) -> Self {
        let (path, base) = (dir.join(FILE), base_of(checkpoint));
        let why = match checked::read(&path) {
            Ok(None) => None,
            Ok(Some(Found::Whole(text))) => reason(&text, base),
            Ok(Some(Found::Unchecked(_) | Found::Damaged)) => Some(format!("{FILE} is damaged")),
            Err(failed) => Some(failed.to_string()),
        };
        let noted = base.filter(|_| why.is_some());
        if let Some(detail) = why {
            warn!(slot = checkpoint.slot, detail, "the store's newest block was contradicted before the restart");
            let next_slot = checkpoint.slot.map_or(0, |slot| slot + 1);
            readiness.set_contradiction(Gap { first_slot: next_slot, last_slot: next_slot, detail, contradicts: true });
        }
        Self { path, noted, retry_at: None }
    }

    /// Notes the contradiction of a store at `checkpoint`, if there is one. Flushes the file, once for each block.
    pub(super) fn remember(&mut self, readiness: &Readiness, checkpoint: &ChainCheckpoint) {
        let Some((gap, base)) = readiness.contradiction().zip(base_of(checkpoint)) else { return };
        if self.noted == Some(base) || self.retry_at.is_some_and(|at| Instant::now() < at) {
            return;
        }
        let noted = Noted { slot: base.slot, blockhash: base58(base), reason: gap.detail.clone() };
        match checked::write(&self.path, &toml::to_string(&noted).expect("three plain values")) {
            Ok(()) => (self.noted, self.retry_at) = (Some(base), None),
            Err(failed) => {
                self.retry_at = Some(Instant::now() + RETRY_AFTER);
                warn!(error = %failed, "a restart would not know that the newest block is contradicted");
            }
        }
    }
}

fn base_of(checkpoint: &ChainCheckpoint) -> Option<Base> {
    checkpoint.slot.map(|slot| Base { slot, blockhash: checkpoint.blockhash })
}

/// Returns the reason if it is about `base`.
fn reason(text: &str, base: Option<Base>) -> Option<String> {
    let Ok(Noted { slot, blockhash, reason }) = toml::from_str(text) else { return Some(format!("{FILE} is damaged")) };
    base.filter(|base| slot == base.slot && blockhash == base58(*base)).map(|_| reason)
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
        std::fs::write(temp.path().join(FILE), "slot = 11").unwrap();
        assert!(open(at(11, 1)).1.is_some(), "nobody knows what it said");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_write_is_tried_again_after_a_while() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, checkpoint) = (temp.path().join("missing"), ChainCheckpoint { slot: Some(11), ..Default::default() });
        let state = State::at(checkpoint);
        let mut doubt = Doubt::begin(&dir, &checkpoint, &state.readiness);
        let gap = Gap { first_slot: 12, last_slot: 12, detail: "another parent".to_owned(), contradicts: true };
        state.readiness.set_contradiction(gap);
        doubt.remember(&state.readiness, &checkpoint);
        std::fs::create_dir(&dir).unwrap();
        doubt.remember(&state.readiness, &checkpoint);
        assert!(!dir.join(FILE).exists(), "not with each message");
        tokio::time::advance(RETRY_AFTER).await;
        doubt.remember(&state.readiness, &checkpoint);
        assert!(dir.join(FILE).exists());
    }
}
