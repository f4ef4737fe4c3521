//! Durability of commits: tests every cell of the table in RELIABILITY.md.
//!
//! In every life the oracle checks that the acknowledged batches are there, whole, and none after them. The tests here
//! check in addition that there were batches to lose, and that buffered ones are lost where they may be: otherwise
//! nothing was tested.

use solkv_torture::{Column, EndKind, Swarm, Totals};

use crate::{live, plain};

const KILLS: u64 = 8;
const POWER_LOSSES: u64 = 30;

fn killed(column: Column, synced: u64) {
    let swarm = Swarm { fuse: false, synced, ends: vec![EndKind::Kill, EndKind::KillWritten], turns: KILLS, ..plain() };
    let totals = live(column, 1 + synced, swarm).unwrap();
    assert!(totals.kills.values().sum::<u64>() >= KILLS / 2 && totals.commits > 0, "{totals:?}");
    assert_eq!(totals.lost_batches, 0, "{totals:?}");
}

fn power_lost(column: Column, synced: u64) -> Option<Totals> {
    let ends = vec![EndKind::Power, EndKind::PowerAt, EndKind::PowerAt];
    let totals = live(column, 2 + synced, Swarm { synced, ends, turns: POWER_LOSSES, ..plain() })?;
    assert_eq!(totals.power_losses.values().sum::<u64>(), POWER_LOSSES);
    assert!(totals.commits > POWER_LOSSES, "{totals:?}");
    Some(totals)
}

macro_rules! synced_survives {
    ($($name:ident $column:ident $feature:literal;)*) => {
        mod synced_process_killed {
            use super::*;
            $(#[cfg(feature = $feature)] #[test] fn $name() { killed(Column::$column, 100); })*
        }
        mod buffered_process_killed {
            use super::*;
            $(#[cfg(feature = $feature)] #[test] fn $name() { killed(Column::$column, 0); })*
        }
        mod synced_power_lost {
            use super::*;
            $(#[cfg(feature = $feature)] #[test] fn $name() {
                if let Some(totals) = power_lost(Column::$column, 100) {
                    assert_eq!(totals.lost_batches, 0, "{totals:?}");
                }
            })*
        }
    };
}

synced_survives! {
    rocksdb Rocksdb "rocksdb";
    lmdb Lmdb "lmdb";
    redb Redb "redb";
    strata Strata "strata";
}

mod buffered_power_lost {
    use super::*;

    #[cfg(feature = "rocksdb")]
    #[test]
    fn rocksdb_may_lose_the_newest() {
        if let Some(totals) = power_lost(Column::Rocksdb, 0) {
            assert!(totals.lost_batches > 0, "nothing was lost: nothing was tested: {totals:?}");
        }
    }

    #[cfg(feature = "strata")]
    #[test]
    fn strata_may_lose_the_newest() {
        if let Some(totals) = power_lost(Column::Strata, 0) {
            assert!(totals.lost_batches > 0, "nothing was lost: nothing was tested: {totals:?}");
        }
    }

    #[cfg(feature = "lmdb")]
    #[test]
    fn lmdb_may_lose_the_newest_alone() {
        if let Some(totals) = power_lost(Column::Lmdb, 0) {
            assert!((1..=POWER_LOSSES).contains(&totals.lost_batches), "{totals:?}");
        }
    }

    #[cfg(feature = "redb")]
    #[test]
    fn redb_loses_none() {
        if let Some(totals) = power_lost(Column::Redb, 0) {
            assert_eq!(totals.lost_batches, 0, "{totals:?}");
        }
    }
}

/// A synced batch makes the buffered batches before it durable, too, whichever process wrote those.
mod mixed {
    use super::*;

    fn mixed(column: Column) {
        let ends = vec![EndKind::Kill, EndKind::KillAt, EndKind::Power, EndKind::PowerAt];
        let swarm = Swarm { synced: 20, chunks: true, habits: u64::MAX, ends, turns: 12, ..plain() };
        if let Some(totals) = live(column, 5, swarm) {
            assert!(totals.commits > 20, "{totals:?}");
        }
    }

    #[cfg(feature = "rocksdb")]
    #[test]
    fn rocksdb() {
        mixed(Column::Rocksdb);
    }

    #[cfg(feature = "rocksdb")]
    #[test]
    fn rocksdb_bloom() {
        mixed(Column::RocksdbBloom);
    }

    #[cfg(feature = "rocksdb")]
    #[test]
    fn rocksdb_tuned() {
        mixed(Column::RocksdbTuned);
    }

    #[cfg(feature = "lmdb")]
    #[test]
    fn lmdb() {
        mixed(Column::Lmdb);
    }

    #[cfg(feature = "redb")]
    #[test]
    fn redb() {
        mixed(Column::Redb);
    }

    #[cfg(feature = "strata")]
    #[test]
    fn strata() {
        mixed(Column::Strata);
    }
}
