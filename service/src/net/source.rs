//! The source of a connection, to which shares are counted: the part of its origin that its owner cannot vary for free.
//!
//! Owns: this rule. Must not: count; `limit` and `ask` do. Threads: the network edge.

use std::net::{IpAddr, Ipv4Addr};

/// The origin of a connection. Connections of the same source share one peer's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Source {
    /// An IPv4 address. All of 127.0.0.0/8 is one source, because every local process may use each of these addresses.
    V4(Ipv4Addr),
    /// The first 64 bits of an IPv6 address. A network of this size is the least that a customer gets, and its owner
    /// chooses the other 64 bits freely.
    V6(u64),
    /// A user of this machine, connected over the Unix socket.
    User(u32),
}

impl Source {
    /// Returns the source of an address. An IPv4 address written as IPv6 counts as the IPv4 one.
    pub(crate) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) if address.is_loopback() => Self::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => Self::V6((address.to_bits() >> 64) as u64),
        }
    }

    /// Whether the source is, or may be, another machine. Users of the Unix socket are not.
    pub(crate) fn is_network(self) -> bool {
        !matches!(self, Self::User(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_peer_can_vary_at_no_cost_is_one_source() {
        let of = |text: &str| Source::of(text.parse().unwrap());
        for (one, other) in [
            ("127.0.0.1", "127.200.3.4"),
            ("192.0.2.1", "::ffff:192.0.2.1"),
            ("2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff"),
        ] {
            assert_eq!(of(one), of(other));
        }
        for (one, other) in [("192.0.2.1", "192.0.2.2"), ("2001:db8:1:2::1", "2001:db8:1:3::1"), ("127.0.0.1", "::1")] {
            assert_ne!(of(one), of(other));
        }
        assert!(of("127.0.0.1").is_network() && !Source::User(0).is_network());
    }
}
