//! TLS of the gRPC listener: certificate, key and the CA of clients, from PEM files that are read again on request.
//!
//! Owns: the rustls configuration. Must not: print or quote a file. Threads: `main` at start, the blocking pool at
//! SIGHUP; handshakes run on the network edge.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use arc_swap::ArcSwap;
use engine_api::Code;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::secrets;

/// The protocol offered: gRPC uses nothing but HTTP/2.
const ALPN: &[u8] = b"h2";

/// Paths of the PEM files.
#[derive(Clone, Debug)]
pub(super) struct TlsFiles {
    /// The service's certificate, followed by those that lead to a CA which clients know.
    pub(super) cert: PathBuf,
    /// Private key of the certificate.
    pub(super) key: PathBuf,
    /// CAs of client certificates. If set, clients must present a certificate that one of these signed.
    pub(super) client_ca: Option<PathBuf>,
}

/// The TLS configuration in effect, and its files.
pub struct Tls {
    files: TlsFiles,
    current: ArcSwap<ServerConfig>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read or does not hold its kind of PEM, or key and certificate do not belong together.
    pub(super) fn open(files: TlsFiles) -> Result<Self> {
        let current = ArcSwap::new(read(&files).context(Code::Tls)?);
        Ok(Self { files, current })
    }

    /// Reads the files again. Calling the returned function puts them into effect for all later handshakes.
    pub(super) fn read_again(&self) -> Result<impl FnOnce() + '_> {
        let next = read(&self.files)?;
        Ok(move || self.current.store(next))
    }

    pub fn mutual(&self) -> bool {
        self.files.client_ca.is_some()
    }

    /// Returns an acceptor for one handshake, with the configuration in effect.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current.load_full())
    }
}

fn read(files: &TlsFiles) -> Result<Arc<ServerConfig>> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .context("no protocol version is left to TLS: this is a bug")?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for cert in certificates(path)? {
                let context = || format!("not the certificate of a CA: file={}", path.display());
                roots.add(cert).with_context(context)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
            builder.with_client_cert_verifier(
                verifier.with_context(|| format!("cannot verify clients with file={}", path.display()))?,
            )
        }
    };
    let chain = certificates(&files.cert)?;
    let mut config = builder.with_single_cert(chain, key(&files.key)?).with_context(|| {
        format!("certificate and key do not match: cert={} key={}", files.cert.display(), files.key.display())
    })?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Arc::new(config))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let name = path.display();
    let text = secrets::read_public(path)?;
    let certs: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    // The parser's error may quote a line of the file, and the setting may name the key's file by mistake.
    let Ok(certs) = certs else { bail!("not PEM: file={name}") };
    ensure!(!certs.is_empty(), "no certificate in it: file={name} expected=PEM");
    Ok(certs)
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    let text = secrets::read(path)?;
    // As in `certificates`: the parser's error may quote a line.
    PrivateKeyDer::from_pem_slice(text.as_bytes())
        .map_err(|_| anyhow::anyhow!("no private key in it: file={} expected=PEM, not encrypted", path.display()))
}
