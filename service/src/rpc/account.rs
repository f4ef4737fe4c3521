//! Bytes and places that connections hold: each source's account, and the places of all.
//!
//! Owns: these counts, and removing the accounts of sources that have gone. Must not: know a connection, or a share.
//! Threads: the network edge.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::net::figures::Place;
use crate::net::source::Source;

/// Number of sources from which on the accounts are searched for empty ones.
const SWEEP_MIN: usize = 64;

/// Bytes and places that one source holds, over all its connections.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) bytes: AtomicU64,
    pub(super) places: Taken,
}

/// Number of places taken, by kind.
#[derive(Debug, Default)]
pub(super) struct Taken([AtomicU64; Place::ALL.len()]);

impl Taken {
    pub(super) fn of(&self, place: Place) -> &AtomicU64 {
        &self.0[place as usize]
    }
}

/// The places that all connections share.
#[derive(Debug, Default)]
pub(super) struct Places {
    pub(super) all: Taken,
    pub(super) network: Taken,
    accounts: Mutex<Accounts>,
}

#[derive(Debug, Default)]
struct Accounts {
    by_source: HashMap<Source, Weak<Account>>,
    /// Number of accounts at which the ended ones are removed.
    sweep_at: usize,
}

impl Places {
    /// Returns the account of a source.
    pub(super) fn account(&self, source: Source) -> Arc<Account> {
        // A poisoned lock is safe: every change of the accounts is complete before anything that could panic.
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = accounts.by_source.get(&source).and_then(Weak::upgrade) {
            return account;
        }
        if accounts.by_source.len() >= accounts.sweep_at {
            accounts.by_source.retain(|_, account| account.strong_count() > 0);
            accounts.sweep_at = SWEEP_MIN.max(accounts.by_source.len() * 2);
        }
        let account = Arc::new(Account::default());
        accounts.by_source.insert(source, Arc::downgrade(&account));
        account
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accounts_of_sources_that_have_gone_are_not_kept() {
        let places = Places::default();
        for n in 0..10_000u32 {
            places.account(Source::User(n));
        }
        assert!(places.accounts.lock().unwrap().by_source.len() <= SWEEP_MIN);
    }
}
