//! Each fault of the disk on each engine: refused with an error that tells, never a wrong value, and over when the fault
//! is; a loss of power on top.

use torture::{Column, EndKind, FaultKind, Swarm};

use crate::{live, plain};

const TURNS: u64 = 5;

fn survives(fault: FaultKind) {
    for (column, seed) in Column::ALL.into_iter().zip(1..) {
        let ends = vec![EndKind::Close, EndKind::Power];
        let swarm =
            Swarm { synced: 50, chunks: true, habits: 63, ends, faults: vec![fault], faults_every: 1, turns: TURNS, ..plain() };
        let Some(totals) = live(column, seed * 1000, swarm) else { return };
        println!(
            "{column} {}: hits={} went_on={} reopened={} sigbus={}",
            fault.as_str(),
            totals.faults.get(&fault).copied().unwrap_or(0),
            totals.recovered_itself,
            totals.recovered_reopened,
            totals.bus_errors
        );
        assert!(totals.faults.contains_key(&fault), "the fault never came: {totals:?}");
    }
}

macro_rules! each_fault {
    ($($name:ident $fault:ident;)*) => { $(#[test] fn $name() { survives(FaultKind::$fault); })* };
}

each_fault! {
    reads_fail ReadError;
    writes_fail WriteError;
    flushes_fail SyncError;
    the_disk_is_full Full;
    the_disk_is_full_unseen FullUnseen;
    the_disk_is_read_only ReadOnly;
    the_disk_is_slow Slow;
}
