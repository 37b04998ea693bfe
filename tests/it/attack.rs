//! Schemathesis over the served document with the credential of each role: no answer is a server's failure, each is as
//! documented, and afterwards the ledger is sound. `cargo xtask attack` runs this; it needs Python, so the other tests
//! do not.

use crate::{
    authorisation::Stage,
    deployment::{Deployment, OPERATOR, PASSWORD, ask, change, run, start, text},
};
use serde_json::json;
use std::{
    collections::BTreeMap,
    env, fmt,
    fmt::Write as _,
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// The weakest first: what stronger ones do takes things away from the others.
const ROLES: [&str; 7] = ["none", "viewer", "member", "node", "tenant_admin", "billing_clerk", "operator"];
/// Values that the document describes by their form alone.
const WORDS: [(&str, &[&str]); 3] = [
    ("currency", &["KRW", "USD", "KWD"]),
    ("zone", &["Asia/Seoul", "America/Havana", "UTC"]),
    ("memory", &["1GiB", "512MiB", "70GiB"]),
];

/// What `cargo xtask attack` was told.
struct Orders {
    program: PathBuf,
    /// Where the committed configuration is.
    folder: PathBuf,
    /// Where reports go.
    reports: PathBuf,
    role: Option<String>,
    examples: String,
    seed: String,
    /// Every edge of every parameter, which takes longest, for two roles alone.
    short: bool,
}

impl Orders {
    fn read() -> Self {
        let told = |name: &str| {
            let name = format!("GPULEDGER_ATTACK_{name}");
            env::var(&name).unwrap_or_else(|_| panic!("{name} is not set: run `cargo xtask attack`"))
        };
        Self {
            program: told("PROGRAM").into(),
            folder: told("FOLDER").into(),
            reports: told("REPORTS").into(),
            role: Some(told("ROLE")).filter(|role| !role.is_empty()),
            examples: told("EXAMPLES"),
            seed: told("SEED"),
            short: told("SHORT") == "true",
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Python: cargo xtask attack"]
async fn every_role_gets_what_the_document_says() {
    let orders = Orders::read();
    let stage = Arc::new(Stage::set().await);
    furnish(&stage).await;
    let credentials = credentials(&stage).await;
    let over = Arc::new(AtomicBool::new(false));
    let living = tokio::spawn(live(Arc::clone(&stage), Arc::clone(&over)));

    let mut failed = Vec::new();
    for role in ROLES.into_iter().filter(|role| orders.role.as_ref().is_none_or(|wanted| wanted == role)) {
        let attack = Attack { orders: &orders, stage: &stage, role, credential: credentials.get(role) };
        if !attack.run() {
            failed.push(role);
        }
        if let Some(credential) = credentials.get(role).filter(|_| role != "node") {
            let me = stage.deployment.anyone().with(credential).get("/v1/me").await;
            assert_eq!(me.status, 200, "{role} revoked its own credential, and tried the rest without one");
        }
    }
    over.store(true, Ordering::SeqCst);
    living.await.unwrap();

    let server = &stage.deployment.server;
    let log = server.log();
    let bad: Vec<&str> = log.lines().filter(|l| l.contains("internal error") || l.contains("panicked")).collect();
    assert!(bad.is_empty(), "the server said:\n{}", bad.join("\n"));
    assert!(failed.is_empty(), "as {failed:?}: see above; again with --seed {}", orders.seed);
    let doctor = run(&["doctor"], &[("DATABASE_URL", &stage.deployment.database_url)], "");
    // the host of the past is silent, a node was lied about, and the tests' Postgres would not survive a crash
    let of_the_stage =
        |line: &str| ["nodes", "copies", "durability"].iter().any(|what| line.split_whitespace().nth(1) == Some(what));
    let wrong: Vec<&str> = doctor.out.lines().filter(|l| l.starts_with("problem") && !of_the_stage(l)).collect();
    assert!(doctor.out.contains("balance") && wrong.is_empty(), "{wrong:#?}\n{}", doctor.out);
}

/// Allocations in several states besides the one that is held.
async fn furnish(stage: &Stage) {
    let small = json!({"memory": "1GiB"});
    for (n, then) in ["", "", "release", "cancel"].into_iter().enumerate() {
        let key = format!("furniture {n}");
        match then {
            "cancel" => {
                let id = text(&ask(&stage.ours.member, &key, &small).await.expect(201)["allocation_id"]);
                change(&stage.ours.member, &id, then).await.expect(200);
            }
            "release" => {
                let id = start(&stage.ours.member, &key, &small).await;
                change(&stage.ours.member, &id, then).await.expect(200);
            }
            _ => drop(start(&stage.ours.member, &key, &small).await),
        }
    }
    let whole = json!({"memory": "80GiB", "gpus": 1, "node_id": stage.node.id});
    ask(&stage.ours.member, "furniture that waits", &whole).await.expect(202);
}

/// A person's token for each role, so that no run can revoke the credential of its own.
async fn credentials(stage: &Stage) -> BTreeMap<&'static str, String> {
    let operator = &stage.deployment.operator;
    let mut credentials = BTreeMap::new();
    for role in ROLES.into_iter().filter(|role| !["none", "node"].contains(role)) {
        let email = if role == "operator" { OPERATOR.to_owned() } else { format!("{role}@attack.test") };
        let tenant = (!["operator", "billing_clerk"].contains(&role)).then_some(&stage.ours.id);
        if role != "operator" {
            let user = json!({"tenant_id": tenant, "email": email, "name": role, "role": role, "password": PASSWORD});
            operator.post("/v1/users", &user).await.expect(201);
        }
        let session = json!({"email": email, "password": PASSWORD});
        let session = stage.deployment.anyone().post("/v1/login", &session).await.expect(200);
        credentials.insert(role, text(&session["token"]));
    }
    credentials.insert("node", stage.node.credential.clone());
    credentials
}

/// The nodes live on: they report until it is over, whatever is reported in their name besides.
async fn live(stage: Arc<Stage>, over: Arc<AtomicBool>) {
    while !over.load(Ordering::SeqCst) {
        // removed, or told lies about: then it is refused
        let _ = stage.node.report(&[]).await;
        let _ = stage.other_node.report(&[]).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

struct Attack<'a> {
    orders: &'a Orders,
    stage: &'a Stage,
    role: &'static str,
    credential: Option<&'a String>,
}

impl Attack<'_> {
    /// Whether nothing was found. What is found is printed by the program itself.
    fn run(&self) -> bool {
        eprintln!("\n==== as {}", self.role);
        let folder = self.orders.reports.join(self.role);
        fs::create_dir_all(&folder).unwrap();
        let configuration = folder.join("schemathesis.toml");
        fs::write(&configuration, self.configuration().unwrap()).unwrap();
        let thorough = !self.orders.short || ["operator", "tenant_admin"].contains(&self.role);
        let phases = if thorough { "examples,coverage,fuzzing,stateful" } else { "examples,fuzzing,stateful" };
        let status = Command::new(&self.orders.program)
            .args(["--config-file".as_ref(), configuration.as_os_str()])
            .args(["run", &format!("{}/v1/openapi.json", self.stage.deployment.server.url())])
            .args([
                "--phases",
                phases,
                "--max-examples",
                &self.orders.examples,
                "--seed",
                &self.orders.seed,
                "--no-color",
            ])
            .args(["--report", "ndjson", "--report-dir", &folder.display().to_string()])
            .env("GPULEDGER_ATTACK_CREDENTIAL", self.credential.map_or("", String::as_str))
            .env("GPULEDGER_ATTACK_SESSION", &self.stage.ids["session_id"])
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .current_dir(&folder)
            .stdin(Stdio::null())
            .status()
            .unwrap();
        status.success()
    }

    /// The committed configuration, with the credential and the identifiers of this world.
    fn configuration(&self) -> Result<String, fmt::Error> {
        let base = self.orders.folder.join("schemathesis.toml");
        let mut toml = fs::read_to_string(&base).unwrap();
        let hooks = self.orders.folder.join("hooks.py");
        toml = toml.replace("hooks = \"hooks\"", &format!("hooks = {:?}", hooks.display().to_string()));
        if self.credential.is_some() {
            write!(toml, "\n[headers]\nAuthorization = \"Bearer ${{GPULEDGER_ATTACK_CREDENTIAL}}\"\n")?;
        }
        let known = self.stage.ids.iter().map(|(name, id)| (*name, vec![id.as_str()]));
        let words = WORDS.into_iter().map(|(name, words)| (name, words.to_vec()));
        let mut bindings = String::from("\n[parameters]\n");
        for (name, values) in known.chain(words) {
            let number = values.iter().all(|value| value.parse::<u32>().is_ok());
            let values = if number { format!("[{}]", values.join(", ")) } else { format!("{values:?}") };
            write!(toml, "\n[dictionaries.{name}]\nvalues = {values}\n")?;
            for place in ["path", "query", "body"] {
                writeln!(bindings, "\"{place}.{name}\" = {{ dictionary = \"{name}\", probability = 0.7 }}")?;
            }
        }
        Ok(toml + &bindings)
    }
}

/// PostgreSQL stores no NUL, so that one in a text that went through to it was an internal error.
#[tokio::test]
async fn a_nul_in_a_text_is_the_callers_fault() {
    let deployment = Deployment::start().await;
    let login = json!({"email": "oper\0ator@example.com", "password": PASSWORD});
    deployment.anyone().post("/v1/login", &login).await.problem(422, "invalid", Some("email"));
    let nobody = "01980000-0000-7000-8000-000000000001";
    let invoice = json!({"tenant_id": nobody, "period": "2026-10", "waiver": "a\0b"});
    deployment.operator.post("/v1/invoices", &invoice).await.problem(422, "invalid", Some("waiver"));
    let note = json!({"note": "a\0b"});
    let path = format!("/v1/set-aside/{nobody}/reject");
    deployment.operator.post(&path, &note).await.problem(422, "invalid", Some("note"));
}

/// Whatever a node says of a part of its own, an operator who accepts it is told why not, if not.
#[tokio::test]
async fn the_most_extreme_row_set_aside_is_ruled_on() {
    let deployment = Deployment::start().await;
    let pool = deployment.pool(600, 600).await;
    let node = deployment.node(&pool, "node", &[80 << 30]).await;
    let tenant = deployment.tenant("tenant").await;
    let id = start(&tenant.member, "key", &json!({"memory": "1GiB"})).await;
    let part = text(&deployment.allocation(&id).await["parts"][0]["part_id"]);
    let most = "9".repeat(28);
    let row = |start: &str, end: &str, used: &str| {
        json!({"part_id": part, "start": start, "end": end, "granted": i64::MAX, "used": used, "above": format!("-{most}"),
            "peak": i64::MAX, "covered_ms": u32::MAX, "quality": "measured"})
    };
    let ends = [("1970-01-01T00:00:00Z", "1970-01-01T00:01:00Z"), ("9999-12-29T23:59:00Z", "9999-12-30T00:00:00Z")];
    let rows: Vec<_> = ends.into_iter().map(|(start, end)| row(start, end, &most)).collect();
    let batch = |readings| {
        json!({"stream_id": "01980000-0000-7000-8000-00000000000d", "sequence": 1, "sent_at": types::Clock::System.now(),
            "readings": readings})
    };
    assert_eq!(node.client.post("/v1/reading-batches", &batch(rows)).await.expect(200)["set_aside"], 2);
    let too_much = vec![row(ends[0].0, ends[0].1, &"9".repeat(29))];
    let refused = node.client.post("/v1/reading-batches", &batch(too_much)).await;
    refused.problem(422, "invalid", Some("readings[0].used"));
    for aside in deployment.operator.get("/v1/set-aside").await.expect(200)["items"].as_array().unwrap() {
        let path = format!("/v1/set-aside/{}/accept", text(&aside["set_aside_id"]));
        let answer = deployment.operator.post(&path, &json!({})).await;
        assert!(matches!(answer.status, 200 | 409), "{answer}");
    }
}
