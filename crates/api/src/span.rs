//! Spans of time in a query: `from` belongs to it, `to` does not.

use crate::problem::{FieldError, Problem};
use types::{Instant, Span};

/// The span between two parameters.
pub(crate) fn between(from: Instant, to: Instant) -> Result<Span, Problem> {
    Span::new(from, to).filter(|span| !span.is_empty()).ok_or_else(|| {
        let rule = format!("must be later than from, which is {from}");
        Problem::invalid(vec![FieldError { field: "to".to_owned(), rule }])
    })
}
