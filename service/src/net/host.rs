//! Host names that HTTP requests may use. This defends against DNS rebinding: an attacker's page whose own name
//! resolves to this machine must not read from the service through its visitor's browser.
//!
//! Owns: this rule. Must not: decide who may connect. Threads: the network edge.
//!
//! A browser sends the name in its address bar. An attacker can make their own name resolve to any address. They cannot
//! make a browser send an IP address or a name of somebody else.
//!
//! gRPC needs no such rule. It answers only requests with the method POST and a content type of gRPC, and a browser
//! asks before it sends those to another site.

use std::net::{Ipv4Addr, Ipv6Addr};

use http::uri::Authority;
use http::{Request, StatusCode, Version, header};

use super::host_name;

/// Longest part of a refused name in the answer, in characters.
const SHOWN_MAX: usize = 100;

/// Host names that are answered, in addition to those that no attacker can own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosts {
    /// The setting in which a name is given.
    setting: &'static str,
    names: Vec<String>,
}

impl Hosts {
    /// Collects the name in the address that a setting has, and the machine's own name.
    pub(crate) fn new(setting: &'static str, address: &str) -> Self {
        let listened = address.rsplit_once(':').map_or(address, |(name, _)| name);
        let own = host_name();
        let own = own.iter().flat_map(|own| [own.as_str(), own.split('.').next().unwrap_or_default()]);
        let names = [listened].into_iter().chain(own);
        Self { setting, names: names.map(plain).filter(|name| !name.is_empty()).collect() }
    }

    /// Whether a request for this host, with or without a port, is answered.
    fn answers(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else { return false };
        // `Authority` accepts any text as a port, after the address in brackets or the first colon.
        let port = authority.as_str().strip_prefix(authority.host());
        let is_port =
            |port: &str| port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
        if !port.is_some_and(is_port) {
            return false;
        }
        let host = plain(authority.host());
        let six = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        host.parse::<Ipv4Addr>().is_ok()
            || six.is_some_and(|host| host.parse::<Ipv6Addr>().is_ok())
            || host == "localhost"
            // Browsers themselves resolve these names to this machine (RFC 6761).
            || host.ends_with(".localhost")
            || self.names.contains(&host)
    }

    /// Refuses a request for another host, with a status and a text. A request without a host is answered where HTTP allows that,
    /// before version 1.1; every browser names one.
    ///
    /// # Errors
    /// The request is for a host that an attacker may own, or names none.
    pub(crate) fn check<B>(&self, request: &Request<B>) -> Result<(), (StatusCode, String)> {
        if request.version() == Version::HTTP_11 && !request.headers().contains_key(header::HOST) {
            let message = "the request names no host, which HTTP/1.1 requires".to_owned();
            return Err((StatusCode::BAD_REQUEST, message));
        }
        let named = request.headers().get_all(header::HOST).iter().map(|host| host.to_str().ok());
        let in_line = request.uri().authority().map(|authority| Some(authority.as_str()));
        let foreign = named.chain(in_line).find(|host| !host.is_some_and(|host| self.answers(host)));
        let Some(foreign) = foreign else { return Ok(()) };
        let shown: String = foreign.unwrap_or_default().chars().take(SHOWN_MAX).collect();
        let message = format!(
            "this service does not answer to host={shown:?}: ask for its IP address, or listen under this name with the \
             setting {}; a proxy has to ask for the IP address or localhost",
            self.setting
        );
        Err((StatusCode::MISDIRECTED_REQUEST, message))
    }
}

/// Returns a name in the form in which names are compared: in lower case, without a final dot.
fn plain(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_an_attacker_may_own_are_not_answered_to() {
        let hosts = Hosts::new("metrics", "solkv.example:7401");
        let own = host_name().unwrap();
        for host in [
            "127.0.0.1:7401",
            "192.0.2.1",
            "[::1]:7401",
            "[2001:db8::1]",
            "localhost:7401",
            "LocalHost.",
            "a.localhost",
            "solkv.example:80",
            "SOLKV.EXAMPLE.",
            &own,
        ] {
            assert!(hosts.answers(host), "{host}");
        }
        for host in [
            "evil.example",
            "solkv.example.evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evil-localhost",
            "localhost@evil.example",
            "[::1].evil.example",
            "[::1].evil.example:80",
            "[::1]evil.example",
            "localhost:evil",
            "localhost:80:80",
            "localhost:99999",
            "127.0.0.1:evil.example",
            "evil.example@127.0.0.1",
            "0x7f.1",
            "",
            "a b",
        ] {
            assert!(!hosts.answers(host), "{host}");
        }
    }
}
