//! The commands, as processes: what they print, and with which status they end.

use crate::{
    deployment::{Deployment, OPERATOR, PASSWORD, Ran, run, text},
    past,
};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgConnection};
use std::{fs, os::unix::fs::PermissionsExt};
use support::Database;

const GIB: u64 = 1 << 30;

#[tokio::test]
async fn the_first_operator_is_made_once() {
    let database = Database::fresh().await;
    let init = |email: &str, more: &[&str], input: &str| {
        let args = [&["admin", "init", "--email", email, "--name", "Operator"], more].concat();
        run(&args, &[("DATABASE_URL", database.url())], input)
    };
    let weak = init(OPERATOR, &["--password-stdin"], "short\n").complaint(3);
    assert!(weak.contains("password"), "{weak}");
    let made = init(OPERATOR, &[], "").expect(0);
    let password = made.lines().find_map(|line| line.strip_prefix("password: ")).unwrap().trim();
    assert_eq!(password.len(), 24, "{made}");
    let again = init("another@example.com", &["--password-stdin"], PASSWORD).complaint(3);
    assert!(again.contains("operator"), "{again}");
    let reset = ["admin", "reset-password", "--email", OPERATOR, "--password-stdin"];
    run(&reset, &[("DATABASE_URL", database.url())], PASSWORD).expect(0);
    let nowhere = [("DATABASE_URL", "postgres://nobody@127.0.0.1:1/nothing")];
    run(&reset, &nowhere, PASSWORD).expect(4);
}

#[tokio::test]
async fn a_member_does_everything_with_commands() {
    let deployment = Deployment::start().await;
    let pool = deployment.pool(600, 600).await;
    deployment.node(&pool, "node", &[80 * GIB]).await;
    let tenant = deployment.tenant("tenant").await;
    let user = json!({"email": "kim@example.com", "name": "Kim", "role": "member", "password": PASSWORD});
    tenant.admin.post("/v1/users", &user).await.expect(201);
    let quota = json!({"tenant_id": tenant.id, "limits": {"workload_bytes": "90GiB"}});
    deployment.operator.put("/v1/quotas/tenant", &quota).await.expect(204);

    let home = tempfile::tempdir().unwrap();
    let config = home.path().to_str().unwrap();
    let environment = [("GPULEDGER_SERVER", deployment.server.url()), ("XDG_CONFIG_HOME", config)];
    let call = |args: &[&str]| -> Ran { run(args, &environment, PASSWORD) };
    let missing = call(&["list"]).complaint(2);
    assert!(missing.contains("gpuledger login"), "{missing}");
    call(&["login", "--email", "kim@example.com", "--password-stdin"]).expect(0);
    let token = fs::metadata(home.path().join("gpuledger/token")).unwrap();
    assert_eq!(token.permissions().mode() & 0o777, 0o600);

    let placed = call(&["request", "--memory", "80GiB", "--dry-run"]).expect(0);
    assert!(placed.contains("would be placed on GPU-"), "{placed}");
    let refused = call(&["request", "--memory", "50GiB", "--gpus", "2", "--dry-run"]).expect(3);
    assert!(refused.contains("would be refused") && refused.contains("90GiB"), "{refused}");
    let invalid = call(&["request", "--memory", "81GiB"]).complaint(3);
    assert!(invalid.contains("memory must be at most 80GiB"), "{invalid}");
    for memory in ["NaN", "20G", "-1", ""] {
        let wrong = call(&["request", "--memory", memory]).complaint(2);
        assert!(wrong.contains("--memory"), "{wrong}");
    }

    let first = call(&["request", "--memory", "60GiB", "--project", "default", "--key", "one", "--json"]).json(0);
    let id = text(&first["allocation_id"]);
    assert_eq!(
        call(&["request", "--memory", "60GiB", "--key", "one", "--json"]).json(0)["allocation_id"],
        first["allocation_id"]
    );
    let confirmed = call(&["confirm", &id]).expect(0);
    assert!(confirmed.contains("active (confirmed)") && confirmed.contains("CUDA_VISIBLE_DEVICES=GPU-"), "{confirmed}");
    call(&["renew", &id]).expect(0);
    let waits = call(&["request", "--memory", "30GiB", "--dry-run"]).expect(0);
    assert!(waits.contains("would wait at place 1"), "{waits}");
    let queued = call(&["request", "--memory", "30GiB", "--json"]).json(0);
    let second = text(&queued["allocation_id"]);
    call(&["wait", &second, "--wait", "1s"]).expect(1);
    let list = call(&["list"]).expect(0);
    assert!(list.contains(&id) && list.contains(&second) && list.contains("queued"), "{list}");
    let active = call(&["cancel", &id]).complaint(3);
    assert!(active.contains("release it"), "{active}");
    assert!(call(&["cancel", &second]).expect(0).contains("cancelled"));
    let third = text(&call(&["request", "--memory", "30GiB", "--json"]).json(0)["allocation_id"]);
    call(&["release", &id]).expect(0);
    let held = call(&["wait", &third, "--wait", "10s"]).expect(0);
    assert!(held.contains("held (placed)"), "{held}");
    let shown = call(&["show", &id]).expect(0);
    for word in ["requested", "placed", "confirmed", "released", "owner"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    assert_eq!(call(&["list", "--json"]).json(0).as_array().unwrap().len(), 1);
    assert_eq!(call(&["list", "--all", "--json"]).json(0).as_array().unwrap().len(), 3);
    let usage = call(&["usage"]).expect(0);
    assert!(usage.contains("default"), "{usage}");
    let unknown = call(&["show", "01980000-0000-7000-8000-000000000001"]).complaint(3);
    assert!(unknown.contains("404 not_found"), "{unknown}");
    let away = run(&["list"], &[("GPULEDGER_SERVER", "http://127.0.0.1:1"), ("GPULEDGER_TOKEN", "x")], "");
    away.expect(4);
}

async fn execute(owner: &mut PgConnection, statement: &str) {
    let done = sqlx::query(AssertSqlSafe(statement.to_owned())).execute(owner).await.unwrap();
    assert!(done.rows_affected() > 0, "{statement}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invoice_is_identical_until_somebody_tampers_and_then_it_is_said_where() {
    let past = past::month().await;
    let environment = [("DATABASE_URL", past.database.url())];
    let verify = |invoice: &str| run(&["verify-invoice", invoice], &environment, "");
    let identical = verify(&past.number).expect(0);
    assert!(identical.contains("GL-000001 is identical: recomputed from 2 charges and 2 facts"), "{identical}");
    assert_eq!(verify(&past.invoice.to_string()).expect(0), identical);
    assert!(verify("GL-000002").complaint(3).contains("invoice"));

    // whoever owns the database can change everything; none of it goes unseen
    let mut owner = past.database.connect().await;
    for (tamper, undo, place) in [
        (
            "update interval set bytes = bytes + 1 where bytes = 10000000000",
            "update interval set bytes = bytes - 1 where bytes = 10000000001",
            "quantity",
        ),
        (
            "update interval set ends_at = ends_at - interval '1 millisecond' where bytes = 10000000000",
            "update interval set ends_at = ends_at + interval '1 millisecond' where bytes = 10000000000",
            "quantity",
        ),
        ("update charge set price = price + 1", "update charge set price = price - 1", "price"),
        ("update plan_rate set reserved = reserved + 1", "update plan_rate set reserved = reserved - 1", "price"),
        (
            "update invoice set total_minor = total_minor + 1",
            "update invoice set total_minor = total_minor - 1",
            "total is stored as",
        ),
        (
            "update invoice set document = replace(document, '\"past\"', '\"passed\"')",
            "update invoice set document = replace(document, '\"passed\"', '\"past\"')",
            "digest",
        ),
        ("update invoice set hash = reverse(hash)", "update invoice set hash = reverse(hash)", "series: the hash"),
    ] {
        execute(&mut owner, tamper).await;
        let differs = verify(&past.number).expect(1);
        assert!(differs.contains("GL-000001 differs:") && differs.contains(place), "{tamper}: {differs}");
        let json = run(&["verify-invoice", &past.number, "--json"], &environment, "").json(1);
        assert_eq!(json["identical"], false, "{json}");
        execute(&mut owner, undo).await;
        assert_eq!(verify(&past.number).expect(0), identical, "{undo}");
    }

    // by the server, for whom it concerns
    let deployment = Deployment::on(past.database, &[]).await;
    let key = deployment.secret(Some(&past.tenant.to_string()), "viewer").await;
    let environment =
        [("GPULEDGER_SERVER", deployment.server.url()), ("GPULEDGER_TOKEN", key["secret"].as_str().unwrap())];
    assert_eq!(run(&["verify-invoice", &past.number], &environment, "").expect(0), identical);
    execute(&mut owner, "update charge set quantity = quantity + 1").await;
    assert!(run(&["verify-invoice", &past.number], &environment, "").expect(1).contains("quantity"));
    let invoices = run(&["invoices"], &environment, "").expect(0);
    assert!(invoices.contains(&past.number) && invoices.contains(&past.month), "{invoices}");
}

#[test]
fn an_unknown_key_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gpuledger.toml");
    fs::write(&file, "[http]\nlissten = '127.0.0.1:1'\n").unwrap();
    let file = file.to_str().unwrap();
    for command in
        [&["serve"][..], &["migrate"], &["agent"], &["admin", "init", "--email", "a@b.example", "--name", "A"]]
    {
        let by_file = run(&[&["--config", file], command].concat(), &[], "").complaint(2);
        assert!(by_file.contains("http.lissten") && by_file.contains(file), "{by_file}");
        let by_environment = run(command, &[("GPULEDGER_HTTP__LISSTEN", "127.0.0.1:1")], "").complaint(2);
        assert!(by_environment.contains("GPULEDGER_HTTP__LISSTEN"), "{by_environment}");
    }
    let one_underscore = run(&["serve"], &[("GPULEDGER_HTTP_LISTEN", "127.0.0.1:1")], "").complaint(2);
    assert!(one_underscore.contains("GPULEDGER_HTTP__LISTEN"), "{one_underscore}");
    let wrong = run(&["serve"], &[("GPULEDGER_HTTP__TIMEOUT", "soon")], "").complaint(2);
    assert!(wrong.contains("http.timeout"), "{wrong}");
    let missing = run(&["--config", "/nowhere/gpuledger.toml", "serve"], &[], "").complaint(2);
    assert!(missing.contains("/nowhere/gpuledger.toml"), "{missing}");
}

#[tokio::test]
async fn the_printed_document_is_the_served_one() {
    let deployment = Deployment::start().await;
    let served = deployment.anyone().get("/v1/openapi.json").await.expect(200);
    let printed: Value = run(&["openapi"], &[], "").json(0);
    assert!(served == printed, "the server serves another document than `gpuledger openapi` prints");
}
