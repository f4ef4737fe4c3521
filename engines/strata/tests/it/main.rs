//! What is particular to strata: crashes with lost and torn writes, failing reads, writes and flushes, a full device at
//! every allocation, flipped bits in every file, merges. The behaviour common to all engines is tested by the
//! conformance suite.

mod damage;
mod faults;
mod faulty;
mod merging;
mod support;
