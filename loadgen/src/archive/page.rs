//! One file of accounts while it is filled, and the counts of everything that was put into such files.
//!
//! Owns: the fields of a record that say nothing: the garbage after `executable`, the epoch of rent. Must not: choose
//! accounts. Runs on the thread that writes the archive.

use std::collections::BTreeMap;

use clap::ValueEnum as _;
use serde::Serialize;
use workload::{Key, Rng};

use super::oddity::Oddity;
use super::records::{AccountsFile, Record};
use crate::stream::account::Account;

/// Epochs of rent that accounts from before 2022 still have. All others have 2^64-1.
const RENT_EPOCHS: [u64; 3] = [0, 361, 12_345];

/// File of a group, in the order in which their versions replace each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layer {
    /// Versions that newer ones replace.
    Older,
    /// Closes, and moves to another program, of accounts that may have come back.
    Middle,
    /// Versions that were replaced in the slot of the current ones.
    First,
    /// The newest versions from before the stream.
    Current,
}

impl Layer {
    pub(super) const ALL: [Self; 4] = [Self::Older, Self::Middle, Self::First, Self::Current];
}

/// Numbers of an archive's contents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Files of accounts that the archive has.
    pub files: u64,
    /// Versions of accounts in all files.
    pub records: u64,
    /// Versions without lamports, which close accounts.
    pub tombstones: u64,
    /// Times that each oddity occurs.
    pub oddities: BTreeMap<Oddity, u64>,
}

/// The file that is being filled.
pub(super) struct Page {
    file: AccountsFile,
    garbage: Rng,
    counts: Counts,
}

impl Page {
    /// Starts an empty file. `seed` decides the bytes that say nothing.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            file: AccountsFile::default(),
            garbage: Rng::new(seed),
            counts: Counts {
                oddities: Oddity::value_variants().iter().map(|oddity| (*oddity, 0)).collect(),
                ..Counts::default()
            },
        }
    }

    /// Appends a version of an account with `data`, which may be shorter than the account's own.
    pub(super) fn push(&mut self, key: &Key, account: &Account, data: &[u8], executable: bool) {
        self.counts.records += 1;
        self.counts.tombstones += u64::from(account.lamports == 0);
        let [garbage @ .., rent] = self.garbage.next_u64().to_le_bytes();
        let rent_epoch = RENT_EPOCHS.get(usize::from(rent)).copied().unwrap_or(u64::MAX);
        let (lamports, owner) = (account.lamports, &account.owner);
        self.file.push(&Record { key, lamports, rent_epoch, owner, executable, garbage, data });
    }

    /// Appends a tombstone. agave writes every account without lamports like this, whatever it was before.
    pub(super) fn push_closed(&mut self, key: &Key) {
        self.push(key, &Account::closed(), &[], false);
    }

    /// Counts an oddity that was put into the archive.
    pub(super) fn note(&mut self, oddity: Oddity) {
        *self.counts.oddities.entry(oddity).or_default() += 1;
    }

    /// Fills the file up with zeros.
    pub(super) fn pad(&mut self) {
        if self.file.pad() {
            self.note(Oddity::Padding);
        }
    }

    /// Returns everything that the file holds.
    pub(super) fn bytes(&self) -> &[u8] {
        self.file.bytes()
    }

    /// Continues with the next file, which is empty. Counts the last one if it was not.
    pub(super) fn turn(&mut self) {
        self.counts.files += u64::from(!self.file.bytes().is_empty());
        self.file.clear();
    }

    /// Returns the counts of everything that was put into files.
    pub(super) fn counts(self) -> Counts {
        self.counts
    }
}
