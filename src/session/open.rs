//! Opening a session, and starting it from the newest of its checkpoints that is sound.

use std::collections::HashSet;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use crate::gguf::WriteError;
use crate::model::{ROW_BLOCK, State, StoredRows, Window};

use super::digest::{Chain, Digest};
use super::head::{Checkpoint, Found, Head, StoredWindow, check_file_name};
use super::live::Session;
use super::row_log::{RowLog, SegmentName};
use super::snapshot::{self, Snapshot};
use super::store::{Bound, Inner, Store, lock, now};
use super::token_log::{Contents, Tail};
use super::{Disk, Error, Reason, Resumed};

/// What a folder holds, as far as it can be trusted.
pub(super) struct Files {
    /// None if there was no sound one.
    pub head: Option<Head>,
    /// The tokens, and the file's name.
    pub log: Option<(String, Contents)>,
    /// Tokens that there should be.
    pub tokens: usize,
    /// The chain of those there are.
    chain: Chain,
}

impl Files {
    /// Reads head and tokens. Where the head is damaged, the tokens tell what there is.
    pub fn read(folder: &Path, user: u32, session: &str) -> Result<Files, Error> {
        match Head::read(folder, user, session)? {
            Found::Nothing => Ok(Files::new(None, None, 0)),
            Found::Head(head) => {
                let ((name, bytes), head_tokens) = (&head.log, head.tokens);
                let mut log = Contents::read(&folder.join(name), *bytes).ok().map(|log| (name.clone(), log));
                if let Some((_, log)) = &mut log
                    && (log.tokens.len(), log.ends.len() + 1) == (head.tokens, head.turns)
                {
                    log.ends.push(head.tokens); // all that is damaged is the mark of the last turn's end
                }
                Ok(Files::new(Some(*head), log, head_tokens))
            }
            Found::Damaged => {
                let serial =
                    |name: &str| name.strip_prefix("tokens-")?.strip_suffix(".log")?.parse::<u64>().ok();
                let newest = names(folder).filter_map(|name| Some((serial(&name)?, name))).max();
                let log = newest
                    .and_then(|(_, n)| Some((n.clone(), Contents::read(&folder.join(n), u64::MAX).ok()?)));
                let tokens = log.as_ref().map_or(0, |(_, log)| log.tokens.len());
                if tokens == 0 {
                    let session = session.to_owned();
                    return Err(Error::TokensDamaged { session, readable: 0, of: 0 });
                }
                Ok(Files::new(None, log, tokens))
            }
        }
    }

    fn new(head: Option<Head>, log: Option<(String, Contents)>, tokens: usize) -> Files {
        let chain = log.as_ref().map_or_else(Chain::default, |(_, log)| Chain::new(&log.tokens));
        Files { head, log, tokens, chain }
    }

    /// Tokens at the start that are those that the head means.
    pub fn readable(&self) -> usize {
        let Some((_, log)) = &self.log else { return 0 };
        let Some(head) = &self.head else { return log.tokens.len() };
        let sound = |count: usize, digest: Digest| {
            count <= log.tokens.len() && self.chain.at(&log.tokens, count) == digest
        };
        if sound(head.tokens, head.chain) {
            return head.tokens;
        }
        // Records tell by themselves that they are whole; a checkpoint tells that they are this session's.
        let known = head.checkpoints.iter().rev().any(|c| sound(c.tokens, c.chain));
        if known { log.tokens.len().min(head.tokens) } else { 0 }
    }
}

/// The names in a folder.
pub(super) fn names(folder: &Path) -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().into_string().ok())
}

/// The binding of a state: another model, other rows or another window compute another one.
pub(super) fn binding(bound: &Bound, rows: u32, window: Option<Window>) -> Digest {
    let window = window.map_or([u64::MAX; 2], |w| [w.first as u64, w.last as u64]);
    let window: Vec<u8> = window.iter().flat_map(|w| w.to_le_bytes()).collect();
    Digest::of(&[bound.fingerprint().model.bytes(), &rows.to_le_bytes(), &window])
}

impl Store {
    /// Opens a session, or begins it if there is none of this name. Only one can have it open at a time.
    ///
    /// # Errors
    /// If it is in use or of another vocabulary, if its tokens are damaged, at a limit, or if the system refuses.
    pub fn open(&self, user: u32, name: &str, bound: &Bound) -> Result<Session, Error> {
        let folder = self.folder(user, name)?;
        let is_new = !folder.is_dir();
        if is_new {
            self.check_count(user)?;
            self.make(&folder)?;
        }
        let lock = lock(&folder, name)?;
        let files = Files::read(&folder, user, name)?;
        let readable = files.readable();
        if readable < files.tokens {
            return Err(Error::TokensDamaged { session: name.into(), readable, of: files.tokens });
        }
        let vocabulary = bound.fingerprint().vocabulary;
        if files.log.as_ref().is_some_and(|(_, log)| log.tail.vocabulary != vocabulary) {
            return Err(Error::Vocabulary(name.into()));
        }
        let mut session = Session::bare(self.0.clone(), bound, user, name, lock, &files);
        session.sweep(&files);
        session.wake(files);
        Ok(session)
    }
}

impl Session {
    /// A session that has read nothing yet, with the tokens and settings of its files.
    fn bare(store: Arc<Inner>, bound: &Bound, user: u32, name: &str, lock: File, files: &Files) -> Session {
        let settings = &store.settings;
        let head = files.head.as_ref();
        let known = |f: &kadence_quant::Format| State::row_formats(bound.config()).any(|g| g == *f);
        let format = head.and_then(Head::row_format).filter(known).unwrap_or(settings.rows);
        let window = head.map_or(settings.window, Head::window);
        let binding = binding(bound, format.id(), window);
        let state = State::new(bound.config(), format).with_window(window);
        let folder = store.folder(user, name);
        let rows = RowLog::new(&folder, binding, state.rows());
        let (tokens, ends) =
            files.log.as_ref().map(|(_, l)| (l.tokens.clone(), l.ends.clone())).unwrap_or_default();
        let start = || (String::new(), Tail::start(bound.fingerprint().vocabulary).0);
        let log = files.log.as_ref().map_or_else(start, |(name, log)| (name.clone(), log.tail));
        let serial =
            names(&folder).filter_map(|n| n.rsplit_once('.')?.0.rsplit_once('-')?.1.parse().ok()).max();
        Session {
            bound: bound.clone(),
            user,
            name: name.into(),
            _lock: lock,
            created: head.map_or_else(now, |h| h.created),
            serial: serial.unwrap_or(0).max(head.map_or(0, |h| h.serial)),
            binding,
            window,
            format,
            chain: files.chain.clone(),
            tokens,
            ends,
            log,
            state,
            rows,
            checkpoints: Vec::new(),
            pending: Vec::new(),
            unused: Vec::new(),
            rewrite: false,
            resumed: Resumed { reason: Reason::New, reused: 0, reread: 0 },
            folder,
            store,
        }
    }

    /// Removes what the head doesn't name: what an interrupted save has left.
    fn sweep(&mut self, files: &Files) {
        if files.head.is_none() && files.log.is_some() {
            return; // the head is damaged, and who knows what it named
        }
        let named: HashSet<&str> = files.head.iter().flat_map(Head::files).collect();
        for name in names(&self.folder) {
            if name == "head.new" || check_file_name(&name).is_ok() && !named.contains(&*name) {
                _ = self.store.disk.remove(&self.folder.join(name));
            }
        }
    }

    /// Starts from the files.
    fn wake(&mut self, files: Files) {
        let Some(head) = files.head else {
            if self.tokens.is_empty() {
                self.report(Reason::New, 0);
            } else {
                self.unused =
                    names(&self.folder).filter(|n| check_file_name(n).is_ok() && *n != self.log.0).collect();
                self.report(Reason::Damaged, self.tokens.len());
            }
            return;
        };
        let same = head.fingerprint == *self.bound.fingerprint()
            && head.row_format() == Some(self.format)
            && head.window == StoredWindow::of(self.window);
        if same {
            self.rows.open(&head.segments, &self.chain, self.tokens.len());
            let sound = |c: &Checkpoint| {
                (1..=self.tokens.len()).contains(&c.tokens)
                    && self.chain.at(&self.tokens, c.tokens) == c.chain
            };
            self.checkpoints = head.checkpoints.iter().filter(|c| sound(c)).cloned().collect();
        }
        let newest = head.checkpoints.last().map_or(0, |c| c.tokens);
        let damaged =
            self.start_from_kept() | (same && self.checkpoints.last().map_or(0, |c| c.tokens) < newest);
        let kept: Vec<String> =
            self.rows.names().into_iter().map(|s| s.file).chain([self.log.0.clone()]).collect();
        let states: Vec<&String> = self.checkpoints.iter().map(|c| &c.file).collect();
        let unused = head.files().filter(|f| !kept.iter().any(|k| k == f) && !states.iter().any(|s| s == f));
        self.unused.extend(unused.map(str::to_owned).collect::<Vec<_>>());
        let reread = head.read.saturating_sub(self.state.tokens());
        let reason = match reread {
            _ if !same => Reason::ModelChanged,
            _ if damaged => Reason::Damaged,
            0 => Reason::Resumed,
            _ => self.went_back(head.read),
        };
        self.report(reason, reread);
    }

    /// Starts from the newest kept state that is sound, or from nothing. Whether one on the way was damaged.
    pub(super) fn start_from_kept(&mut self) -> bool {
        let mut damaged = false;
        loop {
            let stored = self.checkpoints.last().map(|c| (c.tokens, c.chain));
            let pending = self.pending.last().map(|p| (p.label.tokens, p.label.chain));
            let from_memory = pending.map(|p| p.0) >= stored.map(|s| s.0);
            let Some((tokens, chain)) = (if from_memory { pending } else { stored }) else {
                self.unused.extend(self.rows.cut(0));
                self.state = self.new_state();
                return damaged;
            };
            let rows = self.rows_at(tokens);
            let has_rows = rows.is_some();
            let state = rows.and_then(|rows| {
                let label = self.label(tokens, chain);
                let head = self.bound.config().kda_head;
                if from_memory {
                    let file = in_memory(self.pending.last()?).ok()?;
                    snapshot::read(&descriptor_path(&file), label, head, rows, self.new_state())
                } else {
                    let path = self.folder.join(&self.checkpoints.last()?.file);
                    snapshot::read(&path, label, head, rows, self.new_state())
                }
            });
            if let Some(state) = state {
                self.state = state;
                self.unused.extend(self.rows.cut(tokens / ROW_BLOCK));
                return damaged;
            }
            damaged = true;
            if from_memory {
                self.pending.pop();
            } else if let Some(checkpoint) = self.checkpoints.pop() {
                if has_rows {
                    self.put_aside(&checkpoint.file);
                } else {
                    self.unused.push(checkpoint.file);
                }
            }
        }
    }

    fn new_state(&self) -> State {
        State::new(self.bound.config(), self.format).with_window(self.window)
    }

    /// The blocks of rows that a state at `tokens` looks back at; nothing if one of them is missing.
    fn rows_at(&self, tokens: usize) -> Option<Vec<Option<Arc<dyn StoredRows>>>> {
        let blocks = tokens / ROW_BLOCK;
        let mut rows = self.rows.blocks(blocks);
        if let Some(window) = self.window {
            let [first, recent] = window.blocks_before(blocks);
            rows[first.end..recent.start].fill(None);
            let seen = rows[..first.end].iter().chain(&rows[recent.start..]);
            return seen.clone().all(Option::is_some).then_some(rows);
        }
        rows.iter().all(Option::is_some).then_some(rows)
    }

    /// Renames a file that isn't what it was, so that it is never looked at again. One is kept, for whoever wants to know.
    pub(super) fn put_aside(&mut self, file: &str) {
        let disk = &self.store.disk;
        for old in names(&self.folder).filter(|n| n.starts_with("bad-")) {
            _ = disk.remove(&self.folder.join(old));
        }
        let aside = self.folder.join(format!("bad-{file}"));
        log::warn!("session {}: {file} is damaged, and is put aside as {}", self.name, aside.display());
        if disk.rename(&self.folder.join(file), &aside).is_err() {
            self.unused.push(file.into());
        }
    }

    /// Takes over a checkpoint of another session, which has read the same tokens up to it. Whether that went well.
    pub(super) fn take_over(&mut self, from: &(std::path::PathBuf, Head), checkpoint: &Checkpoint) -> bool {
        let (folder, head) = from;
        let disk = self.store.disk.clone();
        let shared = share(
            &*disk,
            folder,
            &head.segments,
            std::slice::from_ref(checkpoint),
            &self.folder,
            &mut self.serial,
        );
        let Ok((segments, checkpoints)) = shared else { return false };
        self.rows.adopt(&segments, &self.chain, checkpoint.tokens);
        self.unused.extend(segments.into_iter().map(|s| s.file));
        self.checkpoints = checkpoints;
        self.start_from_kept();
        let used: Vec<String> = self.rows.names().into_iter().map(|s| s.file).collect();
        self.unused.retain(|file| !used.contains(file));
        self.state.tokens() == checkpoint.tokens
    }
}

/// Gives checkpoints, and the rows that they look back at, to another folder under new names.
pub(super) fn share(
    disk: &dyn Disk,
    from: &Path,
    segments: &[SegmentName],
    checkpoints: &[Checkpoint],
    to: &Path,
    serial: &mut u64,
) -> std::io::Result<(Vec<SegmentName>, Vec<Checkpoint>)> {
    let end = checkpoints.iter().map(|c| c.tokens / ROW_BLOCK).max().unwrap_or(0);
    let (mut new_segments, mut new_checkpoints) = (Vec::new(), Vec::new());
    for segment in segments.iter().filter(|s| s.first < end) {
        *serial += 1;
        let file = format!("rows-{}-{serial}.log", segment.first * ROW_BLOCK);
        disk.share(&from.join(&segment.file), &to.join(&file))?;
        let blocks = segment.blocks.min(end - segment.first);
        new_segments.push(SegmentName { file, first: segment.first, blocks, open: false });
    }
    for checkpoint in checkpoints {
        *serial += 1;
        let file = format!("state-{}-{serial}.gguf", checkpoint.tokens);
        disk.share(&from.join(&checkpoint.file), &to.join(&file))?;
        new_checkpoints.push(Checkpoint { file, ..checkpoint.clone() });
    }
    Ok((new_segments, new_checkpoints))
}

/// A file without a name that holds a state.
fn in_memory(state: &Snapshot) -> Result<File, WriteError> {
    let file = rustix::fs::memfd_create("kadence-state", rustix::fs::MemfdFlags::CLOEXEC);
    let file = File::from(file.map_err(std::io::Error::from)?);
    state.write(&file)?;
    Ok(file)
}

fn descriptor_path(file: &File) -> std::path::PathBuf {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}
