//! A session in one file, to be kept or moved: a GGUF file of the kind `kadence-session` with the head as a key, and
//! the session's files as tensors of bytes.

use std::fmt::Display;
use std::fs::File;
use std::io::{BufWriter, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use kadence_quant::Format;

use crate::gguf::{Gguf, Writer};

use super::head::{Head, check_file_name};
use super::store::{Store, Summary, lock, now};
use super::token_log::Contents;
use super::{Error, FORMAT_VERSION};

const KIND: &str = "kadence-session";

impl Store {
    /// A session that isn't open, as one file: it has no name yet, and is at its start.
    ///
    /// # Errors
    /// If there is none, it is damaged or in use, or the disk refuses or is full.
    pub fn export(&self, user: u32, name: &str) -> Result<(Summary, File), Error> {
        let (summary, ..) = self.show(user, name)?;
        let folder = self.folder(user, name)?;
        let _lock = lock(&folder, name)?;
        let (head, _) = self.sound(&folder, user, name)?;
        let mut file = self.passage()?;
        let written = write(&folder, &head, BufWriter::new(&mut file)).and_then(|()| file.rewind());
        written.map_err(|e| Error::io("export", &folder, e))?;
        Ok((summary, file))
    }

    /// A new file without a name, for what comes and goes. It vanishes when it is closed.
    ///
    /// # Errors
    /// If the disk refuses or is full.
    pub fn passage(&self) -> Result<File, Error> {
        let root = self.0.root();
        let made = self.0.disk.make_folder(root).and_then(|()| tempfile::tempfile_in(root));
        let file = made.map_err(|e| Error::io("write in", root, e))?;
        self.check_space()?;
        Ok(file)
    }

    /// [`Store::import`] of a file that has no name.
    ///
    /// # Errors
    /// As there.
    pub fn import_file(&self, user: u32, name: &str, from: &File) -> Result<Summary, Error> {
        let path = PathBuf::from(format!("/proc/self/fd/{}", from.as_raw_fd()));
        let file = Gguf::of(from, &path).map_err(|e| wrong(&path, &e))?;
        self.import_read(user, name, &path, &file)
    }

    /// Begins a session from a file that [`Store::export`] wrote. What it holds is checked as what lies on disk is: when
    /// it is used.
    ///
    /// # Errors
    /// If the file isn't one, there is a session of this name, at a limit, or if the disk refuses.
    pub fn import(&self, user: u32, name: &str, from: &Path) -> Result<Summary, Error> {
        let file = Gguf::open(from).map_err(|e| wrong(from, &e))?;
        self.import_read(user, name, from, &file)
    }

    fn import_read(&self, user: u32, name: &str, from: &Path, file: &Gguf) -> Result<Summary, Error> {
        let wrong = |why: &dyn Display| wrong(from, why);
        let keys = file.metadata();
        if keys.str("general.type").ok() != Some(KIND) {
            return Err(wrong(&"it is another kind of file"));
        }
        let version = keys.u32("kadence.session.format").map_err(|e| wrong(&e))?;
        if version > FORMAT_VERSION {
            return Err(Error::Newer { session: name.into(), version: version.into() });
        }
        let head = keys.str("kadence.session.head").map_err(|e| wrong(&e))?;
        let head: Head = serde_json::from_str(head).map_err(|e| wrong(&e))?;
        self.check_count(user)?;
        let bytes = file.tensors().map(|t| t.span().len() as u64).sum::<u64>();
        let limit = self.settings().limits.bytes;
        if self.0.bytes_of_others(user, name).saturating_add(bytes) > limit {
            return Err(Error::Limit { what: "bytes of sessions", limit });
        }
        self.create(user, name, |folder| {
            for file_name in head.files() {
                let tensor = file.tensor(file_name).filter(|_| check_file_name(file_name).is_ok());
                let tensor = tensor.ok_or_else(|| wrong(&format!("{file_name:?} isn't in it")))?;
                self.0
                    .disk
                    .write_new(&folder.join(file_name), file.data(&tensor))
                    .map_err(|e| Error::io("import", folder, e))?;
            }
            file.check_undamaged().map_err(|e| wrong(&e))?;
            let (old, bytes) = head.log.clone();
            let log = Contents::read(&folder.join(&old), bytes).map_err(|e| wrong(&e))?;
            let (segments, checkpoints) = (head.segments.clone(), head.checkpoints.clone());
            if log.tokens.len() != head.tokens {
                return Err(wrong(&"its tokens are damaged"));
            }
            let head = Head {
                user,
                session: name.into(),
                created: now(),
                serial: head.serial.min(u64::MAX / 2),
                ..head
            };
            let summary = self.write(folder, head, log, segments, checkpoints)?;
            _ = self.0.disk.remove(&folder.join(old));
            Ok(summary)
        })
    }
}

fn wrong(path: &Path, why: &dyn Display) -> Error {
    Error::Archive { path: path.into(), why: why.to_string() }
}

fn write(folder: &Path, head: &Head, out: impl Write) -> std::io::Result<()> {
    let other = std::io::Error::other;
    let mut header = Writer::new();
    header.set("general.type", KIND).map_err(other)?;
    header.set("kadence.session.format", FORMAT_VERSION).map_err(other)?;
    header.set("kadence.session.head", &*serde_json::to_string(head)?).map_err(other)?;
    // A file may be longer than what counts of it, and be appended to meanwhile by a session that shares it.
    let files: Vec<(&str, u64)> = head
        .files()
        .map(|name| {
            Ok((
                name,
                if name == head.log.0 { head.log.1 } else { std::fs::metadata(folder.join(name))?.len() },
            ))
        })
        .collect::<std::io::Result<_>>()?;
    for (name, len) in &files {
        header.tensor(name, Format::I8, &[*len]).map_err(other)?;
    }
    let mut out = header.start(out).map_err(other)?;
    let mut buffer = vec![0; 1 << 20];
    for (name, len) in &files {
        let mut file = File::open(folder.join(name))?.take(*len);
        loop {
            let read = file.read(&mut buffer)?;
            if read == 0 {
                break;
            }
            out.write(name, &buffer[..read]).map_err(other)?;
        }
    }
    out.finish().map_err(other)?.flush()
}
