//! Places that clients share (subscriptions, waits, batches, dumps), and the share of them that one peer may take.
//!
//! Owns: the shares, and counting. Each connection, each source (an address, a /64, a user of the Unix socket) and the
//! whole network have a share. So none of them can keep the others out. Must not: wait. A request without a place is
//! refused, and the rule is counted. Threads: the network edge.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tonic::Status;

use super::budget::Peer;
use crate::net::figures::{Place, Scope};
use crate::net::source::Source;

/// One connection may take one in this many places: a program that keeps several requests under way stays well below
/// it.
const CONNECTION_SHARE: u64 = 4;

/// One source may take one in this many places: half. All clients of a machine may come from one address or run as one
/// user, and the other half is still free for everybody else.
const SOURCE_SHARE: u64 = 2;

/// One in this many places is reserved for the Unix socket, as with connections.
const UDS_SHARE: u64 = 8;

/// Smallest share of subscribers, for a small `feed_subscribers`: a service that allows two may have both on one
/// machine.
const SUBSCRIBERS_MIN: u64 = 4;

/// Number of sources from which on the accounts are searched for empty ones.
const SWEEP_MIN: usize = 64;

/// Bytes and places that one source holds, over all its connections.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) bytes: AtomicU64,
    places: Taken,
}

/// Number of places taken, by kind.
#[derive(Debug, Default)]
pub(super) struct Taken([AtomicU64; Place::ALL.len()]);

impl Taken {
    fn of(&self, place: Place) -> &AtomicU64 {
        &self.0[place as usize]
    }
}

/// The places that all connections share.
#[derive(Debug, Default)]
pub(super) struct Places {
    all: Taken,
    network: Taken,
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

    /// Takes `count` of the `max` places of a kind for a connection.
    ///
    /// # Errors
    /// A share is used up; the status says which.
    pub(super) fn take(peer: &Arc<Peer>, place: Place, count: u64, max: u64) -> Result<Taking, Status> {
        let taking = Taking { peer: Arc::clone(peer), place, count, scopes: 0 };
        taking.take(max)
    }
}

/// Places held until this is dropped.
#[derive(Debug)]
pub(super) struct Taking {
    peer: Arc<Peer>,
    place: Place,
    count: u64,
    /// Number of scopes in which the places are counted already.
    scopes: usize,
}

impl Taking {
    fn take(mut self, max: u64) -> Result<Self, Status> {
        for (scope, share) in self.scopes(max) {
            let add = |taken: u64| taken.checked_add(self.count).filter(|taken| *taken <= share);
            // ORDERING: Relaxed: the sum alone decides; it guards no other memory.
            let taken = self.counter(scope).fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
            if taken.is_err() {
                self.peer.figures().no_place(self.place, scope);
                return Err(refusal(self.place, scope, share));
            }
            self.scopes += 1;
        }
        Ok(self)
    }

    /// Returns the scopes in which the places count, the narrowest first, and the share of each.
    fn scopes(&self, max: u64) -> impl Iterator<Item = (Scope, u64)> + use<> {
        let least = if self.place == Place::Subscribers { SUBSCRIBERS_MIN } else { 1 };
        let of = |share: u64| (max / share).max(least).min(max);
        let network = self.peer.source().is_network();
        [
            Some((Scope::Connection, of(CONNECTION_SHARE))),
            Some((Scope::Source, of(SOURCE_SHARE))),
            Some((Scope::All, max)),
            network.then_some((Scope::Network, max - max / UDS_SHARE)),
        ]
        .into_iter()
        .flatten()
    }

    fn counter(&self, scope: Scope) -> &AtomicU64 {
        match scope {
            Scope::Connection => self.peer.places.of(self.place),
            Scope::Source => self.peer.account.places.of(self.place),
            Scope::Network => self.peer.all_places().network.of(self.place),
            Scope::All => self.peer.all_places().all.of(self.place),
        }
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        for (scope, _) in self.scopes(0).take(self.scopes) {
            // ORDERING: Relaxed: see `take`.
            self.counter(scope).fetch_sub(self.count, Ordering::Relaxed);
        }
    }
}

fn refusal(place: Place, scope: Scope, max: u64) -> Status {
    let what = match place {
        Place::Subscribers => "subscribers",
        Place::Waiters => "requests that wait for a slot",
        Place::Batches => "batches under way",
        Place::Dumps => "dumps under way",
        Place::Bytes => "bytes",
    };
    let whose = match scope {
        Scope::Connection => " on this connection",
        Scope::Source => " from this address or user",
        Scope::Network => " over the network",
        Scope::All => "",
    };
    Status::resource_exhausted(format!("too many {what}{whose}, try again later: max={max}"))
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::super::budget::Budget;
    use super::*;
    use crate::net::figures::Figures;
    use crate::net::limit::tests::source;

    const MAX: u64 = 16;

    fn take_all(peer: &Arc<Peer>) -> Vec<Taking> {
        std::iter::from_fn(|| Places::take(peer, Place::Waiters, 1, MAX).ok()).collect()
    }

    #[test]
    fn a_connection_a_source_and_the_network_have_a_share_each_and_give_it_back() {
        let figures = Arc::<Figures>::default();
        let budget = Budget::new(Arc::clone(&figures));
        let peer = |source| Peer::of_test(&budget, source);
        let [one, two, three] = [(); 3].map(|()| peer(source(1)));
        let held = [take_all(&one), take_all(&two), take_all(&three)];
        assert_eq!(held.each_ref().map(Vec::len), [4, 4, 0], "a quarter a connection, half a source");
        let others: Vec<_> = (2..5).map(|n| take_all(&peer(source(n)))).collect();
        assert_eq!(others.iter().map(Vec::len).collect::<Vec<_>>(), [4, 2, 0], "an eighth is not the network's");
        let local = take_all(&peer(Source::User(0)));
        assert_eq!(local.len(), 2);
        let refused = |scope| figures.refused_places(Place::Waiters, scope);
        assert_eq!(Scope::ALL.map(refused), [3, 1, 2, 1]);
        let refused = Places::take(&three, Place::Waiters, 1, MAX).unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(refused.message().contains("from this address") && refused.message().contains("max=8"), "{refused}");
        drop((held, others, local));
        assert_eq!(take_all(&three).len(), 4, "and what was refused at a wider scope is not kept at a narrower one");
        assert!(Places::take(&one, Place::Waiters, 5, MAX).is_err(), "several at once");
        let few = Places::take(&one, Place::Dumps, 1, 2).unwrap();
        assert!(Places::take(&two, Place::Dumps, 1, 2).is_err());
        drop((few, Places::take(&peer(source(9)), Place::Dumps, 1, 2).unwrap()));
        let both = [(); 2].map(|()| Places::take(&one, Place::Subscribers, 1, 2));
        assert!(both.iter().all(Result::is_ok), "whoever allows two may have both on one machine");
    }

    #[test]
    fn the_accounts_of_sources_that_have_gone_are_not_kept() {
        let budget = Budget::new(Arc::<Figures>::default());
        for n in 0..10_000u32 {
            Peer::of_test(&budget, Source::User(n));
        }
        assert!(budget.places.accounts.lock().unwrap().by_source.len() <= SWEEP_MIN);
    }
}
