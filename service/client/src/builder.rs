//! Settings of a client before it connects.
//!
//! Owns: the settings and their defaults; reading the files that they name. Must not: keep a secret longer than a
//! connection needs it, or show one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::address::Address;
use crate::error::{Error, Result};
use crate::nonblocking::Client;

/// Default deadline: longer than any healthy answer takes, and short enough that a caller does not hang.
const DEADLINE: Duration = Duration::from_secs(5);

/// Default time to poll for an answer: one from memory comes within a few us. A longer wait is a read from the disk,
/// for which the client sleeps.
const SPIN: Duration = Duration::from_micros(20);

/// Settings of a client; all have defaults except the address.
#[derive(Clone, Debug)]
pub struct Builder {
    pub(crate) address: Address,
    pub(crate) deadline: Duration,
    pub(crate) spin: Duration,
    ca_file: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
    server_name: Option<String>,
    token_file: Option<PathBuf>,
}

/// TLS configuration and token of one connection, read from the files that the settings name.
#[derive(Default)]
pub(crate) struct Credentials {
    pub(crate) tls: Option<ClientTlsConfig>,
    /// The value of the `authorization` header, marked as sensitive so that no debug output shows it.
    pub(crate) authorization: Option<MetadataValue<Ascii>>,
}

impl Builder {
    /// Begins the settings of a client for the service at `address`; see [`Address`].
    ///
    /// # Errors
    /// An address of no known form.
    pub fn new(address: &str) -> Result<Self> {
        Ok(Self {
            address: address.parse()?,
            deadline: DEADLINE,
            spin: SPIN,
            ca_file: None,
            identity: None,
            server_name: None,
            token_file: None,
        })
    }

    /// Sets the time that a call may take, including all its retries [default: 5 s].
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Shared memory: sets how long a call may poll for its answer before it sleeps until it is woken [default: 20 us].
    /// Zero sleeps at once; a longer time saves the wake-up but occupies a core. For an async caller, the runtime's
    /// worker polls. If polling makes answers later, as when all cores are busy, the client sleeps at once and tries
    /// polling again now and then.
    #[must_use]
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// https: trusts the certificates in this PEM file instead of the system's.
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// https: presents this certificate (PEM, chain included) with this private key (PEM).
    #[must_use]
    pub fn client_certificate(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.identity = Some((certificate.into(), key.into()));
        self
    }

    /// https: sets the name that the service's certificate must carry, if it is not the address's host.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Sends the first line of this file as a bearer token. The client reads the file again when the service refuses
    /// the token, so that the token can be replaced while the client runs. Refused for an address where the token would
    /// cross a network unencrypted, and for shared memory.
    #[must_use]
    pub fn token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.token_file = Some(path.into());
        self
    }

    /// Connects; requires a tokio runtime, which must outlive the client.
    ///
    /// # Errors
    /// There is no service at the address (only one attempt is made), the service refuses, or a setting or a file is
    /// wrong.
    pub async fn connect(self) -> Result<Client> {
        self.check()?;
        Client::start(self).await
    }

    /// Connects a client that blocks, for a thread of its own.
    ///
    /// # Errors
    /// As [`Builder::connect`].
    pub fn connect_blocking(self) -> Result<crate::blocking::Client> {
        self.check()?;
        crate::blocking::Client::start(self)
    }

    fn check(&self) -> Result<()> {
        let tls = self.ca_file.is_some() || self.identity.is_some() || self.server_name.is_some();
        if tls && !self.address.has_tls() {
            return Err(Error::bad_input("certificates and server names are for https://HOST:PORT alone"));
        }
        if self.token_file.is_some() && matches!(self.address, Address::Shm(_)) {
            return Err(Error::bad_input(
                "shared memory takes no token: the permissions of its socket decide who has access",
            ));
        }
        if self.token_file.is_some() && self.address.is_exposed() {
            return Err(Error::bad_input("a token over plain http:// can be read on the way: use https://HOST:PORT"));
        }
        Ok(())
    }

    /// Reads the files that the settings name.
    pub(crate) fn credentials(&self) -> Result<Credentials> {
        let mut credentials = Credentials::default();
        if self.address.has_tls() {
            let mut tls = ClientTlsConfig::new();
            tls = match &self.ca_file {
                Some(path) => tls.ca_certificate(Certificate::from_pem(read(path)?)),
                None => tls.with_native_roots(),
            };
            if let Some((certificate, key)) = &self.identity {
                tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
            }
            if let Some(name) = &self.server_name {
                tls = tls.domain_name(name);
            }
            credentials.tls = Some(tls);
        }
        if let Some(path) = &self.token_file {
            let text = read(path)?;
            let token = text.lines().next().unwrap_or_default().trim();
            // The parser's own error is dropped, because it would show the token.
            let value = if token.is_empty() { None } else { format!("Bearer {token}").parse().ok() };
            let mut value: MetadataValue<Ascii> = value.ok_or_else(|| {
                let what = "the token's file must begin with a line of printable characters";
                Error::bad_input(format!("{what}: file={}", path.display()))
            })?;
            value.set_sensitive(true);
            credentials.authorization = Some(value);
        }
        Ok(credentials)
    }
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path)
        .map_err(|error| Error::bad_input(format!("cannot read: file={} error={error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn what_would_show_a_token_or_do_nothing_is_refused() {
        let builder = |address: &str| Builder::new(address).unwrap();
        for wrong in [
            builder("http://10.0.0.1:1").token_file("/t"),
            builder("shm:///s").token_file("/t"),
            builder("unix:///s").ca_file("/c"),
            builder("http://10.0.0.1:1").server_name("n"),
        ] {
            assert_eq!(wrong.check().unwrap_err().kind(), ErrorKind::BadInput, "{wrong:?}");
        }
        builder("https://10.0.0.1:1").token_file("/t").server_name("n").check().unwrap();
        builder("http://127.0.0.1:1").token_file("/t").check().unwrap();
    }

    #[test]
    fn a_token_is_the_first_line_and_is_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let builder = Builder::new("unix:///s").unwrap().token_file(&file);
        let missing = builder.credentials().err().unwrap();
        assert!(missing.to_string().contains("token"), "{missing}");
        std::fs::write(&file, " s3cret \nmore\n").unwrap();
        let header = builder.credentials().unwrap().authorization.unwrap();
        assert_eq!(header.to_str().unwrap(), "Bearer s3cret");
        assert!(!format!("{header:?}").contains("s3cret"));
        for wrong in ["", "\nx", "s3c\u{1}ret"] {
            std::fs::write(&file, wrong).unwrap();
            let error = builder.credentials().err().unwrap();
            assert!(error.kind() == ErrorKind::BadInput && !error.to_string().contains("s3c"), "{error}");
        }
    }
}
