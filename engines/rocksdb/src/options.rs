//! The two options of RocksDB that have a flag of their own: the filter and the profile.
//!
//! Owns: their names, their values, and the rule by which a store keeps them. Must not: know RocksDB's settings. Threads: none.

use engine_api::{Error, ErrorKind, Options, Result, Settings};

use crate::{Profile, set};

pub(crate) const BLOOM: &str = "bloom";
pub(crate) const PROFILE: &str = "profile";
/// Largest number of filter bits per key. More bits gain nothing: a false positive costs one read, and 20 bits leave
/// one in 6000.
const BLOOM_BITS_MAX: u32 = 32;

/// Returns the profile; RocksDB's defaults if none is named.
pub(crate) fn profile(options: &Options) -> Profile {
    Profile::of(options.get(PROFILE).map_or("", String::as_str))
}

/// Returns the bits per key of the filter; 0 is none.
pub(crate) fn bloom_bits(options: &Options) -> u32 {
    options.get(BLOOM).and_then(|bits| bits.parse().ok()).unwrap_or(0)
}

/// Returns the label of a store with this profile, whose files have filters or not.
pub(crate) fn label(profile: Profile, is_filtered: bool) -> &'static str {
    match (profile, is_filtered) {
        (Profile::Memory, _) => "rocksdb_memory",
        (Profile::Tuned, _) => "rocksdb_tuned",
        (Profile::Vanilla, true) => "rocksdb_bloom",
        (Profile::Vanilla, false) => "rocksdb",
    }
}

/// Refuses a filter of too many bits, and settings that RocksDB does not take.
pub(crate) fn check(settings: &Settings) -> Result<()> {
    let refuse = |message: String| Err(Error::new(ErrorKind::FixInput, message));
    match settings.options.get(BLOOM).map(|bits| (bits, bits.parse())) {
        None | Some((_, Ok(0..=BLOOM_BITS_MAX))) => set::check(profile(&settings.options), &settings.set),
        Some((bits, Ok(_))) => {
            refuse(format!("{BLOOM}={bits} is more than {BLOOM_BITS_MAX} bits per key: 10 to 20 are useful"))
        }
        Some((bits, Err(_))) => refuse(format!("{BLOOM}={bits}: give a number of bits per key")),
    }
}

/// Returns the profile and the filter. A store keeps both until others are given. A filter is also chosen anew with
/// another profile, unless the store has one.
pub(crate) fn kept(given: &Options, known: Option<&Options>) -> Options {
    let named = |name| given.get(name).or(known.and_then(|known| known.get(name)));
    let profile = Profile::of(named(PROFILE).map_or("", String::as_str));
    let held = known.filter(|known| bloom_bits(known) > 0 || self::profile(known) == profile).map(bloom_bits);
    let bits = match given.get(BLOOM) {
        Some(bits) => bits.clone(),
        None => held.unwrap_or(default_bloom_bits(profile)).to_string(),
    };
    Options::from([(BLOOM.to_owned(), bits), (PROFILE.to_owned(), profile.as_str().to_owned())])
}

/// Returns the bits per key of a new store's filter: none for RocksDB's defaults, one false positive in 6000 for a store
/// in memory, one in a hundred under a memory cap.
fn default_bloom_bits(profile: Profile) -> u32 {
    match profile {
        Profile::Vanilla => 0,
        Profile::Memory => 20,
        Profile::Tuned => 10,
    }
}
