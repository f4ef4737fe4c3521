//! The ingest: receives the stream, assembles whole slots, and applies them in the order of the chain.

pub mod apply;
pub mod assemble;
pub(crate) mod backoff;
pub mod batch;
pub(crate) mod connect;
pub(crate) mod convert;
mod doubt;
pub mod extract;
pub mod follow;
#[doc(hidden)]
pub mod fuzzing;
pub mod geyser;
pub mod healing;
pub(crate) mod intake;
mod late;
mod merge;
mod probe;
pub mod provider;
pub mod providers;
pub mod reads;
pub mod receive;
mod refusals;
mod roster;
pub(crate) mod settings;
pub mod spooling;
mod standing;
mod state;
pub mod stream;
pub mod subscribe;
#[cfg(test)]
mod tests;
mod token;
pub(crate) mod upstream;
mod waiting;

pub use settings::{CommitGiven, CommitSettings, ReceiveGiven, ReceiveSettings, StreamGiven, StreamSettings};
pub use state::{Figures, State};
