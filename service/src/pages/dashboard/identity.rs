//! Identity of the service that a dashboard shows. Several look alike, and an operator must act on the right one.
//!
//! Owns: these words. Must not: show any part of a URL except host and port, because the rest may hold a key. Threads:
//! any.

use serde::Serialize;

use crate::config::Config;
use crate::net::host_name;

/// The words that tell one service from another.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Identity {
    host: String,
    dir: String,
    /// The setting `extract`: the value taken from an account.
    extract: String,
    /// The setting `commitment`: the commitment at which a slot is applied.
    commitment: String,
    /// The setting `durability`: the failures that a commit survives.
    durability: String,
    provider: String,
}

impl Identity {
    /// Returns the identity of the service with this configuration.
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            host: host_name().unwrap_or_default(),
            dir: config.store.dir.display().to_string(),
            extract: word(config.stream.extract),
            commitment: word(config.stream.commitment),
            durability: word(config.engine_use.durability),
            provider: config.stream.geyser.iter().map(|geyser| provider(&geyser.url)).collect::<Vec<_>>().join(", "),
        }
    }
}

/// Returns a setting as the configuration spells it.
fn word(setting: impl Serialize) -> String {
    serde_json::to_value(setting).ok().and_then(|word| Some(word.as_str()?.to_owned())).unwrap_or_default()
}

fn provider(url: &str) -> String {
    let Ok(url) = url.parse::<http::Uri>() else { return String::new() };
    let port = url.port_u16().map_or_else(String::new, |port| format!(":{port}"));
    format!("{}{port}", url.host().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    #[test]
    fn what_is_shown_of_a_provider_is_host_and_port() {
        let url = "https://user:s3cret@geyser.example:8443/APIKEY?token=s3cret";
        let settings: Settings =
            format!("dir = \"/data\"\nextract = \"account-owner\"\ngeyser = \"{url}\"").parse().unwrap();
        let identity = serde_json::to_string(&Identity::of(&settings.resolve().unwrap())).unwrap();
        assert!(identity.contains("\"provider\":\"geyser.example:8443\""), "{identity}");
        assert!(!identity.contains("s3cret") && !identity.contains("APIKEY"), "{identity}");
        assert!(
            identity.contains("\"dir\":\"/data\"") && identity.contains("\"commitment\":\"confirmed\""),
            "{identity}"
        );
        assert!(identity.contains("\"extract\":\"account-owner\""), "{identity}");
        assert_eq!([provider("http://[::1]:10000"), provider("not a url")], ["[::1]:10000", ""]);
    }
}
