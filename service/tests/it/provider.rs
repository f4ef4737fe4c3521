//! Access to the stream's server: tokens and their rotation, certificates, compression. No secret is shown.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use loadgen::provider::{Act, Provider};
use proto::v1::kv_client::KvClient;
use proto::v1::{GetManyRequest, GetRequest};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tonic::codec::CompressionEncoding;

use crate::secure::Ca;
use crate::support::{BASE_SLOT, Service, Signal, client_runtime, columns, compressed, load, secret, stream, wait_for};

const SLOT_MS: u64 = 100;

/// Starts a service on a store of its own, in `dir`.
fn service(dir: &Path, geyser: &str, more: &[&str]) -> Service {
    let (idle, workload) = stream("--pairs 500 --events 1");
    idle.stop().unwrap();
    let options = columns().remove(0);
    let store = dir.join("store");
    load(&store, &options, &workload);
    Service::start(&store, &options, geyser, more)
}

fn provider() -> Provider {
    Provider::start("127.0.0.1:0", BASE_SLOT + 1, SLOT_MS).unwrap()
}

/// Waits until the provider has counted more than `before` subscriptions.
#[track_caller]
fn wait_for_subscription(provider: &Provider, before: u64) {
    wait_for("another subscription", || (provider.figures().subscriptions > before).then_some(()));
}

#[test]
fn a_new_token_is_taken_at_sighup_and_at_each_connection_and_never_shown() {
    let temp = tempfile::tempdir().unwrap();
    let token = temp.path().join("token");
    secret(&token, "token-one\n");
    let provider = provider();
    provider.require("x-api-key", "token-one");
    let more = ["--x-token-file", token.to_str().unwrap(), "--x-token-header", "x-api-key", "--processed"];
    let geyser = format!("http://{}", provider.address());
    let mut service = service(temp.path(), &geyser, &more);
    service.wait_for_slot(BASE_SLOT + 2);
    assert_eq!(provider.header("x-api-key").as_deref(), Some("token-one"));

    let before = provider.figures().subscriptions;
    provider.require("x-api-key", "token-two");
    secret(&token, "token-two\n");
    service.signal(Signal::HUP);
    // Both subscriptions are renewed: the ingest's and the overlay's.
    wait_for_subscription(&provider, before + 1);
    assert_eq!(provider.header("x-api-key").as_deref(), Some("token-two"));
    let slot = service.slot().unwrap();
    service.wait_for_slot(slot + 2);

    let before = provider.figures().subscriptions;
    provider.require("x-api-key", "token-three");
    secret(&token, "token-three\n");
    provider.set(Act::Restarts);
    wait_for_subscription(&provider, before);
    assert_eq!(provider.header("x-api-key").as_deref(), Some("token-three"));
    let log = service.log();
    assert!(!log.contains("token-one") && !log.contains("token-two") && !log.contains("token-three"), "{log}");
    assert!(service.terminate().success());
    provider.stop().unwrap();
}

#[test]
fn a_url_is_shown_without_the_secrets_in_it() {
    let temp = tempfile::tempdir().unwrap();
    let provider = provider();
    let geyser = format!("http://user:s3cret@{}/s3cret?key=s3cret", provider.address());
    let mut service = service(temp.path(), &geyser, &["--processed"]);
    service.wait_for_slot(BASE_SLOT + 2);
    provider.set(Act::Refuses);
    wait_for("a refusal", || service.log().contains("your plan has run out").then_some(()));
    for page in ["/readyz", "/status.json", "/dashboard.json", "/metrics", "/"] {
        assert!(!service.get(page).unwrap().1.contains("s3cret"), "{page}");
    }
    let log = service.log();
    assert!(!log.contains("s3cret") && log.contains(&format!("http://...@{}/...", provider.address())), "{log}");
    assert!(service.terminate().success());
    provider.stop().unwrap();
    for (wrong, geyser) in [(false, geyser.as_str()), (true, "htp://user:s3cret@h/s3cret")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_service"));
        command.args(["check-config", "--engine", columns().remove(0).engine.as_str(), "--geyser", geyser]);
        let output = command.arg("--dir").arg(temp.path().join("store")).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(!said.contains("s3cret") && said.contains("geyser"), "{said}");
        assert_eq!(output.status.success(), !wrong, "{said}");
    }
}

#[test]
fn messages_may_be_compressed_both_ways_and_lookups_may_come_compressed() {
    let temp = tempfile::tempdir().unwrap();
    let zstd = Some(CompressionEncoding::Zstd);
    let provider = Provider::start_compressed("127.0.0.1:0", BASE_SLOT + 1, SLOT_MS, zstd).unwrap();
    let geyser = format!("http://{}", provider.address());
    let mut first = service(temp.path(), &geyser, &[]);
    first.wait_for_slot(BASE_SLOT + 2);
    assert_eq!(provider.header("grpc-accept-encoding"), None, "nothing compressed is asked for");
    assert!(first.terminate().success());
    let before = provider.figures().subscriptions;
    let (store, options) = (temp.path().join("store"), columns().remove(0));
    let service = Service::start(&store, &options, &compressed(&store, &geyser, "zstd"), &[]);
    wait_for_subscription(&provider, before);
    assert_eq!(provider.header("grpc-encoding").as_deref(), Some("zstd"));
    assert_eq!(provider.header("grpc-accept-encoding").as_deref(), Some("zstd,identity"));
    let mut service = service;
    let slot = service.slot().unwrap_or(0);
    service.wait_for_slot(slot + 2);
    client_runtime().block_on(async {
        for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Zstd] {
            let client = KvClient::connect(format!("http://{}", service.listen)).await.unwrap();
            let mut client = client.send_compressed(encoding).accept_compressed(encoding);
            client.get(GetRequest { key: vec![1; 32].into(), ..Default::default() }).await.unwrap();
            // Small on the wire, and over the message limit once it is decompressed.
            let bomb = GetManyRequest { packed_keys: vec![0; 32 << 20].into(), ..Default::default() };
            let refused = client.max_encoding_message_size(usize::MAX).get_many(bomb).await.unwrap_err();
            assert!(refused.message().contains("limit"), "{refused:?}");
        }
    });
    assert!(service.terminate().success());
    provider.stop().unwrap();
}

/// Starts a TLS proxy before the provider, which requires a certificate of `ca`.
async fn tls_before(provider: &Provider, ca: &Ca) -> u16 {
    let leaf = ca.valid();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.pem.as_bytes()).unwrap()).unwrap();
    let clients = WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap();
    let cert = CertificateDer::from_pem_slice(leaf.cert.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap();
    let mut config =
        ServerConfig::builder().with_client_cert_verifier(clients).with_single_cert(vec![cert], key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let (acceptor, address) = (TlsAcceptor::from(Arc::new(config)), provider.address());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut client) = acceptor.accept(socket).await else { return };
                let mut server = TcpStream::connect(address).await.unwrap();
                tokio::io::copy_bidirectional(&mut client, &mut server).await.ok();
            });
        }
    });
    port
}

#[test]
fn a_private_ca_and_a_client_certificate_reach_the_provider() {
    let temp = tempfile::tempdir().unwrap();
    let (ca, other) = (Ca::new("provider"), Ca::new("somebody else"));
    let provider = provider();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let port = runtime.block_on(tls_before(&provider, &ca));
    let leaf = ca.valid();
    let path = |name: &str, text: &str| {
        let path = temp.path().join(name);
        secret(&path, text);
        path.to_str().unwrap().to_owned()
    };
    let (cert, key) = (path("cert", &leaf.cert), path("key", &leaf.key));
    let (mine, foreign) = (path("ca", &ca.pem), path("other", &other.pem));
    let geyser = format!("https://localhost:{port}");
    let signed = ["--geyser-ca", &mine, "--geyser-cert", &cert, "--geyser-key", &key];
    let mut service = service(temp.path(), &geyser, &signed);
    service.wait_for_slot(BASE_SLOT + 2);
    assert!(service.terminate().success());

    let made = provider.figures().subscriptions;
    let (store, options) = (temp.path().join("store"), columns().remove(0));
    for wrong in [&["--geyser-ca", &mine][..], &["--geyser-ca", &foreign, "--geyser-cert", &cert, "--geyser-key", &key]]
    {
        let mut service = Service::start(&store, &options, &geyser, wrong);
        let said = wait_for("a reason", || service.get("/readyz").filter(|(_, said)| said.contains("stream:")));
        assert_eq!(said.0, 503, "{said:?}");
        assert!(service.terminate().success());
    }
    assert_eq!(provider.figures().subscriptions, made, "nobody else was let in");
    provider.stop().unwrap();
}
