//! Writing files: header first, then the bytes of the tensors as they come.

use std::collections::{HashSet, VecDeque};
use std::io::{self, Read, Write};

use kadence_quant::Format;

use super::ALIGNMENT;
use super::error::{KeyProblem, NameProblem, TensorProblem, quoted};
use super::shards::{DEFAULT_ALIGNMENT, check_alignment};
use super::table::{MOST_DIMS, align_up, byte_len};
use super::value::{Kind, Value};

/// Why a file could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The system refused, for example because the disk is full.
    #[error("cannot write a GGUF file: {0}")]
    Io(#[from] io::Error),
    /// The name of a key or of a tensor is not one.
    #[error("the name {} of a {what} {problem}", quoted(name))]
    Name {
        /// What is named.
        what: &'static str,
        /// The name.
        name: Box<str>,
        /// What is wrong with it.
        problem: NameProblem,
    },
    /// A key or its value cannot be written.
    #[error("key {} {problem}", quoted(key))]
    Key {
        /// The key.
        key: Box<str>,
        /// What is wrong with it.
        problem: KeyProblem,
    },
    /// `general.alignment` is given as something else than a `u32`.
    #[error("key \"general.alignment\" has to hold u32, not {}", .0.name())]
    AlignmentKind(Kind),
    /// A tensor cannot be written.
    #[error("tensor {} {problem}", quoted(tensor))]
    Tensor {
        /// The tensor.
        tensor: Box<str>,
        /// What is wrong with it.
        problem: TensorProblem,
    },
    /// Bytes came for another tensor than the one whose turn it is.
    #[error("tensor {} was given bytes in the turn of {}", quoted(tensor), quoted(turn))]
    Turn {
        /// The tensor that was given bytes.
        tensor: Box<str>,
        /// The tensor that is to be written; empty when all are.
        turn: Box<str>,
    },
    /// More bytes came than the tensor has.
    #[error("tensor {} was given {excess} bytes more than it has", quoted(tensor))]
    Excess {
        /// The tensor.
        tensor: Box<str>,
        /// The bytes too many.
        excess: u64,
    },
    /// The file was finished before all bytes had come.
    #[error("tensor {} lacks {missing} bytes at the end of the file", quoted(tensor))]
    Incomplete {
        /// The first incomplete tensor.
        tensor: Box<str>,
        /// The bytes that it lacks.
        missing: u64,
    },
}

/// The header of a file to be: the keys, and which tensors follow.
///
/// ```
/// use kadence::gguf::{Gguf, Writer};
/// use kadence_quant::Format;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut header = Writer::new();
/// header.set("general.architecture", "kimi-k3")?;
/// header.set("kimi-k3.attention.head_count_kv", [0u32, 0, 0, 1])?;
/// header.tensor("output_norm.weight", Format::F32, &[2])?;
///
/// let mut file = header.start(Vec::new())?;
/// file.write("output_norm.weight", &1f32.to_le_bytes())?; // in as many pieces as you like
/// file.write("output_norm.weight", &2f32.to_le_bytes())?;
/// let bytes: Vec<u8> = file.finish()?;
/// # assert_eq!(bytes.len() % 32, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Writer {
    alignment: u64,
    /// Keys and values as they will be in the file.
    keys: Vec<u8>,
    key_names: HashSet<Box<str>>,
    tensors: VecDeque<Declared>,
    tensor_names: HashSet<Box<str>>,
}

#[derive(Debug)]
struct Declared {
    name: Box<str>,
    format: Format,
    dims: Vec<u64>,
    len: u64,
}

impl Default for Writer {
    fn default() -> Writer {
        Writer::new()
    }
}

impl Writer {
    /// A header without keys and tensors.
    pub fn new() -> Writer {
        Writer {
            alignment: DEFAULT_ALIGNMENT,
            keys: Vec::new(),
            key_names: HashSet::new(),
            tensors: VecDeque::new(),
            tensor_names: HashSet::new(),
        }
    }

    /// Adds a key. `general.alignment`, a `u32`, also decides how the file is laid out.
    ///
    /// # Errors
    /// When the key is there already, or is no key, or the alignment is none.
    pub fn set<T: Encode>(&mut self, key: &str, value: T) -> Result<(), WriteError> {
        let mut bytes = Vec::new();
        value.encode(&mut bytes);
        self.push_key(key, T::KIND, &bytes)
    }

    /// Adds a key with a value of another file. Errors as [`Writer::set`].
    pub fn copy(&mut self, key: &str, value: Value<'_>) -> Result<(), WriteError> {
        let mut bytes = Vec::new();
        encode_value(value, &mut bytes);
        self.push_key(key, value.kind(), &bytes)
    }

    fn push_key(&mut self, key: &str, kind: Kind, value: &[u8]) -> Result<(), WriteError> {
        check_name("metadata key", key)?;
        let error = |problem| WriteError::Key { key: key.into(), problem };
        if key == ALIGNMENT {
            let value = value.try_into().ok().filter(|_| kind == Kind::U32);
            let alignment = u32::from_le_bytes(value.ok_or(WriteError::AlignmentKind(kind))?).into();
            check_alignment(alignment).map_err(error)?;
            self.alignment = alignment;
        }
        if !self.key_names.insert(key.into()) {
            return Err(error(KeyProblem::Duplicate));
        }
        put_string(key, &mut self.keys);
        self.keys.extend(kind.id().to_le_bytes());
        self.keys.extend(value);
        Ok(())
    }

    /// Declares the next tensor: at most four dimensions, ne0 (the length of a row) first.
    ///
    /// # Errors
    /// When the tensor is there already, or its name or dimensions aren't possible.
    pub fn tensor(&mut self, name: &str, format: Format, dims: &[u64]) -> Result<(), WriteError> {
        check_name("tensor", name)?;
        let error = |problem| WriteError::Tensor { tensor: name.into(), problem };
        let mut four = [1; MOST_DIMS];
        let given = four.get_mut(..dims.len());
        given.ok_or_else(|| error(TensorProblem::Dimensions(dims.len() as u32)))?.copy_from_slice(dims);
        let len = byte_len(format, four).map_err(error)? as u64;
        if !self.tensor_names.insert(name.into()) {
            return Err(error(TensorProblem::Duplicate));
        }
        self.tensors.push_back(Declared { name: name.into(), format, dims: dims.into(), len });
        Ok(())
    }

    /// Writes the header. The bytes of the tensors are to follow, in the order in which they were declared.
    ///
    /// # Errors
    /// When `out` refuses, or the tensors are more than a file can hold.
    pub fn start<W: Write>(self, mut out: W) -> Result<DataWriter<W>, WriteError> {
        let mut header = Vec::from(*b"GGUF");
        header.extend(3u32.to_le_bytes());
        header.extend((self.tensors.len() as u64).to_le_bytes());
        header.extend((self.key_names.len() as u64).to_le_bytes());
        header.extend(&self.keys);
        let mut offset = 0u64;
        for tensor in &self.tensors {
            put_string(&tensor.name, &mut header);
            header.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| header.extend(dim.to_le_bytes()));
            header.extend(tensor.format.id().to_le_bytes());
            header.extend(offset.to_le_bytes());
            let end = offset.checked_add(tensor.len).filter(|end| *end <= i64::MAX as u64);
            let too_large =
                || WriteError::Tensor { tensor: tensor.name.clone(), problem: TensorProblem::TooLarge };
            offset = align_up(end.ok_or_else(too_large)?, self.alignment);
        }
        out.write_all(&header)?;
        pad(&mut out, header.len() as u64, self.alignment)?;
        Ok(DataWriter { out, tensors: self.tensors, written: 0, alignment: self.alignment })
    }
}

/// A file whose header is written.
#[derive(Debug)]
pub struct DataWriter<W> {
    out: W,
    /// Those not yet complete.
    tensors: VecDeque<Declared>,
    /// Bytes of the first of these.
    written: u64,
    alignment: u64,
}

impl<W: Write> DataWriter<W> {
    /// Appends bytes to a tensor: all of them, or the next piece.
    ///
    /// # Errors
    /// When `out` refuses, when the tensors before aren't complete, and when the bytes are too many.
    pub fn write(&mut self, tensor: &str, bytes: &[u8]) -> Result<(), WriteError> {
        let current = match self.tensors.front() {
            Some(current) if *current.name == *tensor => current,
            other => {
                let turn = other.map_or("".into(), |t| t.name.clone());
                return Err(WriteError::Turn { tensor: tensor.into(), turn });
            }
        };
        let written = self.written + bytes.len() as u64;
        if let Some(excess @ 1..) = written.checked_sub(current.len) {
            return Err(WriteError::Excess { tensor: tensor.into(), excess });
        }
        self.out.write_all(bytes)?;
        self.written = written;
        if written == current.len {
            pad(&mut self.out, written, self.alignment)?;
            self.tensors.pop_front();
            self.written = 0;
        }
        Ok(())
    }

    /// Flushes the file and gives it back.
    ///
    /// # Errors
    /// When `out` refuses, or a tensor isn't complete.
    pub fn finish(mut self) -> Result<W, WriteError> {
        if let Some(Declared { name, len, .. }) = self.tensors.pop_front() {
            return Err(WriteError::Incomplete { tensor: name, missing: len - self.written });
        }
        self.out.flush()?;
        Ok(self.out)
    }
}

fn check_name(what: &'static str, name: &str) -> Result<(), WriteError> {
    NameProblem::check_len(name.len()).map_err(|problem| WriteError::Name {
        what,
        name: name.into(),
        problem,
    })
}

/// Writes zeros from a position up to the next aligned one.
fn pad(out: &mut impl Write, at: u64, alignment: u64) -> io::Result<()> {
    let zeros = align_up(at, alignment) - at;
    io::copy(&mut io::repeat(0).take(zeros), out).map(|_| ())
}

fn put_string(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// What can be the value of a key.
pub trait Encode {
    /// The type in the file.
    const KIND: Kind;

    /// Appends the bytes in the file.
    fn encode(&self, out: &mut Vec<u8>);
}

macro_rules! encode_number {
    ($($type:ty => $kind:ident),*) => {$(
        impl Encode for $type {
            const KIND: Kind = Kind::$kind;

            fn encode(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }
        }
    )*};
}

encode_number!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32);
encode_number!(u64 => U64, i64 => I64, f32 => F32, f64 => F64);

impl Encode for bool {
    const KIND: Kind = Kind::Bool;

    fn encode(&self, out: &mut Vec<u8>) {
        out.push((*self).into());
    }
}

impl Encode for str {
    const KIND: Kind = Kind::Str;

    fn encode(&self, out: &mut Vec<u8>) {
        put_string(self, out);
    }
}

impl Encode for String {
    const KIND: Kind = Kind::Str;

    fn encode(&self, out: &mut Vec<u8>) {
        put_string(self, out);
    }
}

impl<T: Encode> Encode for [T] {
    const KIND: Kind = Kind::Array;

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(T::KIND.id().to_le_bytes());
        out.extend((self.len() as u64).to_le_bytes());
        self.iter().for_each(|element| element.encode(out));
    }
}

impl<T: Encode, const N: usize> Encode for [T; N] {
    const KIND: Kind = Kind::Array;

    fn encode(&self, out: &mut Vec<u8>) {
        self.as_slice().encode(out);
    }
}

impl<T: Encode> Encode for Vec<T> {
    const KIND: Kind = Kind::Array;

    fn encode(&self, out: &mut Vec<u8>) {
        self.as_slice().encode(out);
    }
}

impl<T: Encode + ?Sized> Encode for &T {
    const KIND: Kind = T::KIND;

    fn encode(&self, out: &mut Vec<u8>) {
        (**self).encode(out);
    }
}

fn encode_value(value: Value<'_>, out: &mut Vec<u8>) {
    match value {
        Value::U8(v) => v.encode(out),
        Value::I8(v) => v.encode(out),
        Value::U16(v) => v.encode(out),
        Value::I16(v) => v.encode(out),
        Value::U32(v) => v.encode(out),
        Value::I32(v) => v.encode(out),
        Value::U64(v) => v.encode(out),
        Value::I64(v) => v.encode(out),
        Value::F32(v) => v.encode(out),
        Value::F64(v) => v.encode(out),
        Value::Bool(v) => v.encode(out),
        Value::Str(v) => v.encode(out),
        Value::Array(array) => {
            out.extend(array.kind().id().to_le_bytes());
            out.extend((array.len() as u64).to_le_bytes());
            array.values().for_each(|element| encode_value(element, out));
        }
    }
}
