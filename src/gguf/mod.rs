//! The container of models and of stored states: GGUF files, mapped and checked.
//!
//! A file has a header with typed metadata, a table of tensors, and the tensors' bytes (`shared/spec/k3.md`,
//! section 13). Nothing of it is copied: keys, strings and names are read where the file is mapped, and the
//! tensors are used there. Everything a file says is checked when it is opened, since it may come from anywhere;
//! what is wrong is told in an [`Error`], in one line, with what to do about it.
//!
//! Files may change while they are mapped. What is lost reads as zeros, and [`Gguf::check_undamaged`] and
//! [`Gguf::check_unchanged`] say so.

mod cursor;
mod error;
mod mapped_file;
mod mapping;
mod metadata;
mod name_index;
mod shards;
mod table;
mod value;
mod writer;

use std::fs::File;
use std::path::Path;

pub use error::{Change, Error, KeyProblem, NameProblem, ShardProblem, TensorProblem};
pub use mapping::Mapping;
pub use metadata::Metadata;
pub use table::{Span, Tensor};
pub use value::{Array, FromValue, Kind, Value};
pub use writer::{DataWriter, Encode, WriteError, Writer};

use mapped_file::MappedFile;
use metadata::Keys;
use table::Table;

/// The key that states to what the bytes of tensors are aligned.
const ALIGNMENT: &str = "general.alignment";

/// A model or a stored state, in one file or in several shards.
#[derive(Debug)]
pub struct Gguf {
    files: Vec<MappedFile>,
    keys: Keys,
    table: Table,
}

impl Gguf {
    /// Opens a file. Given any shard of a split model, opens them all.
    ///
    /// # Errors
    /// When the system refuses, when a shard is missing or of another model, and when anything in the files is
    /// not as it should be.
    pub fn open(path: impl AsRef<Path>) -> Result<Gguf, Error> {
        Gguf::of_shards(shards::open(path.as_ref())?)
    }

    /// Reads a file that is open, and which this process might not be allowed to open. `path` is what to call it, and
    /// where to look whether it has changed.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn of(file: &File, path: impl AsRef<Path>) -> Result<Gguf, Error> {
        Gguf::of_shards(shards::of(file, path.as_ref())?)
    }

    fn of_shards(shards: Vec<shards::Shard>) -> Result<Gguf, Error> {
        let unread: Vec<_> = shards.iter().map(|s| s.unread()).collect();
        let table = Table::read(&unread)?;
        let (files, mut keys): (Vec<_>, Vec<_>) = shards.into_iter().map(|s| (s.file, s.keys)).unzip();
        let gguf = Gguf { files, keys: keys.swap_remove(0), table };
        gguf.check_undamaged()?; // or else what was read may be zeros
        Ok(gguf)
    }

    /// The metadata; that of the first shard, if there are several.
    pub fn metadata(&self) -> Metadata<'_> {
        Metadata::new(&self.files[0], &self.keys)
    }

    /// All tensors, in the order of the files.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        self.table.iter(&self.files)
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        self.table.find(&self.files, name)
    }

    /// The bytes of a tensor of this model: whole blocks, row after row.
    pub fn data(&self, tensor: &Tensor<'_>) -> &[u8] {
        self.bytes(tensor.span())
    }

    /// The bytes of a span of this model.
    ///
    /// # Panics
    /// May panic if the span is of another model.
    pub fn bytes(&self, span: Span) -> &[u8] {
        &self.files[span.shard()].bytes()[span.offset()..][..span.len()]
    }

    /// Asks the system to read a span ahead; returns at once.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn will_need(&self, span: Span) -> Result<(), Error> {
        self.files[span.shard()].will_need(span.offset(), span.len())
    }

    /// Path and bytes of each file, the first shard first.
    pub fn files(&self) -> impl ExactSizeIterator<Item = (&Path, u64)> {
        self.files.iter().map(|f| (f.path(), f.bytes().len() as u64))
    }

    /// Checks that all that was read so far was really read: costs an atomic load a file. To be called after the
    /// data were used and before what came of them is.
    ///
    /// # Errors
    /// Names the file of which a part could not be read, so that zeros were read.
    pub fn check_undamaged(&self) -> Result<(), Error> {
        self.files.iter().try_for_each(|f| f.check_undamaged())
    }

    /// Checks, beyond [`Gguf::check_undamaged`], that the files are those that were opened, by size, inode and
    /// time of change: costs a system call a file. To be called between requests.
    ///
    /// # Errors
    /// Names the file and what happened to it.
    pub fn check_unchanged(&self) -> Result<(), Error> {
        self.files.iter().try_for_each(|f| f.check_unchanged())
    }
}
