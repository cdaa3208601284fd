//! A file that is mapped, and whether it is still the same.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::error::{Change, Error};
use super::mapping::Mapping;

/// A regular file mapped for reading, with what identifies it.
#[derive(Debug)]
pub(super) struct MappedFile {
    path: PathBuf,
    mapping: Mapping,
    identity: Identity,
}

#[derive(Debug, PartialEq, Eq)]
struct Identity {
    /// Device and inode.
    file: (u64, u64),
    /// Seconds and nanoseconds of the last change.
    modified: (i64, i64),
    size: u64,
}

impl Identity {
    fn of(metadata: &Metadata) -> Identity {
        Identity {
            file: (metadata.dev(), metadata.ino()),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            size: metadata.size(),
        }
    }
}

impl MappedFile {
    pub(super) fn open(path: &Path) -> Result<MappedFile, Error> {
        let error = |action| move |source| Error::Io { file: path.into(), action, source };
        // NONBLOCK, or else opening a named pipe would wait for a writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file: File =
            rustix::fs::open(path, flags, Mode::empty()).map_err(|e| error("open it")(e.into()))?.into();
        MappedFile::of(&file, path)
    }

    /// Maps a file that is open. To open it again might not be allowed to this process.
    pub(super) fn of(file: &File, path: &Path) -> Result<MappedFile, Error> {
        let error = |action| move |source| Error::Io { file: path.into(), action, source };
        let metadata = file.metadata().map_err(error("look at it"))?;
        if !metadata.is_file() {
            return Err(Error::NotAFile { file: path.into() });
        }
        let mapping = Mapping::new(file).map_err(error("map it into memory"))?;
        Ok(MappedFile { path: path.into(), mapping, identity: Identity::of(&metadata) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.mapping.bytes()
    }

    /// Asks the system to read a part of the file ahead.
    pub(super) fn will_need(&self, offset: usize, len: usize) -> Result<(), Error> {
        let error = |source| Error::Io { file: self.path.clone(), action: "read ahead", source };
        self.mapping.will_need(offset, len).map_err(error)
    }

    /// Costs an atomic load.
    pub(super) fn check_undamaged(&self) -> Result<(), Error> {
        if self.mapping.is_damaged() { Err(Error::Damaged { file: self.path.clone() }) } else { Ok(()) }
    }

    /// Costs a system call.
    pub(super) fn check_unchanged(&self) -> Result<(), Error> {
        self.check_undamaged()?;
        let error = |source| Error::Io { file: self.path.clone(), action: "look at it again", source };
        let now = Identity::of(&std::fs::metadata(&self.path).map_err(error)?);
        let then = &self.identity;
        let change = if now == *then {
            return Ok(());
        } else if now.file != then.file {
            Change::Replaced
        } else if now.size != then.size {
            Change::Size { was: then.size, is: now.size }
        } else {
            Change::Modified
        };
        Err(Error::Changed { file: self.path.clone(), change })
    }
}
