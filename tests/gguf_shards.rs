//! A split model opens from any of its shards, and a wrong set of shards is refused with the name of the wrong one.

use std::path::{Path, PathBuf};

use kadence::gguf::{Error, Gguf, ShardProblem, TensorProblem, Writer};
use kadence_quant::Format;

#[path = "gguf/scratch.rs"]
mod scratch;
use scratch::Scratch;

/// What a shard says and holds.
#[derive(Clone)]
struct Shard {
    no: u16,
    count: u16,
    /// Of all shards.
    n_tensors: i32,
    tensors: Vec<String>,
    keys: Vec<(&'static str, &'static str)>,
}

/// Three shards: the first holds the metadata and no tensor, the others hold two tensors and one.
fn model() -> [Shard; 3] {
    let shard = |no, tensors: &[&str]| Shard {
        no,
        count: 3,
        n_tensors: 3,
        tensors: tensors.iter().map(|t| t.to_string()).collect(),
        keys: vec![],
    };
    let mut shards = [shard(0, &[]), shard(1, &["a", "b"]), shard(2, &["c"])];
    shards[0].keys = vec![("general.architecture", "kimi-k3"), ("general.name", "split")];
    shards
}

fn write(shard: &Shard, path: &Path) {
    let mut header = Writer::new();
    for (key, value) in &shard.keys {
        header.set(key, *value).unwrap();
    }
    header.set("split.no", shard.no).unwrap();
    header.set("split.count", shard.count).unwrap();
    header.set("split.tensors.count", shard.n_tensors).unwrap();
    for name in &shard.tensors {
        header.tensor(name, Format::F32, &[16]).unwrap();
    }
    let mut file = header.start(std::fs::File::create(path).unwrap()).unwrap();
    for name in &shard.tensors {
        file.write(name, &[name.as_bytes()[0]; 64]).unwrap();
    }
    file.finish().unwrap();
}

fn path(scratch: &Scratch, no: usize) -> PathBuf {
    scratch.path(&format!("m-0000{no}-of-00003.gguf"))
}

fn write_all(scratch: &Scratch, shards: &[Shard]) {
    for (no, shard) in (1..).zip(shards) {
        write(shard, &path(scratch, no));
    }
}

/// Opens a model from each of its shards, and returns the file and the problem that each time were named.
fn refused(test: &str, change: impl FnOnce(&mut [Shard; 3])) -> (usize, ShardProblem) {
    let scratch = Scratch::new(test);
    let mut shards = model();
    change(&mut shards);
    write_all(&scratch, &shards);
    let open = |no| match Gguf::open(path(&scratch, no)) {
        Err(Error::Shard { file, problem }) => {
            let wrong = (1..=3).find(|no| path(&scratch, *no) == file).expect("one of the three");
            (wrong, problem)
        }
        other => panic!("from {no}: {other:?}"),
    };
    let (file, problem) = open(1);
    assert_eq!(open(2), (file, problem.clone()));
    assert_eq!(open(3), (file, problem.clone()));
    (file, problem)
}

#[test]
fn any_shard_opens_the_whole_model() {
    let scratch = Scratch::new("whole");
    write_all(&scratch, &model());
    for given in 1..=3 {
        let gguf = Gguf::open(path(&scratch, given)).unwrap();
        let files: Vec<_> = gguf.files().map(|(path, _)| path.to_path_buf()).collect();
        assert_eq!(files, [1, 2, 3].map(|no| path(&scratch, no)));
        assert_eq!(gguf.metadata().str("general.name").unwrap(), "split");
        let tensors: Vec<_> = gguf.tensors().map(|t| (t.name().to_string(), t.span().shard())).collect();
        assert_eq!(tensors, [("a".into(), 1), ("b".into(), 1), ("c".into(), 2)]);
        for tensor in gguf.tensors() {
            assert_eq!(gguf.data(&gguf.tensor(tensor.name()).unwrap()), [tensor.name().as_bytes()[0]; 64]);
        }
        gguf.check_unchanged().unwrap();
    }
}

#[test]
fn a_single_file_may_state_a_split_of_one() {
    let scratch = Scratch::new("one");
    let shard = Shard { no: 0, count: 1, n_tensors: 1, tensors: vec!["a".into()], keys: vec![] };
    write(&shard, &scratch.path("any name.gguf"));
    assert_eq!(Gguf::open(scratch.path("any name.gguf")).unwrap().tensors().len(), 1);
}

#[test]
fn a_missing_shard_is_named() {
    for missing in 1..=3 {
        let scratch = Scratch::new(&format!("missing{missing}"));
        write_all(&scratch, &model());
        std::fs::remove_file(path(&scratch, missing)).unwrap();
        for given in (1..=3).filter(|no| *no != missing) {
            let error = Gguf::open(path(&scratch, given)).unwrap_err();
            let wrong = path(&scratch, missing);
            assert_eq!(
                error.to_string(),
                format!(
                    "{} is missing: it is shard {missing} of 3 of the model, put it beside the others",
                    wrong.display()
                )
            );
        }
    }
}

#[test]
fn a_truncated_shard_is_named() {
    let scratch = Scratch::new("truncated");
    write_all(&scratch, &model());
    let third = path(&scratch, 3);
    let size = std::fs::metadata(&third).unwrap().len();
    let file = std::fs::File::options().write(true).open(&third).unwrap();
    file.set_len(size - 1).unwrap();
    let error = Gguf::open(path(&scratch, 1)).unwrap_err();
    let Error::Tensor { file: named, problem, .. } = &error else { panic!("{error:?}") };
    assert_eq!((named, problem), (&third, &TensorProblem::PastEnd { end: size, size: size - 1 }));
    for header in [100, 20, 3, 0] {
        file.set_len(header).unwrap();
        let error = Gguf::open(path(&scratch, 1)).unwrap_err();
        assert!(matches!(&error, Error::Truncated { file, .. } if *file == third), "{error:?}");
    }
}

#[test]
fn exchanged_shards_are_named() {
    // The file of the second shard lies at the place of the third and the other way round.
    let scratch = Scratch::new("exchanged");
    write_all(&scratch, &model());
    std::fs::rename(path(&scratch, 3), scratch.path("other")).unwrap();
    std::fs::rename(path(&scratch, 2), path(&scratch, 3)).unwrap();
    std::fs::rename(scratch.path("other"), path(&scratch, 2)).unwrap();
    for (given, wrong, no) in [(1, 2, 3), (2, 2, 3), (3, 3, 2)] {
        let error = Gguf::open(path(&scratch, given)).unwrap_err().to_string();
        let says = format!("says it is shard {no} of 3, its name says {wrong} of 3: restore its name");
        assert_eq!(error, format!("{} {says}", path(&scratch, wrong).display()));
    }
}

#[test]
fn a_renamed_shard_is_told_to_restore_its_name() {
    let scratch = Scratch::new("renamed");
    write(&model()[0], &scratch.path("model.gguf"));
    let error = Gguf::open(scratch.path("model.gguf")).unwrap_err().to_string();
    assert!(error.ends_with("its name does not end in -00001-of-00003.gguf: restore its name"), "{error}");

    write(&model()[0], &scratch.path("m-00001-of-00002.gguf"));
    let error = Gguf::open(scratch.path("m-00001-of-00002.gguf")).unwrap_err();
    let problem = ShardProblem::Misnamed { no: 1, count: 3, named_no: 1, named_count: 2 };
    assert!(matches!(&error, Error::Shard { problem: p, .. } if *p == problem), "{error:?}");
}

#[test]
fn a_shard_of_another_model_is_named() {
    let (file, problem) = refused("foreign-key", |shards| {
        shards[2].keys = vec![("general.name", "another")];
    });
    let foreign = |problem, wanted| match problem {
        ShardProblem::Foreign { key, .. } => assert_eq!(&*key, wanted),
        other => panic!("{other:?}"),
    };
    assert_eq!(file, 3);
    foreign(problem, "general.name");

    let (file, problem) = refused("foreign-count", |shards| shards[1].n_tensors = 4);
    assert_eq!(file, 2);
    foreign(problem, "split.tensors.count");

    let (file, problem) = refused("foreign-tensor", |shards| shards[2].tensors = vec!["a".into()]);
    assert_eq!(file, 3);
    assert!(matches!(problem, ShardProblem::SharedTensor { tensor, .. } if &*tensor == "a"));
}

#[test]
fn a_wrong_number_of_tensors_is_told() {
    let (_, problem) = refused("number", |shards| shards[2].tensors.push("d".into()));
    assert_eq!(problem, ShardProblem::Tensors { claimed: 3, found: 4 });
}

#[test]
fn a_file_without_split_keys_is_no_shard() {
    let scratch = Scratch::new("keys");
    write_all(&scratch, &model());
    let whole = Writer::new().start(Vec::new()).unwrap().finish().unwrap();
    std::fs::write(path(&scratch, 2), whole).unwrap();
    let error = Gguf::open(path(&scratch, 1)).unwrap_err();
    let missing = matches!(&error, Error::MissingKey { file, key } if *file == path(&scratch, 2) && &**key == "split.count");
    assert!(missing, "{error:?}");
}
