//! `loadgen report`, `loadgen compare` and `loadgen best`: result files as one page, as markdown, and against each
//! other.
//!
//! Owns: the figures shown of a record, and how repeats are judged. Must not: measure. Runs on the main thread.
//!
//! A report is built once as a `document::Document` and then rendered: `html` shows all of it, `markdown` as much as a
//! README can hold.

pub mod best;
mod build;
mod cells;
mod charts;
pub mod compare;
mod device;
mod document;
mod figures;
mod format;
mod html;
mod input;
mod judge;
mod markdown;
mod notes;
mod scenario;
mod summary;
mod tables;
mod targets;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub use cells::Spread;
pub use judge::Verdict;

/// Text after the options in `loadgen report --help`.
pub const EXAMPLES: &str = "\
Runs with the same scenario, engine, workload and memory cap are repeats of each other, whichever file they are in: \
the report shows their median with the smallest and the largest. The page is one file that fetches nothing; open it \
from disk. `?theme=dark` or `?theme=light` at the end of its address overrides the system's preference.

Examples:
  solkv-loadgen report results/*.jsonl --html report.html --title 'NVMe, 700M pairs'
  solkv-loadgen report monday.jsonl tuesday.jsonl --html report.html --markdown report.md
  solkv-loadgen report run.jsonl | less";

#[derive(clap::Args, Clone, Debug)]
pub struct ReportArgs {
    /// Result files, one JSON record a line; .zst files are compressed with zstd
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Write one self-contained page: tables, charts, light and dark
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the tables as markdown; without --html and --markdown they go to stdout
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Title of the report
    #[arg(long, value_name = "TEXT", default_value = "Storage engines measured")]
    pub title: String,
}

/// Runs `loadgen report` and writes its files.
pub fn run(args: &ReportArgs) -> Result<()> {
    let records = input::read_all(&args.files)?;
    let document = build::document(&args.title, &records);
    if let Some(path) = &args.html {
        write(path, &html::render(&document)?)?;
    }
    if let Some(path) = &args.markdown {
        write(path, &markdown::render(&document))?;
    }
    if args.html.is_none() && args.markdown.is_none() {
        let text = markdown::render(&document);
        program::print(format_args!("{text}"));
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write the report: file={}", path.display()))
}
