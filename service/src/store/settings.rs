//! The settings of the store: its engine, its directory, the archives that it is made of and healed from.
//!
//! Owns: these settings and their rules. Must not: open a file. Runs on `main`.

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use bytesize::ByteSize;
use engine_api::Durability;
use engines::{EngineArgs, EngineKind, EngineOptions, Profile};
use serde::{Deserialize, Serialize};

use crate::base::setting::{Given as _, settings};

settings! {
    /// The engine and its options, as the file and the flags name them.
    pub struct EngineSettings from EngineGiven {
        /// Storage engine: rocksdb, lmdb, redb or strata; for an operator who has measured that another one suits the load
        /// [default: the store's own; strata for an empty store]
        #[arg(value_enum)]
        engine: EngineKind = engines::default_engine();
        /// Bits per key of RocksDB's Bloom filter; for many lookups of absent keys [default: the number that the store was
        /// created with]
        #[arg(value_name = "BITS")]
        bloom: u32;
        /// RocksDB's settings: vanilla, memory or tuned; for a store that fits in memory, or a memory cap [default: those that
        /// the store was created with; vanilla for a new store]
        #[arg(value_enum)]
        profile: Profile = Profile::default();
        /// Memory for the engine, such as 4GiB; for a machine that other programs use as well [default: a share of the cgroup's limit or the machine's memory: five
        /// eighths for strata and tuned rocksdb, a half for rocksdb's memory profile, a quarter for vanilla rocksdb and
        /// redb; lmdb takes none]
        #[arg(value_name = "BYTES", value_parser = engines::size)]
        #[serde(deserialize_with = "crate::base::setting::size")]
        memory: ByteSize;
        /// Fixed size of LMDB's map; for a process that may not have so much address space [default: 1 TiB of address space,
        /// or twice the file at the start]
        #[arg(value_name = "BYTES", value_parser = engines::size)]
        #[serde(deserialize_with = "crate::base::setting::size")]
        lmdb_map_size: ByteSize;
        /// One of the engine's own settings, in place of the profile's, such as max_open_files=-1; for an operator who has
        /// measured its effect; may be given several times
        #[arg(value_name = "NAME=VALUE", value_parser = engines::setting)]
        #[serde(skip_serializing_if = "crate::base::setting::is_empty")]
        set: Vec<String> = Vec::new();
    }
}

impl From<EngineGiven> for EngineArgs {
    fn from(given: EngineGiven) -> Self {
        let EngineGiven { engine, bloom, profile, memory, lmdb_map_size, set } = given;
        Self { engine, bloom, profile, memory, lmdb_map_size, set: set.unwrap_or_default() }
    }
}

impl From<EngineArgs> for EngineGiven {
    fn from(args: EngineArgs) -> Self {
        let EngineArgs { engine, bloom, profile, memory, lmdb_map_size, set } = args;
        Self { engine, bloom, profile, memory, lmdb_map_size, set: Some(set) }
    }
}

impl EngineSettings {
    /// Returns the engine's options in the form that the registry takes.
    pub fn options(&self) -> EngineOptions {
        EngineArgs::from(EngineGiven::of(self)).for_engine(self.engine)
    }
}

settings! {
    /// The store that is opened, and the archives that it is made of or healed from.
    pub struct StoreSettings from StoreGiven {
        /// Directory of the store, which bootstrap has made; for every service
        #[arg(value_name = "DIR")]
        dir: PathBuf = bail!("no store: give --dir DIR, or dir = \"DIR\" in the file");
        /// Make an empty store if there is none; only for a stream that brings every key [default: false]
        #[arg(value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        create_empty: bool = false;
        /// Make the store of --snapshot if there is none, and keep the stream on disk until it is loaded; for a first start
        /// without bootstrap [default: false]
        ///
        /// The stream is opened first, at the archive's slot. Its slots go to DIR/spool while the archive is loaded, and are
        /// applied then. Lookups are refused until the store is loaded. A start that was interrupted at any point goes on
        /// where it was. Without effect on a store that is complete.
        #[arg(value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        create: bool = false;
        /// Solana snapshot archive for --create: a file, an unpacked directory, or an http(s) URL, with the slot in its name
        #[arg(value_name = "ARCHIVE")]
        snapshot: PathBuf;
        /// Incremental snapshot archive on top of --snapshot; for a full archive whose next slots no provider has any more
        #[arg(value_name = "ARCHIVE")]
        incremental: PathBuf;
        /// Close a gap from snapshot archives: a directory in which a validator writes them, or the http(s) URL of a
        /// validator's RPC or of an archive; for a service that has to close gaps by itself; may be given several times
        /// [default: a gap waits for its slots]
        ///
        /// Once no provider has the missing slots, the stream is kept on disk from its newest slot on. The first archive of
        /// that slot or a later one, full or full and incremental, is sorted in DIR/heal and compared with the store. Only
        /// the differences are applied, and then the slots that were kept. Lookups are answered as of the slot before the gap
        /// meanwhile. After a restart while differences are applied, lookups are refused until that is done.
        #[arg(value_name = "DIR_OR_URL")]
        #[serde(skip_serializing_if = "crate::base::setting::is_empty")]
        heal_from: Vec<String> = Vec::new();
        /// Disk space for slots of the stream that come while the archive is loaded or the store is healed, about 66
        /// bytes an update; for a load or a heal that takes more than four hours, or a small disk [default: 16GiB]
        #[arg(value_name = "BYTES", value_parser = engines::size)]
        #[serde(deserialize_with = "crate::base::setting::size")]
        spool_max_bytes: ByteSize = ByteSize::gib(16);
        /// Your name for the chain, such as mainnet; for an operator of several clusters. The store keeps the first name, and any
        /// other is refused
        #[arg(value_name = "NAME")]
        cluster: String;
    }
}

impl StoreSettings {
    /// Checks the rules about several of these settings.
    ///
    /// # Errors
    /// Two settings exclude each other, or one lacks the one that it needs.
    pub fn check(&self) -> Result<()> {
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
        for source in &self.heal_from {
            let host = source.strip_prefix("http://").or_else(|| source.strip_prefix("https://"));
            let is_right = host.map_or(!source.is_empty() && !source.contains("://"), |host| !host.is_empty());
            ensure!(
                is_right,
                "no source of archives: heal_from={source:?}: give a directory, or http://HOST or https://HOST"
            );
        }
        Ok(())
    }

    /// Whether a gap that the stream leaves is closed from archives.
    pub fn heals(&self) -> bool {
        !self.heal_from.is_empty()
    }
}

settings! {
    /// How the service uses the engine.
    pub struct EngineUse from EngineUseGiven {
        /// After opening, read the store in the background into the memory that the engine has for it, or into the page cache
        /// if the engine reads through that and all of the store fits: auto or off; off is for a device that other programs
        /// need [default: auto]
        #[arg(value_enum)]
        warm_up: WarmUpArg = WarmUpArg::Auto;
        /// Durability of a commit: synced survives power loss, buffered survives a killed process and is for a device whose
        /// flushes are slow [default: synced]
        #[arg(value_enum)]
        durability: DurabilityArg = DurabilityArg::Synced;
    }
}

/// The setting `warm_up`, as the file and the flags spell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WarmUpArg {
    /// The store is read in as far as there is memory for it.
    Auto,
    /// A page is read when a lookup needs it.
    Off,
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

impl From<DurabilityArg> for Durability {
    fn from(durability: DurabilityArg) -> Self {
        match durability {
            DurabilityArg::Buffered => Self::Buffered,
            DurabilityArg::Synced => Self::Synced,
        }
    }
}
