//! `head.json`: what is current in a session's folder. What it doesn't name doesn't exist.

use std::path::Path;

use kadence_quant::Format;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::Window;

use super::digest::{Digest, Fingerprint};
use super::disk::Disk;
use super::row_log::SegmentName;
use super::{Error, FORMAT_VERSION};

/// The file's name.
pub(super) const HEAD: &str = "head.json";

/// A stored state, as the head names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Checkpoint {
    /// Its file.
    pub file: String,
    /// Tokens that it has read.
    pub tokens: usize,
    /// The digest of these tokens.
    pub chain: Digest,
    /// Size of the file.
    pub bytes: u64,
}

/// How far a window lets a session look back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredWindow {
    pub first: usize,
    pub last: usize,
}

/// The head of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    /// Version of the files.
    pub format: u32,
    /// Whose session it is.
    pub user: u32,
    /// Its name.
    pub session: String,
    /// The model that its state is of.
    pub fingerprint: Fingerprint,
    /// How rows are kept: the name of a tensor format.
    pub rows: String,
    /// How far it looks back.
    pub window: Option<StoredWindow>,
    /// Seconds since 1970.
    pub created: u64,
    /// Seconds since 1970.
    pub updated: u64,
    /// All tokens.
    pub tokens: usize,
    /// Turns that have ended.
    pub turns: usize,
    /// Tokens that the model had read.
    pub read: usize,
    /// Digest of all tokens.
    pub chain: Digest,
    /// The file with the tokens, and how many of its bytes count.
    pub log: (String, u64),
    /// The files with the rows.
    pub segments: Vec<SegmentName>,
    /// The stored states, in ascending order.
    pub checkpoints: Vec<Checkpoint>,
    /// Bytes on disk.
    pub bytes: u64,
    /// The highest number that a file has got.
    pub serial: u64,
}

#[derive(Serialize, Deserialize)]
struct Sealed<T> {
    head: T,
    check: Digest,
}

/// What was found where a head should be.
#[derive(Debug)]
pub(super) enum Found {
    Head(Box<Head>),
    Nothing,
    /// It can't be read, or isn't of this session.
    Damaged,
}

impl Head {
    /// Reads the head of a session.
    ///
    /// # Errors
    /// If it is of a newer version, or the system refuses.
    pub fn read(folder: &Path, user: u32, session: &str) -> Result<Found, Error> {
        let path = folder.join(HEAD);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Found::Nothing),
            Err(e) => return Err(Error::io("read", &path, e)),
        };
        let Ok(sealed) = serde_json::from_slice::<Sealed<Value>>(&bytes) else { return Ok(Found::Damaged) };
        if check(&sealed.head) != Some(sealed.check) {
            return Ok(Found::Damaged);
        }
        let version = sealed.head["format"].as_u64().unwrap_or(0);
        if version > u64::from(FORMAT_VERSION) {
            return Err(Error::Newer { session: session.into(), version });
        }
        let head = serde_json::from_value::<Head>(sealed.head).ok().filter(|h| {
            let names = h.checkpoints.iter().map(|c| &c.file).chain(h.segments.iter().map(|s| &s.file));
            h.user == user
                && h.session == session
                && names.chain([&h.log.0]).all(|n| check_file_name(n).is_ok())
        });
        Ok(head.map_or(Found::Damaged, |head| Found::Head(Box::new(head))))
    }

    /// Puts the head in place of the one before, at once.
    ///
    /// # Errors
    /// If the disk refuses; the head before is still there then.
    pub fn write(&self, disk: &dyn Disk, folder: &Path) -> std::io::Result<()> {
        let head = serde_json::to_value(self)?;
        let check = check(&head).ok_or(std::io::ErrorKind::InvalidData)?;
        let mut bytes = serde_json::to_vec_pretty(&Sealed { head, check })?;
        bytes.push(b'\n');
        disk.replace(&folder.join(HEAD), &bytes)
    }

    /// How rows are kept.
    pub fn row_format(&self) -> Option<Format> {
        Format::from_name(&self.rows)
    }

    /// How far it looks back.
    pub fn window(&self) -> Option<Window> {
        self.window.map(|w| Window { first: w.first, last: w.last })
    }

    /// The names of all files that there are, but the head.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        let checkpoints = self.checkpoints.iter().map(|c| c.file.as_str());
        let segments = self.segments.iter().map(|s| s.file.as_str());
        checkpoints.chain(segments).chain([self.log.0.as_str()])
    }
}

impl StoredWindow {
    pub fn of(window: Option<Window>) -> Option<StoredWindow> {
        window.map(|w| StoredWindow { first: w.first, last: w.last })
    }
}

fn check(head: &Value) -> Option<Digest> {
    serde_json::to_vec(head).ok().map(|bytes| Digest::of(&[&bytes]))
}

/// Names that a session's files can have. Heads and archives come from outside: no name may lead anywhere else.
pub(super) fn check_file_name(name: &str) -> Result<(), ()> {
    let (stem, ending) = name.rsplit_once('.').ok_or(())?;
    let kind = [("tokens-", "log"), ("rows-", "log"), ("state-", "gguf")];
    let numbers = kind.iter().find_map(|(k, e)| stem.strip_prefix(k).filter(|_| ending == *e)).ok_or(())?;
    let plain = (1..=60).contains(&numbers.len()) && numbers.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    plain.then_some(()).ok_or(())
}

#[cfg(test)]
mod tests {
    use super::check_file_name;

    #[test]
    fn only_names_of_sessions_files_are_taken() {
        for good in ["tokens-0.log", "rows-4096-12.log", "state-130-7.gguf"] {
            assert!(check_file_name(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "head.json",
            "rows-.log",
            "../rows-1.log",
            "rows-1/../../x.log",
            "state-1.log",
            "tokens-a.log",
        ] {
            assert!(check_file_name(bad).is_err(), "{bad}");
        }
    }
}
