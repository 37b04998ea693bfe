//! The character U+0000, which JSON can name and no text of the ledger can hold.

use serde_json::Value;

/// What is said of a field that has it.
pub(crate) const RULE: &str = "contains the character U+0000, which no text may have";

/// The field of a well-formed JSON text that has it.
pub(crate) fn in_json(text: &[u8]) -> Option<String> {
    // within a text it can only be written as an escape, so almost every body is done with here
    if !text.windows(ESCAPE.len()).any(|window| window == ESCAPE) {
        return None;
    }
    let value: Value = serde_json::from_slice(text).ok()?;
    within(&value).map(|path| if path.is_empty() { "body".to_owned() } else { path })
}

const ESCAPE: &[u8] = br"\u0000";

fn within(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => text.contains('\0').then(String::new),
        Value::Array(items) => {
            items.iter().enumerate().find_map(|(at, item)| Some(join(&format!("[{at}]"), &within(item)?)))
        }
        Value::Object(fields) => fields.iter().find_map(|(name, item)| {
            if name.contains('\0') {
                return Some(name.replace('\0', "\u{fffd}"));
            }
            Some(join(name, &within(item)?))
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

fn join(name: &str, rest: &str) -> String {
    let dot = if rest.is_empty() || rest.starts_with('[') { "" } else { "." };
    format!("{name}{dot}{rest}")
}

/// The parameter of a query that has it.
pub(crate) fn in_query(query: &str) -> Option<String> {
    let pair = query.split('&').find(|pair| pair.contains("%00"))?;
    let name = pair.split('=').next().unwrap_or_default();
    Some(if name.contains("%00") { "query".to_owned() } else { name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_is_named() {
        for (text, field) in [
            (r#"{"note": "a\u0000b"}"#, Some("note")),
            (r#"{"rates": {"models": {"x": "\u0000"}}}"#, Some("rates.models.x")),
            (r#"{"readings": [{}, {"a": ["\u0000"]}]}"#, Some("readings[1].a[0]")),
            (r#"{"a\u0000": 1}"#, Some("a\u{fffd}")),
            (r#""\u0000""#, Some("body")),
            (r#"{"note": "a\\u0000b"}"#, None),
            (r#"{"note": "\u0001"}"#, None),
        ] {
            assert_eq!(in_json(text.as_bytes()).as_deref(), field, "{text}");
        }
        assert_eq!(in_query("limit=1&cursor=a%00b").as_deref(), Some("cursor"));
        assert_eq!(in_query("limit=1&cursor=%2500"), None);
    }
}
