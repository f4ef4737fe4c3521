//! Any text as a configuration: it is refused, or the configuration in effect, written as a file and read again, is the
//! same.
//!
//! Owns: nothing. Must not: open files that a configuration names. One thread.

#![no_main]

use libfuzzer_sys::fuzz_target;
use service::Settings;

fuzz_target!(|text: &str| {
    for prefix in ["", "dir = \"/a\"\nextract = \"token-mint\"\ngeyser = \"http://h:1\"\n"] {
        let Ok(settings) = format!("{prefix}{text}").parse::<Settings>() else { continue };
        let Ok(config) = settings.resolve() else { continue };
        let written = toml::to_string(&config).expect("a configuration in effect can be written");
        let again = written.parse::<Settings>().expect("what was written can be read");
        let again = again.resolve().expect("what was in effect can be in effect again");
        assert_eq!(toml::to_string(&again).expect("as before"), written);
    }
});
