//! A Postgres to work with: given, started from installed programs, or from a wheel.
