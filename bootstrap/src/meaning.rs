//! The meaning of a store's pairs: stated at the load, kept in the store's marker, and compared with every service that
//! opens it.
//!
//! Owns: the words of the command line. Must not: read accounts; the crate `solana` takes the values from them.

use engines::Holds;

/// What the pairs mean.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct MeaningArgs {
    /// What the values are; a service with another --extract is refused [default: what the first service says]
    ///
    /// Needed for a snapshot archive, of whose accounts it takes the values. Without it the store takes the meaning that the
    /// first service started on it is told, and keeps that one.
    #[arg(long, value_enum, value_name = "EXTRACT")]
    pub(crate) extract: Option<Extract>,
    /// Your name for the chain that the pairs come from, such as mainnet; a service that names another is refused
    #[arg(long, value_name = "NAME")]
    pub(crate) cluster: Option<String>,
}

/// Meaning of a value. The names are those of the service's setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Extract {
    /// The program that owns the account.
    AccountOwner,
    /// The wallet that owns the token account.
    TokenOwner,
    /// The mint of the token account.
    TokenMint,
}

impl From<Extract> for solana::Extract {
    fn from(extract: Extract) -> Self {
        match extract {
            Extract::AccountOwner => Self::AccountOwner,
            Extract::TokenOwner => Self::TokenOwner,
            Extract::TokenMint => Self::TokenMint,
        }
    }
}

impl MeaningArgs {
    /// The entry for the store's marker. It names no programs, because the service decides which programs' accounts it
    /// follows.
    pub(crate) fn holds(&self) -> Holds {
        let extract = self.extract().map(|extract| extract.name().to_owned());
        Holds { extract, programs: None, cluster: self.cluster.clone() }
    }

    /// Returns what the values are, if it was said.
    pub(crate) fn extract(&self) -> Option<solana::Extract> {
        self.extract.map(Into::into)
    }
}
