//! Backup and restore with PostgreSQL's own programs, along the operator's guide: a dump into another cluster, and a base
//! backup with archived WAL up to a point between two acknowledged changes.

use crate::{
    deployment::{Deployment, Node, ask, change, eventually, run, start, text},
    doctor::examine,
    past,
    world::{MODEL, card, number},
};
use postgres::{Place, Running, Settings};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};
use support::Client;
use tempfile::TempDir;
use types::{Bytes, Clock, Instant};
use uuid::Uuid;

const GIB: u64 = 1 << 30;

/// Folders of private clusters, which another user's server can reach.
fn place() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// A private cluster as `gpuledger serve` keeps one.
fn cluster(folder: &Path) -> Running {
    postgres::find(&Settings::new(None, Place::Folder(folder.to_owned()))).unwrap()
}

/// One of PostgreSQL's programs, to be run on the server of a URL. The password is in the environment, not in the command
/// line, which everybody on a machine can read.
fn program(name: &str, url: &str, programs: &Path) -> Command {
    let url = url.strip_prefix("postgres://").unwrap();
    let (user, host) = url.split_once('@').unwrap();
    let (user, password) = user.split_once(':').unwrap_or((user, ""));
    let (host, database) = host.split_once('/').unwrap();
    let database = database.split('?').next().unwrap();
    let (host, port) = host.split_once(':').unwrap_or((host, "5432"));
    let path = programs.join(name);
    assert!(path.is_file(), "{} is missing: install PostgreSQL's client programs", path.display());
    let mut command = Command::new(path);
    command.env("PGHOST", host).env("PGPORT", port).env("PGUSER", user).env("PGPASSWORD", password);
    command.env("PGDATABASE", database);
    command
}

fn done(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

async fn sql(url: &str, statement: &str) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(&mut connection).await.unwrap();
}

async fn value(url: &str, query: &'static str) -> String {
    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::query_scalar(query).fetch_one(&mut connection).await.unwrap()
}

/// Members who ask for memory and give it back, one after the other, until they are stopped.
struct Load {
    stop: Arc<AtomicBool>,
    /// Allocations and the state that was acknowledged last.
    acknowledged: Arc<Mutex<Vec<(String, &'static str)>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Load {
    fn begin(member: Client) -> Self {
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let task = tokio::spawn({
            let (stop, acknowledged) = (Arc::clone(&stop), Arc::clone(&acknowledged));
            async move {
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let id = start(&member, &format!("load {n}"), &json!({"memory": "1MiB"})).await;
                    change(&member, &id, "release").await.expect(200);
                    acknowledged.lock().unwrap().push((id, "released"));
                }
            }
        });
        Self { stop, acknowledged, task }
    }

    fn so_far(&self) -> Vec<(String, &'static str)> {
        self.acknowledged.lock().unwrap().clone()
    }

    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
    }
}

/// A batch of one reading that measured nothing, of a part since it became active.
fn batch(stream: u128, sequence: u64, part: &Value, since: Instant) -> Value {
    let now = Clock::System.now();
    let reading = json!({"part_id": part["part_id"], "start": since, "end": now, "granted": part["bytes"], "covered_ms": 0,
        "quality": "unknown"});
    json!({"stream_id": Uuid::from_u128(stream), "sequence": sequence, "sent_at": now, "readings": [reading]})
}

/// Serves a restored database where the former one was served, until the node is taken for present again.
async fn serve_restored(deployment: &mut Deployment, url: &str, node: &Node) {
    url.clone_into(&mut deployment.database_url);
    deployment.start_again().await;
    eventually("the pool is led again", 20, async || (node.report(&[]).await.status == 200).then_some(())).await;
    eventually("the leader stored that it heard the node", 20, async || {
        node.report(&[]).await;
        let heard = "select (last_heard > clock_timestamp() - interval '10 seconds')::text from node";
        (value(url, heard).await == "true").then_some(())
    })
    .await;
}

/// Everything is proved, from the first row on. That the log of the restored server is not archived is said, and is all.
fn doctor_is_content(url: &str) {
    let found = examine(url, &["--full"], &[]);
    assert!(
        matches!(&found[..], [(check, what)] if check == "backup" && what.contains("does not archive")),
        "{found:#?}"
    );
}

/// Dumps a database while a member works: what was acknowledged before.
async fn dump_under_load(url: &str, programs: &Path, dump: &Path, member: Client) -> Vec<(String, &'static str)> {
    let load = Load::begin(member);
    eventually("the load runs", 20, async || (load.so_far().len() > 2).then_some(())).await;
    let acknowledged = load.so_far();
    done(program("pg_dump", url, programs).args(["--format=custom", "--file"]).arg(dump));
    load.end().await;
    acknowledged
}

/// Without the role nothing is restored; with it, everything.
fn restore_with_role(url: &str, programs: &Path, dump: &Path) {
    let restore = || {
        let mut restore = program("pg_restore", url, programs);
        restore.args(["--single-transaction", "--exit-on-error", "--no-owner", "--dbname=gpuledger"]).arg(dump);
        restore
    };
    let without_role = restore().output().unwrap();
    assert!(!without_role.status.success());
    assert!(String::from_utf8_lossy(&without_role.stderr).contains("role \"gpuledger_service\" does not exist"));
    let role = "create role gpuledger_service nologin noinherit; grant gpuledger_service to current_user";
    done(program("psql", url, programs).args(["-v", "ON_ERROR_STOP=1", "-c", role]));
    done(&mut restore());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dump_is_restored_into_another_cluster_and_everyone_goes_on() {
    let past = past::month().await;
    let number_of_invoice = past.number.clone();
    let mut deployment = Deployment::on(past.database, &[("GPULEDGER_SCHEDULER__LEASE", "1s")]).await;
    let former = deployment.database_url.clone();
    let pool = text(&deployment.operator.get("/v1/pools").await.expect(200)["items"][0]["pool_id"]);
    let graces = json!({"hold_grace_s": 86_000, "silence_grace_s": 3600});
    let graces = deployment.operator.request(Method::PATCH, &format!("/v1/pools/{pool}")).json(&graces);
    deployment.operator.send(graces).await.expect(200);
    let gpu = json!(card(MODEL, past::CARD, Some(Bytes::ZERO), number(past::HOST, 0)));
    let node = deployment.join(&pool, past::HOST, vec![gpu]).await;
    let tenant = deployment.tenant_of(past.tenant.to_string()).await;
    let runs = start(&tenant.member, "runs", &json!({"memory": "1GiB"})).await;
    let running = deployment.allocation(&runs).await;
    let (part, since) = (running["parts"][0].clone(), text(&running["active_since"]).parse::<Instant>().unwrap());
    let send = async |batch: Value| node.client.post("/v1/reading-batches", &batch).await;
    send(batch(1, 1, &part, since)).await.expect(200);
    let verify = |url: &str| run(&["verify-invoice", &number_of_invoice], &[("DATABASE_URL", url)], "").expect(0);
    let identical = verify(&former);

    let folder = place();
    let other = cluster(&folder.path().join("restored"));
    let programs = other.programs().unwrap().to_owned();
    let dump = folder.path().join("gpuledger.dump");
    let acknowledged = dump_under_load(&former, &programs, &dump, tenant.member.clone()).await;
    let when_dumped = Clock::System.now();
    send(batch(1, 2, &part, when_dumped)).await.expect(200);
    assert!(deployment.server.stop().await.success());
    restore_with_role(other.url(), &programs, &dump);
    // the same into a private cluster that `gpuledger migrate` made
    let made = cluster(&folder.path().join("made"));
    run(&["migrate"], &[("DATABASE_URL", made.url())], "").expect(0);
    let mut over = program("pg_restore", made.url(), &programs);
    over.args([
        "--clean",
        "--if-exists",
        "--single-transaction",
        "--exit-on-error",
        "--no-owner",
        "--dbname=gpuledger",
    ]);
    done(over.arg(&dump));
    assert_eq!(verify(made.url()), identical);
    drop(made);

    serve_restored(&mut deployment, other.url(), &node).await;
    for (id, state) in acknowledged {
        assert_eq!(deployment.allocation(&id).await["state"], state, "{id}");
    }
    assert_eq!(verify(other.url()), identical);
    assert_eq!(deployment.allocation(&runs).await["state"], "active");
    // the agent is ahead of what was restored: it is told, and a new stream begins with what it still has
    let ahead = send(batch(1, 3, &part, when_dumped)).await.problem(409, "sequence_gap", None);
    assert_eq!(ahead["expected"], 2);
    assert_eq!(send(batch(2, 1, &part, when_dumped)).await.expect(200)["accepted"], 1);
    change(&tenant.member, &runs, "release").await.expect(200);
    ask(&tenant.member, "goes on", &json!({"memory": "1GiB"})).await.expect(201);
    doctor_is_content(other.url());

    // the doctor tells of a server that no longer keeps what it acknowledges
    sql(other.url(), "alter database gpuledger set synchronous_commit = off").await;
    let found = examine(other.url(), &[], &[]);
    let named = found.iter().find(|(check, _)| check == "durability").map(|(_, what)| what.as_str());
    assert!(named.is_some_and(|what| what.starts_with("synchronous_commit is off")), "{found:?}");
}

/// A private cluster whose log is archived into a folder.
async fn archived_cluster(folder: &Path, archive: &Path) -> Running {
    let running = cluster(folder);
    sql(running.url(), "alter system set archive_mode = on").await;
    let copy = format!("test ! -f {0}/%f && cp %p {0}/%f", archive.display());
    sql(running.url(), &format!("alter system set archive_command = '{copy}'")).await;
    drop(running);
    cluster(folder)
}

/// The doctor is content with an archive that works, and tells of one that does not.
async fn archiving_fails(url: &str) {
    let of_backup = || -> Option<String> {
        examine(url, &[], &[]).into_iter().find_map(|(check, what)| (check == "backup").then_some(what))
    };
    assert_eq!(of_backup(), None);
    sql(url, "alter system set archive_command = 'false'").await;
    sql(url, "select pg_reload_conf()").await;
    sql(url, "create table switched (); drop table switched; select pg_switch_wal()").await;
    let said = eventually("archiving fails", 90, async || of_backup()).await;
    assert!(said.starts_with("archiving fails: "), "{said}");
}

/// A copy of the base backup that recovers up to a target when it is started.
fn restored(folder: PathBuf, base: &Path, archive: &Path, former: &Path, target: &str) -> Running {
    let data = folder.join("cluster");
    fs::create_dir(&folder).unwrap();
    done(Command::new("cp").arg("-a").arg(base).arg(&data));
    let mut settings = fs::File::options().append(true).open(data.join("postgresql.auto.conf")).unwrap();
    writeln!(settings, "restore_command = 'cp {}/%f %p'\n{target}", archive.display()).unwrap();
    writeln!(settings, "recovery_target_action = 'promote'\narchive_mode = off").unwrap();
    fs::write(data.join("recovery.signal"), "").unwrap();
    // the password is the data's own
    fs::copy(former.join("password"), folder.join("password")).unwrap();
    let mut owner = Command::new("chown");
    done(owner.arg("-R").arg(format!("--reference={}", former.join("cluster").display())).arg(&data));
    cluster(&folder)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_point_between_two_acknowledged_changes_is_restored() {
    let place = place();
    let (archive, base) = (place.path().join("archive"), place.path().join("base"));
    fs::create_dir(&archive).unwrap();
    fs::set_permissions(&archive, fs::Permissions::from_mode(0o777)).unwrap();
    let former = place.path().join("former");
    let running = archived_cluster(&former, &archive).await;
    let (url, programs) = (running.url().to_owned(), running.programs().unwrap().to_owned());
    let mut deployment = Deployment::at(url.clone(), &[("GPULEDGER_SCHEDULER__LEASE", "1s")]).await;
    let pool = deployment.pool(3600, 3600).await;
    let node = deployment.node(&pool, "node", &[80 * GIB]).await;
    let tenant = deployment.tenant("tenant").await;
    let early = start(&tenant.member, "early", &json!({"memory": "1GiB"})).await;
    done(program("pg_basebackup", &url, &programs).args(["--checkpoint=fast", "--pgdata"]).arg(&base));
    let before = start(&tenant.member, "before", &json!({"memory": "2GiB"})).await;
    change(&tenant.member, &early, "release").await.expect(200);
    let at = value(&url, "select pg_current_wal_insert_lsn()::text").await;
    let when = value(&url, "select clock_timestamp()::text").await;
    let after = start(&tenant.member, "after", &json!({"memory": "4GiB"})).await;
    change(&tenant.member, &before, "release").await.expect(200);
    let last = value(&url, "select pg_walfile_name(pg_switch_wal())").await;
    eventually("all of it is archived", 60, async || archive.join(&last).is_file().then_some(())).await;
    archiving_fails(&url).await;
    assert!(deployment.server.stop().await.success());
    drop(running);

    for (name, target) in
        [("by-place", format!("recovery_target_lsn = '{at}'")), ("by-time", format!("recovery_target_time = '{when}'"))]
    {
        let restored = restored(place.path().join(name), &base, &archive, &former, &target);
        serve_restored(&mut deployment, restored.url(), &node).await;
        // what was acknowledged before the point is there, what came after is not
        assert_eq!(deployment.allocation(&early).await["state"], "released", "{name}");
        assert_eq!(deployment.allocation(&before).await["state"], "active", "{name}");
        deployment.operator.get(&format!("/v1/allocations/{after}")).await.problem(404, "not_found", None);
        // and whoever asks again is served as if for the first time
        ask(&tenant.member, "after", &json!({"memory": "4GiB"})).await.expect(201);
        doctor_is_content(restored.url());
        assert!(deployment.server.stop().await.success());
    }
}
