//! Takeovers from a server with one lasting fault, by the one server that has none.
//!
//! Owns: one scenario for each nature of a server. Must not: reach into the receiver.

use std::time::Duration;

use tokio::time::{Instant, advance};
use workload::Rng;

use super::fault::Nature;
use super::seeds::each_seed;
use super::server::Server;
use super::{Simulation, Until, in_virtual_time};

/// Maximum time from the end of the wait for a silent server to the next applied slot.
const TAKEOVER_MAX: Duration = Duration::from_secs(3);

/// The timeouts of the ingest are checked twice a second.
const TICKS: Duration = Duration::from_secs(1);

/// Lets a service follow two servers to the tip: one of this nature and an honest one. It follows `at_once` of them at
/// a time, and starts `late` after the chain's first slot. Returns the simulation after that.
fn follow(seed: u64, nature: Nature, at_once: u8, late: Duration) -> Simulation {
    in_virtual_time(async {
        let mut simulation = Simulation::of(Rng::new(seed), seed, &[nature, Nature::Honest]);
        simulation.receive.settings.geyser_at_once = at_once;
        simulation.servers.iter().for_each(Server::heal);
        advance(late).await;
        let now = Instant::now();
        let (verdict, _) = simulation.life(Until::AtTip(now, now + Duration::from_secs(300))).await;
        let tip = simulation.chain.tip().slot;
        assert_eq!(simulation.oracle.slot(), tip, "seed={seed} {nature:?}: {verdict:?}");
        simulation
    })
}

#[test]
fn the_next_provider_takes_over_soon_after_a_failure() {
    // Not of other numbers: a slot that is sent later than its gap is noticed would be a pause as well.
    each_seed(40, "simulation::takeover::the_next", |seed| {
        for nature in [Nature::Refuses, Nature::Lacks, Nature::Lies, Nature::Silent] {
            let simulation = follow(seed, nature, 1, Duration::ZERO);
            let silence = match nature {
                // A server may take ten seconds to answer the subscription.
                Nature::Silent => simulation.receive.idle_timeout.max(Duration::from_secs(10)),
                _ => Duration::ZERO,
            };
            // Skipped slots, one after the other, are a pause as well.
            let pause = simulation.longest_pause;
            assert!(pause < silence + TICKS + TAKEOVER_MAX, "{nature:?}: {pause:?} after {silence:?}");
        }
    });
}

#[test]
fn of_two_at_once_the_failure_of_one_costs_no_time() {
    each_seed(40, "simulation::takeover::of_two", |seed| {
        for nature in [Nature::Refuses, Nature::Lacks, Nature::Lies, Nature::Silent, Nature::Lags(30)] {
            let pause = follow(seed, nature, 2, Duration::ZERO).longest_pause;
            assert!(pause < TICKS + TAKEOVER_MAX, "{nature:?}: {pause:?}");
        }
    });
}

#[test]
fn a_provider_that_lags_is_left() {
    // At that time a server that is 30 slots late has the store's slot.
    let late = Duration::from_secs(13);
    let simulations = (0..40).map(|seed| follow(seed, Nature::Lags(30), 1, late));
    let left = simulations.filter(|simulation| simulation.servers[1].newest_connection() > 0).count();
    // Most chains end before the lag has lasted.
    assert!(left > 6, "left={left}");
}
