//! Access over the network: TLS, client certificates and bearer tokens, from the configuration or the systemd
//! credentials.
//!
//! Owns: the choice of these files, and reading them again at SIGHUP. Must not: print or quote their contents. Threads:
//! `main` at start; at SIGHUP the network edge, with the files read on its blocking pool.

use std::fmt;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use tokio::signal::unix::{SignalKind, signal};

use super::AccessSettings;
use super::secrets::find;
use super::tls::{Tls, TlsFiles};
use super::tokens::Tokens;
use crate::base::blocking;

/// Names of the systemd credentials, used where no setting names a file.
const CERT: &str = "tls-cert";
const KEY: &str = "tls-key";
const CLIENT_CA: &str = "tls-client-ca";
const TOKENS: &str = "bearer-tokens";

/// Guards of the clients' protocols on TCP. A Unix socket is guarded only by the permissions of its file.
#[derive(Default)]
pub struct Access {
    /// TLS; without it, traffic can be read and changed on its way.
    pub tls: Option<Tls>,
    /// Bearer tokens; without them, every client that TLS lets in may make requests.
    pub tokens: Option<Tokens>,
}

impl Access {
    /// Reads the files that the settings name.
    ///
    /// # Errors
    /// A file is missing, unreadable, readable by everybody, or of another kind than its setting says; or a setting
    /// lacks the one that it needs.
    pub fn open(settings: &AccessSettings) -> Result<Self> {
        let cert = find(settings.tls_cert.as_deref(), CERT);
        let key = find(settings.tls_key.as_deref(), KEY);
        let client_ca = find(settings.tls_client_ca.as_deref(), CLIENT_CA);
        let tls = match (cert, key) {
            (Some(cert), Some(key)) => Some(Tls::open(TlsFiles { cert, key, client_ca }).context("cannot set TLS up")?),
            (Some(_), None) => bail!("tls_cert without tls_key: give --tls-key FILE"),
            (None, Some(_)) => bail!("tls_key without tls_cert: give --tls-cert FILE"),
            (None, None) if client_ca.is_some() => {
                bail!("tls_client_ca without TLS: give --tls-cert FILE and --tls-key FILE as well")
            }
            (None, None) => None,
        };
        let file = find(settings.bearer_token_file.as_deref(), TOKENS);
        let tokens = file.map(Tokens::open).transpose().context("cannot use the bearer tokens")?;
        Ok(Self { tls, tokens })
    }

    /// Reads the files again at each SIGHUP, until the runtime ends. If one cannot be used, the log says so and the old
    /// ones stay in effect. Open connections keep their TLS; tokens are checked at each request.
    ///
    /// # Errors
    /// The signal cannot be taken over.
    pub fn reload_at_hangup(self: &Arc<Self>) -> Result<()> {
        let mut hangups = signal(SignalKind::hangup()).context("cannot take over SIGHUP")?;
        let access = Arc::clone(self);
        tokio::spawn(async move {
            while hangups.recv().await.is_some() {
                let access = Arc::clone(&access);
                match blocking(move || access.reload()).await {
                    Ok(()) => tracing::info!("SIGHUP: certificates and tokens are read again"),
                    Err(error) => {
                        let error = engine_api::words(error.as_ref());
                        tracing::error!(error, "SIGHUP: the earlier certificates and tokens stay in effect");
                    }
                }
            }
        });
        Ok(())
    }

    /// Reads all files, and puts them into effect only if all can be used: new certificates with old tokens could lock
    /// everybody out.
    fn reload(&self) -> Result<()> {
        let tls = self.tls.as_ref().map(Tls::read_again).transpose()?;
        let tokens = self.tokens.as_ref().map(Tokens::read_again).transpose()?;
        if let Some(take) = tls {
            take();
        }
        if let Some(take) = tokens {
            take();
        }
        Ok(())
    }
}

/// Describes the access in words for people, without secrets.
impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.tls {
            None => "no TLS",
            Some(tls) if tls.mutual() => "TLS, clients must present a certificate",
            Some(_) => "TLS",
        })?;
        match &self.tokens {
            None => f.write_str(", no bearer tokens"),
            Some(tokens) => write!(f, ", bearer tokens: {}", tokens.len()),
        }
    }
}

/// Returns the token that a request of HTTP or gRPC carries.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer ";
    let (scheme, token) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then_some(token)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_token_follows_its_scheme() {
        let bearer = |value| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))]);
            bearer(&headers).map(<[u8]>::to_vec)
        };
        assert_eq!((bearer("Bearer one"), bearer("bearer one")), (Some(b"one".to_vec()), Some(b"one".to_vec())));
        assert_eq!((bearer("Bearer "), bearer("Bearer"), bearer("Basic Zmlyc3Q6")), (Some(Vec::new()), None, None));
        assert_eq!(super::bearer(&HeaderMap::new()), None);
    }
}
