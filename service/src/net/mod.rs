//! The rules of the network edge: which addresses may be listened on, which secrets guard them, how many may connect.
//!
//! Owns: these rules, for gRPC and HTTP alike. Must not: speak a protocol; `rpc` and `http` do. Threads: `main` at
//! start, then the tokio runtime of the network edge; files are read on its blocking pool.

mod access;
mod bind;
pub mod figures;
pub mod limit;
pub mod secrets;
pub mod source;
mod tls;
mod tokens;

use std::sync::Arc;

use crate::config::Config;
use crate::failed::Failed;

pub use access::Access;
pub use bind::{Addresses, Ports};
pub use tls::Tls;
pub use tokens::{Refusal, Tokens};

/// What the configuration says of the network edge, read and checked.
pub struct Edge {
    /// What guards gRPC on TCP.
    pub access: Arc<Access>,
    /// Where it listens.
    pub addresses: Addresses,
}

impl Edge {
    /// Reads and checks.
    ///
    /// # Errors
    /// See [`Access::open`] and [`Addresses::of`].
    pub fn open(config: &Config) -> Result<Self, Failed> {
        let access = Access::open(config).map_err(Failed::wrong)?;
        let addresses = Addresses::of(config, &access)?;
        Ok(Self { access: Arc::new(access), addresses })
    }
}
