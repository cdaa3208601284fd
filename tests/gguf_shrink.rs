//! A file that shrinks while it is mapped reads as zeros and is reported; other bus errors do what they did before.

use std::fs::{File, OpenOptions};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use kadence::gguf::{Change, Error, Gguf, Writer};
use kadence_quant::Format;

#[path = "gguf/scratch.rs"]
mod scratch;
use scratch::Scratch;

/// Bytes of each of the two tensors: many pages.
const LEN: usize = 1 << 20;

fn write(path: &Path) {
    let mut header = Writer::new();
    header.tensor("a", Format::F32, &[LEN as u64 / 4]).unwrap();
    header.tensor("b", Format::F32, &[LEN as u64 / 4]).unwrap();
    let mut file = header.start(File::create(path).unwrap()).unwrap();
    file.write("a", &vec![1; LEN]).unwrap();
    file.write("b", &vec![2; LEN]).unwrap();
    file.finish().unwrap();
}

fn shrink(path: &Path, size: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(size).unwrap();
}

fn is_damaged(result: Result<(), Error>, path: &Path) {
    assert!(matches!(&result, Err(Error::Damaged { file }) if file == path), "{result:?}");
}

#[test]
fn lost_pages_read_as_zeros_and_are_reported() {
    let scratch = Scratch::new("lost");
    let (one, two) = (scratch.path("one.gguf"), scratch.path("two.gguf"));
    write(&one);
    write(&two);
    let (lost, whole) = (Gguf::open(&one).unwrap(), Gguf::open(&two).unwrap());
    let b = lost.tensor("b").unwrap();
    shrink(&one, (LEN / 2) as u64);
    lost.check_undamaged().unwrap(); // nothing has been read of what is lost
    let data = lost.data(&b);
    let threads: Vec<_> = std::thread::scope(|s| {
        let count = |i| move || data[i * LEN / 4..][..LEN / 4].iter().filter(|v| **v != 0).count();
        let spawned: Vec<_> = (0..4).map(|i| s.spawn(count(i))).collect();
        spawned.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(threads, [0; 4]);
    is_damaged(lost.check_undamaged(), &one);
    is_damaged(lost.check_unchanged(), &one);
    assert_eq!(lost.data(&lost.tensor("a").unwrap())[..LEN / 4], vec![1; LEN / 4]);

    // The other model is as it was, and so is the same path once the file is restored and opened again.
    assert_eq!(whole.data(&whole.tensor("b").unwrap()), vec![2; LEN]);
    whole.check_unchanged().unwrap();
    drop(lost);
    write(&one);
    let again = Gguf::open(&one).unwrap();
    assert_eq!(again.data(&again.tensor("b").unwrap()), vec![2; LEN]);
    again.check_unchanged().unwrap();
}

#[test]
fn a_lost_header_is_no_danger() {
    let scratch = Scratch::new("header");
    let path = scratch.path("a.gguf");
    write(&path);
    let gguf = Gguf::open(&path).unwrap();
    shrink(&path, 0);
    assert!(gguf.tensor("a").is_none());
    assert_eq!(gguf.tensors().map(|t| t.name().replace('\0', "")).collect::<String>(), "");
    is_damaged(gguf.check_unchanged(), &path);
}

#[test]
fn changes_are_told_apart() {
    let scratch = Scratch::new("changes");
    let path = scratch.path("a.gguf");
    let change_by = |change: &dyn Fn()| {
        write(&path);
        let gguf = Gguf::open(&path).unwrap();
        gguf.check_unchanged().unwrap();
        change();
        gguf.check_unchanged().unwrap_err()
    };
    let size = {
        write(&path);
        std::fs::metadata(&path).unwrap().len()
    };
    let told = |error, wanted| match error {
        Error::Changed { file, change } => assert_eq!((file, change), (path.clone(), wanted)),
        other => panic!("{other:?}"),
    };
    told(change_by(&|| shrink(&path, size - 1)), Change::Size { was: size, is: size - 1 });
    told(
        change_by(&|| {
            write(&scratch.path("b.gguf"));
            std::fs::rename(scratch.path("b.gguf"), &path).unwrap();
        }),
        Change::Replaced,
    );
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
    told(change_by(&|| File::open(&path).unwrap().set_modified(later).unwrap()), Change::Modified);
    let gone = change_by(&|| std::fs::remove_file(&path).unwrap());
    assert!(gone.to_string().contains("cannot look at it again"), "{gone}");
}

#[test]
fn what_is_not_a_file_is_refused() {
    let scratch = Scratch::new("no-file");
    assert!(matches!(Gguf::open(scratch.path("")), Err(Error::NotAFile { .. })));
    assert!(matches!(Gguf::open(scratch.path("absent")), Err(Error::Io { action: "open it", .. })));
    let pipe = scratch.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert!(matches!(Gguf::open(&pipe), Err(Error::NotAFile { .. }))); // and does not wait
}

/// Runs this program again, as `foreign_bus_error` in the given way; returns how it ended.
fn end_of(way: &str) -> std::process::ExitStatus {
    let scratch = Scratch::new("foreign");
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["foreign_bus_error", "--exact", "--ignored"]);
    again.env("WAY", way).env("FILE", scratch.path("a.gguf"));
    again.output().unwrap().status
}

#[test]
fn bus_errors_elsewhere_go_where_they_went_before() {
    for way in ["untouched", "default", "ignored"] {
        assert_eq!(end_of(way).signal(), Some(libc::SIGBUS), "{way}");
    }
    assert_eq!(end_of("handler").code(), Some(42));
    assert_eq!(end_of("handler with information").code(), Some(43));
    assert_eq!(end_of("sent").signal(), Some(libc::SIGBUS));
    assert_eq!(end_of("sent but ignored").code(), Some(44));
}

/// Reads a lost page of a mapping that isn't ours, or is sent the signal.
#[test]
#[ignore = "ends its process: run by the test above"]
fn foreign_bus_error() {
    extern "C" fn plain(_: libc::c_int) {
        unsafe { libc::_exit(42) }
    }
    extern "C" fn with_information(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        unsafe { libc::_exit(if (*info).si_code > 0 { 43 } else { 1 }) }
    }
    let way = std::env::var("WAY").expect("how to go about it");
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    match way.as_str() {
        "ignored" | "sent but ignored" => action.sa_sigaction = libc::SIG_IGN,
        "handler" => action.sa_sigaction = plain as *const () as usize,
        "handler with information" => {
            action.sa_sigaction = with_information as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
        }
        _ => {}
    }
    if way != "untouched" {
        assert_eq!(unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) }, 0);
    }
    let no_core = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(rustix::process::Resource::Core, no_core).unwrap();
    let path = PathBuf::from(std::env::var_os("FILE").expect("a file to write"));
    write(&path);
    let _gguf = Gguf::open(&path).unwrap();
    if way.starts_with("sent") {
        unsafe { libc::raise(libc::SIGBUS) };
        unsafe { libc::_exit(44) };
    }
    let map = unsafe { memmap2::Mmap::map(&File::open(&path).unwrap()).unwrap() };
    shrink(&path, 0);
    std::process::exit(std::hint::black_box(map[LEN]).into());
}
