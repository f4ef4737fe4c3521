//! `solkv.v1`, the wire contract: message types, client and server, generated from `proto/solkv/v1/*.proto`; the
//! same contract in shared memory; and the owner's own, `proto/solkv/admin/v1`.
//!
//! Owns: the generated code, the descriptor set, the layouts. Must not: hold logic.

// Other crates link this one.
#![warn(missing_docs)]

pub mod shm;

/// What a store's owner asks of the service that has it open.
#[allow(missing_docs, unreachable_pub, clippy::pedantic, reason = "generated code")]
pub mod admin {
    tonic::include_proto!("solkv.admin.v1");
}

/// Version 1 of the contract. Fields are only ever added.
#[allow(missing_docs, unreachable_pub, clippy::pedantic, reason = "generated code")]
pub mod v1 {
    tonic::include_proto!("solkv.v1");

    /// The encoded descriptor set of this package, for gRPC reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("solkv.v1");

    /// Most keys one GetMany may ask for: 10,000 keys are 340 KB of request, well under gRPC's default 4 MiB.
    pub const GET_MANY_KEYS_MAX: usize = 10_000;

    /// Most entries of one filter, all its parts together: they are held for as long as the subscription lasts.
    pub const FILTER_ENTRIES_MAX: usize = 10_000;
}
