//! Addresses to listen on: loopback ones, others only with TLS or with the setting `insecure`.
//!
//! Owns: resolving the addresses, this rule, and binding. Threads: `main`, before anything else is started.

use std::io::ErrorKind as Io;
use std::net::{SocketAddr, TcpListener as Port, ToSocketAddrs as _};

use anyhow::{Context as _, Result, anyhow, ensure};
use engine_api::Code;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use tokio::net::TcpListener;

use super::{Access, Settings};
use crate::base::failed::Failed;

/// Connections that the kernel completes before they are accepted: the same as tokio's own listeners.
const BACKLOG: i32 = 1024;

/// Addresses of the listeners. A name may have several; the first that can be bound is used.
#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    /// Addresses of the gRPC listener.
    pub listen: Vec<SocketAddr>,
    /// Addresses of the listener of the Redis protocol; none without the setting.
    pub redis: Vec<SocketAddr>,
    /// Addresses of the listener of lookups over HTTP; none without the setting.
    pub web: Vec<SocketAddr>,
    /// Addresses of the listener of the pages.
    pub metrics: Vec<SocketAddr>,
}

impl Addresses {
    /// Resolves the addresses, and refuses those that would be open to a network without protection.
    ///
    /// # Errors
    /// An address cannot be resolved, or is refused; the error names the ways out.
    pub(crate) fn of(settings: Settings<'_>, access: &Access) -> Result<Self, Failed> {
        let addresses = Self {
            listen: resolve("listen", &settings.grpc.listen)?,
            redis: resolve_if("redis", settings.redis.redis.as_deref())?,
            web: resolve_if("http", settings.web.http.as_deref())?,
            metrics: resolve("metrics", &settings.http.metrics)?,
        };
        addresses.check(settings, access).map_err(Failed::wrong)?;
        Ok(addresses)
    }

    fn check(&self, settings: Settings<'_>, access: &Access) -> Result<()> {
        let Self { listen, redis, web, metrics } = self;
        let [redis_name, web_name] = settings.if_given();
        let named = [
            ("listen", listen, settings.grpc.listen.as_str()),
            ("metrics", metrics, settings.http.metrics.as_str()),
            ("redis", redis, redis_name),
            ("http", web, web_name),
        ];
        for (n, (key, addresses, name)) in named.iter().enumerate() {
            for (other, others, other_name) in &named[..n] {
                ensure!(
                    !collide(addresses, others),
                    "two listeners cannot share a port: {other}={other_name} {key}={name}: give one of them another"
                );
            }
        }
        ensure!(
            access.tls.is_some() || settings.access.insecure || loopback(listen),
            "other machines could reach gRPC without encryption: listen={} is not loopback; give --tls-cert and \
             --tls-key, or --insecure where the network is trusted",
            settings.grpc.listen
        );
        let is_guarded = access.tls.as_ref().is_some_and(|tls| access.tokens.is_some() || tls.mutual());
        for (key, addresses, name) in [("redis", redis, redis_name), ("http", web, web_name)] {
            ensure!(
                is_guarded || settings.access.insecure || loopback(addresses),
                "other machines could reach lookups without a token or without encryption: {key}={name} is not loopback; \
                 give --tls-cert, --tls-key and --bearer-token-file, or --insecure where the network is trusted"
            );
        }
        ensure!(
            settings.access.insecure || loopback(metrics),
            "other machines could reach HTTP, which is never encrypted: metrics={} is not loopback; give a loopback \
             address and put a proxy in front of it, or --insecure where the network is trusted",
            settings.http.metrics
        );
        Ok(())
    }

    /// Binds the ports, so that a port in use is found before the store is touched. No client can connect before
    /// [`Ports::listen`].
    ///
    /// # Errors
    /// An address cannot be bound; the error names the option.
    pub(crate) fn bind(&self) -> Result<Ports> {
        let bound = |option, address| bound(option, address).context(Code::Address);
        let redis = (!self.redis.is_empty()).then(|| bound("redis", &self.redis)).transpose()?;
        let web = (!self.web.is_empty()).then(|| bound("http", &self.web)).transpose()?;
        Ok(Ports { listen: bound("listen", &self.listen)?, redis, web, metrics: bound("metrics", &self.metrics)? })
    }

    /// Logs a warning for each listener that is open to other machines.
    pub(crate) fn warn(&self, settings: Settings<'_>, access: &Access) {
        if !loopback(&self.metrics) {
            tracing::warn!(metrics = settings.http.metrics, "HTTP is open to other machines, without encryption");
        }
        let [redis, web] = settings.if_given();
        for (name, addresses, address) in [
            ("gRPC", &self.listen, settings.grpc.listen.as_str()),
            ("the Redis protocol", &self.redis, redis),
            ("http", &self.web, web),
        ] {
            if loopback(addresses) {
                continue;
            }
            if access.tls.is_none() {
                tracing::warn!(address, "{name} is open to other machines, without encryption");
            }
            if access.tokens.is_none() && !access.tls.as_ref().is_some_and(super::Tls::mutual) {
                let hint = "give tls_client_ca or bearer_token_file to restrict access";
                tracing::warn!(address, hint, "{name} answers every client that can reach it");
            }
        }
    }
}

/// The ports, bound. No client can connect before they listen; that of HTTP may begin before the others.
#[derive(Debug)]
pub(crate) struct Ports {
    listen: Port,
    redis: Option<Port>,
    web: Option<Port>,
    metrics: Port,
}

/// The listeners on TCP, which accept connections.
pub(crate) struct Listeners {
    pub(crate) grpc: TcpListener,
    pub(crate) redis: Option<TcpListener>,
    pub(crate) web: Option<TcpListener>,
    pub(crate) http: TcpListener,
}

impl Ports {
    /// Lets clients connect to HTTP alone, until [`Self::listen`], which refuses no connection between the two. Needs a
    /// tokio runtime.
    ///
    /// # Errors
    /// Another process has begun to listen there; the error names the option.
    pub(crate) fn listen_http(&self) -> Result<TcpListener> {
        listening("metrics", &self.metrics)
    }

    /// Lets clients connect. Needs a tokio runtime.
    ///
    /// # Errors
    /// Another process has begun to listen there; the error names the option.
    pub(crate) fn listen(self) -> Result<Listeners> {
        Ok(Listeners {
            grpc: listening("listen", &self.listen)?,
            redis: self.redis.map(|redis| listening("redis", &redis)).transpose()?,
            web: self.web.map(|web| listening("http", &web)).transpose()?,
            http: listening("metrics", &self.metrics)?,
        })
    }
}

fn listening(option: &str, port: &Port) -> Result<TcpListener> {
    let address = port.local_addr()?;
    listen(port, BACKLOG).with_context(|| format!("cannot listen on {option}={address}")).context(Code::Address)?;
    Ok(TcpListener::from_std(port.try_clone()?)?)
}

/// Binds the first of the addresses that can be bound.
fn bound(option: &str, addresses: &[SocketAddr]) -> Result<Port> {
    let open = |address: SocketAddr| {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        // As tokio's own listeners do: a restart need not wait for leftover connections of the last process.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &address)?;
        Ok(Port::from(socket))
    };
    let mut failed = anyhow!("there is no address: option={option}");
    for &address in addresses {
        match open(address) {
            Ok(port) => return Ok(port),
            Err(error) => {
                let error: std::io::Error = error;
                failed = anyhow::Error::new(error).context(format!("cannot listen on {option}={address}"));
            }
        }
    }
    Err(failed)
}

/// Returns the addresses of an option that may not be given.
fn resolve_if(option: &str, address: Option<&str>) -> Result<Vec<SocketAddr>, Failed> {
    address.map_or(Ok(Vec::new()), |address| resolve(option, address))
}

fn resolve(option: &str, address: &str) -> Result<Vec<SocketAddr>, Failed> {
    let named = || format!("cannot use {option}={address:?}: expected HOST:PORT");
    let found: Vec<_> = match address.to_socket_addrs() {
        Ok(found) => found.collect(),
        // The text is not of this form. Every other error is the resolver's, which may know the name a moment later.
        Err(error) if error.kind() == Io::InvalidInput => {
            return Err(Failed::wrong(anyhow::Error::new(error).context(named()).context(Code::Address)));
        }
        Err(error) => return Err(anyhow::Error::new(error).context(named()).context(Code::Address).into()),
    };
    if found.is_empty() {
        return Err(anyhow!("the name has no address: {option}={address:?}").context(Code::Address).into());
    }
    Ok(found)
}

/// Whether a socket on one of these addresses keeps one of those from being bound.
fn collide(these: &[SocketAddr], those: &[SocketAddr]) -> bool {
    let same = |this: &SocketAddr, that: &SocketAddr| {
        let any = this.ip().is_unspecified() || that.ip().is_unspecified();
        this.port() == that.port() && this.port() != 0 && (any || this.ip() == that.ip())
    };
    these.iter().any(|this| those.iter().any(|that| same(this, that)))
}

fn loopback(addresses: &[SocketAddr]) -> bool {
    addresses.iter().all(|address| address.ip().to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::super::{AccessGiven, GrpcGiven, HttpGiven, RedisGiven, WebGiven};
    use super::*;
    use crate::base::setting::Given as _;

    fn addresses(listen: &str, metrics: &str, insecure: bool) -> Result<Addresses, Failed> {
        with_more(listen, metrics, [None; 2], insecure)
    }

    /// With the addresses of the Redis protocol and of lookups over HTTP.
    fn with_more(listen: &str, metrics: &str, more: [Option<&str>; 2], insecure: bool) -> Result<Addresses, Failed> {
        let [redis, http] = more.map(|address| address.map(str::to_owned));
        let redis = RedisGiven { redis, ..RedisGiven::default() }.in_effect().unwrap();
        let web = WebGiven { http, ..WebGiven::default() }.in_effect().unwrap();
        let grpc = GrpcGiven { listen: Some(listen.into()), ..GrpcGiven::default() }.in_effect().unwrap();
        let http = HttpGiven { metrics: Some(metrics.into()) }.in_effect().unwrap();
        let access = AccessGiven { insecure: Some(insecure), ..AccessGiven::default() }.in_effect().unwrap();
        let settings = Settings { grpc: &grpc, redis: &redis, web: &web, http: &http, access: &access };
        Addresses::of(settings, &Access::open(&access).unwrap())
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
            let metrics = other.replace("7400", "7401");
            assert_eq!(addresses(other, &metrics, true).unwrap().listen.len(), 1);
        }
    }

    #[test]
    fn lookups_over_other_protocols_have_the_same_rule_and_ports_of_their_own() {
        for (n, key) in ["redis", "http"].into_iter().enumerate() {
            let with = |address, insecure| {
                let mut more = [None; 2];
                more[n] = Some(address);
                with_more("127.0.0.1:7400", "127.0.0.1:7401", more, insecure)
            };
            let found = |addresses: &Addresses| [&addresses.redis, &addresses.web][n].len();
            assert_eq!(found(&with("127.0.0.1:7402", false).unwrap()), 1);
            assert_eq!(found(&addresses("127.0.0.1:7400", "127.0.0.1:7401", false).unwrap()), 0);
            for (address, says) in [
                ("0.0.0.0:7402", format!("{key}=0.0.0.0:7402 is not loopback; give --tls-cert")),
                ("127.0.0.1:7400", format!("listen=127.0.0.1:7400 {key}=127.0.0.1:7400")),
                ("127.0.0.1:7401", format!("metrics=127.0.0.1:7401 {key}=127.0.0.1:7401")),
                ("nowhere", format!("cannot use {key}=")),
            ] {
                let error = with(address, false).unwrap_err().to_string();
                assert!(error.contains(&says), "{error}");
            }
            assert_eq!(found(&with("0.0.0.0:7402", true).unwrap()), 1);
        }
    }

    #[test]
    fn wrong_or_equal_addresses_can_never_work() {
        for (listen, metrics, says) in [
            ("nowhere", "127.0.0.1:0", "cannot use listen=\"nowhere\": expected HOST:PORT"),
            ("127.0.0.1:0", "127.0.0.1:99999", "cannot use metrics="),
            ("127.0.0.1:7400", "127.0.0.1:7400", "cannot share a port"),
        ] {
            let failed = addresses(listen, metrics, false).unwrap_err();
            assert!(failed.code() == 2 && failed.to_string().contains(says), "{failed}");
        }
        let failed = addresses("0.0.0.0:7400", "127.0.0.1:7400", true).unwrap_err();
        assert!(failed.to_string().contains("cannot share a port"), "{failed}");
    }
}
