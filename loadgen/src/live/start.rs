//! The state of a live run's store at its start: brought about as asked, and named as it was seen.
//!
//! Owns: dropping and reading the store's pages, and the wait for the service's own warm-up. Must not: name a state
//! that was not seen. Runs on the live run's thread.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Result, ensure};
use engines::{DATA, EngineKind};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::process::{Service, get};
use super::{LiveArgs, POLL_PERIOD, STALL_BOUND};

/// Largest part of a cold store that the page cache holds: its last pages may be in use.
const COLD_SHARE_MAX: f64 = 0.01;
/// Smallest part of a warm store that the page cache holds.
const WARM_SHARE_MIN: f64 = 0.95;

/// Names of the states in which the page cache, or memory of the engine's own, holds nothing and all of the store.
const COLD: &str = "cold";
const WARM: &str = "warm";
/// States of a service's warm-up that has not ended: the store is not open yet, or is being read.
const NOT_ENDED: [&str; 2] = ["not_open", "under_way"];
/// Name of the state in which the page cache holds a part of the store, neither a small one nor nearly all of it.
const PARTLY: &str = "partly cached";

/// State that `loadgen live --state` asks for.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Asked {
    /// None of the store's pages is in the page cache when the service is started. Its warm-up reads them during the run;
    /// without it (`-- --warm-up off`) events and lookups read each page by themselves
    Cold,
    /// The store's files were read once, and the service's own warm-up has ended before the first slot is sent
    Warm,
}

/// State of the store as it was seen: of a warm start right before the first slot, of any other right before the
/// service was started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    /// Bytes of the engine's files that the page cache holds. The service's own, such as the feed's log, do not count.
    pub(crate) page_cache_bytes: u64,
    /// Bytes of the engine's files that the page cache can hold, before the service was started.
    pub(crate) cacheable_bytes: u64,
    /// Whether the engine reads past the page cache, into memory of its own.
    pub(crate) has_own_memory: bool,
    /// How the service's own warm-up has ended. `None` where it was not waited for.
    pub(crate) warm_up: Option<WarmUp>,
}

/// Figures of the service's own warm-up, as its `/status.json` has them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WarmUp {
    /// `warm` if memory has the whole store.
    pub(crate) state: String,
    pub(crate) read_bytes: u64,
    pub(crate) left_bytes: u64,
}

impl Start {
    /// Brings the store's pages into the state that `args` ask for, before the service is started. Under a cap they are
    /// always dropped, because pages that another program has read are not charged to the service.
    pub(super) fn prepare(dir: &Path, engine: Option<EngineKind>, args: &LiveArgs) -> Result<Self> {
        if args.cap.is_some() || args.state == Some(Asked::Cold) {
            probe::drop_page_cache(dir)?;
        }
        if args.state == Some(Asked::Warm) {
            probe::fill_page_cache(dir)?;
        }
        Ok(Self {
            page_cache_bytes: probe::page_cache_bytes(&dir.join(DATA)),
            cacheable_bytes: probe::cacheable_bytes(&dir.join(DATA)),
            has_own_memory: engine.is_some_and(|engine| engine.descriptor().warms_own_memory),
            warm_up: None,
        })
    }

    /// Waits until the warm-up of `service` has ended, and looks at the page cache again.
    pub(super) fn await_warm_up(
        &mut self,
        dir: &Path,
        service: &mut Service,
        metrics: &str,
        stop: &AtomicBool,
    ) -> Result<()> {
        let (mut last, mut moved) = (None, Instant::now());
        loop {
            // ORDERING: Relaxed: the flag carries no other data.
            ensure!(!stop.load(Ordering::Relaxed), "stopped by a signal before the store was warm");
            service.check_running()?;
            let status: Option<Value> =
                get(metrics, "/status.json").ok().and_then(|body| serde_json::from_slice(&body).ok());
            if let Some(status) = status {
                let warm_up: WarmUp = serde_json::from_value(status["warm_up"].clone())?;
                if !NOT_ENDED.contains(&warm_up.state.as_str()) {
                    (self.page_cache_bytes, self.warm_up) = (probe::page_cache_bytes(&dir.join(DATA)), Some(warm_up));
                    return Ok(());
                }
                if last != Some(warm_up.left_bytes) {
                    (last, moved) = (Some(warm_up.left_bytes), Instant::now());
                }
            }
            let stall_s = STALL_BOUND.as_secs();
            ensure!(
                moved.elapsed() < STALL_BOUND,
                "the service's warm-up made no progress: stall_s={stall_s} left_bytes={}",
                last.map_or_else(|| "unknown".to_owned(), |bytes| bytes.to_string())
            );
            std::thread::sleep(POLL_PERIOD);
        }
    }

    /// Returns the name of the state. strata, which reads past the page cache, is warm once its warm-up says that its memory
    /// has the whole store, whatever the page cache holds.
    pub(crate) fn state(&self) -> &'static str {
        if self.has_own_memory && self.warm_up.as_ref().is_some_and(|warm_up| warm_up.state == WARM) {
            WARM
        } else {
            cached(self.page_cache_bytes, self.cacheable_bytes)
        }
    }
}

/// Returns the name of the state of a store of which the page cache holds `page_cache_bytes` and can hold `cacheable_bytes`.
pub(crate) fn cached(page_cache_bytes: u64, cacheable_bytes: u64) -> &'static str {
    let share = page_cache_bytes as f64 / cacheable_bytes.max(1) as f64;
    match share {
        share if share <= COLD_SHARE_MAX => COLD,
        share if share >= WARM_SHARE_MIN => WARM,
        _ => PARTLY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_named_as_it_was_seen() {
        let of = |page_cache_bytes, state: Option<&str>| {
            let warm_up = state.map(|state| WarmUp { state: state.to_owned(), read_bytes: 9, left_bytes: 0 });
            let start = Start { page_cache_bytes, cacheable_bytes: 1000, has_own_memory: true, warm_up };
            [start.state(), Start { has_own_memory: false, ..start }.state()]
        };
        assert_eq!([of(0, None), of(10, None), of(11, None)], [[COLD; 2], [COLD; 2], [PARTLY; 2]]);
        assert_eq!([of(949, None), of(950, None), of(1000, None)], [[PARTLY; 2], [WARM; 2], [WARM; 2]]);
        assert_eq!(
            [of(0, Some("no_room")), of(0, Some("partly_warm")), of(0, Some("warm"))],
            [[COLD; 2], [COLD; 2], [WARM, COLD]]
        );
        assert_eq!(of(500, Some("warm")), [WARM, PARTLY], "the page cache has lost half of what was read");
    }
}
