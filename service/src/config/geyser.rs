//! The setting `geyser`: the providers of the stream, each as a URL or as a table.
//!
//! Owns: the keys of such a table. Must not: check a value; `resolve` does. Runs on `main`.

use std::fmt;
use std::path::PathBuf;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::ingest::provider::Compression;

/// One provider. A setting that is left out is taken from the setting of the service as a whole; secrets and
/// certificates only by the first provider, so that no provider is sent the token of another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Geyser {
    pub url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub x_token_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub x_token_header: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
}

impl From<String> for Geyser {
    fn from(url: String) -> Self {
        Self { url, ..Self::default() }
    }
}

/// The keys of a provider's table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    url: String,
    x_token_file: Option<PathBuf>,
    x_token_header: Option<String>,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    compression: Option<Compression>,
}

impl<'de> Deserialize<'de> for Geyser {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(OneProvider)
    }
}

struct OneProvider;

impl<'de> Visitor<'de> for OneProvider {
    type Value = Geyser;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a URL, or a table with url")
    }

    fn visit_str<E: Error>(self, url: &str) -> Result<Geyser, E> {
        Ok(url.to_owned().into())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Geyser, A::Error> {
        let Table { url, x_token_file, x_token_header, ca, cert, key, compression } =
            Table::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Geyser { url, x_token_file, x_token_header, ca, cert, key, compression })
    }
}

struct AllProviders;

impl<'de> Visitor<'de> for AllProviders {
    type Value = Vec<Geyser>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a URL, or a list of URLs or tables with url")
    }

    fn visit_str<E: Error>(self, url: &str) -> Result<Vec<Geyser>, E> {
        OneProvider.visit_str(url).map(|one| vec![one])
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Vec<Geyser>, A::Error> {
        OneProvider.visit_map(map).map(|one| vec![one])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, all: A) -> Result<Vec<Geyser>, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(all))
    }
}

/// Reads the setting: one provider or a list of them.
pub(super) fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<Geyser>>, D::Error> {
    from.deserialize_any(AllProviders).map(Some)
}

/// Writes the setting of a file or of flags.
pub(super) fn write_given<S: Serializer>(all: &Option<Vec<Geyser>>, to: S) -> Result<S::Ok, S::Error> {
    match all {
        Some(all) => write(all, to),
        None => to.serialize_none(),
    }
}

/// Writes the setting: a single URL as text, everything else as a list of tables.
pub(super) fn write<S: Serializer>(all: &[Geyser], to: S) -> Result<S::Ok, S::Error> {
    match all {
        [one] if *one == Geyser::from(one.url.clone()) => to.serialize_str(&one.url),
        all => all.serialize(to),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Settings;

    fn resolve(text: &str) -> anyhow::Result<super::super::Config> {
        toml::from_str::<Settings>(&format!("dir = \"/a\"\n{text}"))?.resolve()
    }

    #[test]
    fn one_url_a_list_and_tables_are_the_same_setting() {
        for (text, urls) in [
            ("geyser = \"http://a:1\"", vec!["http://a:1"]),
            ("geyser = [\"http://a:1\", \"http://b:2\"]", vec!["http://a:1", "http://b:2"]),
            ("[geyser]\nurl = \"http://a:1\"", vec!["http://a:1"]),
            ("[[geyser]]\nurl = \"http://a:1\"\n[[geyser]]\nurl = \"http://b:2\"", vec!["http://a:1", "http://b:2"]),
        ] {
            let config = resolve(text).unwrap();
            assert_eq!(config.providers().into_iter().map(|of| of.url).collect::<Vec<_>>(), urls, "{text}");
            let shown = toml::to_string(&config).unwrap();
            let again = toml::from_str::<Settings>(&shown).unwrap().resolve().unwrap();
            assert_eq!((again.geyser, toml::to_string(&config).unwrap()), (config.geyser, shown), "{text}");
        }
    }

    #[test]
    fn a_token_is_of_one_provider() {
        let text = "x_token_file = \"/t/1\"\nx_token_header = \"authorization\"\ngeyser_ca = \"/t/ca\"\n\
                    [[geyser]]\nurl = \"https://a\"\n[[geyser]]\nurl = \"https://b\"\nx_token_file = \"/t/2\"\n\
                    [[geyser]]\nurl = \"https://c\"\nx_token_header = \"x-key\"";
        let all = resolve(text).unwrap().providers();
        let of = |index: usize| (all[index].token_file.as_deref(), all[index].token_header.as_str());
        let file = |name: &'static str| Some(std::path::Path::new(name));
        assert_eq!(of(0), (file("/t/1"), "authorization"));
        assert_eq!(of(1), (file("/t/2"), "authorization"));
        assert_eq!(of(2), (None, "x-key"));
        assert_eq!(all.iter().filter(|of| of.ca.is_some()).count(), 1);
    }

    #[test]
    fn a_wrong_provider_is_named() {
        for (text, why) in [
            ("geyser = []", "no stream"),
            ("geyser = [\"http://a:1\", \"ftp://b\"]", "ftp://b"),
            ("geyser = [\"http://a:1\", \"http://a:1\"]", "twice"),
            ("geyser = [\"http://a:1\", \"http://b:0\"]", "1 to 65535"),
            ("[[geyser]]\nurl = \"http://a:1\"\ntoken = \"s\"", "unknown field `token`"),
            ("[[geyser]]\nca = \"/a\"", "missing field `url`"),
            ("geyser = 5", "a URL, or a list"),
            ("[[geyser]]\nurl = \"https://a\"\n[[geyser]]\nurl = \"https://b\"\ncert = \"/c\"", "go together"),
            ("[[geyser]]\nurl = \"https://a\"\n[[geyser]]\nurl = \"http://b\"\nca = \"/c\"", "https://"),
        ] {
            let said = format!("{:#}", resolve(text).unwrap_err());
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
