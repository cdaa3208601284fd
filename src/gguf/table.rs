//! The tensor table: what a tensor is, and how hundreds of thousands of them are kept small.

use kadence_quant::Format;

use super::cursor::Cursor;
use super::error::{Error, ShardProblem, TensorProblem};
use super::mapped_file::MappedFile;
use super::name_index::NameIndex;

/// Dimensions of a tensor at most.
pub(super) const MOST_DIMS: usize = 4;

/// Where some bytes of a model lie. It is only good for the [`super::Gguf`] that it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    offset: usize,
    len: usize,
    shard: u16,
}

impl Span {
    /// The file, counted from 0 in the order of [`super::Gguf::files`].
    pub fn shard(self) -> usize {
        self.shard.into()
    }

    /// Bytes from the start of the file.
    pub fn offset(self) -> usize {
        self.offset
    }

    /// The number of bytes.
    pub fn len(self) -> usize {
        self.len
    }

    /// True without bytes.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// `len` bytes from `offset` on within this span, if they are in it: one expert of many, some rows.
    pub fn part(self, offset: usize, len: usize) -> Option<Span> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len);
        fits.then(|| Span { offset: self.offset + offset, len, shard: self.shard })
    }
}

/// A tensor of a model.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    name: &'a str,
    entry: &'a Entry,
}

impl<'a> Tensor<'a> {
    /// The name, for example `blk.0.attn_norm.weight`.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The dimensions, the one of neighbouring elements (ne0, the length of a row) first; at most 4.
    pub fn dims(&self) -> &'a [u64] {
        &self.entry.dims[..self.entry.n_dims.into()]
    }

    /// The four dimensions, 1 where the file names fewer.
    pub fn dims4(&self) -> [u64; 4] {
        self.entry.dims
    }

    /// How the elements are stored.
    pub fn format(&self) -> Format {
        self.entry.format
    }

    /// Where the elements lie.
    pub fn span(&self) -> Span {
        self.entry.span
    }
}

/// The tensors of all shards, in the order of the files.
#[derive(Debug)]
pub(super) struct Table {
    entries: Vec<Entry>,
    index: NameIndex,
}

/// What is kept of a tensor. The name stays in the file.
#[derive(Debug)]
struct Entry {
    dims: [u64; MOST_DIMS],
    span: Span,
    name_at: usize,
    name_len: u16,
    format: Format,
    n_dims: u8,
}

/// Bytes of the shortest possible entry: a name of one letter, no dimensions, type and offset.
const LEAST_BYTES: u64 = 8 + 1 + 4 + 4 + 8;

/// Tensors are numbered by `u32`, and the highest is no number.
const MOST_TENSORS: u64 = u32::MAX as u64 - 1;

/// Room made at once for this many tensors; more are given room as they are read.
const FIRST_ROOM: u64 = 1 << 20;

/// A file whose header has been read up to its tensor table.
pub(super) struct Unread<'a> {
    pub(super) file: &'a MappedFile,
    pub(super) table_at: usize,
    pub(super) tensors: u64,
    /// A power of two.
    pub(super) alignment: u64,
}

impl Table {
    /// Reads and checks the tables of all shards.
    pub(super) fn read(shards: &[Unread<'_>]) -> Result<Table, Error> {
        let mut total = 0;
        for shard in shards {
            shard.cursor().check_count(shard.tensors, LEAST_BYTES, "tensors")?;
            total += shard.tensors;
            if total > MOST_TENSORS {
                let file = shard.file.path().into();
                return Err(Error::Count { file, what: "tensors", claimed: total, most: MOST_TENSORS });
            }
        }
        let mut entries = Vec::with_capacity(total.min(FIRST_ROOM) as usize);
        for (number, shard) in (0u16..).zip(shards) {
            shard.read_table(number, &mut entries)?;
        }
        let name = |i: u32| {
            let entry = &entries[i as usize];
            entry.name(shards[entry.span.shard()].file)
        };
        let index = NameIndex::build(entries.len(), name).map_err(|(first, again)| {
            duplicate(shards, &entries[first as usize], &entries[again as usize])
        })?;
        Ok(Table { entries, index })
    }

    pub(super) fn iter<'a>(
        &'a self,
        files: &'a [MappedFile],
    ) -> impl ExactSizeIterator<Item = Tensor<'a>> + use<'a> {
        self.entries.iter().map(|e| e.tensor(files))
    }

    pub(super) fn find<'a>(&'a self, files: &'a [MappedFile], name: &str) -> Option<Tensor<'a>> {
        let name_of = |i: u32| {
            let entry = &self.entries[i as usize];
            entry.name(&files[entry.span.shard()])
        };
        let number = self.index.find(name.as_bytes(), name_of)?;
        Some(self.entries[number as usize].tensor(files))
    }
}

impl Entry {
    fn name<'a>(&self, file: &'a MappedFile) -> &'a [u8] {
        &file.bytes()[self.name_at..][..self.name_len.into()]
    }

    /// The name was valid when read; a file overwritten since then may have lost it, which `check_unchanged` says.
    fn text<'a>(&self, file: &'a MappedFile) -> &'a str {
        std::str::from_utf8(self.name(file)).unwrap_or_default()
    }

    fn tensor<'a>(&'a self, files: &'a [MappedFile]) -> Tensor<'a> {
        Tensor { name: self.text(&files[self.span.shard()]), entry: self }
    }
}

fn duplicate(shards: &[Unread<'_>], first: &Entry, again: &Entry) -> Error {
    let file_of = |e: &Entry| shards[e.span.shard()].file;
    let file = file_of(again).path().into();
    let tensor = again.text(file_of(again)).into();
    if first.span.shard == again.span.shard {
        return Error::Tensor { file, tensor, problem: TensorProblem::Duplicate };
    }
    let other = file_of(first).path().into();
    Error::Shard { file, problem: ShardProblem::SharedTensor { tensor, other } }
}

impl<'a> Unread<'a> {
    fn cursor(&self) -> Cursor<'a> {
        Cursor { at: self.table_at, ..Cursor::new(self.file.path(), self.file.bytes()) }
    }

    fn error(&self, tensor: &str, problem: TensorProblem) -> Error {
        Error::Tensor { file: self.file.path().into(), tensor: tensor.into(), problem }
    }

    /// Appends the entries of this file, which is number `shard`.
    fn read_table(&self, shard: u16, entries: &mut Vec<Entry>) -> Result<(), Error> {
        let mut cursor = self.cursor();
        let first = entries.len();
        for _ in 0..self.tensors {
            entries.push(self.read_entry(&mut cursor, shard)?);
        }
        let data_at = align_up(cursor.at as u64, self.alignment);
        for entry in &mut entries[first..] {
            self.place(entry, data_at).map_err(|p| self.error(entry.text(self.file), p))?;
        }
        self.check_overlaps(&entries[first..])
    }

    /// Reads an entry. Its offset counts from the start of the data section, which is not yet known.
    fn read_entry(&self, cursor: &mut Cursor<'_>, shard: u16) -> Result<Entry, Error> {
        const PART: &str = "an entry of the tensor table";
        let name = cursor.name("tensor name")?;
        let name_at = cursor.at - name.len();
        let n_dims = cursor.u32(PART)?;
        if n_dims as usize > MOST_DIMS {
            return Err(self.error(name, TensorProblem::Dimensions(n_dims)));
        }
        let mut dims = [1; MOST_DIMS];
        for dim in &mut dims[..n_dims as usize] {
            *dim = cursor.u64(PART)?;
        }
        let id = cursor.u32(PART)?;
        let offset = cursor.u64(PART)?;
        let format = Format::from_id(id).ok_or(TensorProblem::UnknownType(id));
        let sized = format.and_then(|format| Ok((format, byte_len(format, dims)?)));
        let (format, len) = sized.map_err(|p| self.error(name, p))?;
        let offset = usize::try_from(offset).map_err(|_| self.error(name, TensorProblem::TooLarge))?;
        let span = Span { offset, len, shard };
        Ok(Entry { dims, span, name_at, name_len: name.len() as u16, format, n_dims: n_dims as u8 })
    }

    /// Makes the offset of an entry count from the start of the file, once its bytes are known to be in the file.
    fn place(&self, entry: &mut Entry, data_at: u64) -> Result<(), TensorProblem> {
        let Span { offset, len, .. } = entry.span;
        let (offset, size) = (offset as u64, self.file.bytes().len() as u64);
        if !offset.is_multiple_of(self.alignment) {
            return Err(TensorProblem::Misaligned { offset, alignment: self.alignment });
        }
        let end = offset.saturating_add(data_at).saturating_add(len as u64);
        if end > size {
            return Err(TensorProblem::PastEnd { end, size });
        }
        entry.span.offset += data_at as usize;
        Ok(())
    }

    fn check_overlaps(&self, entries: &[Entry]) -> Result<(), Error> {
        let mut order: Vec<u32> = (0..entries.len() as u32).collect();
        order.sort_unstable_by_key(|i| entries[*i as usize].span.offset);
        for pair in order.windows(2) {
            let [before, after] = [pair[0], pair[1]].map(|i| &entries[i as usize]);
            if before.span.offset + before.span.len > after.span.offset {
                let other = before.text(self.file).into();
                return Err(self.error(after.text(self.file), TensorProblem::Overlaps(other)));
            }
        }
        Ok(())
    }
}

/// The bytes of a tensor: rows of `dims[0]` elements in whole blocks.
pub(super) fn byte_len(format: Format, dims: [u64; MOST_DIMS]) -> Result<usize, TensorProblem> {
    if dims.contains(&0) {
        return Err(TensorProblem::Empty);
    }
    let row = usize::try_from(dims[0]).map_err(|_| TensorProblem::TooLarge)?;
    if !row.is_multiple_of(format.block_len()) {
        return Err(TensorProblem::Blocks { row: dims[0], format });
    }
    let rows = dims[1..].iter().try_fold(1u64, |n, d| n.checked_mul(*d));
    let rows = rows.and_then(|n| usize::try_from(n).ok());
    let len = format.bytes(row).zip(rows).and_then(|(row, rows)| row.checked_mul(rows));
    len.filter(|n| isize::try_from(*n).is_ok()).ok_or(TensorProblem::TooLarge)
}

/// The next multiple of an alignment that is a power of two; `at` is a position in a file.
pub(super) fn align_up(at: u64, alignment: u64) -> u64 {
    at.saturating_add(alignment - 1) & !(alignment - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_stays_small() {
        assert_eq!(size_of::<Entry>(), 72);
    }

    #[test]
    fn the_bytes_of_a_tensor_are_whole_blocks() {
        assert_eq!(byte_len(Format::F32, [3, 2, 1, 1]), Ok(24));
        assert_eq!(byte_len(Format::Q4_K, [512, 3, 2, 1]), Ok(2 * 144 * 6));
        assert_eq!(byte_len(Format::F32, [3, 0, 1, 1]), Err(TensorProblem::Empty));
        let blocks = TensorProblem::Blocks { row: 100, format: Format::Q8_0 };
        assert_eq!(byte_len(Format::Q8_0, [100, 32, 1, 1]), Err(blocks));
        for dims in [[1 << 62, 1, 1, 1], [1, 1 << 32, 1 << 32, 1], [1 << 31, 1 << 31, 1, 1], [u64::MAX; 4]] {
            assert_eq!(byte_len(Format::F32, dims), Err(TensorProblem::TooLarge), "{dims:?}");
        }
    }

    #[test]
    fn a_part_of_a_span_lies_within_it() {
        let span = Span { offset: 100, len: 10, shard: 3 };
        assert_eq!(span.part(4, 6), Some(Span { offset: 104, len: 6, shard: 3 }));
        assert_eq!(span.part(10, 0), Some(Span { offset: 110, len: 0, shard: 3 }));
        assert_eq!(span.part(5, 6), None);
        assert_eq!(span.part(1, usize::MAX), None);
    }

    #[test]
    fn alignment_rounds_up() {
        assert_eq!([0, 1, 32, 33].map(|n| align_up(n, 32)), [0, 32, 32, 64]);
        assert_eq!(align_up(u64::MAX - 3, 32), u64::MAX - 31);
    }
}
