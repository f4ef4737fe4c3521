//! Access control by addresses, certificates, tokens and the Unix socket. No secret is ever shown.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use proto::v1::kv_client::KvClient;
use proto::v1::{GetRequest, GetResponse};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use tempfile::TempDir;
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;

use crate::support::{Service, Signal, client_runtime, columns, secret, uds_channel, wait_for};

/// Stream address at which nothing listens, because these tests need no stream.
const NO_STREAM: &str = "http://127.0.0.1:1";

const TOKEN: &str = "first-token-0123456789";
const OTHER_TOKEN: &str = "other-token-0123456789";

pub(crate) struct Ca {
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate with its private key, PEM.
pub(crate) struct Leaf {
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Ca {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    fn issue(&self, last_year: i32) -> Leaf {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(last_year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap().pem();
        Leaf { cert, key: key.serialize_pem() }
    }

    pub(crate) fn valid(&self) -> Leaf {
        self.issue(2999)
    }
}

impl Leaf {
    fn identity(&self) -> Identity {
        Identity::from_pem(&self.cert, &self.key)
    }

    pub(crate) fn write(&self, dir: &Path) -> (PathBuf, PathBuf) {
        let (cert, key) = (dir.join("cert.pem"), dir.join("key.pem"));
        std::fs::write(&cert, &self.cert).unwrap();
        secret(&key, &self.key);
        (cert, key)
    }

    /// Returns the lines of the private key, without its markers.
    fn secret_lines(&self) -> impl Iterator<Item = &str> {
        self.key.lines().filter(|line| !line.starts_with('-'))
    }
}

async fn get(channel: Channel, token: Option<&str>) -> Result<GetResponse, Status> {
    let mut request = Request::new(GetRequest { key: vec![1; 32].into(), ..Default::default() });
    if let Some(token) = token {
        let value: MetadataValue<_> = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().insert("authorization", value);
    }
    KvClient::new(channel).get(request).await.map(tonic::Response::into_inner)
}

/// Connects and sends a request. With TLS 1.3 a client learns only from the first answer that its certificate is
/// refused.
async fn ask_tls(listen: &str, ca: &Ca, identity: Option<Identity>) -> Result<GetResponse, String> {
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&ca.pem)).domain_name("localhost");
    if let Some(identity) = identity {
        tls = tls.identity(identity);
    }
    let endpoint = Endpoint::from_shared(format!("https://{listen}")).unwrap().tls_config(tls).unwrap();
    let channel = endpoint.connect().await.map_err(|error| format!("{error:?}"))?;
    get(channel, None).await.map_err(|status| format!("{status:?}"))
}

async fn plain(listen: &str) -> Channel {
    Endpoint::from_shared(format!("http://{listen}")).unwrap().connect().await.unwrap()
}

fn listens(service: &mut Service) {
    wait_for("its first page", || service.get("/healthz"));
}

/// Runs the program with these arguments and returns its message. It must refuse to start.
fn refusal(temp: &TempDir, args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_service"));
    let engine = engines::compiled()[0].as_str();
    command
        .args(["run", "--engine", engine, "--extract", "token-mint", "--geyser", NO_STREAM, "--dir"])
        .arg(temp.path().join("refused"));
    let output = command.args(args).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?} is not refused: {text}");
    assert!(!temp.path().join("refused").exists(), "the store is made before {args:?} is refused");
    text
}

#[test]
fn with_mutual_tls_only_clients_of_its_ca_are_served() {
    let (temp, options) = (tempfile::tempdir().unwrap(), columns().remove(0));
    let (ours, theirs) = (Ca::new("ours"), Ca::new("theirs"));
    let server = ours.valid();
    let (cert, key) = server.write(temp.path());
    let client_ca = temp.path().join("ca.pem");
    std::fs::write(&client_ca, &ours.pem).unwrap();
    let mut service = Service::start_on("127.0.0.1", &temp.path().join("store"), &options, NO_STREAM, |command| {
        command.arg("--tls-cert").arg(cert).arg("--tls-key").arg(key).arg("--tls-client-ca").arg(client_ca)
    });
    listens(&mut service);
    let listen = service.listen.clone();
    let failed = |service: &mut Service| service.metric("solkv_tls_handshakes_failed_total").unwrap();
    assert_eq!(failed(&mut service), 0.0);
    let runtime = client_runtime();
    let mut refused = 0.0;
    for (who, identity) in [
        ("one without a certificate", None),
        ("one of another CA", Some(theirs.valid().identity())),
        ("one whose certificate is over", Some(ours.issue(2021).identity())),
    ] {
        let answer = runtime.block_on(ask_tls(&listen, &ours, identity));
        assert!(answer.is_err(), "{who} is served: {answer:?}");
        refused += 1.0;
        wait_for(who, || (failed(&mut service) >= refused).then_some(()));
        refused = failed(&mut service);
    }
    let answer = runtime.block_on(async { get(plain(&listen).await, None).await });
    assert!(answer.is_err(), "plain text is served: {answer:?}");
    wait_for("plain text", || (failed(&mut service) > refused).then_some(()));
    let refused = failed(&mut service);
    runtime.block_on(ask_tls(&listen, &ours, Some(ours.valid().identity()))).unwrap();
    assert_eq!(failed(&mut service), refused);
    // The client checks the service's certificate as well.
    assert!(runtime.block_on(ask_tls(&listen, &theirs, Some(ours.valid().identity()))).is_err());
    assert!(service.terminate().success());
}

#[test]
fn certificates_and_tokens_are_read_again_at_sighup_and_bad_ones_change_nothing() {
    let (temp, options) = (tempfile::tempdir().unwrap(), columns().remove(0));
    let (old, new) = (Ca::new("old"), Ca::new("new"));
    let (cert, key) = old.valid().write(temp.path());
    let tokens = temp.path().join("tokens");
    secret(&tokens, TOKEN);
    let mut service = Service::start_on("127.0.0.1", &temp.path().join("store"), &options, NO_STREAM, |command| {
        let command = command.arg("--tls-cert").arg(&cert).arg("--tls-key").arg(&key);
        command.arg("--bearer-token-file").arg(&tokens)
    });
    listens(&mut service);
    let (listen, runtime) = (service.listen.clone(), client_runtime());
    // No token is sent: an error about the token means that the handshake succeeded.
    let known = |ca: &Ca| {
        let error = runtime.block_on(ask_tls(&listen, ca, None)).unwrap_err();
        error.contains("Unauthenticated")
    };
    assert!(known(&old) && !known(&new));
    new.valid().write(temp.path());
    std::fs::write(&tokens, "short").unwrap();
    service.signal(Signal::HUP);
    wait_for("the refusal", || {
        service.log().contains("the earlier certificates and tokens stay in effect").then_some(())
    });
    assert!(known(&old) && !known(&new), "half of it is taken");
    std::fs::write(&tokens, OTHER_TOKEN).unwrap();
    service.signal(Signal::HUP);
    wait_for("the new certificate", || known(&new).then_some(()));
    assert!(!known(&old));
    assert!(service.terminate().success());
}

#[test]
fn without_tls_only_loopback_is_listened_on_unless_told_so() {
    let (temp, options) = (tempfile::tempdir().unwrap(), columns().remove(0));
    for address in ["0.0.0.0:0", "[::]:0"] {
        let text = refusal(&temp, &["--listen", address, "--metrics", "127.0.0.1:0"]);
        for part in [&format!("listen={address}"), "--tls-cert", "--insecure"] {
            assert!(text.contains(part), "{text}");
        }
        let text = refusal(&temp, &["--listen", "127.0.0.1:0", "--metrics", address]);
        for part in [&format!("metrics={address}"), "proxy", "--insecure"] {
            assert!(text.contains(part), "{text}");
        }
    }
    let mut service = Service::start_on("0.0.0.0", &temp.path().join("store"), &options, NO_STREAM, |command| {
        command.arg("--insecure")
    });
    listens(&mut service);
    client_runtime().block_on(async { get(plain(&service.listen).await, None).await }).unwrap();
    let log = service.log();
    assert!(log.contains("gRPC is open to other machines") && log.contains("HTTP is open to other machines"), "{log}");
    assert!(service.terminate().success());
}

#[test]
fn contradicting_certificates_are_refused_before_anything_starts() {
    let temp = tempfile::tempdir().unwrap();
    let ca = Ca::new("ca");
    let (leaf, other) = (ca.valid(), ca.valid());
    let (cert, key) = leaf.write(temp.path());
    let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
    assert!(refusal(&temp, &["--tls-cert", cert]).contains("give --tls-key"));
    assert!(refusal(&temp, &["--tls-client-ca", cert]).contains("give --tls-cert"));
    // A private key named as the certificate must not be quoted.
    let text = refusal(&temp, &["--tls-cert", key, "--tls-key", key]);
    assert!(text.contains("no certificate in it") && leaf.secret_lines().all(|line| !text.contains(line)), "{text}");
    let other_key = temp.path().join("other.pem");
    secret(&other_key, &other.key);
    let text = refusal(&temp, &["--tls-cert", cert, "--tls-key", other_key.to_str().unwrap()]);
    assert!(text.contains("do not match"), "{text}");
    std::fs::set_permissions(key, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(refusal(&temp, &["--tls-cert", cert, "--tls-key", key]).contains("chmod o-r"));
    assert!(refusal(&temp, &["--max-connections", "4000000"]).contains("max_connections"));
}

#[test]
fn over_tcp_a_token_is_required_and_over_the_unix_socket_none() {
    let (temp, options) = (tempfile::tempdir().unwrap(), columns().remove(0));
    let (tokens, uds) = (temp.path().join("tokens"), temp.path().join("kv.sock"));
    secret(&tokens, &format!("# clients\n{TOKEN}\n{OTHER_TOKEN}\n"));
    let mut service = Service::start_on("127.0.0.1", &temp.path().join("store"), &options, NO_STREAM, |command| {
        // At every log level: the libraries' lines about requests must not carry the token.
        command.env("RUST_LOG", "trace").arg("--bearer-token-file").arg(&tokens);
        command.arg("--uds").arg(&uds)
    });
    listens(&mut service);
    assert_eq!(std::fs::metadata(&uds).unwrap().permissions().mode() & 0o777, 0o660);
    client_runtime().block_on(async {
        let channel = plain(&service.listen).await;
        for (token, part) in [(None, "is required"), (Some("wrong-token-0123456789"), "not among")] {
            let status = get(channel.clone(), token).await.unwrap_err();
            assert_eq!(status.code(), Code::Unauthenticated);
            assert!(status.message().contains(part), "{status:?}");
        }
        for token in [TOKEN, OTHER_TOKEN] {
            get(channel.clone(), Some(token)).await.unwrap();
        }
        let asked = HealthCheckRequest { service: "solkv.v1.Kv".to_owned() };
        HealthClient::new(channel.clone()).check(asked).await.unwrap();
        // Every other service is closed, reflection too.
        let answer = ServerReflectionClient::new(channel).server_reflection_info(tokio_stream::empty()).await;
        assert_eq!(answer.unwrap_err().code(), Code::Unauthenticated);
        get(uds_channel(&uds).await.unwrap(), None).await.unwrap();
    });
    assert_eq!(service.metric("solkv_requests_unauthenticated_total"), Some(3.0));
    let log = service.log();
    assert!(log.contains("TRACE"), "the log is not what this test looks through");
    for secret in [TOKEN, OTHER_TOKEN, "wrong-token"] {
        assert!(!log.contains(secret), "the log shows a token");
    }
    assert!(service.terminate().success());
}

#[test]
fn credentials_of_systemd_are_taken_and_check_config_shows_none() {
    let temp = tempfile::tempdir().unwrap();
    let ca = Ca::new("ca");
    let leaf = ca.valid();
    std::fs::write(temp.path().join("tls-cert"), &leaf.cert).unwrap();
    secret(&temp.path().join("tls-key"), &leaf.key);
    std::fs::write(temp.path().join("tls-client-ca"), &ca.pem).unwrap();
    secret(&temp.path().join("bearer-tokens"), TOKEN);
    let check = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_service"));
        command.args(["check-config", "--geyser", NO_STREAM, "--dir", "/store", "--listen", "0.0.0.0:7400"]);
        command.args(["--create-empty", "--extract", "token-mint"]);
        command.env("CREDENTIALS_DIRECTORY", temp.path()).output().unwrap()
    };
    let output = check();
    let text = format!("{}{}", String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{text}");
    assert!(text.contains("# access: TLS, clients must present a certificate, bearer tokens: 1"), "{text}");
    assert!(!text.contains(TOKEN) && leaf.secret_lines().all(|line| !text.contains(line)), "{text}");
    secret(&temp.path().join("tls-key"), &ca.valid().key);
    assert!(!check().status.success(), "the key of another certificate");
}
