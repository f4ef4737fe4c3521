//! Options for reaching a service with access control, shared by `query`, `follow` and `transports`.
//!
//! Owns: the options. Must not: read the files that they name, because the client reads them for each connection.

use std::path::PathBuf;

use anyhow::Result;
use client::{Address, Builder};

/// Credentials and certificates for a service on a network.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Access {
    /// File whose first line is the token that the service asks for; refused if it would cross a network unencrypted
    #[arg(long, value_name = "FILE")]
    bearer_token_file: Option<PathBuf>,
    /// https: certificates that may sign the service's certificate, PEM [default: those that the machine trusts]
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// https: certificate shown to the service, PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// https: the certificate's private key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// https: the name in the service's certificate [default: the host of the address]
    #[arg(long, value_name = "NAME")]
    tls_name: Option<String>,
}

impl Access {
    /// Returns a builder for a client of the service at `address`, with all the options that were given.
    ///
    /// # Errors
    /// An address of no known form. An option that does not fit the address is reported when connecting.
    pub(crate) fn builder(&self, address: &str) -> Result<Builder> {
        let mut builder = Builder::new(address)?;
        if let Some(file) = &self.bearer_token_file {
            builder = builder.token_file(file);
        }
        if let Some(file) = &self.tls_ca {
            builder = builder.ca_file(file);
        }
        if let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) {
            builder = builder.client_certificate(cert, key);
        }
        if let Some(name) = &self.tls_name {
            builder = builder.server_name(name);
        }
        Ok(builder)
    }

    /// Returns the options that the transport of `address` accepts, for callers that use several: TLS options for
    /// https, a token for gRPC.
    ///
    /// # Errors
    /// An address of no known form.
    pub(crate) fn fitting(&self, address: &str) -> Result<Self> {
        let is_https = address.starts_with("https://");
        let mut fitting = if is_https { self.clone() } else { Self::default() };
        if !matches!(address.parse()?, Address::Shm(_)) {
            fitting.bearer_token_file.clone_from(&self.bearer_token_file);
        }
        Ok(fitting)
    }
}
