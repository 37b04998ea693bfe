//! Where memory is read from.

pub mod nvidia_smi;
pub mod simulated;

use std::{collections::BTreeMap, future::Future};
use types::{
    Bytes, Instant, PartId,
    wire::{GpuReport, PartOrder},
};

/// Who uses a card's memory, as far as the source can tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Users {
    /// Every process on the card by its host pid; memory is absent where it could not be read.
    Processes(Vec<(u32, Option<Bytes>)>),
    /// By part: the source is the workload itself.
    Parts(BTreeMap<PartId, Bytes>),
    /// Not to be told, for this reason.
    Unavailable(&'static str),
}

/// One card at one instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    pub report: GpuReport,
    pub users: Users,
}

/// Why nothing could be read at all.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("{program} cannot be run: {source}")]
    Spawn { program: String, source: std::io::Error },
    #[error("{program} did not end within {seconds} s")]
    Timeout { program: String, seconds: u64 },
    #[error("the driver and its library have different versions (library {library})")]
    DriverMismatch { library: String },
    #[error("{program} said: {said}")]
    Unreadable { program: String, said: String },
}

/// Reads the cards of this node.
pub trait MemorySource: Send {
    /// Whether each active part is a workload of the source itself, alive without any process.
    const IS_THE_WORKLOAD: bool;

    /// All cards that can be read now. A card that is missing is a gap for its parts alone.
    fn look(
        &mut self,
        orders: &[PartOrder],
        at: Instant,
    ) -> impl Future<Output = Result<Vec<Card>, SourceError>> + Send;
}
