//! The rules of the network edge: addresses to listen on, secrets that guard them, limits on connections.
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

/// The configuration's settings of the network edge, read and checked.
pub struct Edge {
    pub access: Arc<Access>,
    /// Addresses of the gRPC and HTTP listeners.
    pub addresses: Addresses,
}

impl Edge {
    /// Reads and checks the settings' files and addresses.
    ///
    /// # Errors
    /// As [`Access::open`] and [`Addresses::of`].
    pub fn open(config: &Config) -> Result<Self, Failed> {
        let access = Access::open(config).map_err(Failed::wrong)?;
        let addresses = Addresses::of(config, &access)?;
        Ok(Self { access: Arc::new(access), addresses })
    }
}
