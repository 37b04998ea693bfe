//! The certificate that the server shows, read again when its files change.

use app::doctor::Finding;
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs::{default_provider, sign::any_supported_type},
    pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};
use tokio::time::{MissedTickBehavior, interval};
use tokio_rustls::TlsAcceptor;
use types::{Clock, Instant};

/// Between two looks at the files.
const LOOK: Duration = Duration::from_secs(2);
/// How long before its end it is said that a certificate ends.
const SOON_S: i64 = 14 * 86_400;
/// How often that is said.
const SAY_AGAIN: Duration = Duration::from_secs(86_400);

/// Where certificate and key are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// PEM: the server's certificate, then those that lead to its CA.
    pub certificate: PathBuf,
    /// PEM: its private key.
    pub key: PathBuf,
}

/// Why a certificate cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("cannot read {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} holds no {what} in PEM", path.display())]
    NotPem {
        path: PathBuf,
        what: &'static str,
        #[source]
        source: pem::Error,
    },
    #[error("{} holds no certificate that can be understood", path.display())]
    NotX509 { path: PathBuf },
    #[error("the key in {} is not that of the certificate in {}", key.display(), certificate.display())]
    OtherKey { certificate: PathBuf, key: PathBuf },
    #[error("the certificate in {} ended at {ended}", path.display())]
    Ended { path: PathBuf, ended: Instant },
    #[error("TLS cannot be set up")]
    Tls(#[from] rustls::Error),
}

/// The certificate in use.
#[derive(Debug)]
pub(crate) struct ServerCertificate {
    files: TlsFiles,
    current: RwLock<Current>,
}

/// One certificate with its key, and the bytes that it was made from.
#[derive(Debug, Clone)]
struct Current {
    shown: Arc<CertifiedKey>,
    ends: Instant,
    read: Read,
}

/// What stood in the files.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Read {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// When a certificate ends.
///
/// # Errors
/// It is none.
pub(crate) fn end_of(certificate: &CertificateDer<'_>, path: &Path) -> Result<Instant, CertificateError> {
    let not_x509 = || CertificateError::NotX509 { path: path.to_owned() };
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).map_err(|_| not_x509())?;
    let seconds = parsed.validity().not_after.timestamp();
    Instant::from_millis(seconds.saturating_mul(1000)).map_err(|_| not_x509())
}

/// What the doctor says of the files.
pub(crate) fn examine(files: &TlsFiles) -> Finding {
    let place = files.certificate.display();
    match Read::files(files).and_then(|read| read.into_certificate(files)) {
        Err(error) => {
            let remedy =
                "give a certificate and its key in http.tls_certificate and http.tls_key: `gpuledger tls make`";
            Finding::problem("tls", crate::error::explain(&error), remedy)
        }
        Ok(Current { ends, .. }) => match seconds_until(ends) {
            ..=0 => Finding::problem("tls", format!("{place} ended at {ends}"), "renew it: `gpuledger tls renew`"),
            1..SOON_S => Finding::warning("tls", format!("{place} ends at {ends}"), "renew it: `gpuledger tls renew`"),
            _ => Finding::good("tls", format!("{place} is good until {ends}")),
        },
    }
}

fn seconds_until(end: Instant) -> i64 {
    (end.as_millis() - Clock::System.now().as_millis()) / 1000
}

impl Read {
    fn files(files: &TlsFiles) -> Result<Self, CertificateError> {
        let read =
            |path: &Path| fs::read(path).map_err(|source| CertificateError::File { path: path.to_owned(), source });
        Ok(Self { certificate: read(&files.certificate)?, key: read(&files.key)? })
    }

    fn into_certificate(self, files: &TlsFiles) -> Result<Current, CertificateError> {
        let not_pem = |path: &Path, what| {
            let path = path.to_owned();
            move |source| CertificateError::NotPem { path, what, source }
        };
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&self.certificate)
            .collect::<Result<_, _>>()
            .map_err(not_pem(&files.certificate, "certificate"))?;
        let first = chain.first().ok_or(pem::Error::NoItemsFound);
        let first = first.map_err(not_pem(&files.certificate, "certificate"))?;
        let ends = end_of(first, &files.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(not_pem(&files.key, "private key"))?;
        let shown = CertifiedKey::new(chain, any_supported_type(&key)?);
        shown.keys_match().map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                CertificateError::OtherKey { certificate: files.certificate.clone(), key: files.key.clone() }
            }
            other => other.into(),
        })?;
        Ok(Current { shown: Arc::new(shown), ends, read: self })
    }
}

impl ServerCertificate {
    /// Reads it. One that has ended is shown all the same, and that is said.
    ///
    /// # Errors
    /// The files are not a certificate and its key.
    pub(crate) fn load(files: TlsFiles) -> Result<Arc<Self>, CertificateError> {
        let current = Read::files(&files)?.into_certificate(&files)?;
        let mode = fs::metadata(&files.key).map_or(0, |metadata| metadata.permissions().mode());
        if mode & 0o077 != 0 {
            tracing::warn!(file = %files.key.display(), "the key can be read by others than its owner: chmod 600");
        }
        let certificate = Self { files, current: RwLock::new(current) };
        certificate.say_when_it_ends();
        Ok(Arc::new(certificate))
    }

    /// TLS with it: 1.2 or newer, HTTP/2 or HTTP/1.1.
    ///
    /// # Errors
    /// The provider has no usable versions, which it always has.
    pub(crate) fn acceptor(self: &Arc<Self>) -> Result<TlsAcceptor, CertificateError> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }

    /// Follows the files for ever. What cannot be used is said once, and the former certificate stays.
    pub(crate) async fn follow(self: Arc<Self>) {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut say = interval(SAY_AGAIN);
        say.tick().await;
        let mut refused: Option<String> = None;
        loop {
            tokio::select! {
                _ = look.tick() => {}
                _ = say.tick() => {
                    self.say_when_it_ends();
                    continue;
                }
            }
            match self.read_again() {
                Ok(true) => {
                    refused = None;
                    tracing::info!(file = %self.files.certificate.display(), "a new certificate is shown");
                    self.say_when_it_ends();
                }
                Ok(false) => refused = None,
                Err(error) => {
                    let error = crate::error::explain(&error);
                    if refused.as_ref() != Some(&error) {
                        tracing::error!(%error, "the new certificate cannot be used; the former one stays");
                        refused = Some(error);
                    }
                }
            }
        }
    }

    /// Takes what is new in the files: whether there was anything.
    fn read_again(&self) -> Result<bool, CertificateError> {
        let read = Read::files(&self.files)?;
        if read == self.current().read {
            return Ok(false);
        }
        let current = read.into_certificate(&self.files)?;
        if current.ends <= Clock::System.now() {
            return Err(CertificateError::Ended { path: self.files.certificate.clone(), ended: current.ends });
        }
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
        Ok(true)
    }

    fn current(&self) -> Current {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn say_when_it_ends(&self) {
        let ends = self.current().ends;
        let left = seconds_until(ends);
        metrics::gauge!("gpuledger_tls_certificate_ends_timestamp_seconds").set((ends.as_millis() / 1000) as f64);
        let file = self.files.certificate.display();
        if left <= 0 {
            tracing::error!(%file, %ends, "the certificate has ended: clients refuse it until it is renewed");
        } else if left < SOON_S {
            tracing::warn!(%file, %ends, "the certificate ends soon: renew it");
        } else {
            tracing::info!(%file, %ends, "the certificate is good");
        }
    }
}

impl ResolvesServerCert for ServerCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current().shown)
    }
}
