//! Places that clients share (subscriptions, waits, batches, dumps), and the share of them that one peer may take.
//!
//! Owns: taking places, and giving them back. Must not: wait. A request without a place is refused, and the rule is
//! counted. Threads: the network edge.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::account::shares;
use super::budget::Peer;
use super::refusal::{Cause, Refusal};
use crate::net::figures::{Place, Scope};

/// Places held until this is dropped.
#[derive(Debug)]
pub(crate) struct Taking {
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
    /// A share is used up; the refusal says which.
    pub(crate) fn new(peer: &Arc<Peer>, place: Place, count: u64, max: u64) -> Result<Self, Refusal> {
        let mut taking = Self { peer: Arc::clone(peer), place, count, scopes: 0 };
        for (scope, share) in shares(place, max, peer.is_network()) {
            let add = |taken: u64| taken.checked_add(count).filter(|taken| *taken <= share);
            // ORDERING: Relaxed: the sum alone decides; it guards no other memory.
            let taken = peer.counter(place, scope).fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
            if taken.is_err() {
                peer.seat.figures().no_place(place, scope);
                return Err(refusal(place, scope, share));
            }
            taking.scopes += 1;
        }
        Ok(taking)
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        for (scope, _) in shares(self.place, 0, self.peer.is_network()).take(self.scopes) {
            // ORDERING: Relaxed: see `new`.
            self.peer.counter(self.place, scope).fetch_sub(self.count, Ordering::Relaxed);
        }
    }
}

fn refusal(place: Place, scope: Scope, max: u64) -> Refusal {
    let what = match place {
        Place::Subscribers => "subscribers",
        Place::Waiters => "requests that wait for a slot",
        Place::BatchKeys => "keys of batches under way",
        Place::Dumps => "dumps under way",
        Place::Derived => "requests to derived stores",
        Place::Views => "answers of several messages under way",
        Place::Bytes => "bytes",
    };
    let whose = match scope {
        Scope::Connection => " on this connection",
        Scope::Source => " from this address or user",
        Scope::Network => " over the network",
        Scope::All => "",
    };
    let hint = if place == Place::Subscribers { ", or raise max_connections" } else { "" };
    Refusal::new(Cause::Full, format!("too many {what}{whose}, try again later{hint}: max={max}"))
}

#[cfg(test)]
mod tests {
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
        assert_eq!(refused.cause, Cause::Full);
        assert!(refused.message.contains("from this address") && refused.message.contains("max=8"), "{refused:?}");
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
