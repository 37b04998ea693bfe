//! Pure metering rules: windows, attribution, ingest, silence, the balance of a GPU hour.
