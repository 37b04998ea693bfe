//! Pure quota rules and the life of an allocation.
