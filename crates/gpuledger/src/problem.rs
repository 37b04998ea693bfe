//! The server's errors (RFC 9457), for people.

use placement::Nearest;
use serde::Deserialize;
use std::fmt;

/// Why the server says no.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Problem {
    #[serde(default)]
    title: String,
    #[serde(default)]
    pub(crate) code: String,
    detail: Option<String>,
    /// The request's id, to be found in the server's log.
    instance: Option<String>,
    #[serde(default)]
    errors: Vec<Fault>,
    nearest: Option<Nearest>,
    #[serde(default)]
    imbalances: Vec<serde_json::Value>,
    #[serde(skip)]
    status: u16,
}

/// One field that breaks one rule.
#[derive(Debug, Clone, Deserialize)]
struct Fault {
    field: String,
    rule: String,
}

impl Problem {
    /// Reads it; what is no problem document becomes one that shows its beginning.
    pub(crate) fn read(status: u16, body: &[u8]) -> Self {
        let read = serde_json::from_slice(body).ok().filter(|problem: &Self| !problem.title.is_empty());
        let problem = read.unwrap_or_else(|| {
            let start: String = String::from_utf8_lossy(body).chars().filter(|c| !c.is_control()).take(200).collect();
            Self { title: "Not an answer of Gpuledger".to_owned(), detail: Some(start), ..Self::default() }
        });
        Self { status, ..problem }
    }
}

impl fmt::Display for Problem {
    /// The title, then what is particular: all fields with their rules, or the detail.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.title)?;
        if !self.errors.is_empty() {
            let faults: Vec<String> = self.errors.iter().map(|e| format!("{} {}", e.field, e.rule)).collect();
            write!(f, ": {}", faults.join("; "))?;
        } else if let Some(detail) = self.detail.as_ref().filter(|detail| !detail.is_empty()) {
            write!(f, ": {}", detail.trim_end_matches('.'))?;
        }
        if let Some(nearest) = &self.nearest {
            write!(f, "; {nearest}")?;
        }
        for imbalance in &self.imbalances {
            write!(f, "\n  {imbalance}")?;
        }
        write!(f, " ({}", self.status)?;
        if !self.code.is_empty() {
            write!(f, " {}", self.code)?;
        }
        // only there does anybody look into the log
        if let Some(instance) = self.instance.as_ref().filter(|_| self.status >= 500) {
            write!(f, ", request {instance}")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_named_with_its_rule() {
        let body = br#"{"type":"/problems/invalid","title":"The request breaks a rule","status":422,"code":"invalid",
            "errors":[{"field":"memory","rule":"is empty"},{"field":"gpus","rule":"must be 1 to 64"}]}"#;
        let said = Problem::read(422, body).to_string();
        assert_eq!(said, "The request breaks a rule: memory is empty; gpus must be 1 to 64 (422 invalid)");
    }

    #[test]
    fn a_refusal_says_what_would_help() {
        let body = br#"{"title":"No GPU of the pool could ever hold it","status":409,"code":"unsatisfiable",
            "detail":"8 GPUs are too small","nearest":{"kind":"smaller","largest":42949672960}}"#;
        let said = Problem::read(409, body).to_string();
        assert!(said.contains("8 GPUs are too small; it fits now with 40GiB or less"), "{said}");
    }

    #[test]
    fn what_is_no_problem_is_shown_without_control_characters() {
        let said = Problem::read(502, b"<html>\x1b[31mBad Gateway</html>").to_string();
        assert_eq!(said, "Not an answer of Gpuledger: <html>[31mBad Gateway</html> (502)");
    }
}
