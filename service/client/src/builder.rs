//! The settings of a client: how it connects, how long it waits, and the files that prove who it is.
//!
//! Owns: the settings and their defaults, and the refusal of contradictory ones. Must not: read a file; connections do
//! that. Threads: the caller's.

use std::path::PathBuf;
use std::time::Duration;

use crate::address::Address;
use crate::error::{Error, Result};

/// Default deadline: longer than any healthy answer takes, and short enough that a caller does not hang.
const DEADLINE: Duration = Duration::from_secs(5);

/// Default time to poll for an answer: one from memory comes within a few us. A longer wait is a read from the disk,
/// for which the client sleeps.
#[cfg(feature = "shm")]
const SPIN: Duration = Duration::from_micros(20);

/// Settings of a client; all have defaults except the address.
#[derive(Clone, Debug)]
pub struct Builder {
    pub(crate) address: Address,
    pub(crate) deadline: Duration,
    #[cfg(feature = "shm")]
    pub(crate) spin: Duration,
    pub(crate) ca_file: Option<PathBuf>,
    /// Files of the certificate and of its private key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
    pub(crate) server_name: Option<String>,
    pub(crate) token_file: Option<PathBuf>,
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
            #[cfg(feature = "shm")]
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
    #[cfg(feature = "shm")]
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn what_would_show_a_token_or_do_nothing_is_refused() {
        let with_token = |address: &str| {
            let builder = Builder::new(address).unwrap();
            Builder { token_file: Some("/t".into()), ..builder }
        };
        let (unix, plain) = (Builder::new("unix:///s").unwrap(), Builder::new("http://10.0.0.1:1").unwrap());
        for wrong in [
            with_token("http://10.0.0.1:1"),
            with_token("shm:///s"),
            Builder { ca_file: Some("/c".into()), ..unix },
            Builder { server_name: Some("n".to_owned()), ..plain },
        ] {
            assert_eq!(wrong.check().unwrap_err().kind(), ErrorKind::BadInput, "{wrong:?}");
        }
        let named = Builder { server_name: Some("n".to_owned()), ..with_token("https://10.0.0.1:1") };
        named.check().unwrap();
        with_token("http://127.0.0.1:1").check().unwrap();
    }
}
