//! What can be wrong with a file, said in one line: which file, where, and what to do.

use std::fmt;
use std::io;
use std::path::PathBuf;

use kadence_quant::Format;

/// Why a file could not be read, or can no longer be trusted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused.
    #[error("{file}: cannot {action}: {source}")]
    Io {
        /// The file concerned.
        file: PathBuf,
        /// What was being done, as a verb with its object.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// A folder, a device or the like.
    #[error("{file} is not a regular file: give the path of a .gguf file")]
    NotAFile {
        /// The path given.
        file: PathBuf,
    },
    /// The file doesn't start as a GGUF file does.
    #[error("{file} is not a GGUF file: it starts with \"{}\", not \"GGUF\"", start.escape_ascii())]
    NotGguf {
        /// The file concerned.
        file: PathBuf,
        /// Its first four bytes.
        start: [u8; 4],
    },
    /// The numbers are stored the other way round.
    #[error("{file} is a big-endian GGUF file: convert it to little-endian")]
    BigEndian {
        /// The file concerned.
        file: PathBuf,
    },
    /// A version of the container that is not read.
    #[error("{file} is GGUF version {version}, but only 2 and 3 are read: convert the model again")]
    Version {
        /// The file concerned.
        file: PathBuf,
        /// The version it states.
        version: u32,
    },
    /// The file ends too early, or a length in it is wrong.
    #[error("{file} ends at byte {size}, but {part} at byte {at} takes {wanted} bytes: fetch the file again")]
    Truncated {
        /// The file concerned.
        file: PathBuf,
        /// Its length in bytes.
        size: u64,
        /// What was being read.
        part: &'static str,
        /// Where it starts.
        at: u64,
        /// How long it claims to be.
        wanted: u64,
    },
    /// The header counts more things than the file has room for.
    #[error("{file} claims {claimed} {what}, but has room for {most} at most: fetch the file again")]
    Count {
        /// The file concerned.
        file: PathBuf,
        /// What is counted.
        what: &'static str,
        /// The number in the header.
        claimed: u64,
        /// How many would fit.
        most: u64,
    },
    /// The name of a key or of a tensor is not one.
    #[error("{file}: the {what} at byte {at} {problem}: fetch the file again")]
    Name {
        /// The file concerned.
        file: PathBuf,
        /// What is named.
        what: &'static str,
        /// Where the name starts.
        at: u64,
        /// What is wrong with it.
        problem: NameProblem,
    },
    /// The value of a metadata key is damaged.
    #[error("{file}: key {} at byte {at} {problem}", quoted(key))]
    Key {
        /// The file concerned.
        file: PathBuf,
        /// The key.
        key: Box<str>,
        /// Where the offending value starts.
        at: u64,
        /// What is wrong with it.
        problem: KeyProblem,
    },
    /// An entry of the tensor table is damaged.
    #[error("{file}: tensor {} {problem}", quoted(tensor))]
    Tensor {
        /// The file concerned.
        file: PathBuf,
        /// The tensor.
        tensor: Box<str>,
        /// What is wrong with it.
        problem: TensorProblem,
    },
    /// A key that has to be there isn't.
    #[error(
        "{file} lacks the key {}: it may be of another architecture or from an old converter",
        quoted(key)
    )]
    MissingKey {
        /// The file concerned.
        file: PathBuf,
        /// The key.
        key: Box<str>,
    },
    /// A key holds something else than what it should.
    #[error("{file}: key {} should hold {wanted}, but holds {found}", quoted(key))]
    WrongType {
        /// The file concerned.
        file: PathBuf,
        /// The key.
        key: Box<str>,
        /// What was asked for.
        wanted: &'static str,
        /// What is there.
        found: Box<str>,
    },
    /// The files of a model that is split do not belong together.
    #[error("{file} {problem}")]
    Shard {
        /// The file concerned.
        file: PathBuf,
        /// What is wrong.
        problem: ShardProblem,
    },
    /// The file is no longer the one that was opened.
    #[error("{file} {change} since it was opened: open the model again")]
    Changed {
        /// The file concerned.
        file: PathBuf,
        /// What happened to it.
        change: Change,
    },
    /// A part of the file could not be read while in use, and zeros were read in its place.
    #[error(
        "{file} shrank or could not be read while in use, so results since then are wrong: \
         restore it and open the model again"
    )]
    Damaged {
        /// The file concerned.
        file: PathBuf,
    },
}

/// What is wrong with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameProblem {
    /// It has no characters.
    #[error("is empty")]
    Empty,
    /// It is longer than 65535 bytes.
    #[error("is {0} bytes long, more than 65535")]
    TooLong(u64),
    /// It is not text.
    #[error("is not valid UTF-8")]
    NotUtf8,
}

impl NameProblem {
    /// Checks how many bytes a name has.
    pub(super) fn check_len(len: usize) -> Result<(), NameProblem> {
        match len {
            0 => Err(NameProblem::Empty),
            1..=0xffff => Ok(()),
            _ => Err(NameProblem::TooLong(len as u64)),
        }
    }
}

/// What is wrong with the value of a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyProblem {
    /// The key was there already.
    #[error("is there twice: convert the model again")]
    Duplicate,
    /// No value type has this number.
    #[error("has the unknown value type {0}: fetch the file again")]
    UnknownType(u32),
    /// Neither false (0) nor true (1).
    #[error("holds the byte {0} as a bool: fetch the file again")]
    NotBool(u8),
    /// A string that is not text.
    #[error("holds a string that is not valid UTF-8: fetch the file again")]
    NotUtf8,
    /// An array in an array in an array ...
    #[error("nests arrays more than {0} deep: convert the model again")]
    TooDeep(usize),
    /// `general.alignment` is not a power of two from 8 on.
    #[error("is {0}, but has to be a power of two, 8 or more: convert the model again")]
    Alignment(u64),
}

/// What is wrong with a tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TensorProblem {
    /// The name was there already.
    #[error("is there twice: convert the model again")]
    Duplicate,
    /// More than four dimensions.
    #[error("has {0} dimensions, more than 4: fetch the file again")]
    Dimensions(u32),
    /// A dimension without elements.
    #[error("has a dimension of 0: convert the model again")]
    Empty,
    /// The number of elements or bytes overflows.
    #[error("has more elements than can be: fetch the file again")]
    TooLarge,
    /// A format that is not known.
    #[error("has the unknown type {0}: get the model in another quantization")]
    UnknownType(u32),
    /// A row that does not end with a block.
    #[error("has rows of {row} elements, not a multiple of the {} of a block of {format}", format.block_len())]
    Blocks {
        /// Elements of a row.
        row: u64,
        /// The format of the tensor.
        format: Format,
    },
    /// An offset that is not aligned.
    #[error(
        "starts at offset {offset}, not a multiple of the file's alignment {alignment}: fetch the file again"
    )]
    Misaligned {
        /// Bytes from the start of the data section.
        offset: u64,
        /// The alignment of the file in bytes.
        alignment: u64,
    },
    /// The file is too short for it.
    #[error("ends at byte {end}, but the file at {size}: it is truncated, fetch it again")]
    PastEnd {
        /// Where the tensor ends, counted from the start of the file.
        end: u64,
        /// The length of the file.
        size: u64,
    },
    /// Two tensors share bytes.
    #[error("overlaps tensor {}: fetch the file again", quoted(.0))]
    Overlaps(Box<str>),
}

/// What is wrong with a shard of a split model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShardProblem {
    /// It is not there.
    #[error("is missing: it is shard {no} of {count} of the model, put it beside the others")]
    Missing {
        /// Its number, from 1.
        no: u32,
        /// The number of shards.
        count: u32,
    },
    /// The name does not tell where the other shards are.
    #[error(
        "is one of {count} shards, but its name does not end in -00001-of-{count:05}.gguf: restore its name"
    )]
    Unnamed {
        /// The number of shards.
        count: u32,
    },
    /// The name and the file contradict each other.
    #[error("says it is shard {no} of {count}, its name says {named_no} of {named_count}: restore its name")]
    Misnamed {
        /// The number of the shard by its own account, from 1.
        no: u64,
        /// The number of shards by its own account.
        count: u32,
        /// The number of the shard by its name.
        named_no: u32,
        /// The number of shards by its name.
        named_count: u32,
    },
    /// A key that differs from that of the first shard.
    #[error("belongs to another model: its key {} differs from that of {}", quoted(key), first.display())]
    Foreign {
        /// The key.
        key: Box<str>,
        /// The first shard.
        first: PathBuf,
    },
    /// A tensor that another shard holds too.
    #[error("belongs to another model than {}: both hold tensor {}", other.display(), quoted(tensor))]
    SharedTensor {
        /// The tensor.
        tensor: Box<str>,
        /// The other shard.
        other: PathBuf,
    },
    /// Not as many tensors as there should be.
    #[error("says that the model has {claimed} tensors, but its files hold {found}: one is of another model")]
    Tensors {
        /// `split.tensors.count`.
        claimed: u64,
        /// The tensors of all shards.
        found: u64,
    },
}

/// How a file is no longer the one that was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Change {
    /// Another length.
    #[error("changed from {was} to {is} bytes")]
    Size {
        /// Bytes when opened.
        was: u64,
        /// Bytes now.
        is: u64,
    },
    /// Another file lies at the path.
    #[error("was replaced by another file")]
    Replaced,
    /// Written to.
    #[error("was written to")]
    Modified,
}

/// A name from a file, fit for one line: in quotes, without control characters, and cut when long.
pub(super) fn quoted(name: &str) -> impl fmt::Display {
    const MOST: usize = 80;
    let shown = name.char_indices().nth(MOST).map_or(name, |(end, _)| &name[..end]);
    let dots = if shown.len() < name.len() { "..." } else { "" };
    format!("\"{}{dots}\"", shown.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_in_one_short_line() {
        assert_eq!(quoted("a.b").to_string(), "\"a.b\"");
        assert_eq!(quoted("a\n\u{1b}\"").to_string(), "\"a\\n\\u{1b}\\\"\"");
        assert_eq!(quoted(&"é".repeat(5000)).to_string(), format!("\"{}...\"", "é".repeat(80)));
    }

    #[test]
    fn an_error_stays_small() {
        assert!(size_of::<Error>() <= 96, "{}", size_of::<Error>());
    }
}
