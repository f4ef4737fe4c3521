//! README's list of engines and RELIABILITY's table of guarantees say the same as the engines' own descriptions.

use engine_api::Buffered;

const README: &str = include_str!("../../../../README.md");
const RELIABILITY: &str = include_str!("../../../../RELIABILITY.md");

#[test]
fn the_documents_describe_every_engine_and_say_which_commits_survive() {
    for engine in solkv_engine_registry::compiled() {
        let begins = |document: &str, start: String| document.lines().any(|line| line.starts_with(&start));
        assert!(begins(README, format!("- `{engine}`: ")), "engine={engine} is missing");
        let spared = match engine.descriptor().buffered {
            Buffered::All => "kept",
            Buffered::AllButNewest => "only the newest commit may be missing, whole",
            Buffered::AllButNewestOnes => "the newest commits may be missing, whole",
        };
        let row = format!("| `{engine}` | kept | {spared}");
        assert!(begins(RELIABILITY, row), "engine={engine} spared={spared}");
    }
}
