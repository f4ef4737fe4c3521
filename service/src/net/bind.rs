//! Which addresses may be listened on: loopback ones, others only behind TLS or when told so.
//!
//! Owns: resolving the addresses and this rule. Threads: `main`, before anything else is started.

use std::net::{SocketAddr, ToSocketAddrs as _};

use anyhow::{Context, Result, ensure};

use super::Access;
use crate::config::Config;

/// What the listeners will be bound to. A name may have several addresses; the first that can be bound is taken.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// gRPC.
    pub listen: Vec<SocketAddr>,
    /// HTTP.
    pub metrics: Vec<SocketAddr>,
}

impl Addresses {
    /// Resolves the addresses and refuses those that would be open to a network without protection.
    ///
    /// # Errors
    /// An address cannot be resolved, or is refused; the error names the ways out.
    pub fn of(config: &Config, access: &Access) -> Result<Self> {
        let (listen, metrics) = (resolve(&config.listen)?, resolve(&config.metrics)?);
        ensure!(
            access.tls.is_some() || config.insecure || loopback(&listen),
            "other machines could reach gRPC, and without encryption: listen={} is not loopback; give --tls-cert and \
             --tls-key, or --insecure where the network is trusted",
            config.listen
        );
        ensure!(
            config.insecure || loopback(&metrics),
            "other machines could reach HTTP, which is never encrypted: metrics={} is not loopback; give a loopback \
             address and put a proxy before it, or --insecure where the network is trusted",
            config.metrics
        );
        Ok(Self { listen, metrics })
    }

    /// Says in the log what of it is open to others.
    pub fn warn(&self, config: &Config, access: &Access) {
        if !loopback(&self.metrics) {
            tracing::warn!(metrics = config.metrics, "HTTP is open to other machines, without encryption");
        }
        if loopback(&self.listen) {
            return;
        }
        if access.tls.is_none() {
            tracing::warn!(listen = config.listen, "gRPC is open to other machines, without encryption");
        }
        if access.tokens.is_none() && !access.tls.as_ref().is_some_and(super::Tls::mutual) {
            let hint = "give tls_client_ca or bearer_token_file to choose who may ask";
            tracing::warn!(listen = config.listen, hint, "gRPC answers whoever reaches it");
        }
    }
}

fn resolve(address: &str) -> Result<Vec<SocketAddr>> {
    let found: Vec<_> = address
        .to_socket_addrs()
        .with_context(|| format!("cannot resolve address={address:?} expected=HOST:PORT"))?
        .collect();
    ensure!(!found.is_empty(), "the name has no address: address={address:?}");
    Ok(found)
}

fn loopback(addresses: &[SocketAddr]) -> bool {
    addresses.iter().all(|address| address.ip().to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    fn addresses(listen: &str, metrics: &str, insecure: bool) -> Result<Addresses> {
        let settings = Settings {
            dir: Some("/store".into()),
            geyser: Some("http://h:1".into()),
            listen: Some(listen.into()),
            metrics: Some(metrics.into()),
            insecure: Some(insecure),
            ..Settings::default()
        };
        let config = settings.resolve().unwrap();
        Addresses::of(&config, &Access::open(&config).unwrap())
    }

    #[test]
    fn only_loopback_is_open_without_protection() {
        for own in ["127.0.0.1:0", "127.8.8.8:0", "[::1]:0", "[::ffff:127.0.0.1]:0", "localhost:0"] {
            addresses(own, own, false).unwrap();
        }
        for other in ["0.0.0.0:7400", "[::]:7400", "192.0.2.1:7400", "[::ffff:192.0.2.1]:7400"] {
            let error = addresses(other, "127.0.0.1:0", false).unwrap_err().to_string();
            for part in [&format!("listen={other}"), "--tls-cert", "--insecure"] {
                assert!(error.contains(part), "{error}");
            }
            let error = addresses("127.0.0.1:0", other, false).unwrap_err().to_string();
            for part in [&format!("metrics={other}"), "proxy", "--insecure"] {
                assert!(error.contains(part), "{error}");
            }
            assert_eq!(addresses(other, other, true).unwrap().listen.len(), 1);
        }
        assert!(addresses("nowhere", "127.0.0.1:0", false).unwrap_err().to_string().contains("HOST:PORT"));
    }
}
