//! The Redis protocol over real sockets and a real store.

use std::path::PathBuf;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;
use crate::base::setting::Given as _;
use crate::lookups::LookupState;
use crate::lookups::tests::{Pool, commit, later};
use crate::net::limit::tests::ROOMY;
use crate::net::limit::{ConnectionLimits, Room};
use crate::net::socket::SocketAccess;
use crate::net::uds::UdsListener;
use crate::net::{Access, AccessGiven};
use crate::pages::handles::Handles;

const TOKEN: &str = "a-token-of-some-length";

/// Base58 of `[1; 32]` and of `[7; 32]`, its value.
const KEY: &str = "4vJ9JU1bJJE96FWSJKvHsmmFADCg4gpZQff4P3bkLKi";
const VALUE: &str = "US517G5965aydkZ46HS38QLi7UQiSojurfbQfKCELFx";

struct Running {
    pool: Pool,
    address: std::net::SocketAddr,
    socket: PathBuf,
    stop: oneshot::Sender<()>,
    server: JoinHandle<anyhow::Result<()>>,
}

async fn start(token: Option<&str>) -> Running {
    let pool = Pool::start();
    let socket = pool.dir.path().join("redis.sock");
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap();
    let bearer_token_file = token.map(|token| {
        let file = pool.dir.path().join("tokens");
        std::fs::write(&file, token).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        file
    });
    let access = AccessGiven { bearer_token_file, ..AccessGiven::default() }.in_effect().unwrap();
    let Handles { status, lookups: LookupState { overlay, .. }, net, .. } = pool.handles.clone();
    let limits = ConnectionLimits { idle_timeout: Duration::from_secs(10), ..ROOMY };
    let door = Door {
        tcp: Some(tcp),
        uds: Some(UdsListener::bind(&socket, &SocketAccess::OWNER).unwrap()),
        access: Arc::new(Access::open(&access).unwrap()),
        room: Room::new(limits, &net),
    };
    let ask = Ask::new(pool.lookups.clone(), overlay, net);
    let (stop, stopped) = oneshot::channel();
    let server = tokio::spawn(serve(door, ask, status, stopped.map(|_| ())));
    Running { pool, address, socket, stop, server }
}

impl Running {
    async fn local(&self) -> UnixStream {
        UnixStream::connect(&self.socket).await.unwrap()
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.server.await.unwrap().unwrap();
        assert!(!self.socket.exists(), "the socket's file is removed");
        self.pool.threads.join(later()).unwrap();
    }
}

/// Returns a request of these words.
fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Sends a request of these words, and reads an answer of the length of the one that is expected.
async fn ask(client: &mut (impl AsyncRead + AsyncWrite + Unpin), words: &[&str], expected: &str) {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    client.write_all(&request(&words)).await.unwrap();
    answered(client, expected).await;
}

async fn answered(client: &mut (impl AsyncRead + Unpin), expected: &str) {
    let mut answer = vec![0; expected.len()];
    let read = tokio::time::timeout(Duration::from_secs(20), client.read_exact(&mut answer)).await;
    let shown = String::from_utf8_lossy(&answer);
    assert!(matches!(read, Ok(Ok(_))), "{read:?}: {shown:?} where {expected:?}");
    assert_eq!(shown, expected);
}

/// Reads until the service ends the connection.
async fn rest(client: &mut (impl AsyncRead + Unpin)) -> String {
    let mut rest = Vec::new();
    // A reset ends it as well: the service does not read all that was sent.
    let _reset = tokio::time::timeout(Duration::from_secs(20), client.read_to_end(&mut rest)).await.unwrap();
    String::from_utf8_lossy(&rest).into_owned()
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

#[tokio::test]
async fn each_command_answers_in_the_form_of_its_keys() {
    let run = start(None).await;
    let mut client = run.local().await;
    let (raw, absent) = (String::from_utf8([1; 32].to_vec()).unwrap(), "x".repeat(32));
    let raw_value = String::from_utf8([7; 32].to_vec()).unwrap();
    let client = &mut client;
    ask(client, &["PING"], "+PONG\r\n").await;
    ask(client, &["ping", "hello"], "$5\r\nhello\r\n").await;
    ask(client, &["GET", &raw], &bulk(&raw_value)).await;
    ask(client, &["get", KEY], &bulk(VALUE)).await;
    ask(client, &["GET", &format!("b58:{KEY}")], &bulk(VALUE)).await;
    ask(client, &["GET", &absent], "$-1\r\n").await;
    ask(client, &["EXISTS", &raw, KEY, &absent], ":2\r\n").await;
    ask(client, &["MGET", KEY, &absent, &raw], &format!("*3\r\n{}$-1\r\n{}", bulk(VALUE), bulk(&raw_value))).await;
    ask(client, &["SOLKV.GET", KEY, "MINSLOT", "7"], &format!("*2\r\n{}:7\r\n", bulk(VALUE))).await;
    let pair = format!("*2\r\n*2\r\n{}$-1\r\n:7\r\n", bulk(VALUE));
    ask(client, &["SOLKV.MGET", KEY, &absent, "commitment", "confirmed"], &pair).await;
    ask(client, &["SOLKV.COMMITMENT"], "+confirmed\r\n").await;
    ask(client, &["SOLKV.COMMITMENT", "processed"], "+OK\r\n").await;
    ask(client, &["GET", KEY], "-ERR E-COMMITMENT: this service does not follow processed slots").await;
    let _rest = client.try_read(&mut [0; 1000]);
    ask(client, &["SOLKV.COMMITMENT", "confirmed"], "+OK\r\n").await;
    ask(client, &["SOLKV.GETAT", KEY, "7"], "-ERR E-DERIVED: this service keeps no past").await;
    let _rest = client.try_read(&mut [0; 1000]);
    ask(client, &["SOLKV.KEYSOF", VALUE], "-ERR E-DERIVED: the map has no derived store `values`").await;
    let _rest = client.try_read(&mut [0; 1000]);
    ask(client, &["CONFIG", "GET", "save"], "*2\r\n$4\r\nsave\r\n$0\r\n\r\n").await;
    ask(client, &["COMMAND", "COUNT"], ":17\r\n").await;
    ask(client, &["SELECT", "0"], "+OK\r\n").await;
    ask(client, &["HELLO", "3", "SETNAME", "me"], "%7\r\n$6\r\nserver\r\n$5\r\nsolkv\r\n").await;
    let _rest = client.try_read(&mut [0; 1000]);
    ask(client, &["CLIENT", "GETNAME"], "$2\r\nme\r\n").await;
    ask(client, &["GET", &absent], "_\r\n").await;
    for (words, error) in [
        (vec!["SET", KEY, VALUE], "-ERR E-REQUEST: unknown command 'SET'"),
        (vec!["GET"], "-ERR E-REQUEST: wrong number of arguments for 'GET'"),
        (vec!["GET", "short"], "-ERR E-REQUEST: a key is 32 bytes"),
        (vec!["MGET", KEY, "short"], "-ERR E-REQUEST: a key is 32 bytes"),
        (vec!["SOLKV.GET", KEY, "LIMIT", "7"], "-ERR E-REQUEST: unknown option: use COMMITMENT, MINSLOT"),
        (vec!["SELECT", "1"], "-ERR E-REQUEST: no such map"),
        (vec!["HELLO", "4"], "-NOPROTO unsupported protocol version"),
        (vec!["CONFIG", "SET", "save", ""], "-ERR E-REQUEST: use CONFIG GET"),
    ] {
        ask(client, &words, error).await;
        let _rest = client.try_read(&mut [0; 1000]);
    }
    ask(client, &["QUIT"], "+OK\r\n").await;
    assert_eq!(rest(client).await, "");
    run.stop().await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_their_order_and_counted() {
    let run = start(None).await;
    for slot in 8..208 {
        commit(&run.pool.engine, &run.pool.handles.lookups, [slot as u8; 32], slot);
    }
    let mut client = run.local().await;
    let (mut sent, mut expected) = (Vec::new(), Vec::new());
    for slot in 8..208u8 {
        sent.extend(request(&[b"GET", &[slot; 32]]));
        expected.extend([b"$32\r\n".as_slice(), &[slot; 32], b"\r\n"].concat());
        match slot % 50 {
            0 => {
                sent.extend(request(&[b"PING"]));
                expected.extend_from_slice(b"+PONG\r\n");
            }
            1 => {
                sent.extend(request(&[b"GET", b"b58:1"]));
                let error = "-ERR E-REQUEST: a key is 32 bytes, or base58 of them in 33 to 44 characters, or in any number after \
                             `b58:`: got_bytes=5\r\n";
                expected.extend_from_slice(error.as_bytes());
            }
            2 => {
                sent.extend(request(&[b"GET", &[250; 32]]));
                expected.extend_from_slice(b"$-1\r\n");
            }
            _ => {}
        }
    }
    let mut answers = vec![0; expected.len()];
    let (mut reads, mut writes) = client.split();
    let (written, read) = tokio::join!(writes.write_all(&sent), reads.read_exact(&mut answers));
    written.unwrap();
    read.unwrap();
    assert_eq!(answers, expected);
    client.write_all(b"INFO\r\n").await.unwrap();
    let mut info = vec![0; 2000];
    let length = client.read(&mut info).await.unwrap();
    let info = String::from_utf8_lossy(&info[..length]).into_owned();
    assert!(info.contains("keyspace_hits:200\r\nkeyspace_misses:4\r\n") && info.contains("solkv_slot:207"), "{info}");
    drop(client);
    run.stop().await;
}

#[tokio::test]
async fn nothing_but_a_ping_is_answered_without_the_token() {
    let run = start(Some(TOKEN)).await;
    let mut client = TcpStream::connect(run.address).await.unwrap();
    let client = &mut client;
    ask(client, &["PING"], "+PONG\r\n").await;
    for words in [vec!["GET", KEY], vec!["INFO"], vec!["HELLO", "3"], vec!["COMMAND"], vec!["SELECT", "0"]] {
        ask(client, &words, "-NOAUTH E-TOKEN: a bearer token is required: send AUTH TOKEN\r\n").await;
    }
    ask(client, &["AUTH", "another-token-of-some-length"], "-NOAUTH E-TOKEN: the bearer token is not among those")
        .await;
    let _rest = client.try_read(&mut [0; 1000]);
    ask(client, &["GET", KEY], "-NOAUTH E-TOKEN: a bearer token is required: send AUTH TOKEN\r\n").await;
    ask(client, &["HELLO", "2", "AUTH", "default", TOKEN], "*14\r\n").await;
    let _rest = client.try_read(&mut [0; 1000]);
    ask(client, &["GET", KEY], &bulk(VALUE)).await;
    let mut other = TcpStream::connect(run.address).await.unwrap();
    other.write_all(b"*11\r\n").await.unwrap();
    assert!(
        rest(&mut other).await.starts_with("-ERR E-REQUEST: Protocol error: too many words"),
        "bounded before the token"
    );
    ask(&mut run.local().await, &["GET", KEY], &bulk(VALUE)).await;
    run.stop().await;
}

#[tokio::test]
async fn a_request_of_another_protocol_ends_the_connection_before_its_next_line() {
    let run = start(None).await;
    for begin in
        ["POST / HTTP/1.1", "GET / HTTP/1.1", "Host: localhost", "OPTIONS * HTTP/1.1", "*1", "$3\r\nGET", "GET short"]
    {
        let mut client = TcpStream::connect(run.address).await.unwrap();
        client.write_all(format!("{begin}\r\n\r\nGET {KEY}\r\nGET {KEY}\r\n").as_bytes()).await.unwrap();
        let said = rest(&mut client).await;
        assert!(said.starts_with("-ERR") && !said.contains(VALUE), "{begin}: {said:?}");
    }
    let mut client = run.local().await;
    client.write_all(format!("GET {KEY}\r\n").as_bytes()).await.unwrap();
    answered(&mut client, &bulk(VALUE)).await;
    run.stop().await;
}

#[tokio::test]
async fn the_largest_batch_is_answered_and_a_larger_request_is_not_read() {
    let run = start(None).await;
    let mut client = run.local().await;
    let keys: Vec<String> = (0..proto::v1::GET_MANY_KEYS_MAX).map(|_| format!("b58:{KEY}")).collect();
    let words: Vec<&[u8]> = std::iter::once("MGET").chain(keys.iter().map(String::as_str)).map(str::as_bytes).collect();
    let expected = format!("*{}\r\n{}", keys.len(), bulk(VALUE).repeat(keys.len()));
    for _ in 0..2 {
        client.write_all(&request(&words)).await.unwrap();
        answered(&mut client, &expected).await;
    }
    // As long as a word may be, again and again: nobody asks so.
    let long = request(
        &[b"MGET".as_slice()].into_iter().chain(std::iter::repeat_n([0; 4096].as_slice(), 300)).collect::<Vec<_>>(),
    );
    let _cut = client.write_all(&long).await;
    let said = rest(&mut client).await;
    assert!(said.is_empty() || said.starts_with("-ERR E-REQUEST: Protocol error: too large a request"), "{said:?}");
    let held = run.pool.handles.net.held(crate::net::figures::Place::Bytes);
    assert_eq!(held.load(std::sync::atomic::Ordering::Relaxed), 0, "and nothing stays charged");
    run.stop().await;
}

#[tokio::test]
async fn a_large_request_in_small_pieces_counts_as_its_bytes() {
    let running = start(None).await;
    let mut client = running.local().await;
    let words: Vec<&[u8]> = std::iter::once(b"MGET".as_slice()).chain([KEY.as_bytes(); 10_000]).collect();
    let mut reading = 0;
    for piece in request(&words).chunks(60) {
        client.write_all(piece).await.unwrap();
        // The service has its turn, and reads the piece alone.
        tokio::task::yield_now().await;
        reading += 1;
    }
    assert!(reading > 8000, "as many readings would be 128 MiB, if each counted as the largest");
    let expected = format!("*10000\r\n{}", bulk(VALUE).repeat(10_000));
    answered(&mut client, &expected).await;
    running.stop().await;
}

#[tokio::test]
async fn a_wrong_token_takes_nothing_from_a_right_one() {
    let running = start(Some(TOKEN)).await;
    let mut client = TcpStream::connect(running.address).await.unwrap();
    ask(&mut client, &["AUTH", TOKEN], "+OK\r\n").await;
    ask(&mut client, &["AUTH", "another-token-of-length"], "-NOAUTH E-TOKEN: the bearer token is not among those")
        .await;
    let rest_of_line = " of the service's bearer_token_file\r\n";
    answered(&mut client, rest_of_line).await;
    ask(&mut client, &["PING"], "+PONG\r\n").await;
    ask(&mut client, &["GET", KEY], &bulk(VALUE)).await;
    running.stop().await;
}
