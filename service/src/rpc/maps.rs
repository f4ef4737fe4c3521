//! The map that a request names.
//!
//! Owns: the refusal of a request that names one. Must not: know a method, or the map. Threads: the network edge.

use tonic::Status;

/// Refuses a request that names a map. There is one map so far, and it has no name.
///
/// # Errors
/// `NOT_FOUND`.
pub(super) fn refuse_other_map(name: &str) -> Result<(), Status> {
    if name.is_empty() {
        return Ok(());
    }
    Err(Status::not_found("no such map: this service has one, whose name is empty: leave `map` out"))
}
