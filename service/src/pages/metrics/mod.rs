//! Metrics: the catalogue, and its values as Prometheus text. The example `metrics` makes documents from the catalogue.
//!
//! Owns: everything under `/metrics`. Must not: hold values; each scrape reads them from the service's state. Threads:
//! the blocking pool.

pub mod catalogue;
mod collect;

use std::sync::atomic::{AtomicU64, Ordering};

use engine_latency::{Snapshot, export};
use probe::{GroupMemory, OwnRss, Space};

use crate::pages::handles::Handles;
use catalogue::Metric;

/// Memory and disk, as the thread `sample` read them last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resources {
    /// Memory of this process; `None` if the kernel does not report it.
    pub rss: Option<OwnRss>,
    /// Memory of the cgroup that sets the cap, or else of the process's own cgroup; `None` without a cgroup.
    pub group: Option<GroupMemory>,
    /// Memory that this process may use, in bytes; 0 before the first sample.
    pub cap_bytes: u64,
    /// Size and free space of the store's file system.
    pub space: Option<Space>,
}

/// Returns a whole scrape in the Prometheus text format.
pub(crate) fn prometheus(handles: &Handles, resources: Resources, snapshot: &Snapshot) -> String {
    let mut out = String::new();
    collect::write(handles, resources, &mut out);
    export::prometheus(snapshot, &mut out);
    out
}

/// Returns the service's counters with their entries in the catalogue.
pub(crate) fn counters(handles: &Handles) -> [(&'static Metric, u64); 14] {
    use catalogue as c;
    // ORDERING: Relaxed: statistics, nothing is inferred from them.
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (of, lookups) = (&handles.status.ingest.figures, &handles.lookups.figures);
    [
        (&c::UPDATES_RECEIVED, read(&of.updates_received)),
        (&c::UPDATES_MALFORMED, read(&of.updates_malformed)),
        (&c::UPDATES_DUPLICATE, read(&of.updates_duplicate)),
        (&c::CONNECTS, read(&of.connects)),
        (&c::EVENTS_APPLIED, read(&of.events_applied)),
        (&c::EVENTS_WRITTEN, read(&of.events_written)),
        (&c::EVENTS_DELETED, read(&of.events_deleted)),
        (&c::SLOTS_APPLIED, read(&of.slots_applied)),
        (&c::SLOTS_DEAD, read(&of.slots_dead)),
        (&c::SLOTS_DUPLICATE, read(&of.slots_duplicate)),
        (&c::COMMITS, read(&of.commits)),
        (&c::COMMITS_WITHOUT_SPACE, read(&of.commits_without_space)),
        (&c::LOOKUPS, read(&lookups.lookups)),
        (&c::LOOKUPS_REFUSED, read(&lookups.refused)),
    ]
}
