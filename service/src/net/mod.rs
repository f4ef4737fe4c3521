//! The rules of the network edge: addresses to listen on, secrets that guard them, limits on connections.
//!
//! Owns: these rules, for gRPC and HTTP alike, and the closing of Unix sockets that hold data. Must not: speak a
//! protocol; `rpc` and `http` do. Threads: `main` at start, then the tokio runtime of the network edge; files are read
//! on its blocking pool.

mod access;
mod bind;
pub(crate) mod discard;
pub(crate) mod figures;
pub(crate) mod limit;
pub(crate) mod secrets;
mod settings;
pub(crate) mod socket;
pub(crate) mod source;
mod tls;
mod tokens;

use std::sync::Arc;

use crate::base::failed::Failed;

pub use access::Access;
pub(crate) use bind::{Addresses, Ports};
pub(crate) use settings::{AccessGiven, AccessSettings, GrpcGiven, GrpcSettings, HttpGiven, HttpSettings, ShmGiven};
pub(crate) use tls::Tls;
pub(crate) use tokens::{Refusal, Tokens};

/// Settings of the listeners on TCP.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'c> {
    pub grpc: &'c GrpcSettings,
    pub http: &'c HttpSettings,
    pub access: &'c AccessSettings,
}

/// The settings of the network edge, read and checked.
pub(crate) struct Edge {
    pub access: Arc<Access>,
    /// Addresses of the gRPC and HTTP listeners.
    pub addresses: Addresses,
}

impl Edge {
    /// Reads and checks the settings' files and addresses.
    ///
    /// # Errors
    /// As [`Access::open`] and [`Addresses::of`].
    pub(crate) fn open(settings: Settings<'_>) -> Result<Self, Failed> {
        let access = Access::open(settings.access).map_err(Failed::wrong)?;
        let addresses = Addresses::of(settings, &access)?;
        Ok(Self { access: Arc::new(access), addresses })
    }
}

/// Returns the machine's name, as the kernel has it.
pub(crate) fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}
