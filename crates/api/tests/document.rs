//! The document says of everything that a caller sends how large or long it may be.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

use serde_json::Value;
use std::collections::BTreeSet;

/// What of a schema says too little: paths in it with what is missing.
fn unbounded(document: &Value, schema: &Value, path: &str, seen: &mut BTreeSet<String>, found: &mut Vec<String>) {
    if let Some(reference) = schema["$ref"].as_str() {
        if seen.insert(reference.to_owned()) {
            unbounded(document, document.pointer(&reference[1..]).unwrap(), reference, seen, found);
        }
        return;
    }
    for list in ["oneOf", "anyOf", "allOf"] {
        for part in schema[list].as_array().into_iter().flatten() {
            unbounded(document, part, path, seen, found);
        }
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        unbounded(document, property, &format!("{path}.{name}"), seen, found);
    }
    for inner in ["items", "additionalProperties", "propertyNames"] {
        if schema[inner].is_object() {
            unbounded(document, &schema[inner], &format!("{path}.{inner}"), seen, found);
        }
    }
    let is = |kind: &str| schema["type"] == kind || schema["type"].as_array().is_some_and(|t| t.contains(&kind.into()));
    let has = |key: &str| !schema[key].is_null();
    let mut need = |holds: bool, what: &str| {
        if !holds {
            found.push(format!("{path} has no {what}"));
        }
    };
    if is("string") {
        let pattern = schema["pattern"].as_str().is_some_and(|p| !p.contains(['*', '+']) || p.contains("[+-]"));
        let format = ["uuid", "date-time"].map(Value::from).contains(&schema["format"]);
        need(has("maxLength") || has("enum") || pattern || format, "greatest length");
    }
    if is("integer") {
        need(has("minimum") && has("maximum"), "least and greatest value");
    }
    if is("array") {
        need(has("maxItems"), "greatest length");
    }
    if has("properties") {
        need(schema["additionalProperties"] == false, "end of its fields");
    }
}

#[test]
fn everything_that_is_sent_has_bounds() {
    let document = serde_json::to_value(api::openapi()).unwrap();
    let (mut seen, mut found) = (BTreeSet::new(), Vec::new());
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (verb, operation) in operations.as_object().unwrap() {
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let name = format!("{verb} {path} {}", parameter["name"]);
                unbounded(&document, &parameter["schema"], &name, &mut seen, &mut found);
            }
            let body = &operation["requestBody"]["content"]["application/json"]["schema"];
            unbounded(&document, body, &format!("{verb} {path}"), &mut seen, &mut found);
        }
    }
    assert!(seen.len() > 40, "{seen:?}");
    assert!(found.is_empty(), "{found:#?}");
}
