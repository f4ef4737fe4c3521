//! The rules of the network edge: addresses to listen on, secrets that guard them, limits on connections.
//!
//! Owns: these rules, for gRPC and HTTP alike. Must not: speak a protocol; `rpc` and `http` do. Threads: `main` at
//! start, then the tokio runtime of the network edge; files are read on its blocking pool.

mod access;
mod bind;
pub mod figures;
pub mod limit;
pub mod secrets;
pub mod socket;
pub mod source;
mod tls;
mod tokens;

use std::path::PathBuf;
use std::sync::Arc;

use crate::failed::Failed;

pub use access::Access;
pub use bind::{Addresses, Ports};
pub use tls::Tls;
pub use tokens::{Refusal, Tokens};

/// Settings of the network edge.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Address of the gRPC listener, as HOST:PORT.
    pub listen: String,
    /// Address of the HTTP listener, as HOST:PORT.
    pub metrics: String,
    /// Whether the listeners may be open to other machines without encryption.
    pub insecure: bool,
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    pub tls_client_ca: Option<PathBuf>,
    pub bearer_token_file: Option<PathBuf>,
}

/// The settings of the network edge, read and checked.
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
    pub fn open(settings: &Settings) -> Result<Self, Failed> {
        let access = Access::open(settings).map_err(Failed::wrong)?;
        let addresses = Addresses::of(settings, &access)?;
        Ok(Self { access: Arc::new(access), addresses })
    }
}

/// Returns the machine's name, as the kernel has it.
pub(crate) fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}
