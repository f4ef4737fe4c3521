//! An engine as a scenario names it: parsed, and passed on to the tools.
//!
//! Owns: the options that tell one engine from another. Must not: open a store, or give an engine other memory than its
//! user would. Without --memory an engine takes its own share of the cap.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use engines::{EngineArgs, EngineOptions};

/// Largest number of an engine line's characters in a store's name.
const NAME_MAX: usize = 60;

/// A command line that consists of engine options only.
#[derive(Parser)]
struct Line {
    #[command(flatten)]
    engine: EngineArgs,
}

/// Parses an engine as the tools' command lines name it, without `--engine`.
///
/// # Errors
/// An unknown engine or option, an invalid combination, or an engine that this build lacks.
pub(crate) fn parse(line: &str) -> Result<EngineOptions> {
    let words = ["engine", "--engine"].into_iter().chain(line.split_whitespace());
    let Line { engine } = Line::try_parse_from(words).with_context(|| format!("not an engine: {line:?}"))?;
    let engine = engine.for_engine(engine.engine.with_context(|| format!("no engine: {line:?}"))?);
    engine.validate()?;
    ensure!(engines::compiled().contains(&engine.engine), "not in this build: engine={}", engine.engine.as_str());
    Ok(engine)
}

/// Returns a store's name on disk. Engines with different options get different names. Memory is left out, because it
/// belongs to the run and not to the load.
pub(crate) fn store_name(engine: &EngineOptions) -> String {
    let line = loaded(engine).line();
    let plain = |letter: char| if letter.is_ascii_alphanumeric() || "=.-".contains(letter) { letter } else { '_' };
    let short: String = line.replace(" --", "_").chars().map(plain).take(NAME_MAX).collect();
    // The hash covers the characters that were cut or replaced.
    format!("{short}-{:08x}", engines::source_id(line.as_bytes()) as u32)
}

/// Adds the engine to a tool's command line, without memory, which belongs to the run and not to the load.
pub(crate) fn args(command: &mut Command, engine: &EngineOptions) {
    command.arg("--engine").args(loaded(engine).line().split_whitespace());
}

fn loaded(engine: &EngineOptions) -> EngineOptions {
    EngineOptions { memory: None, ..engine.clone() }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn of(options: &str) -> EngineOptions {
        let words = ["engine", "--engine"].into_iter().chain(options.split_whitespace());
        let Line { engine } = Line::try_parse_from(words).unwrap();
        engine.for_engine(engine.engine.unwrap())
    }

    #[test]
    fn engines_that_differ_have_other_stores_and_those_that_differ_in_memory_share_one() {
        let long = "rocksdb --bloom 20 --set metadata_cache_options={unpartitioned_pinning=kAll;} --set block_size=";
        let of_size = |size: u32| store_name(&of(&format!("{long}{size}")));
        let lines = ["rocksdb --bloom 10", "rocksdb --bloom 20", "rocksdb --bloom 20 --profile tuned", "lmdb"];
        let names: HashSet<String> =
            lines.into_iter().map(|line| store_name(&of(line))).chain([of_size(2048), of_size(8192)]).collect();
        assert_eq!(names.len(), 6, "{names:?}");
        let is_plain = |name: &String| name.len() < 100 && !name.contains(['/', ' ', '{']);
        assert!(names.iter().all(is_plain), "{names:?}");
        assert_eq!(store_name(&of("redb --memory 64MiB")), store_name(&of("redb")));
    }
}
