//! The ingest: receives the stream, assembles whole slots, and applies them in the order of the chain.

pub mod apply;
pub mod assemble;
pub(crate) mod backoff;
pub mod batch;
pub(crate) mod connect;
mod contradiction_file;
pub(crate) mod convert;
pub(crate) mod ended;
pub mod extract;
pub mod follow;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
#[path = "tests/fuzzing.rs"]
pub mod fuzzing;
pub mod geyser;
pub mod healing;
mod late_updates;
pub mod map_writer;
mod merge;
pub(crate) mod message_check;
mod parent_wait;
mod phase;
mod probe;
pub(crate) mod progress;
pub mod provider;
mod provider_choice;
pub mod providers;
pub mod reads;
pub mod receive;
mod sequence;
mod server_errors;
pub(crate) mod settings;
pub mod spooling;
mod state;
pub mod stream;
pub mod subscribe;
#[cfg(test)]
mod tests;
mod token;
pub(crate) mod upstream;

pub use settings::{
    CommitGiven, CommitSettings, ReadinessGiven, ReadinessSettings, ReceiveGiven, ReceiveSettings, StreamGiven,
    StreamSettings,
};
pub use state::{IngestFigures, State};
