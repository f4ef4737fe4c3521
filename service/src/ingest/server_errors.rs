//! The meaning of the end of a request or a stream, as servers, proxies and libraries report it, and the way out of it.
//!
//! Owns: the table of their texts. Must not: do I/O, or trust a number in them. Runs on a receiver's task.

use tonic::{Code, Status};
use yellowstone_grpc_client::GeyserGrpcClientError;

use super::ended::Ended;
use super::upstream::{Access, Compression};
use crate::base::chain::{Gap, SLOT_END};

/// How servers say that they no longer have the slot that a replay begins with: the code, a part of the text, and whether
/// a server says the same of a slot that it does not have yet.
const LOST: [(Code, &str, bool); 5] = [
    // Only a stock server says "broadcast from".
    (Code::OutOfRange, "", false),
    // Yellowstone before 2025.
    (Code::Internal, "broadcast from", false),
    // richat, and providers that run it.
    (Code::InvalidArgument, "failed to get replay position for slot", true),
    // richat's plugin.
    (Code::InvalidArgument, "first available slot", false),
    // LaserStream, without a text that is always the same.
    (Code::DataLoss, "", false),
];

/// The client's words for a message above its limit.
const TOO_LARGE: &str = "message length too large";

/// The question to a server, which decides the meaning of its refusal.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Terms {
    /// The store's slot; `None` before the first.
    pub(super) applied: Option<u64>,
    /// The first slot that was asked for again. `None` if no slot was, and once the server has sent a whole slot.
    pub(super) from_slot: Option<u64>,
    /// Whether the server has said that it still has that slot.
    pub(super) is_kept: bool,
    /// Whether a subscription to fewer accounts exists.
    pub(super) has_narrower: bool,
    pub(super) access: Access,
}

/// Returns the reason for the end, where the server's oldest slot `first_available` is newer than the slot `from_slot` that
/// it was asked for. The store is at `applied`.
pub(super) fn not_available(applied: u64, from_slot: u64, first_available: u64) -> Ended {
    if first_available == u64::MAX {
        return Ended::Retry("the server has just started and has no slots to send again yet".to_owned());
    }
    if first_available >= SLOT_END {
        return Ended::Retry(format!("the server names a slot that no chain has: first_available={first_available}"));
    }
    let missing = applied.saturating_add(1);
    if first_available == missing && from_slot < missing {
        return Ended::BeginsAt(missing);
    }
    lost(applied, first_available, format!("first_available={first_available}"))
}

/// Returns the gap of a server that has no slot before `first_available`.
fn lost(applied: u64, first_available: u64, why: String) -> Ended {
    let missing = applied.saturating_add(1);
    Ended::Gap(Gap {
        first_slot: missing,
        last_slot: first_available.saturating_sub(1).max(missing),
        detail: format!("the server cannot replay from slot={applied}: {why}"),
        contradicts: false,
    })
}

/// Returns the meaning of a request that failed.
pub(super) fn client_ended(error: GeyserGrpcClientError, terms: &Terms) -> Ended {
    match error {
        GeyserGrpcClientError::TonicStatus(status) => status_ended(&status, terms),
        GeyserGrpcClientError::TransportError(error) => {
            Ended::Retry(explained(engine_api::words(&error), terms.access.https))
        }
    }
}

/// Returns the meaning of the status that ended a request or a stream.
pub(super) fn status_ended(status: &Status, terms: &Terms) -> Ended {
    let (code, message) = (status.code(), status.message());
    let said = format!("code={code:?} message={message:?}");
    let ended = proxy_ended(message, terms).or_else(|| lost_ended(code, message, terms));
    ended.or_else(|| compression_ended(message, terms.access.compression)).unwrap_or_else(|| match code {
        Code::Internal if message.contains("from_slot is not supported") => Ended::Refused(format!(
            "the server keeps no slots to send again: message={message:?}; it needs replay_stored_slots of 150 or more"
        )),
        Code::Unauthenticated if terms.access.token => {
            Ended::Refused(format!("the server refuses the token: {said}; check x-token-file"))
        }
        Code::Unauthenticated => {
            Ended::Refused(format!("the server asks for a token: {said}; give one in x-token-file"))
        }
        Code::PermissionDenied => {
            let token = if terms.access.token { "; if it means the token, check x-token-file" } else { "" };
            Ended::Refused(format!("the server does not allow this: {said}{token}"))
        }
        Code::InvalidArgument => {
            Ended::Refused(format!("the server refuses the subscription: {said}{}", filter_hint(message, terms)))
        }
        Code::Unimplemented => Ended::Refused(format!(
            "the server does not serve this request: {said}; geyser has to name a Yellowstone gRPC server"
        )),
        // A message that was too large is no gap.
        Code::OutOfRange => Ended::Refused(format!("the stream cannot be read: message={message:?}")),
        // The client gives the same code for a message that is too large once it is decompressed.
        Code::ResourceExhausted if !message.contains("decompressing") => Ended::Retry(format!(
            "the server has no place for this subscription: {said}; a service with processed = true takes two"
        )),
        // A server that has just started says so, and one whose newest slot comes before the applied one.
        Code::Internal if message.contains("failed to get replay") => not_yet(&said, terms),
        _ => {
            let why = engine_api::with_causes(said, std::error::Error::source(status));
            Ended::Retry(explained(why, terms.access.https))
        }
    })
}

/// Returns the text of a failed connection with the way out, where the text shows that the URL's scheme is wrong.
pub(super) fn explained(why: String, https: bool) -> String {
    let way_out = if why.contains("InvalidContentType") {
        "the port answers without TLS: give http://, or the port for TLS"
    } else if why.contains("frame with invalid size") || why.contains("NoApplicationProtocol") {
        if https {
            "the port does not answer in HTTP/2, which gRPC needs: a proxy may be in between"
        } else {
            "the port does not answer in HTTP/2: if it is one for TLS, give https://"
        }
    } else {
        return why;
    };
    format!("{why}; {way_out}")
}

fn not_yet(said: &str, terms: &Terms) -> Ended {
    let applied = terms.applied.unwrap_or(0);
    Ended::Retry(format!(
        "the server cannot send slots again from slot={applied} on: {said}; if this lasts, its newest slot is before that one: \
         check that the server is of the store's chain"
    ))
}

/// Returns the meaning of a server's words where they say that it no longer has the slot that it was asked for.
fn lost_ended(code: Code, message: &str, terms: &Terms) -> Option<Ended> {
    // The client gives the code of a lost slot for a message that is too large.
    let from_slot = terms.from_slot.filter(|_| !message.contains(TOO_LARGE))?;
    let is_said = |(of, text, _): &&(Code, &str, bool)| *of == code && message.contains(text);
    let (.., or_not_yet) = LOST.iter().find(is_said)?;
    let (applied, said) = (terms.applied.unwrap_or(from_slot), format!("code={code:?} message={message:?}"));
    if *or_not_yet && terms.is_kept {
        return Some(not_yet(&said, terms));
    }
    let first_available = message.rsplit_once("available").and_then(|(_, after)| number(after));
    Some(match first_available.map(|first| not_available(applied, from_slot, first)) {
        Some(Ended::Gap(_)) | None => lost(applied, first_available.unwrap_or(0), said),
        Some(ended) => ended,
    })
}

/// Returns the meaning of an answer that is no gRPC, as the pages of HTTP proxies are.
fn proxy_ended(message: &str, terms: &Terms) -> Option<Ended> {
    let is_page = message.contains("invalid compression flag") || message.contains("grpc-status header missing");
    let http_status = message.rsplit_once("status").filter(|_| is_page).and_then(|(_, after)| number(after))?;
    let why = format!(
        "an HTTP proxy answered with status={http_status}, not a gRPC server: message={message:?}; look whether geyser \
         names the port for gRPC"
    );
    let token = if terms.access.token { ", and check x-token-file" } else { ", and whether the server needs a token" };
    Some(match http_status {
        401 | 403 => Ended::Refused(format!("{why}{token}")),
        429 | 500.. => Ended::Retry(why),
        _ => Ended::Refused(why),
    })
}

/// Returns the meaning of an encoding that one side does not take.
fn compression_ended(message: &str, asked: Compression) -> Option<Ended> {
    if message.contains("compressed-flag but no grpc-encoding") {
        return Some(Ended::Refused(format!(
            "the server compresses its answers and does not name the encoding: message={message:?}; it has to send them \
             uncompressed, or with grpc-encoding and compression in its table [[geyser]] set to the same"
        )));
    }
    let encoding = message.split_once("Content is compressed with `")?.1.split('`').next()?;
    Some(Ended::Refused(if asked.name() == encoding {
        format!(
            "the server takes no request that is compressed: message={message:?}; compression = \"{encoding}\" in its table \
             [[geyser]] asks for it: leave that out"
        )
    } else {
        format!(
            "the server compresses its answers, which it was not asked for: message={message:?}; it has to send them \
             uncompressed, or give compression = {encoding:?} in its table [[geyser]], which costs much time"
        )
    }))
}

fn filter_hint(message: &str, terms: &Terms) -> &'static str {
    match ["filter", "slice"].iter().any(|word| message.contains(word)) {
        true if terms.has_narrower => {
            "; it has to allow the filters of this extraction; where it allows no subscription to all accounts, or few data \
             slices, see follow in --help"
        }
        true => "; it has to allow the filters of this extraction",
        false => "",
    }
}

/// Returns the first number in a text.
fn number(text: &str) -> Option<u64> {
    text.split(|c: char| !c.is_ascii_digit()).find(|digits| !digits.is_empty())?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(applied: Option<u64>) -> Terms {
        let access = Access { token: true, ..Access::default() };
        Terms { applied, from_slot: applied, access, ..Terms::default() }
    }

    fn words(status: &Status, terms: &Terms) -> String {
        let ended = status_ended(status, terms);
        ended.trouble().unwrap_or_else(|| panic!("{ended:?}")).to_owned()
    }

    #[test]
    fn too_old_is_a_gap_and_too_large_is_not() {
        let status = Status::out_of_range("broadcast from 100 is not available, last available: 250");
        let Ended::Gap(gap) = status_ended(&status, &at(Some(100))) else { panic!("a gap") };
        assert_eq!((gap.first_slot, gap.last_slot), (101, 249));
        let status = Status::out_of_range("decoded message length too large: found 9, limit 8");
        assert!(matches!(status_ended(&status, &at(Some(100))), Ended::Refused(_)));
    }

    #[test]
    fn slots_that_begin_right_after_the_applied_one_are_no_gap() {
        assert!(matches!(not_available(100, 100, 101), Ended::BeginsAt(101)));
        let status = Status::out_of_range("broadcast from 100 is not available, last available: 101");
        assert!(matches!(status_ended(&status, &at(Some(100))), Ended::BeginsAt(101)));
        let Ended::Gap(gap) = not_available(100, 100, 102) else { panic!("a gap") };
        assert_eq!((gap.first_slot, gap.last_slot), (101, 101));
    }

    #[test]
    fn a_server_that_has_just_started_has_no_gap() {
        for first_available in [u64::MAX, u64::MAX - 1, SLOT_END] {
            assert!(matches!(not_available(100, 100, first_available), Ended::Retry(_)), "{first_available}");
        }
        let status = Status::out_of_range(format!("broadcast from 100 is not available, last available: {}", u64::MAX));
        assert!(matches!(status_ended(&status, &at(Some(100))), Ended::Retry(_)));
    }

    #[test]
    fn what_a_person_must_put_right_is_told_from_what_passes() {
        for status in [
            Status::unauthenticated("no"),
            Status::permission_denied("no"),
            Status::invalid_argument("no"),
            Status::internal("from_slot is not supported"),
        ] {
            assert!(matches!(status_ended(&status, &at(None)), Ended::Refused(_)), "{status}");
        }
        for status in [
            Status::internal("failed to get replay response"),
            Status::internal("lagged to send an update"),
            Status::unavailable("server is shutting down try again later"),
        ] {
            assert!(matches!(status_ended(&status, &at(Some(3))), Ended::Retry(_)), "{status}");
        }
        let ended = status_ended(&Status::internal("failed to get replay response"), &at(Some(351)));
        assert!(
            matches!(&ended, Ended::Retry(why) if why.contains("slot=351 on") && why.contains("the store's chain"))
        );
    }

    #[test]
    fn the_token_is_named_only_where_it_can_be_the_reason() {
        let words = |status: &Status, token| {
            words(status, &Terms { access: Access { token, ..Access::default() }, ..Terms::default() })
        };
        let (plan, wrong) =
            (Status::permission_denied("your plan has run out"), Status::unauthenticated("who are you"));
        assert!(!words(&plan, false).contains("token") && words(&plan, false).contains("your plan has run out"));
        assert!(words(&plan, true).contains("if it means the token"));
        assert!(words(&wrong, true).contains("refuses the token") && words(&wrong, true).contains("who are you"));
        assert!(words(&wrong, false).contains("asks for a token"));
    }

    #[test]
    fn a_lost_slot_is_a_gap_in_every_servers_words_and_no_number_in_them_is_trusted() {
        let (old, richat) =
            ("broadcast from 100 is not available, last available:", "failed to get replay position for slot");
        for (status, last_slot) in [
            (Status::internal(format!("{old} 250")), 249),
            (Status::internal(format!("{old} 0")), 101),
            (Status::internal(format!("{old} 99999999999999999999999999")), 101),
            (Status::internal(format!("{old} none")), 101),
            (Status::invalid_argument(format!("{richat} 100")), 101),
            (Status::invalid_argument(format!("{richat} {}", u64::MAX)), 101),
            (Status::invalid_argument(format!("{richat} 100; first available: 120")), 119),
            (Status::invalid_argument("first available slot: 120"), 119),
            (Status::data_loss("the slot is not there any more"), 101),
            (Status::out_of_range("from_slot is too old"), 101),
            (Status::out_of_range(""), 101),
        ] {
            let ended = status_ended(&status, &at(Some(100)));
            let Ended::Gap(gap) = ended else { panic!("{status}: {ended:?}") };
            assert_eq!((gap.first_slot, gap.last_slot), (101, last_slot), "{status}");
            assert!(gap.detail.contains(status.message()), "{gap:?}");
            let new_slots = status_ended(&status, &Terms { from_slot: None, ..at(Some(100)) });
            assert!(!matches!(new_slots, Ended::Gap(_)), "without from_slot, or after a whole slot: {status}");
        }
        let kept = Terms { is_kept: true, ..at(Some(100)) };
        let not_yet = words(&Status::invalid_argument(format!("{richat} 100")), &kept);
        assert!(not_yet.contains("its newest slot is before"), "{not_yet}");
        let end = Terms { applied: Some(u64::MAX), from_slot: Some(u64::MAX), ..Terms::default() };
        assert!(matches!(status_ended(&Status::data_loss(""), &end), Ended::Gap(_)));
    }

    #[test]
    fn a_server_that_contradicts_itself_is_not_asked_at_once_again() {
        let asked_for_the_next = Terms { from_slot: Some(101), ..at(Some(100)) };
        let status = Status::out_of_range("broadcast from 101 is not available, last available: 101");
        assert!(matches!(status_ended(&status, &asked_for_the_next), Ended::Gap(_)));
    }

    #[test]
    fn filters_and_follow_are_named_only_where_they_can_be_the_reason() {
        let any = Status::invalid_argument(
            "failed to create filter: Subscribe on full stream with `any` is not allowed, at least one filter required",
        );
        let exact = Terms { has_narrower: true, ..Terms::default() };
        assert!(words(&any, &exact).contains("see follow"));
        let narrow = words(&any, &Terms::default());
        assert!(narrow.contains("allow the filters") && !narrow.contains("follow"), "{narrow}");
        for status in [Status::invalid_argument("your plan has no streams"), Status::unimplemented("unknown service")] {
            let said = words(&status, &exact);
            assert!(!said.contains("filter") && !said.contains("follow") && said.contains(status.message()), "{said}");
        }
    }

    #[test]
    fn an_encoding_that_one_side_does_not_take_names_the_setting() {
        let of = |encoding, compression| {
            let status =
                Status::unimplemented(format!("Content is compressed with `{encoding}` which isn't supported"));
            words(&status, &Terms { access: Access { compression, ..Access::default() }, ..Terms::default() })
        };
        for (encoding, compression, way_out) in [
            ("zstd", Compression::None, "give compression = \"zstd\" in its table"),
            ("zstd", Compression::Gzip, "give compression = \"zstd\" in its table"),
            ("zstd", Compression::Zstd, "takes no request that is compressed"),
            ("gzip", Compression::Gzip, "compression = \"gzip\" in its table [[geyser]] asks for it"),
        ] {
            let said = of(encoding, compression);
            assert!(said.contains(way_out) && !said.contains("filter"), "{encoding} {compression:?}: {said}");
        }
    }
}
