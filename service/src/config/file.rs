//! The configuration's file: read, merged with the flags, checked. Errors name the file and the line.
//!
//! Owns: finding the line of a wrong value. Must not: decide which values are wrong; `Settings` does. Runs on `main`.

use std::path::Path;

use anyhow::{Context, Result};

use super::{Config, Settings};

/// Reads the file and returns the configuration in effect, in which `flags` override the file.
///
/// # Errors
/// The file cannot be read or is not TOML; a key is unknown; a value is refused. Each error names the file, and also
/// the line if the value comes from the file.
pub(crate) fn config(path: &Path, flags: Settings) -> Result<Config> {
    let name = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read file={name}"))?;
    let file: Settings = text.parse().with_context(|| format!("cannot use file={name}"))?;
    let given = keys(&flags);
    flags.or(file).resolve().map_err(|refused| {
        let message = format!("{refused:#}");
        match line_of(&text, &given, &message) {
            Some(line) => refused.context(format!("cannot use file={name} line={line}")),
            None => refused.context(format!("cannot use file={name}")),
        }
    })
}

/// Returns the names of the settings that are given.
fn keys(settings: &Settings) -> Vec<String> {
    toml::Table::try_from(settings).map(|table| table.keys().cloned().collect()).unwrap_or_default()
}

/// Returns the line of the first key that the message names, the file has, and no flag overrides.
fn line_of(text: &str, overruled: &[String], message: &str) -> Option<usize> {
    let lines: Vec<&str> = text.lines().map(|line| line.split('=').next().unwrap_or_default().trim()).collect();
    let words = message.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    let mut words = words.filter(|word| !overruled.iter().any(|key| key == word));
    words.find_map(|word| lines.iter().position(|key| *key == word)).map(|at| at + 1)
}

#[cfg(test)]
mod tests {
    use clap::Args as _;
    use engines::EngineKind;

    use super::*;

    /// Contents of the file that the package installs.
    const PACKAGED: &str = include_str!("../../../deploy/package/solkv.toml");

    fn refused(text: &str, flags: Settings) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("solkv.toml");
        std::fs::write(&path, text).unwrap();
        let error = format!("{:#}", config(&path, flags).unwrap_err());
        assert!(error.contains(&path.display().to_string()), "{error}");
        error
    }

    #[test]
    fn a_wrong_setting_is_named_with_its_line_and_the_correct_form() {
        let base = "dir = \"/a\"\nextract = \"token-mint\"\ngeyser = \"http://h:1\"\n";
        let cases = [
            ("comit_every = 5", "line 4", "commit_every"),
            ("engine = \"level\"", "line 4", "strata"),
            ("commit_every = \"many\"", "line 4", "such as 5000000"),
            ("gap_timeout = \"soon\"", "line 4", "gap_timeout"),
            ("memory = \"4 gigs\"", "line 4", "such as 512MB or 4GiB"),
            ("memory = true", "line 4", "expected a size"),
            ("max_lag = 10000", "line 4", "10000sec or 10000ms"),
            ("max_lag = true", "line 4", "expected a duration, such as"),
            ("commit_every = 0", "line=4", "give 1 to"),
            ("# a comment\nengine = \"lmdb\"\nbloom = 20", "line=6", "bloom"),
            ("lookup_threads = 1000", "line=4", "1 to 256"),
            ("max_connections = 0", "line=4", "1 to 65536"),
            ("max_lag = \"0s\"", "line=4", "10s"),
            ("shm_group = \"no-such-group\"", "line=4", "groupadd"),
            ("processed = true\ncommitment = \"finalized\"", "line=4", "confirmed"),
        ];
        for (text, line, right) in cases {
            let error = refused(&format!("{base}{text}\n"), Settings::default());
            assert!(error.contains(line) && error.contains(right), "{text}: {error}");
        }
        let error = refused("geyser = \"ftp://h\"\ndir = \"/a\"\nextract = \"token-mint\"", Settings::default());
        assert!(error.contains("line=1") && error.contains("https://HOST:PORT"), "{error}");
        for port in ["99999", "0"] {
            let text = format!("geyser = \"http://127.0.0.1:{port}\"\ndir = \"/a\"\nextract = \"token-mint\"");
            let error = refused(&text, Settings::default());
            assert!(error.contains("line=1") && error.contains("1 to 65535"), "{error}");
        }
        let error = refused("dir = \"/a\"", Settings::default());
        assert!(!error.contains("line") && error.contains("geyser = "), "{error}");
    }

    #[test]
    fn a_flag_is_not_blamed_on_the_file() {
        let flags = "commit_every = 0".parse().unwrap();
        let error = refused("dir = \"/a\"\nextract = \"token-mint\"\ngeyser = \"http://h:1\"\ncommit_every = 5", flags);
        assert!(!error.contains("line="), "{error}");
    }

    #[test]
    fn the_packaged_file_has_every_key_with_its_default() {
        let command = Settings::augment_args(clap::Command::new("service"));
        let keys: Vec<String> = command.get_arguments().map(|arg| arg.get_id().to_string()).collect();
        let set =
            |line: &str| keys.iter().any(|key| line.strip_prefix(key.as_str()).is_some_and(|v| v.starts_with(" = ")));
        let bare = |line: &str| line.trim_start_matches('#').to_owned();
        for key in &keys {
            let found = PACKAGED.lines().filter(|line| bare(line).starts_with(&format!("{key} = "))).count();
            assert_eq!(found, 1, "{key}");
        }
        // As installed, the file names the store's directory; only the stream's address is missing.
        let installed: Settings = PACKAGED.parse().unwrap();
        let error = format!("{:#}", installed.clone().resolve().unwrap_err());
        assert!(error.contains("geyser = "), "{error}");
        // Each commented-out default is the real default: with the comment sign removed it changes nothing.
        let stream: Settings = "geyser = \"http://h:1\"\nextract = \"account-owner\"".parse().unwrap();
        let shown = |settings: Settings| toml::to_string(&settings.resolve().unwrap()).unwrap();
        let expected = shown(stream.clone().or(installed.clone()));
        let mut examples = Vec::new();
        for line in PACKAGED.lines().filter(|line| line.starts_with('#') && set(&bare(line))) {
            let alone: Settings = bare(line).parse().unwrap_or_else(|error| panic!("{line}: {error}"));
            match alone.or(installed.clone()).or(stream.clone()).resolve() {
                Ok(config) if toml::to_string(&config).unwrap() == expected => {}
                _ => examples.push(bare(line).split(' ').next().unwrap_or_default().to_owned()),
            }
        }
        let without_default = [
            "bloom",
            "memory",
            "lmdb_map_size",
            "set",
            "geyser",
            "x_token_file",
            "geyser_ca",
            "geyser_cert",
            "geyser_key",
            "extract",
            "commit_every",
            "cluster",
            "snapshot",
            "incremental",
            "lookup_threads",
            "heal_from",
            "uds",
            "uds_group",
            "redis",
            "redis_uds",
            "http",
            "http_uds",
            "shm",
            "shm_group",
            "tls_cert",
            "tls_key",
            "tls_client_ca",
            "bearer_token_file",
        ];
        examples.sort();
        let mut expected = without_default.map(str::to_owned).to_vec();
        // The file documents the package, whose programs have every engine.
        expected.extend((engines::default_engine() != EngineKind::Strata).then(|| "engine".to_owned()));
        expected.sort();
        assert_eq!(examples, expected);
    }
}
