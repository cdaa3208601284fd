//! "The last acknowledged turn is there": whichever single operation on the disk fails, is cut short, or is the last before
//! a crash, what was saved before is there, byte for byte; and when the disk works again, so does saving.

mod session;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use kadence::session::{Codec, Disk, RealDisk, Reason, Store};
use session::{
    Folder, Runner, USER, cold, difference, read, runner, settings, store, store_on, tokens, turn,
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The operation fails once.
    Refuse(ErrorKind),
    /// A write writes half of its bytes, and then the disk is full. Any other operation fails.
    Short,
    /// The machine stops before the operation; what wasn't synced is lost.
    CrashBefore,
    /// The machine stops after it.
    CrashAfter,
}

#[derive(Debug, Default)]
struct Memory {
    operations: usize,
    crashed: bool,
    /// Files that are written to, by inode: where they are, and how much of them is on the disk.
    open: HashMap<u64, (PathBuf, u64)>,
    /// Files whose names aren't on the disk yet, and what had the name before.
    names: Vec<(PathBuf, Option<Vec<u8>>)>,
}

/// A disk that fails at one operation.
#[derive(Debug)]
struct FaultyDisk {
    at: usize,
    fault: Fault,
    memory: Mutex<Memory>,
}

impl FaultyDisk {
    fn new(at: usize, fault: Fault) -> FaultyDisk {
        FaultyDisk { at, fault, memory: Mutex::default() }
    }

    fn reached(&self) -> bool {
        self.memory.lock().unwrap().operations >= self.at
    }

    fn operate<T>(&self, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let now = {
            let mut memory = self.memory.lock().unwrap();
            memory.operations += 1;
            if memory.crashed {
                return Err(ErrorKind::BrokenPipe.into());
            }
            memory.operations == self.at
        };
        match self.fault {
            _ if !now => act(),
            Fault::Refuse(kind) => Err(kind.into()),
            Fault::Short => Err(ErrorKind::StorageFull.into()),
            Fault::CrashBefore => Err(self.crash()),
            Fault::CrashAfter => {
                act()?;
                Err(self.crash())
            }
        }
    }

    /// Takes back what was not synced.
    fn crash(&self) -> io::Error {
        let mut memory = self.memory.lock().unwrap();
        memory.crashed = true;
        for (path, len) in memory.open.values() {
            if let Ok(file) = File::options().write(true).open(path)
                && file.metadata().unwrap().len() > *len
            {
                file.set_len(*len).unwrap();
            }
        }
        for (path, before) in memory.names.drain(..).rev() {
            match before {
                Some(bytes) => std::fs::write(path, bytes).unwrap(),
                None => _ = std::fs::remove_file(path),
            }
        }
        ErrorKind::BrokenPipe.into()
    }

    fn opened(&self, path: &Path, file: &File, synced: u64) {
        self.memory.lock().unwrap().open.insert(file.metadata().unwrap().ino(), (path.into(), synced));
    }

    fn named(&self, path: &Path, before: Option<Vec<u8>>) {
        self.memory.lock().unwrap().names.push((path.into(), before));
    }
}

impl Disk for FaultyDisk {
    fn create(&self, path: &Path) -> io::Result<File> {
        self.operate(|| {
            let file = RealDisk.create(path)?;
            self.opened(path, &file, 0);
            self.named(path, None);
            Ok(file)
        })
    }

    fn extend(&self, path: &Path, len: u64) -> io::Result<File> {
        self.operate(|| {
            let file = RealDisk.extend(path, len)?;
            self.opened(path, &file, len);
            Ok(file)
        })
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<usize> {
        let last = self.memory.lock().unwrap().operations + 1 == self.at;
        if last && self.fault == Fault::Short && bytes.len() > 1 {
            self.memory.lock().unwrap().operations += 1;
            let written = RealDisk.write(file, &bytes[..bytes.len() / 2]);
            // The next write finds the disk full.
            return written.and_then(|_| Err(ErrorKind::StorageFull.into()));
        }
        self.operate(|| RealDisk.write(file, bytes))
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.operate(|| {
            RealDisk.sync(file)?;
            let metadata = file.metadata()?;
            if let Some(open) = self.memory.lock().unwrap().open.get_mut(&metadata.ino()) {
                open.1 = metadata.len();
            }
            Ok(())
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.operate(|| {
            let before = std::fs::read(to).ok();
            RealDisk.rename(from, to)?;
            let mut memory = self.memory.lock().unwrap();
            memory.names.retain(|(path, _)| path != from);
            memory.open.retain(|_, o| o.0 != to);
            memory.open.values_mut().filter(|o| o.0 == from).for_each(|o| o.0 = to.into());
            memory.names.push((to.into(), before));
            Ok(())
        })
    }

    fn share(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.operate(|| {
            RealDisk.share(from, to)?;
            self.named(to, None);
            Ok(())
        })
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.operate(|| {
            RealDisk.sync_folder(path)?;
            self.memory.lock().unwrap().names.clear();
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.operate(|| RealDisk.remove(path))
    }
}

const FAULTS: [Fault; 5] = [
    Fault::Refuse(ErrorKind::Other),
    Fault::Refuse(ErrorKind::StorageFull),
    Fault::Short,
    Fault::CrashBefore,
    Fault::CrashAfter,
];

/// Lets every operation of `act` fail in every way, one at a time. `act` is done on a session that was saved with `before`
/// and tells whether it was acknowledged; then the session must have `before` or `after`, and `after` if so.
fn each_fault(name: &str, before: &[u32], after: &[u32], act: impl Fn(&mut Runner, &Store) -> bool) {
    let mut runner = runner("k3-s-f32");
    let settings = settings(Codec::Exact);
    let source = Folder::new(&format!("fault-{name}-source"));
    let mut session = store(&source, settings).open(USER, "a", &runner.bound).unwrap();
    before.chunks(70).for_each(|part| _ = turn(&mut runner, &mut session, part));
    drop(session);
    let want: HashMap<usize, Vec<f32>> =
        [before, after].map(|t| (t.len(), cold(&mut runner, &[t, &[9]].concat()))).into();
    let mut count = 0;
    for fault in FAULTS {
        for at in 1.. {
            let folder = Folder::new(&format!("fault-{name}"));
            std::fs::create_dir_all(folder.session("a")).unwrap();
            source.files("a").iter().for_each(|f| {
                _ = std::fs::copy(f, folder.session("a").join(f.file_name().unwrap())).unwrap()
            });
            let disk = Arc::new(FaultyDisk::new(at, fault));
            let acknowledged = act(&mut runner, &store_on(&folder, settings, disk.clone()));
            let what = format!("{name}: {fault:?} at operation {at}");
            let mut session = store(&folder, settings)
                .open(USER, "a", &runner.bound)
                .unwrap_or_else(|e| panic!("{what}: {e}"));
            let is = session.tokens()[..session.turn_ends().last().copied().unwrap_or(0)].to_vec();
            assert!(is == after || (!acknowledged && is == before), "{what}: {} tokens", is.len());
            assert_ne!(session.resumed().reason, Reason::Damaged, "{what}");
            session.say(&[9]).unwrap();
            let (logits, _) = read(&mut runner, &mut session);
            assert!(difference(&logits, &want[&is.len()]) < 1e-4, "{what}");
            session.end_turn();
            session.save().unwrap_or_else(|e| panic!("{what}: {e}"));
            if !disk.reached() {
                assert!(acknowledged, "{what}: nothing failed");
                break;
            }
            count += 1;
        }
    }
    println!("{name}: {count} faults");
    assert!(count > 25, "{count}");
}

#[test]
fn whatever_fails_while_a_turn_is_saved() {
    let (before, more) = (tokens(140, 1), tokens(90, 2));
    each_fault("turn", &before, &[&before[..], &more].concat(), |runner, store| {
        let Ok(mut session) = store.open(USER, "a", &runner.bound) else { return false };
        session.say(&more).unwrap();
        read(runner, &mut session);
        session.end_turn();
        if session.save().is_ok() {
            return true;
        }
        // The conversation goes on in memory, and the next save, if the disk works, saves all.
        session.save().is_ok()
    });
}

#[test]
fn whatever_fails_while_going_back() {
    let before = tokens(210, 1);
    each_fault("rewind", &before, &before[..140], |runner, store| {
        let Ok(mut session) = store.open(USER, "a", &runner.bound) else { return false };
        session.rewind(140).is_ok() || session.save().is_ok()
    });
    each_fault("rewind-closed", &before, &before[..140], |_, store| store.rewind(USER, "a", 140).is_ok());
}

#[test]
fn whatever_fails_while_forking_the_origin_is_whole() {
    let before = tokens(210, 1);
    each_fault("fork", &before, &before, |runner, store| {
        let forked = store.fork(USER, "a", "b", Some(140)).is_ok();
        if forked {
            assert_eq!(store.open(USER, "b", &runner.bound).unwrap().tokens(), &before[..140]);
        }
        true
    });
}
