//! Entry point of the fuzz target `stream` in `service/fuzz`: runs arbitrary messages of a server into the banks of the
//! processed fork.
//!
//! Owns: nothing. Must not: be called by the service. Any thread.

use yellowstone_grpc_proto::geyser::SubscribeUpdate;

use super::convert::convert;
use crate::base::chain::Base;
use crate::ingest::follow::Selection;
use crate::overlay::banks::{Banks, Limits, Seen};

/// Limits of the banks, small so that the fuzzer reaches both.
const LIMITS: Limits = Limits { banks_max: 8, bytes_max: 16 << 10 };

/// Runs updates in the order of their arrival; `None` stands for a new connection. Asserts that the banks stay within
/// their limits, and that a view can be made at any time.
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
