//! Resources that a process, a store, a device and a machine use and have, as the kernel reports them.
//!
//! Owns: reading /proc, /sys and cgroups, the page cache of a store, memory caps, the heap's arenas, the device
//! baseline. Must not: know an engine, or the purpose of a measurement. Figures that the kernel does not give are absent
//! and never guessed.
//! Threads: none of its own.

mod cap;
mod device;
mod floor;
mod heap;
mod limit;
mod machine;
mod memory;
mod process;
mod store;

pub use cap::{Cap, Charged};
pub use device::{Baseline, DeviceCounts, Quantiles, baseline, device_counts, random_reads};
pub use floor::Floor;
pub use heap::limit_arenas;
pub use limit::{MemoryLimit, available_bytes, memory_limit};
pub use machine::{Machine, machine};
pub use memory::{GroupMemory, OwnRss, group_memory, own_group, own_rss};
pub use process::{ProcessCounts, process_counts, rss_bytes, rss_peak_bytes, thread_waits};
pub use store::{
    Space, cacheable_bytes, cacheable_file_bytes, check_disk, disk_bytes, drop_page_cache, fill_page_cache,
    is_same_disk, missing_bytes, page_cache_bytes, space, sync_file_system,
};
