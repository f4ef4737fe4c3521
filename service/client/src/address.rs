//! Addresses of a service: the part before `://` chooses the transport. Without that part it is gRPC on TCP.
//!
//! Owns: the forms of an address. Must not: connect.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use http::Uri;

use crate::error::Error;

/// A parsed address of a service, with the transport that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `shm:///path`: shared memory, handed over on the socket at this path.
    Shm(PathBuf),
    /// `unix:///path`: gRPC on the socket at this path.
    Unix(PathBuf),
    /// `http://host:port` or `https://host:port`: gRPC on TCP, without or with TLS.
    Tcp(Uri),
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
            Some(("http" | "https", _)) => {
                let uri = Uri::from_str(text).map_err(|error| wrong(&error.to_string()))?;
                if uri.port().is_none() {
                    return Err(wrong("it names no port"));
                }
                Ok(Self::Tcp(uri))
            }
            None if text.contains(':') => format!("http://{text}").parse(),
            _ => Err(wrong("it names no transport that is known")),
        }
    }
}

impl Address {
    /// Whether a network could read the traffic to this address: plain `http` to another machine.
    pub(crate) fn is_exposed(&self) -> bool {
        let Self::Tcp(uri) = self else { return false };
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let loopback = host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
        uri.scheme_str() == Some("http") && !loopback
    }

    pub(crate) fn has_tls(&self) -> bool {
        matches!(self, Self::Tcp(uri) if uri.scheme_str() == Some("https"))
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
        assert!(matches!("https://h:1".parse::<Address>().unwrap(), Address::Tcp(_)));
        assert_eq!("h:1".parse::<Address>().unwrap(), "http://h:1".parse().unwrap());
        for wrong in ["h", "h:", "h:port", "shm://name", "unix:/a", "http://h", "ftp://h:1", "http://h:99999", ""] {
            let error = wrong.parse::<Address>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadInput, "{wrong}");
            assert!(error.to_string().contains("expected="), "{error}");
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
