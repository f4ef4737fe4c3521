//! The engines by name: their options, their directories, and [`open`].
//!
//! Owns: a store's directory (the marker `SOLKV`, the lock `LOCK`, and `data`, which is the engine's), the choice of an
//! engine, and the engine's default share of memory. The only crate that names concrete engines. Must not: store pairs
//! or measure. Threads: none of its own.
//!
//! # A store's directory
//!
//! | entry | content |
//! |---|---|
//! | `SOLKV` | TOML: a checksum of the lines after it, format version, engine, who created it, the options that the engine keeps, the state and the result of its load, the meaning of its pairs, the seq that it has reached |
//! | `LOCK` | locked by `flock` while the store is open; contains the pid of the last holder |
//! | `data/` | the engine's own files |
//!
//! The marker is complete and synced before the engine creates its first file, and it records when the engine has made
//! its files. A process that was killed in between leaves a directory that [`OpenMode::Create`] and
//! [`OpenMode::CreateOrOpen`] accept again. Later a directory is refused if these files are missing, or are older than
//! at the last clean close. The lock is taken before any file of the engine is touched.

pub mod checked;
mod content;
mod copy;
mod digest;
mod directory;
mod engine;
mod hold;
mod kinds;
mod list;
mod lock;
mod marker;
mod memory;
mod notes;
mod options;
mod place;
mod process;
mod read_only;
mod regular;
mod repair;
mod standing;
mod store;
mod terms;
mod warm;

pub use content::{DERIVED_PREFIX_BYTES, Holds, Load, LoadState, Loaded};
pub use copy::{copy_contradiction, refuse_nested, remove_cut_short};
pub use digest::{Digest, source_id};
pub use directory::{CONTRADICTION, DATA, DERIVED_COPY, SPOOL, resolved};
pub use engine_api::{Note, Options, Repaired};
pub use hold::{Held, hold, holder};
pub use kinds::{catches_panics, check_before_copy, explain_faults};
pub use list::{EngineKind, compiled};
pub use lock::check_lock;
pub use marker::{FORMAT_VERSION, Identity};
pub use memory::{Division, MEMORY_MIN};
pub use notes::notes;
pub use options::{EngineArgs, EngineOptions, Profile, flag, setting, size};
pub use process::file_size_limit_is_an_error;
pub use read_only::open_read_only;
pub use regular::read_small;
pub use repair::{lost, repair};
pub use store::{
    OpenMode, check, default_engine, inspect, mark_load, open, open_accepted, open_existing, open_existing_accepted,
    open_held, open_on, options_for, refuse_unless_compiled,
};
pub use terms::{LoadTerm, Terms};
