//! The operations by which sessions change what is on disk: one by one, so that a test can let each of them fail.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// What sessions do to a disk. [`RealDisk`] does it; anything else is for tests.
pub trait Disk: Send + Sync + Debug {
    /// Creates a folder that only its owner may look into, and those above it. It may be there already.
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
    }

    /// Creates a file that must not be there yet.
    fn create(&self, path: &Path) -> io::Result<File> {
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
    }

    /// Opens a file to append to its first `len` bytes; what is behind them is cut off.
    fn extend(&self, path: &Path, len: u64) -> io::Result<File> {
        let mut file = OpenOptions::new().write(true).open(path)?;
        if file.metadata()?.len() < len {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file has become shorter"));
        }
        file.set_len(len)?;
        file.seek(SeekFrom::Start(len))?;
        Ok(file)
    }

    /// Writes some of the bytes, as [`Write::write`] does.
    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<usize> {
        file.write(bytes)
    }

    /// Returns when what was written is on the disk.
    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    /// Gives a file another name, in place of a file that has it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    /// Gives a file that is never written again a second name; where the file system can't, copies it.
    fn share(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to).or_else(|_| self.copy(from, to))
    }

    /// Copies a file; where the file system can, its blocks are shared until one of the two is changed.
    fn copy(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (mut from, mut to) = (File::open(from)?, self.create(to)?);
        if rustix::fs::ioctl_ficlone(&to, &from).is_err() {
            io::copy(&mut from, &mut to)?;
        }
        self.sync(&to)
    }

    /// Returns when the names in a folder are on the disk.
    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    /// Bytes that may still be written to the file system that holds `path`.
    fn free(&self, path: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(path)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

/// The disk of this machine.
#[derive(Debug)]
pub struct RealDisk;

impl Disk for RealDisk {}

impl dyn Disk + '_ {
    /// Writes all of the bytes.
    pub(super) fn write_all(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        Through { disk: self, file }.write_all(bytes)
    }

    /// Creates a file with these bytes, and returns when they are on the disk. A file that couldn't be completed is
    /// removed.
    pub(super) fn write_new(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.write_file(path, |out| out.write_all(bytes)).map(drop)
    }

    /// The same with whatever `write` writes; gives the size of the file.
    pub(super) fn write_file(
        &self,
        path: &Path,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<u64> {
        let mut file = self.create(path)?;
        let written = write(&mut Through { disk: self, file: &mut file }).and_then(|()| self.sync(&file));
        written.inspect_err(|_| _ = self.remove(path))?;
        Ok(file.metadata()?.len())
    }

    /// Puts a file with these bytes in the place of what is there, at once or not at all.
    pub(super) fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let new = path.with_extension("new");
        match self.remove(&new) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        self.write_new(&new, bytes)?;
        self.rename(&new, path)?;
        self.sync_folder(path.parent().unwrap_or(Path::new("/")))
    }
}

/// A file that is written to through a disk.
struct Through<'a> {
    disk: &'a dyn Disk,
    file: &'a mut File,
}

impl Write for Through<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.disk.write(self.file, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
