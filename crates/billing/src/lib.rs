//! Pure billing: plans, periods, rating engines, invoices and the one place that rounds.
