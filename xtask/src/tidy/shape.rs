//! Rules about files and functions.

use super::{
    repository::Repository,
    source::{Function, Source, functions},
};

const FILE_LINES: usize = 500;
const FUNCTION_LINES: usize = 70;
const LONG_FILE: &str = "// tidy: long file: ";
const LONG_FUNCTION: &str = "// tidy: long function: ";
/// How far above a function's name its reason may stand: attributes and documentation come between.
const REASON_WITHIN: usize = 30;
const VAGUE: [&str; 8] = ["util", "utils", "common", "helper", "helpers", "manager", "misc", "shared"];

/// Functions of `store` that touch no tenant's rows: file, function, and why it needs no scope.
const UNSCOPED: &[(&str, &str, &str)] = &[
    ("migrate.rs", "migrate", "works on the schema, as its owner"),
    ("migrate.rs", "check_schema", "reads the list of migrations"),
    ("doctor.rs", "server", "reads the server's version and roles"),
    ("tx.rs", "ping", "asks whether the database answers"),
    ("tx.rs", "close", "closes the connections"),
    ("tx.rs", "commit", "is the transaction's own"),
];

pub fn unscoped(repository: &Repository) -> Vec<String> {
    let mut broken = Vec::new();
    let mut used = Vec::new();
    for source in repository.sources_of(&["store"]) {
        let file = source.path.rsplit("src/").next().unwrap_or(&source.path);
        for function in functions(source.code_without_tests()) {
            if function.qualifiers != "pub async" || has_scope(&function) {
                continue;
            }
            let exception = UNSCOPED.iter().find(|(f, name, _)| *f == file && *name == function.name);
            match exception {
                Some(exception) => used.push(exception),
                None => broken.push(format!("{}:{}: {}", source.path, function.line, function.name)),
            }
        }
    }
    let stale = UNSCOPED.iter().filter(|exception| !used.contains(exception));
    broken.extend(stale.map(|(file, name, _)| format!("{file}: {name} is excepted for nothing: remove the exception")));
    broken
}

fn has_scope(function: &Function<'_>) -> bool {
    function.signature.split(|c: char| !c.is_alphanumeric()).any(|word| word == "Tx" || word == "Scope")
}

pub fn long_files(repository: &Repository) -> Vec<String> {
    repository
        .sources()
        .filter(|source| !source.text.lines().take(5).any(|line| has_reason(line, LONG_FILE)))
        .map(|source| (source, source.text.lines().count()))
        .filter(|(_, lines)| *lines > FILE_LINES)
        .map(|(source, lines)| format!("{}: {lines} lines", source.path))
        .collect()
}

pub fn long_functions(repository: &Repository) -> Vec<String> {
    repository
        .sources()
        .flat_map(|source| functions(&source.code).into_iter().map(move |function| (source, function)))
        .filter(|(source, function)| function.lines > FUNCTION_LINES && !reason_above(source, function.line))
        .map(|(source, f)| format!("{}:{}: {} has {} lines", source.path, f.line, f.name, f.lines))
        .collect()
}

/// Whether a reason stands in the unbroken lines above.
fn reason_above(source: &Source, line: usize) -> bool {
    let lines: Vec<&str> = source.text.lines().take(line - 1).collect();
    lines
        .iter()
        .rev()
        .take(REASON_WITHIN)
        .take_while(|line| !line.trim().is_empty())
        .any(|line| has_reason(line, LONG_FUNCTION))
}

fn has_reason(line: &str, mark: &str) -> bool {
    line.trim().strip_prefix(mark.trim_end()).is_some_and(|reason| !reason.trim().is_empty())
}

pub fn vague_names(repository: &Repository) -> Vec<String> {
    repository
        .sources()
        .filter(|source| {
            source.path.split('/').map(|part| part.trim_end_matches(".rs")).any(|part| VAGUE.contains(&part))
        })
        .map(|source| source.path.clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source { path: String::new(), text: text.to_owned(), code: text.to_owned() }
    }

    #[test]
    fn a_reason_counts_if_it_is_given_and_belongs_to_the_function() {
        let reasoned = source("// tidy: long function: one SQL statement\n/// Docs.\npub fn f() {}\n");
        assert!(reason_above(&reasoned, 3));
        assert!(!reason_above(&source("// tidy: long function:\nfn f() {}\n"), 2));
        assert!(!reason_above(&source("// tidy: long function: of the one above\n\nfn f() {}\n"), 3));
    }

    #[test]
    fn a_scope_or_a_transaction_counts_and_a_name_that_contains_one_does_not() {
        let code = "pub async fn a(tx: &mut Tx<'_>) {}\npub async fn b(store: &Store, scope: Scope) {}\npub async fn c(t: TxId) {}\n";
        assert_eq!(functions(code).iter().map(has_scope).collect::<Vec<_>>(), [true, true, false]);
    }
}
