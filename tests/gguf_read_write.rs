//! What the writer writes, the reader reads; and what is asked for wrongly is told with its name.

use std::path::Path;

use kadence::gguf::{Error, Gguf, KeyProblem, Kind, TensorProblem, Value, WriteError, Writer};
use kadence_quant::Format;

#[path = "gguf/scratch.rs"]
mod scratch;
use scratch::Scratch;

/// A header with a key of every type and three tensors.
fn header() -> Writer {
    let mut w = Writer::new();
    w.set("u8", 200u8).unwrap();
    w.set("i8", -100i8).unwrap();
    w.set("u16", 60000u16).unwrap();
    w.set("i16", -30000i16).unwrap();
    w.set("u32", 4_000_000_000u32).unwrap();
    w.set("i32", -2_000_000_000i32).unwrap();
    w.set("u64", u64::MAX).unwrap();
    w.set("i64", i64::MIN).unwrap();
    w.set("f32", 0.1f32).unwrap();
    w.set("f64", 0.1f64).unwrap();
    w.set("yes", true).unwrap();
    w.set("no", false).unwrap();
    w.set("name", "Kimi „K3“").unwrap();
    w.set("empty", "").unwrap();
    w.set("tokens", vec!["a".to_string(), "".into(), "ß".into()]).unwrap();
    w.set("heads", [0u32, 0, 1]).unwrap();
    w.set("scores", &[1.5f32, -2.5][..]).unwrap();
    w.set("flags", [true, false]).unwrap();
    w.set("nothing", [0u64; 0]).unwrap();
    w.set("nested", vec![vec![1i16, 2], vec![], vec![3]]).unwrap();
    w.set("mixed", [-1i64, 5]).unwrap();
    w.tensor("a.weight", Format::F32, &[3, 2]).unwrap();
    w.tensor("b.weight", Format::Q8_0, &[64, 1, 2, 1]).unwrap();
    w.tensor("scale", Format::BF16, &[]).unwrap();
    w
}

/// The bytes of the tensors of [`header`].
fn data() -> [(&'static str, Vec<u8>); 3] {
    let bytes = |n: u8| (1..=n).collect();
    [("a.weight", bytes(24)), ("b.weight", bytes(136)), ("scale", bytes(2))]
}

fn write(header: Writer, path: &Path) {
    let mut file = header.start(std::fs::File::create(path).unwrap()).unwrap();
    for (name, bytes) in data() {
        file.write(name, &bytes).unwrap();
    }
    file.finish().unwrap();
}

fn written(test: &str) -> (Scratch, Gguf) {
    let scratch = Scratch::new(test);
    write(header(), &scratch.path("a.gguf"));
    let gguf = Gguf::open(scratch.path("a.gguf")).unwrap();
    (scratch, gguf)
}

#[test]
fn every_type_of_value_comes_back() {
    let (_scratch, gguf) = written("values");
    let m = gguf.metadata();
    assert_eq!(m.get("u8"), Some(Value::U8(200)));
    assert_eq!(m.get("i8"), Some(Value::I8(-100)));
    assert_eq!(m.get("u16"), Some(Value::U16(60000)));
    assert_eq!(m.get("i16"), Some(Value::I16(-30000)));
    assert_eq!(m.get("u32"), Some(Value::U32(4_000_000_000)));
    assert_eq!(m.get("i32"), Some(Value::I32(-2_000_000_000)));
    assert_eq!(m.get("u64"), Some(Value::U64(u64::MAX)));
    assert_eq!(m.get("i64"), Some(Value::I64(i64::MIN)));
    assert_eq!(m.get("f32"), Some(Value::F32(0.1)));
    assert_eq!(m.get("f64"), Some(Value::F64(0.1)));
    assert_eq!((m.bool("yes").unwrap(), m.bool("no").unwrap()), (true, false));
    assert_eq!((m.str("name").unwrap(), m.str("empty").unwrap()), ("Kimi „K3“", ""));
    assert!(m.array("tokens").unwrap().strings().unwrap().eq(["a", "", "ß"]));
    assert!(m.array("heads").unwrap().u32s().unwrap().eq([0, 0, 1]));
    assert!(m.array("scores").unwrap().f32s().unwrap().eq([1.5, -2.5]));
    assert!(m.array("flags").unwrap().elements::<bool>().unwrap().eq([true, false]));
    assert!(m.array("mixed").unwrap().elements::<i32>().unwrap().eq([-1, 5]));
    let nothing = m.array("nothing").unwrap();
    assert_eq!((nothing.kind(), nothing.len(), nothing.values().next()), (Kind::U64, 0, None));
    let nested = m.array("nested").unwrap();
    let inner = nested.elements::<kadence::gguf::Array<'_>>().unwrap();
    let inner: Vec<Vec<i32>> = inner.map(|a| a.elements().unwrap().collect()).collect();
    assert_eq!(inner, [vec![1, 2], vec![], vec![3]]);
    assert_eq!(m.get("absent"), None);
    assert_eq!(m.len(), 21);
    let keys: Vec<_> = m.iter().map(|(key, _)| key).collect();
    assert_eq!(keys[..3], ["u8", "i8", "u16"]);
    assert_eq!(keys[20], "mixed");
}

#[test]
fn integers_and_floats_are_read_from_any_width() {
    let (_scratch, gguf) = written("widths");
    let m = gguf.metadata();
    assert_eq!([m.u32("u8").unwrap(), m.u32("u16").unwrap()], [200, 60000]);
    assert_eq!(m.required::<u64>("u64").unwrap(), u64::MAX);
    assert_eq!(m.required::<i64>("i8").unwrap(), -100);
    assert_eq!([m.f32("f32").unwrap(), m.f32("f64").unwrap()], [0.1, 0.1]);
    assert_eq!(m.optional::<u32>("u8").unwrap(), Some(200));
    assert_eq!(m.optional::<u32>("absent").unwrap(), None);
}

#[test]
fn a_wrong_request_names_key_wanted_and_found() {
    let (scratch, gguf) = written("wrong");
    let m = gguf.metadata();
    let file = scratch.path("a.gguf").display().to_string();
    let says = |error: Error, rest: &str| assert_eq!(error.to_string(), format!("{file}{rest}"));
    says(
        m.u32("i32").unwrap_err(),
        ": key \"i32\" should hold an integer from 0 to 4294967295, but holds i32 -2000000000",
    );
    says(m.str("u8").unwrap_err(), ": key \"u8\" should hold a string, but holds u8 200");
    says(
        m.optional::<bool>("name").unwrap_err(),
        ": key \"name\" should hold a bool, but holds string \"Kimi „K3“\"",
    );
    says(
        m.array("heads").unwrap().strings().err().unwrap(),
        ": key \"heads\" should hold a string, but holds u32 0 as element 0 of 3",
    );
    says(
        m.array("mixed").unwrap().u32s().err().unwrap(),
        ": key \"mixed\" should hold an integer from 0 to 4294967295, but holds i64 -1 as element 0 of 2",
    );
    says(
        m.f32("kimi-k3.absent").unwrap_err(),
        " lacks the key \"kimi-k3.absent\": it may be of another architecture or from an old converter",
    );
    assert!(matches!(m.f32("u8"), Err(Error::WrongType { wanted: "a floating-point number", .. })));
}

#[test]
fn tensors_come_back_with_their_bytes() {
    let (scratch, gguf) = written("tensors");
    assert_eq!(gguf.tensors().len(), 3);
    let size = std::fs::metadata(scratch.path("a.gguf")).unwrap().len();
    assert!(gguf.files().eq([(scratch.path("a.gguf").as_path(), size)]));
    for ((name, bytes), tensor) in data().iter().zip(gguf.tensors()) {
        assert_eq!(tensor.name(), *name);
        assert_eq!(gguf.data(&tensor), bytes);
        assert_eq!(gguf.tensor(name).unwrap().span(), tensor.span());
        assert_eq!(tensor.span().offset() % 32, 0);
        gguf.will_need(tensor.span()).unwrap();
    }
    let b = gguf.tensor("b.weight").unwrap();
    assert_eq!((b.format(), b.dims(), b.span().len()), (Format::Q8_0, &[64, 1, 2, 1][..], 136));
    assert_eq!(gguf.bytes(b.span().part(68, 68).unwrap()), &data()[1].1[68..]);
    let scale = gguf.tensor("scale").unwrap();
    assert_eq!((scale.dims(), scale.dims4()), (&[][..], [1; 4]));
    assert!(gguf.tensor("a").is_none());
}

#[test]
fn a_model_can_be_shared_between_threads() {
    fn check<T: Send + Sync + 'static>() {}
    check::<Gguf>();
    check::<Error>();
}

#[test]
fn alignment_decides_the_layout() {
    let scratch = Scratch::new("alignment");
    let mut aligned = header();
    aligned.set("general.alignment", 4096u32).unwrap();
    write(aligned, &scratch.path("a.gguf"));
    let gguf = Gguf::open(scratch.path("a.gguf")).unwrap();
    for ((_, bytes), tensor) in data().iter().zip(gguf.tensors()) {
        assert_eq!(tensor.span().offset() % 4096, 0);
        assert_eq!(gguf.data(&tensor), bytes);
    }
}

#[test]
fn a_copy_of_all_keys_is_the_same_file() {
    let (scratch, gguf) = written("copy");
    let mut copy = Writer::new();
    for (key, value) in gguf.metadata().iter() {
        copy.copy(key, value).unwrap();
    }
    for tensor in gguf.tensors() {
        copy.tensor(tensor.name(), tensor.format(), tensor.dims()).unwrap();
    }
    let mut out = copy.start(Vec::new()).unwrap();
    for tensor in gguf.tensors() {
        for piece in gguf.data(&tensor).chunks(7) {
            out.write(tensor.name(), piece).unwrap();
        }
    }
    assert!(out.finish().unwrap() == std::fs::read(scratch.path("a.gguf")).unwrap());
}

#[test]
fn the_writer_refuses_what_the_reader_would() {
    let mut w = Writer::new();
    w.set("key", 1u8).unwrap();
    let twice = w.set("key", 2u8);
    assert!(matches!(twice, Err(WriteError::Key { problem: KeyProblem::Duplicate, .. })));
    assert!(matches!(w.set("", 1u8), Err(WriteError::Name { .. })));
    assert!(matches!(w.set(&"k".repeat(65536), 1u8), Err(WriteError::Name { .. })));
    assert!(matches!(w.set("general.alignment", 32u64), Err(WriteError::AlignmentKind(Kind::U64))));
    let odd = w.set("general.alignment", 48u32);
    assert!(matches!(odd, Err(WriteError::Key { problem: KeyProblem::Alignment(48), .. })));

    w.tensor("t", Format::F32, &[1]).unwrap();
    for (name, dims, problem) in [
        ("t", &[1][..], TensorProblem::Duplicate),
        ("five", &[1, 1, 1, 1, 1], TensorProblem::Dimensions(5)),
        ("zero", &[4, 0], TensorProblem::Empty),
        ("huge", &[1 << 62, 4], TensorProblem::TooLarge),
    ] {
        match w.tensor(name, Format::F32, dims) {
            Err(WriteError::Tensor { problem: found, .. }) => assert_eq!(found, problem),
            other => panic!("{name}: {other:?}"),
        }
    }
    assert!(matches!(w.tensor("", Format::F32, &[1]), Err(WriteError::Name { .. })));
    let message = w.tensor("q", Format::Q4_K, &[128]).unwrap_err().to_string();
    assert_eq!(
        message,
        "tensor \"q\" has rows of 128 elements, not a multiple of the 256 of a block of Q4_K"
    );
}

#[test]
fn the_bytes_have_to_come_in_order_and_number() {
    let start = || header().start(Vec::new()).unwrap();
    let message = |r: Result<(), WriteError>| r.unwrap_err().to_string();
    assert_eq!(
        message(start().write("b.weight", &[0])),
        "tensor \"b.weight\" was given bytes in the turn of \"a.weight\""
    );
    let mut file = start();
    file.write("a.weight", &[0; 20]).unwrap();
    assert_eq!(
        message(file.write("a.weight", &[0; 7])),
        "tensor \"a.weight\" was given 3 bytes more than it has"
    );
    assert_eq!(
        message(file.finish().map(|_| ())),
        "tensor \"a.weight\" lacks 4 bytes at the end of the file"
    );
}

#[test]
fn a_full_disk_is_told() {
    struct Full(usize);
    impl std::io::Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let write_all = |room| {
        let mut file = header().start(Full(room))?;
        data().iter().try_for_each(|(name, bytes)| file.write(name, bytes))?;
        file.finish().map(|full| room - full.0)
    };
    let size = write_all(1 << 20).unwrap();
    assert_eq!(write_all(size).unwrap(), size);
    for room in 0..size {
        assert!(matches!(write_all(room), Err(WriteError::Io(_))), "{room} of {size} bytes");
    }
}

#[test]
fn a_file_of_another_writer_is_read() {
    let gguf = Gguf::open("tests/data/tok-cross.gguf").unwrap();
    let m = gguf.metadata();
    assert_eq!((m.len(), gguf.tensors().len()), (10, 0));
    assert_eq!(m.str("general.architecture").unwrap(), "kimi-k3");
    assert_eq!(m.u32("tokenizer.ggml.bos_token_id").unwrap(), 869);
    let merges = m.array("tokenizer.ggml.merges").unwrap();
    assert_eq!(merges.len(), 613);
    assert!(merges.strings().unwrap().take(3).eq(["H e", "e l", "l l"]));
    let types = m.array("tokenizer.ggml.token_type").unwrap();
    assert_eq!((types.kind(), types.u32s().unwrap().count()), (Kind::I32, 884));
}
