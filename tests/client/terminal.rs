//! A program in a terminal: a real pseudo-terminal, read and typed at.

use std::fs::File;
use std::io::{Read, Write};
use std::process::ExitStatus;
use std::sync::{Arc, Mutex};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::{Ends, User};

pub struct Terminal {
    keys: File,
    screen: Arc<Mutex<Vec<u8>>>,
    seen: usize,
    child: Ends,
}

impl Terminal {
    /// Runs `kadence` in a new terminal.
    pub fn run(user: &User, args: &[&str], environment: &[(&str, &str)]) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = File::options().read(true).write(true).open(name).unwrap();
        // setsid makes the terminal the program's own, so that Ctrl-C reaches it.
        let program = [&["--ctty", "--wait", env!("CARGO_BIN_EXE_kadence")], args].concat();
        let mut command = user.command("setsid", &program);
        command.envs(environment.iter().copied());
        command.stdin(slave.try_clone().unwrap()).stdout(slave.try_clone().unwrap()).stderr(slave);
        let child = Ends(command.spawn().unwrap());
        drop(command); // and with it this process's hold on the other end
        let keys = File::from(master);
        let screen = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, shown) = (keys.try_clone().unwrap(), screen.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = reader.read(&mut bytes) {
                shown.lock().unwrap().extend_from_slice(&bytes[..n]);
            }
        });
        Terminal { keys, screen, seen: 0, child }
    }

    /// All that was shown.
    pub fn all(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()).into_owned()
    }

    /// Waits until this is shown, behind what was waited for before; returns what came until then.
    pub fn until(&mut self, text: &str) -> String {
        let from = self.seen;
        let find = || {
            let screen = self.screen.lock().unwrap();
            let at = screen[from..].windows(text.len()).position(|w| w == text.as_bytes())?;
            Some((from + at + text.len(), String::from_utf8_lossy(&screen[from..from + at]).into_owned()))
        };
        let start = std::time::Instant::now();
        loop {
            if let Some((end, before)) = find() {
                self.seen = end;
                return before;
            }
            assert!(start.elapsed() < super::PATIENCE, "{text:?} doesn't come in {:?}", self.all());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// Types.
    pub fn keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until a line can be typed: the editor then asks for pasted text to be marked.
    pub fn prompt(&mut self) -> String {
        self.until("\u{1b}[?2004h")
    }

    /// Types a line as soon as one is asked for, and waits until it is taken.
    pub fn line(&mut self, line: &str) {
        self.prompt();
        self.keys(&format!("{line}\r"));
        self.until("\u{1b}[?2004l");
    }

    /// How it ends by itself.
    pub fn ended(&mut self) -> ExitStatus {
        let start = std::time::Instant::now();
        loop {
            if let Some(status) = self.child.0.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < super::PATIENCE, "it doesn't end: {:?}", self.all());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
