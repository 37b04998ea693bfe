//! Rules about words that stand, or do not stand, in some crates' code.

use super::{dependency::PURE, repository::Repository, source::Source};
use std::{fs, path::Path};

/// Where bytes, time and money are reckoned.
const EXACT: [&str; 4] = ["types", "metering", "quota", "billing"];
/// The one place that reads the machine's clock.
const CLOCK: &str = "crates/types/src/clock.rs";

pub fn floats(repository: &Repository) -> Vec<String> {
    words(repository.sources_of(&EXACT), &["f32", "f64"])
}

pub fn clocks(repository: &Repository) -> Vec<String> {
    let sources = repository.sources_of(&PURE).filter(|source| source.path != CLOCK);
    words(sources, &["SystemTime", "Timestamp::now", "Zoned::now", "Clock::System", "std::time::Instant"])
}

pub fn operations(repository: &Repository) -> Vec<String> {
    words(repository.sources_of(&PURE), &["utoipa::path", "OpenApi", "OpenApiRouter"])
}

fn words<'a>(sources: impl Iterator<Item = &'a Source>, words: &[&str]) -> Vec<String> {
    sources
        .flat_map(|source| source.lines_with(words).map(|(at, line)| format!("{}:{at}: {line}", source.path)))
        .collect()
}

/// In Rust, SQL and Markdown, comments included.
pub fn put_off(repository: &Repository) -> Vec<String> {
    let mut broken: Vec<String> =
        repository.sources().flat_map(|source| put_off_in(&source.path, &source.text)).collect();
    for folder in ["migrations", "docs", "docs/adr", "."] {
        for path in fs::read_dir(repository.root.join(folder)).into_iter().flatten().flatten().map(|e| e.path()) {
            if path.extension().is_some_and(|e| e == "sql" || e == "md") {
                let text = fs::read_to_string(&path).unwrap_or_default();
                let shown = path.strip_prefix(&repository.root).unwrap_or(&path);
                broken.extend(put_off_in(&shown.to_string_lossy(), &text));
            }
        }
    }
    broken
}

fn put_off_in(path: &str, text: &str) -> Vec<String> {
    // put together here, so that this file does not break its own rule
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    let path = Path::new(path).display();
    text.lines()
        .enumerate()
        .filter(|(_, line)| marks.iter().any(|mark| line.contains(mark)))
        .map(|(at, line)| format!("{path}:{}: {}", at + 1, line.trim()))
        .collect()
}
