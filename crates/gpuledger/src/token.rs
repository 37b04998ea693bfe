//! The token of a login, kept for its owner alone.

use crate::{
    client::{ClientError, ServerArgs},
    error::CliError,
    output,
    secret::{self, PasswordFrom},
};
use serde_json::json;
use std::{
    env, io,
    path::{Path, PathBuf},
};

/// How to log in.
#[derive(Debug, clap::Args)]
pub struct LoginArgs {
    /// The account's email address
    #[arg(long)]
    email: String,
    #[command(flatten)]
    password: PasswordFrom,
    /// Print the token instead of saving it
    #[arg(long)]
    print: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Logs in, and saves or prints the token.
pub(crate) async fn login(args: &LoginArgs) -> Result<(), CliError> {
    let client = args.server.anonymous_client()?;
    let password = args.password.read(&format!("Password of {}: ", args.email))?;
    let session = client.post("/v1/login", Some(&json!({"email": args.email, "password": password}))).await?;
    let token = session["token"].as_str().ok_or_else(|| ClientError::Answer("no token".into()))?;
    if args.print {
        return output::line(token);
    }
    let file = file()?;
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).map_err(CliError::file("make", folder))?;
    }
    secret::write(&file, token)?;
    let until = output::text(&session["expires_at"]);
    output::note(format_args!("logged in until {until}; the token is in {}", file.display()));
    Ok(())
}

/// The token that was saved.
pub(crate) fn saved() -> Result<String, ClientError> {
    let file = file().map_err(|e| ClientError::Setup(e.to_string()))?;
    match std::fs::read_to_string(&file) {
        Ok(token) => Ok(token.trim().to_owned()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(ClientError::Setup(
            "a credential is needed: set GPULEDGER_TOKEN to an API key, or run `gpuledger login --email …`".to_owned(),
        )),
        Err(e) => Err(ClientError::Setup(format!("the token in {} cannot be read: {e}", file.display()))),
    }
}

/// `~/.config/gpuledger/token`.
fn file() -> Result<PathBuf, CliError> {
    let folder = env::var_os("XDG_CONFIG_HOME")
        .filter(|folder| !folder.is_empty())
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".config")))
        .ok_or_else(|| CliError::Usage("HOME is not set: give the token in GPULEDGER_TOKEN".to_owned()))?;
    Ok(folder.join("gpuledger/token"))
}
