//! Archives from a server: loaded and verified by the program, whole or in parts, also over TLS.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, thread};

use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::archive::{newest, versions, write_archive};
use crate::{command, digest, engines, ok, str, text};

/// Bytes of an answer's body before the connection is cut: a load takes several connections.
const CUT: usize = 4_000_000;

/// A server of the files of one directory, which counts the requests for the rest of a file.
struct Server {
    host: String,
    rests: Arc<AtomicUsize>,
}

impl Server {
    /// Serves at most `sent` bytes in an answer.
    fn start(dir: PathBuf, sent: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (host, rests) = (listener.local_addr().unwrap().to_string(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&rests);
        // The thread waits for connections for as long as the test program lives.
        thread::spawn(move || {
            listener.incoming().for_each(|stream| answer(&mut stream.unwrap(), &dir, sent, &counted))
        });
        Self { host, rests }
    }

    fn url(&self, file: &Path) -> String {
        format!("http://{}/{}", self.host, file.file_name().unwrap().to_str().unwrap())
    }
}

/// Answers one request, for a file of `dir` or the rest of it.
fn answer(stream: &mut (impl Read + Write), dir: &Path, sent: usize, rests: &AtomicUsize) {
    let lines = BufReader::new(&mut *stream).lines();
    let lines: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
    let Some(first) = lines.first() else { return };
    let (method, rest) = first.split_once(" /").unwrap();
    let (is_head, name) = (method == "HEAD", rest.split(' ').next().unwrap());
    let file = fs::read(dir.join(name)).unwrap();
    let range =
        lines.iter().find_map(|line| line.to_ascii_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
    let from: usize = range.map_or(0, |range| range.split('-').next().unwrap().parse().unwrap());
    let status = if from > 0 { "206 Partial Content" } else { "200 OK" };
    let mut head = format!("HTTP/1.1 {status}\r\nconnection: close\r\netag: \"{}\"\r\n", file.len());
    head += &format!("content-length: {}\r\n", file.len() - from);
    if from > 0 {
        // ORDERING: Relaxed: the count is read after the load has ended.
        rests.fetch_add(1, Ordering::Relaxed);
        head += &format!("content-range: bytes {from}-{}/{}\r\n", file.len() - 1, file.len());
    }
    let body = if is_head { &[][..] } else { &file[from..file.len().min(from + sent)] };
    // A client that goes away is its own business.
    stream.write_all(format!("{head}\r\n").as_bytes()).and_then(|()| stream.write_all(body)).ok();
}

#[test]
fn an_archive_is_loaded_from_a_server_that_cuts_its_connections() {
    let home = tempfile::tempdir().unwrap();
    let made = versions(4);
    let archive = write_archive(home.path(), 200, &made);
    let engine = engines().next().unwrap();
    for sent in [CUT, usize::MAX] {
        let server = Server::start(home.path().to_owned(), sent);
        let store = home.path().join(format!("{sent}"));
        let url = server.url(&archive);
        let source = ["--input", url.as_str()];
        let load = ["--engine", engine, "--dir", str(&store), "--sort-memory", "1MiB", "--extract", "token-owner"];
        let said = ok(&[&load[..], &source].concat());
        let info = ok(&["info", "--dir", str(&store), "--digest"]);
        assert!(info.contains(&digest(&newest(&made))) && info.contains("slot=200"), "{said} {info}");
        // ORDERING: Relaxed: the load has ended.
        let rests = server.rests.load(Ordering::Relaxed);
        assert_eq!(rests > 0, sent == CUT, "sent={sent} rests={rests}");
        let verified = ok(&[&["verify", "--dir", str(&store)][..], &source].concat());
        assert!(verified.contains("equal: "), "{verified}");
    }
}

#[test]
fn a_server_is_trusted_by_the_certificates_that_ssl_cert_file_names() {
    let home = tempfile::tempdir().unwrap();
    let made = versions(5);
    let archive = write_archive(home.path(), 200, &made);
    let authority = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let trusted = home.path().join("trusted.pem");
    fs::write(&trusted, authority.cert.pem()).unwrap();
    let key = PrivateKeyDer::try_from(authority.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![authority.cert.der().clone()], key)
        .unwrap();
    let (config, dir) = (Arc::new(config), home.path().to_owned());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap();
    // The thread waits for connections for as long as the test program lives.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let session = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = StreamOwned::new(session, stream.unwrap());
            answer(&mut stream, &dir, usize::MAX, &AtomicUsize::new(0));
            stream.conn.send_close_notify();
            // A client that goes away is its own business.
            stream.flush().ok();
        }
    });
    let (engine, store) = (engines().next().unwrap(), home.path().join("store"));
    let url = format!("https://{host}/{}", archive.file_name().unwrap().to_str().unwrap());
    let load = ["--engine", engine, "--dir", str(&store), "--extract", "token-owner", "--input", &url];
    let other = home.path().join("other.pem");
    fs::write(&other, rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap().cert.pem()).unwrap();
    let output = command(&load).env("SSL_CERT_FILE", &other).output().unwrap();
    assert!(!output.status.success() && text(&output).contains("invalid peer certificate"), "{}", text(&output));
    let output = command(&load).env("SSL_CERT_FILE", &trusted).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let info = ok(&["info", "--dir", str(&store), "--digest"]);
    assert!(info.contains(&digest(&newest(&made))), "{info}");
}
