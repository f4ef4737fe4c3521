//! The script of the provider: acts and the seconds that each lasts.
//!
//! Owns: the script's syntax. Must not: know the meaning of an act.

use std::str::FromStr;

use anyhow::{Context as _, Result, ensure};

use super::act::Act;

/// Acts of the server, and the seconds that each lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script(Vec<(Act, u64)>);

impl FromStr for Script {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let acts: Result<Vec<_>> = text.split(',').map(step).collect();
        let acts = acts?;
        ensure!(acts.iter().map(|(_, seconds)| seconds).sum::<u64>() > 0, "the script takes no time: acts={text:?}");
        Ok(Self(acts))
    }
}

fn step(text: &str) -> Result<(Act, u64)> {
    let (name, seconds) = text.split_once('=').with_context(|| format!("not ACT=SECONDS: {text:?}"))?;
    let act = Act::named(name.trim()).with_context(|| format!("no such act: {name:?}; see --help"))?;
    Ok((act, seconds.trim().parse().with_context(|| format!("not a number of seconds: {seconds:?}"))?))
}

impl Script {
    /// Returns the act at a second, and whether it begins there.
    pub(super) fn at(&self, second: u64) -> (Act, bool) {
        let mut left = second % self.0.iter().map(|(_, seconds)| seconds).sum::<u64>();
        for (act, seconds) in &self.0 {
            if left < *seconds {
                return (*act, left == 0);
            }
            left -= seconds;
        }
        (Act::Serves, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_starts_over() {
        let script: Script = "pings=2,lags=3".parse().unwrap();
        let acts: Vec<_> = (0..7).map(|second| script.at(second)).collect();
        let (pings, lags) = (Act::Pings, Act::Lags);
        let expected =
            [(pings, true), (pings, false), (lags, true), (lags, false), (lags, false), (pings, true), (pings, false)];
        assert_eq!(acts, expected);
        for wrong in ["", "pings", "sings=3", "pings=x", "pings=0"] {
            assert!(wrong.parse::<Script>().is_err(), "{wrong}");
        }
    }
}
