//! The network edge below the protocols: addresses to listen on, secrets that guard them, connections and their limits.
//!
//! Owns: these rules for all protocols alike, the acceptance and the deadlines of connections, and the closing of Unix
//! sockets that hold data. Must not: speak a protocol; `rpc`, `redis`, `web`, `shm` and `pages::http` do. Threads: `main` at start, then
//! the tokio runtime of the network edge; files are read on its blocking pool.

pub(crate) mod accept;
pub(crate) mod access;
mod activity;
mod bind;
pub(crate) mod connection;
pub(crate) mod discard;
pub(crate) mod figures;
pub(crate) mod host;
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
    WebGiven, WebSettings,
};
pub(crate) use tls::Tls;

/// Settings of the listeners on TCP.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'c> {
    pub grpc: &'c GrpcSettings,
    pub redis: &'c RedisSettings,
    pub web: &'c WebSettings,
    pub http: &'c HttpSettings,
    pub access: &'c AccessSettings,
}

impl Settings<'_> {
    /// Returns the addresses `redis` and `http` as they are given; empty if not.
    fn if_given(&self) -> [&str; 2] {
        [&self.redis.redis, &self.web.http].map(|address| address.as_deref().unwrap_or_default())
    }
}

/// Returns the machine's name, as the kernel has it.
pub(crate) fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}
