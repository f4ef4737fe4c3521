//! Durability of commits: tests every cell of the table in RELIABILITY.md.
//!
//! In every life the oracle checks that the acknowledged batches are there, whole, and none after them. The tests here
//! check in addition that there were batches to lose, and that buffered ones are lost where they may be: otherwise
//! nothing was tested.

use engine_api::Buffered;
use solkv_torture::{Column, EndKind, Swarm, Totals};

use crate::{default_column, live, plain};

const KILLS: u64 = 8;
const POWER_LOSSES: u64 = 30;

fn killed(column: Column, synced: u64, chunks: bool) {
    let ends = vec![EndKind::Kill, EndKind::KillWritten];
    let swarm = Swarm { fuse: false, chunks, synced, ends, turns: KILLS, ..plain() };
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

fn synced_power_lost(column: Column) {
    if let Some(totals) = power_lost(column, 100) {
        assert_eq!(totals.lost_batches, 0, "{totals:?}");
    }
}

/// Buffered commits are lost where they may be, and nowhere else.
fn buffered_power_lost(column: Column) {
    let Some(totals) = power_lost(column, 0) else { return };
    let may_be_lost = match column.engine().buffered {
        Buffered::All => 0..=0,
        Buffered::AllButNewest => 1..=POWER_LOSSES,
        Buffered::AllButNewestOnes => 1..=u64::MAX,
    };
    assert!(may_be_lost.contains(&totals.lost_batches), "may_be_lost={may_be_lost:?} {totals:?}");
}

/// A synced batch makes the buffered batches before it durable, too, whichever process wrote those.
fn mixed(column: Column) {
    let ends = vec![EndKind::Kill, EndKind::KillAt, EndKind::Power, EndKind::PowerAt];
    let swarm = Swarm { synced: 20, chunks: true, habits: u64::MAX, ends, turns: 12, ..plain() };
    if let Some(totals) = live(column, 5, swarm) {
        assert!(totals.commits > 20, "{totals:?}");
    }
}

macro_rules! each_engine {
    ($($kind:ident = $feature:tt in $home:ident: $name:ident $($further:ident)*;)+) => { $(
        #[cfg(feature = $feature)]
        mod $name {
            use super::*;

            #[test]
            fn synced_commits_survive_kills() {
                killed(default_column($feature), 100, false);
            }

            #[test]
            fn buffered_commits_survive_kills() {
                killed(default_column($feature), 0, false);
            }

            #[test]
            fn commits_and_sorted_chunks_survive_kills_with_any_options() {
                Column::of($feature).for_each(|column| killed(column, 50, true));
            }

            #[test]
            fn synced_commits_survive_power_losses() {
                synced_power_lost(default_column($feature));
            }

            #[test]
            fn buffered_commits_survive_power_losses_as_promised() {
                buffered_power_lost(default_column($feature));
            }

            #[test]
            fn mixed_commits_survive_with_any_options() {
                Column::of($feature).for_each(mixed);
            }
        }
    )+ };
}
engines::for_each_engine!(each_engine);
