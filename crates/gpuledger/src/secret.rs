//! Passwords on their way in, and files that only their owner may read.

use crate::error::CliError;
use nix::sys::termios::{LocalFlags, SetArg, tcgetattr, tcsetattr};
use rand::RngExt;
use std::{
    fs::{self, OpenOptions},
    io::{self, BufRead, IsTerminal, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Where a password comes from.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct PasswordFrom {
    /// Read the password from the first line of standard input
    #[arg(long)]
    password_stdin: bool,
}

impl PasswordFrom {
    /// Reads it: from standard input, or from the terminal without showing it.
    pub(crate) fn read(self, prompt: &str) -> Result<String, CliError> {
        if !self.password_stdin && io::stdin().is_terminal() {
            return ask(prompt).map_err(CliError::file("read a password from", "the terminal"));
        }
        if !self.password_stdin {
            let what = "there is no terminal to ask for a password: give it on standard input with --password-stdin";
            return Err(CliError::Usage(what.to_owned()));
        }
        first_line()
    }

    /// Reads it from standard input where that is asked for.
    pub(crate) fn read_if_given(self) -> Result<Option<String>, CliError> {
        self.password_stdin.then(first_line).transpose()
    }
}

fn first_line() -> Result<String, CliError> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).map_err(CliError::file("read", "standard input"))?;
    let password = line.trim_end_matches(['\n', '\r']).to_owned();
    if password.is_empty() {
        return Err(CliError::Usage("standard input holds no password".to_owned()));
    }
    Ok(password)
}

/// Asks on the terminal with the echo turned off.
fn ask(prompt: &str) -> io::Result<String> {
    let stdin = io::stdin();
    let before = tcgetattr(&stdin)?;
    let mut silent = before.clone();
    silent.local_flags.remove(LocalFlags::ECHO);
    io::stderr().write_all(prompt.as_bytes())?;
    tcsetattr(&stdin, SetArg::TCSAFLUSH, &silent)?;
    let mut line = String::new();
    let read = stdin.lock().read_line(&mut line);
    tcsetattr(&stdin, SetArg::TCSAFLUSH, &before)?;
    io::stderr().write_all(b"\n")?;
    read?;
    Ok(line.trim_end_matches(['\n', '\r']).to_owned())
}

/// A new password: 24 letters and digits that nobody mistakes for one another, about 118 bits.
pub(crate) fn new_password() -> String {
    const LETTERS: &[u8] = b"abcdefghjkmnpqrstuvwxyz23456789";
    let mut random = rand::rng();
    (0..24).map(|_| char::from(LETTERS[random.random_range(0..LETTERS.len())])).collect()
}

/// Replaces a file by one that only its owner may read, so that a crash leaves the old or the new one.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), CliError> {
    let unfinished = path.with_extension("new");
    let written = || {
        // one that is left over might be readable to others
        match fs::remove_file(&unfinished) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&unfinished)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&unfinished, path)
    };
    written().map_err(CliError::file("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_secret_is_for_its_owner_alone_also_where_another_file_was() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        write(&file, "new").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn new_passwords_differ_and_are_long_enough() {
        let (one, other) = (new_password(), new_password());
        assert_ne!(one, other);
        assert_eq!(one.len(), 24);
    }
}
