//! The Yellowstone server as the configuration names it: URL, token, certificates, compression.
//!
//! Owns: the server's secrets, which are read again for each connection and at SIGHUP, and the part of its URL that may
//! be shown. Must not: print or log a secret. A URL may be a secret itself: some providers put a key into its path, so
//! only scheme, host and port are shown. Threads: a receiver's task; files are read on the blocking pool.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures::SinkExt as _;
use futures::channel::mpsc;
use tokio::sync::watch;
use tonic::codegen::http::Uri;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status, Streaming};
use tracing::{error, info};
use yellowstone_grpc_client::GeyserGrpcClientError;
use yellowstone_grpc_proto::geyser::geyser_client::GeyserClient;
use yellowstone_grpc_proto::geyser::{GetSlotRequest, SubscribeReplayInfoRequest, SubscribeRequest, SubscribeUpdate};

use super::server_errors::explained;
use super::subscribe::Commitment;
use super::upstream::{Access, Client, Compression, Upstream};
use crate::base::{blocking, lock};
use crate::net::secrets;

/// Maximum size of a message that is taken in, in bytes. An account has at most 10 MiB, and a server may ignore the
/// data slice.
const MESSAGE_MAX_BYTES: usize = 64 << 20;

/// Maximum number of requests that wait inside the client before it pushes back. Only one subscription and pings are
/// sent.
const CLIENT_BUFFER_REQUESTS: usize = 64;

/// Bytes that the server may send before they are read. 32 MiB carry 300 MB/s over a round trip of 100 ms. The window
/// is fixed, because an adaptive one starts small.
const WINDOW_BYTES_MAX: u32 = 32 << 20;

/// The window may fill 1/`WINDOW_SHARE` of the memory limit. While the service catches up it is full, and unread frames
/// of 110 bytes take more than twice their bytes: with 16 MiB at a limit of 96 MiB the kernel killed the process.
const WINDOW_SHARE: u64 = 32;

/// Minimum window in bytes: 20 MB/s over a round trip of 100 ms, several times mainnet's account updates.
const WINDOW_BYTES_MIN: u32 = 2 << 20;

/// Window of the connection, as a multiple of the window of its one stream. The stream's window is the one that bounds
/// unread bytes.
///
/// h2 charges each unread frame of less than 256 bytes with the difference to 256. Once the charges exceed half of the
/// connection's window, it ends the connection (ENHANCE_YOUR_CALM, `too_many_data_frames`). Its own setting for this,
/// `data_frame_budget`, can be reached neither through hyper 1.12 nor through tonic 0.14. With this factor a stall
/// fills the stream's window first, and the server waits, as long as messages have 86 bytes on average. The message of
/// an account has 110 bytes or more. Should the budget be exceeded all the same, a new connection begins at the last
/// applied slot.
const CONNECTION_WINDOWS: u32 = 4;

/// Text that replaces a secret.
const MASK: &str = "(hidden)";

/// Minimum length of a part of a URL that is masked, in bytes. A shorter part is no secret, and would match inside of
/// words.
const MASKED_MIN_BYTES: usize = 6;

/// Maximum number of requests of one subscription that wait to be sent: the subscription, and the answers to pings.
const REQUESTS: usize = 64;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Settings of the connection to the server.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// URL of the server: `http://` or `https://`, host and port.
    pub url: String,
    /// File whose first line is the token. Without it no token is sent.
    pub token_file: Option<PathBuf>,
    /// Name of the metadata (HTTP header) that carries the token.
    pub token_header: String,
    /// File of the certificates of authorities that may sign the server's certificate, PEM. Without it the machine's
    /// are used.
    pub ca: Option<PathBuf>,
    /// File of the certificate that the client presents to the server, PEM.
    pub cert: Option<PathBuf>,
    /// File of the private key of `cert`, PEM.
    pub key: Option<PathBuf>,
    pub compression: Compression,
}

/// The Yellowstone server of one subscription.
#[derive(Clone, Debug)]
pub struct Provider {
    settings: Settings,
    shown: String,
    /// Secrets that the newest connection was made with.
    used: Arc<Mutex<Option<Secrets>>>,
    /// Connection for questions outside of a subscription, kept from one to the next.
    asking: Arc<tokio::sync::Mutex<Option<ProviderClient>>>,
    hangups: watch::Receiver<u64>,
}

/// Secrets as read from their files.
#[derive(Clone, Default, PartialEq, Eq)]
struct Secrets {
    token: Option<String>,
    ca: Option<String>,
    identity: Option<(String, String)>,
}

/// Client of one connection, which adds the token to each request.
pub(crate) type ProviderClient = GeyserClient<InterceptedService<Channel, Token>>;

/// Adds the token to each request; does nothing without a token.
#[derive(Clone)]
pub(crate) struct Token(Option<(AsciiMetadataKey, AsciiMetadataValue)>);

impl Interceptor for Token {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some((name, value)) = &self.0 {
            request.metadata_mut().insert(name.clone(), value.clone());
        }
        Ok(request)
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(hidden)")
    }
}

/// Returns the part of a URL that may be shown: scheme, host and port. User, password, path and query may be secrets.
pub fn shown(url: &str) -> String {
    let Ok(uri) = url.parse::<Uri>() else { return "(not a URL)".to_owned() };
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return "(not a URL)".to_owned() };
    let user = if authority.as_str().contains('@') { "...@" } else { "" };
    let port = authority.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
    let path = if matches!(uri.path_and_query().map(|path| path.as_str()), None | Some("/")) { "" } else { "/..." };
    format!("{scheme}://{user}{}{port}{path}", authority.host())
}

/// Returns the host and the port that a URL names, without the brackets of an address of IPv6.
pub(crate) fn host_and_port(url: &str) -> Option<(String, u16)> {
    let uri = url.parse::<Uri>().ok()?;
    let host = uri.host()?.trim_start_matches('[').trim_end_matches(']');
    Some((host.to_owned(), uri.port_u16()?))
}

/// Whether the URL is valid and its port, if it names one, is between 1 and 65535.
pub fn has_usable_port(url: &str) -> bool {
    let Ok(uri) = url.parse::<Uri>() else { return false };
    let Some(authority) = uri.authority() else { return false };
    let host_and_port = authority.as_str().rsplit('@').next().unwrap_or_default();
    match host_and_port.strip_prefix(authority.host()).and_then(|rest| rest.strip_prefix(':')) {
        Some(port) => port.parse::<u16>().is_ok_and(|port| port > 0),
        None => true,
    }
}

/// Refuses a header name that cannot carry a token.
///
/// # Errors
/// The name is no valid name of gRPC metadata, or gRPC reserves it.
pub fn check_header(name: &str) -> Result<()> {
    let usable = AsciiMetadataKey::from_bytes(name.as_bytes()).is_ok() && name == name.to_ascii_lowercase();
    let reserved = name.starts_with("grpc-") || ["te", "content-type", "user-agent"].contains(&name);
    ensure!(
        usable && !reserved,
        "not a header that can carry a token: x_token_header={name:?} expected=lower case, such as x-token or authorization"
    );
    Ok(())
}

/// Counts SIGHUPs until the runtime ends.
///
/// # Errors
/// The process cannot install the signal handler.
pub fn hangups() -> Result<watch::Receiver<u64>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut hangups = signal(SignalKind::hangup()).context("cannot take over SIGHUP")?;
    let (tx, rx) = watch::channel(0);
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            tx.send_modify(|count| *count += 1);
        }
    });
    Ok(rx)
}

impl Settings {
    /// Reads every file once and discards the content, so that a missing or unusable file is found before anything else
    /// is done.
    ///
    /// # Errors
    /// A file cannot be read, is empty, or is no certificate; a secret file can be read by everybody; the URL or the
    /// token is malformed.
    pub fn check(&self) -> Result<()> {
        let secrets = self.read()?;
        self.endpoint(&secrets)?;
        self.token(&secrets)?;
        Ok(())
    }

    /// Returns the cautions, as sentences: a token that would cross a network unencrypted, and the cost of compression.
    pub fn cautions(&self) -> impl Iterator<Item = String> {
        self.unencrypted().into_iter().chain(self.compressed())
    }

    fn unencrypted(&self) -> Option<String> {
        let url: Uri = self.url.parse().ok()?;
        let host = url.host()?.trim_start_matches('[').trim_end_matches(']');
        let is_here = host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
        let is_shown = self.token_file.is_some() && url.scheme_str() == Some("http") && !is_here;
        is_shown.then(|| {
            format!(
                "the token crosses the network unencrypted: geyser={}: use https:// if the server has it",
                shown(&self.url)
            )
        })
    }

    fn compressed(&self) -> Option<String> {
        (self.compression != Compression::None).then(|| {
            format!(
                "compression={} geyser={}: a server compresses each message by itself, which makes catching up 17 to \
                 20 times slower, and at more than 20,000 updates a second the service falls behind: use it only where \
                 the network is slower than that",
                self.compression.name(),
                shown(&self.url)
            )
        })
    }

    fn read(&self) -> Result<Secrets> {
        let of = || format!("the token or the certificates of geyser={:?} cannot be used", shown(&self.url));
        self.read_files().with_context(of)
    }

    fn read_files(&self) -> Result<Secrets> {
        let token = self.token_file.as_deref().map(first_line).transpose()?;
        let ca = self.ca.as_deref().map(secrets::read_public).transpose()?;
        let identity = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((secrets::read_public(cert)?, secrets::read(key)?)),
            (None, None) => None,
            _ => bail!("the stream's certificate and its key go together: give geyser_cert and geyser_key, or neither"),
        };
        Ok(Secrets { token, ca, identity })
    }

    fn token(&self, secrets: &Secrets) -> Result<Token> {
        let Some(token) = &secrets.token else { return Ok(Token(None)) };
        let name = AsciiMetadataKey::from_bytes(self.token_header.as_bytes()).context("not a header's name")?;
        // The error of the conversion is dropped, because it might quote the token.
        let Ok(mut value) = AsciiMetadataValue::try_from(token.as_str()) else {
            bail!("the token is not printable ASCII, so it cannot be sent: check x_token_file");
        };
        value.set_sensitive(true);
        Ok(Token(Some((name, value))))
    }

    fn endpoint(&self, secrets: &Secrets) -> Result<Endpoint> {
        let window = window_within(probe::memory_limit().bytes);
        let endpoint = Endpoint::from_shared(self.url.clone())
            .with_context(|| format!("not a URL of a Yellowstone server: geyser={:?}", shown(&self.url)))?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_adaptive_window(false)
            .initial_stream_window_size(window)
            .initial_connection_window_size(window * CONNECTION_WINDOWS)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true)
            .buffer_size(CLIENT_BUFFER_REQUESTS);
        if !self.url.starts_with("https://") {
            return Ok(endpoint);
        }
        let tls = match &secrets.ca {
            Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        // Some load balancers negotiate no protocol, and pass HTTP/2 on all the same.
        let tls = tls.assume_http2(true);
        let tls = match &secrets.identity {
            Some((cert, key)) => tls.identity(Identity::from_pem(cert, key)),
            None => tls,
        };
        endpoint
            .tls_config(tls)
            .context("cannot use the certificates of the stream: check geyser_ca, geyser_cert, geyser_key")
    }
}

impl Provider {
    /// Creates the server that `settings` describe. Its secret files are read again whenever `hangups` counts up.
    pub fn new(settings: Settings, hangups: watch::Receiver<u64>) -> Self {
        let shown = shown(&settings.url);
        Self { settings, shown, used: Arc::default(), asking: Arc::default(), hangups }
    }

    /// The server's URL without its secrets: see [`shown`].
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Connects with the secrets as their files hold them now.
    ///
    /// # Errors
    /// A secret file cannot be read; the server cannot be reached.
    pub(crate) async fn client(&self) -> Result<ProviderClient> {
        let secrets = self.read().await?;
        *lock(&self.used) = Some(secrets.clone());
        self.client_with(&secrets).await
    }

    /// Asks for the newest slot that the server has at `commitment`.
    ///
    /// # Errors
    /// A secret file cannot be read; the server cannot be reached, or refuses to answer.
    async fn ask_newest_slot(&self, commitment: Commitment) -> Result<u64> {
        let mut asking = self.asking.lock().await;
        let mut client = match asking.take() {
            Some(client) => client,
            None => {
                let secrets = self.read().await?;
                // Without a stream's secrets the messages of the server are masked by these.
                lock(&self.used).get_or_insert_with(|| secrets.clone());
                self.client_with(&secrets).await?
            }
        };
        let slot = client.get_slot(GetSlotRequest { commitment: Some(commitment.level() as i32) }).await?;
        // A connection that failed is not kept.
        *asking = Some(client);
        Ok(slot.into_inner().slot)
    }

    fn explained(&self, failed: &anyhow::Error) -> String {
        explained(engine_api::words(failed.as_ref()), self.access().https)
    }

    async fn client_with(&self, secrets: &Secrets) -> Result<ProviderClient> {
        let (token, endpoint) = (self.settings.token(secrets)?, self.settings.endpoint(secrets)?);
        let channel = endpoint.connect().await.context("cannot connect")?;
        let client = GeyserClient::with_interceptor(channel, token).max_decoding_message_size(MESSAGE_MAX_BYTES);
        Ok(match self.settings.compression.encoding() {
            None => client,
            Some(encoding) => client.accept_compressed(encoding).send_compressed(encoding),
        })
    }

    async fn read(&self) -> Result<Secrets> {
        let settings = self.settings.clone();
        blocking(move || settings.read()).await
    }
}

impl Upstream for Provider {
    type Client = ProviderClient;

    async fn connect(&self) -> Result<ProviderClient, String> {
        self.client().await.map_err(|failed| self.explained(&failed))
    }

    /// Waits until the secret files differ from the secrets of the newest connection. Reads them now and at each
    /// SIGHUP.
    async fn renewed(&self) {
        let mut hangups = self.hangups.clone();
        hangups.mark_unchanged();
        loop {
            match self.read().await {
                Ok(secrets) if lock(&self.used).as_ref() != Some(&secrets) => {
                    info!(url = %self.shown, "the stream's token or certificates have changed: reconnecting");
                    return;
                }
                Ok(_) => {}
                Err(failed) => {
                    let failed = format!("{failed:#}");
                    error!(error = failed, "the stream's secrets cannot be read: the connection stays as it is");
                }
            }
            if hangups.changed().await.is_err() {
                // The counter of SIGHUPs is gone: nothing is going to change.
                std::future::pending::<()>().await;
            }
        }
    }

    fn access(&self) -> Access {
        let Settings { url, token_file, compression, .. } = &self.settings;
        Access { token: token_file.is_some(), https: url.starts_with("https://"), compression: *compression }
    }

    /// Returns a server's message with [`MASK`] in place of the newest connection's token and of the secret parts of
    /// the URL.
    fn masked(&self, words: &str) -> String {
        let token = lock(&self.used).as_ref().and_then(|used| used.token.clone());
        let uri = self.settings.url.parse::<Uri>().ok();
        let user = uri.as_ref().and_then(|uri| uri.authority()?.as_str().rsplit_once('@').map(|(user, _)| user));
        let path = uri.as_ref().and_then(|uri| uri.path_and_query()).map(|path| path.as_str().trim_matches('/'));
        let in_url = user.into_iter().flat_map(|user| user.split(':')).chain(path);
        let secrets = token.as_deref().into_iter().chain(in_url.filter(|secret| secret.len() >= MASKED_MIN_BYTES));
        secrets.fold(words.to_owned(), |words, secret| {
            // A quoted message has some characters escaped.
            words.replace(secret, MASK).replace(&secret.escape_debug().to_string(), MASK)
        })
    }

    async fn newest_slot(&self, commitment: Commitment) -> Result<u64, String> {
        self.ask_newest_slot(commitment).await.map_err(|failed| self.explained(&failed))
    }

    /// Number of SIGHUPs so far.
    fn hangups(&self) -> u64 {
        *self.hangups.borrow()
    }
}

impl Client for ProviderClient {
    type Requests = mpsc::Sender<SubscribeRequest>;
    type Updates = Streaming<SubscribeUpdate>;

    async fn first_available(&mut self) -> Result<Option<u64>, GeyserGrpcClientError> {
        Ok(self.subscribe_replay_info(SubscribeReplayInfoRequest {}).await?.into_inner().first_available)
    }

    async fn subscribe(
        &mut self,
        request: SubscribeRequest,
    ) -> Result<(mpsc::Sender<SubscribeRequest>, Streaming<SubscribeUpdate>), GeyserGrpcClientError> {
        let (mut requests, sent) = mpsc::channel(REQUESTS);
        requests.send(request).await.map_err(|_| Status::internal("a new channel is closed: this is a bug"))?;
        Ok((requests, Self::subscribe(self, sent).await?.into_inner()))
    }
}

fn first_line(path: &Path) -> Result<String> {
    let text = secrets::read(path)?;
    let token = text.lines().next().unwrap_or_default().trim().to_owned();
    ensure!(!token.is_empty(), "the token's file is empty: file={}", path.display());
    Ok(token)
}

/// Returns the stream's window for a process that may use `limit_bytes` of memory.
fn window_within(limit_bytes: u64) -> u32 {
    let share = u32::try_from(limit_bytes / WINDOW_SHARE).unwrap_or(u32::MAX);
    share.clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX)
}

#[cfg(test)]
mod tests;
