//! Turns settings into a configuration: fills in defaults and checks every value.
//!
//! Owns: defaults, and the rules about settings that exclude one another; `bounds` has the bounds. Must not: open any
//! file except the system's list of groups and the store's marker. Runs on `main`.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use bytesize::ByteSize;
use engines::{EngineArgs, EngineOptions};

use super::{Config, DurabilityArg, Geyser, LogFormat, Settings, WarmUpArg, bounds};
use crate::ingest::extract::Extract;
use crate::ingest::follow::Follow;
use crate::ingest::provider;
use crate::ingest::reads;
use crate::ingest::subscribe::Commitment;
use crate::net::limit::ConnectionLimits;
use crate::net::socket::{SocketGroup, SocketMode};
use crate::readiness::Limits;
use crate::store;

impl Settings {
    /// Fills in the defaults, some of which come from the store's directory, and checks all values.
    ///
    /// # Errors
    /// The directory or the stream is missing; a value is out of its bounds; two values contradict each other.
    pub fn resolve(self) -> Result<Config> {
        let Some(dir) = self.dir.clone() else { bail!("no store: give --dir DIR, or dir = \"DIR\" in the file") };
        let engine = self.engine_options(&dir)?;
        let extract = self.known_extract(&dir)?;
        let Some(geyser) = self.geyser.filter(|all| !all.is_empty()) else {
            bail!("no stream: give --geyser URL, or geyser = \"URL\" in the file");
        };
        let limits = Limits::default();
        let max_connections = self.max_connections.unwrap_or(1024);
        let per_address = ConnectionLimits::default_per_source(max_connections);
        checked(Config {
            engine,
            dir,
            create_empty: self.create_empty.unwrap_or(false),
            create: self.create.unwrap_or(false),
            snapshot: self.snapshot,
            incremental: self.incremental,
            heal_from: self.heal_from.unwrap_or_default(),
            spool_max_bytes: self.spool_max_bytes.unwrap_or(ByteSize::gib(16)),
            cluster: self.cluster,
            x_token_file: self.x_token_file,
            x_token_header: self.x_token_header.unwrap_or_else(|| "x-token".to_owned()),
            geyser_ca: self.geyser_ca,
            geyser_cert: self.geyser_cert,
            geyser_key: self.geyser_key,
            geyser_compression: self.geyser_compression.unwrap_or_default(),
            extract: extract.unwrap_or(Extract::AccountOwner),
            follow: self.follow.unwrap_or_default(),
            commitment: self.commitment.unwrap_or(Commitment::Confirmed),
            processed: self.processed.unwrap_or(false),
            commit_every: self.commit_every,
            commit_interval: self.commit_interval.unwrap_or(Duration::from_secs(1)),
            ingest_depth: self.ingest_depth.unwrap_or(reads::DEPTH as u32),
            warm_up: self.warm_up.unwrap_or(WarmUpArg::Auto),
            durability: self.durability.unwrap_or(DurabilityArg::Synced),
            idle_timeout: self.idle_timeout.unwrap_or(Duration::from_secs(30)),
            gap_timeout: self.gap_timeout.unwrap_or(Duration::from_secs(60)),
            geyser_at_once: self.geyser_at_once.unwrap_or(1),
            takeover_lag_slots: self.takeover_lag_slots.unwrap_or(50),
            max_lag_ms: self.max_lag_ms.unwrap_or(limits.max_lag.as_millis() as u64),
            max_lag_slots: self.max_lag_slots.unwrap_or(limits.max_lag_slots),
            listen: self.listen.unwrap_or_else(|| "127.0.0.1:7400".to_owned()),
            uds: self.uds,
            uds_mode: self.uds_mode.unwrap_or(SocketMode::OWNER_AND_GROUP),
            uds_group: SocketGroup::resolve("uds_group", self.uds_group)?,
            feed: self.feed.unwrap_or(true),
            feed_retention_bytes: self.feed_retention_bytes.unwrap_or(ByteSize::gib(1)),
            feed_retention_time: self.feed_retention_time.unwrap_or(Duration::from_secs(24 * 3600)),
            feed_subscribers: self.feed_subscribers.unwrap_or(64),
            feed_heartbeat: self.feed_heartbeat.unwrap_or(Duration::from_secs(1)),
            feed_stall_timeout: self.feed_stall_timeout.unwrap_or(Duration::from_secs(30)),
            shm: self.shm,
            shm_mode: self.shm_mode.unwrap_or(SocketMode::OWNER),
            shm_group: SocketGroup::resolve("shm_group", self.shm_group)?,
            metrics: self.metrics.unwrap_or_else(|| "127.0.0.1:7401".to_owned()),
            metrics_hosts: self.metrics_hosts.unwrap_or_default(),
            tls_cert: self.tls_cert,
            tls_key: self.tls_key,
            tls_client_ca: self.tls_client_ca,
            bearer_token_file: self.bearer_token_file,
            insecure: self.insecure.unwrap_or(false),
            max_connections,
            max_connections_per_address: self.max_connections_per_address.unwrap_or(per_address),
            idle_connection_timeout: self.idle_connection_timeout.unwrap_or(Duration::from_secs(600)),
            request_timeout: self.request_timeout.unwrap_or(Duration::from_secs(10)),
            slow_request: self.slow_request.unwrap_or(Duration::from_millis(10)),
            lookup_threads: self.lookup_threads,
            log_format: self.log_format.unwrap_or(LogFormat::Text),
            shutdown_timeout: self.shutdown_timeout.unwrap_or(Duration::from_secs(10)),
            geyser,
        })
    }

    /// Returns the extraction that was asked for, or else the one that the store keeps; `None` if there is neither.
    ///
    /// # Errors
    /// A store is to be made of an archive, and nobody has said of which values.
    fn known_extract(&self, dir: &Path) -> Result<Option<Extract>> {
        let extract = if self.extract.is_none() { store::extract_of(dir)? } else { self.extract };
        ensure!(
            extract.is_some() || self.create != Some(true),
            "create = true needs extract, because an archive holds whole accounts: give --extract token-owner for the \
             wallets of token accounts, token-mint or account-owner"
        );
        Ok(extract)
    }

    fn engine_options(&self, dir: &Path) -> Result<EngineOptions> {
        let args = EngineArgs {
            engine: self.engine,
            bloom: self.bloom,
            profile: self.profile,
            memory: self.memory,
            lmdb_map_size: self.lmdb_map_size,
            set: self.set.clone().unwrap_or_default(),
        };
        Ok(engines::options_for(dir, &args)?)
    }
}

fn checked(config: Config) -> Result<Config> {
    config.check_stream()?;
    config.check_creation()?;
    config.check_hosts()?;
    config.check_following()?;
    bounds::check(&config)?;
    Ok(config)
}

impl Config {
    fn check_stream(&self) -> Result<()> {
        let mut urls = BTreeSet::new();
        for Geyser { url, x_token_header, ca, cert, key, .. } in self.geysers() {
            let (https, shown) = (url.starts_with("https://"), provider::shown(&url));
            ensure!(
                https || url.starts_with("http://"),
                "not a URL of a Yellowstone server: geyser={shown:?} expected=http://HOST:PORT or https://HOST:PORT"
            );
            ensure!(
                provider::has_usable_port(&url),
                "no server can have this port: geyser={shown:?}: give 1 to 65535, or none"
            );
            provider::check_header(x_token_header.as_ref().unwrap_or(&self.x_token_header))?;
            ensure!(
                cert.is_some() == key.is_some(),
                "geyser_cert and geyser_key go together, as cert and key of a table: geyser={shown:?}: give both, or none"
            );
            ensure!(
                https || ca.is_none() && cert.is_none(),
                "geyser_ca and geyser_cert need a URL with https://: geyser={shown:?}"
            );
            ensure!(urls.insert(url), "a provider is given twice: geyser={shown:?}: leave one of them out");
        }
        Ok(())
    }

    fn check_creation(&self) -> Result<()> {
        ensure!(
            !(self.create && self.create_empty),
            "create and create_empty exclude each other: create loads an archive, create_empty begins with nothing"
        );
        ensure!(
            !self.create || self.snapshot.is_some(),
            "create = true needs an archive: give --snapshot ARCHIVE, or snapshot = \"ARCHIVE\" in the file"
        );
        ensure!(
            self.incremental.is_none() || self.snapshot.is_some(),
            "incremental adds to a full archive: give that one with snapshot"
        );
        Ok(())
    }

    /// Refuses host names of a wrong form: no request would ever carry such a name, and its operator would be locked
    /// out.
    fn check_hosts(&self) -> Result<()> {
        for name in &self.metrics_hosts {
            let label = |label: &str| {
                !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
            };
            ensure!(
                name.strip_suffix('.').unwrap_or(name).split('.').all(label),
                "not a host name: metrics_hosts={name:?}: give whole names without ports or wildcards, such as \
                 solkv.example.com; IP addresses are always answered to"
            );
        }
        Ok(())
    }

    fn check_following(&self) -> Result<()> {
        ensure!(
            !self.processed || self.commitment == Commitment::Confirmed,
            "processed = true needs commitment = \"confirmed\": processed slots build on confirmed ones"
        );
        ensure!(
            self.follow == Follow::Exact || self.extract != Extract::AccountOwner,
            "follow = \"wallets\" and \"closed\" are for extract = \"token-owner\" and \"token-mint\"; account-owner takes \
             every account: leave follow out"
        );
        Ok(())
    }
}
