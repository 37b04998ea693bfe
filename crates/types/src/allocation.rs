//! A request for memory, and the states and causes in the life of what is granted.

use crate::{bytes::Bytes, gpu::GpuModel, id::NodeId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a tenant asks for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Memory on each GPU, in bytes; more than 0.
    pub memory: Bytes,
    /// How many GPUs, all on one node; 1 to 64.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 64, default = 1)]
    pub gpus: u32,
    /// Only GPUs of this model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<GpuModel>,
    /// Only this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_id: Option<NodeId>,
    /// The longest it may run, in seconds after confirmation; it is released then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 31_622_400)]
    pub max_duration_s: Option<u32>,
}

const fn one() -> u32 {
    1
}

impl Request {
    /// The most GPUs that one request may ask for.
    pub const MAX_GPUS: u32 = 64;
    /// The longest `max_duration_s`: 366 days.
    pub const MAX_DURATION_S: u32 = 31_622_400;

    /// Memory over all GPUs: what counts against a quota.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.memory.times(u64::from(self.gpus))
    }
}

macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$vdoc])* $variant),* }

        impl $name {
            /// Every one.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// As stored and shown.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }

            /// The one of this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|v| v.name() == name)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

named! {
    /// Where an allocation is in its life.
    AllocationState {
        /// Waits for a GPU with room.
        Queued = "queued",
        /// Placed, not yet confirmed; `hold_grace` frees it.
        Held = "held",
        /// Confirmed: metered.
        Active = "active",
        /// Ended in good order.
        Released = "released",
        /// Never confirmed.
        Expired = "expired",
        /// Withdrawn by its owner before confirmation.
        Cancelled = "cancelled",
        /// Ended by the scheduler for another.
        Preempted = "preempted",
        /// Its node did not come back in time.
        Lost = "lost",
    }
}

impl AllocationState {
    /// Whether nothing follows it.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Queued | Self::Held | Self::Active)
    }
}

named! {
    /// Why an allocation changed.
    Cause {
        /// It was asked for.
        Requested = "requested",
        /// A GPU with room was found.
        Placed = "placed",
        /// Its owner or its node confirmed it.
        Confirmed = "confirmed",
        /// Its owner released it.
        Owner = "owner",
        /// The agent saw the workload exit.
        Exited = "exited",
        /// `hold_grace` passed without confirmation.
        HoldGrace = "hold_grace",
        /// Its owner cancelled it.
        Cancelled = "cancelled",
        /// It ran for its `max_duration_s`.
        MaxDuration = "max_duration",
        /// The workload went without a word: no renewal, and its node did not see it.
        Vanished = "vanished",
        /// Its node fell silent: metering stopped.
        NodeSilent = "node_silent",
        /// Its node came back and attested that it had lived on.
        Attested = "attested",
        /// Its node did not come back within a day.
        NodeLost = "node_lost",
        /// Its node booted anew.
        NodeRebooted = "node_rebooted",
        /// Its node was removed.
        NodeRemoved = "node_removed",
    }
}
