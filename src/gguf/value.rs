//! The values of metadata keys: thirteen types, read where they lie.

use std::fmt;
use std::path::Path;

use super::cursor::Cursor;
use super::error::{Error, KeyProblem, quoted};

/// The type of a value, with its number in the file (`shared/spec/k3.md`, section 13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the variants say it
#[repr(u8)]
pub enum Kind {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    Str = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

/// Kind, name, and the bytes of a value or, where these vary, the least that a value takes.
const TABLE: [(Kind, &str, usize); 13] = [
    (Kind::U8, "u8", 1),
    (Kind::I8, "i8", 1),
    (Kind::U16, "u16", 2),
    (Kind::I16, "i16", 2),
    (Kind::U32, "u32", 4),
    (Kind::I32, "i32", 4),
    (Kind::F32, "f32", 4),
    (Kind::Bool, "bool", 1),
    (Kind::Str, "string", 8),
    (Kind::Array, "array", 12),
    (Kind::U64, "u64", 8),
    (Kind::I64, "i64", 8),
    (Kind::F64, "f64", 8),
];

impl Kind {
    /// The kind with this number.
    pub fn from_id(id: u32) -> Option<Kind> {
        TABLE.get(usize::try_from(id).ok()?).map(|row| row.0)
    }

    /// The number in the file.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// The name used in messages, for example `u32`.
    pub fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    fn least_bytes(self) -> usize {
        TABLE[self as usize].2
    }

    fn has_fixed_size(self) -> bool {
        !matches!(self, Kind::Str | Kind::Array)
    }
}

/// The value of a key. Strings and arrays are read where the file is mapped.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // the variants say it
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Str(&'a str),
    Array(Array<'a>),
}

/// How deep arrays may lie in one another. Files in the wild use one level.
const DEEPEST: usize = 8;

/// Where a value belongs, for messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin<'a> {
    pub(super) file: &'a Path,
    pub(super) key: &'a str,
}

impl Origin<'_> {
    pub(super) fn error(self, at: usize, problem: KeyProblem) -> Error {
        Error::Key { file: self.file.into(), key: self.key.into(), at: at as u64, problem }
    }

    fn wrong_type(self, wanted: &'static str, found: String) -> Error {
        Error::WrongType { file: self.file.into(), key: self.key.into(), wanted, found: found.into() }
    }
}

/// Reads the number of a kind.
pub(super) fn read_kind(cursor: &mut Cursor<'_>, origin: Origin<'_>) -> Result<Kind, Error> {
    let at = cursor.at;
    let id = cursor.u32("the type of a value")?;
    Kind::from_id(id).ok_or_else(|| origin.error(at, KeyProblem::UnknownType(id)))
}

impl<'a> Value<'a> {
    /// Reads a value and checks all of it, arrays to their last element.
    pub(super) fn read(c: &mut Cursor<'a>, kind: Kind, origin: Origin<'a>) -> Result<Value<'a>, Error> {
        Value::read_nested(c, kind, origin, 0)
    }

    fn read_nested(
        c: &mut Cursor<'a>,
        kind: Kind,
        origin: Origin<'a>,
        depth: usize,
    ) -> Result<Value<'a>, Error> {
        const PART: &str = "a metadata value";
        let at = c.at;
        Ok(match kind {
            Kind::U8 => Value::U8(u8::from_le_bytes(c.array(PART)?)),
            Kind::I8 => Value::I8(i8::from_le_bytes(c.array(PART)?)),
            Kind::U16 => Value::U16(u16::from_le_bytes(c.array(PART)?)),
            Kind::I16 => Value::I16(i16::from_le_bytes(c.array(PART)?)),
            Kind::U32 => Value::U32(c.u32(PART)?),
            Kind::I32 => Value::I32(i32::from_le_bytes(c.array(PART)?)),
            Kind::U64 => Value::U64(c.u64(PART)?),
            Kind::I64 => Value::I64(i64::from_le_bytes(c.array(PART)?)),
            Kind::F32 => Value::F32(f32::from_le_bytes(c.array(PART)?)),
            Kind::F64 => Value::F64(f64::from_le_bytes(c.array(PART)?)),
            Kind::Bool => match c.array(PART)? {
                [byte @ (0 | 1)] => Value::Bool(byte == 1),
                [byte] => return Err(origin.error(at, KeyProblem::NotBool(byte))),
            },
            Kind::Str => {
                let text = std::str::from_utf8(c.string("a string of the metadata")?);
                Value::Str(text.map_err(|_| origin.error(at, KeyProblem::NotUtf8))?)
            }
            Kind::Array if depth == DEEPEST => return Err(origin.error(at, KeyProblem::TooDeep(DEEPEST))),
            Kind::Array => Value::Array(Array::read(c, origin, depth)?),
        })
    }

    /// The type of the value.
    pub fn kind(&self) -> Kind {
        match self {
            Value::U8(_) => Kind::U8,
            Value::I8(_) => Kind::I8,
            Value::U16(_) => Kind::U16,
            Value::I16(_) => Kind::I16,
            Value::U32(_) => Kind::U32,
            Value::I32(_) => Kind::I32,
            Value::U64(_) => Kind::U64,
            Value::I64(_) => Kind::I64,
            Value::F32(_) => Kind::F32,
            Value::F64(_) => Kind::F64,
            Value::Bool(_) => Kind::Bool,
            Value::Str(_) => Kind::Str,
            Value::Array(_) => Kind::Array,
        }
    }

    /// The value, if it is an integer of any width.
    pub fn as_integer(&self) -> Option<i128> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::I8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::I16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::I32(v) => Some(v.into()),
            Value::U64(v) => Some(v.into()),
            Value::I64(v) => Some(v.into()),
            _ => None,
        }
    }

    pub(super) fn convert<T: FromValue<'a>>(self, origin: Origin<'_>) -> Result<T, Error> {
        T::from_value(self).ok_or_else(|| origin.wrong_type(T::WANTED, self.to_string()))
    }
}

/// Type and value in a few words, as in messages: `u32 5`, `string "abc"`, `array of 3 f32`.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind().name();
        match self {
            Value::F32(v) => write!(f, "{kind} {v}"),
            Value::F64(v) => write!(f, "{kind} {v}"),
            Value::Bool(v) => write!(f, "{kind} {v}"),
            Value::Str(v) => write!(f, "{kind} {}", quoted(v)),
            Value::Array(v) => write!(f, "{kind} of {} {}", v.len(), v.kind().name()),
            _ => write!(f, "{kind} {}", self.as_integer().unwrap_or_default()),
        }
    }
}

/// A value that holds many of one type, read where the file is mapped.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a> {
    origin: Origin<'a>,
    kind: Kind,
    len: usize,
    /// The elements and, maybe, bytes behind them.
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// Reads an array, and checks its elements.
    fn read(c: &mut Cursor<'a>, origin: Origin<'a>, depth: usize) -> Result<Array<'a>, Error> {
        let array = Array::read_unchecked(c, origin)?;
        if array.kind.has_fixed_size() && array.kind != Kind::Bool {
            c.take((array.len * array.kind.least_bytes()) as u64, "an array")?;
        } else {
            for _ in 0..array.len {
                Value::read_nested(c, array.kind, origin, depth + 1)?;
            }
        }
        Ok(array)
    }

    /// Reads type and length of an array whose elements have been checked before.
    pub(super) fn read_unchecked(c: &mut Cursor<'a>, origin: Origin<'a>) -> Result<Array<'a>, Error> {
        let kind = read_kind(c, origin)?;
        let len = c.u64("the length of an array")?;
        c.check_count(len, kind.least_bytes() as u64, "elements of an array")?;
        Ok(Array { origin, kind, len: len as usize, bytes: &c.bytes[c.at..] })
    }

    /// The type of the elements.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements. (Should the file be overwritten meanwhile, they may end early.)
    pub fn values(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let Array { origin, kind, len, bytes } = *self;
        let mut cursor = Cursor::new(origin.file, bytes);
        (0..len).map_while(move |_| Value::read(&mut cursor, kind, origin).ok())
    }

    /// The elements as a type of this program; integers may have any width in the file.
    ///
    /// # Errors
    /// Names the key and the first element that isn't of the type, or doesn't fit.
    pub fn elements<T: FromValue<'a>>(&self) -> Result<impl Iterator<Item = T> + use<'a, T>, Error> {
        if let Some((i, value)) = self.values().enumerate().find(|(_, v)| T::from_value(*v).is_none()) {
            let found = format!("{value} as element {i} of {}", self.len);
            return Err(self.origin.wrong_type(T::WANTED, found));
        }
        Ok(self.values().map_while(T::from_value))
    }

    /// The elements as strings.
    ///
    /// # Errors
    /// Names the key, if the elements are something else.
    pub fn strings(&self) -> Result<impl Iterator<Item = &'a str> + use<'a>, Error> {
        self.elements()
    }

    /// The elements as `u32`, from integers of any width.
    ///
    /// # Errors
    /// Names the key and the first element that isn't an integer that fits.
    pub fn u32s(&self) -> Result<impl Iterator<Item = u32> + use<'a>, Error> {
        self.elements()
    }

    /// The elements as `f32`, from floating-point numbers of either width.
    ///
    /// # Errors
    /// Names the key, if the elements are something else.
    pub fn f32s(&self) -> Result<impl Iterator<Item = f32> + use<'a>, Error> {
        self.elements()
    }
}

impl PartialEq for Array<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.len == other.len && self.values().eq(other.values())
    }
}

/// What the value of a key can be read as. Integers are read from any width, if the number fits.
pub trait FromValue<'a>: Sized {
    /// What is wanted, in words, with an article.
    const WANTED: &'static str;

    /// The value, if it is what is wanted.
    fn from_value(value: Value<'a>) -> Option<Self>;
}

macro_rules! from_integer {
    ($($type:ty, $wanted:literal;)*) => {$(
        impl<'a> FromValue<'a> for $type {
            const WANTED: &'static str = $wanted;

            fn from_value(value: Value<'a>) -> Option<Self> {
                value.as_integer()?.try_into().ok()
            }
        }
    )*};
}

from_integer! {
    u8, "an integer from 0 to 255";
    u16, "an integer from 0 to 65535";
    u32, "an integer from 0 to 4294967295";
    u64, "an integer that is not negative";
    usize, "an integer that is not negative";
    i32, "an integer of 32 bits";
    i64, "an integer of 64 bits";
}

impl<'a> FromValue<'a> for f32 {
    const WANTED: &'static str = "a floating-point number";

    fn from_value(value: Value<'a>) -> Option<f32> {
        f64::from_value(value).map(|v| v as f32)
    }
}

impl<'a> FromValue<'a> for f64 {
    const WANTED: &'static str = "a floating-point number";

    fn from_value(value: Value<'a>) -> Option<f64> {
        match value {
            Value::F32(v) => Some(v.into()),
            Value::F64(v) => Some(v),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for bool {
    const WANTED: &'static str = "a bool";

    fn from_value(value: Value<'a>) -> Option<bool> {
        if let Value::Bool(v) = value { Some(v) } else { None }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const WANTED: &'static str = "a string";

    fn from_value(value: Value<'a>) -> Option<&'a str> {
        if let Value::Str(v) = value { Some(v) } else { None }
    }
}

impl<'a> FromValue<'a> for Array<'a> {
    const WANTED: &'static str = "an array";

    fn from_value(value: Value<'a>) -> Option<Array<'a>> {
        if let Value::Array(v) = value { Some(v) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_numbers() {
        for (id, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, id);
            assert_eq!(Kind::from_id(id as u32), Some(row.0));
        }
        assert_eq!(Kind::from_id(13), None);
        assert_eq!(Kind::from_id(u32::MAX), None);
    }

    #[test]
    fn integers_of_any_width_are_read_if_they_fit() {
        assert_eq!(u32::from_value(Value::I8(5)), Some(5));
        assert_eq!(u32::from_value(Value::I64(5)), Some(5));
        assert_eq!(u32::from_value(Value::U64(1 << 32)), None);
        assert_eq!(u32::from_value(Value::I32(-1)), None);
        assert_eq!(i64::from_value(Value::U64(u64::MAX)), None);
        assert_eq!(u32::from_value(Value::Bool(true)), None);
        assert_eq!(u32::from_value(Value::F32(1.0)), None);
        assert_eq!(f32::from_value(Value::F64(0.5)), Some(0.5));
        assert_eq!(f32::from_value(Value::U8(1)), None);
    }

    #[test]
    fn values_are_described_in_a_few_words() {
        assert_eq!(Value::I16(-3).to_string(), "i16 -3");
        assert_eq!(Value::Str("a\nb").to_string(), "string \"a\\nb\"");
        assert_eq!(Value::Bool(true).to_string(), "bool true");
        assert_eq!(Value::F32(0.5).to_string(), "f32 0.5");
    }
}
