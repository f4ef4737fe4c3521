//! Reports a finished load: figures and next steps as text, everything as JSON, the histograms as a log.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::FileTypeExt as _;
use std::time::Duration;

use anyhow::{Context, Result};
use bytesize::ByteSize;
use engine_api::Engine;
use engine_latency::{Measured, Op, Snapshot, export, table};
use engines::EngineOptions;
use serde_json::json;
use solana::archive::Listing;

use crate::args::LoadArgs;
use crate::limits::BATCH_PAIRS;
use crate::order::Tally;
use crate::out::say;
use crate::rank::Order;
use crate::sample::Sample;
use crate::source::Source;

/// Everything that the report of a finished load needs.
pub(crate) struct Outcome<'a> {
    pub(crate) args: &'a LoadArgs,
    pub(crate) options: &'a EngineOptions,
    pub(crate) source: &'a Source,
    pub(crate) order: Order,
    pub(crate) tally: Tally,
    pub(crate) listing: Listing,
    /// Pairs loaded by this run: fewer than `tally.pairs` after a resume.
    pub(crate) loaded: u64,
    pub(crate) elapsed: Duration,
    pub(crate) samples: Vec<Sample>,
    pub(crate) figures: Figures,
}

/// Figures of the engine, taken while it is open, because it is closed before its files are measured.
pub(crate) struct Figures {
    label: &'static str,
    latency: Snapshot,
    details: Vec<(&'static str, u64)>,
}

impl Figures {
    pub(crate) fn of(engine: &Measured) -> Result<Self> {
        Ok(Self { label: engine.label(), latency: engine.latency().snapshot(), details: engine.stats()?.details })
    }
}

/// Fails if a report's file cannot be written, before the load begins. An existing file stays as it is, and no new file
/// is left.
pub(crate) fn check_writable(args: &LoadArgs) -> Result<()> {
    for path in args.report.iter().chain(&args.hlog) {
        let is_new = !path.exists();
        let failed = || format!("cannot write file={}", path.display());
        let mut file = OpenOptions::new().append(true).create(true).open(path).with_context(failed)?;
        // A device can be opened, and only the first write shows that it refuses data. A blank line does it no harm.
        if file.metadata().with_context(failed)?.file_type().is_char_device() {
            file.write_all(b"\n").with_context(failed)?;
        }
        if is_new {
            std::fs::remove_file(path).with_context(|| format!("cannot remove file={}", path.display()))?;
        }
    }
    Ok(())
}

pub(crate) fn print_and_write(outcome: Outcome<'_>) -> Result<()> {
    let args = outcome.args;
    let disk_bytes = probe::disk_bytes(&args.dir);
    let page_cache_bytes = probe::page_cache_bytes(&args.dir);
    let rss_peak_bytes = probe::rss_peak_bytes(std::process::id());
    let per_second = outcome.loaded as f64 / outcome.elapsed.as_secs_f64().max(1e-9);
    let Figures { label, latency, details } = &outcome.figures;
    let latencies = export::report(latency);
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let order = outcome.order.name();
    let of_this_run = of_this_run(&outcome);
    let mut rows = vec![
        row("Load", (*label).to_owned()),
        row("  pairs", format!("{} ({order})", table::grouped(outcome.tally.pairs))),
        row("  disk usage", ByteSize::b(disk_bytes).to_string()),
        row("  bytes / pair", format!("{:.1}", disk_bytes as f64 / outcome.tally.pairs.max(1) as f64)),
        row("  bootstrap time", format!("{:.2} s{of_this_run}", outcome.elapsed.as_secs_f64())),
        row("  pairs / s", format!("{}{of_this_run}", table::grouped(per_second as u64))),
        row("  peak RSS", ByteSize::b(rss_peak_bytes).to_string()),
        row("  page cache", ByteSize::b(page_cache_bytes).to_string()),
    ];
    for (name, op) in [("negative read", Op::ReadNegative), ("write", Op::Write), ("commit", Op::Commit)] {
        if let Some(series) = latencies.get("bootstrap", op) {
            let micros = |nanos: u64| table::micros(nanos as f64);
            let (avg, p50, p99) = (table::micros(series.mean_ns), micros(series.p50_ns), micros(series.p99_ns));
            rows.push(row(&format!("  {name}"), format!("avg {avg}  p50 {p50}  p99 {p99}")));
        }
    }
    rows.extend(remarks(&outcome).into_iter().map(|(name, value)| row(name, value)));
    say!("{}{}", table::aligned(&rows), next(&outcome));
    if let Some(path) = &args.report {
        let json = json!({
            "solkv": env!("CARGO_PKG_VERSION"),
            "engine": label,
            "options": outcome.options,
            "source": outcome.source.to_string(),
            "order": outcome.order,
            "batch": args.batch.unwrap_or(BATCH_PAIRS),
            "synced": args.synced,
            "settled": args.settle,
            "pairs": outcome.tally.pairs,
            "pairs_loaded_by_this_run": outcome.loaded,
            "duplicates": outcome.tally.duplicates,
            "keys_without_a_value": outcome.tally.absent,
            "manifest_list": outcome.listing.shown(),
            "elapsed_ms": outcome.elapsed.as_millis() as u64,
            "pairs_per_second": per_second,
            "disk_bytes": disk_bytes,
            "rss_peak_bytes": rss_peak_bytes,
            "process": probe::process_counts(std::process::id())?,
            "page_cache_bytes": page_cache_bytes,
            "engine_details": details.iter().map(|(name, value)| ((*name).to_owned(), json!(value)))
                .collect::<serde_json::Map<_, _>>(),
            "latencies": latencies,
            "samples": outcome.samples,
        });
        std::fs::write(path, serde_json::to_vec_pretty(&json)?)
            .with_context(|| format!("cannot write file={}", path.display()))?;
    }
    if let Some(path) = &args.hlog {
        std::fs::write(path, export::hlog(latency)).with_context(|| format!("cannot write file={}", path.display()))?;
    }
    Ok(())
}

/// Says of time and rate that they are of the rest of the load, after a resume.
fn of_this_run(outcome: &Outcome<'_>) -> String {
    match outcome.loaded < outcome.tally.pairs {
        true => format!(" (of this run's {} pairs)", table::grouped(outcome.loaded)),
        false => String::new(),
    }
}

/// Returns the rows that only some loads have.
fn remarks(outcome: &Outcome<'_>) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    let runs = outcome.figures.details.iter().find(|(name, _)| *name == "delta_runs").map_or(0, |(_, runs)| *runs);
    if runs > 0 {
        rows.push(("  not merged", format!("{runs} delta runs, which cost disk and reads; --settle merges them")));
    }
    if outcome.tally.duplicates > 0 {
        // An archive holds older versions of its accounts; no key in it is given twice by mistake.
        let name = if outcome.source.has_versions() { "  older versions" } else { "  duplicates" };
        rows.push((name, table::grouped(outcome.tally.duplicates)));
    }
    if outcome.tally.absent > 0 {
        rows.push(("  no value, skipped", table::grouped(outcome.tally.absent)));
    }
    let listing = match outcome.listing {
        Listing::Compared => return rows,
        Listing::Empty => "lists no files: the archive's end alone shows that it is whole",
        Listing::Unknown => "has an unknown layout: a file that is missing would not be noticed",
    };
    rows.push(("  manifest", listing.to_owned()));
    rows
}

/// Describes where the store is, its position, and the commands to run next.
fn next(outcome: &Outcome<'_>) -> String {
    let (args, pairs) = (outcome.args, outcome.tally.pairs);
    let (dir, engine) = (args.dir.display(), outcome.figures.label);
    let slot = args.slot.map_or_else(|| "none".to_owned(), |slot| slot.to_string());
    let store = format!("the store: dir={dir} engine={engine} seq={pairs} slot={slot}");
    if args.is_part {
        // The program that runs the load continues with the store.
        return store;
    }
    let from = match args.slot {
        Some(slot) => format!("it follows the stream from slot {slot}"),
        None => "it follows the stream from now, because no --slot was given".to_owned(),
    };
    // A service has to be told the meaning of values that the load was not told.
    let extract = if args.meaning.extract.is_none() { " --extract EXTRACT" } else { "" };
    let [service, bootstrap] = ["service", "bootstrap"].map(program::called);
    format!(
        "{store}\n\
         next: {service} --dir {dir} --geyser URL{extract}    ({from})\n\
         print the digest with: {bootstrap} info --digest --dir {dir}"
    )
}
