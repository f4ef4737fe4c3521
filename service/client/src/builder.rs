//! The public form of a client's settings: one method for each, then the connection.
//!
//! Owns: the names and the meaning of the settings. Must not: keep a setting itself, or read a file; `settings` does both.
//! Threads: the caller's.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::Result;
use crate::settings::Settings;
use crate::{blocking, nonblocking};

/// Settings of a client; all have defaults except the address.
#[derive(Clone, Debug)]
pub struct Builder {
    settings: Settings,
}

impl Builder {
    /// Begins the settings of a client for the service at `address`; see [`Address`](crate::Address).
    ///
    /// # Errors
    /// An address of no known form.
    pub fn new(address: &str) -> Result<Self> {
        Ok(Self { settings: Settings::new(address)? })
    }

    /// Sets the time that a call may take, including all its retries [default: 5 s].
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        self
    }

    /// Shared memory: sets how long a call may poll for its answer before it sleeps until it is woken [default: 20 us].
    /// Zero sleeps at once; a longer time saves the wake-up but occupies a core. For an async caller, the runtime's
    /// worker polls. If polling makes answers later, as when all cores are busy, the client sleeps at once and tries
    /// polling again now and then.
    #[must_use]
    pub fn spin(mut self, spin: Duration) -> Self {
        self.settings.spin = spin;
        self
    }

    /// https: trusts the certificates in this PEM file instead of the system's.
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.ca_file = Some(path.into());
        self
    }

    /// https: presents this certificate (PEM, chain included) with this private key (PEM).
    #[must_use]
    pub fn client_certificate(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.settings.identity = Some((certificate.into(), key.into()));
        self
    }

    /// https: sets the name that the service's certificate must carry, if it is not the address's host.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.settings.server_name = Some(name.into());
        self
    }

    /// Sends the first line of this file as a bearer token. The client reads the file again when the service refuses
    /// the token, so that the token can be replaced while the client runs. Refused for an address where the token would
    /// cross a network unencrypted, and for shared memory.
    #[must_use]
    pub fn token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.token_file = Some(path.into());
        self
    }

    /// Connects; requires a tokio runtime, which must outlive the client.
    ///
    /// # Errors
    /// There is no service at the address (only one attempt is made), the service refuses, or a setting or a file is
    /// wrong.
    pub async fn connect(self) -> Result<nonblocking::Client> {
        nonblocking::Client::start(self.settings).await
    }

    /// Connects a client that blocks, for a thread of its own.
    ///
    /// # Errors
    /// As [`Builder::connect`].
    pub fn connect_blocking(self) -> Result<blocking::Client> {
        blocking::Client::start(self.settings)
    }
}
