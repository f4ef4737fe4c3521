//! Takeovers from a server with one lasting fault, by the one server that has none.
//!
//! Owns: one scenario for each nature of a server. Must not: reach into the receiver.

use std::time::Duration;

use tokio::time::{Instant, advance};
use workload::Rng;

use super::fault::Nature;
use super::server::Server;
use super::{Simulation, Until};

/// Maximum time from the end of the wait for a silent server to the next applied slot.
const TAKEOVER_MAX: Duration = Duration::from_secs(3);

/// The timeouts of the ingest are checked twice a second.
const TICKS: Duration = Duration::from_secs(1);

/// Follows a server of this nature and then an honest one to the tip. Returns the longest pause, and the timeout of a
/// silent server. `late` is the time from the chain's first slot to the service's start.
fn follow(seed: u64, nature: Nature, late: Duration) -> (Duration, Duration) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without sockets");
    runtime.block_on(async {
        let mut simulation = Simulation::of(Rng::new(seed), seed, &[nature, Nature::Honest]);
        simulation.servers.iter().for_each(Server::heal);
        advance(late).await;
        let now = Instant::now();
        let (verdict, _) = simulation.life(Until::AtTip(now, now + Duration::from_secs(300))).await;
        let tip = simulation.chain.tip().slot;
        assert_eq!(simulation.oracle.slot(), tip, "seed={seed} {nature:?}: {verdict:?}");
        (simulation.longest_pause, simulation.receive.idle_timeout)
    })
}

#[test]
fn the_next_provider_takes_over_soon_after_a_failure() {
    for seed in 0..40 {
        for nature in [Nature::Refuses, Nature::Lacks, Nature::Lies] {
            let (pause, _) = follow(seed, nature, Duration::ZERO);
            // Slots that the chain skips, one after the other, are a pause as well.
            assert!(pause < TAKEOVER_MAX + TICKS, "seed={seed} {nature:?}: {pause:?}");
        }
        let (pause, idle_timeout) = follow(seed, Nature::Silent, Duration::ZERO);
        // A server may take as long to answer the subscription.
        let silence = idle_timeout.max(Duration::from_secs(10));
        assert!(pause < silence + TAKEOVER_MAX + TICKS, "seed={seed}: {pause:?} after {silence:?}");
    }
}

#[test]
fn a_provider_that_lags_is_left_and_one_that_catches_up_is_not() {
    let mut left = 0;
    for seed in 0..40 {
        // 12 s, which the chain has begun before.
        let late = Duration::from_secs(13);
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(async {
            let mut simulation = Simulation::of(Rng::new(seed), seed, &[Nature::Lags(30), Nature::Honest]);
            simulation.servers.iter().for_each(Server::heal);
            advance(late).await;
            let now = Instant::now();
            simulation.life(Until::AtTip(now, now + Duration::from_secs(300))).await;
            assert_eq!(simulation.oracle.slot(), simulation.chain.tip().slot);
            left += simulation.servers[1].newest_connection();
        });
    }
    assert!(left > 10, "the chain lasts long enough for a takeover with some seeds: {left}");
}
