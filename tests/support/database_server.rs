//! The Postgres that tests use: that of `cargo xtask test`; else a container, where Docker answers and has an image of
//! one; else the one that `DATABASE_URL` names; else a private one from server programs.

use postgres::{Place, Running, Settings};
use std::env;

/// Names the server that `cargo xtask test` started.
pub const URL_VARIABLE: &str = "GPULEDGER_TEST_DATABASE_URL";

/// A Postgres whose user may create databases and roles.
#[derive(Debug)]
pub struct DatabaseServer {
    url: String,
    description: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    SomebodyElses,
    Private(Box<Running>),
    #[cfg(feature = "containers")]
    Container(Box<container::Container>),
}

impl DatabaseServer {
    /// Finds or starts it.
    ///
    /// # Errors
    /// A message that says what to install.
    pub async fn find() -> Result<Self, String> {
        if let Ok(url) = env::var(URL_VARIABLE) {
            let description = format!("the server of {URL_VARIABLE}");
            return Ok(Self { url, description, kind: Kind::SomebodyElses });
        }
        #[cfg(feature = "containers")]
        if let Some(image) = container::local_image() {
            let (container, url) = container::start(&image).await?;
            let description = format!("PostgreSQL in a container of {image}");
            return Ok(Self { url, description, kind: Kind::Container(Box::new(container)) });
        }
        let settings = Settings::new(env::var("DATABASE_URL").ok(), Place::Ephemeral);
        let running = tokio::task::spawn_blocking(move || postgres::find(&settings))
            .await
            .map_err(|e| e.to_string())?
            .map_err(|none| none.to_string())?;
        Ok(Self {
            url: running.url().to_owned(),
            description: running.describe().to_owned(),
            kind: Kind::Private(Box::new(running)),
        })
    }

    /// The connection URL of some database of it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Which one it is, in one line.
    #[must_use]
    pub fn describe(&self) -> &str {
        &self.description
    }

    /// Stops it if it was started here. A process that ends without this leaves no server behind, but may leave a
    /// container.
    pub async fn stop(self) {
        match self.kind {
            Kind::SomebodyElses => {}
            Kind::Private(running) => drop(running),
            #[cfg(feature = "containers")]
            Kind::Container(container) => {
                if let Err(error) = container.rm().await {
                    eprintln!("the container stays: {error}");
                }
            }
        }
    }
}

#[cfg(feature = "containers")]
mod container {
    use sqlx::{Connection, PgConnection};
    use std::{
        process::Command,
        time::{Duration, Instant},
    };
    use testcontainers::{ContainerAsync, GenericImage, ImageExt, core::IntoContainerPort, runners::AsyncRunner};

    pub(super) type Container = ContainerAsync<GenericImage>;

    /// How long the container may take until Postgres answers.
    const START_LIMIT: Duration = Duration::from_secs(60);
    const PASSWORD: &str = "of-tests-alone";

    /// An image of Postgres that Docker has here already: nothing is pulled.
    pub(super) fn local_image() -> Option<String> {
        let output = Command::new("docker")
            .args(["image", "ls", "--format", "{{.Repository}}:{{.Tag}}"])
            .output()
            .ok()
            .filter(|output| output.status.success())?;
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .find(|image| {
                image.split_once(':').is_some_and(|(repository, tag)| {
                    repository.rsplit('/').next() == Some("postgres") && tag != "<none>"
                })
            })
            .map(str::to_owned)
    }

    /// Starts one of that image, without safety against loss of power, and waits until it answers.
    pub(super) async fn start(image: &str) -> Result<(Container, String), String> {
        let (repository, tag) = image.split_once(':').unwrap_or((image, "latest"));
        let failed = |what: &str, error: String| format!("{what} a container of {image}: {error}");
        let container = GenericImage::new(repository, tag)
            .with_exposed_port(5432.tcp())
            .with_env_var("POSTGRES_PASSWORD", PASSWORD)
            .with_cmd(["postgres", "-c", "fsync=off", "-c", "max_connections=300"])
            .start()
            .await
            .map_err(|e| failed("starting", e.to_string()))?;
        let port = container.get_host_port_ipv4(5432).await.map_err(|e| failed("reaching", e.to_string()))?;
        let url = format!("postgres://postgres:{PASSWORD}@127.0.0.1:{port}/postgres");
        let since = Instant::now();
        loop {
            match PgConnection::connect(&url).await {
                Ok(_) => return Ok((container, url)),
                Err(error) if since.elapsed() > START_LIMIT => {
                    return Err(failed("reaching", error.to_string()));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }
}
