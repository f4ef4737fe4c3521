//! The faults of simulated servers: those that pass, and those that are a server's nature.
//!
//! Owns: which faults there are and how often each occurs. Must not: know how a fault looks to a client.

use workload::Rng;

/// Fault of one connection, drawn by weight from [`FAULTS`], or given by the server's nature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    Unreachable,
    WrongToken,
    JustStarted,
    TooOldByInfo,
    TooOldByStatus,
    Refused,
    SilentAtSubscribe,
    Silent,
    PingsOnly,
    TooLarge,
    OtherChain,
    OtherParents,
    WrongBlock,
    Loses,
    Malformed,
    Lags,
    Breaks,
}

const FAULTS: [(Fault, u64); 16] = [
    (Fault::None, 20),
    (Fault::Breaks, 40),
    (Fault::Lags, 8),
    (Fault::Loses, 10),
    (Fault::Malformed, 4),
    (Fault::OtherChain, 5),
    (Fault::Silent, 5),
    (Fault::PingsOnly, 5),
    (Fault::JustStarted, 3),
    (Fault::SilentAtSubscribe, 2),
    (Fault::TooLarge, 2),
    (Fault::TooOldByInfo, 3),
    (Fault::TooOldByStatus, 3),
    (Fault::Unreachable, 4),
    (Fault::WrongToken, 1),
    (Fault::Refused, 1),
];

/// The lasting nature of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nature {
    /// The only server: it has every passing fault.
    Alone,
    /// One of several: it has every passing fault, and never contradicts the chain.
    Honest,
    /// It becomes silent on every connection.
    Silent,
    /// It refuses every subscription, whatever it asks for.
    Refuses,
    /// It contradicts the applied chain on every connection.
    Lies,
    /// It has another block in the place of one slot, and follows the chain after it.
    Errs,
    /// It has every slot this many slots late.
    Lags(u64),
    /// It lacks the slots from the store's slot on.
    Lacks,
}

impl Nature {
    /// Draws a nature that does not heal.
    pub(super) fn bad(rng: &mut Rng) -> Self {
        let lags = Self::Lags(5 + rng.below(40));
        [Self::Silent, Self::Refuses, Self::Lies, lags, Self::Lacks][rng.below(5) as usize]
    }

    pub(super) fn lag_slots(self) -> u64 {
        if let Self::Lags(slots) = self { slots } else { 0 }
    }

    /// Draws the fault of a connection. Passing faults do not occur on a healthy server.
    pub(super) fn fault(self, healthy: bool, rng: &mut Rng) -> Fault {
        match self {
            Self::Alone | Self::Honest if healthy => Fault::None,
            Self::Alone => passing(rng),
            Self::Honest => Some(passing(rng)).filter(|fault| *fault != Fault::OtherChain).unwrap_or(Fault::None),
            Self::Silent => [Fault::Silent, Fault::PingsOnly, Fault::SilentAtSubscribe][rng.below(3) as usize],
            Self::Refuses => [Fault::Refused, Fault::WrongToken][rng.below(2) as usize],
            Self::Lies => [Fault::OtherChain, Fault::OtherParents][rng.below(2) as usize],
            Self::Errs => Fault::WrongBlock,
            Self::Lags(_) => Fault::None,
            Self::Lacks => [Fault::TooOldByInfo, Fault::TooOldByStatus][rng.below(2) as usize],
        }
    }
}

fn passing(rng: &mut Rng) -> Fault {
    let all = FAULTS.iter().map(|(_, weight)| weight).sum();
    let mut at = rng.below(all);
    for (fault, weight) in FAULTS {
        match at.checked_sub(weight) {
            Some(rest) => at = rest,
            None => return fault,
        }
    }
    Fault::None
}
