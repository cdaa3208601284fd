//! The headers of files, and the files of a model that is split.
//!
//! A split model lies in files named `NAME-00001-of-00005.gguf`, each with a tensor table of its own. Every file
//! holds `split.no` (from 0), `split.count` and `split.tensors.count`; the first holds all other metadata.

use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::ALIGNMENT;
use super::cursor::Cursor;
use super::error::{Error, KeyProblem, ShardProblem};
use super::mapped_file::MappedFile;
use super::metadata::{Keys, Metadata};
use super::table::Unread;

const SPLIT_NO: &str = "split.no";
const SPLIT_COUNT: &str = "split.count";
const SPLIT_TENSORS: &str = "split.tensors.count";

/// A file with its header read up to the tensor table.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) file: MappedFile,
    pub(super) keys: Keys,
    table_at: usize,
    tensors: u64,
    alignment: u64,
}

impl Shard {
    fn open(path: &Path) -> Result<Shard, Error> {
        Shard::read(MappedFile::open(path)?)
    }

    fn read(file: MappedFile) -> Result<Shard, Error> {
        let mut cursor = Cursor::new(file.path(), file.bytes());
        read_version(&mut cursor)?;
        let tensors = cursor.u64("the number of tensors")?;
        let n_keys = cursor.u64("the number of metadata keys")?;
        let keys = Keys::read(&mut cursor, n_keys)?;
        let table_at = cursor.at;
        let alignment = read_alignment(Metadata::new(&file, &keys))?;
        Ok(Shard { file, keys, table_at, tensors, alignment })
    }

    fn metadata(&self) -> Metadata<'_> {
        Metadata::new(&self.file, &self.keys)
    }

    pub(super) fn unread(&self) -> Unread<'_> {
        let Shard { ref file, table_at, tensors, alignment, .. } = *self;
        Unread { file, table_at, tensors, alignment }
    }

    fn error(&self, problem: ShardProblem) -> Error {
        Error::Shard { file: self.file.path().into(), problem }
    }

    /// Checks that the file is the shard that its name says.
    fn check_place(&self, name: &Name) -> Result<(), Error> {
        let count = self.metadata().required(SPLIT_COUNT)?;
        let no = self.metadata().required::<u16>(SPLIT_NO)?;
        let no = u64::from(no) + 1;
        if (no, count) == (name.no.into(), name.count) {
            return Ok(());
        }
        Err(self.error(ShardProblem::Misnamed { no, count, named_no: name.no, named_count: name.count }))
    }

    /// Checks that the keys that the file shares with the first shard say the same.
    fn check_belongs_to(&self, first: &Shard) -> Result<(), Error> {
        let (mine, theirs) = (self.metadata(), first.metadata());
        for (key, _) in mine.iter().filter(|(key, _)| *key != SPLIT_NO) {
            if theirs.raw(key).is_some_and(|raw| mine.raw(key) != Some(raw)) {
                let first = first.file.path().into();
                return Err(self.error(ShardProblem::Foreign { key: key.into(), first }));
            }
        }
        Ok(())
    }
}

/// The alignment of files that do not state one, in bytes.
pub(super) const DEFAULT_ALIGNMENT: u64 = 32;

/// An alignment is a power of two, and 8 at least, so that every number in a tensor is aligned.
pub(super) fn check_alignment(alignment: u64) -> Result<(), KeyProblem> {
    let good = alignment.is_power_of_two() && (8..=1 << 31).contains(&alignment);
    if good { Ok(()) } else { Err(KeyProblem::Alignment(alignment)) }
}

fn read_alignment(metadata: Metadata<'_>) -> Result<u64, Error> {
    let alignment = metadata.optional(ALIGNMENT)?.unwrap_or(DEFAULT_ALIGNMENT);
    check_alignment(alignment).map_err(|problem| metadata.error(ALIGNMENT, problem))?;
    Ok(alignment)
}

/// Reads what every file begins with.
fn read_version(cursor: &mut Cursor<'_>) -> Result<(), Error> {
    let file = cursor.file.to_path_buf();
    let start = cursor.array("the beginning of a GGUF file")?;
    if start != *b"GGUF" {
        return Err(Error::NotGguf { file, start });
    }
    match cursor.u32("the version")? {
        2 | 3 => Ok(()),
        version if (1..=0xffff).contains(&version.swap_bytes()) => Err(Error::BigEndian { file }),
        version => Err(Error::Version { file, version }),
    }
}

/// Opens a model, of which `path` may be any of several shards, and returns the shards in order.
pub(super) fn open(path: &Path) -> Result<Vec<Shard>, Error> {
    all_of(Shard::open(path)?)
}

/// The same of a file that is open already.
pub(super) fn of(file: &File, path: &Path) -> Result<Vec<Shard>, Error> {
    all_of(Shard::read(MappedFile::of(file, path)?)?)
}

fn all_of(given: Shard) -> Result<Vec<Shard>, Error> {
    let count = given.metadata().optional::<u16>(SPLIT_COUNT)?.unwrap_or(1).into();
    let shards = if count < 2 { vec![given] } else { open_others(given, count)? };
    let found = shards.iter().map(|s| s.tensors).fold(0, u64::saturating_add);
    let claimed = shards[0].metadata().optional(SPLIT_TENSORS)?;
    match claimed {
        Some(claimed) if claimed != found => Err(shards[0].error(ShardProblem::Tensors { claimed, found })),
        _ => Ok(shards),
    }
}

fn open_others(given: Shard, count: u32) -> Result<Vec<Shard>, Error> {
    let name = Name::of(given.file.path());
    let name = name.ok_or_else(|| given.error(ShardProblem::Unnamed { count }))?;
    given.check_place(&name)?;
    let mut shards: Vec<Shard> = Vec::new();
    let mut given = Some(given);
    for no in 1..=count {
        let shard = match given.take_if(|_| no == name.no) {
            Some(given) => given,
            None => open_other(name.with(no))?,
        };
        if let Some(first) = shards.first() {
            shard.check_belongs_to(first)?;
        }
        shards.push(shard);
    }
    Ok(shards)
}

fn open_other(name: Name) -> Result<Shard, Error> {
    let shard = Shard::open(&name.path()).map_err(|error| match error {
        Error::Io { file, source, .. } if source.kind() == ErrorKind::NotFound => {
            Error::Shard { file, problem: ShardProblem::Missing { no: name.no, count: name.count } }
        }
        other => other,
    })?;
    shard.check_place(&name)?;
    Ok(shard)
}

/// The path of a shard, taken apart.
#[derive(Debug, Clone, PartialEq)]
struct Name {
    /// All before `-00001-of-00005.gguf`.
    stem: PathBuf,
    /// From 1.
    no: u32,
    count: u32,
}

impl Name {
    fn of(path: &Path) -> Option<Name> {
        let rest = path.as_os_str().as_bytes().strip_suffix(b".gguf")?;
        let (rest, count) = strip_number(rest)?;
        let (stem, no) = strip_number(rest.strip_suffix(b"-of")?)?;
        Some(Name { stem: OsStr::from_bytes(stem).into(), no, count })
    }

    fn with(&self, no: u32) -> Name {
        Name { no, ..self.clone() }
    }

    fn path(&self) -> PathBuf {
        let mut path = self.stem.clone().into_os_string();
        path.push(format!("-{:05}-of-{:05}.gguf", self.no, self.count));
        path.into()
    }
}

/// Takes `-` and five digits off the end.
fn strip_number(name: &[u8]) -> Option<(&[u8], u32)> {
    let (rest, last) = name.split_last_chunk::<6>()?;
    let digits = last.strip_prefix(b"-")?;
    let number = digits.iter().try_fold(0, |n, d| Some(10 * n + char::from(*d).to_digit(10)?));
    Some((rest, number?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_names_the_others() {
        let name = Name::of(Path::new("a/K3-of-all-00002-of-00030.gguf")).unwrap();
        assert_eq!(name, Name { stem: "a/K3-of-all".into(), no: 2, count: 30 });
        assert_eq!(name.with(1).path(), Path::new("a/K3-of-all-00001-of-00030.gguf"));
        assert_eq!(name.with(30).path(), Path::new("a/K3-of-all-00030-of-00030.gguf"));
        let name = Name::of(Path::new(OsStr::from_bytes(b"\xff-00001-of-00002.gguf"))).unwrap();
        assert_eq!(name.with(2).path().as_os_str().as_bytes(), b"\xff-00002-of-00002.gguf");
    }

    #[test]
    fn other_names_are_no_shards() {
        for path in [
            "",
            "a.gguf",
            "-of-.gguf",
            "a-00001-of-00002",
            "a-00001-of-00002.bin",
            "a-1-of-2.gguf",
            "a-000x1-of-00002.gguf",
            "a-+0001-of-00002.gguf",
            "a-00001-00002.gguf",
            "a00001-of-00002.gguf",
        ] {
            assert_eq!(Name::of(Path::new(path)), None, "{path}");
        }
    }

    #[test]
    fn alignments_are_powers_of_two_from_8_on() {
        for good in [8, 32, 4096, 1 << 31] {
            assert_eq!(check_alignment(good), Ok(()));
        }
        for bad in [0, 1, 4, 24, 33, 1 << 32, u64::MAX] {
            assert_eq!(check_alignment(bad), Err(KeyProblem::Alignment(bad)));
        }
    }
}
