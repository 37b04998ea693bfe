//! What commands print: lines, tables and JSON, on standard output.

use crate::error::CliError;
use serde_json::Value;
use std::{
    fmt::Display,
    io::{self, Write},
};

/// Prints one line.
pub(crate) fn line(text: impl Display) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(CliError::Output)
}

/// Prints a value as JSON, for other programs.
pub(crate) fn json(value: &Value) -> Result<(), CliError> {
    line(format_args!("{value:#}"))
}

/// Prints a remark on standard error, where no program that reads the output sees it.
pub(crate) fn note(text: impl Display) {
    // nobody can be told that nobody can be told
    let _ = writeln!(io::stderr(), "gpuledger: {text}");
}

/// Prints rows under their headings, as wide as needed.
pub(crate) fn table(headings: &[&str], rows: &[Vec<String>]) -> Result<(), CliError> {
    let mut widths: Vec<usize> = headings.iter().map(|h| h.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let written = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells.zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
        padded.join("  ").trim_end().to_owned()
    };
    line(written(&mut headings.iter().copied()))?;
    for row in rows {
        line(written(&mut row.iter().map(String::as_str)))?;
    }
    Ok(())
}

/// The text of a field, for people; `-` where it is absent.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
