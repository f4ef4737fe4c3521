//! One run: everything that a child process has to know, and its name in results.
//!
//! Owns: the form in which a run is passed to its process, and its workload's name. Must not: run anything.

use std::collections::BTreeMap;

use anyhow::Result;
use engines::EngineOptions;
use serde::{Deserialize, Serialize};
use workload::{Pairs, Shape, Values};

use super::versions::Versions;
use super::work::{Cell, Kind, Load, State, name_of, random, shuffled, unique};
use crate::result;
use crate::stream::SkewArg;

/// One run of one engine: everything that a child process has to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) scenario: String,
    pub(crate) engine: EngineOptions,
    /// The engine's command line with every option that was given.
    pub(crate) engine_line: String,
    /// Distribution of the keys: one of those of the cell.
    pub(crate) keys: String,
    /// Kind of the store's keys, in the text form of [`workload::Shape`].
    pub(crate) key_shape: String,
    /// Number of pairs in the store before the run.
    pub(crate) pairs: u64,
    /// Seed of keys, values and order.
    pub(crate) seed: u64,
    /// Kind of the values, in the text form of [`workload::Values`].
    pub(crate) values: String,
    /// Order in which the store was loaded.
    pub(crate) load: Load,
    /// Updates since the load of an aged store, as a share of the pairs.
    pub(crate) age_updates: f64,
    /// Memory cap in bytes. `None`: not capped.
    pub(crate) cap_bytes: Option<u64>,
    /// Number of threads that read.
    pub(crate) threads: u32,
    /// The service's `ingest_depth`, for `live`. `None`: its default.
    pub(crate) ingest_depth: Option<u32>,
    /// Number of the repeat, counted from 0.
    pub(crate) repeat: u32,
    /// The cell of the scenario, in which the run has one of the keys, caps, threads and depths.
    pub(crate) cell: Cell,
}

impl Run {
    /// Returns the engine's settings in the form of the results.
    pub(crate) fn engine_options(&self) -> BTreeMap<String, String> {
        let value = serde_json::to_value(&self.engine).unwrap_or_default();
        let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        value.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), text(value))).collect()
    }

    /// Returns the generator of the store's pairs.
    ///
    /// # Errors
    /// Keys or values of an unknown kind.
    pub(crate) fn generator(&self) -> Result<Pairs> {
        Ok(Pairs::with_values(self.seed, parse_values(&self.values)?).with_shape(parse_shape(&self.key_shape)?))
    }

    /// Returns the options of `bootstrap` that name the store's pairs.
    pub(crate) fn source_args(&self) -> Vec<String> {
        let mut args = vec!["--pairs".to_owned(), self.pairs.to_string(), "--seed".to_owned(), self.seed.to_string()];
        if self.values != unique() {
            args.extend(["--values".to_owned(), self.values.clone()]);
        }
        if self.key_shape != random() {
            args.extend(["--key-shape".to_owned(), self.key_shape.clone()]);
        }
        args
    }

    /// Returns the number of updates between the load of an aged store and the run.
    pub(crate) fn aged_updates(&self) -> u64 {
        if self.load == Load::Aged { (self.pairs as f64 * self.age_updates) as u64 } else { 0 }
    }

    /// Returns all updates before the first measured read: those of an aged store, and then the run's own.
    pub(crate) fn updates(&self) -> u64 {
        self.aged_updates() + self.cell.puts_before_reads()
    }

    /// Returns the versions of the store's values before the first measured read.
    pub(crate) fn versions(&self) -> Versions {
        Versions::new(self.pairs, self.updates())
    }

    /// Returns the [`result::Record::run_key`] of the run's record.
    pub(crate) fn key(&self) -> String {
        let workload = self.workload();
        result::Record::key_of(&self.scenario, &self.engine_line, &workload, self.cap_bytes, self.repeat)
    }

    /// Describes the workload in the form of the results.
    pub(crate) fn workload(&self) -> result::Workload {
        let (cell, kind) = (&self.cell, self.cell.workload);
        let writes = matches!(kind, Kind::Write | Kind::Mix | Kind::Beside | Kind::Bootstrap | Kind::Live);
        let name = match kind {
            Kind::Mix => {
                let writes = (cell.write_share * 100.0).round();
                format!("mix_{}_{writes}", 100.0 - writes)
            }
            kind => name_of(kind),
        };
        result::Workload {
            name,
            arrival: if cell.rate.is_some() { "open" } else { "closed" }.to_owned(),
            target_rate: cell.rate,
            keys: self.keys.clone(),
            pairs: self.pairs,
            threads: self.threads,
            state: name_of(cell.state),
            durability: writes.then(|| cell.durability.clone()),
            seed: self.seed,
            more: self.more(writes),
        }
    }

    /// Returns every other setting of a run that `writes` or only reads, if it does not have its default.
    fn more(&self, writes: bool) -> BTreeMap<String, String> {
        let (cell, kind) = (&self.cell, self.cell.workload);
        let mut more = BTreeMap::new();
        // A `bootstrap` measures its own load.
        if kind != Kind::Bootstrap {
            more.insert("load".to_owned(), name_of(self.load));
        }
        if self.load == Load::Aged {
            more.insert("age_updates".to_owned(), self.age_updates.to_string());
        }
        if self.values != unique() {
            more.insert("values".to_owned(), self.values.clone());
        }
        if self.key_shape != random() {
            more.insert("key_shape".to_owned(), self.key_shape.clone());
        }
        // The service decides on the batches of `live`.
        if (writes && kind != Kind::Live) || kind.is_batch() {
            let most = cell.batch_max.map_or_else(String::new, |most| format!("-{most}"));
            more.insert("batch".to_owned(), format!("{}{most}", cell.batch));
        }
        if let Some(pairs) = cell.scan_pairs() {
            more.insert("scan_pairs".to_owned(), pairs.to_string());
        }
        if let Some(rate) = cell.write_rate {
            more.insert("write_rate".to_owned(), rate.to_string());
        }
        if kind == Kind::Mix {
            more.insert("write_share".to_owned(), cell.write_share.to_string());
        }
        if cell.delete_share > 0.0 {
            more.insert("delete_share".to_owned(), cell.delete_share.to_string());
        }
        if cell.double_index {
            more.insert("double_index".to_owned(), "yes".to_owned());
        }
        if kind == Kind::Bootstrap && cell.order != shuffled() {
            more.insert("order".to_owned(), cell.order.clone());
        }
        if cell.settle {
            more.insert("settle".to_owned(), "yes".to_owned());
        }
        if cell.floor {
            more.insert("floor".to_owned(), "after each get".to_owned());
        }
        let has_end = matches!(kind, Kind::Bootstrap | Kind::Live | Kind::Recover | Kind::Scan);
        if !has_end {
            more.insert("seconds".to_owned(), cell.seconds.to_string());
        }
        if cell.state == State::Steady {
            more.insert("before_seconds".to_owned(), cell.before_seconds.to_string());
        }
        if let Some(depth) = self.ingest_depth {
            more.insert("ingest_depth".to_owned(), depth.to_string());
        }
        if cell.events > 0 {
            more.insert("events".to_owned(), cell.events.to_string());
        }
        more
    }
}

/// Order in which the loops pick keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Keys {
    /// Indexes ascend from a start of each thread's own, and begin again after the last.
    Sequential,
    /// Random picks, uniform or skewed by rank.
    Skewed(workload::Skew),
}

pub(crate) fn parse_keys(text: &str) -> Result<Keys> {
    if text == "sequential" {
        return Ok(Keys::Sequential);
    }
    let SkewArg(skew) = text.parse().map_err(anyhow::Error::msg)?;
    Ok(Keys::Skewed(skew))
}

/// Parses the kind of the values.
///
/// # Errors
/// An unknown kind; the error lists the kinds.
pub(crate) fn parse_values(text: &str) -> Result<Values> {
    text.parse().map_err(anyhow::Error::msg)
}

/// Parses the kind of the keys.
///
/// # Errors
/// An unknown kind; the error lists the kinds.
pub(crate) fn parse_shape(text: &str) -> Result<Shape> {
    text.parse().map_err(anyhow::Error::msg)
}
