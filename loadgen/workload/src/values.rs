//! How often a value repeats: every pair has its own, or pairs share owners.
//!
//! Must not: know a pair's key. Plain values, used on any thread.

use std::fmt;
use std::str::FromStr;

use crate::count::count;
use crate::skew::Skew;

/// Largest number of owners. More of them would be no different from unique values.
const OWNERS_MAX: u64 = 1 << 40;

/// Kind of the values of synthetic pairs.
///
/// Wallets own many token accounts each, so the values of a map from account to owner repeat, and compression gains
/// from that. This project has no public list of the numbers of accounts that mainnet's wallets own. The 365 markets in
/// `bootstrap/tests/data` have 306 values, none of which occurs more than twice, but they are markets and not wallets.
/// So the benchmarks use a convention: `zipfian:0.99`, YCSB's exponent, over a tenth as many owners as pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Values {
    /// Each pair has a value of its own.
    #[default]
    Unique,
    /// A value is an owner. The owner of rank r has the weight `r^-exponent`.
    ///
    /// Ranks are computed with the platform's `pow`, whose last bit may differ between C libraries. Pairs of this kind
    /// are the same in all tools of a machine, and nearly all of them are the same on another machine.
    Zipfian {
        /// Exponent of the weights: over 0, not 1, under 10.
        exponent: f64,
        /// Number of owners, from 1 to 2^40.
        owners: u64,
    },
}

impl Values {
    /// Returns the number of owners and the distribution of picks over them; `None` for unique values.
    pub(crate) fn owners(self) -> Option<(u64, Skew)> {
        match self {
            Self::Unique => None,
            Self::Zipfian { exponent, owners } => Some((owners, Skew::Zipfian { exponent })),
        }
    }
}

impl FromStr for Values {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "unique" {
            return Ok(Self::Unique);
        }
        let bad = || {
            format!("not a kind of values: {text:?}: unique or zipfian:EXPONENT:OWNERS, for example zipfian:0.99:5M")
        };
        let (exponent, owners) = text.strip_prefix("zipfian:").and_then(|rest| rest.split_once(':')).ok_or_else(bad)?;
        let exponent: f64 = exponent.parse().map_err(|_| bad())?;
        let owners = count(owners).map_err(|_| bad())?;
        let is_exponent = exponent > 0.0 && exponent != 1.0 && exponent < 10.0;
        if !is_exponent || !(1..=OWNERS_MAX).contains(&owners) {
            return Err(format!(
                "{}; the exponent is over 0, not 1 and under 10, and there are 1 to {OWNERS_MAX} owners",
                bad()
            ));
        }
        Ok(Self::Zipfian { exponent, owners })
    }
}

/// Writes the form that is parsed, with the number of owners in digits.
impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unique => f.write_str("unique"),
            Self::Zipfian { exponent, owners } => write!(f, "zipfian:{exponent}:{owners}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_as_they_are_written() {
        assert_eq!("unique".parse(), Ok(Values::Unique));
        let zipfian = Values::Zipfian { exponent: 0.99, owners: 5_000_000 };
        assert_eq!("zipfian:0.99:5M".parse(), Ok(zipfian));
        assert_eq!(zipfian.to_string().parse(), Ok(zipfian));
    }

    #[test]
    fn anything_else_is_told() {
        for text in ["", "zipfian", "zipfian:0.99", "zipfian:1:10", "zipfian:0:10", "zipfian:nan:10", "zipfian:0.9:0"] {
            assert!(text.parse::<Values>().unwrap_err().starts_with("not a kind of values"), "{text}");
        }
    }
}
