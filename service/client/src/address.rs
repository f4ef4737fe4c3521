//! Addresses of a service: the part before `://` chooses the transport. Without that part it is gRPC on TCP.
//!
//! Owns: the forms of an address. Must not: connect.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::Error;

/// A parsed address of a service, with the transport that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `shm:///path`: shared memory, handed over on the socket at this path.
    Shm(PathBuf),
    /// `unix:///path`: gRPC on the socket at this path.
    Unix(PathBuf),
    /// `http://host:port` or `https://host:port`: gRPC on TCP.
    Tcp {
        /// Whether TLS protects the connection: `https`.
        tls: bool,
        /// Name or address of the machine; an IPv6 address is in brackets.
        host: String,
        /// Port that the service listens on.
        port: u16,
    },
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shm(path) => write!(f, "shm://{}", path.display()),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp { tls: false, host, port } => write!(f, "http://{host}:{port}"),
            Self::Tcp { tls: true, host, port } => write!(f, "https://{host}:{port}"),
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |why: &str| {
            let forms = "shm:///PATH, unix:///PATH, HOST:PORT, http://HOST:PORT or https://HOST:PORT";
            Error::bad_input(format!("not an address: {why} address={text:?} expected={forms}"))
        };
        let path = |path: &str| {
            if path.starts_with('/') { Ok(PathBuf::from(path)) } else { Err(wrong("its path must be absolute")) }
        };
        match text.split_once("://") {
            Some(("shm", rest)) => path(rest).map(Self::Shm),
            Some(("unix", rest)) => path(rest).map(Self::Unix),
            Some((scheme @ ("http" | "https"), rest)) => {
                let named = rest.strip_suffix('/').unwrap_or(rest).rsplit_once(':');
                match named.and_then(|(host, port)| Some((host, port.parse().ok()?))) {
                    Some((host, port)) if !host.is_empty() => {
                        Ok(Self::Tcp { tls: scheme == "https", host: host.to_owned(), port })
                    }
                    _ => Err(wrong("it names no host or no port")),
                }
            }
            None if text.contains(':') => format!("http://{text}").parse(),
            _ => Err(wrong("it names no transport that is known")),
        }
    }
}

impl Address {
    /// Whether a network could read the traffic to this address: plain `http` to another machine.
    pub(crate) fn is_exposed(&self) -> bool {
        let Self::Tcp { tls: false, host, .. } = self else { return false };
        let host = host.trim_matches(['[', ']']);
        host != "localhost" && !host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
    }

    pub(crate) fn has_tls(&self) -> bool {
        matches!(self, Self::Tcp { tls: true, .. })
    }

    /// Returns the error of a client for an address whose transport was not compiled in.
    #[cfg(not(all(feature = "grpc", feature = "shm")))]
    pub(crate) fn left_out(&self) -> Error {
        let feature = if matches!(self, Self::Shm(_)) { "shm" } else { "grpc" };
        Error::bad_input(format!(
            "this program was built without the transport: address={self}; build solkv-client with its feature {feature}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn the_scheme_chooses_the_transport() {
        assert_eq!("shm:///a/b".parse::<Address>().unwrap(), Address::Shm("/a/b".into()));
        assert_eq!("unix:///a/b".parse::<Address>().unwrap(), Address::Unix("/a/b".into()));
        let tcp = |tls, host: &str| Address::Tcp { tls, host: host.to_owned(), port: 1 };
        assert_eq!("https://h:1".parse::<Address>().unwrap(), tcp(true, "h"));
        assert_eq!("http://[::1]:1/".parse::<Address>().unwrap(), tcp(false, "[::1]"));
        assert_eq!("h:1".parse::<Address>().unwrap(), "http://h:1".parse().unwrap());
        for wrong in
            ["h", "h:", "h:port", "shm://name", "unix:/a", "http://h", "ftp://h:1", "http://h:99999", "http://:1", ""]
        {
            let error = wrong.parse::<Address>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadInput, "{wrong}");
            assert!(error.to_string().contains("expected="), "{error}");
        }
    }

    #[test]
    fn an_address_is_shown_as_it_is_given() {
        for text in ["shm:///a/b", "unix:///a", "http://h:1", "https://[::1]:7400"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn plain_tcp_is_exposed_unless_it_stays_on_the_machine() {
        for (address, exposed) in [
            ("http://10.0.0.1:7400", true),
            ("10.0.0.1:7400", true),
            ("http://localhost:7400", false),
            ("http://127.0.0.1:7400", false),
            ("http://[::1]:7400", false),
            ("https://10.0.0.1:7400", false),
            ("unix:///a", false),
        ] {
            assert_eq!(address.parse::<Address>().unwrap().is_exposed(), exposed, "{address}");
        }
    }
}
