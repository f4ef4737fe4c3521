//! Generates the types, client and server of solkv.v1 with the vendored protoc, and the descriptor set that gRPC
//! reflection serves.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let descriptors = PathBuf::from(std::env::var("OUT_DIR")?).join("solkv.v1.bin");
    let mut config = tonic_prost_build::Config::new();
    config.protoc_executable(protoc_bin_vendored::protoc_bin_path()?);
    config.bytes(["."]);
    tonic_prost_build::configure().file_descriptor_set_path(descriptors).compile_with_config(
        config,
        &["proto/solkv/v1/kv.proto", "proto/solkv/v1/feed.proto"],
        &["proto"],
    )?;
    // The admin package stays out of the descriptors that reflection shows to everybody: it has a socket of its own.
    let mut config = tonic_prost_build::Config::new();
    config.protoc_executable(protoc_bin_vendored::protoc_bin_path()?);
    tonic_prost_build::configure().compile_with_config(config, &["proto/solkv/admin/v1/admin.proto"], &["proto"])?;
    Ok(())
}
