//! The wire contract `solkv.v1`: message types, client and server, generated from `proto/solkv/v1/*.proto`. Also holds
//! `proto/solkv/admin/v1`, the requests of a store's owner.
//!
//! Owns: the generated code, the descriptor set, the limits of a request. Must not: hold logic; need unsafe code.

// Other crates link this one.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

/// Requests that the owner of a store makes to the service that has the store open.
#[allow(missing_docs, unreachable_pub, clippy::pedantic, reason = "generated code")]
pub mod admin {
    tonic::include_proto!("solkv.admin.v1");
}

/// Version 1 of the contract. Fields are only ever added, never changed or removed.
#[allow(missing_docs, unreachable_pub, clippy::pedantic, reason = "generated code")]
pub mod v1 {
    tonic::include_proto!("solkv.v1");

    /// Encoded descriptor set of this package, served by gRPC reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("solkv.v1");

    /// Maximum number of keys of one GetMany: 10,000 keys make a request of 340 KB, well under gRPC's default limit of
    /// 4 MiB.
    pub const GET_MANY_KEYS_MAX: usize = 10_000;

    /// Maximum number of entries of one filter, summed over its parts. The service holds them for as long as the
    /// subscription lasts.
    pub const FILTER_ENTRIES_MAX: usize = 10_000;
}
