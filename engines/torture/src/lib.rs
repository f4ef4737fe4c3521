//! Tests every engine under kills, power losses and faults of the disk, and compares it with a model.
//!
//! Owns: the disk that can lose power ([`Disk`]), the agents that work on a store and are killed, the oracle. Must not:
//! know the inside of an engine; engines are opened through the registry, as the programs do. strata alone can also be
//! opened with other sizes, and one of its columns is ([`Column::StrataSmall`]). A supervisor ([`Life`]) runs on the
//! caller's thread; agents are processes of their own; the disk is a FUSE file system in the supervisor's process.
//!
//! RELIABILITY.md at the top of the repository lists the promises and the tests.

mod agent;
mod beside;
mod child;
mod column;
mod disk;
mod life;
mod model;
mod plan;
mod reading;
#[cfg(feature = "strata")]
mod small;
mod swarm;
mod telling;
mod totals;
mod writer;

pub use agent::{Task, run as run_agent};
pub use column::Column;
pub use disk::{Disk, Fault, FaultKind, Gate, Notice, own_mounts};
pub use engine_kit::Rng;
pub use life::{Failure, Life};
pub use swarm::{EndKind, Swarm};
pub use totals::{Table, Totals};

/// Checks that this process can mount the disk that loses power, and calls [`own_mounts`] for it.
///
/// # Errors
/// The reason, in words.
pub fn can_lose_power() -> Result<(), String> {
    let reason = |e: std::io::Error| format!("cannot mount a FUSE file system: {e}");
    let point = tempfile::tempdir().map_err(reason)?;
    own_mounts().and_then(|()| Disk::new(point.path(), 1 << 20, 0)).map(drop).map_err(reason)
}
