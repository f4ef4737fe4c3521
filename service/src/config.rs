//! The configuration: a TOML file, and flags of the same names. A flag overrides the file, the file overrides defaults.
//!
//! Owns: the values in effect, and the rules that concern several groups of settings. Must not: open any file except
//! the configuration, the system's list of groups, and the store's marker. The marker gives the engine and the
//! extraction if the settings leave them out. Runs on `main`.

pub(crate) mod file;
mod paths;
mod settings;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Result, ensure};
use engines::EngineArgs;
use serde::{Serialize, Serializer};

use crate::derive::Values;
use crate::ingest::extract::Extract;
use crate::ingest::provider;
use crate::net;
use crate::store::{self, Opening};
pub(crate) use paths::Moment;
pub use settings::Settings;
pub(crate) use settings::{Config, LogFormat};

impl Settings {
    /// Fills in the defaults, some of which come from the store's directory or from other settings, and checks all values.
    ///
    /// # Errors
    /// The directory or the stream is missing; a value is out of its bounds; two values contradict each other.
    pub fn resolve(mut self) -> Result<Config> {
        if let Some(dir) = self.store.dir.clone() {
            self.engine = EngineArgs::from(&engines::options_for(&dir, &self.engine.into())?).into();
            self.stream.extract = self.known_extract(&dir)?;
        }
        self.stream.geyser.take_if(|all| all.is_empty());
        self.receive = self.receive.for_servers(self.stream.geyser.as_ref().map_or(0, Vec::len));
        let config = self.in_effect()?;
        config.check()?;
        Ok(config)
    }

    /// Returns the extraction that was asked for, or else the one that the store records; `None` if there is neither, which
    /// the table of the stream's settings refuses.
    ///
    /// # Errors
    /// There is no store, none is to be made, and no extraction was asked for: then the path is the likely mistake.
    fn known_extract(&self, dir: &Path) -> Result<Option<Extract>> {
        let extract = if self.stream.extract.is_none() { store::extract_of(dir)? } else { self.stream.extract };
        let is_made = [self.store.create, self.store.create_empty].contains(&Some(true));
        let is_told = extract.is_some() || is_made || self.stream.geyser.is_none();
        ensure!(is_told || engines::inspect(dir)?.is_some(), store::missing(dir));
        Ok(extract)
    }
}

impl Config {
    fn check(&self) -> Result<()> {
        self.stream.check()?;
        self.store.check()?;
        let (at_once, providers) = (self.receive.geyser_at_once, self.stream.geyser.len());
        ensure!(
            usize::from(at_once) <= providers,
            "geyser_at_once={at_once} with {providers} server in geyser: name a second server, or give 1"
        );
        self.check_own_ports()?;
        self.grpc.uds_access()?;
        self.shm.access()?;
        Ok(())
    }

    /// Refuses a stream from a port that this service itself listens on.
    fn check_own_ports(&self) -> Result<()> {
        let is_loopback = |host: &str| ["localhost", "127.0.0.1"].contains(&host);
        for geyser in &self.stream.geyser {
            let Some((host, port)) = provider::host_and_port(&geyser.url) else { continue };
            let listeners = [("listen", &self.grpc.listen), ("metrics", &self.http.metrics)];
            let more = [("redis", self.redis.redis.as_ref()), ("http", self.web.http.as_ref())];
            let more = more.into_iter().filter_map(|(key, own)| Some((key, own?)));
            for (key, own) in listeners.into_iter().chain(more) {
                let Some((own_host, own_port)) = own.rsplit_once(':') else { continue };
                let own_host = own_host.trim_start_matches('[').trim_end_matches(']');
                let is_any = own_host.parse().is_ok_and(|address: IpAddr| address.is_unspecified());
                let is_here = host == own_host || is_loopback(&host) && (is_any || is_loopback(own_host));
                ensure!(
                    !is_here || own_port.parse() != Ok(port),
                    "geyser={} is this service's own address {key}={own}: geyser has to name a Yellowstone server",
                    provider::shown(&geyser.url)
                );
            }
        }
        Ok(())
    }

    /// Returns the terms on which the store is opened.
    pub fn opening(&self) -> Opening<'_> {
        Opening {
            settings: &self.store,
            engine: &self.engine,
            extract: self.stream.extract,
            keeps_history: self.derived.keeps_history(),
        }
    }

    /// Whether the map has a derived store.
    pub(crate) fn has_derived(&self) -> bool {
        self.derived.keeps_history() || Values::is_there(&self.store.dir)
    }

    /// Returns the settings of the listeners on TCP.
    pub fn net(&self) -> net::Settings<'_> {
        net::Settings { grpc: &self.grpc, redis: &self.redis, web: &self.web, http: &self.http, access: &self.access }
    }
}

/// Writes a file that gives the same configuration again.
impl Serialize for Config {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Settings::of(self).serialize(to)
    }
}
