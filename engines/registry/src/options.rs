//! The choice of an engine and its options, which every tool takes on its command line and in its configuration file.
//!
//! Must not: look at a directory or at the machine.

use bytesize::ByteSize;
use clap::ValueEnum;
use engine_api::{Code, Error, Options, Result};
use serde::{Deserialize, Serialize};

use crate::list::{EngineKind, compiled};

/// Smallest memory of an engine in bytes.
const MEMORY_BYTES_MIN: u64 = 1 << 20;

/// A set of RocksDB settings. Files written with one profile can be opened with any other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// As RocksDB comes, apart from a cache of --memory.
    #[default]
    Vanilla,
    /// For a store that fits in memory: hash indexes in blocks, a faster cache.
    Memory,
    /// For uniform keys under a memory cap: filters and index inside the cache, larger files, direct reads.
    Tuned,
}

impl Profile {
    /// Returns the name used on the command line and in files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Vanilla => "vanilla",
            Self::Memory => "memory",
            Self::Tuned => "tuned",
        }
    }
}

/// An engine and its options. [`open`](crate::open) refuses an option of another engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineOptions {
    pub engine: EngineKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<String>,
    /// Options that have a flag of their own.
    #[serde(flatten)]
    pub options: Options,
}

/// The engine as a command line names it. If the engine is left out, [`options_for`](crate::options_for) takes it from
/// the store's directory.
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineArgs {
    /// Storage engine of the store [default: that of the directory; for a new store strata]
    ///
    /// A directory keeps the engine that it was created with, and another one is refused. A build without strata makes
    /// new stores with its first engine.
    #[arg(long, value_enum, value_name = "ENGINE")]
    pub engine: Option<EngineKind>,

    /// Bits per key of RocksDB's Bloom filter; 0 is none.
    ///
    /// With it most lookups of absent keys need no disk read. 10 bits let 1 in 100 through and take 1.25 GB per
    /// billion keys, 20 bits 1 in 6000 and 2.5 GB. Without this option a store keeps the number that it was created
    /// with; a different number applies to new files.
    #[arg(long, value_name = "BITS")]
    pub bloom: Option<u32>,

    /// RocksDB's set of options: its defaults, for memory, or for a memory cap [default: vanilla for a new store].
    ///
    /// vanilla keeps RocksDB's defaults, memory is for a store that fits in memory, tuned for one under a memory cap.
    /// Without this option a store keeps the profile that it was last opened with.
    #[arg(long, value_enum, value_name = "PROFILE")]
    pub profile: Option<Profile>,

    /// Memory for the engine's cache, such as 512MB or 4GiB.
    ///
    /// This is all that strata holds in memory, RocksDB's block cache, or redb's page cache. LMDB has no cache: it
    /// reads through the kernel's page cache. The default is a part of this process's cgroup limit, or of the machine's
    /// memory if there is no limit. It is five eighths for strata and tuned RocksDB, a half for RocksDB's memory
    /// profile, and a quarter for vanilla RocksDB and for redb. It is at least 64 MiB, or half of a limit below twice
    /// that. Tuned RocksDB leaves 128 MiB of a limit below 341 MiB, as far as that minimum allows.
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub memory: Option<ByteSize>,

    /// Fixed size of LMDB's map, such as 64GiB: the most that the store can grow to.
    ///
    /// Takes address space, not memory or disk. The default is 1 TiB, or twice the file at the start; set it only where
    /// the address space is limited.
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub lmdb_map_size: Option<ByteSize>,

    /// One of the engine's own settings, which replaces the profile's; may be given several times.
    ///
    /// For users who know the engine: `--set max_open_files=-1 --set block_size=8192`. RocksDB's names and values are
    /// those of its options files. An unknown name is refused, and so is one that would make commits less durable;
    /// the error lists the accepted names. The directory does not record the setting: it applies to this opening, and
    /// to the files that are written during it.
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub set: Vec<String>,
}

impl EngineArgs {
    /// Returns these options for a new store of `engine`.
    pub fn for_engine(&self, engine: EngineKind) -> EngineOptions {
        let mut options = self.options();
        // A configuration names the default profile whatever the engine is.
        if self.profile == Some(Profile::default()) && !takes(engine, "profile") {
            options.remove("profile");
        }
        EngineOptions { engine, memory: self.memory, set: self.set.clone(), options }
    }

    /// Returns the given options that have a flag of their own.
    pub fn options(&self) -> Options {
        let given = [
            ("bloom", self.bloom.map(|bits| bits.to_string())),
            ("profile", self.profile.map(|profile| profile.as_str().to_owned())),
            ("lmdb_map_size", self.lmdb_map_size.map(|size| size.as_u64().to_string())),
        ];
        given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

impl From<&EngineOptions> for EngineArgs {
    fn from(options: &EngineOptions) -> Self {
        let named = |name| options.options.get(name).map(String::as_str);
        Self {
            engine: Some(options.engine),
            bloom: named("bloom").and_then(|bits| bits.parse().ok()),
            profile: named("profile").and_then(|name| Profile::from_str(name, false).ok()),
            memory: options.memory,
            lmdb_map_size: named("lmdb_map_size").and_then(|bytes| bytes.parse().ok()).map(ByteSize::b),
            set: options.set.clone(),
        }
    }
}

/// Returns the flag of an option.
pub fn flag(option: &str) -> String {
    format!("--{}", option.replace('_', "-"))
}

fn takes(engine: EngineKind, option: &str) -> bool {
    engine.descriptor().options.contains(&option)
}

/// Parses a number of bytes as it is written on a command line.
///
/// # Errors
/// A sentence with an example of a size.
pub fn size(text: &str) -> std::result::Result<ByteSize, String> {
    let has_number = text.trim_start().starts_with(|first: char| first.is_ascii_digit());
    let size = text.parse().ok().filter(|_| has_number);
    size.ok_or_else(|| format!("not a size: {text:?}: such as 512MB or 4GiB"))
}

/// Parses an engine's setting as it is written on a command line: `NAME=VALUE`.
///
/// # Errors
/// A sentence with an example of a setting.
pub fn setting(text: &str) -> std::result::Result<String, String> {
    let named = text.split_once('=').is_some_and(|(name, value)| !name.is_empty() && !value.is_empty());
    let whole = named && !text.contains(char::is_whitespace);
    whole.then(|| text.to_owned()).ok_or_else(|| format!("not a setting: {text:?}: such as max_open_files=-1"))
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self::new(EngineKind::Strata)
    }
}

impl EngineOptions {
    /// Returns the default options of an engine.
    pub fn new(kind: EngineKind) -> Self {
        Self { engine: kind, memory: None, set: Vec::new(), options: Options::new() }
    }

    /// Returns the columns under which the suites test an engine, by name: its defaults, and those that the engine names.
    pub fn columns(engine: EngineKind) -> impl Iterator<Item = (&'static str, Self)> {
        let further = engine.descriptor().columns.iter().map(move |column| {
            let set = column.set.iter().map(|setting| (*setting).to_owned()).collect();
            let options =
                column.options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            (column.name, Self { set, options, ..Self::new(engine) })
        });
        std::iter::once((engine.as_str(), Self::new(engine))).chain(further)
    }

    /// Returns these options with one more that has a flag of its own.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.options.insert(name.to_owned(), value.to_string());
        self
    }

    /// Returns these options as a command line names them, without `--engine`, for example
    /// `rocksdb --bloom 20 --set max_open_files=-1`.
    pub fn line(&self) -> String {
        let mut line = self.engine.to_string();
        for (name, value) in &self.options {
            line.push_str(&format!(" {} {value}", flag(name)));
        }
        if let Some(memory) = self.memory {
            line.push_str(&format!(" --memory {}", memory.as_u64()));
        }
        for setting in &self.set {
            line.push_str(&format!(" --set {setting}"));
        }
        line
    }

    fn validate_settings(&self) -> Result<()> {
        let known = (self.engine.descriptor().settings)();
        let settings = self.settings();
        let Some((name, _)) = settings.set.iter().find(|(name, _)| !known.contains(&name.as_str())) else {
            let with_code = |error: Error| if error.code().is_none() { error.with_code(Code::Option) } else { error };
            return (self.engine.descriptor().check)(&settings).map_err(with_code);
        };
        let taken = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let message = format!(
            "this engine has no such setting, or it must not be set: engine={} name={name}: it takes {taken}",
            self.engine
        );
        Err(Error::wrong(Code::Option, message))
    }

    /// Refuses an option that only another engine has. A build without the named engine refuses that engine itself.
    fn validate_options(&self) -> Result<()> {
        let foreign = self.options.keys().find(|name| !takes(self.engine, name));
        let Some(name) = foreign.filter(|_| compiled().contains(&self.engine)) else { return Ok(()) };
        let owner = compiled().iter().find(|engine| takes(**engine, name));
        let owner = owner.map_or("an engine that this build lacks".to_owned(), |owner| format!("engine={owner}"));
        let message = format!("{} applies to {owner}: engine={}: leave it out", flag(name), self.engine);
        Err(Error::wrong(Code::Option, message))
    }

    /// Returns the label for metrics and table rows, such as `lmdb` or `rocksdb_bloom`.
    ///
    /// For an existing store the open engine's own label counts, because its filter may come from the directory.
    pub fn label(&self) -> &'static str {
        (self.engine.descriptor().label)(&self.options).unwrap_or(self.engine.as_str())
    }

    /// Refuses options that the engine does not have, and values that no engine accepts.
    ///
    /// # Errors
    /// `FixInput` naming the option or the setting.
    pub fn validate(&self) -> Result<()> {
        self.validate_options()?;
        self.validate_settings()?;
        match self.memory.map(|memory| memory.as_u64()) {
            Some(bytes @ 0..MEMORY_BYTES_MIN) => Err(Error::wrong(
                Code::Memory,
                format!("memory is too small: bytes={bytes} minimum_bytes={MEMORY_BYTES_MIN}"),
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use engine_api::ErrorKind;

    use super::*;

    #[test]
    fn toml_round_trips_and_has_defaults() {
        assert_eq!(toml::from_str::<EngineOptions>("").unwrap(), EngineOptions::default());
        let text = "engine = \"redb\"\nmemory = \"512MiB\"\n";
        let options: EngineOptions = toml::from_str(text).unwrap();
        assert_eq!(options.engine, EngineKind::Redb);
        assert_eq!(options.memory, Some(ByteSize::mib(512)));
        let again: EngineOptions = toml::from_str(&toml::to_string(&options).unwrap()).unwrap();
        assert_eq!(again, options);
    }

    #[test]
    fn sizes_are_read_or_told() {
        assert_eq!(size("512MB"), Ok(ByteSize::mb(512)));
        assert_eq!(size("1.5 GiB"), Ok(ByteSize::mib(1536)));
        for text in ["lots", "", "-1GB", "GiB", "1 parsec"] {
            assert_eq!(size(text), Err(format!("not a size: {text:?}: such as 512MB or 4GiB")));
        }
    }

    #[test]
    fn options_of_another_engine_are_refused() {
        let lmdb = EngineOptions::new(EngineKind::Lmdb);
        let redb = EngineOptions::new(EngineKind::Redb);
        let wrong = [
            lmdb.clone().with("bloom", 10),
            redb.clone().with("profile", "tuned"),
            redb.with("lmdb_map_size", 1 << 30),
            lmdb.clone().with("lmdb_map_size", 1),
            lmdb.clone().with("lmdb_map_size", "lots"),
            lmdb.with("lmdb_map_size", 65u64 << 40),
            EngineOptions::default().with("bloom", 10),
            EngineOptions { memory: Some(ByteSize::kib(1023)), ..EngineOptions::default() },
            #[cfg(feature = "rocksdb")]
            EngineOptions::new(EngineKind::Rocksdb).with("bloom", 33),
            EngineOptions { set: vec!["max_open_files=-1".to_owned()], ..EngineOptions::default() },
            #[cfg(feature = "lmdb")]
            EngineOptions { set: vec!["readahead=maybe".to_owned()], ..EngineOptions::new(EngineKind::Lmdb) },
            #[cfg(feature = "rocksdb")]
            EngineOptions { set: vec!["max_open_files=abc".to_owned()], ..EngineOptions::new(EngineKind::Rocksdb) },
            #[cfg(feature = "redb")]
            EngineOptions { set: vec!["quick_repair_every=-1".to_owned()], ..EngineOptions::new(EngineKind::Redb) },
        ];
        for options in wrong.into_iter().filter(|options| compiled().contains(&options.engine)) {
            assert_eq!(options.validate().unwrap_err().kind(), ErrorKind::FixInput, "{options:?}");
        }
    }

    #[test]
    fn options_become_flags_and_a_line_again() {
        let args = EngineArgs {
            bloom: Some(20),
            profile: Some(Profile::Tuned),
            memory: Some(ByteSize::mib(64)),
            lmdb_map_size: Some(ByteSize::gib(1)),
            ..EngineArgs::default()
        };
        let options = args.for_engine(EngineKind::Rocksdb);
        let line = "rocksdb --bloom 20 --lmdb-map-size 1073741824 --profile tuned --memory 67108864";
        assert_eq!(options.line(), line);
        assert_eq!(EngineArgs::from(&options), EngineArgs { engine: Some(EngineKind::Rocksdb), ..args });
        let default = EngineArgs { profile: Some(Profile::Vanilla), ..EngineArgs::default() };
        assert_eq!(default.for_engine(EngineKind::Redb), EngineOptions::new(EngineKind::Redb));
    }
}
