//! The stores that runs read: loaded once, copied for runs that change them.
//!
//! Owns: the folder of the stores. Must not: touch a store that it did not make. Runs on the main thread.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use engines::{EngineKind, Profile};

use super::child::changes_store;
use super::scenario::{Kind, Load, Run, name_of};
use crate::live::sibling;

/// Says beside a store that its load was completed.
const READY: &str = ".ready";

pub(crate) struct Stores {
    work: PathBuf,
}

impl Stores {
    pub(crate) fn new(work: &Path) -> Self {
        Self { work: work.to_owned() }
    }

    /// The directory for a run: a loaded store, a copy of one, or nothing yet.
    pub(crate) fn prepare(&mut self, run: &Run) -> Result<PathBuf> {
        let own = self.work.join("run");
        if own.exists() {
            fs::remove_dir_all(&own).with_context(|| format!("cannot remove dir={}", own.display()))?;
        }
        if run.kind == Kind::Bootstrap {
            fs::create_dir_all(&own).with_context(|| format!("cannot make dir={}", own.display()))?;
            return Ok(own);
        }
        if run.load == Load::Fresh {
            load(run, &own)?;
            return Ok(own);
        }
        let name = format!("{}-{}-{}-{}", run.engine.label(), run.pairs, run.seed, name_of(run.load));
        let loaded = self.work.join(name);
        let ready = loaded.with_extension(&READY[1..]);
        if !ready.exists() {
            if loaded.exists() {
                fs::remove_dir_all(&loaded).with_context(|| format!("cannot remove dir={}", loaded.display()))?;
            }
            load(run, &loaded)?;
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

    /// After the run: a copy is of no use any more.
    pub(crate) fn release(&mut self, run: &Run, dir: &Path) -> Result<()> {
        if run.kind == Kind::Bootstrap || run.load == Load::Fresh || changes_store(run) {
            fs::remove_dir_all(dir).with_context(|| format!("cannot remove dir={}", dir.display()))?;
        }
        Ok(())
    }
}

fn load(run: &Run, dir: &Path) -> Result<()> {
    eprintln!("        loading {} pairs into {}", run.pairs, dir.display());
    let mut command = Command::new(sibling("bootstrap")?);
    command.args(["--pairs", &run.pairs.to_string(), "--seed", &run.seed.to_string()]).arg("--dir").arg(dir);
    command.args(["--order", if run.load == Load::Sorted { "sorted" } else { "shuffled" }]);
    // The slot before the first of `loadgen stream`, so that the service follows without a gap.
    command.args(["--slot", "999"]);
    if run.load != Load::Fresh {
        command.arg("--settle");
    }
    engine_args(&mut command, run);
    let output = command.output().context("cannot run bootstrap")?;
    ensure!(output.status.success(), "cannot load the store: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// The engine as the tools' options; its memory is the run's matter and not the load's.
pub(crate) fn engine_args(command: &mut Command, run: &Run) {
    command.args(["--engine", run.engine.engine.as_str()]);
    if let Some(bits) = run.engine.bloom {
        command.args(["--bloom", &bits.to_string()]);
    }
    if run.engine.engine == EngineKind::Rocksdb && run.engine.profile != Profile::Vanilla {
        command.args(["--profile", run.engine.profile.as_str()]);
    }
    for setting in &run.engine.set {
        command.args(["--set", setting]);
    }
}
