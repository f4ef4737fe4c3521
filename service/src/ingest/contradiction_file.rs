//! A contradiction of the store's chain, remembered across restarts.
//!
//! Owns: the file that names the contradicted block, its provider and the reason. Must not: decide how a heal goes.
//! Runs on the ingest-apply thread.
//!
//! While a contradiction is open, the store may hold values of a wrong block, also in later slots of the same provider.
//! A heal then needs an archive with every account.
//!
//! A contradiction is open until two sources agree: a provider other than that of the contradicted block confirms the
//! block by its next slot, or a heal ends. Slots from the provider of that block do not settle it. The store may follow
//! its fork meanwhile; a heal then reverts the whole fork. A copy of the store keeps the file, because it has the same
//! values.

use std::path::{Path, PathBuf};
use std::time::Duration;

use engine_api::Error;
use engines::CONTRADICTION;
use engines::checked::{self, Found};
use serde::{Deserialize, Serialize};
use solana::ChainCheckpoint;
use tokio::time::Instant;
use tracing::warn;

use super::State;
use crate::base::chain::{Base, Contradiction, Gap};

/// Wait after a failed write. The disk may have room again.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The file, and the contradiction in it.
#[derive(Debug)]
pub(super) struct ContradictionFile {
    path: PathBuf,
    /// The accused provider of the contradiction in the file; `None` without a file.
    noted: Option<Option<usize>>,
    /// End of the wait after a failed write.
    retry_at: Option<Instant>,
}

/// The text of the file.
#[derive(Debug, Deserialize, Serialize)]
struct Noted {
    /// Slot of the contradicted block, whose blockhash follows.
    slot: u64,
    blockhash: String,
    /// Name of the provider that had sent it; empty if it is not known.
    provider: String,
    reason: String,
}

impl ContradictionFile {
    /// Opens the file in the directory of a store at `checkpoint`. Publishes in `state` the contradiction that an
    /// earlier process has noted for that block or one before it. A file that cannot be read counts as one.
    pub(super) fn begin(dir: &Path, checkpoint: &ChainCheckpoint, state: &State) -> Self {
        let path = dir.join(CONTRADICTION);
        let damaged = || Some((format!("{CONTRADICTION} is damaged"), String::new()));
        let (exists, found) = match checked::read(&path) {
            Ok(None) => (false, None),
            Ok(Some(Found::Whole(text))) => match toml::from_str::<Noted>(&text) {
                Ok(noted) => (true, is_of(&noted, checkpoint).then_some((noted.reason, noted.provider))),
                Err(_) => (true, damaged()),
            },
            Ok(Some(Found::Unchecked(_) | Found::Damaged)) => (true, damaged()),
            Err(failed) => (true, Some((failed.to_string(), String::new()))),
        };
        let mut accused = None;
        if let Some((detail, provider)) = found {
            warn!(slot = checkpoint.slot, detail, "the store's chain was contradicted before the restart");
            let next_slot = checkpoint.slot.map_or(0, |slot| slot.saturating_add(1));
            let gap = Gap { first_slot: next_slot, last_slot: next_slot, detail, contradicts: true };
            accused = state.providers.accused(&provider);
            state.progress.contradict(&gap, accused);
        }
        Self { path, noted: exists.then_some(accused), retry_at: None }
    }

    /// Notes the contradiction of a store at `checkpoint`, if there is one, and flushes the file, once for each accused
    /// provider. Removes the file of one that is decided.
    pub(super) fn remember(&mut self, state: &State, checkpoint: &ChainCheckpoint) {
        let contradiction = state.progress.contradiction();
        if self.noted == contradiction.as_ref().map(|of| of.accused)
            || self.retry_at.is_some_and(|at| Instant::now() < at)
        {
            return;
        }
        let done = match contradiction.as_deref().zip(base_of(checkpoint)) {
            Some((Contradiction { gap, accused }, base)) => {
                let provider = accused.map_or("", |index| state.providers.name(index)).to_owned();
                let reason = gap.detail.clone();
                let noted = Noted { slot: base.slot, blockhash: base58(base), provider, reason };
                checked::write(&self.path, &toml::to_string(&noted).expect("plain values"))
            }
            None => match std::fs::remove_file(&self.path) {
                Err(failed) if failed.kind() != std::io::ErrorKind::NotFound => {
                    Err(Error::io(format!("cannot remove file={}", self.path.display()), failed))
                }
                _ => Ok(()),
            },
        };
        match done {
            Ok(()) => (self.noted, self.retry_at) = (contradiction.map(|of| of.accused), None),
            Err(failed) => {
                self.retry_at = Some(Instant::now() + RETRY_AFTER);
                warn!(error = %failed, "a restart would not know whether the store's chain is contradicted");
            }
        }
    }
}

/// Whether the contradiction is one of the store's chain. The store may have gone on after the contradicted block. A power
/// loss may have taken it back to a block before, to which the other provider may object as well.
fn is_of(noted: &Noted, checkpoint: &ChainCheckpoint) -> bool {
    base_of(checkpoint).is_some_and(|base| base.slot != noted.slot || base58(base) == noted.blockhash)
}

fn base_of(checkpoint: &ChainCheckpoint) -> Option<Base> {
    checkpoint.slot.map(|slot| Base { slot, blockhash: checkpoint.blockhash })
}

fn base58(base: Base) -> String {
    bs58::encode(base.blockhash).into_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contradict(state: &State, detail: &str) {
        let gap = Gap { first_slot: 12, last_slot: 12, detail: detail.to_owned(), contradicts: true };
        state.progress.contradict(&gap, Some(1));
    }

    fn state_at(checkpoint: ChainCheckpoint) -> State {
        State::at(checkpoint).with_providers(["a", "b"].map(str::to_owned))
    }

    #[test]
    fn a_contradiction_is_remembered_until_it_is_decided() {
        let temp = tempfile::tempdir().unwrap();
        let at = |slot, hash| ChainCheckpoint { slot: Some(slot), blockhash: [hash; 32], ..ChainCheckpoint::default() };
        let open = |checkpoint| {
            let state = state_at(checkpoint);
            let contradiction_file = ContradictionFile::begin(temp.path(), &checkpoint, &state);
            (contradiction_file, state.progress.contradiction().map(|of| (of.gap.detail.clone(), of.accused)), state)
        };
        let told = |detail: &str| Some((detail.to_owned(), Some(1)));
        let (mut contradiction_file, none, state) = open(at(11, 1));
        assert_eq!(none, None);
        contradict(&state, "another parent");
        contradiction_file.remember(&state, &at(11, 1));
        for same_chain in [at(11, 1), at(12, 7), at(10, 1)] {
            assert_eq!(open(same_chain).1, told("another parent"));
        }
        for other in [at(11, 2), ChainCheckpoint::default()] {
            assert_eq!(open(other).1, None, "{other:?}");
        }
        contradiction_file.remember(&state, &at(12, 7));
        assert_eq!(open(at(11, 1)).1, told("another parent"), "it is not written again for each slot");
        state.progress.contradiction_is_over();
        contradiction_file.remember(&state, &at(13, 1));
        assert_eq!(open(at(13, 1)).1, None);
        std::fs::write(temp.path().join(CONTRADICTION), "slot = 11").unwrap();
        let (mut contradiction_file, found, state) = open(at(11, 1));
        assert!(found.is_some(), "nobody knows what it said");
        state.progress.contradiction_is_over();
        contradiction_file.remember(&state, &at(11, 1));
        assert_eq!(open(at(11, 1)).1, None);
        contradict(&state, "a file that somebody removes");
        contradiction_file.remember(&state, &at(11, 1));
        std::fs::remove_file(temp.path().join(CONTRADICTION)).unwrap();
        state.progress.contradiction_is_over();
        contradiction_file.remember(&state, &at(11, 1));
        assert_eq!(contradiction_file.retry_at, None, "there is nothing to remove");
        contradict(&state, "of a provider that is removed");
        contradiction_file.remember(&state, &at(11, 1));
        let state = State::at(at(11, 1)).with_providers(["a".to_owned()]);
        ContradictionFile::begin(temp.path(), &at(11, 1), &state);
        assert!(state.progress.contradiction().is_some());
        state.progress.chain_goes_on(12, 0);
        assert!(state.progress.contradiction().is_none(), "the only provider is not the accused one");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_write_is_tried_again_after_a_while() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, checkpoint) = (temp.path().join("missing"), ChainCheckpoint { slot: Some(11), ..Default::default() });
        let state = state_at(checkpoint);
        let mut contradiction_file = ContradictionFile::begin(&dir, &checkpoint, &state);
        contradict(&state, "another parent");
        contradiction_file.remember(&state, &checkpoint);
        std::fs::create_dir(&dir).unwrap();
        contradiction_file.remember(&state, &checkpoint);
        assert!(!dir.join(CONTRADICTION).exists(), "not with each message");
        tokio::time::advance(RETRY_AFTER).await;
        contradiction_file.remember(&state, &checkpoint);
        assert!(dir.join(CONTRADICTION).exists());
    }
}
