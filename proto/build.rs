//! Generates the solkv.v1 types, client and server with the vendored protoc, and the descriptor set that
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
    // Not among the descriptors that reflection tells everybody: it is served on a socket of its own.
    let mut config = tonic_prost_build::Config::new();
    config.protoc_executable(protoc_bin_vendored::protoc_bin_path()?);
    tonic_prost_build::configure().compile_with_config(config, &["proto/solkv/admin/v1/admin.proto"], &["proto"])?;
    Ok(())
}
