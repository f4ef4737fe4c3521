//! The list of engines: a line for each, with the names of the columns under which the suites test it.
//!
//! Owns: the names, and which of the engines are in this build. Must not: know anything else of an engine; its
//! [`Descriptor`] has that. Threads: none.
//!
//! `.ci/new-engine` adds an engine to a copy of the repository. It names the files outside of the engine's crate that have to
//! change.

use std::fmt;

use clap::builder::PossibleValue;
use engine_api::Descriptor;
use serde::{Deserialize, Serialize};

/// Gives the list of engines to the macro with this name.
#[macro_export]
macro_rules! for_each_engine {
    ($then:ident) => {
        $then! {
            Rocksdb = "rocksdb" in engine_rocksdb: rocksdb rocksdb_bloom rocksdb_memory rocksdb_tuned rocksdb_settings;
            Lmdb = "lmdb" in engine_lmdb: lmdb lmdb_settings;
            Redb = "redb" in engine_redb: redb redb_settings;
            Strata = "strata" in engine_strata: strata;
        }
    };
}

macro_rules! engines {
    ($($kind:ident = $name:tt in $home:ident: $($column:ident)+;)*) => {
        /// A storage engine. All engines can be named in every build, and opening one that was not compiled in is
        /// refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum EngineKind { $($kind),* }

        impl EngineKind {
            /// Every engine, compiled in or not.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$kind),*];

            /// Returns the name used on the command line, in files and for the cargo feature.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$kind => $name),* }
            }

            /// Returns the engine's own description; [`Descriptor::NONE`] if the engine is not in this build.
            pub fn descriptor(self) -> &'static Descriptor {
                match self {
                    $(#[cfg(feature = $name)] Self::$kind => &$home::DESCRIPTOR,)*
                    #[allow(unreachable_patterns, reason = "the arm for engines left out of the build")]
                    _ => &Descriptor::NONE,
                }
            }
        }

        /// Returns the engines in this build.
        pub fn compiled() -> &'static [EngineKind] {
            &[$(#[cfg(feature = $name)] EngineKind::$kind),*]
        }
    };
}

for_each_engine!(engines);

impl clap::ValueEnum for EngineKind {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.as_str()).help(self.descriptor().line))
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
