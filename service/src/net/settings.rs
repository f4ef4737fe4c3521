//! The settings of the network edge: the listeners, who may use them.
//!
//! Owns: these settings and their rules; the limits of connections stand with `limit`. Must not: open a file, except
//! the system's list of groups. Runs on `main`.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use super::socket::{SocketAccess, SocketGroup, SocketMode};
use crate::base::setting::settings;

settings! {
    /// Where gRPC listens, on TCP and on a Unix socket.
    pub struct GrpcSettings from GrpcGiven {
        /// gRPC lookups on TCP [default: 127.0.0.1:7400]
        #[arg(value_name = "HOST:PORT")]
        listen: String = "127.0.0.1:7400".to_owned();
        /// gRPC lookups on a Unix socket as well
        #[arg(value_name = "PATH")]
        uds: PathBuf;
        /// Permissions of the Unix socket, which alone decide who may use it [default: 0660]
        #[arg(value_name = "OCTAL")]
        uds_mode: SocketMode = SocketMode::OWNER_AND_GROUP;
        /// Group of the Unix socket, by name or number [default: the service's own]
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
        Ok(SocketAccess { mode: self.uds_mode, group: SocketGroup::resolve("uds_group", self.uds_group.clone())? })
    }
}

settings! {
    /// Where clients get their shared memory.
    pub struct ShmSettings from ShmGiven {
        /// Lookups and the feed over shared memory as well: the Unix socket where clients get their shared memory
        #[arg(value_name = "PATH")]
        shm: PathBuf;
        /// Permissions of the shared-memory socket, which alone decide who may use it [default: 0600]
        #[arg(value_name = "OCTAL")]
        shm_mode: SocketMode = SocketMode::OWNER;
        /// Group of the shared-memory socket, by name or number; mode 0660 gives it access [default: the service's own]
        #[arg(value_name = "GROUP")]
        shm_group: String;
    }
}

impl ShmSettings {
    /// Returns the permissions and the group of the shared-memory socket.
    ///
    /// # Errors
    /// The system does not know the group.
    pub fn access(&self) -> Result<SocketAccess> {
        Ok(SocketAccess { mode: self.shm_mode, group: SocketGroup::resolve("shm_group", self.shm_group.clone())? })
    }
}

settings! {
    /// Where HTTP listens, and to whom it answers.
    pub struct HttpSettings from HttpGiven {
        /// HTTP for the dashboard, metrics, health and histograms [default: 127.0.0.1:7401]
        #[arg(value_name = "HOST:PORT")]
        metrics: String = "127.0.0.1:7401".to_owned();
        /// Host names that HTTP answers to, separated by commas; IP addresses, localhost and the machine's own name are
        /// always allowed
        #[arg(value_name = "NAMES", value_delimiter = ',')]
        metrics_hosts: Vec<String> = Vec::new();
    }
}

impl HttpSettings {
    /// Refuses host names of a wrong form: no request would ever carry such a name, and its operator would be locked
    /// out.
    ///
    /// # Errors
    /// The first such name.
    pub fn check(&self) -> Result<()> {
        for name in &self.metrics_hosts {
            let label = |label: &str| {
                !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
            };
            ensure!(
                name.strip_suffix('.').unwrap_or(name).split('.').all(label),
                "not a host name: metrics_hosts={name:?}: give whole names without ports or wildcards, such as \
                 solkv.example.com; IP addresses are always answered to"
            );
        }
        Ok(())
    }
}

settings! {
    /// Who may use the listeners on TCP.
    pub struct AccessSettings from AccessGiven {
        /// TLS for gRPC on TCP: the certificate, PEM [default: the systemd credential tls-cert, if there is one]
        #[arg(value_name = "FILE")]
        tls_cert: PathBuf;
        /// The certificate's private key, PEM [default: the systemd credential tls-key]
        #[arg(value_name = "FILE")]
        tls_key: PathBuf;
        /// Clients must present a certificate signed by one of these authorities, PEM [default: the systemd credential
        /// tls-client-ca]
        #[arg(value_name = "FILE")]
        tls_client_ca: PathBuf;
        /// Clients on TCP must send one of these tokens, one a line, 16 bytes or more each [default: the systemd credential
        /// bearer-tokens]
        #[arg(value_name = "FILE")]
        bearer_token_file: PathBuf;
        /// Listen on addresses that other machines reach without encryption [default: false]
        #[arg(value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        insecure: bool = false;
    }
}
