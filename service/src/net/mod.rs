//! The network edge below the protocols: addresses to listen on, secrets that guard them, connections and their limits.
//!
//! Owns: these rules for all protocols alike, the acceptance and the deadlines of connections, and the closing of Unix
//! sockets that hold data. Must not: speak a protocol; `rpc`, `redis`, `shm` and `pages::http` do. Threads: `main` at start, then
//! the tokio runtime of the network edge; files are read on its blocking pool.

pub(crate) mod accept;
mod access;
mod activity;
mod bind;
pub(crate) mod connection;
pub(crate) mod discard;
pub(crate) mod figures;
pub(crate) mod limit;
mod local;
pub(crate) mod secrets;
mod settings;
pub(crate) mod socket;
pub(crate) mod source;
mod tls;
mod tokens;
pub(crate) mod uds;

pub use access::Access;
pub(crate) use bind::{Addresses, Listeners, Ports};
pub(crate) use settings::{
    AccessGiven, AccessSettings, GrpcGiven, GrpcSettings, HttpGiven, HttpSettings, RedisGiven, RedisSettings, ShmGiven,
};
pub(crate) use tls::Tls;

/// Settings of the listeners on TCP.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'c> {
    pub grpc: &'c GrpcSettings,
    pub redis: &'c RedisSettings,
    pub http: &'c HttpSettings,
    pub access: &'c AccessSettings,
}

/// Returns the machine's name, as the kernel has it.
pub(crate) fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}
