//! Bytes and places that connections hold: each source's account, and the share that each may take.
//!
//! Owns: these counts, the shares, and removing the accounts of sources that have gone. Must not: know a connection.
//! Threads: the network edge.
//!
//! Each connection, each source (an address, a /64, a user of the Unix socket) and the whole network have a share. So none
//! of them can keep the others out.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, Weak};

use crate::base::lock;
use crate::net::figures::{Place, Scope};
use crate::net::limit::UDS_SHARE;
use crate::net::source::Source;

/// Number of sources from which on the accounts are searched for empty ones.
const SWEEP_MIN: usize = 64;

/// One connection may take one in this many places: a program that keeps several requests under way stays well below
/// it.
const CONNECTION_SHARE: u64 = 4;

/// One source may take one in this many places: half. All clients of a machine may come from one address or run as one
/// user, and the other half is still free for everybody else.
const SOURCE_SHARE: u64 = 2;

/// Smallest share of subscribers, for few connections: a service that allows two may have both on one
/// machine.
const SUBSCRIBERS_MIN: u64 = 4;

/// Returns the scopes in which the places of a client count, the narrowest first, and the share of each in `max` places.
pub(super) fn shares(place: Place, max: u64, is_network: bool) -> impl Iterator<Item = (Scope, u64)> {
    Scope::ALL
        .into_iter()
        .filter(move |scope| is_network || *scope != Scope::Network)
        .map(move |scope| (scope, share(place, max, scope)))
}

/// Returns the share of a scope in `max` places.
pub(super) fn share(place: Place, max: u64, scope: Scope) -> u64 {
    let least = if place == Place::Subscribers { SUBSCRIBERS_MIN } else { 1 };
    let of = |share: u64| (max / share).max(least).min(max);
    match scope {
        Scope::Connection => of(CONNECTION_SHARE),
        Scope::Source => of(SOURCE_SHARE),
        Scope::Network => max - max / u64::from(UDS_SHARE),
        Scope::All => max,
    }
}

/// Number of places taken, by kind.
#[derive(Debug, Default)]
pub(super) struct Taken([AtomicU64; Place::ALL.len()]);

impl Taken {
    pub(super) fn of(&self, place: Place) -> &AtomicU64 {
        &self.0[place as usize]
    }
}

/// The accounts of all sources, and the places taken over the network.
#[derive(Debug, Default)]
pub(super) struct Places {
    pub(super) network: Taken,
    accounts: Mutex<Accounts>,
}

#[derive(Debug, Default)]
struct Accounts {
    by_source: HashMap<Source, Weak<Taken>>,
    /// Number of accounts at which the ended ones are removed.
    sweep_at: usize,
}

impl Places {
    /// Returns the account of a source.
    pub(super) fn account(&self, source: Source) -> Arc<Taken> {
        let mut accounts = lock(&self.accounts);
        if let Some(account) = accounts.by_source.get(&source).and_then(Weak::upgrade) {
            return account;
        }
        if accounts.by_source.len() >= accounts.sweep_at {
            accounts.by_source.retain(|_, account| account.strong_count() > 0);
            accounts.sweep_at = SWEEP_MIN.max(accounts.by_source.len() * 2);
        }
        let account = Arc::new(Taken::default());
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
