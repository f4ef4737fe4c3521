//! A scenario: one experiment as a TOML file, and the runs it comes down to.
//!
//! Owns: the file's format, its checks, and the order of the runs. Must not: run anything.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use engines::{EngineArgs, EngineKind, EngineOptions, Profile};
use serde::{Deserialize, Serialize};

use crate::result;
use crate::stream::SkewArg;

/// Bytes of a pair, which is what caps are fractions of.
const PAIR_BYTES: u64 = 64;

/// A reviewed experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// Names the experiment in every result.
    pub(crate) name: String,
    /// What it shows, in a sentence.
    pub(crate) about: String,
    /// Engines as the options of `bootstrap`: `rocksdb --bloom 20`.
    pub(crate) engines: Vec<String>,
    /// Pairs in the store before a run.
    pub(crate) pairs: u64,
    /// Of keys, values and order.
    #[serde(default = "one")]
    pub(crate) seed: u64,
    /// How often every run is repeated; the engines take turns.
    #[serde(default = "one")]
    pub(crate) repeats: u64,
    /// How the store of a reading run is loaded.
    #[serde(default)]
    pub(crate) load: Load,
    /// What is measured.
    #[serde(rename = "cell")]
    pub(crate) cells: Vec<Cell>,
}

/// Order of the pairs that a store is loaded with before it is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Load {
    /// Through the engine's bulk path, then settled: the state that a store has after months.
    #[default]
    Sorted,
    /// In random order, then settled.
    Shuffled,
    /// In random order and measured at once, with whatever work the engine still has to do.
    Fresh,
}

/// One or several runs: each of `keys`, `caps` and `threads` with each of the others.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cell {
    /// What is done.
    pub(crate) workload: Kind,
    /// How keys are picked: uniform, zipfian:EXPONENT, sequential.
    #[serde(default = "uniform")]
    pub(crate) keys: Vec<String>,
    /// Memory caps as shares of the pairs' bytes; none: not capped.
    #[serde(default)]
    pub(crate) caps: Vec<f64>,
    /// Reading threads.
    #[serde(default = "one_thread")]
    pub(crate) threads: Vec<u32>,
    /// State of the page cache at the start.
    #[serde(default)]
    pub(crate) state: State,
    /// Length of the measured part.
    #[serde(default = "ten")]
    pub(crate) seconds: f64,
    /// How long the same work is done unmeasured before a measured part that is `steady`.
    #[serde(default = "thirty")]
    pub(crate) before_seconds: f64,
    /// Operations a second over all threads; none: closed loop.
    pub(crate) rate: Option<f64>,
    /// Share of writes in `mix`.
    #[serde(default = "half")]
    pub(crate) write_share: f64,
    /// Share of deletes among the writes.
    #[serde(default)]
    pub(crate) delete_share: f64,
    /// Every put of a pair is followed by one of the pair turned round: an index in both directions.
    #[serde(default)]
    pub(crate) double_index: bool,
    /// Writes of a commit, or keys of a `get_many`.
    #[serde(default = "thousand")]
    pub(crate) batch: u32,
    /// What a commit survives: synced or buffered.
    #[serde(default = "synced")]
    pub(crate) durability: String,
    /// Events of `live`; of `recover`, the puts before the kill (0: as many as there are in two seconds).
    #[serde(default)]
    pub(crate) events: u64,
    /// Order of a `bootstrap`: shuffled or sorted.
    #[serde(default = "shuffled")]
    pub(crate) order: String,
}

/// The workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// Loading shuffled pairs into an empty store, sampled over its size (`bootstrap`).
    Bootstrap,
    /// Gets of keys that are not there.
    ReadNegative,
    /// Gets of keys that are there, each value compared.
    ReadPositive,
    /// Batches of gets of keys that are there.
    GetMany,
    /// Puts in batches, no reads.
    Write,
    /// Reads and writes by turns of chance on one thread.
    Mix,
    /// Readers beside one writer.
    Beside,
    /// Every pair in order.
    Scan,
    /// A killed writer's store: from opening it to the first correct read.
    Recover,
    /// The service behind a stream (`loadgen live`).
    Live,
}

/// State of the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// Nothing of the store in it.
    #[default]
    Cold,
    /// The store was read through and a tenth of its keys were got, then the same work was done unmeasured for a tenth
    /// of the time, after a rest of seconds.
    Warm,
    /// Nothing of the store in it when it is opened; then the same work is done unmeasured for `before_seconds`.
    Steady,
}

/// One run of one engine: all that a child process has to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    /// The scenario's name.
    pub(crate) scenario: String,
    /// The engine, its memory decided.
    pub(crate) engine: EngineOptions,
    /// What is done.
    pub(crate) kind: Kind,
    /// How keys are picked.
    pub(crate) keys: String,
    /// Pairs in the store before the run.
    pub(crate) pairs: u64,
    /// Of keys, values and order.
    pub(crate) seed: u64,
    /// How the store was loaded.
    pub(crate) load: Load,
    /// Memory cap in bytes.
    pub(crate) cap_bytes: Option<u64>,
    /// Reading threads.
    pub(crate) threads: u32,
    /// State of the page cache.
    pub(crate) state: State,
    /// Length of the measured part.
    pub(crate) seconds: f64,
    /// Length of the same work before it, of a steady state.
    #[serde(default = "thirty")]
    pub(crate) before_seconds: f64,
    /// Operations a second over all threads; none: closed loop.
    pub(crate) rate: Option<f64>,
    /// Share of writes in `mix`.
    pub(crate) write_share: f64,
    /// Share of deletes among the writes.
    pub(crate) delete_share: f64,
    /// Whether pairs are written both ways.
    pub(crate) double_index: bool,
    /// Writes of a commit, or keys of a `get_many`.
    pub(crate) batch: u32,
    /// What a commit survives: synced or buffered.
    pub(crate) durability: String,
    /// Events of `live`, puts before the kill of `recover`.
    pub(crate) events: u64,
    /// Order of a `bootstrap`.
    pub(crate) order: String,
    /// Counted from 0.
    pub(crate) repeat: u32,
}

impl Scenario {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Naming the file and what is wrong in it.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read file={}", path.display()))?;
        let scenario: Self =
            toml::from_str(&text).with_context(|| format!("not a scenario: file={}", path.display()))?;
        scenario.check().with_context(|| format!("not a scenario: file={}", path.display()))?;
        Ok(scenario)
    }

    fn check(&self) -> Result<()> {
        ensure!(!self.engines.is_empty(), "engines is empty: name one, such as \"redb\"");
        ensure!(self.pairs > 0 && self.repeats > 0, "pairs={} repeats={}: give 1 or more", self.pairs, self.repeats);
        for cell in &self.cells {
            for seconds in [cell.seconds, cell.before_seconds] {
                ensure!(seconds > 0.0 && seconds < 1e6, "seconds={seconds}: give more than 0");
            }
            let is_steady = cell.state == State::Steady;
            let loops = !matches!(cell.workload, Kind::Bootstrap | Kind::Live | Kind::Recover | Kind::Scan);
            ensure!(loops || !is_steady, "state=\"steady\": {} has no steady state: give cold", name_of(cell.workload));
            ensure!(cell.rate.is_none_or(|rate| rate > 0.0), "rate={:?}: give more than 0", cell.rate);
            ensure!(cell.batch > 0, "batch=0: give 1 or more");
            ensure!(cell.threads.iter().all(|threads| (1..=256).contains(threads)), "threads: give 1 to 256");
            ensure!(cell.caps.iter().all(|cap| *cap > 0.0), "caps={:?}: give shares above 0", cell.caps);
            for share in [cell.write_share, cell.delete_share] {
                ensure!((0.0..=1.0).contains(&share), "share={share}: give 0 to 1");
            }
            ensure!(
                matches!(cell.durability.as_str(), "synced" | "buffered"),
                "durability={:?}: give synced or buffered",
                cell.durability
            );
            ensure!(
                matches!(cell.order.as_str(), "shuffled" | "sorted"),
                "order={:?}: give shuffled or sorted",
                cell.order
            );
            for keys in &cell.keys {
                parse_keys(keys)?;
            }
        }
        Ok(())
    }

    /// All runs in their order: one repeat after the other, and within it engines take turns cell by cell, so that
    /// what drifts on the machine falls on all of them alike.
    ///
    /// # Errors
    /// For an engine that cannot be parsed or is not in this build.
    pub(crate) fn runs(&self) -> Result<Vec<Run>> {
        let engines = self.engines.iter().map(|line| parse_engine(line)).collect::<Result<Vec<_>>>()?;
        let mut runs = Vec::new();
        for repeat in 0..self.repeats as u32 {
            for cell in &self.cells {
                let caps: Vec<Option<f64>> =
                    if cell.caps.is_empty() { vec![None] } else { cell.caps.iter().copied().map(Some).collect() };
                for (keys, threads) in cell.keys.iter().flat_map(|keys| cell.threads.iter().map(move |n| (keys, *n))) {
                    for cap in &caps {
                        runs.extend(engines.iter().map(|engine| self.run(cell, engine, keys, *cap, threads, repeat)));
                    }
                }
            }
        }
        Ok(runs)
    }

    fn run(&self, cell: &Cell, engine: &EngineOptions, keys: &str, cap: Option<f64>, threads: u32, repeat: u32) -> Run {
        let cap_bytes = cap.map(|share| ((self.pairs * PAIR_BYTES) as f64 * share) as u64 / 4096 * 4096);
        Run {
            scenario: self.name.clone(),
            engine: EngineOptions { memory: engine.memory.or(cache_share(engine, cap_bytes)), ..engine.clone() },
            kind: cell.workload,
            keys: keys.to_owned(),
            pairs: self.pairs,
            seed: self.seed,
            load: self.load,
            cap_bytes,
            threads,
            state: cell.state,
            seconds: cell.seconds,
            before_seconds: cell.before_seconds,
            rate: cell.rate,
            write_share: cell.write_share,
            delete_share: cell.delete_share,
            double_index: cell.double_index,
            batch: cell.batch,
            durability: cell.durability.clone(),
            events: cell.events,
            order: cell.order.clone(),
            repeat,
        }
    }
}

impl Run {
    /// The engine's settings as results hold them.
    pub(crate) fn engine_options(&self) -> BTreeMap<String, String> {
        let value = serde_json::to_value(&self.engine).unwrap_or_default();
        let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        value.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), text(value))).collect()
    }

    /// The workload as results name it.
    pub(crate) fn workload(&self) -> result::Workload {
        let writes = matches!(self.kind, Kind::Write | Kind::Mix | Kind::Beside | Kind::Bootstrap | Kind::Live);
        let mut more = BTreeMap::new();
        // A load of its own is what `bootstrap` measures.
        if self.kind != Kind::Bootstrap {
            more.insert("load".to_owned(), name_of(self.load));
        }
        if writes || self.kind == Kind::GetMany {
            more.insert("batch".to_owned(), self.batch.to_string());
        }
        if self.kind == Kind::Mix {
            more.insert("write_share".to_owned(), self.write_share.to_string());
        }
        if self.delete_share > 0.0 {
            more.insert("delete_share".to_owned(), self.delete_share.to_string());
        }
        if self.double_index {
            more.insert("double_index".to_owned(), "yes".to_owned());
        }
        if self.kind == Kind::Bootstrap && self.order != shuffled() {
            more.insert("order".to_owned(), self.order.clone());
        }
        if self.state == State::Steady {
            more.insert("before_seconds".to_owned(), self.before_seconds.to_string());
        }
        if self.events > 0 {
            more.insert("events".to_owned(), self.events.to_string());
        }
        let name = match self.kind {
            Kind::Mix => {
                let writes = (self.write_share * 100.0).round();
                format!("mix_{}_{writes}", 100.0 - writes)
            }
            kind => name_of(kind),
        };
        result::Workload {
            name,
            arrival: if self.rate.is_some() { "open" } else { "closed" }.to_owned(),
            target_rate: self.rate,
            keys: self.keys.clone(),
            pairs: self.pairs,
            threads: self.threads,
            state: name_of(self.state),
            durability: writes.then(|| self.durability.clone()),
            seed: self.seed,
            more,
        }
    }
}

/// How keys are picked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Keys {
    /// In ascending order, each once.
    Sequential,
    /// By chance.
    Skewed(workload::Skew),
}

pub(crate) fn parse_keys(text: &str) -> Result<Keys> {
    if text == "sequential" {
        return Ok(Keys::Sequential);
    }
    let SkewArg(skew) = text.parse().map_err(anyhow::Error::msg)?;
    Ok(Keys::Skewed(skew))
}

/// An engine as the tools' command lines name it, without `--engine`.
fn parse_engine(line: &str) -> Result<EngineOptions> {
    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        engine: EngineArgs,
    }
    let words = ["engine", "--engine"].into_iter().chain(line.split_whitespace());
    let Line { engine } = Line::try_parse_from(words).with_context(|| format!("not an engine: {line:?}"))?;
    let engine = engine.for_engine(engine.engine.with_context(|| format!("no engine: {line:?}"))?);
    engine.validate()?;
    ensure!(engines::compiled().contains(&engine.engine), "not in this build: engine={}", engine.engine.as_str());
    Ok(engine)
}

/// The part of a cap that an engine's own cache gets: vanilla RocksDB keeps filters and index outside of its cache and
/// needs the room; tuned holds all of it inside; redb reads through the page cache besides, which is charged too.
fn cache_share(engine: &EngineOptions, cap_bytes: Option<u64>) -> Option<bytesize::ByteSize> {
    let share = match (engine.engine, engine.profile) {
        (EngineKind::Lmdb, _) => return None,
        (EngineKind::Rocksdb, Profile::Vanilla) => 0.25,
        (EngineKind::Rocksdb, Profile::Tuned) => 0.6,
        (EngineKind::Redb, _) => 0.5,
        // Its budget holds all that it has in memory; the rest is the process and the buffers of merges.
        (EngineKind::Strata, _) => 0.75,
    };
    // Below this an engine re-reads its index for every get; it may then exceed a tiny cap, which the run tells.
    Some(bytesize::ByteSize::b(((cap_bytes? as f64 * share) as u64).max(8 << 20)))
}

pub(crate) fn name_of(value: impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        other => format!("{other:?}"),
    }
}

fn one() -> u64 {
    1
}
fn one_thread() -> Vec<u32> {
    vec![1]
}
fn ten() -> f64 {
    10.0
}
fn thirty() -> f64 {
    30.0
}
fn half() -> f64 {
    0.5
}
fn thousand() -> u32 {
    1000
}
fn uniform() -> Vec<String> {
    vec!["uniform".to_owned()]
}
fn shuffled() -> String {
    "shuffled".to_owned()
}
fn synced() -> String {
    "synced".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name = 'n'\nabout = 'a'\nengines = ['FIRST', 'SECOND']\npairs = 1000\nrepeats = 2\n\
                        [[cell]]\nworkload = 'read_positive'\nkeys = ['uniform', 'zipfian:0.99']\ncaps = [0.5, 1]\n";

    /// Two engines of this build; the same one twice where it has no other.
    fn two() -> [&'static str; 2] {
        let mut compiled = engines::compiled().iter().map(|engine| engine.as_str()).cycle();
        [compiled.next().unwrap(), compiled.next().unwrap()]
    }
    fn text() -> String {
        let [first, second] = two();
        TEXT.replace("FIRST", first).replace("SECOND", second)
    }

    #[test]
    fn engines_take_turns_and_caps_are_shares_of_the_pairs() {
        let scenario: Scenario = toml::from_str(&text()).unwrap();
        let runs = scenario.runs().unwrap();
        assert_eq!(runs.len(), 2 * 2 * 2 * 2);
        let engines: Vec<_> = runs.iter().take(4).map(|run| run.engine.engine.as_str()).collect();
        assert_eq!(engines, two().repeat(2));
        assert_eq!(runs[0].cap_bytes, Some(28672));
        assert_eq!((runs[0].repeat, runs[8].repeat), (0, 1));
        assert_eq!(runs[2].workload().keys, "uniform");
    }

    #[test]
    fn mistakes_are_named() {
        let with = |text: &str| {
            toml::from_str::<Scenario>(text).map_err(anyhow::Error::from).and_then(|s| {
                s.check()?;
                s.runs()
            })
        };
        assert!(with(&text()).is_ok());
        assert!(with(&text().replace("caps", "cap")).unwrap_err().to_string().contains("cap"));
        assert!(with(&TEXT.replace("FIRST", two()[0])).is_err());
        assert!(with(&text().replace("zipfian:0.99", "normal")).is_err());
        assert!(with(&text().replace("pairs = 1000", "pairs = 0")).is_err());
        let steady = |workload: &str| text().replace("'read_positive'", &format!("'{workload}'\nstate = 'steady'"));
        assert!(with(&steady("read_positive")).is_ok());
        assert!(with(&steady("recover")).unwrap_err().to_string().contains("recover has no steady state"));
    }

    #[test]
    fn the_shipped_scenarios_are_valid() {
        let mut seen = 0;
        for folder in ["scenarios", "scenarios/targets"] {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_file() {
                    assert!(!Scenario::read(&path).unwrap().cells.is_empty(), "{}", path.display());
                    seen += 1;
                }
            }
        }
        assert!(seen > 10, "seen={seen}");
    }
}
