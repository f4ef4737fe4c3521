//! The settings of the network edge: the listeners, who may use them.
//!
//! Owns: these settings and their rules; the limits of connections stand with `limit`. Must not: open a file, except
//! the system's list of groups. Runs on `main`.

use std::path::PathBuf;

use anyhow::Result;

use super::socket::{SocketAccess, SocketGroup};
use crate::base::setting::settings;

settings! {
    /// Where gRPC listens, on TCP and on a Unix socket.
    pub struct GrpcSettings from GrpcGiven {
        /// gRPC lookups on TCP; for clients on other machines, or another port [default: 127.0.0.1:7400]
        #[arg(value_name = "HOST:PORT")]
        listen: String = "127.0.0.1:7400".to_owned();
        /// gRPC lookups on a Unix socket as well; for clients on this machine. Owner and group may use it
        #[arg(value_name = "PATH")]
        uds: PathBuf;
        /// Group of uds, redis_uds and http_uds, by name or number; for clients of another group [default: the service's own]
        #[arg(value_name = "GROUP")]
        uds_group: String;
    }
}

impl GrpcSettings {
    /// Returns the permissions and the group of the Unix socket.
    ///
    /// # Errors
    /// The system does not know the group.
    pub fn uds_access(&self) -> Result<SocketAccess> {
        let group = SocketGroup::resolve("uds_group", self.uds_group.clone())?;
        Ok(SocketAccess { mode: SocketAccess::OWNER_AND_GROUP, group })
    }
}

settings! {
    /// Where the Redis protocol is answered.
    pub struct RedisSettings from RedisGiven {
        /// Lookups over the Redis protocol on TCP as well, such as on 127.0.0.1:7402; for redis-cli, and for programs without gRPC
        #[arg(value_name = "HOST:PORT")]
        redis: String;
        /// Lookups over the Redis protocol on a Unix socket as well; for clients on this machine. Owner and uds_group may use it
        #[arg(value_name = "PATH")]
        redis_uds: PathBuf;
    }
}

settings! {
    /// Where lookups over HTTP are answered.
    pub struct WebSettings from WebGiven {
        /// Lookups over HTTP as well, in JSON, such as on 127.0.0.1:7403; for curl, and for programs without gRPC
        #[arg(value_name = "HOST:PORT")]
        http: String;
        /// Lookups over HTTP on a Unix socket as well; for clients on this machine. Owner and uds_group may use it
        #[arg(value_name = "PATH")]
        http_uds: PathBuf;
    }
}

settings! {
    /// Where clients get their shared memory.
    pub struct ShmSettings from ShmGiven {
        /// Lookups and the feed over shared memory as well: the Unix socket where clients get their shared memory; for clients
        /// on this machine that need the shortest latency
        #[arg(value_name = "PATH")]
        shm: PathBuf;
        /// Group that may use the socket for shared memory, by name or number; for clients that run as another user [default:
        /// its owner alone]
        #[arg(value_name = "GROUP")]
        shm_group: String;
    }
}

impl ShmSettings {
    /// Returns the permissions and the group of the shared-memory socket. A client can crowd out the others, so a group has
    /// access only if it is named.
    ///
    /// # Errors
    /// The system does not know the group.
    pub fn access(&self) -> Result<SocketAccess> {
        Ok(match SocketGroup::resolve("shm_group", self.shm_group.clone())? {
            None => SocketAccess::OWNER,
            group => SocketAccess { mode: SocketAccess::OWNER_AND_GROUP, group },
        })
    }
}

settings! {
    /// Where HTTP listens, and to whom it answers.
    pub struct HttpSettings from HttpGiven {
        /// HTTP for the dashboard, metrics, health and histograms; for a Prometheus or a browser on another machine. It answers
        /// to IP addresses, localhost, the machine's own name, and the name that is given here [default: 127.0.0.1:7401]
        #[arg(value_name = "HOST:PORT")]
        metrics: String = "127.0.0.1:7401".to_owned();
    }
}

settings! {
    /// Who may use the listeners on TCP.
    pub struct AccessSettings from AccessGiven {
        /// TLS for gRPC, the Redis protocol and http on TCP: the certificate, PEM; for clients on other machines [default: the
        /// systemd credential tls-cert, if there is one]
        #[arg(value_name = "FILE")]
        tls_cert: PathBuf;
        /// The private key for tls_cert, PEM [default: the systemd credential tls-key]
        #[arg(value_name = "FILE")]
        tls_key: PathBuf;
        /// Clients must present a certificate signed by one of these authorities, PEM; for a network that others use as well
        /// [default: the systemd credential tls-client-ca]
        #[arg(value_name = "FILE")]
        tls_client_ca: PathBuf;
        /// Clients on TCP must send one of these tokens, one a line, 16 bytes or more each; for clients without certificates
        /// [default: the systemd credential bearer-tokens]
        #[arg(value_name = "FILE")]
        bearer_token_file: PathBuf;
        /// Listen on addresses that other machines reach without encryption; for a network that is private [default: false]
        #[arg(value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        insecure: bool = false;
    }
}
