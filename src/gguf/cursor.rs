//! Reading the parts of a header in order, never past the end.

use std::path::Path;

use super::error::{Error, NameProblem};

/// A position in the bytes of a file.
pub(super) struct Cursor<'a> {
    pub(super) file: &'a Path,
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(file: &'a Path, bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { file, bytes, at: 0 }
    }

    pub(super) fn remaining(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The next `n` bytes; `part` says what they are, should they not be there.
    pub(super) fn take(&mut self, n: u64, part: &'static str) -> Result<&'a [u8], Error> {
        let taken = usize::try_from(n).ok().and_then(|n| self.bytes[self.at..].get(..n));
        let taken = taken.ok_or_else(|| Error::Truncated {
            file: self.file.into(),
            size: self.bytes.len() as u64,
            part,
            at: self.at as u64,
            wanted: n,
        })?;
        self.at += taken.len();
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, part: &'static str) -> Result<[u8; N], Error> {
        let taken = self.take(N as u64, part)?;
        Ok(std::array::from_fn(|i| taken[i]))
    }

    pub(super) fn u32(&mut self, part: &'static str) -> Result<u32, Error> {
        self.array(part).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, part: &'static str) -> Result<u64, Error> {
        self.array(part).map(u64::from_le_bytes)
    }

    /// The bytes of a string: a length and as many bytes.
    pub(super) fn string(&mut self, part: &'static str) -> Result<&'a [u8], Error> {
        let len = self.u64(part)?;
        self.take(len, part)
    }

    /// A string that names something; `what` it names is for the message.
    pub(super) fn name(&mut self, what: &'static str) -> Result<&'a str, Error> {
        let at = self.at as u64;
        let bytes = self.string(what)?;
        let checked = NameProblem::check_len(bytes.len())
            .and_then(|()| std::str::from_utf8(bytes).map_err(|_| NameProblem::NotUtf8));
        checked.map_err(|problem| Error::Name { file: self.file.into(), what, at, problem })
    }

    /// Refuses a number of things of at least `least` bytes each that cannot be in the rest of the file, or that
    /// is beyond what a `u32` counts.
    pub(super) fn check_count(&self, claimed: u64, least: u64, what: &'static str) -> Result<(), Error> {
        let most = (self.remaining() / least).min(u64::from(u32::MAX - 1));
        if claimed <= most {
            return Ok(());
        }
        Err(Error::Count { file: self.file.into(), what, claimed, most })
    }
}
