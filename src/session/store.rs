//! The sessions of this machine's users: where they are, what there is, and what can be done with one that isn't open.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use kadence_quant::Format;
use kadence_quant::state::Codec;
use rustix::fs::FlockOperation;

use crate::model::{Config, Model, ROW_BLOCK, Window};

use super::digest::{Chain, Fingerprint};
use super::disk::Disk;
use super::head::{Checkpoint, Found, HEAD, Head};
use super::live::Session;
use super::open::{Files, names, share};
use super::row_log::SegmentName;
use super::token_log::Contents;
use super::{Counts, Error};

/// What a user may take, and what stays free.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Sessions of a user.
    pub sessions: usize,
    /// Bytes of all sessions of a user.
    pub bytes: u64,
    /// Bytes of the checkpoints of a session.
    pub checkpoints: u64,
    /// Bytes of checkpoints that a session keeps in memory until they are saved.
    pub pending: u64,
    /// Bytes of the disk that are to stay free.
    pub reserve: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            sessions: 1000,
            bytes: 64 << 30,
            checkpoints: 1 << 30,
            pending: 256 << 20,
            reserve: 256 << 20,
        }
    }
}

/// How new sessions are kept.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How states are stored.
    pub codec: Codec,
    /// How MLA rows are kept: F16, Q8_0 or F32.
    pub rows: Format,
    /// How far sessions look back: all the way without a window.
    pub window: Option<Window>,
    /// Tokens from one checkpoint to the next within a long text.
    pub spacing: usize,
    /// What a user may take.
    pub limits: Limits,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            codec: Codec::Q8,
            rows: Format::F16,
            window: None,
            spacing: 1024,
            limits: Limits::default(),
        }
    }
}

/// A model, and what binds sessions to it.
#[derive(Clone, Debug)]
pub struct Bound(Arc<(Arc<Model>, Fingerprint)>);

impl Bound {
    /// Takes the fingerprint of a model.
    pub fn new(model: Arc<Model>) -> Bound {
        let fingerprint = Fingerprint::of(model.file());
        Bound(Arc::new((model, fingerprint)))
    }

    /// Its fingerprint.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.0.1
    }

    /// Its sizes.
    pub fn config(&self) -> &Config {
        self.0.0.config()
    }
}

/// What there is to know of a session without opening it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Its name.
    pub name: String,
    /// All tokens.
    pub tokens: usize,
    /// Turns that have ended.
    pub turns: usize,
    /// Bytes on disk; what it shares with others counts for each.
    pub bytes: u64,
    /// Seconds since 1970.
    pub created: u64,
    /// Seconds since 1970.
    pub updated: u64,
    /// Tokens of the stored states.
    pub checkpoints: Vec<usize>,
    /// The model that it is held with.
    pub fingerprint: Fingerprint,
}

/// The tokens of a turn.
pub type Turn = std::ops::Range<usize>;

/// A head that was read, and when its file was changed.
type Read = (SystemTime, Option<Arc<Head>>);

#[derive(Debug)]
pub(super) struct Inner {
    root: PathBuf,
    pub settings: Settings,
    pub disk: Arc<dyn Disk>,
    pub counts: Counts,
    heads: Mutex<HashMap<PathBuf, Read>>,
}

/// The sessions below a folder.
#[derive(Clone, Debug)]
pub struct Store(pub(super) Arc<Inner>);

impl Store {
    /// The store in a folder, which is created when it is first needed.
    pub fn new(root: &Path, settings: Settings, disk: Arc<dyn Disk>) -> Store {
        let root = root.join("sessions");
        Store(Arc::new(Inner { root, settings, disk, counts: Counts::default(), heads: Mutex::default() }))
    }

    /// How new sessions are kept.
    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// How often sessions started from where.
    pub fn counts(&self) -> &Counts {
        &self.0.counts
    }

    /// The folder of a session.
    pub(super) fn folder(&self, user: u32, name: &str) -> Result<PathBuf, Error> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        if !first || name.len() > 64 || !name.bytes().all(plain) {
            return Err(Error::Name(name.into()));
        }
        Ok(self.0.folder(user, name))
    }

    fn existing(&self, user: u32, name: &str) -> Result<PathBuf, Error> {
        let folder = self.folder(user, name)?;
        if folder.is_dir() { Ok(folder) } else { Err(Error::Missing(name.into())) }
    }

    /// The sessions of a user, the one used last first.
    pub fn list(&self, user: u32) -> Vec<Summary> {
        let mut all: Vec<Summary> = self.0.heads(user).into_iter().map(|(_, head)| summary(&head)).collect();
        all.sort_by(|a, b| b.updated.cmp(&a.updated).then_with(|| a.name.cmp(&b.name)));
        all
    }

    /// A session, its tokens and its turns (the last of which may not have ended).
    ///
    /// # Errors
    /// If there is none, or it is damaged.
    pub fn show(&self, user: u32, name: &str) -> Result<(Summary, Vec<u32>, Vec<Turn>), Error> {
        let (head, log) = self.sound(&self.existing(user, name)?, user, name)?;
        let ends = log
            .ends
            .iter()
            .copied()
            .chain((log.ends.last() != Some(&log.tokens.len())).then_some(log.tokens.len()));
        let mut at = 0;
        let turns = ends.map(|end| std::mem::replace(&mut at, end)..end).filter(|t| !t.is_empty()).collect();
        Ok((summary(&head), log.tokens, turns))
    }

    /// Head and tokens of a session that is whole.
    pub(super) fn sound(&self, folder: &Path, user: u32, name: &str) -> Result<(Head, Contents), Error> {
        let files = Files::read(folder, user, name)?;
        let readable = files.readable();
        match files {
            Files { head: Some(head), log: Some((_, log)), tokens, .. } if readable == tokens => {
                Ok((head, log))
            }
            Files { head: None, log: None, .. } => Err(Error::Missing(name.into())),
            Files { tokens, .. } => Err(Error::TokensDamaged { session: name.into(), readable, of: tokens }),
        }
    }

    /// Begins a session with what another one had at `tokens` tokens (all, without). Files are shared.
    ///
    /// # Errors
    /// If there is no such session or there is one of the new name, at a limit, or if the disk refuses.
    pub fn fork(&self, user: u32, from: &str, to: &str, tokens: Option<usize>) -> Result<Summary, Error> {
        let folder = self.existing(user, from)?;
        let (head, log) = self.sound(&folder, user, from)?;
        self.check_count(user)?;
        self.create(user, to, |new| {
            let count = position(from, tokens, log.tokens.len())?;
            let (log, checkpoints) = cut(&head, log, count);
            let mut serial = 0;
            let shared = share(&*self.0.disk, &folder, &head.segments, &checkpoints, new, &mut serial);
            let (segments, checkpoints) = shared.map_err(|e| Error::io("fork", new, e))?;
            let head = Head { session: to.into(), created: now(), serial, ..head };
            self.write(new, head, log, segments, checkpoints)
        })
    }

    /// Goes back to where a session that isn't open had `tokens` tokens. Also of use for one of which a part of the
    /// tokens is lost.
    ///
    /// # Errors
    /// If there is none, it is in use, it never had so many or can't be read so far, or if the disk refuses.
    pub fn rewind(&self, user: u32, name: &str, tokens: usize) -> Result<Summary, Error> {
        let folder = self.existing(user, name)?;
        let _lock = lock(&folder, name)?;
        let files = Files::read(&folder, user, name)?;
        let readable = files.readable();
        let Files { head: Some(head), log: Some((_, log)), .. } = files else {
            return Err(Error::TokensDamaged { session: name.into(), readable, of: files.tokens });
        };
        let count = position(name, Some(tokens), readable)?;
        let before: Vec<String> = head.files().map(str::to_owned).collect();
        let (log, checkpoints) = cut(&head, log, count);
        let segments = head.segments.clone();
        let summary = self.write(&folder, head, log, segments, checkpoints)?;
        let Found::Head(after) = Head::read(&folder, user, name)? else { return Ok(summary) };
        let gone = before.iter().filter(|f| !after.files().any(|n| n == f.as_str()));
        gone.for_each(|f| _ = self.0.disk.remove(&folder.join(f)));
        Ok(summary)
    }

    /// Writes tokens and head of a session that isn't open, whose other files are there.
    pub(super) fn write(
        &self,
        folder: &Path,
        head: Head,
        mut log: Contents,
        segments: Vec<SegmentName>,
        checkpoints: Vec<Checkpoint>,
    ) -> Result<Summary, Error> {
        let count = log.tokens.len();
        let bytes = log.cut(count);
        let name = format!("tokens-{}.log", head.serial + 1);
        let whole = count / ROW_BLOCK;
        let kept = |mut s: SegmentName| {
            let blocks = s.blocks.min(whole.saturating_sub(s.first));
            s.open &= blocks == s.blocks;
            s.blocks = blocks;
            (blocks > 0).then_some(s)
        };
        let size = |f: &str| std::fs::metadata(folder.join(f)).map_or(0, |m| m.len());
        let segments: Vec<_> = segments.into_iter().filter_map(kept).collect();
        let files = segments.iter().map(|s| &s.file).chain(checkpoints.iter().map(|c| &c.file));
        let head = Head {
            bytes: files.map(|f| size(f)).sum::<u64>() + bytes.len() as u64,
            updated: now(),
            tokens: count,
            turns: log.ends.len(),
            read: head.read.min(count),
            chain: Chain::new(&log.tokens).at(&log.tokens, count),
            log: (name.clone(), log.tail.bytes),
            segments,
            checkpoints,
            serial: head.serial + 1,
            ..head
        };
        let disk = &*self.0.disk;
        let written = disk
            .write_new(&folder.join(name), &bytes)
            .and_then(|()| disk.sync_folder(folder))
            .and_then(|()| head.write(disk, folder));
        written.map_err(|e| Error::io("save", folder, e))?;
        Ok(summary(&head))
    }

    /// Creates the folder of a session, and returns when its name, and those of the folders above, are on the disk.
    pub(super) fn make(&self, folder: &Path) -> Result<(), Error> {
        let disk = &self.0.disk;
        let above = folder
            .ancestors()
            .skip(1)
            .take_while(|f| f.starts_with(&self.0.root))
            .chain(self.0.root.parent());
        let made =
            disk.make_folder(folder).and_then(|()| above.into_iter().try_for_each(|f| disk.sync_folder(f)));
        made.map_err(|e| Error::io("create it", folder, e))
    }

    /// Creates the folder of a session and fills it; removes it again if that fails.
    pub(super) fn create<T>(
        &self,
        user: u32,
        name: &str,
        fill: impl FnOnce(&Path) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let folder = self.folder(user, name)?;
        if folder.exists() {
            return Err(Error::Exists(name.into()));
        }
        self.make(&folder)?;
        let filled = lock(&folder, name).and_then(|_lock| fill(&folder));
        filled.inspect_err(|_| _ = std::fs::remove_dir_all(&folder))
    }

    /// Deletes a session and all that is on disk of it.
    ///
    /// # Errors
    /// If there is none, it is in use, or the system refuses.
    pub fn delete(&self, user: u32, name: &str) -> Result<(), Error> {
        let folder = self.existing(user, name)?;
        let _lock = lock(&folder, name)?;
        // The head first: without it nothing else exists, whatever happens next.
        match self.0.disk.remove(&folder.join(HEAD)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io("delete", &folder, e));
            }
            _ => {}
        }
        std::fs::remove_dir_all(&folder).map_err(|e| Error::io("delete", &folder, e))
    }

    /// Whether the disk has room for more.
    ///
    /// # Errors
    /// [`Error::Full`] if too little is free.
    pub fn check_space(&self) -> Result<(), Error> {
        self.0.check_space(&self.0.root)
    }

    /// Whether a user may have one more session.
    pub(super) fn check_count(&self, user: u32) -> Result<(), Error> {
        let limit = self.0.settings.limits.sessions;
        let count = names(&self.0.root.join(user.to_string())).count();
        if count < limit { Ok(()) } else { Err(Error::Limit { what: "sessions", limit: limit as u64 }) }
    }
}

impl Inner {
    /// The folder of all sessions.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether the disk of this folder has room for more.
    pub fn check_space(&self, folder: &Path) -> Result<(), Error> {
        const MB: u64 = 1_000_000;
        let reserve = self.settings.limits.reserve;
        let free = self.disk.free(folder).map_err(|e| Error::io("save", folder, e))?;
        if free < reserve {
            let path = folder.to_owned();
            return Err(Error::Full { path, free: free / MB, reserve: reserve.div_ceil(MB) });
        }
        Ok(())
    }

    pub fn folder(&self, user: u32, name: &str) -> PathBuf {
        self.root.join(user.to_string()).join(name)
    }

    /// The sound heads of a user's sessions, with their folders. Those that were read before and haven't changed
    /// aren't read again.
    fn heads(&self, user: u32) -> Vec<(PathBuf, Arc<Head>)> {
        let root = self.root.join(user.to_string());
        let mut known = self.heads.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Vec::new();
        for name in names(&root) {
            let folder = root.join(&name);
            let Ok(changed) = std::fs::metadata(folder.join(HEAD)).and_then(|m| m.modified()) else {
                continue;
            };
            let entry = known.entry(folder.clone()).or_insert((SystemTime::UNIX_EPOCH, None));
            if entry.0 != changed {
                let head = match Head::read(&folder, user, &name) {
                    Ok(Found::Head(head)) => Some(Arc::from(head)),
                    _ => None,
                };
                *entry = (changed, head);
            }
            all.extend(entry.1.clone().map(|head| (folder, head)));
        }
        all
    }

    /// Bytes of the other sessions of a user.
    pub fn bytes_of_others(&self, user: u32, name: &str) -> u64 {
        self.heads(user).iter().filter(|(_, h)| h.session != name).map(|(_, h)| h.bytes).sum()
    }

    /// The deepest checkpoint among a user's other sessions that has read what `session` is to read, but not all of it:
    /// at least one token is left to say what follows.
    pub fn prefix(&self, session: &Session) -> Option<((PathBuf, Head), Checkpoint)> {
        let matches = |head: &Head| {
            head.session != session.name
                && head.fingerprint == *session.bound.fingerprint()
                && head.row_format() == Some(session.format)
                && head.window() == session.window
        };
        let fits = |c: &Checkpoint| {
            c.tokens < session.tokens.len() && session.chain.at(&session.tokens, c.tokens) == c.chain
        };
        let heads = self.heads(session.user);
        let candidates = heads.iter().filter(|(_, head)| matches(head)).flat_map(|entry| {
            entry.1.checkpoints.iter().filter(|c| fits(c)).map(move |checkpoint| (entry, checkpoint))
        });
        let (entry, checkpoint) = candidates.max_by_key(|(_, c)| c.tokens)?;
        Some(((entry.0.clone(), Head::clone(&entry.1)), checkpoint.clone()))
    }
}

fn summary(head: &Head) -> Summary {
    Summary {
        name: head.session.clone(),
        tokens: head.tokens,
        turns: head.turns,
        bytes: head.bytes,
        created: head.created,
        updated: head.updated,
        checkpoints: head.checkpoints.iter().map(|c| c.tokens).collect(),
        fingerprint: head.fingerprint,
    }
}

/// Checks a place to go back to.
fn position(session: &str, wanted: Option<usize>, tokens: usize) -> Result<usize, Error> {
    let wanted = wanted.unwrap_or(tokens);
    if wanted <= tokens {
        Ok(wanted)
    } else {
        Err(Error::Position { session: session.into(), tokens, wanted })
    }
}

/// Tokens and checkpoints of a session cut to `count` tokens.
fn cut(head: &Head, mut log: Contents, count: usize) -> (Contents, Vec<Checkpoint>) {
    log.cut(count);
    if count > 0 && log.ends.last() != Some(&count) {
        log.ends.push(count);
    }
    (log, head.checkpoints.iter().filter(|c| c.tokens <= count).cloned().collect())
}

/// Locks a session for this process.
pub(super) fn lock(folder: &Path, name: &str) -> Result<File, Error> {
    let path = folder.join("lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(|e| Error::io("open", &path, e))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::InUse(name.into())),
        Err(e) => Err(Error::io("lock", &path, e.into())),
    }
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |t| t.as_secs())
}
