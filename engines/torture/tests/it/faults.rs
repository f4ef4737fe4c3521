//! Tests each fault of the disk on each engine, followed by a power loss. The engine refuses work with an informative
//! error, never returns a wrong value, and recovers when the fault ends.

use solkv_torture::{Column, EndKind, FaultKind, Swarm};

use crate::{default_column, live, plain};

const TURNS: u64 = 5;

fn survives(fault: FaultKind) {
    for (column, seed) in Column::compiled().zip(1..) {
        let ends = vec![EndKind::Close, EndKind::Power];
        let swarm = Swarm {
            synced: 50,
            chunks: true,
            habits: u64::MAX,
            ends,
            faults: vec![fault],
            faults_every: 1,
            turns: TURNS,
            ..plain()
        };
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

/// A flush fails, the store is opened again and goes on, and the power is lost. The bytes of the failed flush are in
/// the page cache, but no later flush writes them to the disk.
mod a_failed_flush_and_then_a_power_loss {
    use super::*;

    fn survives(column: Column) {
        let (ends, faults) = (vec![EndKind::PowerAt], vec![FaultKind::SyncError]);
        let swarm = Swarm { changes: 5, ends, faults, faults_every: 1, turns: 40, ..plain() };
        if let Some(totals) = live(column, 3, swarm) {
            assert!(totals.faults[&FaultKind::SyncError] > 0 && totals.recovered_reopened > 0, "{totals:?}");
        }
    }

    macro_rules! each_engine {
        ($($kind:ident = $feature:tt in $home:ident: $name:ident $($further:ident)*;)+) => {
            $(#[cfg(feature = $feature)] #[test] fn $name() { survives(default_column($feature)); })+
        };
    }
    engines::for_each_engine!(each_engine);
}
