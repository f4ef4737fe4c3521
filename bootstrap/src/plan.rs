//! `bootstrap plan`: the memory, the disk and the loading time of a number of pairs.
//!
//! Owns: the arithmetic from the measured figures to an answer, and its words. Must not: measure, or look at a store or
//! at this machine. Runs on the main thread.

mod measured;

use anyhow::{Result, bail};
use bytesize::ByteSize;
use engines::{EngineKind, EngineOptions};
use probe::MemoryLimit;

use crate::layout::SPILLED_RECORD_BYTES;
use crate::limits::peak_bytes;
use crate::out::say;
use measured::{Facts, READS, Read};

/// Bytes of the change feed's log by default, of strata's WAL, and of the reserve.
const BESIDE_BYTES: u64 = 2_000_000_000;
/// Part of the engine's memory that each derived store takes, as the service divides it.
const DERIVED_SHARE: u64 = 4;
/// Bytes that a change of the past takes on disk: the fewest and the most that were measured.
const HISTORY_CHANGE_BYTES: [u64; 2] = [80, 104];
/// Least memory of a service, in which all engines were seen to follow a stream.
const SERVICE_BYTES_MIN: u64 = 192 << 20;

/// Computes memory, disk and loading time for a number of pairs
///
/// The figures are computed from those of the largest map that was measured on this engine, on a machine with two cores.
/// It names that map, and it says so if more pairs are asked for. Measure on your machine before you rely on a time.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct PlanArgs {
    /// Number of pairs, such as 300M or 1.2G
    #[arg(long, value_name = "N", value_parser = workload::count_within(1..=1_000_000_000_000u64))]
    pairs: u64,
    /// Engine of the store [default: strata]
    #[arg(long, value_enum, value_name = "ENGINE", default_value = "strata")]
    engine: EngineKind,
    /// Memory of the machine, or of the cgroup, for which to say whether it suffices
    #[arg(long, value_name = "BYTES", value_parser = engines::size)]
    memory: Option<ByteSize>,
    /// Add the needs of the derived store `values` (see `bootstrap derive`), and those of the past
    #[arg(long)]
    derived: bool,
}

pub(crate) fn run(args: &PlanArgs) -> Result<u8> {
    let Some(plan) = Plan::of(args.engine, args.pairs) else {
        bail!("this engine was not measured: engine={}: measure it with loadgen on your machine", args.engine)
    };
    say!("{}", plan.text(args.memory));
    if args.derived {
        say!("{}", plan.derived_text());
    }
    Ok(0)
}

/// The needs of a map of `pairs` pairs.
struct Plan {
    engine: EngineKind,
    pairs: u64,
    facts: &'static Facts,
}

impl Plan {
    /// Returns the needs on an engine; `None` if it was not measured.
    fn of(engine: EngineKind, pairs: u64) -> Option<Self> {
        Some(Self { engine, pairs, facts: Facts::of(engine)? })
    }

    /// Returns bytes for all pairs from hundredths of a byte for one.
    fn bytes(&self, centibytes: u64) -> u64 {
        (u128::from(self.pairs) * u128::from(centibytes) / 100) as u64
    }

    fn store_bytes(&self) -> u64 {
        self.bytes(self.facts.store_centibytes)
    }

    /// Returns the most that store and spill take together while a file or an archive is loaded.
    fn load_disk_bytes(&self) -> u64 {
        peak_bytes(self.store_bytes(), self.pairs.saturating_mul(SPILLED_RECORD_BYTES))
    }

    /// Returns the disk for a store that follows a stream: merges write a new store beside the old one, and random
    /// inserts leave the pages of a B+tree partly empty.
    fn service_disk_bytes(&self) -> u64 {
        self.bytes(self.facts.followed_centibytes).saturating_add(BESIDE_BYTES)
    }

    /// Returns the memory limit under which the engine has `bytes` by default, in addition to those of any store. The rest
    /// of the service has to fit into the rest of the limit.
    fn limit_for(&self, bytes: u64) -> u64 {
        let held = bytes.saturating_add(self.facts.fixed_bytes);
        (held / self.facts.held_eighths).saturating_mul(8).max(SERVICE_BYTES_MIN)
    }

    /// Returns the least memory limit of a service.
    fn least_bytes(&self) -> u64 {
        self.limit_for(self.bytes(self.facts.directory_centibytes))
    }

    /// Returns the memory limit from which on absent keys cost no read of the device.
    fn filtered_bytes(&self) -> Option<u64> {
        (self.facts.filter_centibytes > 0).then(|| self.limit_for(self.bytes(self.facts.filter_centibytes)))
    }

    /// Returns the memory limit from which on no key costs a read of the device.
    fn cached_bytes(&self) -> u64 {
        let all_bytes = self.store_bytes().saturating_add(self.bytes(self.facts.filter_centibytes));
        self.limit_for(all_bytes).max((all_bytes / self.facts.cached_eighths).saturating_mul(8))
    }

    fn text(&self, memory: Option<ByteSize>) -> String {
        let Facts { followed_why, filter_option, load_order, source, .. } = *self.facts;
        let (measured, rate) = (self.facts.measured_pairs, self.facts.load_pairs_a_second);
        let known = if self.pairs > measured { "computed beyond what was measured, " } else { "" };
        let (pairs, measured, rate_text) = (short(self.pairs), short(measured), short(rate));
        let bytes = |bytes: u64| ByteSize::b(bytes).to_string();
        let load_least = bytes((self.facts.load_least_bytes)(self.pairs));
        let load_time = time(self.pairs.div_ceil(rate));
        let a_pair = tenths(self.facts.store_centibytes);
        let mut rows = vec![
            ("store".to_owned(), format!("{}, {a_pair} bytes a pair", size(self.store_bytes()))),
            (
                "disk while it is loaded".to_owned(),
                format!("{}, the spill of an archive or a file included", size(self.load_disk_bytes())),
            ),
            (
                "disk while it follows a stream".to_owned(),
                format!("{}, {followed_why}", size(self.service_disk_bytes())),
            ),
            ("time to load".to_owned(), format!("{load_time} at {rate_text} pairs a second, {load_order}")),
            ("memory to load, least".to_owned(), format!("{load_least}; more makes it faster")),
            ("memory to serve, least".to_owned(), bytes(self.least_bytes())),
        ];
        let filtered = self.filtered_bytes().map(|filtered| format!("{}{filter_option}", bytes(filtered)));
        rows.extend(filtered.map(|filtered| ("and absent keys without reads".to_owned(), filtered)));
        rows.push(("and no reads of the device".to_owned(), bytes(self.cached_bytes())));
        rows.extend(memory.map(|memory| (format!("with {memory}"), self.verdict(memory.as_u64()))));
        rows.extend(self.nearest(memory).map(|read| ("measured".to_owned(), read.text())));
        let head = format!("{pairs} pairs in {}: {known}from {measured} pairs ({source})", self.engine);
        listed(head, rows)
    }

    /// Describes the needs of derived stores. The entries of `values` are of the same size and number as the pairs.
    fn derived_text(&self) -> String {
        let with_values = size(self.service_disk_bytes().saturating_mul(2).saturating_sub(BESIDE_BYTES));
        let (share, [fewest, most]) = (DERIVED_SHARE, HISTORY_CHANGE_BYTES);
        let rows = [
            ("values".to_owned(), format!("as large as the store: {}", size(self.store_bytes()))),
            ("disk while both follow a stream".to_owned(), with_values),
            ("disk to build it".to_owned(), format!("{} in addition to the store", size(self.load_disk_bytes()))),
            ("history".to_owned(), format!("{fewest} to {most} bytes a change that is kept")),
            ("memory".to_owned(), format!("each of both takes 1/{share} of the engine's")),
        ];
        let head = "derived stores, computed from 20M pairs (loadgen/results/README.md#derived)".to_owned();
        listed(head, rows)
    }

    /// Describes a service with so much memory.
    fn verdict(&self, memory: u64) -> String {
        let engine = EngineOptions::new(self.engine);
        let share = engine.division_of(MemoryLimit { bytes: memory, cgroup_file: None }).cache_bytes;
        let of_engine =
            if share > 0 { format!("the engine's share is {}: ", ByteSize::b(share)) } else { String::new() };
        let load = if memory < (self.facts.load_least_bytes)(self.pairs) { "too little to load; " } else { "" };
        let serve = match () {
            () if memory < self.least_bytes() => "too little to serve",
            () if memory >= self.cached_bytes() => "no key costs a read of the device once the store is warm",
            () if self.filtered_bytes().is_some_and(|bytes| memory >= bytes) => {
                "a present key costs a read of the device, and nearly no absent key does"
            }
            () if self.filtered_bytes().is_some() => {
                "a part of the absent keys costs a read of the device, as present keys do"
            }
            () => "a key costs a read of the device, whether it is there or not",
        };
        format!("{of_engine}{load}{serve}")
    }

    /// Returns the measured reads of this engine with the number of pairs, and then the memory a pair, that are nearest.
    fn nearest(&self, memory: Option<ByteSize>) -> Option<&'static Read> {
        let far = |one: u64, other: u64| (one.max(1) as f64 / other.max(1) as f64).ln().abs();
        let a_pair = |bytes: u64, pairs: u64| (u128::from(bytes) * 1000 / u128::from(pairs)) as u64;
        let asked = a_pair(
            memory.map_or_else(|| self.filtered_bytes().unwrap_or(self.cached_bytes()), |memory| memory.as_u64()),
            self.pairs,
        );
        let distance = |read: &&Read| {
            let memory =
                read.memory_bytes.map_or_else(|| self.facts.store_centibytes * 20, |bytes| a_pair(bytes, read.pairs));
            far(memory, asked) + far(read.pairs, self.pairs) / 4.0
        };
        READS
            .iter()
            .filter(|read| read.engine == self.engine)
            .min_by(|one, other| distance(one).total_cmp(&distance(other)))
    }
}

/// Returns a line for each need, below a head.
fn listed(head: String, rows: impl IntoIterator<Item = (String, String)>) -> String {
    rows.into_iter().fold(head, |text, (name, value)| format!("{text}\n  {name:<31} {value}"))
}

/// Formats a number of pairs in the form in which it can be asked for.
fn short(number: u64) -> String {
    match number {
        1_000_000_000.. => format!("{}G", tenths(number / 10_000_000)),
        1_000_000.. => format!("{}M", tenths(number / 10_000)),
        1000.. => format!("{}k", tenths(number / 10)),
        _ => number.to_string(),
    }
}

/// Formats hundredths, with one digit after the point if there is more than a whole number.
fn tenths(hundredths: u64) -> String {
    match (hundredths + 5) / 10 {
        rounded if rounded % 10 == 0 => (rounded / 10).to_string(),
        rounded => format!("{}.{}", rounded / 10, rounded % 10),
    }
}

/// Formats bytes in powers of a thousand, as disks are sold and results are printed.
fn size(bytes: u64) -> String {
    let gb = bytes as f64 / 1e9;
    match bytes {
        10_000_000_000.. => format!("{gb:.1} GB"),
        1_000_000_000.. => format!("{gb:.2} GB"),
        _ => format!("{} MB", bytes.div_ceil(1_000_000)),
    }
}

fn time(seconds: u64) -> String {
    match seconds {
        7200.. => format!("{} h", tenths(seconds / 36)),
        120.. => format!("{} min", tenths(seconds * 10 / 6)),
        _ => format!("{seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page on which operators size a machine. Its table is that of this module.
    const RUNBOOK: &str = include_str!("../../RUNBOOK.md");

    /// Returns the table in RUNBOOK.md: mainnet's token accounts, and all of its accounts.
    fn table() -> String {
        let mut out = "| pairs | engine | store | disk to load | disk to follow | time to load | memory to load | \
                       memory to serve | absent keys without reads | no reads |\n\
                       |---:|---|---:|---:|---:|---:|---:|---:|---:|---:|\n"
            .to_owned();
        for pairs in [730_000_000, 1_100_000_000] {
            for engine in EngineKind::ALL {
                let Some(plan) = Plan::of(engine, pairs) else { continue };
                let bytes = |bytes: u64| ByteSize::b(bytes).to_string();
                let cells = [
                    short(pairs),
                    engine.to_string(),
                    size(plan.store_bytes()),
                    size(plan.load_disk_bytes()),
                    size(plan.service_disk_bytes()),
                    time(pairs.div_ceil(plan.facts.load_pairs_a_second)),
                    bytes((plan.facts.load_least_bytes)(pairs)),
                    bytes(plan.least_bytes()),
                    plan.filtered_bytes().map_or_else(|| "no filter".to_owned(), bytes),
                    bytes(plan.cached_bytes()),
                ];
                out.push_str(&format!("| {} |\n", cells.join(" | ")));
            }
        }
        out
    }

    #[test]
    fn the_runbook_has_the_table_of_the_plan() {
        let table = table();
        assert!(RUNBOOK.contains(&table), "RUNBOOK.md, Size a machine, has another table than:\n{table}");
    }

    #[test]
    fn more_pairs_and_more_latency_never_need_less() {
        for engine in EngineKind::ALL {
            let mut last = [0; 6];
            for pairs in [1, 1_000_000, 700_000_000, 1_200_000_000, 1_000_000_000_000] {
                let Some(plan) = Plan::of(engine, pairs) else { continue };
                let [least, cached] = [plan.least_bytes(), plan.cached_bytes()];
                let filtered = plan.filtered_bytes().unwrap_or(least);
                assert!(least <= filtered && filtered <= cached, "{engine} {pairs}");
                assert!(plan.load_disk_bytes() >= plan.store_bytes(), "{engine} {pairs}");
                let load = (plan.facts.load_least_bytes)(pairs);
                let now = [least, filtered, cached, plan.load_disk_bytes(), plan.service_disk_bytes(), load];
                assert!(now.iter().zip(last).all(|(now, last)| *now >= last), "{engine} {pairs}");
                last = now;
            }
        }
    }

    #[test]
    fn a_plan_says_what_it_was_not_measured_for_and_whether_memory_suffices() {
        let text = |pairs, memory| Plan::of(EngineKind::Strata, pairs).unwrap().text(Some(ByteSize::mib(memory)));
        assert!(text(1_200_000_000, 8192).contains("computed beyond what was measured"));
        assert!(!text(700_000_000, 8192).contains("computed beyond"));
        for (memory, says) in [
            (100, "too little to load; too little to serve"),
            (1024, "a part of the absent keys costs a read"),
            (4096, "nearly no absent key does"),
            (131_072, "no key costs a read"),
        ] {
            assert!(text(700_000_000, memory).contains(says), "{memory}: {}", text(700_000_000, memory));
        }
        // The largest measured loads: 51.0 and 54.5 GB of disk at the peak.
        let peak = |engine| Plan::of(engine, 700_000_000).unwrap().load_disk_bytes() / 100_000_000;
        assert_eq!([peak(EngineKind::Strata), peak(EngineKind::Rocksdb)].map(|gb| gb.abs_diff(530) <= 35), [true; 2]);
    }

    #[test]
    fn a_derived_store_needs_as_much_disk_as_the_map() {
        let plan = Plan::of(EngineKind::Strata, 700_000_000).unwrap();
        let (text, both) = (plan.derived_text(), size(2 * plan.service_disk_bytes() - BESIDE_BYTES));
        for needed in [size(plan.store_bytes()), both, size(plan.load_disk_bytes())] {
            assert!(text.contains(&needed), "{needed}: {text}");
        }
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([999, 1000, 12_345, 300_000_000, 1_200_000_000].map(short), ["999", "1k", "12.3k", "300M", "1.2G"]);
        assert_eq!([1, 205_000_000, 1_074_000_000, 45_640_000_000].map(size), ["1 MB", "205 MB", "1.07 GB", "45.6 GB"]);
        assert_eq!([59, 150, 9000].map(time), ["59 s", "2.5 min", "2.5 h"]);
    }
}
