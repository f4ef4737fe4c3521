//! The stores that runs read: loaded once, and copied for runs that change them. A store that is given takes the place of all.
//!
//! Owns: the folder of the stores. Must not: remove a store that it did not make. Runs on the main thread.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use program::tell;

use super::child::changes_store;
use super::engine;
use super::run::Run;
use super::spawn;
use super::work::{Kind, Load, name_of, random, unique};
use crate::live::sibling;

/// Ending of the file next to a store that says that its load was completed.
const READY: &str = ".ready";

pub(crate) struct Stores {
    work: PathBuf,
    /// The store of every run, which the runs change in place.
    given: Option<PathBuf>,
}

impl Stores {
    /// # Errors
    /// A run that cannot have the store that is `given`.
    pub(crate) fn new(work: &Path, given: Option<&Path>, runs: &[&Run]) -> Result<Self> {
        let loads = |run: &&&Run| run.cell.workload == Kind::Bootstrap || run.load != Load::Sorted;
        match runs.iter().find(loads) {
            Some(run) if given.is_some() => {
                bail!("--store is for runs on a sorted and settled store: scenario={}: leave it out", run.scenario)
            }
            _ => Ok(Self { work: work.to_owned(), given: given.map(Path::to_owned) }),
        }
    }

    /// Returns the directory for a run: a loaded store, a copy of one, or an empty directory for a load.
    pub(crate) fn prepare(&mut self, run: &Run) -> Result<PathBuf> {
        if let Some(given) = &self.given {
            return Ok(given.clone());
        }
        let own = self.work.join("run");
        if own.exists() {
            fs::remove_dir_all(&own).with_context(|| format!("cannot remove dir={}", own.display()))?;
        }
        if run.cell.workload == Kind::Bootstrap {
            fs::create_dir_all(&own).with_context(|| format!("cannot make dir={}", own.display()))?;
            return Ok(own);
        }
        if run.load.is_fresh() {
            load(run, &own)?;
            return Ok(own);
        }
        let loaded = self.work.join(name(run));
        let mut ready = loaded.clone().into_os_string();
        ready.push(READY);
        let ready = PathBuf::from(ready);
        if !ready.exists() {
            if loaded.exists() {
                fs::remove_dir_all(&loaded).with_context(|| format!("cannot remove dir={}", loaded.display()))?;
            }
            load(run, &loaded)?;
            if run.load == Load::Aged {
                tell!("        changing {} of the pairs", run.age_updates);
                spawn::age(run, &loaded)?;
            }
            fs::write(&ready, "").with_context(|| format!("cannot write file={}", ready.display()))?;
        }
        if !changes_store(run) {
            return Ok(loaded);
        }
        let copied =
            Command::new("cp").args(["-r", "--reflink=auto", "--sparse=always"]).arg(&loaded).arg(&own).status();
        ensure!(
            copied.context("cannot run cp")?.success(),
            "cannot copy dir={} to dir={}",
            loaded.display(),
            own.display()
        );
        Ok(own)
    }

    /// Removes the store after the run, if it is a copy or the run's own.
    pub(crate) fn release(&mut self, run: &Run, dir: &Path) -> Result<()> {
        if self.given.is_none() && (run.cell.workload == Kind::Bootstrap || run.load.is_fresh() || changes_store(run)) {
            fs::remove_dir_all(dir).with_context(|| format!("cannot remove dir={}", dir.display()))?;
        }
        Ok(())
    }
}

/// Returns the store's name, which contains every setting that makes it differ from the stores of other runs.
fn name(run: &Run) -> String {
    let mut name = format!("{}-{}-{}-{}", engine::store_name(&run.engine), run.pairs, run.seed, name_of(run.load));
    if run.load == Load::Aged {
        let cap = run.cap_bytes.map_or_else(|| "no_cap".to_owned(), |bytes| bytes.to_string());
        let memory = run.engine.memory.map_or(0, |memory| memory.as_u64());
        name.push_str(&format!("-{}-{cap}-{memory}", run.age_updates));
    }
    if run.key_shape != random() {
        name.push_str(&format!("-{}", run.key_shape));
    }
    if run.values != unique() {
        name.push_str(&format!("-{}", run.values.replace(':', "_")));
    }
    name
}

fn load(run: &Run, dir: &Path) -> Result<()> {
    tell!("        loading {} pairs into {}", run.pairs, dir.display());
    let mut command = Command::new(sibling("bootstrap")?);
    command.args(run.source_args()).arg("--dir").arg(dir);
    let is_sorted = matches!(run.load, Load::Sorted | Load::SortedFresh | Load::Aged);
    command.args(["--order", if is_sorted { "sorted" } else { "shuffled" }]);
    // One slot before the first slot of `loadgen stream`, so that the service follows without a gap.
    command.args(["--slot", "999"]);
    if !run.load.is_fresh() {
        command.arg("--settle");
    }
    engine::args(&mut command, &run.engine);
    let output = command.output().context("cannot run bootstrap")?;
    ensure!(output.status.success(), "cannot load the store: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
