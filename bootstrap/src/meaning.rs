//! The meaning of a store's pairs: stated at the load, kept in the store's marker, and compared with every service that
//! opens it.
//!
//! Owns: the words of the command line. Must not: read accounts; the crate `solkv-solana` takes the values from them.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use engines::Holds;
use solana::Extract;

/// The meaning of the pairs and the name of their chain.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct MeaningArgs {
    /// Meaning of the values; a service with another --extract is refused [default: none is recorded]
    ///
    /// A snapshot archive needs it, because it names the part of an account that becomes the value. A store that was
    /// loaded without it records the --extract of the first service that opens it, which has to be given one.
    #[arg(long, value_name = "EXTRACT", value_parser = extraction())]
    pub(crate) extract: Option<Extract>,
    /// Your name for the chain that the pairs come from, such as mainnet; a service that names another is refused
    #[arg(long, value_name = "NAME")]
    pub(crate) cluster: Option<String>,
}

/// Parses the name of an extraction, and gives every name with its help.
pub fn extraction() -> impl TypedValueParser<Value = Extract> {
    let values = Extract::ALL.map(|extract| PossibleValue::new(extract.name()).help(extract.about()));
    PossibleValuesParser::new(values).try_map(|name| name.parse::<Extract>())
}

impl MeaningArgs {
    /// The entry for the store's marker. It names no programs, because the service decides which programs' accounts it
    /// follows.
    pub(crate) fn holds(&self) -> Holds {
        let extract = self.extract.map(|extract| extract.name().to_owned());
        Holds { extract, cluster: self.cluster.clone(), ..Holds::default() }
    }
}
