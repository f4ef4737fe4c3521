//! The configuration: a TOML file and flags with the same names; a flag wins over the file, the file over defaults.
//!
//! Owns: names, defaults, checks. Must not: open anything but the configuration, the stream's token, the system's list of
//! groups and the store's marker, which says the engine and the extraction where nothing else does.

pub mod file;
mod socket;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use bytesize::ByteSize;
use engines::{EngineArgs, EngineKind, EngineOptions, Profile};
use serde::{Deserialize, Serialize};

use crate::feed::FRAME_CHANGES_MAX;
use crate::ingest::extract::Extract;
use crate::ingest::follow::{Follow, Selection};
use crate::ingest::provider::{self, Compression, Settings as Provider};
use crate::ingest::subscribe::Commitment;
use crate::net::limit::ConnectionLimits;
use crate::net::secrets;
use crate::readiness::Limits;
use crate::store;
pub use socket::{SocketAccess, SocketGroup, SocketMode};

/// Names of the systemd credentials of the stream, used where no setting names a file.
const TOKEN_CREDENTIAL: &str = "x-token";
const CA_CREDENTIAL: &str = "geyser-ca";
const CERT_CREDENTIAL: &str = "geyser-cert";
const KEY_CREDENTIAL: &str = "geyser-key";

/// Heartbeats more often than this would be load without news.
const HEARTBEAT_MIN: Duration = Duration::from_millis(10);

/// What can be said, in the file or by flags. Nothing said is `None`.
#[derive(clap::Args, Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Storage engine: rocksdb, lmdb, redb or strata [default: the store's own; for an empty store strata]
    #[arg(long, value_enum)]
    pub engine: Option<EngineKind>,
    /// Bits per key of RocksDB's Bloom filter; without it the store keeps what it was made with
    #[arg(long, value_name = "BITS")]
    pub bloom: Option<u32>,
    /// RocksDB's settings: vanilla or tuned [default: vanilla]
    #[arg(long, value_enum)]
    pub profile: Option<Profile>,
    /// Memory for the engine, such as 4GiB [default: of the cgroup's limit or the machine's memory five eighths for
    /// strata, a quarter for rocksdb and redb; lmdb takes none]
    #[arg(long, value_name = "BYTES")]
    pub memory: Option<ByteSize>,
    /// Fixed size of LMDB's map [default: 1 TiB of address space, growing]
    #[arg(long, value_name = "BYTES")]
    pub lmdb_map_size: Option<ByteSize>,
    /// Directory of the store, which bootstrap has made
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Where there is no store, make an empty one: for a stream that brings every key [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub create_empty: Option<bool>,
    /// Your name for the chain, such as mainnet: the store keeps it, and another name is refused
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<String>,
    /// URL of the Yellowstone gRPC server
    #[arg(long, value_name = "URL")]
    pub geyser: Option<String>,
    /// File whose first line is the server's token [default: the systemd credential x-token, if there is one]
    #[arg(long, value_name = "FILE")]
    pub x_token_file: Option<PathBuf>,
    /// Name of the header that the token is sent in, such as authorization [default: x-token]
    #[arg(long, value_name = "NAME")]
    pub x_token_header: Option<String>,
    /// Who may sign the server's certificate, PEM [default: the systemd credential geyser-ca, or who the machine trusts]
    #[arg(long, value_name = "FILE")]
    pub geyser_ca: Option<PathBuf>,
    /// Certificate shown to the stream's server, PEM [default: the systemd credential geyser-cert, if there is one]
    #[arg(long, value_name = "FILE")]
    pub geyser_cert: Option<PathBuf>,
    /// The certificate's private key, PEM [default: the systemd credential geyser-key]
    #[arg(long, value_name = "FILE")]
    pub geyser_key: Option<PathBuf>,
    /// Requests to the stream's server: none, gzip or zstd; answers may come in each of these [default: none]
    #[arg(long, value_enum)]
    pub geyser_compression: Option<Compression>,
    /// What becomes of an account: its owner program, or a token account's owner or mint; a store keeps the first that it
    /// is told, and another is refused [default: the store's own; for one that does not say account-owner]
    #[arg(long, value_enum)]
    pub extract: Option<Extract>,
    /// Which accounts a token extraction is sent, which decides what it can miss [default: exact]
    ///
    /// A server sends the last write of an account in a slot, and only if the account then matches a filter of the
    /// subscription. "exact" asks for every account, 17 thousand updates a second on mainnet, and misses nothing.
    /// "wallets" asks for token accounts and System accounts without data; it misses a token account that moves to
    /// another program than System, or becomes a mint, a multisig or uninitialised. "closed" asks for token accounts
    /// and accounts without lamports; it also misses one that is closed and funded again in the same slot, or moves to
    /// System with lamports. What is missed keeps its old value in the map for ever. Some servers allow no
    /// subscription to all accounts (`any`), or few slices.
    #[arg(long, value_enum)]
    pub follow: Option<Follow>,
    /// When a slot is taken in: confirmed or finalized [default: confirmed]
    #[arg(long, value_enum)]
    pub commitment: Option<Commitment>,
    /// Follow processed slots too, for lookups at processed: a second subscription, kept in memory [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub processed: Option<bool>,
    /// While catching up, commit at the end of the slot that brings the batch to this many changes, 1 to 1048576
    /// [default: up to 65536, as memory allows]
    #[arg(long, value_name = "N")]
    pub commit_every: Option<u32>,
    /// While catching up slots share a commit, for at most this long [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[serde(with = "humantime_serde")]
    pub commit_interval: Option<Duration>,
    /// What a commit survives: synced (power loss) or buffered (a killed process) [default: synced]
    #[arg(long, value_enum)]
    pub durability: Option<DurabilityArg>,
    /// Without news of any slot for this long the connection to the stream is made anew [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[serde(with = "humantime_serde")]
    pub idle_timeout: Option<Duration>,
    /// How long a slot waits for its parent before the parent counts as missing, a gap [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[serde(with = "humantime_serde")]
    pub gap_timeout: Option<Duration>,
    /// Not ready once the newest applied slot is older than this, in milliseconds [default: 10000]
    #[arg(long, value_name = "MS")]
    pub max_lag_ms: Option<u64>,
    /// Not ready once the newest slot heard of is this many slots ahead of the newest applied [default: 150]
    #[arg(long, value_name = "N")]
    pub max_lag_slots: Option<u64>,
    /// gRPC lookups on TCP [default: 127.0.0.1:7400]
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// gRPC lookups on a Unix socket as well
    #[arg(long, value_name = "PATH")]
    pub uds: Option<PathBuf>,
    /// Permissions of the Unix socket, which alone decide who may use it [default: 0660]
    #[arg(long, value_name = "OCTAL")]
    pub uds_mode: Option<SocketMode>,
    /// Group of the Unix socket, by name or number [default: the service's own]
    #[arg(long, value_name = "GROUP")]
    pub uds_group: Option<String>,
    /// Lookups and the feed over shared memory as well: the Unix socket where clients are handed theirs
    #[arg(long, value_name = "PATH")]
    pub shm: Option<PathBuf>,
    /// Permissions of the shared-memory socket, which alone decide who may use it [default: 0600]
    #[arg(long, value_name = "OCTAL")]
    pub shm_mode: Option<SocketMode>,
    /// Group of the shared-memory socket, by name or number; let it in with a mode of 0660 [default: the service's own]
    #[arg(long, value_name = "GROUP")]
    pub shm_group: Option<String>,
    /// Keep every committed change for subscribers to follow: true or false [default: true]
    #[arg(long, value_name = "BOOL")]
    pub feed: Option<bool>,
    /// Changes kept for subscribers that come back, in bytes of disk at 112 a change [default: 1GiB]
    #[arg(long, value_name = "BYTES")]
    pub feed_retention_bytes: Option<ByteSize>,
    /// Changes kept for subscribers that come back, by age [default: 1day]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[serde(with = "humantime_serde")]
    pub feed_retention_time: Option<Duration>,
    /// Subscribers of the feed at a time [default: 64]
    #[arg(long, value_name = "N")]
    pub feed_subscribers: Option<u32>,
    /// A subscriber that is sent nothing else for this long is sent a heartbeat [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[serde(with = "humantime_serde")]
    pub feed_heartbeat: Option<Duration>,
    /// A subscriber that reads nothing for this long is cut off [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[serde(with = "humantime_serde")]
    pub feed_stall_timeout: Option<Duration>,
    /// HTTP for the dashboard, metrics, health and histograms [default: 127.0.0.1:7401]
    #[arg(long, value_name = "HOST:PORT")]
    pub metrics: Option<String>,
    /// Names that HTTP answers to, separated by commas; IP addresses, localhost and the machine's own name always are
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub metrics_hosts: Option<Vec<String>>,
    /// TLS for gRPC on TCP: the certificate, PEM [default: the systemd credential tls-cert, if there is one]
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM [default: the systemd credential tls-key]
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Clients must present a certificate signed by one of these, PEM [default: the systemd credential tls-client-ca]
    #[arg(long, value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,
    /// Clients on TCP must send one of these tokens, one a line [default: the systemd credential bearer-tokens]
    #[arg(long, value_name = "FILE")]
    pub bearer_token_file: Option<PathBuf>,
    /// Listen on addresses that other machines reach without encryption [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub insecure: Option<bool>,
    /// gRPC connections at once, on TCP and the Unix socket together [default: 1024]
    #[arg(long, value_name = "N")]
    pub max_connections: Option<u32>,
    /// gRPC connections of one address (IPv6: of one /64; Unix socket: of one user) [default: a quarter of max_connections]
    #[arg(long, value_name = "N")]
    pub max_connections_per_address: Option<u32>,
    /// A connection on which nothing is asked nor under way for this long is closed; 0s is never [default: 10m]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[serde(with = "humantime_serde")]
    pub idle_connection_timeout: Option<Duration>,
    /// A request that is not answered for this long is given up; streams may last [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[serde(with = "humantime_serde")]
    pub request_timeout: Option<Duration>,
    /// A lookup that takes this long is logged with its cause, without its keys; 0s is never [default: 10ms]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[serde(with = "humantime_serde")]
    pub slow_request: Option<Duration>,
    /// Threads that read the engine for lookups [default: 2]
    #[arg(long, value_name = "N")]
    pub lookup_threads: Option<u32>,
    /// Log as text or json [default: text]
    #[arg(long, value_enum)]
    pub log_format: Option<LogFormat>,
    /// Time for a clean stop after SIGTERM [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[serde(with = "humantime_serde")]
    pub shutdown_timeout: Option<Duration>,
}

/// `Durability` as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DurabilityArg {
    /// Survives a killed process.
    Buffered,
    /// Survives power loss.
    Synced,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// The configuration in effect: every value decided and checked. Serializes back to a file that gives the same.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the fields are those of Settings, where each is explained")]
pub struct Config {
    #[serde(flatten)]
    pub engine: EngineOptions,
    pub dir: PathBuf,
    pub create_empty: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    pub geyser: String,
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
    pub durability: DurabilityArg,
    #[serde(with = "humantime_serde")]
    pub idle_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub gap_timeout: Duration,
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
    pub lookup_threads: u32,
    pub log_format: LogFormat,
    #[serde(with = "humantime_serde")]
    pub shutdown_timeout: Duration,
}

impl Settings {
    /// These settings, and those of `file` where these say nothing.
    pub fn or(self, file: Self) -> Self {
        macro_rules! pick {
            ($($field:ident)+) => { Self { $($field: self.$field.or(file.$field)),+ } };
        }
        pick!(engine bloom profile memory lmdb_map_size dir create_empty cluster geyser x_token_file x_token_header geyser_ca geyser_cert geyser_key geyser_compression extract follow commitment processed
            commit_every commit_interval durability idle_timeout gap_timeout max_lag_ms max_lag_slots listen uds uds_mode
            uds_group shm shm_mode shm_group feed
            feed_retention_bytes feed_retention_time feed_subscribers feed_heartbeat feed_stall_timeout
            metrics metrics_hosts tls_cert tls_key tls_client_ca bearer_token_file insecure max_connections
            max_connections_per_address idle_connection_timeout request_timeout slow_request lookup_threads
            log_format shutdown_timeout)
    }

    /// Fills in the defaults, those that the store's directory keeps among them, and checks.
    pub fn resolve(self) -> Result<Config> {
        let Some(dir) = self.dir else { bail!("no store: give --dir DIR, or dir = \"DIR\" in the file") };
        let engine = EngineArgs {
            engine: self.engine,
            bloom: self.bloom,
            profile: self.profile.unwrap_or_default(),
            memory: self.memory,
            lmdb_map_size: self.lmdb_map_size,
        };
        let engine = engines::options_for(&dir, &engine)?;
        let kept_extract = if self.extract.is_none() { store::extract_of(&dir)? } else { None };
        let Some(geyser) = self.geyser else {
            bail!("no stream: give --geyser URL, or geyser = \"URL\" in the file");
        };
        ensure!(
            geyser.starts_with("http://") || geyser.starts_with("https://"),
            "not a URL of a Yellowstone server: geyser={:?} expected=http://HOST:PORT or https://HOST:PORT",
            provider::shown(&geyser)
        );
        let x_token_header = self.x_token_header.unwrap_or_else(|| "x-token".to_owned());
        provider::check_header(&x_token_header)?;
        ensure!(
            self.geyser_cert.is_some() == self.geyser_key.is_some(),
            "geyser_cert and geyser_key go together: give both, or none"
        );
        ensure!(
            geyser.starts_with("https://") || self.geyser_ca.is_none() && self.geyser_cert.is_none(),
            "geyser_ca and geyser_cert need a URL with https://: geyser={:?}",
            provider::shown(&geyser)
        );
        let most = FRAME_CHANGES_MAX as u32;
        if let Some(changes) = self.commit_every {
            ensure!((1..=most).contains(&changes), "commit_every={changes}: give 1 to {most}");
        }
        let feed_heartbeat = self.feed_heartbeat.unwrap_or(Duration::from_secs(1));
        ensure!(feed_heartbeat >= HEARTBEAT_MIN, "feed_heartbeat={feed_heartbeat:?}: give {HEARTBEAT_MIN:?} or more");
        let lookup_threads = self.lookup_threads.unwrap_or(2);
        ensure!((1..=256).contains(&lookup_threads), "lookup_threads={lookup_threads}: give 1 to 256");
        let max_connections = self.max_connections.unwrap_or(1024);
        ensure!((1..=65_536).contains(&max_connections), "max_connections={max_connections}: give 1 to 65536");
        let per_address =
            self.max_connections_per_address.unwrap_or(ConnectionLimits::default_per_source(max_connections));
        ensure!(
            (1..=max_connections).contains(&per_address),
            "max_connections_per_address={per_address}: give 1 to max_connections={max_connections}"
        );
        let request_timeout = self.request_timeout.unwrap_or(Duration::from_secs(10));
        ensure!(!request_timeout.is_zero(), "request_timeout=0s: give more, such as 10s");
        let limits = Limits::default();
        let max_lag_ms = self.max_lag_ms.unwrap_or(limits.max_lag.as_millis() as u64);
        ensure!(max_lag_ms > 0, "max_lag_ms=0: give more, such as 10000");
        let max_lag_slots = self.max_lag_slots.unwrap_or(limits.max_lag_slots);
        ensure!(max_lag_slots > 0, "max_lag_slots=0: give more, such as 150");
        let commitment = self.commitment.unwrap_or(Commitment::Confirmed);
        let processed = self.processed.unwrap_or(false);
        ensure!(
            !processed || commitment == Commitment::Confirmed,
            "processed = true needs commitment = \"confirmed\": processed slots stand on confirmed ones"
        );
        let extract = self.extract.or(kept_extract).unwrap_or(Extract::AccountOwner);
        let follow = self.follow.unwrap_or_default();
        ensure!(
            follow == Follow::Exact || extract != Extract::AccountOwner,
            "follow = \"wallets\" and \"closed\" are for extract = \"token-owner\" and \"token-mint\"; account-owner takes \
             every account: leave follow out"
        );
        Ok(Config {
            engine,
            dir,
            create_empty: self.create_empty.unwrap_or(false),
            cluster: self.cluster,
            geyser,
            x_token_file: self.x_token_file,
            x_token_header,
            geyser_ca: self.geyser_ca,
            geyser_cert: self.geyser_cert,
            geyser_key: self.geyser_key,
            geyser_compression: self.geyser_compression.unwrap_or_default(),
            extract,
            follow,
            commitment,
            processed,
            commit_every: self.commit_every,
            commit_interval: self.commit_interval.unwrap_or(Duration::from_secs(1)),
            durability: self.durability.unwrap_or(DurabilityArg::Synced),
            idle_timeout: self.idle_timeout.unwrap_or(Duration::from_secs(30)),
            gap_timeout: self.gap_timeout.unwrap_or(Duration::from_secs(60)),
            max_lag_ms,
            max_lag_slots,
            listen: self.listen.unwrap_or_else(|| "127.0.0.1:7400".to_owned()),
            uds: self.uds,
            uds_mode: self.uds_mode.unwrap_or(SocketMode::OWNER_AND_GROUP),
            uds_group: SocketGroup::resolve("uds_group", self.uds_group)?,
            feed: self.feed.unwrap_or(true),
            feed_retention_bytes: self.feed_retention_bytes.unwrap_or(ByteSize::gib(1)),
            feed_retention_time: self.feed_retention_time.unwrap_or(Duration::from_secs(24 * 3600)),
            feed_subscribers: self.feed_subscribers.unwrap_or(64),
            feed_heartbeat,
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
            max_connections_per_address: per_address,
            idle_connection_timeout: self.idle_connection_timeout.unwrap_or(Duration::from_secs(600)),
            request_timeout,
            slow_request: self.slow_request.unwrap_or(Duration::from_millis(10)),
            lookup_threads,
            log_format: self.log_format.unwrap_or(LogFormat::Text),
            shutdown_timeout: self.shutdown_timeout.unwrap_or(Duration::from_secs(10)),
        })
    }
}

impl Config {
    /// The limits of readiness.
    pub fn readiness_limits(&self) -> Limits {
        Limits { max_lag: Duration::from_millis(self.max_lag_ms), max_lag_slots: self.max_lag_slots }
    }

    /// Who may connect to the Unix socket.
    pub fn uds_access(&self) -> SocketAccess {
        SocketAccess { mode: self.uds_mode, group: self.uds_group.clone() }
    }

    /// Who may connect to the shared-memory socket.
    pub fn shm_access(&self) -> SocketAccess {
        SocketAccess { mode: self.shm_mode, group: self.shm_group.clone() }
    }

    /// The Yellowstone server, with its secrets as files: the settings', or the systemd credentials.
    pub fn provider(&self) -> Provider {
        Provider {
            url: self.geyser.clone(),
            token_file: secrets::find(self.x_token_file.as_deref(), TOKEN_CREDENTIAL),
            token_header: self.x_token_header.clone(),
            ca: secrets::find(self.geyser_ca.as_deref(), CA_CREDENTIAL),
            cert: secrets::find(self.geyser_cert.as_deref(), CERT_CREDENTIAL),
            key: secrets::find(self.geyser_key.as_deref(), KEY_CREDENTIAL),
            compression: self.geyser_compression,
        }
    }

    /// Which accounts are followed, and what is made of them.
    pub fn selection(&self) -> Selection {
        Selection { extract: self.extract, follow: self.follow }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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
    fn unknown_keys_and_missing_values_are_named() {
        assert!(toml::from_str::<Settings>("comit_every = 1").unwrap_err().to_string().contains("comit_every"));
        assert!(Settings::default().resolve().unwrap_err().to_string().contains("--dir"));
        let text = "dir = \"/a\"\ngeyser = \"http://h:1\"\nprocessed = true\ncommitment = \"finalized\"";
        let both = toml::from_str::<Settings>(text).unwrap().resolve().unwrap_err();
        assert!(both.to_string().contains("confirmed"), "{both}");
    }
}
