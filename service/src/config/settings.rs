//! The groups of settings, in the order of the help. The table of each group stands with the code that obeys it.
//!
//! Owns: the list of groups, and the settings of the process as a whole. Must not: know a setting of another group.
//! Runs on `main`.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::LazyLock;

use anyhow::Result;
use serde::de::{Deserializer, Error as _, IgnoredAny};
use serde::{Deserialize, Serialize};

use crate::base::setting::{Given, settings};
use crate::derive::DerivedGiven;
use crate::feed::FeedGiven;
use crate::ingest::{CommitGiven, ReadinessGiven, ReceiveGiven, StreamGiven};
use crate::lookups::LookupGiven;
use crate::net::limit::ConnectionGiven;
use crate::net::{AccessGiven, GrpcGiven, HttpGiven, RedisGiven, ShmGiven, WebGiven};
use crate::store::{EngineGiven, EngineUseGiven, StoreGiven};

/// Makes, from the list of groups, the settings that are given, the configuration, and the way from one to the other.
macro_rules! groups {
    ($($group:ident: $given:ty;)+) => {
        /// The settings that were given, in the file or by flags.
        #[derive(clap::Args, Clone, Debug, Default, Serialize)]
        #[group(skip)]
        pub struct Settings { $(#[command(flatten)] #[serde(flatten)] pub $group: $given,)+ }

        /// The configuration in effect: every value decided and checked.
        #[derive(Clone, Debug)]
        pub struct Config { $(pub $group: <$given as Given>::InEffect,)+ }

        /// The names of all settings, in the order of the help.
        static KEYS: LazyLock<Vec<&str>> = LazyLock::new(|| [$(<$given>::KEYS),+].concat());

        impl Settings {
            /// Merges two sets of settings: a setting that this one leaves out is taken from `file`.
            #[must_use]
            pub fn or(self, file: Self) -> Self {
                Self { $($group: self.$group.or(file.$group)),+ }
            }

            /// Fills in the defaults, and checks the bounds.
            pub(super) fn in_effect(self) -> Result<Config> {
                Ok(Config { $($group: self.$group.in_effect()?),+ })
            }

            /// Gives every setting as it is in effect.
            pub(super) fn of(config: &Config) -> Self {
                Self { $($group: Given::of(&config.$group)),+ }
            }
        }

        /// Reads a file. Each group takes its own keys from it, because an error of serde names the line only if it
        /// reads a struct without flattened parts.
        impl FromStr for Settings {
            type Err = toml::de::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                toml::from_str::<BTreeMap<Key, IgnoredAny>>(text)?;
                Ok(Self { $($group: toml::from_str(text)?),+ })
            }
        }
    };
}

groups! {
    engine: EngineGiven;
    store: StoreGiven;
    stream: StreamGiven;
    commit: CommitGiven;
    engine_use: EngineUseGiven;
    receive: ReceiveGiven;
    readiness: ReadinessGiven;
    grpc: GrpcGiven;
    redis: RedisGiven;
    web: WebGiven;
    shm: ShmGiven;
    feed: FeedGiven;
    derived: DerivedGiven;
    http: HttpGiven;
    access: AccessGiven;
    connections: ConnectionGiven;
    lookups: LookupGiven;
    process: ProcessGiven;
}

/// A key of the file. One that names no setting is refused.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key(String);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let key = String::deserialize(from)?;
        if KEYS.contains(&key.as_str()) {
            return Ok(Self(key));
        }
        if let Some((_, instead)) = GONE.iter().find(|(gone, _)| *gone == key) {
            return Err(D::Error::custom(format_args!("setting {key} is gone: {instead}")));
        }
        // A setting that lost the unit at the end of its name is nearer than one with as many letters.
        let of_unit = KEYS.iter().find(|known| key.strip_prefix(**known).is_some_and(|unit| UNITS.contains(&unit)));
        let near = KEYS.iter().min_by_key(|known| edits(&key, known)).filter(|known| edits(&key, known) <= EDITS_MAX);
        let meant = of_unit
            .or(near)
            .map_or_else(|| "`service run --help` lists all".to_owned(), |near| format!("did you mean {near}?"));
        Err(D::Error::custom(format_args!("unknown setting {key}: {meant}")))
    }
}

/// Settings of earlier versions, each with its replacement. Some are near to others that mean something else.
const GONE: [(&str, &str); 16] = [
    ("commit_interval", FIXED),
    ("feed_heartbeat", FIXED),
    ("feed_retention_time", "feed_retention_bytes alone decides; remove the line"),
    ("feed_stall_timeout", FIXED),
    ("feed_subscribers", "max_connections decides: one in 16 may subscribe"),
    ("geyser_compression", "give compression in a table [[geyser]]"),
    ("idle_connection_timeout", FIXED),
    ("idle_timeout", "gap_timeout decides; remove the line"),
    ("max_connections_per_address", "it is a quarter of max_connections; remove the line"),
    ("max_lag_slots", "max_lag decides; remove the line"),
    ("metrics_hosts", "HTTP answers to IP addresses and to the name in metrics; remove the line"),
    ("request_timeout", FIXED),
    ("shutdown_timeout", FIXED),
    ("shm_mode", "shm_group names who may connect"),
    ("takeover_lag_slots", FIXED),
    ("uds_mode", "uds_group names who may connect"),
];

const FIXED: &str = "its value is fixed; remove the line";

/// The ends of earlier names, whose values now have the unit.
const UNITS: [&str; 2] = ["_ms", "_seconds"];

/// Largest number of edits between an unknown key and the setting that it is taken for.
const EDITS_MAX: usize = 4;

/// Returns the number of letters to insert, remove or replace between two names (Levenshtein).
fn edits(one: &str, other: &str) -> usize {
    let mut costs: Vec<usize> = (0..=other.len()).collect();
    for (row, letter) in one.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut costs[0], row + 1);
        for (column, other) in other.bytes().enumerate() {
            let least = costs[column].min(costs[column + 1]) + 1;
            diagonal = std::mem::replace(&mut costs[column + 1], least.min(diagonal + usize::from(letter != other)));
        }
    }
    costs[other.len()]
}

settings! {
    /// The log of the process.
    pub struct ProcessSettings from ProcessGiven {
        /// Format of the log: text, or json for a log collector [default: text]
        #[arg(value_enum)]
        log_format: LogFormat = LogFormat::Text;
    }
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
