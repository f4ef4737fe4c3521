//! The setting `geyser`: the providers of the stream, each as a URL or as a table.
//!
//! Owns: the keys of such a table. Must not: check a value; `settings` does. Runs on `main`.

use std::fmt;
use std::path::PathBuf;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::upstream::Compression;

/// One provider. A setting that is left out is taken from the setting of the service as a whole; secrets and
/// certificates only by the first provider, so that no provider is sent the token of another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Geyser {
    pub url: String,
    pub x_token_file: Option<PathBuf>,
    pub x_token_header: Option<String>,
    pub ca: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub compression: Option<Compression>,
}

impl From<String> for Geyser {
    fn from(url: String) -> Self {
        Self { url, ..Self::default() }
    }
}

/// A provider of a list, which is a URL or a table.
struct Listed(Geyser);

impl<'de> Deserialize<'de> for Listed {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(OneProvider).map(Self)
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
        Geyser::deserialize(MapAccessDeserializer::new(map))
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
        let listed = Vec::<Listed>::deserialize(SeqAccessDeserializer::new(all))?;
        Ok(listed.into_iter().map(|Listed(provider)| provider).collect())
    }
}

/// Reads the setting: one provider or a list of them.
pub(super) fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<Geyser>>, D::Error> {
    from.deserialize_any(AllProviders).map(Some)
}

/// Writes the setting: a single URL as text, everything else as a list of tables.
pub(super) fn write<S: Serializer>(all: &Option<Vec<Geyser>>, to: S) -> Result<S::Ok, S::Error> {
    match all.as_deref() {
        Some([one]) if *one == Geyser::from(one.url.clone()) => to.serialize_str(&one.url),
        all => all.serialize(to),
    }
}
