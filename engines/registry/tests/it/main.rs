//! The registry's integration tests: every compiled engine through the conformance suite, and what the registry and
//! the measured engine add.

mod conformance;
mod directory;
mod measured;
mod read_only;
mod standing;
