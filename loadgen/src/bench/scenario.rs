//! A scenario: one experiment as a TOML file, and its runs.
//!
//! Owns: the file's format, its checks, and the order of the runs. Must not: run anything.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use engines::EngineOptions;
use serde::Deserialize;
use workload::{Shape, Values};

use super::engine;
use super::run::{Run, parse_keys, parse_shape, parse_values};
use super::work::{Cell, Kind, Load, State, name_of, one_thread, random, synced, thousand, unique};

/// Bytes of a pair. Caps are fractions of all pairs' bytes.
const PAIR_BYTES: u64 = 64;

/// A reviewed experiment, as its TOML file describes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// Name of the experiment, which appears in every result.
    pub(crate) name: String,
    /// Purpose of the experiment, in a sentence.
    pub(crate) about: String,
    /// Engines as options of `bootstrap`: `rocksdb --bloom 20`.
    pub(crate) engines: Vec<String>,
    /// Number of pairs in the store before a run.
    pub(crate) pairs: u64,
    /// Seed of keys, values and order.
    #[serde(default = "one")]
    pub(crate) seed: u64,
    /// Number of times that every run is made; the engines take turns.
    #[serde(default = "one")]
    pub(crate) repeats: u64,
    /// Kind of the values: unique, or zipfian:EXPONENT:OWNERS.
    #[serde(default = "unique")]
    pub(crate) values: String,
    /// Order in which the stores are loaded.
    #[serde(default)]
    pub(crate) load: Load,
    /// Updates of an aged store, as a share of the pairs. The default is an hour of 10,000 a second at 50 million
    /// pairs.
    #[serde(default = "hour")]
    pub(crate) age_updates: f64,
    /// Groups of runs to measure.
    #[serde(rename = "cell")]
    pub(crate) cells: Vec<Cell>,
}

impl Scenario {
    /// Reads and checks a scenario file.
    ///
    /// # Errors
    /// A file that cannot be read, is not a scenario, or has invalid settings. The error names the file and the
    /// mistake.
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
        let values = parse_values(&self.values)?;
        ensure!(self.age_updates > 0.0 && self.age_updates < 1e3, "age_updates={}: give more than 0", self.age_updates);
        // The service's stream only knows loaded values that are unique and unchanged.
        let is_plain = self.load != Load::Aged && values == Values::Unique;
        ensure!(
            is_plain || !self.cells.iter().any(|cell| cell.workload == Kind::Live),
            "live is for unique values, and not for an aged store"
        );
        for cell in &self.cells {
            cell.check_writes()?;
            cell.check_reads()?;
            for seconds in [cell.seconds, cell.before_seconds] {
                ensure!(seconds > 0.0 && seconds < 1e6, "seconds={seconds}: give more than 0");
            }
            let is_steady = cell.state == State::Steady;
            let loops = !matches!(cell.workload, Kind::Bootstrap | Kind::Live | Kind::Recover | Kind::Scan);
            ensure!(
                cell.workload != Kind::Live || cell.state != State::Warm || cell.caps.is_empty(),
                "state=\"warm\" of live is for runs without caps: pages that loadgen has read are not charged to the service"
            );
            ensure!(
                cell.workload != Kind::Live
                    || (cell.threads == one_thread() && cell.batch == thousand() && cell.durability == synced()),
                "live takes no threads, batch or durability: the service runs as it comes"
            );
            ensure!(loops || !is_steady, "state=\"steady\": {} has no steady state: give cold", name_of(cell.workload));
            ensure!(cell.rate.is_none_or(|rate| rate > 0.0), "rate: give more than 0");
            ensure!(cell.batch > 0, "batch=0: give 1 or more");
            ensure!(cell.threads.iter().all(|threads| (1..=256).contains(threads)), "threads: give 1 to 256");
            ensure!(cell.caps.iter().all(|cap| *cap > 0.0), "caps: give shares above 0");
            let is_one_reader = cell.threads == one_thread() && cell.rate.is_none();
            ensure!(
                !cell.floor || (is_one_reader && (cell.workload.is_read() || cell.workload == Kind::Beside)),
                "floor=true is for one thread of gets in a closed loop, not for {}",
                name_of(cell.workload)
            );
            ensure!(
                !cell.floor || cell.state != State::Warm || cell.caps.is_empty(),
                "floor=true of a warm state takes 1 GiB of memory: give no caps"
            );
            ensure!(
                !cell.settle || cell.workload == Kind::Bootstrap,
                "settle=true is for bootstrap, not for {}: stores are settled unless load says otherwise",
                name_of(cell.workload)
            );
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

    /// Lists all runs in order: one repeat after the other, and within it the engines take turns cell by cell. So a
    /// drift of the machine affects all engines alike. Each repeat begins with the next engine, because the place in a
    /// turn may matter.
    ///
    /// # Errors
    /// An engine that cannot be parsed, is listed twice, or is not in this build.
    pub(crate) fn runs(&self) -> Result<Vec<Run>> {
        let mut engines = self.engines.iter().map(|line| engine::parse(line)).collect::<Result<Vec<_>>>()?;
        for (at, engine) in engines.iter().enumerate() {
            ensure!(!engines[..at].contains(engine), "the same engine twice: {:?}", self.engines[at]);
        }
        let mut runs = Vec::new();
        for repeat in 0..self.repeats as u32 {
            for cell in &self.cells {
                let caps: Vec<Option<f64>> =
                    if cell.caps.is_empty() { vec![None] } else { cell.caps.iter().copied().map(Some).collect() };
                let depths = if cell.ingest_depth.is_empty() { &[None][..] } else { &some(&cell.ingest_depth) };
                let keys = cell.key_shapes.iter().flat_map(|shape| cell.keys.iter().map(move |keys| (shape, keys)));
                for ((shape, keys), threads) in keys.flat_map(|keys| cell.threads.iter().map(move |n| (keys, *n))) {
                    for (cap, depth) in caps.iter().flat_map(|cap| depths.iter().map(move |depth| (*cap, *depth))) {
                        let run = |engine| Run {
                            ingest_depth: depth,
                            key_shape: shape.clone(),
                            ..self.run(cell, engine, keys, cap, threads, repeat)
                        };
                        runs.extend(engines.iter().map(run));
                    }
                }
            }
            engines.rotate_left(1);
        }
        Ok(runs)
    }

    fn run(&self, cell: &Cell, engine: &EngineOptions, keys: &str, cap: Option<f64>, threads: u32, repeat: u32) -> Run {
        let cap_bytes = cap.map(|share| ((self.pairs * PAIR_BYTES) as f64 * share) as u64 / 4096 * 4096);
        Run {
            scenario: self.name.clone(),
            engine_line: engine.line(),
            engine: engine.clone(),
            keys: keys.to_owned(),
            key_shape: random(),
            pairs: self.pairs,
            seed: self.seed,
            values: self.values.clone(),
            load: self.load,
            age_updates: self.age_updates,
            cap_bytes,
            threads,
            ingest_depth: None,
            repeat,
            cell: cell.clone(),
        }
    }
}

impl Cell {
    fn check_writes(&self) -> Result<()> {
        let name = name_of(self.workload);
        let writes = matches!(self.workload, Kind::Write | Kind::Beside);
        let mixes = self.workload == Kind::Mix;
        ensure!(self.batch_max.is_none() || writes || mixes, "batch_max is for write, mix and beside, not for {name}");
        ensure!(
            self.batch_max.is_none_or(|most| most >= self.batch),
            "batch_max is less than batch={}: give as many or more",
            self.batch
        );
        let live = self.workload == Kind::Live;
        ensure!(live || self.ingest_depth.is_empty(), "ingest_depth is for live, not for {name}");
        ensure!(!live || !self.keys.iter().any(|keys| keys == "sequential"), "live has no sequential keys");
        ensure!(self.write_rate.is_none() || writes, "write_rate is for write and beside, not for {name}");
        ensure!(self.write_rate.is_none_or(|rate| rate > 0.0), "write_rate: give more than 0");
        Ok(())
    }

    fn check_reads(&self) -> Result<()> {
        let name = name_of(self.workload);
        let scans = matches!(self.workload, Kind::ShortScan | Kind::Beside);
        ensure!(self.scan_pairs.is_none() || scans, "scan_pairs is for short_scan and beside, not for {name}");
        ensure!(self.scan_pairs != Some(0), "scan_pairs=0: give 1 or more");
        ensure!(
            self.scan_pairs.is_none() || (self.delete_share == 0.0 && !self.double_index),
            "scan_pairs takes no delete_share or double_index: scans are checked against the loaded keys"
        );
        ensure!(
            self.puts_before_reads() == 0 || self.state == State::Warm,
            "events of {name} is for state=\"warm\": its puts would bring pages of a cold store into memory"
        );
        for shape in &self.key_shapes {
            let is_random = parse_shape(shape)? == Shape::Random;
            ensure!(is_random || self.workload != Kind::Live, "live is for random keys: key_shapes={shape}");
            let in_order = self.keys.iter().any(|keys| keys == "sequential");
            ensure!(is_random || !in_order, "sequential keys are for random ones: key_shapes={shape}");
        }
        Ok(())
    }
}

fn some(values: &[u32]) -> Vec<Option<u32>> {
    values.iter().copied().map(Some).collect()
}

fn one() -> u64 {
    1
}
fn hour() -> f64 {
    0.72
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name = 'n'\nabout = 'a'\nengines = ['FIRST', 'SECOND']\npairs = 1000\nrepeats = 2\n\
                        [[cell]]\nworkload = 'read_positive'\nkeys = ['uniform', 'zipfian:0.99']\ncaps = [0.5, 1]\n";

    /// Returns two engines of this build. With only one engine, the second is the same with other memory.
    fn two() -> [String; 2] {
        let compiled = engines::compiled();
        let second = compiled.get(1).map(|engine| engine.as_str().to_owned());
        let first = compiled[0].as_str().to_owned();
        [first.clone(), second.unwrap_or(format!("{first} --memory 67108864"))]
    }
    fn text() -> String {
        let [first, second] = two();
        TEXT.replace("FIRST", &first).replace("SECOND", &second)
    }

    #[test]
    fn engines_take_turns_and_caps_are_shares_of_the_pairs() {
        let scenario: Scenario = toml::from_str(&text()).unwrap();
        let runs = scenario.runs().unwrap();
        assert_eq!(runs.len(), 2 * 2 * 2 * 2);
        let engines: Vec<_> = runs.iter().take(4).map(|run| run.engine_line.as_str()).collect();
        let [first, second] = two();
        assert_eq!(engines, [&first, &second, &first, &second]);
        assert_eq!(runs[0].cap_bytes, Some(28672));
        assert_eq!((runs[0].repeat, runs[8].repeat), (0, 1));
        assert_eq!(runs[8].engine_line, second, "each repeat begins with the next engine");
        assert_eq!(runs[2].workload().keys, "uniform");
    }

    #[test]
    fn each_kind_of_keys_has_its_runs_and_random_ones_are_not_named() {
        let shapes = text().replace("caps", "key_shapes = ['random', 'alike', 'grouped']\ncaps");
        let runs = toml::from_str::<Scenario>(&shapes).unwrap().runs().unwrap();
        assert_eq!(runs.len(), 3 * 2 * 2 * 2 * 2);
        let named: std::collections::BTreeSet<Option<String>> =
            runs.iter().map(|run| run.workload().more.get("key_shape").cloned()).collect();
        assert_eq!(named.into_iter().collect::<Vec<_>>(), [None, Some("alike".to_owned()), Some("grouped".to_owned())]);
        assert!(runs.iter().all(|run| run.source_args().contains(&run.key_shape) == (run.key_shape != "random")));
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
        assert!(with(&TEXT.replace("FIRST", &two()[0])).is_err());
        assert!(with(&text().replace("zipfian:0.99", "normal")).is_err());
        assert!(with(&text().replace("pairs = 1000", "pairs = 0")).is_err());
        let [first, _] = two();
        let twice = TEXT.replace("FIRST", &first).replace("SECOND", &first);
        assert!(with(&twice).unwrap_err().to_string().contains("the same engine twice"));
        let cell = |workload: &str, more: &str| text().replace("'read_positive'", &format!("'{workload}'\n{more}"));
        for (workload, more, said) in [
            ("read_positive", "batch_max = 5000", "batch_max is for"),
            ("write", "batch_max = 5", "is less than batch=1000"),
            ("mix", "write_rate = 5", "write_rate is for"),
            ("beside", "write_rate = 0", "give more than 0"),
            ("live", "batch = 100", "live takes no threads, batch or durability"),
            ("live", "threads = [2]", "live takes no threads, batch or durability"),
            ("live", "durability = 'buffered'", "live takes no threads, batch or durability"),
            ("read_positive", "scan_pairs = 10", "scan_pairs is for short_scan and beside"),
            ("short_scan", "scan_pairs = 0", "scan_pairs=0"),
            ("beside", "scan_pairs = 10\ndelete_share = 0.1", "scan_pairs takes no delete_share"),
            ("short_scan", "events = 10", "events of short_scan is for state=\"warm\""),
            ("read_negative", "key_shapes = ['alike', 'same']", "not a kind of keys: \"same\""),
            ("live", "key_shapes = ['alike']", "live is for random keys"),
        ] {
            assert!(with(&cell(workload, more)).unwrap_err().to_string().contains(said), "{workload} {more}");
        }
        let in_order = cell("read_positive", "key_shapes = ['counting']").replace("'uniform', ", "'sequential', ");
        assert!(with(&in_order).unwrap_err().to_string().contains("sequential keys are for random ones"));
        let owners = |text: String| text.replace("name = ", "values = 'zipfian:0.99:100'\nname = ");
        assert!(with(&owners(text())).is_ok());
        assert!(with(&owners(cell("live", ""))).unwrap_err().to_string().contains("live is for unique values"));
        assert!(with(&text().replace("name = ", "values = 'some'\nname = ")).is_err());
        let steady = |workload: &str| text().replace("'read_positive'", &format!("'{workload}'\nstate = 'steady'"));
        assert!(with(&steady("read_positive")).is_ok());
        assert!(with(&steady("recover")).unwrap_err().to_string().contains("recover has no steady state"));
        let warm = cell("live", "state = 'warm'");
        assert!(with(&warm).unwrap_err().to_string().contains("without caps"));
        assert!(with(&warm.replace("caps = [0.5, 1]", "")).is_ok());
    }

    #[test]
    fn the_shipped_scenarios_are_valid() {
        let mut seen = 0;
        for folder in ["", "settings", "strata", "targets"] {
            for entry in std::fs::read_dir(Path::new("scenarios").join(folder)).unwrap() {
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
