//! Progress of long work on standard error: one line that is written over where there is a terminal, a line every tenth
//! otherwise.

use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

/// A line of progress.
#[derive(Debug)]
pub struct Progress {
    what: &'static str,
    started: Instant,
    shown: Option<Instant>,
    tenths: i64,
    terminal: bool,
}

impl Progress {
    /// Begins a piece of work.
    pub fn begin(what: &'static str) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { what, started: Instant::now(), shown: None, tenths: -1, terminal }
    }

    /// `done` of `whole` is done.
    pub fn at(&mut self, done: i64, whole: i64, detail: impl FnOnce() -> String) {
        let percent = done.saturating_mul(100) / whole.max(1);
        let due = if self.terminal {
            self.shown.is_none_or(|shown| shown.elapsed() > Duration::from_millis(200)) || done >= whole
        } else {
            percent / 10 > self.tenths
        };
        if due {
            self.tenths = percent / 10;
            self.shown = Some(Instant::now());
            let (start, end) = if self.terminal { ("\r\x1b[2K", "") } else { ("", "\n") };
            let _ = write!(std::io::stderr(), "{start}{} {percent:>3} %  {}{end}", self.what, detail());
            let _ = std::io::stderr().flush();
        }
    }

    /// It is done.
    pub fn end(self, summary: &str) {
        let start = if self.terminal { "\r\x1b[2K" } else { "" };
        let seconds = self.started.elapsed().as_secs();
        let _ = writeln!(std::io::stderr(), "{start}{}: {summary} ({seconds} s)", self.what);
    }
}
