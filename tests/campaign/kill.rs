//! The kills of a run, each once so many operations are acknowledged.

use crate::{
    installation::Installation,
    plan::{Kill, What},
    run::World,
};
use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{sync::Mutex, time::sleep};
use types::StreamId;

/// Kills until the load is over. The loss of power always happens, as it leads to the end of the month.
pub async fn run(world: Arc<World>, installation: Arc<Mutex<Installation>>, load_is_over: Arc<AtomicBool>) {
    for kill in &world.plan.kills {
        while world.record.acknowledged.load(Ordering::SeqCst) < kill.after && !load_is_over.load(Ordering::SeqCst) {
            tokio::select! {
                () = world.record.progress.notified() => {}
                () = sleep(Duration::from_millis(20)) => {}
            }
        }
        if load_is_over.load(Ordering::SeqCst) && kill.what != What::Power {
            continue;
        }
        let mut installation = installation.lock().await;
        world.record.inner().killed.push(format!("{:?}", kill.what));
        once(&world, &mut installation, kill).await;
        if let Some(after) = kill.again_after_ms {
            sleep(Duration::from_millis(after)).await;
            world.record.inner().killed.push(format!("{:?} again", kill.what));
            once(&world, &mut installation, kill).await;
        }
    }
}

async fn once(world: &World, installation: &mut Installation, kill: &Kill) {
    world.journal(&format!("kills {:?}", kill.what));
    match kill.what {
        What::Server(n) => installation.kill_server(n),
        What::Agent => kill_agent(world, installation),
        What::Postgres => installation.postgres.kill().await,
        What::ServerAndAgent(n) => {
            installation.kill_server(n);
            kill_agent(world, installation);
        }
        What::ServerAndPostgres(n) => {
            installation.kill_server(n);
            installation.postgres.kill().await;
        }
        What::Power => {
            kill_agent(world, installation);
            installation.lose_power(Some(world.edge_ms - world.plan.edge_lead_ms)).await;
        }
    }
    sleep(Duration::from_millis(kill.down_ms)).await;
    if kill.servers_first {
        start_servers(world, installation);
        // long enough for a server to find no Postgres
        sleep(Duration::from_millis(60)).await;
    }
    installation.postgres.start_again().await;
    start_servers(world, installation);
    installation.start_agent();
    world.journal("started everything again");
}

fn start_servers(world: &World, installation: &mut Installation) {
    for n in 0..world.plan.servers {
        installation.start_server(n);
    }
}

/// Kills the agent, and notes what is in its spool, all of which was promised.
pub fn kill_agent(world: &World, installation: &mut Installation) {
    installation.kill_agent();
    for reading in spooled(installation) {
        world.record.inner().spooled.insert((
            reading.part_id.to_string(),
            reading.start.as_millis(),
            reading.end.as_millis(),
            reading.used.map(|used| used.to_string()),
        ));
    }
}

/// The readings in the agent's spool, read from a copy.
pub fn spooled(installation: &Installation) -> Vec<types::wire::Reading> {
    let spools = installation.agent_state().join("spool");
    let Some(spool) = std::fs::read_dir(&spools).ok().and_then(|mut folder| folder.next()?.ok()) else {
        return Vec::new();
    };
    let copy = tempfile::tempdir().unwrap();
    assert!(Command::new("cp").arg("-r").arg(spool.path()).arg(copy.path()).status().unwrap().success());
    let stream = StreamId(uuid::Uuid::nil());
    let mut spool = agent::spool::Spool::open(&copy.path().join(spool.file_name()), stream, 1 << 30).unwrap();
    let mut readings = Vec::new();
    while let Some(batch) = spool.front().unwrap() {
        readings.extend(batch.readings);
        spool.acknowledge(batch.sequence).unwrap();
    }
    readings
}
