//! Pure metering rules: from samples to readings, the server's judgement of readings, the balance of a GPU's hours,
//! silence and deadlines, and whose process it is. No clock, no I/O, no floats: instants and facts come in as arguments.

pub mod attribution;
pub mod balance;
pub mod ingest;
pub mod integrate;
pub mod silence;
