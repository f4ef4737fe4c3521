//! Tests of a provider, with pipes in memory and files of their own. Must not: open a socket.

use super::*;
use crate::net::secrets::tests::file;

#[test]
fn only_scheme_host_and_port_of_a_url_are_shown() {
    for (url, expected) in [
        ("https://geyser.example:443", "https://geyser.example:443"),
        ("https://geyser.example/", "https://geyser.example"),
        ("http://user:s3cret@h:1", "http://...@h:1"),
        ("https://s3cret@h", "https://...@h"),
        ("https://h:443/s3cret", "https://h:443/..."),
        ("https://h?key=s3cret", "https://h/..."),
        ("https://[::1]:443/s3cret", "https://[::1]:443/..."),
        ("s3cret", "(not a URL)"),
        ("https://s3 cret", "(not a URL)"),
    ] {
        assert_eq!(shown(url), expected);
    }
}

#[test]
fn a_token_that_crosses_a_network_unencrypted_is_warned_of() {
    let of = |url: &str, token: Option<&str>| Settings {
        url: url.to_owned(),
        token_file: token.map(PathBuf::from),
        token_header: "x-token".to_owned(),
        ca: None,
        cert: None,
        key: None,
        compression: Compression::default(),
    };
    let caution = of("http://h.example:1/s3cret", Some("/t")).cautions().next().unwrap();
    assert!(caution.contains("geyser=http://h.example:1/...") && !caution.contains("s3cret"), "{caution}");
    for url in ["https://h.example:1", "http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1"] {
        assert_eq!(of(url, Some("/t")).cautions().next(), None, "{url}");
    }
    assert_eq!(of("http://h.example:1", None).cautions().next(), None);
}

#[test]
fn ports_that_nobody_can_listen_on_are_told_from_others() {
    for url in ["http://h:1", "https://h", "http://[::1]:65535/path", "http://user:s3cret@h:443", "https://h/a:0"] {
        assert!(has_usable_port(url), "{url}");
    }
    for url in ["http://h:0", "http://127.0.0.1:99999", "http://user:1@[::1]:65536", "http://h:", "http://h:x"] {
        assert!(!has_usable_port(url), "{url}");
    }
}

#[test]
fn headers_that_cannot_carry_a_token_are_refused() {
    for name in ["x-token", "authorization", "x-api-key", "x_api_key"] {
        check_header(name).unwrap();
    }
    for name in ["", "X-Token", "x token", "grpc-timeout", "content-type", "key-bin"] {
        assert!(check_header(name).unwrap_err().to_string().contains("x_token_header"), "{name}");
    }
}

#[test]
fn a_small_memory_limit_makes_the_window_smaller() {
    assert_eq!([1 << 20, 64 << 20, 96 << 20].map(window_within), [2 << 20, 2 << 20, 3 << 20]);
    assert_eq!([512 << 20, 1 << 30, u64::MAX].map(window_within), [16 << 20, 32 << 20, 32 << 20]);
}

/// h2 ends a connection on which too many small frames wait. If the windows do not fit together, it does so before
/// the stream's window is full.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn small_messages_that_wait_to_be_read_end_no_connection() {
    use loadgen::provider::Act;
    use yellowstone_grpc_proto::geyser::SubscribeRequest;
    use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;

    /// Slots of 3000 updates each, in frames of 110 bytes: 22 MB. A smaller window holds fewer.
    const SLOTS: u64 = 70;
    let window = window_within(probe::memory_limit().bytes);
    let waiting = (u64::from(window) / (3000 * 150)).min(SLOTS);
    let server = loadgen::provider::Provider::start("127.0.0.1:0", 1000, 1).unwrap();
    server.set(Act::Small);
    let settings = Settings { url: format!("http://{}", server.address()), ..Settings::default() };
    let provider = Provider::new(settings, watch::channel(0).1);
    let mut client = provider.client().await.unwrap();
    let requests = futures::stream::iter([SubscribeRequest { from_slot: Some(1000), ..Default::default() }]);
    let requests = futures::StreamExt::chain(requests, futures::stream::pending());
    let mut updates = client.subscribe(requests).await.unwrap().into_inner();
    let late = tokio::time::Instant::now() + Duration::from_secs(100);
    while server.figures().sent < 1000 + waiting {
        let sent = server.figures().sent;
        assert!(tokio::time::Instant::now() < late, "the server cannot send what the window has room for: {sent}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut accounts = 0;
    while accounts < SLOTS * 3000 {
        let update = updates.message().await.unwrap_or_else(|ended| panic!("after {accounts} updates: {ended}"));
        let update = update.expect("the server goes on");
        accounts += u64::from(matches!(update.update_oneof, Some(UpdateOneof::Account(_))));
    }
    assert_eq!(server.figures().subscriptions, 1);
    server.stop().unwrap();
}

#[tokio::test]
async fn a_new_token_is_noticed_at_a_hangup_and_no_secret_is_printed() {
    let dir = tempfile::tempdir().unwrap();
    let token = file(dir.path(), "token", "token-one\n", 0o600);
    let settings = Settings {
        url: "http://user:s3cret@127.0.0.1:1/s3cret".to_owned(),
        token_file: Some(token),
        token_header: "x-token".to_owned(),
        ..Settings::default()
    };
    settings.check().unwrap();
    let (hangup, hangups) = watch::channel(0);
    let provider = Provider::new(settings, hangups);
    let failed = format!("{:#}", provider.client().await.err().unwrap());
    assert!(!failed.contains("s3cret") && !failed.contains("token-one"), "{failed}");
    let quoted = provider.masked(r#"message="no such key: /s3cret, token token-one of user""#);
    assert_eq!(quoted, r#"message="no such key: /(hidden), token (hidden) of user""#);
    let used = format!("{:?} {}", lock(&provider.used), provider.shown());
    assert!(!used.contains("s3cret") && !used.contains("token-one"), "{used}");
    let renewed = tokio::time::timeout(Duration::from_millis(200), provider.renewed());
    let (early, ()) = tokio::join!(renewed, async {
        hangup.send_replace(1);
    });
    assert!(early.is_err(), "the same token is no reason to connect anew");
    file(dir.path(), "token", "token-two\n", 0o600);
    tokio::join!(provider.renewed(), async {
        hangup.send_replace(2);
    });
}
