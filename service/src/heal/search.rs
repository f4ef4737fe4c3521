//! The searches for archives: those of a heal, and those of a healthy service, which find a source that fails before a heal
//! needs it.
//!
//! Owns: when a healthy service searches, and the figures and log lines about the sources. Must not: choose an archive,
//! or begin a heal. Runs on the task that feeds ingest-apply; the searches themselves on the blocking pool.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use solana::archive::{is_url, shown_url};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

use super::archive_choice::Wanted;
use super::archives::{Found, Search, Sources};
use super::{Healer, LOOK_EVERY, Stopped, until};
use crate::base::blocking;
use crate::base::chain::Phase;
use crate::ingest::State;
use crate::ingest::healing::HealFigures;

/// Time from the beginning of the following until the first search of a healthy service.
const FIRST_AFTER: Duration = Duration::from_secs(3);

/// Time between two searches of a healthy service.
const WATCH_EVERY: Duration = Duration::from_secs(600);

/// The same, while a server has not answered yet. It is given up within a few minutes.
const LATE_AFTER: Duration = Duration::from_secs(60);

/// The sources that failed when they were last asked.
#[derive(Debug, Default)]
pub(super) struct Failing(BTreeSet<String>);

impl Failing {
    /// Takes over the answers of a search. A source that was not asked, or has not answered yet, stays as it was. The slot
    /// of the newest archive that a store at `store_slot` could use stays until a search finds one again.
    pub(super) fn note(&mut self, search: &Search, store_slot: u64, figures: &HealFigures) {
        let had_any = !self.0.is_empty();
        for (source, answer) in &search.answers {
            match answer {
                Ok(()) => _ = self.0.remove(source),
                Err(why) if self.0.insert(source.clone()) => {
                    let heal_from = if is_url(source) { shown_url(source) } else { source.clone() };
                    warn!(heal_from, "no heal could get an archive from this source: {why}");
                }
                Err(_) => {}
            }
        }
        if had_any && self.0.is_empty() {
            info!("all sources of heal_from answer again");
        }
        // ORDERING: Relaxed: statistics.
        figures.sources_failing.store(self.0.len() as u64, Ordering::Relaxed);
        if let Some(newest) = search.found.iter().find(|found| found.takes(store_slot)) {
            figures.newest_archive_slot.store(newest.slot, Ordering::Relaxed);
        }
    }
}

impl Healer {
    /// Searches all sources from time to time, until dropped. No search begins while slots are missing: one that began
    /// before is over once the gap has lasted long enough for a heal, which searches by itself.
    pub(crate) async fn watch(&mut self, state: &State) {
        let mut pause = FIRST_AFTER;
        loop {
            sleep(pause).await;
            while matches!(state.progress.phase(), Phase::Gap(_)) {
                sleep(LOOK_EVERY).await;
            }
            let search = self.ask(|_| false).await;
            self.failing.note(&search, state.published.slot().unwrap_or(0), &state.healing);
            let have_all_answered = search.answers.len() == self.config.store.heal_from.len();
            pause = if have_all_answered { WATCH_EVERY } else { LATE_AFTER };
        }
    }

    /// Searches the sources on the blocking pool. A server that does not answer does not delay a stop.
    pub(super) async fn search(
        &mut self,
        wanted: &Wanted,
        show: &impl Fn(String),
        stopped: &mut watch::Receiver<bool>,
    ) -> Result<Search, Stopped> {
        let wanted = wanted.clone();
        // ORDERING: Relaxed: a statistic.
        let last_slot = self.shown.spool.last_slot.load(Ordering::Relaxed);
        let is_usable = move |found: &Found| found.slot <= last_slot && wanted.takes(found);
        let mut asked = pin!(self.ask(is_usable));
        loop {
            tokio::select! {
                search = &mut asked => return Ok(search),
                () = until(stopped) => return Err(Stopped),
                () = sleep(LOOK_EVERY) => show("waiting for the answer of a server in heal_from".to_owned()),
            }
        }
    }

    /// Searches on the blocking pool. The servers are not asked if a directory has an archive that `is_usable` takes.
    async fn ask(&mut self, is_usable: impl Fn(&Found) -> bool + Send + 'static) -> Search {
        let mut sources = self.sources.take().unwrap_or_else(|| Sources::new(&self.config.store.heal_from));
        let (search, sources) = blocking(move || (sources.search(is_usable), sources)).await;
        self.sources = Some(sources);
        search
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    const HASH: &str = "EsRJJbTfoF5zDhboW3rMVYiY4xxzEFQJk4U2CEj1QwaQ";

    #[test]
    fn a_missing_directory_fails_until_it_appears() {
        let temp = tempfile::tempdir().unwrap();
        let [here, missing] = ["here", "missing"].map(|name| temp.path().join(name).to_str().unwrap().to_owned());
        fs::create_dir(&here).unwrap();
        let (mut sources, figures) = (Sources::new(&[here.clone(), missing.clone()]), HealFigures::default());
        let mut failing = Failing::default();
        let mut look = |expected| {
            failing.note(&sources.search(|_| false), 30, &figures);
            let figures = figures.json(false);
            assert_eq!(json!([figures["sources_failing"], figures["newest_archive_slot"]]), expected);
        };
        look(json!([1, null]));
        let write = |name: &str| fs::write(format!("{here}/{name}-{HASH}.tar.zst"), "").unwrap();
        write("snapshot-20");
        write("incremental-snapshot-31-40");
        look(json!([1, 20]));
        write("incremental-snapshot-30-50");
        fs::create_dir(&missing).unwrap();
        look(json!([0, 50]));
        fs::remove_dir_all(&here).unwrap();
        look(json!([1, 50]));
    }

    #[test]
    fn a_source_that_was_not_asked_or_is_late_stays_as_it_was() {
        let (mut failing, figures) = (Failing::default(), HealFigures::default());
        let mut note = |answers: &[(&str, Result<(), String>)]| {
            let answers = answers.iter().map(|(source, answer)| ((*source).to_owned(), answer.clone())).collect();
            failing.note(&Search { answers, ..Search::default() }, 0, &figures);
            figures.sources_failing.load(Ordering::Relaxed)
        };
        let refused = || Err("refused".to_owned());
        assert_eq!(note(&[("/here", Ok(())), ("http://one", refused()), ("http://two", refused())]), 2);
        assert_eq!(note(&[("/here", Ok(()))]), 2);
        assert_eq!(note(&[("/here", Ok(())), ("http://one", Ok(()))]), 1);
        assert_eq!(note(&[("/here", refused()), ("http://two", Ok(()))]), 1);
    }
}
