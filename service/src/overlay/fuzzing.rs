//! For the fuzz target `stream` in `service/fuzz`: whatever a server sends, into the banks of the processed fork.
//!
//! Owns: nothing. Must not: be called by the service. Any thread.

use yellowstone_grpc_proto::geyser::SubscribeUpdate;

use super::banks::{Banks, Limits, Seen};
use super::convert::convert;
use crate::ingest::assemble::Base;
use crate::ingest::follow::Selection;

/// Small, so that both limits are met.
const LIMITS: Limits = Limits { banks_max: 8, bytes_max: 16 << 10 };

/// Updates in the order they arrive; `None` is a new connection. The banks stay within their limits, and the fork can be
/// made of them at any time.
pub fn banks(selection: Selection, base: Option<Base>, updates: impl IntoIterator<Item = Option<SubscribeUpdate>>) {
    let mut banks = Banks::new(base, LIMITS);
    for update in updates {
        let seen = match update.map(|update| convert(selection, update)) {
            Some(Ok(Some(seen))) => seen,
            Some(Ok(None)) => continue,
            Some(Err(_)) | None => Seen::Connected,
        };
        if banks.push(seen) {
            banks.view();
        }
        assert!(banks.banks() <= LIMITS.banks_max, "banks={}", banks.banks());
        assert!(banks.bytes() <= LIMITS.bytes_max, "bytes={}", banks.bytes());
    }
}
