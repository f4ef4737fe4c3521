//! Tests of the whole configuration: precedence, defaults, bounds, rules, the forms of `geyser`.
//!
//! Owns: these tests. Must not: open a store. Runs on the test's thread.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use clap::Args as _;
use engines::EngineKind;

use super::{Config, Settings};
use crate::ingest::follow::Follow;

/// Returns the settings that a file with this text gives.
fn given(text: &str) -> Settings {
    text.parse().unwrap()
}

/// Returns the configuration of a file that has this text after a directory, and an extraction if the text names none.
fn resolve_in_dir(text: &str) -> Result<Config> {
    let extract = if text.contains("extract = ") { "" } else { "extract = \"account-owner\"\n" };
    format!("dir = \"/a\"\n{extract}{text}").parse::<Settings>()?.resolve()
}

/// Returns the configuration of a file that has this text after a directory and a stream.
fn resolve(text: &str) -> Result<Config> {
    resolve_in_dir(&format!("geyser = \"http://h:1\"\n{text}"))
}

#[test]
fn flags_win_over_the_file_and_the_file_over_defaults() {
    let file = given(
        "engine = \"redb\"\ndir = \"/a\"\ngeyser = \"http://h:1\"\ngap_timeout = \"5s\"\n\
                      extract = \"token-mint\"",
    );
    let config = given("dir = \"/b\"").or(file).resolve().unwrap();
    assert_eq!((config.engine.engine, config.store.dir.as_path()), (EngineKind::Redb, Path::new("/b")));
    assert_eq!((config.receive.gap_timeout, config.commit.commit_every), (Duration::from_secs(5), None));
    let again = given(&toml::to_string(&config).unwrap());
    assert_eq!(toml::to_string(&again.resolve().unwrap()).unwrap(), toml::to_string(&config).unwrap());
}

#[test]
fn the_help_names_each_default_as_it_is() {
    let shown = |text: &str| resolve(text).map(|config| toml::to_string(&config).unwrap());
    let expected = shown("").unwrap();
    let is_default = |line: String| shown(&line).is_ok_and(|shown| shown == expected);
    let mut in_words = Vec::new();
    for arg in Settings::augment_args(clap::Command::new("service")).get_arguments() {
        let (key, help) = (arg.get_id().as_str(), arg.get_help().unwrap().to_string());
        let Some(default) = help.split_once("[default: ").and_then(|(_, rest)| rest.strip_suffix(']')) else {
            continue;
        };
        if !is_default(format!("{key} = {default}")) && !is_default(format!("{key} = \"{default}\"")) {
            in_words.push(key.to_owned());
        }
    }
    let expected = "engine bloom profile memory lmdb_map_size heal_from x_token_file geyser_ca geyser_cert geyser_key \
                    extract commit_every gap_timeout uds_group shm_group tls_cert tls_key tls_client_ca \
                    bearer_token_file lookup_threads";
    assert_eq!(in_words.join(" "), expected);
}

#[test]
fn the_help_names_who_would_change_a_setting() {
    for arg in Settings::augment_args(clap::Command::new("service")).get_arguments() {
        let help = arg.get_help().unwrap().to_string();
        let (words, _) = help.split_once("[default: ").unwrap_or((&help, ""));
        assert!(words.split([' ', '\n']).any(|word| word == "for"), "{}: {help}", arg.get_id());
    }
}

#[test]
fn account_owner_is_followed_exactly_or_not_at_all() {
    assert_eq!(resolve("extract = \"token-mint\"").unwrap().stream.follow, Follow::Exact);
    assert_eq!(resolve("extract = \"token-owner\"\nfollow = \"wallets\"").unwrap().stream.follow, Follow::Wallets);
    assert_eq!(resolve("follow = \"exact\"").unwrap().stream.follow, Follow::Exact);
    for follow in ["wallets", "closed"] {
        let refused = resolve(&format!("follow = \"{follow}\"")).unwrap_err().to_string();
        assert!(refused.contains("account-owner") && refused.contains("leave follow out"), "{refused}");
    }
}

#[test]
fn a_store_is_made_only_for_values_that_were_named() {
    for made in ["create_empty = true", "create = true\nsnapshot = \"/b\""] {
        let resolve = |more: &str| given(&format!("dir = \"/a\"\ngeyser = \"http://h:1\"\n{made}\n{more}")).resolve();
        let error = resolve("").unwrap_err().to_string();
        assert!(error.contains("token-owner (the wallet") && error.contains("--extract"), "{error}");
        assert_eq!(resolve("extract = \"token-mint\"").unwrap().stream.extract.to_string(), "token-mint");
    }
    // Where there is no store and none is to be made, the path is the mistake.
    let error = given("dir = \"/a\"\ngeyser = \"http://h:1\"").resolve().unwrap_err().to_string();
    assert!(error.contains("there is no store: dir=/a"), "{error}");
}

#[test]
fn unknown_keys_and_missing_values_are_named() {
    for (key, meant) in [
        ("comit_every", "did you mean commit_every?"),
        ("listne", "did you mean listen?"),
        ("max_lag_ms", "did you mean max_lag?"),
        ("max_lag_seconds", "did you mean max_lag?"),
        ("max_lag_slots", "max_lag decides"),
        ("max_connections_per_address", "a quarter of max_connections"),
        ("shm_mode", "shm_group names"),
        ("idle_timeout", "gap_timeout decides"),
        ("nothing_of_the_kind", "--help"),
    ] {
        let error = format!("{key} = 1").parse::<Settings>().unwrap_err().to_string();
        assert!(error.contains(key) && error.contains(meant) && !error.contains("expected one of"), "{error}");
    }
    assert!(Settings::default().resolve().unwrap_err().to_string().contains("--dir"));
    let both = resolve("processed = true\ncommitment = \"finalized\"").unwrap_err();
    assert!(both.to_string().contains("confirmed"), "{both}");
}

#[test]
fn sources_and_providers_that_cannot_be_or_are_given_twice_are_refused() {
    for source in ["", "http://", "htp://validator:8899"] {
        let said = resolve(&format!("heal_from = [{source:?}]")).unwrap_err().to_string();
        assert!(said.contains("heal_from=") && said.contains("give a directory"), "{said}");
    }
    for source in ["/data/snapshots", "snapshots", "http://validator:8899", "https://validator"] {
        resolve(&format!("heal_from = [{source:?}]")).unwrap();
    }
    let twice = resolve_in_dir("geyser = [\"http://one:1\", \"http://one:1/\"]").unwrap_err();
    assert!(twice.to_string().contains("given twice"), "{twice}");
}

#[test]
fn every_number_has_a_greatest_and_where_zero_is_senseless_a_least() {
    for (key, good, wrong) in [
        ("commit_every", &["1", "1048576"][..], &["0", "1048577"][..]),
        ("ingest_depth", &["1", "65536"], &["0", "65537"]),
        ("lookup_threads", &["1", "256"], &["0", "257", "4294967295"]),
        ("max_connections", &["1", "65536"], &["0", "65537"]),
        ("feed_retention_bytes", &["\"1B\"", "\"16TiB\""], &["\"17TiB\"", "\"15EiB\""]),
        ("commit_every", &["\"10k\"", "\"1_000\""], &["\"2M\""]),
        ("geyser_at_once", &["1"], &["0", "2", "3"]),
    ] {
        good.iter().for_each(|value| drop(resolve(&format!("{key} = {value}")).unwrap()));
        for value in wrong {
            let said = resolve(&format!("{key} = {value}")).unwrap_err().to_string();
            assert!(said.starts_with(&format!("{key}=")) && said.contains("give "), "{said}");
        }
    }
}

#[test]
fn every_duration_has_a_greatest_and_where_zero_is_senseless_a_least() {
    for (key, zero, good) in [("gap_timeout", false, "1h"), ("max_lag", false, "1day"), ("slow_request", true, "1h")] {
        resolve(&format!("{key} = \"{good}\"")).unwrap();
        assert_eq!(resolve(&format!("{key} = \"0s\"")).is_ok(), zero, "{key}");
        for wrong in ["584years", "100000years"] {
            let said = resolve(&format!("{key} = \"{wrong}\"")).unwrap_err().to_string();
            assert!(said.starts_with(&format!("{key}=")) && said.contains("such as"), "{said}");
        }
    }
}

#[test]
fn with_several_servers_a_missing_slot_is_asked_for_while_they_still_have_it() {
    let timeout = |text: &str| resolve_in_dir(text).unwrap().receive.gap_timeout.as_secs();
    let two = "geyser = [\"http://a:1\", \"http://b:2\"]";
    assert_eq!((timeout("geyser = \"http://a:1\""), timeout(two)), (60, 20));
    assert_eq!(timeout(&format!("{two}\ngap_timeout = \"45s\"")), 45);
    let idle = |text: &str| resolve_in_dir(text).unwrap().receive.idle_timeout().as_millis();
    assert_eq!((idle("geyser = \"http://a:1\""), idle(two)), (30_000, 30_000));
    assert_eq!(idle(&format!("{two}\ngap_timeout = \"10ms\"")), 500);
}

#[test]
fn one_url_a_list_and_tables_are_the_same_setting() {
    for (text, urls) in [
        ("geyser = \"http://a:1\"", vec!["http://a:1"]),
        ("geyser = [\"http://a:1\", \"http://b:2\"]", vec!["http://a:1", "http://b:2"]),
        ("[geyser]\nurl = \"http://a:1\"", vec!["http://a:1"]),
        ("[[geyser]]\nurl = \"http://a:1\"\n[[geyser]]\nurl = \"http://b:2\"", vec!["http://a:1", "http://b:2"]),
    ] {
        let config = resolve_in_dir(text).unwrap();
        assert_eq!(config.stream.providers().into_iter().map(|of| of.url).collect::<Vec<_>>(), urls, "{text}");
        let shown = toml::to_string(&config).unwrap();
        let again = given(&shown).resolve().unwrap();
        assert_eq!((again.stream.geyser, toml::to_string(&config).unwrap()), (config.stream.geyser, shown), "{text}");
    }
}

#[test]
fn a_token_is_of_one_provider() {
    let text = "x_token_file = \"/t/1\"\nx_token_header = \"authorization\"\ngeyser_ca = \"/t/ca\"\n\
                [[geyser]]\nurl = \"https://a\"\n[[geyser]]\nurl = \"https://b\"\nx_token_file = \"/t/2\"\n\
                [[geyser]]\nurl = \"https://c\"\nx_token_header = \"x-key\"";
    let all = resolve_in_dir(text).unwrap().stream.providers();
    let of = |index: usize| (all[index].token_file.as_deref(), all[index].token_header.as_str());
    let file = |name: &'static str| Some(Path::new(name));
    assert_eq!(of(0), (file("/t/1"), "authorization"));
    assert_eq!(of(1), (file("/t/2"), "authorization"));
    assert_eq!(of(2), (None, "x-key"));
    assert_eq!(all.iter().filter(|of| of.ca.is_some()).count(), 1);
}

#[test]
fn a_wrong_provider_is_named() {
    for (text, why) in [
        ("geyser = []", "no stream"),
        ("geyser = [\"http://a:1\", \"ftp://b\"]", "ftp://b"),
        ("geyser = [\"http://a:1\", \"http://a:1\"]", "twice"),
        ("geyser = [\"http://a:1\", \"http://b:0\"]", "1 to 65535"),
        ("[[geyser]]\nurl = \"http://a:1\"\ntoken = \"s\"", "unknown field `token`"),
        ("[[geyser]]\nca = \"/a\"", "missing field `url`"),
        ("geyser = 5", "a URL, or a list"),
        ("[[geyser]]\nurl = \"https://a\"\n[[geyser]]\nurl = \"https://b\"\ncert = \"/c\"", "go together"),
        ("[[geyser]]\nurl = \"https://a\"\n[[geyser]]\nurl = \"http://b\"\nca = \"/c\"", "https://"),
    ] {
        let said = format!("{:#}", resolve_in_dir(text).unwrap_err());
        assert!(said.contains(why), "{text}: {said}");
    }
}
