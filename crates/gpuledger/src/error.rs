//! How a command ends, and what it says when it does not do what it was asked.

use crate::{certificate::CertificateError, client::ClientError, config::ConfigError, demo::DemoError};
use agent::AgentError;
use app::AppError;
use std::{error::Error, io, path::PathBuf};
use store::StoreError;

/// The exit statuses, as `gpuledger --help` explains them.
pub mod exit {
    /// It was done.
    pub const DONE: u8 = 0;
    /// It failed, or the answer is no: an invoice differs, a check found a problem.
    pub const FAILED: u8 = 1;
    /// The command line or the configuration is wrong.
    pub const USAGE: u8 = 2;
    /// The server refused it.
    pub const REFUSED: u8 = 3;
    /// The server or Postgres cannot be reached, or cannot answer now: trying again may help.
    pub const UNAVAILABLE: u8 = 4;
    /// `gpuledger run`: the command was not started.
    pub const NOT_STARTED: u8 = 125;
    /// `gpuledger run`: the command cannot be executed.
    pub const NOT_EXECUTABLE: u8 = 126;
    /// `gpuledger run`: the command was not found.
    pub const NOT_FOUND: u8 = 127;
    /// `gpuledger run`: the command was ended by a signal, whose number is added.
    pub const SIGNAL: u8 = 128;
}

/// Why a command did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The arguments do not fit together.
    #[error("{0}")]
    Usage(String),
    /// The answer is no, or something failed that is explained in full.
    #[error("{0}")]
    Failed(String),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    NoPostgres(#[from] postgres::NoPostgres),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    App(#[from] AppError),
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error(transparent)]
    Demo(#[from] DemoError),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// A file, socket or stream could not be used.
    #[error("cannot {doing} {}", path.display())]
    File {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Standard output could not be written.
    #[error("cannot write to standard output")]
    Output(#[source] io::Error),
}

impl CliError {
    /// A file that could not be used.
    pub(crate) fn file(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { doing, path, source }
    }

    /// The exit status that tells it apart.
    #[must_use]
    pub fn exit(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Config(_) | Self::Certificate(_) => exit::USAGE,
            Self::Client(error) => match error {
                ClientError::Refused { .. } => exit::REFUSED,
                ClientError::Unavailable(_) => exit::UNAVAILABLE,
                ClientError::Setup(_) => exit::USAGE,
                ClientError::Answer(_) => exit::FAILED,
            },
            Self::NoPostgres(_)
            | Self::Store(StoreError::Unavailable(_) | StoreError::CommitUnknown(_) | StoreError::Collision(_))
            | Self::App(AppError::Unavailable(_)) => exit::UNAVAILABLE,
            Self::Agent(AgentError::JoinRefused { .. }) => exit::REFUSED,
            Self::Agent(AgentError::Client(agent::ClientError::Transport(_))) => exit::UNAVAILABLE,
            Self::Agent(AgentError::Client(agent::ClientError::Trust(_) | agent::ClientError::Certificate(_))) => {
                exit::USAGE
            }
            Self::App(AppError::Internal(_)) => exit::FAILED,
            Self::App(_) => exit::REFUSED,
            // whoever reads our output has read enough
            Self::Output(source) if source.kind() == io::ErrorKind::BrokenPipe => exit::DONE,
            Self::Failed(_) | Self::Store(_) | Self::Agent(_) | Self::Demo(_) | Self::File { .. } | Self::Output(_) => {
                exit::FAILED
            }
        }
    }

    /// What went wrong, then each cause that adds something.
    #[must_use]
    pub fn explain(&self) -> String {
        explain(self)
    }
}

/// An error with its causes, each said once.
pub(crate) fn explain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let said = next.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = next.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_said_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer: {0}")]
        struct Outer(#[source] io::Error);

        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let error = CliError::file("read", "/x/y")(missing());
        assert_eq!(error.explain(), "cannot read /x/y: entity not found");
        assert_eq!(explain(&Outer(missing())), "outer: entity not found");
    }

    #[test]
    fn an_outage_a_refusal_and_a_mistake_end_differently() {
        assert_eq!(CliError::from(AppError::Unavailable("x".into())).exit(), exit::UNAVAILABLE);
        assert_eq!(CliError::from(AppError::NotFound("invoice")).exit(), exit::REFUSED);
        assert_eq!(CliError::from(AppError::Internal("x".into())).exit(), exit::FAILED);
        assert_eq!(CliError::Usage("x".into()).exit(), exit::USAGE);
        let closed = io::Error::from(io::ErrorKind::BrokenPipe);
        assert_eq!(CliError::Output(closed).exit(), exit::DONE);
    }
}
