//! The configuration: a TOML file, and flags of the same names. A flag overrides the file, the file overrides defaults.
//!
//! Owns: the values in effect and their checks. Must not: open any file except the configuration, the stream's token,
//! the system's list of groups, and the store's marker. The marker gives the engine and the extraction if the settings
//! leave them out.

mod bounds;
pub mod file;
mod geyser;
mod paths;
mod resolve;
mod settings;

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use engines::EngineOptions;
use serde::Serialize;

use crate::ingest::extract::Extract;
use crate::ingest::follow::{Follow, Selection};
use crate::ingest::provider::{Compression, Settings as Provider};
use crate::ingest::subscribe::Commitment;
use crate::net::socket::{SocketAccess, SocketGroup, SocketMode};
use crate::net::{self, secrets};
use crate::readiness::Limits;
use crate::store::StoreSettings;
pub use geyser::Geyser;
pub use paths::Moment;
pub use settings::{DurabilityArg, LogFormat, Settings, WarmUpArg};

/// Names of the systemd credentials of the stream, used where no setting names a file.
const TOKEN_CREDENTIAL: &str = "x-token";
const CA_CREDENTIAL: &str = "geyser-ca";
const CERT_CREDENTIAL: &str = "geyser-cert";
const KEY_CREDENTIAL: &str = "geyser-key";

/// The configuration in effect: every value decided and checked. Serialized to a file, it gives the same configuration
/// again.
#[derive(Clone, Debug, Serialize)]
pub struct Config {
    #[serde(flatten)]
    pub engine: EngineOptions,
    pub dir: PathBuf,
    pub create_empty: bool,
    pub create: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incremental: Option<PathBuf>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub heal_from: Vec<String>,
    pub spool_max_bytes: ByteSize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub x_token_file: Option<PathBuf>,
    pub x_token_header: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub geyser_ca: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub geyser_cert: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub geyser_key: Option<PathBuf>,
    pub geyser_compression: Compression,
    pub extract: Extract,
    pub follow: Follow,
    pub commitment: Commitment,
    pub processed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit_every: Option<u32>,
    #[serde(with = "humantime_serde")]
    pub commit_interval: Duration,
    pub ingest_depth: u32,
    pub warm_up: WarmUpArg,
    pub durability: DurabilityArg,
    #[serde(with = "humantime_serde")]
    pub idle_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub gap_timeout: Duration,
    pub geyser_at_once: u8,
    pub takeover_lag_slots: u64,
    pub max_lag_ms: u64,
    pub max_lag_slots: u64,
    pub listen: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uds: Option<PathBuf>,
    pub uds_mode: SocketMode,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uds_group: Option<SocketGroup>,
    pub feed: bool,
    pub feed_retention_bytes: ByteSize,
    #[serde(with = "humantime_serde")]
    pub feed_retention_time: Duration,
    pub feed_subscribers: u32,
    #[serde(with = "humantime_serde")]
    pub feed_heartbeat: Duration,
    #[serde(with = "humantime_serde")]
    pub feed_stall_timeout: Duration,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shm: Option<PathBuf>,
    pub shm_mode: SocketMode,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shm_group: Option<SocketGroup>,
    pub metrics: String,
    pub metrics_hosts: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_client_ca: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bearer_token_file: Option<PathBuf>,
    pub insecure: bool,
    pub max_connections: u32,
    pub max_connections_per_address: u32,
    #[serde(with = "humantime_serde")]
    pub idle_connection_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub request_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub slow_request: Duration,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lookup_threads: Option<u32>,
    pub log_format: LogFormat,
    #[serde(with = "humantime_serde")]
    pub shutdown_timeout: Duration,
    /// The providers in the order of preference. Last, because tables come after all other keys of a file.
    #[serde(serialize_with = "geyser::write")]
    pub geyser: Vec<Geyser>,
}

impl Config {
    pub fn readiness_limits(&self) -> Limits {
        Limits { max_lag: Duration::from_millis(self.max_lag_ms), max_lag_slots: self.max_lag_slots }
    }

    /// Returns the settings of the store.
    pub fn store(&self) -> StoreSettings<'_> {
        StoreSettings {
            dir: &self.dir,
            engine: &self.engine,
            create_empty: self.create_empty,
            create: self.create,
            heals: !self.heal_from.is_empty(),
            extract: self.extract,
            cluster: self.cluster.as_deref(),
        }
    }

    /// Returns the settings of the network edge.
    pub fn net(&self) -> net::Settings {
        net::Settings {
            listen: self.listen.clone(),
            metrics: self.metrics.clone(),
            insecure: self.insecure,
            tls_cert: self.tls_cert.clone(),
            tls_key: self.tls_key.clone(),
            tls_client_ca: self.tls_client_ca.clone(),
            bearer_token_file: self.bearer_token_file.clone(),
        }
    }

    /// Returns the permissions and the group of the Unix socket.
    pub fn uds_access(&self) -> SocketAccess {
        SocketAccess { mode: self.uds_mode, group: self.uds_group.clone() }
    }

    /// Returns the permissions and the group of the shared-memory socket.
    pub fn shm_access(&self) -> SocketAccess {
        SocketAccess { mode: self.shm_mode, group: self.shm_group.clone() }
    }

    /// Returns the settings of the Yellowstone servers, in the order of preference. Their secrets are files: those of
    /// the settings, or else, of the first server alone, the systemd credentials.
    pub fn providers(&self) -> Vec<Provider> {
        let provider = |(index, geyser): (usize, Geyser)| {
            let find = |file: Option<PathBuf>, credential| match index {
                0 => secrets::find(file.as_deref(), credential),
                _ => file,
            };
            Provider {
                url: geyser.url,
                token_file: find(geyser.x_token_file, TOKEN_CREDENTIAL),
                token_header: geyser.x_token_header.unwrap_or_else(|| self.x_token_header.clone()),
                ca: find(geyser.ca, CA_CREDENTIAL),
                cert: find(geyser.cert, CERT_CREDENTIAL),
                key: find(geyser.key, KEY_CREDENTIAL),
                compression: geyser.compression.unwrap_or(self.geyser_compression),
            }
        };
        self.geysers().enumerate().map(provider).collect()
    }

    /// Returns the providers, the first one with the files that are named outside of its table.
    fn geysers(&self) -> impl Iterator<Item = Geyser> {
        let (first, others) = self.geyser.split_first().map_or((None, &[][..]), |(first, rest)| (Some(first), rest));
        let first = first.cloned().map(|own| Geyser {
            x_token_file: own.x_token_file.or_else(|| self.x_token_file.clone()),
            ca: own.ca.or_else(|| self.geyser_ca.clone()),
            cert: own.cert.or_else(|| self.geyser_cert.clone()),
            key: own.key.or_else(|| self.geyser_key.clone()),
            ..own
        });
        first.into_iter().chain(others.iter().cloned())
    }

    /// Returns the choice of accounts to follow, and the value taken from each.
    pub fn selection(&self) -> Selection {
        Selection { extract: self.extract, follow: self.follow }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use engines::EngineKind;

    use super::*;

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let file: Settings =
            toml::from_str("engine = \"redb\"\ndir = \"/a\"\ngeyser = \"http://h:1\"\ncommit_interval = \"5s\"")
                .unwrap();
        let flags = Settings { dir: Some("/b".into()), ..Settings::default() };
        let config = flags.or(file).resolve().unwrap();
        assert_eq!((config.engine.engine, config.dir.as_path()), (EngineKind::Redb, Path::new("/b")));
        assert_eq!((config.commit_interval, config.commit_every), (Duration::from_secs(5), None));
        let again: Settings = toml::from_str(&toml::to_string(&config).unwrap()).unwrap();
        assert_eq!(toml::to_string(&again.resolve().unwrap()).unwrap(), toml::to_string(&config).unwrap());
    }

    #[test]
    fn account_owner_is_followed_exactly_or_not_at_all() {
        let resolve = |more: &str| {
            let text = format!("dir = \"/a\"\ngeyser = \"http://h:1\"\n{more}");
            toml::from_str::<Settings>(&text).unwrap().resolve()
        };
        assert_eq!(resolve("extract = \"token-mint\"").unwrap().follow, Follow::Exact);
        assert_eq!(resolve("extract = \"token-owner\"\nfollow = \"wallets\"").unwrap().follow, Follow::Wallets);
        assert_eq!(resolve("follow = \"exact\"").unwrap().follow, Follow::Exact);
        for follow in ["wallets", "closed"] {
            let refused = resolve(&format!("follow = \"{follow}\"")).unwrap_err().to_string();
            assert!(refused.contains("account-owner") && refused.contains("leave follow out"), "{refused}");
        }
    }

    #[test]
    fn a_store_is_made_of_an_archive_only_for_values_that_were_named() {
        let resolve = |more: &str| {
            let text = format!("dir = \"/a\"\ngeyser = \"http://h:1\"\ncreate = true\nsnapshot = \"/b\"\n{more}");
            toml::from_str::<Settings>(&text).unwrap().resolve()
        };
        let error = resolve("").unwrap_err().to_string();
        assert!(error.contains("--extract token-owner"), "{error}");
        assert_eq!(resolve("extract = \"token-mint\"").unwrap().extract.to_string(), "token-mint");
    }

    #[test]
    fn unknown_keys_and_missing_values_are_named() {
        assert!(toml::from_str::<Settings>("comit_every = 1").unwrap_err().to_string().contains("comit_every"));
        assert!(Settings::default().resolve().unwrap_err().to_string().contains("--dir"));
        let text = "dir = \"/a\"\ngeyser = \"http://h:1\"\nprocessed = true\ncommitment = \"finalized\"";
        let both = toml::from_str::<Settings>(text).unwrap().resolve().unwrap_err();
        assert!(both.to_string().contains("confirmed"), "{both}");
    }
}
