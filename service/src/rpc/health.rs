//! gRPC health: each service is SERVING while the service is ready, the same as `/readyz`.
//!
//! Owns: reporting changes of readiness to the health service and the log. Must not: define readiness. Runs as
//! one task on the tokio runtime of the network edge.

use std::time::Duration;

use proto::v1::feed_server::FeedServer;
use proto::v1::kv_server::KvServer;
use tokio::time::{MissedTickBehavior, interval};
use tonic::server::NamedService as _;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tracing::{info, warn};

use super::feed::FeedService;
use super::kv::KvService;
use crate::status::Status;

/// Interval at which readiness is checked: a client that watches hears of a change after at most this delay.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Service names that follow readiness; the empty name stands for the whole server.
const FOLLOWING: [&str; 3] = ["", KvServer::<KvService>::NAME, FeedServer::<FeedService>::NAME];

/// Service name that is SERVING as long as the process answers, ready or not. A restart may depend on it.
const LIVENESS: &str = "liveness";

/// Sets the statuses at start: alive, and not ready.
pub(super) async fn begin(health: &HealthReporter) {
    health.set_service_status(LIVENESS, ServingStatus::Serving).await;
    set(health, ServingStatus::NotServing).await;
}

/// Follows readiness. Never returns; drop it at the shutdown.
pub(super) async fn follow(health: HealthReporter, status: Status) {
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut was_ready = false;
    loop {
        looks.tick().await;
        let verdict = status.ingest.verdict();
        if verdict.is_ready() == was_ready {
            continue;
        }
        was_ready = verdict.is_ready();
        let slot = status.ingest.published.slot().unwrap_or(0);
        match verdict.not_ready {
            None => info!(slot, "ready"),
            Some(why) => warn!(slot, "no longer ready: {why}"),
        }
        set(&health, if was_ready { ServingStatus::Serving } else { ServingStatus::NotServing }).await;
    }
}

/// Reports that nothing is served any longer.
pub(super) async fn end(health: &HealthReporter) {
    set(health, ServingStatus::NotServing).await;
}

async fn set(health: &HealthReporter, status: ServingStatus) {
    for name in FOLLOWING {
        health.set_service_status(name, status).await;
    }
}
