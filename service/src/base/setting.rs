//! The table of a group of settings. One row says all that there is to know about a setting.
//!
//! Owns: the form of such a table, [`settings!`], and the check of bounds. Must not: know any setting. Runs on `main`.
//!
//! A table stands with the code that obeys its settings:
//!
//! ```text
//! settings! {
//!     /// Limits beyond which the service is not ready.
//!     pub struct Limits from LimitsGiven {
//!         /// Not ready once the newest applied slot is older than this [default: 10s]
//!         #[arg(value_name = "DURATION", value_parser = humantime::parse_duration)]
//!         #[serde(with = "crate::base::setting::duration")]
//!         max_lag: Duration = Duration::from_secs(10), within MILLISECOND..=DAY;
//!     }
//! }
//! ```
//!
//! It makes `Limits`, the settings in effect, and `LimitsGiven`, those that the file or the flags give. A row has, in
//! this order: the help of the flag; attributes of clap and serde; the setting's name, which is its key in the file, its
//! flag with - for _, and its field in both structs; its type; its default; its bounds. A setting without a default is
//! an `Option` in effect as well. A default may name settings of the rows above it, and may end with an error. Rules
//! about several settings are the method `check` of a group, or of the configuration.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Result, bail};
use bytesize::ByteSize;
use serde::de::{Deserializer, Error, Visitor};

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
pub(crate) const DAY: Duration = Duration::from_secs(24 * 3600);

/// Shortest time to wait for a peer on a network; with a shorter one no answer would ever come in time.
pub(crate) const WAIT_MIN: Duration = Duration::from_millis(10);

/// The settings of one group that the file or the flags give; `None` for those left out.
pub trait Given: Sized {
    /// The settings of the group in effect.
    type InEffect;

    /// The settings' names, in the order of the help.
    const KEYS: &'static [&'static str];

    /// Merges two sets of settings: one that this set leaves out is taken from `file`.
    #[must_use]
    fn or(self, file: Self) -> Self;

    /// Checks the bounds and fills in the defaults.
    ///
    /// # Errors
    /// A setting is out of its bounds, or is left out and has no default.
    fn in_effect(self) -> Result<Self::InEffect>;

    /// Gives every setting as it is in effect.
    fn of(settings: &Self::InEffect) -> Self;
}

/// A value that may have bounds.
pub(crate) trait Bounded: PartialOrd {
    /// Returns the value as the file and the flags spell it.
    fn shown(&self) -> String;
}

impl Bounded for Duration {
    fn shown(&self) -> String {
        humantime::format_duration(*self).to_string()
    }
}

macro_rules! bounded {
    ($($type:ty)+) => { $(impl Bounded for $type { fn shown(&self) -> String { self.to_string() } })+ };
}
bounded!(u8 u32 u64 ByteSize);

/// Checks a setting that is given. A bound excludes values that nobody can mean: with such a value the service would
/// run out of memory, reconnect without end, or never do the work that the setting is for.
///
/// # Errors
/// The value is out of the bounds; the error names them, and as an example the default, if there is one.
pub(crate) fn check<T: Bounded>(key: &str, given: Option<&T>, within: RangeInclusive<T>, default: &[T]) -> Result<()> {
    let Some(given) = given.filter(|given| !within.contains(given)) else { return Ok(()) };
    let such = default.first().map_or_else(String::new, |default| format!(", such as {}", default.shown()));
    bail!("{key}={}: give {} to {}{such}", given.shown(), within.start().shown(), within.end().shown())
}

/// Reads a count from the file: a number, or text as the flag takes it, such as "10k".
pub(crate) fn count<'de, D: Deserializer<'de>, T: TryFrom<u64>>(from: D) -> Result<Option<T>, D::Error> {
    from.deserialize_any(Written("a number, such as 10000 or \"10k\"", bootstrap::count)).map(Some)
}

/// Reads a size from the file: a number of bytes, or text as the flag takes it, such as "4GiB".
pub(crate) fn size<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ByteSize>, D::Error> {
    from.deserialize_any(Written("a size, such as \"512MB\" or \"4GiB\"", engines::size)).map(Some)
}

/// Reads and writes a duration in the file, as text that the flag takes.
pub(crate) mod duration {
    use std::time::Duration;

    pub(crate) use humantime_serde::serialize;
    use serde::de::Deserializer;

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        let parse = |text: &str| humantime::parse_duration(text).map_err(|e| format!("not a duration: {text:?}: {e}"));
        from.deserialize_any(super::Written("a duration, such as \"10s\" or \"1h\"", parse)).map(Some)
    }
}

/// The description of a value, and the parser of its flag.
struct Written<T>(&'static str, fn(&str) -> Result<T, String>);

impl<T> Visitor<'_> for Written<T> {
    type Value = T;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.1)(text).map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

/// Whether a list holds nothing; such a list is not written.
pub(crate) fn is_empty(list: &Option<Vec<String>>) -> bool {
    list.as_ref().is_none_or(Vec::is_empty)
}

/// Makes the two structs of a group of settings from its table, which the module describes. With `struct` it defines
/// the one of the settings in effect; without, that one is defined elsewhere with the same fields.
macro_rules! settings {
    ($(#[$about:meta])* pub struct $name:ident from $given:ident { $(
        $(#[doc = $help:tt])* $(#[arg($($arg:tt)*)])? $(#[serde($($serde:tt)*)])?
        $key:ident: $type:ty $(= $default:expr)? $(, within $range:expr)?;
    )+ }) => {
        $(#[$about])*
        #[derive(Clone, Debug)]
        pub struct $name { $($(#[doc = $help])* pub $key: $crate::base::setting::settings!(@type $type $(, $default)?),)+ }
        $crate::base::setting::settings! { $name from $given { $(
            $(#[doc = $help])* $(#[arg($($arg)*)])? $(#[serde($($serde)*)])?
            $key: $type $(= $default)? $(, within $range)?;
        )+ } }
    };
    ($name:ident from $given:ident { $(
        $(#[doc = $help:tt])* $(#[arg($($arg:tt)*)])? $(#[serde($($serde:tt)*)])?
        $key:ident: $type:ty $(= $default:expr)? $(, within $range:expr)?;
    )+ }) => {
        #[doc = concat!("The settings of [`", stringify!($name), "`] that the file or the flags give.")]
        #[derive(clap::Args, Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
        #[group(skip)]
        #[serde(default)]
        pub struct $given { $(
            $(#[doc = $help])* #[arg(long, $($($arg)*)?)] $(#[serde($($serde)*)])?
            pub $key: Option<$type>,
        )+ }

        impl $crate::base::setting::Given for $given {
            type InEffect = $name;
            const KEYS: &'static [&'static str] = &[$(stringify!($key)),+];

            fn or(self, file: Self) -> Self {
                Self { $($key: self.$key.or(file.$key)),+ }
            }

            fn in_effect(self) -> anyhow::Result<$name> {
                $(
                    $crate::base::setting::settings!(@check $key, self.$key.as_ref(), [$($default)?], [$($range)?]);
                    let $key = $crate::base::setting::settings!(@in_effect self.$key $(, $default)?);
                )+
                Ok($name { $($key),+ })
            }

            fn of(settings: &$name) -> Self {
                Self { $($key: $crate::base::setting::settings!(@given settings.$key.clone() $(, $default)?)),+ }
            }
        }
    };
    (@type $type:ty) => { Option<$type> };
    (@type $type:ty, $default:expr) => { $type };
    (@check $key:ident, $given:expr, [$($default:expr)?], []) => {};
    (@check $key:ident, $given:expr, [$($default:expr)?], [$range:expr]) => {
        $crate::base::setting::check(stringify!($key), $given, $range, &[$($default)?])?
    };
    (@in_effect $given:expr) => { $given };
    (@in_effect $given:expr, $default:expr) => { match $given { Some(given) => given, None => $default } };
    (@given $value:expr) => { $value };
    (@given $value:expr, $default:expr) => { Some($value) };
}
pub(crate) use settings;
