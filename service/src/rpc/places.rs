//! Places that clients share (subscriptions, waits, batches, dumps), and the share of them that one peer may take.
//!
//! Owns: the shares, and counting. Each connection, each source (an address, a /64, a user of the Unix socket) and the
//! whole network have a share. So none of them can keep the others out. Must not: wait. A request without a place is
//! refused, and the rule is counted. Threads: the network edge.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tonic::Status;

use super::budget::Peer;
use crate::net::figures::{Place, Scope};

/// One connection may take one in this many places: a program that keeps several requests under way stays well below
/// it.
const CONNECTION_SHARE: u64 = 4;

/// One source may take one in this many places: half. All clients of a machine may come from one address or run as one
/// user, and the other half is still free for everybody else.
const SOURCE_SHARE: u64 = 2;

/// One in this many places is reserved for the Unix socket, as with connections.
pub(super) const UDS_SHARE: u64 = 8;

/// Smallest share of subscribers, for few connections: a service that allows two may have both on one
/// machine.
const SUBSCRIBERS_MIN: u64 = 4;

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
    /// Takes `count` of the `max` places of a kind for a connection.
    ///
    /// # Errors
    /// A share is used up; the status says which.
    pub(super) fn new(peer: &Arc<Peer>, place: Place, count: u64, max: u64) -> Result<Self, Status> {
        let mut taking = Self { peer: Arc::clone(peer), place, count, scopes: 0 };
        for (scope, share) in taking.scopes(max) {
            let add = |taken: u64| taken.checked_add(count).filter(|taken| *taken <= share);
            // ORDERING: Relaxed: the sum alone decides; it guards no other memory.
            let taken = taking.counter(scope).fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
            if taken.is_err() {
                peer.figures().no_place(place, scope);
                return Err(refusal(place, scope, share));
            }
            taking.scopes += 1;
        }
        Ok(taking)
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
            // ORDERING: Relaxed: see `new`.
            self.counter(scope).fetch_sub(self.count, Ordering::Relaxed);
        }
    }
}

fn refusal(place: Place, scope: Scope, max: u64) -> Status {
    let what = match place {
        Place::Subscribers => "subscribers",
        Place::Waiters => "requests that wait for a slot",
        Place::BatchKeys => "keys of batches under way",
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
    use crate::net::source::Source;

    const MAX: u64 = 16;

    fn take_all(peer: &Arc<Peer>) -> Vec<Taking> {
        std::iter::from_fn(|| Taking::new(peer, Place::Waiters, 1, MAX).ok()).collect()
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
        let refused = Taking::new(&three, Place::Waiters, 1, MAX).unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(refused.message().contains("from this address") && refused.message().contains("max=8"), "{refused}");
        drop((held, others, local));
        assert_eq!(take_all(&three).len(), 4, "and what was refused at a wider scope is not kept at a narrower one");
        assert!(Taking::new(&one, Place::Waiters, 5, MAX).is_err(), "several at once");
        let few = Taking::new(&one, Place::Dumps, 1, 2).unwrap();
        assert!(Taking::new(&two, Place::Dumps, 1, 2).is_err());
        drop((few, Taking::new(&peer(source(9)), Place::Dumps, 1, 2).unwrap()));
        let both = [(); 2].map(|()| Taking::new(&one, Place::Subscribers, 1, 2));
        assert!(both.iter().all(Result::is_ok), "whoever allows two may have both on one machine");
    }
}
