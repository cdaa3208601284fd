//! The keys of a file and typed access to their values.

use super::cursor::Cursor;
use super::error::{Error, KeyProblem};
use super::mapped_file::MappedFile;
use super::name_index::NameIndex;
use super::value::{Array, FromValue, Kind, Origin, Value, read_kind};

/// Where the keys of a file lie, in the order of the file.
#[derive(Debug)]
pub(super) struct Keys {
    entries: Vec<Entry>,
    index: NameIndex,
}

/// Bytes count from the start of the file.
#[derive(Debug)]
struct Entry {
    key_at: usize,
    value_at: usize,
    value_end: usize,
    key_len: u16,
    kind: Kind,
}

/// Bytes of the shortest possible key and value: a length, a letter, a type, a byte.
const LEAST_BYTES: u64 = 8 + 1 + 4 + 1;

/// Room made for this many keys before any has been seen.
const FIRST_ROOM: u64 = 256;

impl Keys {
    /// Reads and checks `n` keys with their values.
    pub(super) fn read(cursor: &mut Cursor<'_>, n: u64) -> Result<Keys, Error> {
        cursor.check_count(n, LEAST_BYTES, "metadata keys")?;
        let mut entries = Vec::with_capacity(n.min(FIRST_ROOM) as usize);
        for _ in 0..n {
            let key = cursor.name("metadata key")?;
            let key_at = cursor.at - key.len();
            let origin = Origin { file: cursor.file, key };
            let kind = read_kind(cursor, origin)?;
            let value_at = cursor.at;
            Value::read(cursor, kind, origin)?;
            let key_len = key.len() as u16; // `name` has checked
            entries.push(Entry { key_at, value_at, value_end: cursor.at, key_len, kind });
        }
        let bytes = cursor.bytes;
        let index = NameIndex::build(entries.len(), |i| entries[i as usize].key(bytes));
        let index = index.map_err(|(_, again)| {
            let again = &entries[again as usize];
            let key = std::str::from_utf8(again.key(bytes)).unwrap_or_default();
            Origin { file: cursor.file, key }.error(again.key_at, KeyProblem::Duplicate)
        })?;
        Ok(Keys { entries, index })
    }
}

impl Entry {
    fn key<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.key_at..][..self.key_len.into()]
    }
}

/// The metadata of a model: that of the first shard, if there are several.
#[derive(Clone, Copy, Debug)]
pub struct Metadata<'a> {
    file: &'a MappedFile,
    keys: &'a Keys,
}

impl<'a> Metadata<'a> {
    pub(super) fn new(file: &'a MappedFile, keys: &'a Keys) -> Metadata<'a> {
        Metadata { file, keys }
    }

    /// The number of keys.
    pub fn len(self) -> usize {
        self.keys.entries.len()
    }

    /// True without keys.
    pub fn is_empty(self) -> bool {
        self.keys.entries.is_empty()
    }

    /// Keys and values, in the order of the file.
    pub fn iter(self) -> impl ExactSizeIterator<Item = (&'a str, Value<'a>)> {
        self.keys.entries.iter().map(move |e| self.decode(e))
    }

    /// The value of a key.
    pub fn get(self, key: &str) -> Option<Value<'a>> {
        self.entry(key).map(|e| self.decode(e).1)
    }

    /// The value of a key as a type of this program, or nothing where the file lacks the key.
    ///
    /// # Errors
    /// Names key, wanted and found type, if the value isn't of the type or doesn't fit.
    pub fn optional<T: FromValue<'a>>(self, key: &str) -> Result<Option<T>, Error> {
        self.get(key).map(|v| v.convert(Origin { file: self.file.path(), key })).transpose()
    }

    /// The value of a key as a type of this program.
    ///
    /// # Errors
    /// Names the key if the file lacks it, otherwise as [`Metadata::optional`].
    pub fn required<T: FromValue<'a>>(self, key: &str) -> Result<T, Error> {
        let missing = || Error::MissingKey { file: self.file.path().into(), key: key.into() };
        self.optional(key)?.ok_or_else(missing)
    }

    /// The string of a key. Errors as [`Metadata::required`].
    pub fn str(self, key: &str) -> Result<&'a str, Error> {
        self.required(key)
    }

    /// The integer of a key, stored in any width. Errors as [`Metadata::required`].
    pub fn u32(self, key: &str) -> Result<u32, Error> {
        self.required(key)
    }

    /// The floating-point number of a key, stored in either width. Errors as [`Metadata::required`].
    pub fn f32(self, key: &str) -> Result<f32, Error> {
        self.required(key)
    }

    /// The bool of a key. Errors as [`Metadata::required`].
    pub fn bool(self, key: &str) -> Result<bool, Error> {
        self.required(key)
    }

    /// The array of a key. Errors as [`Metadata::required`].
    pub fn array(self, key: &str) -> Result<Array<'a>, Error> {
        self.required(key)
    }

    /// The bytes of a value with those of its type, if there is such a key: same bytes, same value.
    pub(super) fn raw(self, key: &str) -> Option<(Kind, &'a [u8])> {
        self.entry(key).map(|e| (e.kind, &self.file.bytes()[e.value_at..e.value_end]))
    }

    /// An error about the value of a key.
    pub(super) fn error(self, key: &str, problem: KeyProblem) -> Error {
        let at = self.entry(key).map_or(0, |e| e.value_at);
        Origin { file: self.file.path(), key }.error(at, problem)
    }

    fn entry(self, key: &str) -> Option<&'a Entry> {
        let name = |i: u32| self.keys.entries[i as usize].key(self.file.bytes());
        let number = self.keys.index.find(key.as_bytes(), name)?;
        Some(&self.keys.entries[number as usize])
    }

    /// Reads a checked value again. Only a file that was overwritten meanwhile can make this fail; the value is
    /// then empty, and [`super::Gguf::check_unchanged`] says why.
    fn decode(self, entry: &Entry) -> (&'a str, Value<'a>) {
        let key = std::str::from_utf8(entry.key(self.file.bytes())).unwrap_or_default();
        let origin = Origin { file: self.file.path(), key };
        let mut cursor = Cursor::new(self.file.path(), &self.file.bytes()[..entry.value_end]);
        cursor.at = entry.value_at;
        let value = match entry.kind {
            Kind::Array => Array::read_unchecked(&mut cursor, origin).map(Value::Array),
            kind => Value::read(&mut cursor, kind, origin),
        };
        (key, value.unwrap_or(Value::Str("")))
    }
}
