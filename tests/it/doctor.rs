//! `gpuledger doctor`: finds nothing where nothing is wrong, and names each trouble that can be made to happen.

use crate::{
    deployment::{Deployment, OPERATOR, ask, eventually, run, text},
    past,
    world::{MODEL, card, number},
};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgConnection};
use types::Bytes;

/// What is not good about the tests' own server: it forgets when the power fails, and is never backed up.
const OF_THE_TESTS: [&str; 2] = ["durability", "backup"];
/// What tells of the ledger itself, whether a server works on it or not.
const LEDGER: [&str; 6] = ["quotas", "grants", "balance", "numbers", "invoices", "streams"];

/// Whatever is not good: check, and what was found with what to do.
pub type Found = Vec<(String, String)>;

/// Has the doctor look at a database. The exit status must fit what it found.
pub fn examine(url: &str, more: &[&str], environment: &[(&str, &str)]) -> Found {
    let ran = run(&[&["doctor", "--json"], more].concat(), &[&[("DATABASE_URL", url)], environment].concat(), "");
    let code = ran.code;
    let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {}{}", ran.out, ran.err));
    let findings = report["findings"].as_array().unwrap();
    let bad = findings.iter().any(|finding| finding["severity"] == "problem");
    assert_eq!(code, Some(i32::from(bad)), "{report}");
    let remarkable = findings.iter().filter(|finding| finding["severity"] != "good");
    remarkable
        .map(|finding| {
            let remedy = finding["remedy"].as_str().unwrap_or_default();
            assert!(!remedy.is_empty() || finding["what"].as_str().unwrap().starts_with("and "), "{finding}");
            (text(&finding["check"]), format!("{} -> {remedy}", text(&finding["what"])))
        })
        .collect()
}

fn of_others(found: Found) -> Found {
    found.into_iter().filter(|(check, _)| !OF_THE_TESTS.contains(&check.as_str())).collect()
}

async fn execute(owner: &mut PgConnection, statement: &str) {
    let done = sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(owner).await;
    let rows = done.unwrap_or_else(|e| panic!("{statement}: {e}")).rows_affected();
    let changes_rows = ["update", "delete", "insert", "with"].iter().any(|verb| statement.starts_with(verb));
    assert!(rows > 0 || !changes_rows, "{statement}");
}

/// What is wrong with a database, how it is undone, which check says so and what.
type Trouble<'a> = (&'a str, &'a str, &'a str, &'a str);

// tidy: long function: a list, one trouble after the other
fn troubles<'a>(gpu: &'a str, tenant: &'a str) -> Vec<Trouble<'a>> {
    vec![
        (
            "grant update on interval to gpuledger_service",
            "revoke update on interval from gpuledger_service",
            "rights",
            "has the right UPDATE on interval",
        ),
        (
            "revoke insert on history from gpuledger_service",
            "grant insert on history to gpuledger_service",
            "rights",
            "lacks the right INSERT on history",
        ),
        (
            "revoke execute on function make_reading_month from gpuledger_service",
            "grant execute on function make_reading_month to gpuledger_service",
            "rights",
            "EXECUTE on make_reading_month",
        ),
        (
            "alter table allocation disable row level security",
            "alter table allocation enable row level security",
            "walls",
            "allocation",
        ),
        (
            "create policy door on charge for select to gpuledger_service using (true)",
            "drop policy door on charge",
            "walls",
            "charge",
        ),
        ("update interval set bytes = bytes + 1", "update interval set bytes = bytes - 1", "balance", gpu),
        (
            "update interval set ends_at = ends_at - interval '1 second'",
            "update interval set ends_at = ends_at + interval '1 second'",
            "balance",
            gpu,
        ),
        (
            "update quota set used_bytes = used_bytes + 1 where level = 'project'",
            "update quota set used_bytes = used_bytes - 1 where level = 'project'",
            "quotas",
            tenant,
        ),
        ("update gpu set granted = granted + 1", "update gpu set granted = granted - 1", "grants", gpu),
        (
            "update allocation set hold_until = now() - interval '1 hour' where state = 'held'",
            "update allocation set hold_until = now() + interval '1 hour' where state = 'held'",
            "deadlines",
            "hold_until",
        ),
        (
            "update node set last_heard = now() - interval '1 day'",
            "update node set last_heard = now()",
            "nodes",
            past::HOST,
        ),
        (
            "update task set last_error = 'no room' where name = 'make_months'",
            "update task set last_error = null where name = 'make_months'",
            "tasks",
            "make_months failed: no room",
        ),
        (
            "update signing_key set public_key = public_key || '\\x00'",
            "update signing_key set public_key = substring(public_key for length(public_key) - 1)",
            "keys",
            "is not a pair",
        ),
        (
            "update user_account set disabled_at = now()",
            "update user_account set disabled_at = null",
            "operators",
            "nobody can log in",
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_finds_nothing_in_a_healthy_deployment_and_names_each_trouble() {
    let (database, tenant) = past::hours().await;
    let mut deployment = Deployment::on(database, &[]).await;
    let pool = text(&deployment.operator.get("/v1/pools").await.expect(200)["items"][0]["pool_id"]);
    let graces = json!({"hold_grace_s": 86_400, "silence_grace_s": 86_000});
    let graces = deployment.operator.request(Method::PATCH, &format!("/v1/pools/{pool}")).json(&graces);
    deployment.operator.send(graces).await.expect(200);
    let gpu = json!(card(MODEL, past::CARD, Some(Bytes::ZERO), number(past::HOST, 0)));
    let node = deployment.join(&pool, past::HOST, vec![gpu]).await;
    let tenant = deployment.tenant_of(tenant.to_string()).await;
    ask(&tenant.member, "held", &json!({"memory": "1GiB"})).await.expect(201);
    let mut owner = deployment.owner().await;
    eventually("every task has run", 20, async || {
        let tasks = "select count(*) >= 4 and bool_and(last_run_at is not null) from task";
        sqlx::query_scalar(tasks).fetch_one(&mut owner).await.unwrap_or(false).then_some(())
    })
    .await;
    node.report(&[]).await.expect(200);
    eventually("the leader stored that it heard the node", 10, async || {
        let heard = "select last_heard > clock_timestamp() - interval '1 minute' from node";
        sqlx::query_scalar(heard).fetch_one(&mut owner).await.unwrap_or(false).then_some(())
    })
    .await;
    let url = deployment.database_url.clone();
    assert_eq!(of_others(examine(&url, &[], &[])), []);
    assert_eq!(of_others(examine(&url, &["--full"], &[])), []);

    let gpu: String = sqlx::query_scalar("select gpu_id::text from gpu").fetch_one(&mut owner).await.unwrap();
    for (plant, undo, check, said) in troubles(&gpu, &tenant.id) {
        execute(&mut owner, plant).await;
        let found = of_others(examine(&url, &[], &[]));
        assert!(found.iter().all(|(c, _)| c == check) && !found.is_empty(), "{plant}: {found:?}");
        assert!(found.iter().any(|(_, what)| what.contains(said)), "{plant}: {found:?}");
        execute(&mut owner, undo).await;
    }
    assert_eq!(of_others(examine(&url, &[], &[])), []);
    let greedy = of_others(examine(&url, &[], &[("GPULEDGER_DATABASE__CONNECTIONS", "1000")]));
    assert!(
        matches!(&greedy[..], [(check, what)] if check == "connections" && what.contains("may open 1000")),
        "{greedy:?}"
    );

    // without a server it says that, and everything else as before
    assert!(deployment.server.stop().await.success());
    let alone = of_others(examine(&url, &[], &[]));
    assert!(
        matches!(&alone[..], [(check, what)] if check == "leadership" && what.contains("gpuledger serve")),
        "{alone:?}"
    );
    execute(&mut owner, "update task set due_at = now() - interval '1 hour' where name = 'end_periods'").await;
    let next = "select to_char((now() at time zone 'UTC') + interval '31 days', 'YYYY_MM')";
    let next: String = sqlx::query_scalar(next).fetch_one(&mut owner).await.unwrap();
    execute(&mut owner, &format!("drop table reading_{next}")).await;
    let checks: Vec<String> = of_others(examine(&url, &[], &[])).into_iter().map(|(check, _)| check).collect();
    assert_eq!(checks, ["months", "leadership", "tasks"]);
    let words = run(&["doctor"], &[("DATABASE_URL", &url)], "");
    assert!(words.err.contains("problems"), "{words:?}");
    assert!(words.expect(1).contains("-> "), "a problem comes with what to do");
}

#[tokio::test]
async fn what_cannot_be_reached_or_read_is_said_first() {
    let away = examine("postgres://nobody@127.0.0.1:1/nothing", &[], &[]);
    assert!(matches!(&away[..], [(check, _)] if check == "postgres"), "{away:?}");
    let wrong = examine("mysql://nobody@127.0.0.1/nothing", &[], &[]);
    assert!(matches!(&wrong[..], [(check, what)] if check == "config" && what.contains("database.url")), "{wrong:?}");
    let database = support::Database::empty().await;
    let empty = examine(database.url(), &[], &[]);
    assert!(
        matches!(&empty[..], [(check, what)] if check == "schema" && what.contains("gpuledger migrate")),
        "{empty:?}"
    );
    let init = ["admin", "init", "--email", OPERATOR, "--name", "Operator"];
    run(&init, &[("DATABASE_URL", database.url())], "").expect(0);
    let begun: Vec<String> = of_others(examine(database.url(), &[], &[])).into_iter().map(|(check, _)| check).collect();
    assert_eq!(begun, ["months", "leadership", "tasks"]);
}

/// Each is undone by the statement beside it; what it must be found by, and a word that it must be named with.
const TAMPERINGS: [(&str, &str, &[&str], &str); 14] = [
    (
        "update interval set bytes = bytes + 1 where bytes = 10000000000",
        "update interval set bytes = bytes - 1 where bytes = 10000000001",
        &["balance", "invoices"],
        "GL-000001",
    ),
    (
        "with gone as (delete from interval where bytes = 10000000000 returning *) insert into kept.interval select * from gone",
        "insert into interval select * from kept.interval",
        &["balance", "invoices"],
        "GPU",
    ),
    (
        "with gone as (delete from charge where quantity = (select min(quantity) from charge) returning *)
      insert into kept.charge select * from gone",
        "insert into charge select * from kept.charge",
        &["invoices"],
        "GL-000001",
    ),
    (
        "update charge set line_number = line_number + 1",
        "update charge set line_number = line_number - 1",
        &["invoices"],
        "where it does not belong",
    ),
    ("update charge set price = price + 1", "update charge set price = price - 1", &["invoices"], "price"),
    (
        "update invoice set document = document || ' '",
        "update invoice set document = trim(document)",
        &["invoices"],
        "GL-000001",
    ),
    (
        "update invoice set hash = reverse(hash)",
        "update invoice set hash = reverse(hash)",
        &["numbers", "invoices"],
        "the chain breaks at GL-000001",
    ),
    (
        "update invoice_series set last_serial = last_serial + 1",
        "update invoice_series set last_serial = last_serial - 1",
        &["numbers"],
        "counts to 2, the last number is 1",
    ),
    (
        "update invoice_number set serial = serial + 1",
        "update invoice_number set serial = serial - 1",
        &["numbers"],
        "2 follows 0",
    ),
    (
        "update stream set head_hash = set_byte(head_hash, 0, 255 - get_byte(head_hash, 0))",
        "update stream set head_hash = set_byte(head_hash, 0, 255 - get_byte(head_hash, 0))",
        &["streams"],
        "STREAM",
    ),
    (
        "update reading set used = used + 1 where skew_ms <> 0 and used > 0",
        "update reading set used = used - 1 where skew_ms <> 0",
        &["streams"],
        "STREAM",
    ),
    (
        "with gone as (delete from reading where sequence = 5 returning *) insert into kept.reading select * from gone",
        "insert into reading select * from kept.reading",
        &["streams"],
        "STREAM",
    ),
    (
        "update quota set used_allocations = used_allocations + 1 where level = 'tenant'",
        "update quota set used_allocations = used_allocations - 1 where level = 'tenant'",
        &["quotas"],
        "TENANT",
    ),
    ("update gpu set granted = granted + 1", "update gpu set granted = granted - 1", &["grants"], "GPU"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_owns_the_database_changes_nothing_unseen() {
    let past = past::month().await;
    let mut owner = past.database.connect().await;
    let url = past.database.url().to_owned();
    let ledger = |more: &[&str]| -> Found {
        examine(&url, more, &[]).into_iter().filter(|(check, _)| LEDGER.contains(&check.as_str())).collect()
    };
    assert_eq!(ledger(&["--full"]), []);
    execute(&mut owner, "create schema kept").await;
    for table in ["interval", "charge", "reading"] {
        execute(&mut owner, &format!("create table kept.{table} (like public.{table})")).await;
    }
    let mut one =
        async |query: &'static str| -> String { sqlx::query_scalar(query).fetch_one(&mut owner).await.unwrap() };
    let (gpu, stream) = (one("select gpu_id::text from gpu").await, one("select stream_id::text from stream").await);
    for (tamper, undo, checks, word) in TAMPERINGS {
        execute(&mut owner, tamper).await;
        let found = ledger(&["--full"]);
        let mut by: Vec<&str> = found.iter().map(|(check, _)| check.as_str()).collect();
        by.dedup();
        assert_eq!(by, checks, "{tamper}: {found:?}");
        let word = match word {
            "GPU" => gpu.as_str(),
            "STREAM" => stream.as_str(),
            "TENANT" => &past.tenant.to_string(),
            other => other,
        };
        assert!(found.iter().any(|(_, what)| what.contains(word)), "{tamper}: {found:?}");
        execute(&mut owner, undo).await;
    }
    assert_eq!(ledger(&["--full"]), []);
    // what is old is seen when everything is looked at, and what was set aside counts, too
    execute(&mut owner, "update set_aside set reading = jsonb_set(reading, '{covered_ms}', '1')").await;
    assert_eq!(ledger(&[]), []);
    let found = ledger(&["--full"]);
    assert!(matches!(&found[..], [(check, what)] if check == "streams" && what.contains(&stream)), "{found:?}");
}
