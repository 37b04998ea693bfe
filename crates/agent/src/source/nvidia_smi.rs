//! Reads `nvidia-smi`'s CSV.
//!
//! Columns are found by their names and carry their units, because both differ between drivers. What stands in
//! brackets (`[N/A]`, `[Not Supported]`, `[Insufficient Permissions]` …) is unknown, and unknown is not zero. A line
//! that is no row, as for a card that fell off its bus, concerns that card alone.

use super::{Card, MemorySource, SourceError, Users};
use std::{collections::BTreeMap, path::PathBuf, process::Stdio, time::Duration};
use tokio::process::Command;
use types::{
    Bytes, GpuModel, GpuUuid, Instant,
    wire::{GpuReport, PartOrder},
};

/// A sick card can block a driver call for most of a minute; the next look must not wait for it.
const TIMEOUT: Duration = Duration::from_secs(10);
const GPUS: &str = "--query-gpu=uuid,name,memory.total,memory.reserved,memory.used";
/// Drivers before 510 do not tell their own share apart.
const GPUS_WITHOUT_RESERVED: &str = "--query-gpu=uuid,name,memory.total,memory.used";
const APPS: &str = "--query-compute-apps=gpu_uuid,pid,used_gpu_memory";
/// The initial PID namespace's inode number, fixed in the kernel.
const HOST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// The driver's own program as a source.
#[derive(Debug)]
pub struct NvidiaSmi {
    path: PathBuf,
    timeout: Duration,
    /// Whether the driver knows `memory.reserved`.
    reserved_is_known: bool,
    /// Whether the pids that the driver tells are those of this /proc.
    sees_host_pids: bool,
}

impl NvidiaSmi {
    /// The program at `path`, or found by that name.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        let namespace = std::fs::read_link("/proc/self/ns/pid");
        Self {
            path,
            timeout: TIMEOUT,
            reserved_is_known: true,
            sees_host_pids: namespace.is_ok_and(|ns| ns.as_os_str() == HOST_PID_NAMESPACE),
        }
    }

    /// What the program prints, both streams together: it tells some failures on one and some on the other.
    async fn ask(&self, query: &str) -> Result<String, SourceError> {
        let program = self.path.display().to_string();
        let output = Command::new(&self.path)
            .args([query, "--format=csv"])
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        match tokio::time::timeout(self.timeout, output).await {
            Ok(Ok(output)) => {
                Ok(format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)))
            }
            Ok(Err(source)) => Err(SourceError::Spawn { program, source }),
            Err(_) => Err(SourceError::Timeout { program, seconds: self.timeout.as_secs() }),
        }
    }

    async fn gpus(&mut self) -> Result<Vec<SmiGpu>, SourceError> {
        if self.reserved_is_known {
            let text = self.ask(GPUS).await?;
            if !text.contains("not a valid field") {
                return read_gpus(&text);
            }
            self.reserved_is_known = false;
        }
        read_gpus(&self.ask(GPUS_WITHOUT_RESERVED).await?)
    }

    async fn apps(&self) -> Result<Apps, &'static str> {
        if !self.sees_host_pids {
            return Err("the agent runs in a PID namespace of its own");
        }
        self.ask(APPS).await.and_then(|text| read_apps(&text)).map_err(unlisted)
    }
}

impl MemorySource for NvidiaSmi {
    const IS_THE_WORKLOAD: bool = false;

    async fn look(&mut self, _: &[PartOrder], _: Instant) -> Result<Vec<Card>, SourceError> {
        let gpus = self.gpus().await?;
        let apps = self.apps().await;
        Ok(cards(gpus, apps))
    }
}

/// The cards that two answers of the program tell of: to `--query-gpu` and to `--query-compute-apps`.
///
/// # Errors
/// When the first is no table of cards. Without the second, nobody can tell who uses them.
pub fn read_cards(gpus: &str, apps: &str) -> Result<Vec<Card>, SourceError> {
    Ok(cards(read_gpus(gpus)?, read_apps(apps).map_err(unlisted)))
}

fn cards(gpus: Vec<SmiGpu>, mut apps: Result<Apps, &'static str>) -> Vec<Card> {
    gpus.into_iter()
        .filter_map(|gpu| {
            let users = match &mut apps {
                Ok(apps) => apps.take(&gpu.uuid),
                Err(reason) => Users::Unavailable(reason),
            };
            let report = gpu.report()?;
            Some(Card { report, users })
        })
        .collect()
}

/// Why nobody can tell who uses the cards.
fn unlisted(error: SourceError) -> &'static str {
    tracing::debug!(%error, "processes cannot be read");
    "the driver does not list processes"
}

/// One row about a card.
#[derive(Debug, PartialEq, Eq)]
struct SmiGpu {
    uuid: GpuUuid,
    model: Option<GpuModel>,
    total: Option<Bytes>,
    /// What the driver keeps.
    reserved: Option<Bytes>,
    /// Without what the driver keeps where `reserved` is known, and with it where it is not.
    used: Option<Bytes>,
}

impl SmiGpu {
    /// `None` where the card does not say what it is: such a card cannot be shared out by memory.
    fn report(self) -> Option<GpuReport> {
        Some(GpuReport {
            model: self.model?,
            memory_total: self.total?,
            driver_overhead: self.reserved,
            memory_used: self.used.filter(|_| self.reserved.is_some()),
            uuid: self.uuid,
        })
    }
}

fn read_gpus(text: &str) -> Result<Vec<SmiGpu>, SourceError> {
    let table = Table::read(text, "uuid")?;
    Ok(table
        .rows
        .iter()
        .filter_map(|row| {
            Some(SmiGpu {
                uuid: table.text(row, "uuid")?.parse().ok()?,
                model: table.text(row, "name").and_then(|name| name.parse().ok()),
                total: table.memory(row, "memory.total"),
                reserved: table.memory(row, "memory.reserved"),
                used: table.memory(row, "memory.used"),
            })
        })
        .collect())
}

/// The processes of all cards.
#[derive(Debug, Default, PartialEq, Eq)]
struct Apps {
    by_gpu: BTreeMap<GpuUuid, Users>,
    /// A row named no card, so no card's list can be taken as whole.
    incomplete: bool,
}

const UNREADABLE: &str = "the driver does not let its processes be read";

impl Apps {
    /// The processes on a card. None listed means that there are none, because the list is whole.
    fn take(&mut self, gpu: &GpuUuid) -> Users {
        if self.incomplete {
            return Users::Unavailable(UNREADABLE);
        }
        self.by_gpu.remove(gpu).unwrap_or_else(|| Users::Processes(Vec::new()))
    }
}

fn read_apps(text: &str) -> Result<Apps, SourceError> {
    let table = Table::read(text, "pid")?;
    let mut apps = Apps::default();
    for row in &table.rows {
        let Some(gpu) = table.text(row, "gpu_uuid").and_then(|t| t.parse().ok()) else {
            apps.incomplete = true;
            continue;
        };
        let users = apps.by_gpu.entry(gpu).or_insert_with(|| Users::Processes(Vec::new()));
        match (users, table.text(row, "pid").and_then(|pid| pid.parse().ok())) {
            (Users::Processes(list), Some(pid)) => {
                list.push((pid, table.memory(row, "used_gpu_memory")));
            }
            (users, None) => *users = Users::Unavailable(UNREADABLE),
            (_, Some(_)) => {}
        }
    }
    Ok(apps)
}

/// A column's name and the unit that its heading gives.
#[derive(Debug)]
struct Column {
    name: String,
    unit: Option<String>,
}

/// A table as the program prints it.
#[derive(Debug)]
struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

/// The columns whose text may hold anything, commas too. A query has one of them at most.
const FREE_TEXT: [&str; 2] = ["process_name", "name"];

impl Table {
    /// Reads a table from its heading on, which is the first line with a column of that name.
    fn read(text: &str, column: &str) -> Result<Self, SourceError> {
        let mut lines = text.lines();
        let columns = lines
            .by_ref()
            .map(columns_of)
            .find(|columns| columns.iter().any(|c| c.name == column))
            .ok_or_else(|| failure(text))?;
        let free = columns.iter().position(|c| FREE_TEXT.contains(&c.name.as_str()));
        let rows = lines
            .filter_map(|line| {
                let row = row_of(line, columns.len(), free);
                if row.is_none() && !line.trim().is_empty() {
                    tracing::debug!(line, "a line of the driver's answer is no row");
                }
                row
            })
            .collect();
        Ok(Self { columns, rows })
    }

    fn index(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|c| c.name == name)
    }

    /// The value in a column, `None` where it is unknown.
    fn text<'r>(&self, row: &'r [String], name: &str) -> Option<&'r str> {
        let value = row.get(self.index(name)?)?.as_str();
        let unknown = value.is_empty() || value == "N/A" || value.starts_with('[');
        (!unknown).then_some(value)
    }

    /// An amount of memory, with the value's own unit or the heading's. Without any unit it could be anything.
    fn memory(&self, row: &[String], name: &str) -> Option<Bytes> {
        let value = self.text(row, name)?;
        if value.ends_with(|c: char| c.is_ascii_digit()) {
            let unit = self.columns.get(self.index(name)?)?.unit.as_deref()?;
            format!("{value} {unit}").parse().ok()
        } else {
            value.parse().ok()
        }
    }
}

fn columns_of(line: &str) -> Vec<Column> {
    line.split(',')
        .map(|heading| match heading.trim().split_once(" [") {
            Some((name, unit)) => Column { name: name.to_owned(), unit: Some(unit.trim_end_matches(']').to_owned()) },
            None => Column { name: heading.trim().to_owned(), unit: None },
        })
        .collect()
}

/// Cuts a line into `columns` values, from outside in: commas too many belong to the column of free text.
fn row_of(line: &str, columns: usize, free: Option<usize>) -> Option<Vec<String>> {
    let fields: Vec<&str> = line.split(", ").map(str::trim).collect();
    let extra = fields.len().checked_sub(columns)?;
    let free = match free {
        Some(free) => free,
        None if extra == 0 => 0,
        None => return None,
    };
    let (before, rest) = fields.split_at_checked(free)?;
    let (middle, after) = rest.split_at_checked(extra + 1)?;
    let mut row: Vec<String> = before.iter().map(|f| (*f).to_owned()).collect();
    row.push(middle.join(", "));
    row.extend(after.iter().map(|f| (*f).to_owned()));
    Some(row)
}

/// What an answer without a table means.
fn failure(text: &str) -> SourceError {
    if text.contains("Driver/library version mismatch") {
        let library = text.lines().find_map(|line| line.strip_prefix("NVML library version: "));
        return SourceError::DriverMismatch { library: library.unwrap_or("unknown").to_owned() };
    }
    SourceError::Unreadable { program: "nvidia-smi".to_owned(), said: text.trim().chars().take(200).collect() }
}

#[cfg(test)]
mod tests;
