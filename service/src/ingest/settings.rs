//! The settings of the ingest: the providers of the stream, the values taken from it, commits, and reconnections.
//!
//! Owns: these settings, their bounds and their rules. Must not: open a file that a setting names. Runs on `main`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::extract::Extract;
use super::follow::{Follow, Selection};
use super::geyser::{self, Geyser};
use super::provider;
use super::providers::LANES_MAX;
use super::reads;
use super::subscribe::Commitment;
use crate::base::setting::{DAY, Given as _, HOUR, WAIT_MIN, settings};
use crate::feed::FRAME_CHANGES_MAX;
use crate::net::secrets;

/// Names of the systemd credentials of the stream, used where no setting names a file.
const TOKEN_CREDENTIAL: &str = "x-token";
const CA_CREDENTIAL: &str = "geyser-ca";
const CERT_CREDENTIAL: &str = "geyser-cert";
const KEY_CREDENTIAL: &str = "geyser-key";

/// Maximum number of providers: each is asked for its newest slot every two seconds.
const PROVIDERS_MAX: usize = 16;

/// Maximum number of keys looked up together: more than any slot of mainnet has, and a call takes the keys of one slot.
const INGEST_DEPTH_MAX: u32 = 1 << 16;

/// Shortest time without a slot that can be applied after which the stream is reconnected. A time below that of one slot would
/// reconnect without end.
const IDLE_MIN: Duration = Duration::from_millis(500);

/// Longest such time. A provider that restarts is back by then, and a pause of the chain costs one connection each time.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Another provider takes over from one that lags by more slots than this and does not catch up. These are twenty seconds:
/// the other one still has the slots between. With fewer, a pause of the network would cost a takeover.
pub(crate) const TAKEOVER_LAG_SLOTS: u64 = 50;
/// Lag in slots at which the service is not ready, however old the newest applied slot is: a minute of slots. A `max_lag` of more
/// than a minute allows as many slots as it lasts.
const LAG_SLOTS: u64 = 150;

/// Nominal duration of a slot.
const SLOT_TIME: Duration = Duration::from_millis(400);

/// Default of `gap_timeout` with one provider.
const GAP_TIMEOUT: Duration = Duration::from_secs(60);

/// Default of `gap_timeout` with several providers. A stock server sends the slots of 60 s again, and another provider has to
/// be asked for the missing slot while it still has it.
const GAP_TIMEOUT_OF_SEVERAL: Duration = Duration::from_secs(20);

settings! {
    /// The providers of the stream, and the values taken from it.
    pub struct StreamSettings from StreamGiven {
        /// URL of a Yellowstone gRPC server, for every service; given several times, the first is followed and the others
        /// take over from it
        ///
        /// Another provider takes over if the followed one is silent, refuses, cannot be reached, lacks slots, lags, or
        /// contradicts the chain. In the file a provider can also be a table [[geyser]] with url, x_token_file, x_token_header,
        /// ca, cert, key and compression. The settings below that name secrets or certificates apply to the first provider.
        #[arg(value_name = "URL")]
        #[serde(deserialize_with = "geyser::read", serialize_with = "geyser::write")]
        geyser: Vec<Geyser> = bail!("no stream: give --geyser URL, or geyser = \"URL\" in the file");
        /// File whose first line is the provider's token; for a provider that asks for one [default: the systemd credential
        /// x-token, if there is one]
        #[arg(value_name = "FILE")]
        x_token_file: PathBuf;
        /// Name of the header that carries the token; for a provider that takes another one, such as authorization
        /// [default: x-token]
        #[arg(value_name = "NAME")]
        x_token_header: String = "x-token".to_owned();
        /// Authorities that may sign the provider's certificate, PEM; for a provider with a private one [default: the systemd
        /// credential geyser-ca, or those that the machine trusts]
        #[arg(value_name = "FILE")]
        geyser_ca: PathBuf;
        /// Certificate shown to the stream's provider, PEM; for a provider that asks for one [default: the systemd credential
        /// geyser-cert, if there is one]
        #[arg(value_name = "FILE")]
        geyser_cert: PathBuf;
        /// The private key for geyser_cert, PEM [default: the systemd credential geyser-key]
        #[arg(value_name = "FILE")]
        geyser_key: PathBuf;
        /// Value taken from an account: its owner program, or a token account's owner or mint; a store records the first one
        /// that it is given, and any other is refused; for a store that records none [default: the store's own]
        #[arg(value_parser = bootstrap::extraction())]
        extract: Extract = bail!(unknown_extract());
        /// Accounts that a token extraction asks for; "wallets" and "closed" can miss changes, and are for a provider that does
        /// not send every account [default: exact]
        ///
        /// A provider sends the last write of an account in a slot, and only if the account then matches a filter of the
        /// subscription. "exact" asks for every account, 17 thousand updates a second on mainnet, and misses nothing.
        /// "wallets" asks for token accounts and System accounts without data; it misses a token account that moves to
        /// another program than System, or becomes a mint, a multisig or uninitialised. "closed" asks for token accounts
        /// and accounts without lamports; it also misses one that is closed and funded again in the same slot, or moves to
        /// System with lamports. A key whose change is missed keeps its old value for ever. Some providers do not allow a
        /// subscription to all accounts (`any`), or allow only a few data slices.
        #[arg(value_enum)]
        follow: Follow = Follow::default();
        /// Commitment at which a slot is applied: confirmed or finalized; finalized is for readers that must never see a slot
        /// that the chain drops [default: confirmed]
        #[arg(value_enum)]
        commitment: Commitment = Commitment::Confirmed;
        /// Also follow processed slots, in memory and by a second subscription, for lookups at processed [default: false]
        #[arg(value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        processed: bool = false;
    }
}

/// Asks for the extraction of a store that records none. A guess would replace its values by others.
fn unknown_extract() -> String {
    let about = |extract: Extract| format!("{extract} ({})", extract.about().replacen("The", "the", 1));
    format!(
        "no extract, and the store records none: give --extract NAME, or extract = \"NAME\" in the file, to say what its values \
         are: {}; the store records it, and later starts need none",
        Extract::ALL.map(about).join(", ")
    )
}

impl StreamSettings {
    /// Checks the providers and the values taken from them.
    ///
    /// # Errors
    /// A provider's settings are wrong or contradict each other; the value, the accounts and the commitment do not go
    /// together.
    pub fn check(&self) -> Result<()> {
        let providers = self.geyser.len();
        ensure!(providers <= PROVIDERS_MAX, "geyser has {providers} providers: give {PROVIDERS_MAX} or fewer");
        self.check_providers()?;
        ensure!(
            !self.processed || self.commitment == Commitment::Confirmed,
            "processed = true needs commitment = \"confirmed\": processed slots build on confirmed ones"
        );
        ensure!(
            self.follow == Follow::Exact || self.extract != Extract::AccountOwner,
            "follow = \"wallets\" and \"closed\" are for extract = \"token-owner\" and \"token-mint\"; account-owner takes \
             every account: leave follow out"
        );
        Ok(())
    }

    fn check_providers(&self) -> Result<()> {
        let mut urls = BTreeSet::new();
        for Geyser { url, x_token_header, ca, cert, key, .. } in self.geysers() {
            let (https, shown) = (url.starts_with("https://"), provider::shown(&url));
            ensure!(
                https || url.starts_with("http://"),
                "not a URL of a Yellowstone server: geyser={shown:?} expected=http://HOST:PORT or https://HOST:PORT"
            );
            ensure!(
                provider::has_usable_port(&url),
                "no server can have this port: geyser={shown:?}: give 1 to 65535, or none"
            );
            provider::check_header(x_token_header.as_ref().unwrap_or(&self.x_token_header))?;
            ensure!(
                cert.is_some() == key.is_some(),
                "geyser_cert and geyser_key go together, as cert and key of a table: geyser={shown:?}: give both, or none"
            );
            ensure!(
                https || ca.is_none() && cert.is_none(),
                "geyser_ca and geyser_cert need a URL with https://: geyser={shown:?}"
            );
            let is_new = urls.insert(url.trim_end_matches('/').to_owned());
            ensure!(is_new, "a provider is given twice: geyser={shown:?}: leave one of them out");
        }
        Ok(())
    }

    /// Returns the settings of the Yellowstone providers, in the order of preference. Their secrets are files: those of
    /// the settings, or else, of the first provider alone, the systemd credentials.
    pub fn providers(&self) -> Vec<provider::Settings> {
        let provider = |(index, geyser): (usize, Geyser)| {
            let find = |file: Option<PathBuf>, credential| match index {
                0 => secrets::find(file.as_deref(), credential),
                _ => file,
            };
            provider::Settings {
                url: geyser.url,
                token_file: find(geyser.x_token_file, TOKEN_CREDENTIAL),
                token_header: geyser.x_token_header.unwrap_or_else(|| self.x_token_header.clone()),
                ca: find(geyser.ca, CA_CREDENTIAL),
                cert: find(geyser.cert, CERT_CREDENTIAL),
                key: find(geyser.key, KEY_CREDENTIAL),
                compression: geyser.compression.unwrap_or_default(),
            }
        };
        self.geysers().enumerate().map(provider).collect()
    }

    /// Returns the providers, the first one with the files that are named outside of its table.
    fn geysers(&self) -> impl Iterator<Item = Geyser> {
        let (first, others) = self.geyser.split_first().map_or((None, &[][..]), |(first, rest)| (Some(first), rest));
        let first = first.cloned().map(|own| Geyser {
            x_token_file: own.x_token_file.or_else(|| self.x_token_file.clone()),
            ca: own.ca.or_else(|| self.geyser_ca.clone()),
            cert: own.cert.or_else(|| self.geyser_cert.clone()),
            key: own.key.or_else(|| self.geyser_key.clone()),
            ..own
        });
        first.into_iter().chain(others.iter().cloned())
    }

    /// Returns the choice of accounts to follow, and the value taken from each.
    pub fn selection(&self) -> Selection {
        Selection { extract: self.extract, follow: self.follow }
    }
}

settings! {
    /// When the ingest commits while it catches up, and how it reads.
    pub struct CommitSettings from CommitGiven {
        /// While catching up, commit at the end of the slot that brings the batch to this many changes, 1 to 1048576;
        /// for a device on which large commits delay lookups [default: up to 65536, as memory allows]
        #[arg(value_name = "N", value_parser = bootstrap::count::<u32>)]
        #[serde(deserialize_with = "crate::base::setting::count")]
        commit_every: u32, within 1..=FRAME_CHANGES_MAX as u32;
        /// Number of keys of one slot that are looked up together, 1 to 65536; 1 is for measuring single reads [default: 1024]
        #[arg(value_name = "N", value_parser = bootstrap::count::<u32>)]
        #[serde(deserialize_with = "crate::base::setting::count")]
        ingest_depth: u32 = reads::DEPTH as u32, within 1..=INGEST_DEPTH_MAX;
    }
}

settings! {
    /// How long the stream may be silent or lack a slot, and which providers are followed.
    #[derive(Copy)]
    pub struct ReceiveSettings from ReceiveGiven {
        /// A slot whose parent has not come after this long shows a gap; for a provider that sends slots late. A connection
        /// without a slot that can be applied ends after half as long again, 30s at most, so that with less than 5s a pause of
        /// the chain ends connections [default: 20s with several providers, 60s with one]
        #[arg(value_name = "DURATION", value_parser = humantime::parse_duration)]
        #[serde(with = "crate::base::setting::duration")]
        // Slots that wait are held in memory.
        gap_timeout: Duration = GAP_TIMEOUT, within WAIT_MIN..=HOUR;
        /// Number of the providers that are followed at once: 1 or 2; 2 is for an operator for whom no takeover may cost time. Of
        /// each slot, the provider's that sends it first is applied [default: 1]
        #[arg(value_name = "N", value_parser = clap::value_parser!(u8).range(1..=2))]
        geyser_at_once: u8 = 1, within 1..=LANES_MAX as u8;
    }
}

impl ReceiveSettings {
    /// Returns how long a connection may send no slot that can be applied. With several providers it is longer than a slot
    /// waits for its parent, so a missing slot is a gap before its provider counts as useless.
    pub fn idle_timeout(&self) -> Duration {
        (self.gap_timeout * 3 / 2).clamp(IDLE_MIN, IDLE_MAX)
    }
}

impl ReceiveGiven {
    /// Returns these settings for a stream of so many providers, on which the default of `gap_timeout` depends.
    #[must_use]
    pub fn for_servers(self, servers: usize) -> Self {
        let gap_timeout = self.gap_timeout.or((servers > 1).then_some(GAP_TIMEOUT_OF_SEVERAL));
        Self { gap_timeout, ..self }
    }
}

settings! {
    /// Limits beyond which the service is not ready.
    #[derive(Copy)]
    pub struct ReadinessSettings from ReadinessGiven {
        /// Not ready once the newest applied slot is older than this, or is 150 slots behind the newest known one; for readers that
        /// need fresher values, or prefer older ones to none. More than a minute allows more slots as well [default: 10s]
        #[arg(value_name = "DURATION", value_parser = humantime::parse_duration)]
        #[serde(with = "crate::base::setting::duration")]
        max_lag: Duration = Duration::from_secs(10), within Duration::from_millis(1)..=DAY;
    }
}

impl ReadinessSettings {
    /// Returns the lag in slots at which the service is not ready.
    pub(crate) fn lag_slots(self) -> u64 {
        LAG_SLOTS.max((self.max_lag.as_millis() / SLOT_TIME.as_millis()) as u64)
    }
}

impl Default for ReadinessSettings {
    fn default() -> Self {
        ReadinessGiven::default().in_effect().expect("the defaults are within their bounds")
    }
}
