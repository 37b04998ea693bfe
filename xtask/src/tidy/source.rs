//! One Rust file: its text, its code without comments and literals, and its functions.

use std::{fs, path::Path};

/// One Rust file.
pub struct Source {
    /// From the repository's root, with `/`.
    pub path: String,
    pub text: String,
    /// The text with every character of a comment or of a string's or character's inside turned into a space. Lines
    /// stay where they are.
    pub code: String,
}

/// One function with a body.
pub struct Function<'a> {
    pub name: &'a str,
    /// From `fn` to the body, without either.
    pub signature: &'a str,
    /// What stands before `fn` on its line, such as `pub async`.
    pub qualifiers: &'a str,
    /// The line of `fn`, from 1.
    pub line: usize,
    /// From the line of `fn` to that of the closing brace.
    pub lines: usize,
}

impl Source {
    pub fn read(root: &Path, file: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let path = file.strip_prefix(root).unwrap_or(file).to_string_lossy().replace('\\', "/");
        Ok(Self { path, code: code_of(&text), text })
    }

    /// The lines, from 1, on which one of the words stands in the code.
    pub fn lines_with(&self, words: &[&str]) -> impl Iterator<Item = (usize, &str)> {
        self.code.lines().enumerate().filter_map(move |(at, line)| {
            words.iter().any(|word| has_word(line, word)).then_some((at + 1, line.trim()))
        })
    }

    /// The code up to the module of tests at its end, if there is one.
    pub fn code_without_tests(&self) -> &str {
        self.code.find("#[cfg(test)]").map_or(self.code.as_str(), |at| &self.code[..at])
    }
}

/// The functions in some code.
pub fn functions(code: &str) -> Vec<Function<'_>> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = code[from..].find("fn ").map(|at| from + at) {
        from = at + 3;
        if code[..at].chars().next_back().is_some_and(is_word) {
            continue;
        }
        let Some(open) = code[from..].find(['{', ';']).map(|open| from + open) else {
            break;
        };
        if code[open..].starts_with(';') {
            continue;
        }
        let close = closing_brace(code, open);
        let signature = &code[from..open];
        let name = signature.split(|c| !is_word(c)).next().unwrap_or_default();
        let line_start = code[..at].rfind('\n').map_or(0, |newline| newline + 1);
        found.push(Function {
            name,
            signature,
            qualifiers: code[line_start..at].trim(),
            line: code[..at].matches('\n').count() + 1,
            lines: code[at..close].matches('\n').count() + 1,
        });
    }
    found
}

fn closing_brace(code: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, c) in code[open..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth <= 1 => return open + at,
            '}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether the word stands in the line by itself.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// See [`Source::code`].
fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let blank = blank_length(&code, rest);
        if blank == 0 {
            code.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            code.extend(rest[..blank].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[blank..];
        }
    }
    code
}

/// How many bytes of the text's beginning are a comment or a literal; 0 if it begins with code.
fn blank_length(before: &str, rest: &str) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment(rest);
    }
    let in_word = before.chars().next_back().is_some_and(is_word);
    if let Some(raw) = (!in_word).then(|| raw_string(rest)).flatten() {
        return raw;
    }
    match rest.as_bytes().first() {
        Some(b'"') => quoted(rest, '"').unwrap_or(rest.len()),
        // a lifetime has no closing quote after its first character
        Some(b'\'') => quoted(rest, '\'').filter(|_| is_character(rest)).unwrap_or(0),
        _ => 0,
    }
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// The length of a raw string such as `r#"…"#` or `br"…"`, if the text begins with one.
fn raw_string(rest: &str) -> Option<usize> {
    let after_prefix = ["r", "br", "cr"].iter().find_map(|prefix| rest.strip_prefix(prefix))?;
    let hashes = after_prefix.len() - after_prefix.trim_start_matches('#').len();
    let inside = after_prefix[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let close = inside.find(&end).map_or(inside.len(), |at| at + end.len());
    Some(rest.len() - inside.len() + close)
}

/// The length of a literal with its quotes.
fn quoted(rest: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

fn is_character(rest: &str) -> bool {
    let mut inside = rest.chars().skip(1);
    match inside.next() {
        Some('\\') => true,
        _ => inside.next() == Some('\''),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blank_and_code_stays() {
        let text = "let a = \"f64 \\\" {\"; // f64\n/* f64 /* { */ f64 */ let b: &'static str = r#\"f64 \"{\"#; '{'; '\\''; f32";
        let code = code_of(text);
        assert_eq!(code.len(), text.len());
        assert!(!code.contains("f64") && !code.contains('{'), "{code}");
        assert!(code.contains("let b: &'static str =") && code.ends_with("; f32"), "{code}");
    }

    #[test]
    fn the_letter_r_at_a_words_end_begins_no_raw_string() {
        assert_eq!(code_of("for \"x\""), "for    ");
        assert_eq!(code_of("matcher\"f64\"; f32"), "matcher     ; f32");
    }

    #[test]
    fn functions_are_found_with_their_extent() {
        let code = "trait T { fn declared(&self); }\npub async fn one(tx: &mut Tx) -> u8 {\n    if a {\n    }\n}\nfn two() {}\n";
        let found = functions(code);
        let shown: Vec<_> = found.iter().map(|f| (f.name, f.qualifiers, f.line, f.lines)).collect();
        assert_eq!(shown, [("one", "pub async", 2, 4), ("two", "", 6, 1)]);
        assert_eq!(found[0].signature, "one(tx: &mut Tx) -> u8 ");
    }

    #[test]
    fn words_are_whole() {
        let source = Source { path: String::new(), text: String::new(), code: "af64\nf64\nf64x\n(f64)".to_owned() };
        assert_eq!(source.lines_with(&["f64"]).map(|(at, _)| at).collect::<Vec<_>>(), [2, 4]);
    }
}
