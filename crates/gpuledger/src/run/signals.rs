//! Signals that this process takes instead of being ended by them.

use crate::error::CliError;
use nix::sys::{
    signal::{SigSet, Signal},
    signalfd::{SfdFlags, SignalFd},
};
use std::thread;
use tokio::sync::mpsc;

/// Those that are passed on to the command.
const TAKEN: [Signal; 7] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
];

/// The taken signals, as they come.
#[derive(Debug)]
pub(crate) struct Signals(mpsc::UnboundedReceiver<Taken>);

#[derive(Debug, Clone, Copy)]
struct Taken {
    signal: Signal,
    /// Sent by the terminal to all of its foreground processes: the command has it already, and some take a second
    /// Ctrl-C for something else than the first.
    by_terminal: bool,
}

impl Signals {
    /// Begins to take them. To be called before any other thread is started: each inherits what is blocked.
    pub fn take() -> Result<Self, CliError> {
        let failed = |e: nix::errno::Errno| CliError::Failed(format!("signals cannot be taken: {e}"));
        let mut set = SigSet::empty();
        for signal in TAKEN {
            set.add(signal);
        }
        set.thread_block().map_err(failed)?;
        let signals = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC).map_err(failed)?;
        let (sender, receiver) = mpsc::unbounded_channel();
        // few come, one after the other; the thread ends with the process
        thread::spawn(move || {
            loop {
                let Ok(Some(info)) = signals.read_signal() else { continue };
                let Some(signal) = i32::try_from(info.ssi_signo).ok().and_then(|n| Signal::try_from(n).ok()) else {
                    continue;
                };
                let by_terminal = info.ssi_code == libc::SI_KERNEL;
                if sender.send(Taken { signal, by_terminal }).is_err() {
                    return;
                }
            }
        });
        Ok(Self(receiver))
    }

    /// The next that the command does not get from elsewhere.
    pub async fn relayed(&mut self) -> Signal {
        loop {
            let taken = self.next().await;
            if !taken.by_terminal {
                return taken.signal;
            }
        }
    }

    /// The next that asks this process to end, as its number.
    pub async fn ending(&mut self) -> u8 {
        loop {
            let signal = self.next().await.signal;
            let asks = matches!(signal, Signal::SIGHUP | Signal::SIGINT | Signal::SIGQUIT | Signal::SIGTERM);
            if let Some(number) = u8::try_from(signal as i32).ok().filter(|_| asks) {
                return number;
            }
        }
    }

    async fn next(&mut self) -> Taken {
        match self.0.recv().await {
            Some(taken) => taken,
            // the thread that sends never ends before the process
            None => std::future::pending().await,
        }
    }
}

/// Lets go of them, for the process that becomes the command: what is blocked outlives an exec.
pub(crate) fn let_go() -> Result<(), nix::errno::Errno> {
    SigSet::empty().thread_set_mask()
}
