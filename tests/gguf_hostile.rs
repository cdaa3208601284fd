//! Files that lie: whatever the bytes, opening gives a model that can be read to its last byte, or an error of one
//! line; nothing panics, and no claim in a file makes memory grow beyond the size of the file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use kadence::gguf::{Error, Gguf, Value, Writer};
use kadence_quant::Format;

#[path = "gguf/allocator.rs"]
mod allocator;
#[path = "gguf/scratch.rs"]
mod scratch;
use allocator::measure;
use scratch::Scratch;

/// A file that is changed and opened again and again.
struct Victim {
    _scratch: Scratch,
    path: PathBuf,
    file: File,
    bytes: Vec<u8>,
}

impl Victim {
    fn new(test: &str, bytes: Vec<u8>) -> Victim {
        let scratch = Scratch::new(test);
        let path = scratch.path("victim.gguf");
        let file = File::create(&path).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        Victim { _scratch: scratch, path, file, bytes }
    }

    /// Opens the file with some bytes replaced.
    fn with(&self, at: usize, new: &[u8]) -> Result<(), String> {
        let new = &new[..new.len().min(self.bytes.len() - at)];
        self.file.write_all_at(new, at as u64).unwrap();
        let result = self.open();
        self.file.write_all_at(&self.bytes[at..][..new.len()], at as u64).unwrap();
        result
    }

    /// Opens the file and reads all of it; the memory that this takes has to be in proportion to the file.
    fn open(&self) -> Result<(), String> {
        let most = 16_000 + 8 * self.file.metadata().unwrap().len();
        let (result, held, peak) = measure(|| Gguf::open(&self.path).map(|gguf| read(&gguf)));
        assert!(peak <= most as isize, "{peak} bytes were allocated, {result:?}");
        result.map_err(one_line)?;
        assert!(held <= 100, "{held} bytes are kept: more than an entry in the list of mappings");
        Ok(())
    }
}

fn one_line(error: Error) -> String {
    let message = error.to_string();
    assert!(message.len() < 600 && !message.contains(char::is_control), "{message:?}");
    assert!(message.contains("victim.gguf"), "{message}");
    message
}

fn read(gguf: &Gguf) {
    for (key, value) in gguf.metadata().iter() {
        assert_eq!(gguf.metadata().get(key).map(|v| v.kind()), Some(value.kind()));
        read_value(value);
    }
    for tensor in gguf.tensors() {
        assert_eq!(gguf.tensor(tensor.name()).unwrap().span(), tensor.span());
        assert!(tensor.dims().iter().all(|d| *d > 0));
        let data = gguf.data(&tensor);
        assert!(data.iter().map(|b| u64::from(*b)).sum::<u64>() < u64::MAX);
    }
}

fn read_value(value: Value<'_>) {
    if let Value::Array(array) = value {
        assert_eq!(array.values().count(), array.len());
        array.values().for_each(read_value);
    }
}

/// A file with something of everything.
fn small() -> Vec<u8> {
    let mut w = Writer::new();
    w.set("general.architecture", "kimi-k3").unwrap();
    w.set("general.alignment", 16u32).unwrap();
    w.set("split.count", 1u16).unwrap();
    w.set("u", 7u64).unwrap();
    w.set("f", 0.5f32).unwrap();
    w.set("b", true).unwrap();
    w.set("tokens", ["ab", "", "ß"]).unwrap();
    w.set("flags", [true, false]).unwrap();
    w.set("nested", vec![vec![1u16], vec![2, 3]]).unwrap();
    w.tensor("a", Format::F32, &[3, 2]).unwrap();
    w.tensor("b", Format::Q8_0, &[32, 1, 2]).unwrap();
    w.tensor("c", Format::F16, &[1]).unwrap();
    let mut file = w.start(Vec::new()).unwrap();
    for (name, len) in [("a", 24), ("b", 68), ("c", 2)] {
        file.write(name, &vec![0xab; len]).unwrap();
    }
    file.finish().unwrap()
}

#[test]
fn any_flipped_bit_of_a_small_file() {
    let victim = Victim::new("flips", small());
    let mut good = 0;
    for (at, byte) in victim.bytes.iter().enumerate() {
        let flips = (0..8).map(|bit| byte ^ (1 << bit)).chain([0, 0xff, byte.wrapping_add(1)]);
        good += flips.filter(|new| victim.with(at, &[*new]).is_ok()).count();
    }
    let all = 11 * victim.bytes.len();
    assert!(good > all / 4 && good < 3 * all / 4, "{good} of {all} opened: both outcomes are of interest");
}

#[test]
fn any_word_of_a_small_file_overwritten() {
    let victim = Victim::new("words", small());
    let len = victim.bytes.len() as u64;
    let words =
        [0, 1, 9, len, 1 << 31, (1 << 32) - 1, 1 << 32, i64::MAX as u64, 1 << 63, u64::MAX - 31, u64::MAX];
    for at in 0..victim.bytes.len() {
        for word in words {
            _ = victim.with(at, &word.to_le_bytes());
            _ = victim.with(at, &(word as u32).to_le_bytes());
        }
    }
}

#[test]
fn a_small_file_cut_anywhere() {
    let victim = Victim::new("cuts", small());
    victim.open().unwrap();
    let end = victim.bytes.len() - 14; // the padding of the last tensor may be missing
    for len in (0..victim.bytes.len()).rev() {
        victim.file.set_len(len as u64).unwrap();
        assert_eq!(victim.open().is_ok(), len >= end, "cut to {len}");
    }
}

#[test]
fn a_vocabulary_damaged_and_cut() {
    let victim = Victim::new("vocabulary", std::fs::read("tests/data/tok-cross.gguf").unwrap());
    for at in 0..victim.bytes.len() {
        _ = victim.with(at, &[victim.bytes[at] ^ 0x80]);
    }
    for at in (0..victim.bytes.len()).step_by(7) {
        _ = victim.with(at, &[0xff; 8]);
    }
    let padding = 31;
    for len in (0..victim.bytes.len() - padding).rev().step_by(5) {
        victim.file.set_len(len as u64).unwrap();
        victim.open().unwrap_err();
    }
}

#[test]
fn claims_in_a_huge_file_take_no_memory() {
    // A terabyte that takes no room on the disk: there is space for whatever is claimed.
    let scratch = Scratch::new("huge");
    let path = scratch.path("victim.gguf");
    let open = |header: &[u8]| {
        let file = File::create(&path).unwrap();
        file.write_all_at(header, 0).unwrap();
        file.set_len(1 << 40).unwrap();
        let (result, _, peak) = measure(|| Gguf::open(&path));
        (one_line(result.unwrap_err()), peak)
    };
    let (message, peak) = open(&file_of(&[], &[], [4_000_000_000, 0]));
    assert!(message.contains("tensor name at byte 24 is empty") && peak < 100_000_000, "{message} {peak}");
    let (message, peak) = open(&file_of(&[], &[], [0, 4_000_000_000]));
    assert!(message.contains("metadata key at byte 24 is empty") && peak < 100_000, "{message} {peak}");
    let (message, peak) = open(&file_of(&[], &[], [u64::MAX, 0]));
    assert!(message.contains("claims 18446744073709551615 tensors") && peak < 100_000, "{message} {peak}");
    let array = key(b"k", ARRAY, &[&U32.to_le_bytes()[..], &4_000_000_000u64.to_le_bytes()].concat());
    let (message, peak) = open(&file_of(&[array], &[], [0, 2]));
    assert!(
        message.contains("metadata key at byte 16000000049 is empty") && peak < 100_000,
        "{message} {peak}"
    );
}

const U8: u32 = 0;
const U32: u32 = 4;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

fn key(name: &[u8], kind: u32, value: &[u8]) -> Vec<u8> {
    [&string(name)[..], &kind.to_le_bytes(), value].concat()
}

fn array(kind: u32, len: u64, elements: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &len.to_le_bytes(), elements].concat()
}

fn tensor(name: &[u8], dims: &[u64], format: u32, offset: u64) -> Vec<u8> {
    let dims: Vec<u8> = dims.iter().flat_map(|d| d.to_le_bytes()).collect();
    let n_dims = (dims.len() / 8) as u32;
    [&string(name)[..], &n_dims.to_le_bytes(), &dims, &format.to_le_bytes(), &offset.to_le_bytes()].concat()
}

/// A file with these keys and tensors, 128 bytes of data, and these counts of tensors and keys.
fn file_of(keys: &[Vec<u8>], tensors: &[Vec<u8>], counts: [u64; 2]) -> Vec<u8> {
    let mut file =
        [&b"GGUF"[..], &3u32.to_le_bytes(), &counts[0].to_le_bytes(), &counts[1].to_le_bytes()].concat();
    file.extend(keys.concat());
    file.extend(tensors.concat());
    file.resize(file.len().next_multiple_of(32) + 128, 0);
    file
}

fn says(bytes: Vec<u8>, wanted: &str) {
    let result = Victim::new("says", bytes).open();
    assert!(result.as_ref().is_err_and(|m| m.contains(wanted)), "{result:?} should say {wanted:?}");
}

fn with_keys(keys: &[Vec<u8>]) -> Vec<u8> {
    file_of(keys, &[], [0, keys.len() as u64])
}

fn with_tensors(tensors: &[Vec<u8>]) -> Vec<u8> {
    file_of(&[], tensors, [tensors.len() as u64, 0])
}

#[test]
fn each_lie_is_told() {
    // One test, so that the file is there once at a time.
    what_is_no_readable_gguf();
    lies_in_counts_and_names();
    lies_in_values();
    lies_in_tensors();
}

fn what_is_no_readable_gguf() {
    let version = |v: [u8; 4]| [b"GGUF", &v[..], &[0; 16]].concat();
    says(b"".to_vec(), "ends at byte 0, but the beginning of a GGUF file at byte 0 takes 4 bytes");
    says(b"version https://git-lfs".to_vec(), "is not a GGUF file: it starts with \"vers\", not \"GGUF\"");
    says(version([0, 0, 0, 3]), "is a big-endian GGUF file: convert it to little-endian");
    says(version([1, 0, 0, 0]), "is GGUF version 1, but only 2 and 3 are read: convert the model again");
    says(version([4, 0, 0, 0]), "is GGUF version 4, but");
    Victim::new("says", version([2, 0, 0, 0])).open().unwrap();
}

fn lies_in_counts_and_names() {
    let named = |name: &[u8]| with_keys(&[key(name, U8, &[0])]);
    says(file_of(&[], &[], [6, 0]), "claims 6 tensors, but has room for 5 at most: fetch the file again");
    says(file_of(&[], &[], [0, u64::MAX]), "metadata keys, but has room for 9 at most");
    says(named(b""), "the metadata key at byte 24 is empty");
    says(named(&[b'k'; 65536]), "the metadata key at byte 24 is 65536 bytes long, more than 65535");
    says(named(b"\xff"), "the metadata key at byte 24 is not valid UTF-8");
    says(with_tensors(&[tensor(b"", &[1], 0, 0)]), "the tensor name at byte 24 is empty");
    says(with_tensors(&[tensor(&[b't'; 65536], &[1], 0, 0)]), "the tensor name at byte 24 is 65536 bytes");
    says(with_tensors(&[tensor(b"\xc3", &[1], 0, 0)]), "the tensor name at byte 24 is not valid UTF-8");
    let mut long = named(b"k");
    long[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
    says(long, "but metadata key at byte 32 takes 18446744073709551615 bytes: fetch the file again");
    Victim::new("says", named(&[b'k'; 65535])).open().unwrap();
}

fn lies_in_values() {
    let valued = |kind, value: &[u8]| with_keys(&[key(b"k", kind, value)]);
    let twice = [key(b"k", U8, &[0]), key(b"l", U8, &[0]), key(b"k", U8, &[1])];
    says(with_keys(&twice), "key \"k\" at byte 60 is there twice");
    says(valued(13, &[0]), "key \"k\" at byte 33 has the unknown value type 13");
    says(valued(BOOL, &[2]), "key \"k\" at byte 37 holds the byte 2 as a bool");
    says(valued(STRING, &string(b"\xff")), "key \"k\" at byte 37 holds a string that is not valid UTF-8");
    says(valued(ARRAY, &array(BOOL, 2, &[1, 2])), "key \"k\" at byte 50 holds the byte 2 as a bool");
    let strings = [string(b"a"), string(b"\xe2\x82")].concat();
    says(valued(ARRAY, &array(STRING, 2, &strings)), "holds a string that is not valid UTF-8");
    says(valued(ARRAY, &array(13, 0, &[])), "has the unknown value type 13");
    says(valued(ARRAY, &array(U8, 1 << 60, &[])), "claims 1152921504606846976 elements of an array");
    says(valued(ARRAY, &array(STRING, 100, &[])), "claims 100 elements of an array");
    let nested = |depth| (1..depth).fold(array(U8, 1, &[7]), |inner, _| array(ARRAY, 1, &inner));
    Victim::new("says", valued(ARRAY, &nested(8))).open().unwrap();
    says(valued(ARRAY, &nested(9)), "key \"k\" at byte 133 nests arrays more than 8 deep");
    says(valued(ARRAY, &nested(5000)), "nests arrays more than 8 deep");
    for (alignment, problem) in [(0u32, "is 0, but"), (48, "is 48, but"), (4, "is 4, but"), (1, "is 1, but")]
    {
        let aligned = key(b"general.alignment", U32, &alignment.to_le_bytes());
        says(with_keys(&[aligned]), &format!("key \"general.alignment\" at byte 53 {problem}"));
    }
    let worded = key(b"general.alignment", STRING, &string(b"32"));
    says(with_keys(&[worded]), "should hold an integer that is not negative, but holds string \"32\"");
    let evil = key(b"a\n\x1b[2J\"", BOOL, &[9]);
    says(with_keys(&[evil]), "key \"a\\n\\u{1b}[2J\\\"\" at byte");
}

fn lies_in_tensors() {
    let one = |dims: &[u64], format, offset| with_tensors(&[tensor(b"t", dims, format, offset)]);
    let two = |second: Vec<u8>| with_tensors(&[tensor(b"t", &[16], 0, 0), second]);
    says(one(&[1; 5], 0, 0), "tensor \"t\" has 5 dimensions, more than 4");
    says(one(&[4, 0], 0, 0), "tensor \"t\" has a dimension of 0");
    says(one(&[1 << 40, 1 << 40], 0, 0), "tensor \"t\" has more elements than can be");
    says(one(&[1 << 62], 0, 0), "tensor \"t\" has more elements than can be");
    says(one(&[1], 9, 0), "tensor \"t\" has the unknown type 9: get the model in another quantization");
    says(one(&[1], u32::MAX, 0), "tensor \"t\" has the unknown type 4294967295");
    says(
        one(&[33], 8, 0),
        "tensor \"t\" has rows of 33 elements, not a multiple of the 32 of a block of Q8_0",
    );
    says(one(&[1], 0, 8), "tensor \"t\" starts at offset 8, not a multiple of the file's alignment 32");
    says(one(&[33], 0, 0), "tensor \"t\" ends at byte 196, but the file at 192: it is truncated");
    says(one(&[1], 0, 128), "tensor \"t\" ends at byte 196, but the file at 192: it is truncated");
    says(one(&[1], 0, u64::MAX - 31), "tensor \"t\" ends at byte 18446744073709551615, but");
    says(two(tensor(b"t", &[1], 0, 64)), "tensor \"t\" is there twice");
    says(two(tensor(b"u", &[1], 0, 32)), "tensor \"u\" overlaps tensor \"t\"");
    says(two(tensor(b"u", &[16], 0, 0)), "overlaps tensor");
    Victim::new("says", two(tensor(b"u", &[16], 0, 64))).open().unwrap();
    Victim::new("says", one(&[32], 0, 0)).open().unwrap();
}
