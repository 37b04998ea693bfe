//! Pure placement: inventory, policies, queue order, explanations.
