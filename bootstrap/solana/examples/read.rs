//! Reads a snapshot archive to nowhere, to measure it: cargo run --release -p solkv-solana --example read -- unpack|extract FILE
//!
//! Owns: two depths of reading. `unpack` takes the bytes out of their zstd packing, `extract` parses them as well and takes
//! the owner of every token account. Must not: keep or write anything. Threads: `unpack` works on the main thread,
//! `extract` on two, as a load does.

#![allow(clippy::print_stdout, reason = "an example for developers")]

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::time::Instant;

use solkv_solana::Extract;
use solkv_solana::archive::Archive;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [depth, file] = &args[..] else { panic!("usage: read unpack|extract FILE") };
    let start = Instant::now();
    let (bytes, versions) = if depth == "unpack" { unpack(file) } else { extract(file) };
    println!("seconds={:.3} unpacked_bytes={bytes} versions={versions}", start.elapsed().as_secs_f64());
}

fn unpack(file: &str) -> (u64, u64) {
    let packed = File::open(file).expect("an archive");
    let mut unpacked = zstd::Decoder::new(packed).expect("zstd");
    (io::copy(&mut unpacked, &mut io::sink()).expect("a whole archive"), 0)
}

fn extract(file: &str) -> (u64, u64) {
    let mut values = 0u64;
    let archive = Archive::open(file).expect("an archive");
    let read = archive.read(&mut |_| Ok(()), &mut |version| {
        let value = Extract::TokenOwner.value(version.lamports, version.owner, version.data_len, version.data);
        values += u64::from(black_box(value).is_some());
        Ok(())
    });
    let summary = read.expect("a whole archive");
    (summary.unpacked_bytes, summary.versions)
}
