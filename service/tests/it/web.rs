//! Lookups over HTTP of a whole service: the same answers as gRPC's on both sockets, beside clients that do not finish.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use client::Builder;
use serde_json::{Value, json};
use workload::Pairs;

use crate::support::{BASE_SLOT, Service, columns, free_address, load, stream, wait_for};

const PAIRS: u64 = 5000;
const SEED: u64 = 1;

/// Sends a request and reads its answer to the end of the connection. Returns the status and the body.
fn exchange(mut stream: impl Read + Write, request: &str, body: &str) -> (u16, Value) {
    let head = "host: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n";
    write!(stream, "{request} HTTP/1.1\r\n{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
}

#[test]
fn both_sockets_answer_as_grpc_does_beside_clients_that_do_not_finish() {
    let (temp, options) = (tempfile::tempdir().unwrap(), columns().remove(0));
    let (stream, workload) = stream(&format!("--pairs {PAIRS} --seed {SEED} --events 1000"));
    load(&temp.path().join("store"), &options, &workload);
    stream.stop().unwrap();
    let [uds, http_uds] = ["kv.sock", "http.sock"].map(|name| temp.path().join(name));
    let http = free_address("127.0.0.1");
    let more = ["--http", &http, "--http-uds", http_uds.to_str().unwrap(), "--uds", uds.to_str().unwrap()];
    for round in 0..2 {
        let service = Service::start(&temp.path().join("store"), &options, "http://127.0.0.1:1", &more);
        let tcp = || wait_for("a connection", || TcpStream::connect(&http).ok());
        let local = || wait_for("a connection", || UnixStream::connect(&http_uds).ok());
        let held: Vec<_> = (0..100)
            .map(|n| {
                let mut stream = tcp();
                let begun = match n % 3 {
                    0 => "GET /v1/get/",
                    1 => {
                        "POST /v1/get-many HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                          content-length: 1000000\r\n\r\n{\"keys\":["
                    }
                    _ => "",
                };
                stream.write_all(begun.as_bytes()).unwrap();
                stream
            })
            .collect();
        let uds = format!("unix://{}", uds.display());
        let mut grpc = wait_for("gRPC", || Builder::new(&uds).unwrap().connect_blocking().ok());
        let pairs = Pairs::new(SEED);
        let keys: Vec<_> = (0..1000).map(|n| if n % 3 == 0 { pairs.absent_key(n) } else { pairs.key(n) }).collect();
        let expected = grpc.get_many(&keys).unwrap();
        assert_eq!(expected.slot, Some(BASE_SLOT));
        let base58 = |bytes: &[u8; 32]| bs58::encode(bytes).into_string();
        let values: Vec<_> = expected.value.iter().map(|value| value.as_ref().map(base58)).collect();
        let many = json!({ "keys": keys.iter().map(base58).collect::<Vec<_>>() }).to_string();
        let all = (200, json!({ "values": values, "slot": BASE_SLOT }));
        assert_eq!(exchange(tcp(), "POST /v1/get-many", &many), all);
        assert_eq!(exchange(local(), "POST /v1/get-many", &many), all);
        for (key, value) in keys.iter().zip(&values).take(20) {
            let request = format!("GET /v1/get/{}?min_context_slot={BASE_SLOT}", base58(key));
            let one = (200, json!({ "value": value, "slot": BASE_SLOT }));
            assert_eq!(exchange(tcp(), &request, ""), one);
            assert_eq!(exchange(local(), &request, ""), one);
        }
        if round == 0 {
            // The socket's file stays, and the next service replaces it.
            service.kill();
        } else {
            drop(held);
            assert!(service.terminate().success());
            assert!(!http_uds.exists(), "the socket's file is gone with the service");
        }
    }
}
