//! `gpuledger admin`: what only whoever has the machine may do. Everything else goes through the API.

use crate::{
    config::Config,
    database,
    error::CliError,
    output,
    secret::{self, PasswordFrom},
};
use app::{App, password::Password, user};
use types::Name;

/// What an administrator of the machine does.
#[derive(Debug, clap::Subcommand)]
pub enum Admin {
    /// Make the first operator; refused when there is one
    ///
    /// Brings the database to this binary's schema first. Without --password-stdin a password is made up and printed,
    /// this once.
    Init {
        /// The address to log in with
        #[arg(long)]
        email: String,
        /// The person's name
        #[arg(long)]
        name: Name,
        #[command(flatten)]
        password: PasswordFrom,
    },
    /// Set another password for an account
    ///
    /// For when nobody can log in any more. Without --password-stdin a password is made up and printed, this once.
    ResetPassword {
        /// The account's address
        #[arg(long)]
        email: String,
        #[command(flatten)]
        password: PasswordFrom,
    },
}

/// Runs it on the configured database.
pub(crate) async fn run(config: &Config, admin: Admin) -> Result<(), CliError> {
    let running = database::find(config.postgres()).await?;
    output::note(running.describe());
    let app = database::app(config, running.url())?;
    let done = on_database(&app, config.owner_url(running.url()), admin).await;
    app.store.close().await;
    database::leave(running).await;
    done
}

async fn on_database(app: &App, owner_url: &str, admin: Admin) -> Result<(), CliError> {
    match admin {
        Admin::Init { email, name, password } => {
            store::migrate(owner_url).await?;
            let (password, is_new) = choose(password)?;
            let user = user::init_operator(app, email, name, Password::from(password.clone())).await?;
            tell(&user.email, &password, is_new)
        }
        Admin::ResetPassword { email, password } => {
            store::migrate::check_schema(owner_url).await?;
            let (password, is_new) = choose(password)?;
            let user = user::reset_password(app, &email, Password::from(password.clone())).await?;
            tell(&user.email, &password, is_new)
        }
    }
}

/// The password that is given, or a new one (`true`).
fn choose(from: PasswordFrom) -> Result<(String, bool), CliError> {
    Ok(match from.read_if_given()? {
        Some(given) => (given, false),
        None => (secret::new_password(), true),
    })
}

fn tell(email: &str, password: &str, is_new: bool) -> Result<(), CliError> {
    output::line(format_args!("email:    {email}"))?;
    if is_new {
        output::line(format_args!("password: {password}"))?;
        output::note("the password is shown this once");
    }
    output::note(format_args!("log in: gpuledger login --email {email}"));
    Ok(())
}
