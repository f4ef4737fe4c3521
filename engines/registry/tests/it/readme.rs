//! README's tables of engines and guarantees say the same as the engines' own descriptions.

use engine_api::Buffered;

const README: &str = include_str!("../../../../README.md");

#[test]
fn the_readme_describes_every_engine_and_says_which_commits_survive() {
    for engine in solkv_engine_registry::compiled() {
        let row = |start: String| README.lines().any(|line| line.starts_with(&start));
        assert!(row(format!("| `{engine}` | ")), "engine={engine} is missing");
        let spared = match engine.descriptor().buffered {
            Buffered::All => "kept",
            Buffered::AllButNewest => "the newest commit alone may be missing, whole",
            Buffered::AllButNewestOnes => "the newest commits may be missing, whole",
        };
        assert!(row(format!("| `{engine}` | kept | {spared}")), "engine={engine} spared={spared}");
    }
}
