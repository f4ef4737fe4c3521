//! gRPC's code for each cause of a refusal.
//!
//! Owns: this table. Must not: decide about a request. Threads: the network edge.

use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::ask::refusal::{Cause, Refusal};

/// Metadata of a status that has the refusal's stable code, such as `E-BUSY`.
const METADATA: &str = "solkv-code";

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal.cause {
            Cause::Invalid => Code::InvalidArgument,
            Cause::NotFound => Code::NotFound,
            Cause::OutOfRange => Code::OutOfRange,
            Cause::Unauthenticated => Code::Unauthenticated,
            Cause::NotOffered | Cause::NotReached => Code::FailedPrecondition,
            Cause::Full => Code::ResourceExhausted,
            Cause::Unavailable => Code::Unavailable,
            Cause::Overdue => Code::DeadlineExceeded,
            Cause::Damaged => Code::DataLoss,
            Cause::Internal => Code::Internal,
        };
        let stable = refusal.code.as_str();
        let mut status = Self::new(code, format!("{stable}: {}", refusal.message));
        status.metadata_mut().insert(METADATA, MetadataValue::from_static(stable));
        status
    }
}
