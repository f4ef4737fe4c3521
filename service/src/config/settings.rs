//! The settings: every name that the file and the flags know, with its help.
//!
//! Owns: names and help. Must not: hold a default or check a value; `resolve` does. Runs on `main`.

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use engines::{EngineKind, Profile};
use serde::{Deserialize, Serialize};

use super::Geyser;
use crate::ingest::extract::Extract;
use crate::ingest::follow::Follow;
use crate::ingest::provider::Compression;
use crate::ingest::subscribe::Commitment;
use crate::net::socket::SocketMode;

/// The settings that were given, in the file or by flags; `None` for those left out.
#[derive(clap::Args, Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Storage engine: rocksdb, lmdb, redb or strata [default: the store's own; strata for an empty store]
    #[arg(long, value_enum)]
    pub engine: Option<EngineKind>,
    /// Bits per key of RocksDB's Bloom filter [default: the number that the store was created with]
    #[arg(long, value_name = "BITS")]
    pub bloom: Option<u32>,
    /// RocksDB's settings: vanilla, memory or tuned [default: those that the store was created with; vanilla for a new
    /// store]
    #[arg(long, value_enum)]
    pub profile: Option<Profile>,
    /// Memory for the engine, such as 4GiB [default: a share of the cgroup's limit or the machine's memory: five
    /// eighths for strata and tuned rocksdb, a half for rocksdb's memory profile, a quarter for vanilla rocksdb and
    /// redb; lmdb takes none]
    #[arg(long, value_name = "BYTES", value_parser = engines::size)]
    pub memory: Option<ByteSize>,
    /// Fixed size of LMDB's map [default: 1 TiB of address space, growing]
    #[arg(long, value_name = "BYTES", value_parser = engines::size)]
    pub lmdb_map_size: Option<ByteSize>,
    /// One of the engine's own settings, in place of the profile's, such as max_open_files=-1; may be given several
    /// times
    #[arg(long, value_name = "NAME=VALUE", value_parser = engines::setting)]
    pub set: Option<Vec<String>>,
    /// Directory of the store, which bootstrap has made
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Make an empty store if there is none; only for a stream that brings every key [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub create_empty: Option<bool>,
    /// Make the store of --snapshot if there is none, and keep the stream on disk until it is loaded [default: false]
    ///
    /// The stream is opened first, at the archive's slot. Its slots go to DIR/spool while the archive is loaded, and are
    /// applied then. Lookups are refused until the store is loaded. A start that was interrupted at any point goes on
    /// where it was. Without effect on a store that is complete.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub create: Option<bool>,
    /// Solana snapshot archive for --create: a file, an unpacked directory, or an http(s) URL, with the slot in its name
    #[arg(long, value_name = "ARCHIVE")]
    pub snapshot: Option<PathBuf>,
    /// Incremental snapshot archive on top of --snapshot
    #[arg(long, value_name = "ARCHIVE")]
    pub incremental: Option<PathBuf>,
    /// Close a gap from snapshot archives: a directory in which a validator writes them, or the http(s) URL of a
    /// validator's RPC or of an archive; may be given several times [default: a gap waits for its slots]
    ///
    /// Once no server has the missing slots, the stream is kept on disk from its newest slot on. The first archive of
    /// that slot or a later one, full or full and incremental, is sorted in DIR/heal and compared with the store. Only
    /// the differences are applied, and then the slots that were kept. Lookups are answered as of the slot before the gap
    /// meanwhile. After a restart while differences are applied, lookups are refused until that is done.
    #[arg(long, value_name = "DIR_OR_URL")]
    pub heal_from: Option<Vec<String>>,
    /// Disk space for slots of the stream that come while the archive is loaded or the store is healed, about 66
    /// bytes an update [default: 16GiB]
    #[arg(long, value_name = "BYTES", value_parser = engines::size)]
    pub spool_max_bytes: Option<ByteSize>,
    /// Your name for the chain, such as mainnet; the store keeps the first one, and any other is refused
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<String>,
    /// URL of a Yellowstone gRPC server; given several times, the first is followed and the others take over from it
    ///
    /// Another server takes over if the followed one is silent, refuses, cannot be reached, lacks slots, lags, or
    /// contradicts the chain. In the file a server may be a table of its own, geyser, with url, x_token_file,
    /// x_token_header, ca, cert, key and compression. The settings below that name secrets or certificates are those
    /// of the first.
    #[arg(long, value_name = "URL")]
    #[serde(deserialize_with = "super::geyser::read", serialize_with = "super::geyser::write_given")]
    pub geyser: Option<Vec<Geyser>>,
    /// File whose first line is the server's token [default: the systemd credential x-token, if there is one]
    #[arg(long, value_name = "FILE")]
    pub x_token_file: Option<PathBuf>,
    /// Name of the header that carries the token, such as authorization [default: x-token]
    #[arg(long, value_name = "NAME")]
    pub x_token_header: Option<String>,
    /// Authorities that may sign the server's certificate, PEM [default: the systemd credential geyser-ca, or those
    /// that the machine trusts]
    #[arg(long, value_name = "FILE")]
    pub geyser_ca: Option<PathBuf>,
    /// Certificate shown to the stream's server, PEM [default: the systemd credential geyser-cert, if there is one]
    #[arg(long, value_name = "FILE")]
    pub geyser_cert: Option<PathBuf>,
    /// The certificate's private key, PEM [default: the systemd credential geyser-key]
    #[arg(long, value_name = "FILE")]
    pub geyser_key: Option<PathBuf>,
    /// Compression of requests to the stream's server: none, gzip or zstd; its answers may use any [default: none]
    #[arg(long, value_enum)]
    pub geyser_compression: Option<Compression>,
    /// Value taken from an account: its owner program, or a token account's owner or mint; a store keeps the first one
    /// that it is given, and any other is refused [default: the store's own; account-owner for a store without one]
    #[arg(long, value_parser = bootstrap::extraction())]
    pub extract: Option<Extract>,
    /// Accounts that a token extraction asks for; the choice decides which changes it can miss [default: exact]
    ///
    /// A server sends the last write of an account in a slot, and only if the account then matches a filter of the
    /// subscription. "exact" asks for every account, 17 thousand updates a second on mainnet, and misses nothing.
    /// "wallets" asks for token accounts and System accounts without data; it misses a token account that moves to
    /// another program than System, or becomes a mint, a multisig or uninitialised. "closed" asks for token accounts
    /// and accounts without lamports; it also misses one that is closed and funded again in the same slot, or moves to
    /// System with lamports. A key whose change is missed keeps its old value for ever. Some servers do not allow a
    /// subscription to all accounts (`any`), or allow only a few data slices.
    #[arg(long, value_enum)]
    pub follow: Option<Follow>,
    /// Commitment at which a slot is applied: confirmed or finalized [default: confirmed]
    #[arg(long, value_enum)]
    pub commitment: Option<Commitment>,
    /// Also follow processed slots, in memory and by a second subscription, for lookups at processed [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub processed: Option<bool>,
    /// While catching up, commit at the end of the slot that brings the batch to this many changes, 1 to 1048576
    /// [default: up to 65536, as memory allows]
    #[arg(long, value_name = "N")]
    pub commit_every: Option<u32>,
    /// While catching up, slots share a commit for at most this long [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[serde(with = "humantime_serde")]
    pub commit_interval: Option<Duration>,
    /// Number of keys of the stream that are looked up together, 1 to 65536; 1 waits for one after another [default: 1024]
    #[arg(long, value_name = "N")]
    pub ingest_depth: Option<u32>,
    /// After opening, read the store in the background into the memory that the engine has for it: auto or off; only
    /// strata does so [default: auto]
    #[arg(long, value_enum)]
    pub warm_up: Option<WarmUpArg>,
    /// Durability of a commit: synced survives power loss, buffered survives a killed process [default: synced]
    #[arg(long, value_enum)]
    pub durability: Option<DurabilityArg>,
    /// Reconnect to the stream after this long without a slot that can be applied [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[serde(with = "humantime_serde")]
    pub idle_timeout: Option<Duration>,
    /// How long a slot waits for its parent before the parent counts as missing, which is a gap [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[serde(with = "humantime_serde")]
    pub gap_timeout: Option<Duration>,
    /// Number of the servers that are followed at once: 1 or 2. Of each slot, the server's that brings it first is
    /// applied [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=2))]
    pub geyser_at_once: Option<u8>,
    /// Another provider takes over from one that lags by more slots than this and does not catch up [default: 50]
    #[arg(long, value_name = "N")]
    pub takeover_lag_slots: Option<u64>,
    /// Not ready once the newest applied slot is older than this, in milliseconds [default: 10000]
    #[arg(long, value_name = "MS")]
    pub max_lag_ms: Option<u64>,
    /// Not ready once the newest known slot is this many slots ahead of the newest applied one [default: 150]
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
    /// Lookups and the feed over shared memory as well: the Unix socket where clients get their shared memory
    #[arg(long, value_name = "PATH")]
    pub shm: Option<PathBuf>,
    /// Permissions of the shared-memory socket, which alone decide who may use it [default: 0600]
    #[arg(long, value_name = "OCTAL")]
    pub shm_mode: Option<SocketMode>,
    /// Group of the shared-memory socket, by name or number; mode 0660 gives it access [default: the service's own]
    #[arg(long, value_name = "GROUP")]
    pub shm_group: Option<String>,
    /// Keep every committed change for subscribers to follow: true or false [default: true]
    #[arg(long, value_name = "BOOL")]
    pub feed: Option<bool>,
    /// Disk space for changes kept for subscribers that reconnect, 112 bytes a change [default: 1GiB]
    #[arg(long, value_name = "BYTES", value_parser = engines::size)]
    pub feed_retention_bytes: Option<ByteSize>,
    /// Maximum age of changes kept for subscribers that reconnect [default: 1day]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[serde(with = "humantime_serde")]
    pub feed_retention_time: Option<Duration>,
    /// Subscribers of the feed at a time, 1 to 1024 [default: 64]
    #[arg(long, value_name = "N")]
    pub feed_subscribers: Option<u32>,
    /// A subscriber gets a heartbeat after this long without another message [default: 1s]
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
    /// Host names that HTTP answers to, separated by commas; IP addresses, localhost and the machine's own name are
    /// always allowed
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub metrics_hosts: Option<Vec<String>>,
    /// TLS for gRPC on TCP: the certificate, PEM [default: the systemd credential tls-cert, if there is one]
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM [default: the systemd credential tls-key]
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Clients must present a certificate signed by one of these authorities, PEM [default: the systemd credential
    /// tls-client-ca]
    #[arg(long, value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,
    /// Clients on TCP must send one of these tokens, one a line, 16 bytes or more each [default: the systemd credential
    /// bearer-tokens]
    #[arg(long, value_name = "FILE")]
    pub bearer_token_file: Option<PathBuf>,
    /// Listen on addresses that other machines reach without encryption [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub insecure: Option<bool>,
    /// gRPC connections at once, on TCP and the Unix socket together [default: 1024]
    #[arg(long, value_name = "N")]
    pub max_connections: Option<u32>,
    /// gRPC connections that one address may have (IPv6: one /64; Unix socket: one user) [default: a quarter of
    /// max_connections]
    #[arg(long, value_name = "N")]
    pub max_connections_per_address: Option<u32>,
    /// A connection without requests, new or under way, is closed after this long; 0s means never [default: 10m]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[serde(with = "humantime_serde")]
    pub idle_connection_timeout: Option<Duration>,
    /// A request that is not answered within this time is given up; streams may last longer [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[serde(with = "humantime_serde")]
    pub request_timeout: Option<Duration>,
    /// A lookup that takes this long is logged with its cause, without its keys; 0s means never [default: 10ms]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[serde(with = "humantime_serde")]
    pub slow_request: Option<Duration>,
    /// Threads that read the engine for lookups [default: 2, or 16 for a store of RocksDB or redb that is larger than the memory]
    #[arg(long, value_name = "N")]
    pub lookup_threads: Option<u32>,
    /// Format of the log: text or json [default: text]
    #[arg(long, value_enum)]
    pub log_format: Option<LogFormat>,
    /// Time for a clean stop after SIGTERM [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    #[serde(with = "humantime_serde")]
    pub shutdown_timeout: Option<Duration>,
}

/// The setting `durability`, as the file and the flags spell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DurabilityArg {
    /// A commit survives a killed process.
    Buffered,
    /// A commit survives power loss.
    Synced,
}

/// The setting `warm_up`, as the file and the flags spell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WarmUpArg {
    /// The store is read in as far as the engine has memory for it.
    Auto,
    /// A page is read when a lookup needs it.
    Off,
}

/// The form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Lines for people to read.
    Text,
    /// One JSON object a line.
    Json,
}

impl Settings {
    /// Merges two sets of settings: a setting that this one leaves out is taken from `file`.
    pub fn or(self, file: Self) -> Self {
        macro_rules! pick {
            ($($field:ident)+) => { Self { $($field: self.$field.or(file.$field)),+ } };
        }
        pick!(engine bloom profile memory lmdb_map_size set dir create_empty create snapshot incremental heal_from spool_max_bytes cluster geyser x_token_file x_token_header geyser_ca geyser_cert geyser_key geyser_compression extract follow commitment processed
            commit_every commit_interval ingest_depth warm_up durability idle_timeout gap_timeout geyser_at_once takeover_lag_slots max_lag_ms max_lag_slots listen uds uds_mode
            uds_group shm shm_mode shm_group feed
            feed_retention_bytes feed_retention_time feed_subscribers feed_heartbeat feed_stall_timeout
            metrics metrics_hosts tls_cert tls_key tls_client_ca bearer_token_file insecure max_connections
            max_connections_per_address idle_connection_timeout request_timeout slow_request lookup_threads
            log_format shutdown_timeout)
    }
}
