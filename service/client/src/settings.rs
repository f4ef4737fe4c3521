//! The settings of a client: how it connects, how long it waits, and the files that prove who it is.
//!
//! Owns: the settings and their defaults, the refusal of contradictory ones, and the reading of the files that they name.
//! Must not: connect; keep a secret longer than a connection needs it, or show one. Threads: the caller's.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::address::Address;
use crate::error::{Error, Result};

/// Default deadline: longer than any healthy answer takes, and short enough that a caller does not hang.
const DEADLINE: Duration = Duration::from_secs(5);

/// Default time to poll for an answer: one from memory comes within a few us. A longer wait is a read from the disk,
/// for which the client sleeps.
const SPIN: Duration = Duration::from_micros(20);

/// The address of a service, and the settings of a client for it.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) address: Address,
    pub(crate) deadline: Duration,
    pub(crate) spin: Duration,
    pub(crate) ca_file: Option<PathBuf>,
    /// Files of the certificate and of its private key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
    pub(crate) server_name: Option<String>,
    pub(crate) token_file: Option<PathBuf>,
}

/// TLS configuration and token of one connection, read from the files that the settings name.
#[derive(Default)]
pub(crate) struct Credentials {
    pub(crate) tls: Option<ClientTlsConfig>,
    /// The value of the `authorization` header, marked as sensitive so that no debug output shows it.
    pub(crate) authorization: Option<MetadataValue<Ascii>>,
}

impl Settings {
    /// Returns the default settings for the service at `address`.
    ///
    /// # Errors
    /// An address of no known form.
    pub(crate) fn new(address: &str) -> Result<Self> {
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

    /// Refuses settings without effect at the address, and a token that the way to it would show.
    pub(crate) fn check(&self) -> Result<()> {
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
        let with_token = |address: &str| {
            let settings = Settings::new(address).unwrap();
            Settings { token_file: Some("/t".into()), ..settings }
        };
        let (unix, plain) = (Settings::new("unix:///s").unwrap(), Settings::new("http://10.0.0.1:1").unwrap());
        for wrong in [
            with_token("http://10.0.0.1:1"),
            with_token("shm:///s"),
            Settings { ca_file: Some("/c".into()), ..unix },
            Settings { server_name: Some("n".to_owned()), ..plain },
        ] {
            assert_eq!(wrong.check().unwrap_err().kind(), ErrorKind::BadInput, "{wrong:?}");
        }
        let named = Settings { server_name: Some("n".to_owned()), ..with_token("https://10.0.0.1:1") };
        named.check().unwrap();
        with_token("http://127.0.0.1:1").check().unwrap();
    }

    #[test]
    fn a_token_is_the_first_line_and_is_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let settings = Settings { token_file: Some(file.clone()), ..Settings::new("unix:///s").unwrap() };
        let missing = settings.credentials().err().unwrap();
        assert!(missing.to_string().contains("token"), "{missing}");
        std::fs::write(&file, " s3cret \nmore\n").unwrap();
        let header = settings.credentials().unwrap().authorization.unwrap();
        assert_eq!(header.to_str().unwrap(), "Bearer s3cret");
        assert!(!format!("{header:?}").contains("s3cret"));
        for wrong in ["", "\nx", "s3c\u{1}ret"] {
            std::fs::write(&file, wrong).unwrap();
            let error = settings.credentials().err().unwrap();
            assert!(error.kind() == ErrorKind::BadInput && !error.to_string().contains("s3c"), "{error}");
        }
    }
}
