//! TLS with a certificate authority of one's own: the server, an agent, commands; and every way in which a certificate
//! does not hold.

use crate::deployment::{Deployment, ask, command, eventually, run, text};
use rcgen::{CertificateParams, Issuer, KeyPair, date_time_ymd};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs::default_provider,
    pki_types::{CertificateDer, pem::PemObject},
};
use serde_json::json;
use std::{
    env, fs,
    fs::File,
    path::Path,
    process::{Child, Stdio},
    sync::Arc,
    time::Duration,
};
use support::{CA_FILE, Client, Database, Server};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// A folder that `gpuledger tls make` wrote.
struct Authority(TempDir);

impl Authority {
    fn make(hosts: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut args = vec!["tls", "make", "--out", folder.path().to_str().unwrap()];
        args.extend(hosts.iter().flat_map(|host| ["--host", host]));
        let said = run(&args, &[], "").expect(0);
        assert!(said.contains(&hosts.join(", ")) && said.contains("365 days"), "{said}");
        Self(folder)
    }

    fn file(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// The variables of a server that shows its certificate, and of clients that trust it.
    fn configuration(&self) -> [(String, String); 3] {
        [
            ("GPULEDGER_HTTP__TLS_CERTIFICATE".to_owned(), self.file("server.pem")),
            ("GPULEDGER_HTTP__TLS_KEY".to_owned(), self.file("server-key.pem")),
            (CA_FILE.to_owned(), self.file("ca.pem")),
        ]
    }

    /// Replaces the server's certificate by one of the same authority that ended long ago.
    fn expire(&self) {
        let read = |name: &str| fs::read_to_string(self.file(name)).unwrap();
        let ca_key = KeyPair::from_pem(&read("ca-key.pem")).unwrap();
        let issuer = Issuer::from_ca_cert_pem(&read("ca.pem"), ca_key).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
        let certificate = params.signed_by(&key, &issuer).unwrap();
        fs::write(self.file("server-key.pem"), key.serialize_pem()).unwrap();
        fs::write(self.file("server.pem"), certificate.pem()).unwrap();
    }

    /// Shows the certificate of another authority in the same files.
    fn replace_by(&self, other: &Self) {
        for name in ["server-key.pem", "server.pem"] {
            fs::copy(other.file(name), self.file(name)).unwrap();
        }
    }
}

fn pairs(variables: &[(String, String)]) -> Vec<(&str, &str)> {
    variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

async fn deployment(authority: &Authority) -> Deployment {
    Deployment::start_with(&pairs(&authority.configuration())).await
}

/// Killed when dropped.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        // errors mean that it is gone already
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn an_agent_and_commands_work_with_an_authority_of_ones_own() {
    let authority = Authority::make(&["localhost", "127.0.0.1"]);
    let deployment = deployment(&authority).await;
    let url = deployment.server.url();
    assert!(url.starts_with("https://"), "{url}");
    let version = deployment.anyone().request(reqwest::Method::GET, "/healthz").send().await.unwrap().version();
    assert_eq!(version, reqwest::Version::HTTP_2);
    let pool = deployment.pool(600, 600).await;
    let token = deployment.join_token(&pool).await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (state, socket, ca) = (path("state"), path("agent.sock"), authority.file("ca.pem"));
    let environment = [
        ("GPULEDGER_AGENT__STATE_DIR", state.as_str()),
        ("GPULEDGER_AGENT__SOCKET", &socket),
        ("GPULEDGER_AGENT__SOURCE", "simulated"),
        ("GPULEDGER_AGENT__SIMULATED__GPUS", "1"),
        ("GPULEDGER_AGENT__REPORT_INTERVAL", "500ms"),
        ("GPULEDGER_AGENT__CA_FILE", &ca),
    ];
    let host = ["--hostname", "host", "--machine-id", "host"];
    let join = [&["node", "join", "--token", &token, "--server", url, "--ca-file", &ca], &host[..]].concat();
    run(&join, &environment[..5], "").expect(0);
    let log = File::create(path("log")).unwrap();
    let mut agent = command(&["agent"], &environment);
    let _agent = Agent(agent.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
    eventually("the agent reports", 30, async || {
        let nodes = deployment.operator.get("/v1/nodes").await.expect(200);
        (nodes["items"][0]["silent"] == false).then_some(())
    })
    .await;

    let tenant = deployment.tenant("tenant").await;
    let member = text(&deployment.secret(Some(&tenant.id), "member").await["secret"]);
    let search = env::var("PATH").unwrap();
    let environment = [
        ("GPULEDGER_SERVER", url),
        ("GPULEDGER_TOKEN", &member),
        (CA_FILE, &ca),
        ("GPULEDGER_AGENT__SOCKET", &socket),
        ("PATH", &search),
    ];
    let script = "echo $GPULEDGER_ALLOCATION_ID";
    let ran = run(&["run", "--memory", "10GiB", "--", "sh", "-c", script], &environment, "");
    let allocation = ran.expect(0).trim().to_owned();
    deployment.until(&allocation, "released", 20).await;
    let another = Authority::make(&["127.0.0.1"]);
    let other = another.file("ca.pem");
    let mut distrusting = environment;
    distrusting[2].1 = &other;
    let refused = run(&["run", "--memory", "10GiB", "--", "sh", "-c", script], &distrusting, "").complaint(125);
    assert!(refused.contains("not signed by the authority in"), "{refused}");
    assert!(run(&["list", "--all"], &environment, "").expect(0).contains(&allocation));
}

/// `list` and `node join` against a server: both say all of this and end as commands that are configured wrongly.
fn refused(url: &str, ca_file: Option<&str>, words: &[&str]) {
    let mut environment = vec![("GPULEDGER_SERVER", url), ("GPULEDGER_TOKEN", "glk_x")];
    environment.extend(ca_file.map(|file| (CA_FILE, file)));
    let folder = tempfile::tempdir().unwrap();
    environment.push(("GPULEDGER_AGENT__STATE_DIR", folder.path().to_str().unwrap()));
    let join = ["node", "join", "--token", "glj_x", "--hostname", "h", "--machine-id", "m"];
    for args in [&["list"][..], &join] {
        let said = run(args, &environment, "").complaint(2);
        for word in words {
            assert!(said.contains(word), "{args:?} does not say {word:?}: {said}");
        }
    }
}

#[tokio::test]
async fn what_does_not_hold_is_refused_and_it_is_said_what_to_do() {
    let (authority, other) = (Authority::make(&["127.0.0.1"]), Authority::make(&["127.0.0.1"]));
    let database = Database::fresh().await;
    let configuration = authority.configuration();
    let server = Server::start_with(&database, &pairs(&configuration)).await;
    let url = server.url();
    let file = |name: &str| authority.file(name);
    refused(url, Some(&other.file("ca.pem")), &["not signed by the authority in", "give the ca.pem"]);
    refused(url, None, &["an authority that this host does not know", "--ca-file"]);
    refused(url, Some(&file("ca-key.pem")), &["holds a private key"]);
    let nothing = file("nothing.pem");
    refused(url, Some(&nothing), &[&nothing, "cannot be read"]);
    fs::write(&nothing, "garbage").unwrap();
    refused(url, Some(&nothing), &[&nothing, "no certificate in PEM"]);
    refused(&url.replace("127.0.0.1", "localhost"), Some(&file("ca.pem")), &["for another host", "--host"]);
    drop(server);

    let plain = Server::start(&database).await;
    let https = plain.url().replace("http://", "https://");
    refused(&https, Some(&file("ca.pem")), &["does not speak TLS", "http.tls_certificate"]);

    // shown all the same when the server starts with it, and said
    authority.expire();
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut environment = pairs(&configuration);
    environment.extend([("DATABASE_URL", database.url()), ("GPULEDGER_HTTP__LISTEN", "127.0.0.1:0")]);
    let mut serve = command(&["serve"], &environment);
    let output = log.as_file();
    serve.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output.try_clone().unwrap());
    let _server = Agent(serve.spawn().unwrap());
    let url = eventually("it listens", 30, async || {
        let log = fs::read_to_string(log.path()).unwrap();
        let url = log.lines().find_map(|line| line.strip_prefix("listening on "))?.to_owned();
        assert!(log.contains("the certificate has ended"), "{log}");
        Some(url)
    })
    .await;
    refused(&url, Some(&authority.file("ca.pem")), &["has expired", "tls renew"]);
    let found = run(&["doctor"], &environment, "").expect(1);
    assert!(found.contains("tls") && found.contains("ended at 2021-01-01"), "{found}");
}

async fn is_trusted(url: &str, ca_file: &str) -> bool {
    let client = Client::trusting(url, Some(Path::new(ca_file)));
    client.request(reqwest::Method::GET, "/healthz").send().await.is_ok_and(|answer| answer.status() == 200)
}

#[tokio::test]
async fn a_new_certificate_is_shown_at_once_and_a_bad_one_never() {
    let (authority, other) = (Authority::make(&["127.0.0.1"]), Authority::make(&["127.0.0.1"]));
    let database = Database::fresh().await;
    let server = Server::start_with(&database, &pairs(&authority.configuration())).await;
    let (url, ca) = (server.url(), authority.file("ca.pem"));
    let said = |what: &'static str, count: usize| {
        let server = &server;
        async move {
            eventually(what, 20, async || (server.log().matches(what).count() >= count).then_some(())).await;
        }
    };

    let before = fs::read(authority.file("server.pem")).unwrap();
    let folder = authority.0.path().to_str().unwrap();
    let renewed = run(&["tls", "renew", "--out", folder], &[], "").expect(0);
    assert!(renewed.contains("127.0.0.1"), "{renewed}");
    assert_ne!(fs::read(authority.file("server.pem")).unwrap(), before);
    said("a new certificate is shown", 1).await;
    assert!(is_trusted(url, &ca).await);
    let again = run(&["tls", "make", "--host", "127.0.0.1", "--out", folder], &[], "").complaint(2);
    assert!(again.contains("tls renew"), "{again}");

    // a key that is not the certificate's, no PEM at all, and one that has ended
    fs::copy(other.file("server-key.pem"), authority.file("server-key.pem")).unwrap();
    said("is not that of the certificate", 1).await;
    assert!(is_trusted(url, &ca).await);
    fs::write(authority.file("server.pem"), "garbage").unwrap();
    said("holds no certificate in PEM", 1).await;
    assert!(is_trusted(url, &ca).await);
    authority.expire();
    said("ended at 2021-01-01", 1).await;
    assert!(is_trusted(url, &ca).await);
    fs::remove_file(authority.file("server-key.pem")).unwrap();
    said("cannot read", 1).await;
    assert!(is_trusted(url, &ca).await);

    authority.replace_by(&other);
    eventually("the other's certificate is shown", 20, async || {
        (!is_trusted(url, &ca).await && is_trusted(url, &other.file("ca.pem")).await).then_some(())
    })
    .await;
}

#[tokio::test]
async fn requests_under_way_are_answered_when_the_server_stops() {
    let authority = Authority::make(&["127.0.0.1"]);
    let mut deployment = deployment(&authority).await;
    let pool = deployment.pool(600, 600).await;
    deployment.node(&pool, "node", &[1 << 30]).await;
    let tenant = deployment.tenant("tenant").await;
    ask(&tenant.member, "a", &json!({"memory": "1GiB"})).await.expect(201);
    let queued = text(&ask(&tenant.member, "b", &json!({"memory": "1GiB"})).await.expect(202)["allocation_id"]);
    let waits = tokio::spawn({
        let (client, path) = (tenant.member.clone(), format!("/v1/allocations/{queued}?wait=2s"));
        async move { client.get(&path).await }
    });
    // nothing tells when it has begun
    tokio::time::sleep(Duration::from_millis(300)).await;
    let status = deployment.server.stop().await;
    assert!(status.success(), "{status}");
    assert_eq!(waits.await.unwrap().expect(200)["allocation_id"], queued.as_str());
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A connection on which HTTP/2 was agreed, and nothing said.
async fn http2(deployment: &Deployment, authority: &Authority) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.file("ca.pem")).unwrap()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let tcp = TcpStream::connect(deployment.server.url().trim_start_matches("https://")).await.unwrap();
    let name = "127.0.0.1".try_into().unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    stream.write_all(&frame(4, 0, 0, &[])).await.unwrap();
    stream
}

#[tokio::test]
async fn a_flood_of_streams_that_are_reset_ends_its_connection() {
    let authority = Authority::make(&["127.0.0.1"]);
    let deployment = deployment(&authority).await;
    // GET https://h/
    let head = [0x82, 0x87, 0x84, 0x41, 0x01, b'h'];
    for _ in 0..3 {
        let (mut reader, mut writer) = tokio::io::split(http2(&deployment, &authority).await);
        let flood = tokio::spawn(async move {
            let mut opened = 0;
            for number in 0..200_000_u32 {
                let stream = 2 * number + 1;
                let both = [frame(1, 5, stream, &head), frame(3, 0, stream, &8_u32.to_be_bytes())].concat();
                if writer.write_all(&both).await.is_err() {
                    break;
                }
                opened = number;
            }
            opened
        });
        // until the server says good-bye
        let mut answer = Vec::new();
        let _ =
            tokio::time::timeout(Duration::from_secs(20), reader.read_to_end(&mut answer)).await.expect("it goes on");
        let opened = flood.await.unwrap();
        assert!(opened < 199_999, "all were taken");
        deployment.operator.get("/v1/me").await.expect(200);
    }
}
