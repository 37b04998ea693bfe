//! What is said on standard error.

use crate::{config::Config, error::CliError};
use serde::Deserialize;
use std::{env, io::IsTerminal};
use tracing_subscriber::EnvFilter;

/// How events are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines: one object a line.
    Json,
}

/// Begins to log as configured; `format` and `RUST_LOG` go before the configuration.
///
/// # Errors
/// A filter that does not parse.
pub(crate) fn begin(config: &Config, format: Option<LogFormat>) -> Result<(), CliError> {
    let from_variable = env::var("RUST_LOG").ok().filter(|filter| !filter.is_empty());
    let (text, place) = match &from_variable {
        Some(filter) => (filter.as_str(), "the variable RUST_LOG"),
        None => (config.log.filter.as_str(), "log.filter"),
    };
    let filter = EnvFilter::try_new(text)
        .map_err(|e| CliError::Usage(format!("{place} is {text:?}, which is no filter: {e}")))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // a second call changes nothing
    let _ = match format.unwrap_or(config.log.format) {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_span_list(false).try_init(),
    };
    Ok(())
}
