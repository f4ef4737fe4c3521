//! The files that prove who a client is, read for each connection.
//!
//! Owns: the reading of certificates, keys and the token. Must not: keep a secret longer than a connection needs it, or
//! show one. Threads: those that may block.

use std::path::Path;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::Builder;
use crate::error::{Error, Result};

/// TLS configuration and token of one connection, read from the files that the settings name.
#[derive(Default)]
pub(crate) struct Credentials {
    pub(crate) tls: Option<ClientTlsConfig>,
    /// The value of the `authorization` header, marked as sensitive so that no debug output shows it.
    pub(crate) authorization: Option<MetadataValue<Ascii>>,
}

impl Credentials {
    /// Reads the files that the settings name.
    pub(crate) fn read(settings: &Builder) -> Result<Self> {
        let mut credentials = Self::default();
        if settings.address.has_tls() {
            let mut tls = ClientTlsConfig::new();
            tls = match &settings.ca_file {
                Some(path) => tls.ca_certificate(Certificate::from_pem(text_of(path)?)),
                None => tls.with_native_roots(),
            };
            if let Some((certificate, key)) = &settings.identity {
                tls = tls.identity(Identity::from_pem(text_of(certificate)?, text_of(key)?));
            }
            if let Some(name) = &settings.server_name {
                tls = tls.domain_name(name);
            }
            credentials.tls = Some(tls);
        }
        if let Some(path) = &settings.token_file {
            let text = text_of(path)?;
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

fn text_of(path: &Path) -> Result<String> {
    std::fs::read_to_string(path)
        .map_err(|error| Error::bad_input(format!("cannot read: file={} error={error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn a_token_is_the_first_line_and_is_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let builder = Builder { token_file: Some(file.clone()), ..Builder::new("unix:///s").unwrap() };
        let missing = Credentials::read(&builder).err().unwrap();
        assert!(missing.to_string().contains("token"), "{missing}");
        std::fs::write(&file, " s3cret \nmore\n").unwrap();
        let header = Credentials::read(&builder).unwrap().authorization.unwrap();
        assert_eq!(header.to_str().unwrap(), "Bearer s3cret");
        assert!(!format!("{header:?}").contains("s3cret"));
        for wrong in ["", "\nx", "s3c\u{1}ret"] {
            std::fs::write(&file, wrong).unwrap();
            let error = Credentials::read(&builder).err().unwrap();
            assert!(error.kind() == ErrorKind::BadInput && !error.to_string().contains("s3c"), "{error}");
        }
    }
}
