//! Servers that cannot be followed: each cause has its own words, with the way out.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use loadgen::provider::Provider;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::transport::Server;

use crate::secure::Ca;
use crate::support::{BASE_SLOT, Service, columns, compressed, digest, end, load, stream, wait_for};

/// A server that gives every request the same answer.
#[derive(Clone)]
struct Answers(Arc<dyn Fn() -> Response<Body> + Send + Sync>);

impl NamedService for Answers {
    const NAME: &'static str = "geyser.Geyser";
}

impl tower::Service<Request<Body>> for Answers {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        Box::pin(std::future::ready(Ok((self.0)())))
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Starts such a server, which runs until the runtime is dropped.
fn answering(runtime: &Runtime, answer: impl Fn() -> Response<Body> + Send + Sync + 'static) -> SocketAddr {
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::builder().add_service(Answers(Arc::new(answer)));
    runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    address
}

/// Starts a TLS proxy before a server. It negotiates HTTP/2, or no protocol.
fn tls_before(runtime: &Runtime, server: SocketAddr, ca: &Ca, negotiates: bool) -> u16 {
    let leaf = ca.valid();
    let cert = CertificateDer::from_pem_slice(leaf.cert.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap();
    let mut config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![cert], key).unwrap();
    config.alpn_protocols = if negotiates { vec![b"h2".to_vec()] } else { Vec::new() };
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let port = listener.local_addr().unwrap().port();
    runtime.spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut client) = acceptor.accept(socket).await else { return };
                let mut server = TcpStream::connect(server).await.unwrap();
                tokio::io::copy_bidirectional(&mut client, &mut server).await.ok();
            });
        }
    });
    port
}

/// Starts a service on a store of its own, in `dir`.
fn service(dir: &Path, geyser: &str, more: &[&str]) -> Service {
    let (idle, workload) = stream("--pairs 500 --events 1");
    idle.stop().unwrap();
    let (store, options) = (dir.join("store"), columns().remove(0));
    if !store.exists() {
        load(&store, &options, &workload);
    }
    Service::start(&store, &options, geyser, more)
}

/// Waits until the service says in all of these words why it is not ready. Returns its whole answer.
#[track_caller]
fn wait_for_words(service: &mut Service, words: &[&str]) -> String {
    let mut last = String::new();
    wait_for(&format!("{words:?}"), || {
        let (_, said) = service.get("/readyz")?;
        let is_said = words.iter().all(|word| said.contains(word));
        last = said;
        is_said.then_some(())
    });
    last
}

#[test]
fn a_page_of_a_proxy_is_told_by_its_status() {
    let (temp, runtime) = (tempfile::tempdir().unwrap(), runtime());
    for (code, body, words) in [
        (403, "<html>Forbidden</html>", "whether the server needs a token"),
        (401, "", "whether the server needs a token"),
        (404, "<html>no such page</html>", "the port for gRPC"),
        (429, "slow down", "the port for gRPC"),
        (502, "<html>Bad Gateway</html>", "the port for gRPC"),
        (503, "{\"error\":\"no backend\"}", "the port for gRPC"),
        (200, "<html>Welcome</html>", "the port for gRPC"),
    ] {
        let answer = move || Response::builder().status(code).body(Body::new(body.to_owned())).unwrap();
        let geyser = format!("http://{}", answering(&runtime, answer));
        let mut service = service(temp.path(), &geyser, &[]);
        let status = format!("an HTTP proxy answered with status={code}, not a gRPC server");
        let said = wait_for_words(&mut service, &[&status, words]);
        assert!(!said.contains("filter"), "{said}");
        assert!(service.terminate().success());
    }
}

#[test]
fn a_lost_slot_in_the_words_of_older_servers_is_a_gap() {
    let (temp, runtime) = (tempfile::tempdir().unwrap(), runtime());
    for (status, last_slot) in [
        (Status::internal(format!("broadcast from {BASE_SLOT} is not available, last available: 1200")), 1199),
        (
            Status::internal(format!(
                "broadcast from {BASE_SLOT} is not available, last available: 1{}",
                "0".repeat(40)
            )),
            1000,
        ),
        (Status::invalid_argument("first available slot: 1200"), 1199),
    ] {
        let geyser = format!("http://{}", answering(&runtime, move || status.clone().into_http()));
        let mut service = service(temp.path(), &geyser, &[]);
        wait_for_words(&mut service, &["first_slot=1000", &format!("last_slot={last_slot}")]);
        assert_eq!(service.get("/healthz").unwrap().0, 200);
        assert!(service.terminate().success());
    }
}

#[test]
fn a_port_for_tls_and_one_without_are_told_apart() {
    let (temp, runtime, ca) = (tempfile::tempdir().unwrap(), runtime(), Ca::new("provider"));
    let provider = Provider::start("127.0.0.1:0", BASE_SLOT + 1, 100).unwrap();
    let tls = tls_before(&runtime, provider.address(), &ca, true);
    let ca_file = temp.path().join("ca");
    std::fs::write(&ca_file, &ca.pem).unwrap();
    let trusts = ["--geyser-ca", ca_file.to_str().unwrap()];
    for (geyser, more, words) in [
        (format!("http://127.0.0.1:{tls}"), &[][..], "give https://"),
        (format!("https://localhost:{}", provider.address().port()), &trusts, "give http://"),
    ] {
        let mut service = service(temp.path(), &geyser, more);
        let said = wait_for_words(&mut service, &[words]);
        assert!(!said.contains("filter"), "{said}");
        assert!(service.terminate().success());
    }
    provider.stop().unwrap();
}

#[test]
fn a_load_balancer_that_negotiates_no_protocol_is_followed() {
    let (temp, runtime, ca) = (tempfile::tempdir().unwrap(), runtime(), Ca::new("provider"));
    let provider = Provider::start("127.0.0.1:0", BASE_SLOT + 1, 100).unwrap();
    let tls = tls_before(&runtime, provider.address(), &ca, false);
    let ca_file = temp.path().join("ca");
    std::fs::write(&ca_file, &ca.pem).unwrap();
    let trusts = ["--geyser-ca", ca_file.to_str().unwrap()];
    let mut service = service(temp.path(), &format!("https://localhost:{tls}"), &trusts);
    service.wait_for_slot(BASE_SLOT + 2);
    assert!(service.terminate().success());
    provider.stop().unwrap();
}

#[test]
fn a_server_that_only_sends_compressed_is_followed_where_the_setting_asks_for_it() {
    for encoding in ["zstd", "gzip"] {
        let (temp, options) = (tempfile::tempdir().unwrap(), columns().remove(0));
        let line = format!("--pairs 500 --events 20000 --events-per-slot 200 --compression {encoding}");
        let (stream, workload) = stream(&line);
        let (store, geyser) = (temp.path().join("store"), format!("http://{}", stream.address()));
        load(&store, &options, &workload);
        let mut service = Service::start(&store, &options, &geyser, &[]);
        let setting = format!("give compression = \"{encoding}\"");
        let said = wait_for_words(&mut service, &["which it was not asked for", &setting]);
        assert!(!said.contains("filter"), "{said}");
        assert!(service.terminate().success());
        let mut service = Service::start(&store, &options, &compressed(&store, &geyser, encoding), &[]);
        let end = end(&stream);
        service.wait_for_slot(end.slot);
        assert!(service.log().contains("17 to 20 times slower"), "{}", service.log());
        assert!(service.terminate().success());
        assert_eq!(digest(&store, &options), end.digest);
        stream.stop().unwrap();
    }
}

#[test]
fn filters_that_a_server_refuses_name_follow_only_where_it_helps() {
    let temp = tempfile::tempdir().unwrap();
    let (stream, _) = stream("--pairs 500 --events 1000 --extract token-owner --filter-limits sample");
    let geyser = format!("http://{}", stream.address());
    let extract = ["--extract", "token-owner"];
    for (follow, words, helps) in [
        (&[][..], "at least one filter required", true),
        (&["--follow", "wallets"], "only 1 allowed", false),
        (&["--follow", "closed"], "only 1 allowed", false),
    ] {
        let mut service = service(temp.path(), &geyser, &[&extract, follow].concat());
        let said = wait_for_words(&mut service, &[words, "allow the filters"]);
        assert_eq!(said.contains("see follow"), helps, "{said}");
        assert!(service.terminate().success());
    }
    stream.stop().unwrap();
}

#[test]
fn with_one_place_the_ingest_gets_it_and_processed_slots_say_that_they_need_another() {
    let (temp, options) = (tempfile::tempdir().unwrap(), columns().remove(0));
    let line = "--pairs 500 --events 100000 --events-per-slot 100 --rate 5000 --subscriptions-max 1 --confirm-after 2 \
                --disconnect-every 20000";
    let (stream, workload) = stream(line);
    let store = temp.path().join("store");
    load(&store, &options, &workload);
    let mut service = Service::start(&store, &options, &format!("http://{}", stream.address()), &["--processed"]);
    // The stream is cut now and then, which is an error as well.
    wait_for("the reason", || {
        let status = service.status();
        let error = status["providers"][0]["last_error"].as_str().unwrap_or_default();
        error.contains("processed = true takes two").then_some(())
    });
    let end = end(&stream);
    service.wait_for_slot(end.slot);
    assert!(service.terminate().success());
    assert_eq!(digest(&store, &options), end.digest);
    stream.stop().unwrap();
}

#[test]
fn a_service_that_is_pointed_at_itself_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    for (listen, geyser, is_own) in [
        ("127.0.0.1:7400", "http://localhost:7400", true),
        ("0.0.0.0:7400", "http://127.0.0.1:7400", true),
        ("127.0.0.1:7400", "http://127.0.0.1:7401", true),
        ("127.0.0.1:7400", "http://127.0.0.1:7402", false),
        ("127.0.0.1:7400", "http://10.0.0.1:7400", false),
    ] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_service"));
        command.args(["check-config", "--listen", listen, "--geyser", geyser, "--insecure", "--create-empty"]);
        command.args(["--extract", "account-owner", "--engine", columns().remove(0).engine.as_str()]);
        let output = command.arg("--dir").arg(temp.path().join("none")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.contains("is this service's own address"), is_own, "{listen} {geyser}: {said}");
        assert_eq!(output.status.code(), Some(if is_own { 2 } else { 0 }), "{listen} {geyser}: {said}");
    }
}

#[test]
fn check_config_warns_of_compression_and_of_too_little_memory() {
    let temp = tempfile::tempdir().unwrap();
    let memory = (probe::memory_limit().bytes - (100 << 20)).to_string();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_service"));
    let config = compressed(&temp.path().join("store"), "http://127.0.0.1:1", "zstd");
    command.args(["check-config", "--config", &config]);
    command.args(["--memory", &memory, "--create-empty", "--engine", "strata", "--extract", "account-owner"]);
    let output = command.arg("--dir").arg(temp.path().join("none")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    for warning in ["# warning: compression=zstd", "leaves rest=100.0 MiB of memory_limit="] {
        assert!(said.contains(warning), "{said}{}", String::from_utf8_lossy(&output.stderr));
    }
}
