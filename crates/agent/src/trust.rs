//! Whom a client trusts: the system's certificate authorities, or exactly those of one file; and what to do when a server
//! shows a certificate that does not hold.

use reqwest::{Certificate, ClientBuilder};
use rustls::CertificateError;
use std::{
    error::Error,
    fs, io,
    path::{Path, PathBuf},
};

/// Why no client can be set up.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("{0:?} is not the address of a server: give http:// or https:// and a host")]
    Address(String),
    #[error("the certificates in {path} cannot be read")]
    CaFile {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} holds no certificate in PEM: give the ca.pem of the server")]
    NoCertificate { path: PathBuf },
    #[error("{path} holds a private key: give the certificate alone, ca.pem, and keep the key from everybody")]
    PrivateKey { path: PathBuf },
}

/// Has a client trust the authorities of `ca_file` alone, or without one those of the system.
///
/// # Errors
/// [`TrustError`]: the address is none, or the file holds no certificate.
pub fn trust(builder: ClientBuilder, server_url: &str, ca_file: Option<&Path>) -> Result<ClientBuilder, TrustError> {
    let is_secure = server_url.starts_with("https://");
    let has_host = reqwest::Url::parse(server_url).is_ok_and(|url| url.has_host());
    if !has_host || !(is_secure || server_url.starts_with("http://")) {
        return Err(TrustError::Address(server_url.to_owned()));
    }
    let Some(path) = ca_file else {
        // without this, a host without any CA certificates could not even talk plain HTTP
        return Ok(if is_secure { builder } else { builder.tls_certs_only([]) });
    };
    let path = path.to_owned();
    let pem = match fs::read(&path) {
        Ok(pem) => pem,
        Err(source) => return Err(TrustError::CaFile { path, source }),
    };
    if String::from_utf8_lossy(&pem).contains("PRIVATE KEY-----") {
        return Err(TrustError::PrivateKey { path });
    }
    match Certificate::from_pem_bundle(&pem) {
        Ok(certificates) if !certificates.is_empty() => Ok(builder.tls_certs_only(certificates)),
        _ => Err(TrustError::NoCertificate { path }),
    }
}

/// What is wrong with the certificate that a server showed, and what to do about it; nothing when the error is another.
#[must_use]
pub fn advice(error: &(dyn Error + 'static), ca_file: Option<&Path>) -> Option<String> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(tls) = tls_error(error) {
            return said(tls, ca_file);
        }
        cause = error.source();
    }
    None
}

/// An error of I/O does not name what it wraps as its source, and may wrap another of I/O.
fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    match error.downcast_ref::<io::Error>() {
        Some(wrapping) => tls_error(wrapping.get_ref()?),
        None => error.downcast_ref(),
    }
}

fn said(error: &rustls::Error, ca_file: Option<&Path>) -> Option<String> {
    let text = match error {
        rustls::Error::InvalidCertificate(fault) => match fault {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => match ca_file {
                Some(path) => format!(
                    "the server's certificate is not signed by the authority in {}: give the ca.pem of this server",
                    path.display()
                ),
                None => "the server's certificate is signed by an authority that this host does not know: if it is \
                         your own, give its ca.pem with --ca-file, GPULEDGER_CA_FILE or agent.ca_file"
                    .to_owned(),
            },
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the server's certificate has expired: renew it on the server, with `gpuledger tls renew`, and check \
                 this host's clock"
                    .to_owned()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the server's certificate is not valid yet: check this host's clock".to_owned()
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "the server's certificate is for another host: use a name that it has, or have the server's certificate \
                 renewed with this one, with `gpuledger tls renew --host`"
                    .to_owned()
            }
            other => format!("the server's certificate does not hold: {other}"),
        },
        rustls::Error::InvalidMessage(_) => {
            "the server does not speak TLS there: use http://, or set http.tls_certificate and http.tls_key on the server"
                .to_owned()
        }
        _ => return None,
    };
    Some(format!("{text} ({error})"))
}
