//! `rows-<first token>-<serial>.log`: the MLA rows of a session in whole blocks of tokens, append-only, mapped.
//!
//! Each block is followed by a digest of the model, of all tokens up to its end, and of its bytes. It is compared
//! when the block is first looked at, so that waking a session costs nothing for the rows it has; a block that isn't
//! what it should be is as if it weren't there. A file holds up to [`SEGMENT`] blocks. Once another session has a
//! part in it, or a rewind went back into it, it is never written again.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use kadence_quant::Format;
use serde::{Deserialize, Serialize};

use crate::gguf::Mapping;
use crate::model::{ROW_BLOCK, Rows, StoredRows};

use super::digest::{Chain, Digest, rows_digest};
use super::disk::Disk;

/// Blocks of a file: 4096 tokens.
const SEGMENT: usize = 64;

/// A file of the log, as the head names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SegmentName {
    /// Its name.
    pub file: String,
    /// Its first block.
    pub first: usize,
    /// How many blocks count.
    pub blocks: usize,
    /// Whether it may be appended to.
    pub open: bool,
}

#[derive(Debug)]
struct Segment {
    name: SegmentName,
    map: Option<Arc<Mapping>>,
    blocks: Vec<Arc<MappedBlock>>,
    /// Written to since the last sync.
    dirty: bool,
}

/// The rows of a session on disk.
#[derive(Debug)]
pub(super) struct RowLog {
    folder: PathBuf,
    binding: Digest,
    format: Format,
    block_bytes: usize,
    segments: Vec<Segment>,
}

const UNKNOWN: u8 = 0;
const GOOD: u8 = 1;
const BAD: u8 = 2;

/// A block in a mapped file.
#[derive(Debug)]
struct MappedBlock {
    map: Arc<Mapping>,
    offset: usize,
    len: usize,
    binding: Digest,
    chain: Digest,
    format: Format,
    verdict: AtomicU8,
}

impl StoredRows for MappedBlock {
    fn bytes(&self) -> Option<&[u8]> {
        let all = self.map.bytes().get(self.offset..)?;
        let (bytes, digest) = all.get(..self.len + Digest::LEN)?.split_at(self.len);
        let mut verdict = self.verdict.load(Ordering::Acquire);
        if verdict == UNKNOWN {
            let want = rows_digest(&self.binding, &self.chain, self.format.id(), bytes);
            verdict = if want.bytes() == digest { GOOD } else { BAD };
            self.verdict.store(verdict, Ordering::Release);
        }
        (verdict == GOOD && !self.map.is_damaged()).then_some(bytes)
    }
}

impl RowLog {
    /// A log for rows like these of a session in `folder`, bound to the model and settings of `binding`.
    pub fn new(folder: &Path, binding: Digest, rows: &Rows) -> RowLog {
        let (format, block_bytes) = (rows.format(), rows.block_bytes());
        RowLog { folder: folder.into(), binding, format, block_bytes, segments: Vec::new() }
    }

    fn stride(&self) -> usize {
        self.block_bytes + Digest::LEN
    }

    /// Takes up the files that a head names, as far as they are there.
    pub fn open(&mut self, names: &[SegmentName], chain: &Chain, tokens: usize) {
        for name in names {
            let fits = (1..=SEGMENT).contains(&name.blocks)
                && name.first.checked_add(name.blocks).is_some_and(|end| end <= tokens / ROW_BLOCK)
                && self.end() <= name.first;
            if !fits || super::head::check_file_name(&name.file).is_err() {
                break;
            }
            let mut segment = Segment { name: name.clone(), map: None, blocks: Vec::new(), dirty: false };
            if self.map(&mut segment, chain, UNKNOWN).is_ok() {
                self.segments.push(segment);
            }
        }
    }

    /// Maps a segment's file anew, and gives its blocks their places. Blocks it had keep what is known of them.
    fn map(&self, segment: &mut Segment, chain: &Chain, verdict: u8) -> io::Result<()> {
        let map = Arc::new(Mapping::new(&File::open(self.folder.join(&segment.name.file))?)?);
        let known: Vec<u8> = segment.blocks.iter().map(|b| b.verdict.load(Ordering::Acquire)).collect();
        segment.blocks = (0..segment.name.blocks)
            .map(|i| {
                Arc::new(MappedBlock {
                    map: map.clone(),
                    offset: i * self.stride(),
                    len: self.block_bytes,
                    binding: self.binding,
                    chain: chain.block(segment.name.first + i),
                    format: self.format,
                    verdict: AtomicU8::new(known.get(i).copied().unwrap_or(verdict)),
                })
            })
            .collect();
        segment.map = Some(map);
        Ok(())
    }

    /// One behind the last block.
    pub fn end(&self) -> usize {
        self.segments.last().map_or(0, |s| s.name.first + s.name.blocks)
    }

    /// Bytes on disk.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|s| (s.name.blocks * self.stride()) as u64).sum()
    }

    /// The names of the files, for a head.
    pub fn names(&self) -> Vec<SegmentName> {
        self.segments.iter().map(|s| s.name.clone()).collect()
    }

    /// The first `count` blocks; none for those that aren't here.
    pub fn blocks(&self, count: usize) -> Vec<Option<Arc<dyn StoredRows>>> {
        let mut all: Vec<Option<Arc<dyn StoredRows>>> = vec![None; count];
        for segment in &self.segments {
            for (i, block) in segment.blocks.iter().enumerate() {
                if let Some(place) = all.get_mut(segment.name.first + i) {
                    *place = Some(block.clone());
                }
            }
        }
        all
    }

    /// Whether a part of a mapped file that was here is lost; the first block of such a file.
    pub fn lost(&self) -> Option<usize> {
        let lost = |s: &&Segment| s.map.as_ref().is_some_and(|m| m.is_damaged());
        self.segments.iter().find(lost).map(|s| s.name.first)
    }

    /// Appends the block behind the last one, all of whose rows are in memory, and lets `rows` use it from the file.
    /// `new_name` names a new file for rows from a token on.
    ///
    /// # Errors
    /// If the disk refuses; then the block stays in memory, and can be tried again.
    pub fn append(
        &mut self,
        disk: &dyn Disk,
        block: usize,
        rows: &mut Rows,
        chain: &Chain,
        new_name: impl FnOnce(usize) -> String,
    ) -> io::Result<()> {
        let Some(bytes) = rows.live(block) else { return Ok(()) };
        let digest = rows_digest(&self.binding, &chain.block(block), self.format.id(), bytes);
        let record = [bytes, digest.bytes()].concat();
        let goes_on = self
            .segments
            .last()
            .is_some_and(|s| s.name.open && s.name.blocks < SEGMENT && s.name.first + s.name.blocks == block);
        let mut segment = if goes_on {
            self.segments.pop().expect("there is a last one")
        } else {
            let name = SegmentName { file: new_name(block * ROW_BLOCK), first: block, blocks: 0, open: true };
            Segment { name, map: None, blocks: Vec::new(), dirty: true }
        };
        let path = self.folder.join(&segment.name.file);
        let at = (segment.name.blocks * self.stride()) as u64;
        let written = if goes_on { disk.extend(&path, at) } else { disk.create(&path) }
            .and_then(|mut file| disk.write_all(&mut file, &record));
        if written.is_ok() {
            segment.name.blocks += 1;
            segment.dirty = true;
        } else if !goes_on {
            _ = disk.remove(&path);
        }
        let mapped = written.and_then(|()| self.map(&mut segment, chain, GOOD));
        if mapped.is_ok() {
            for (i, block) in segment.blocks.iter().enumerate() {
                rows.store_if_kept(segment.name.first + i, block.clone());
            }
        } else {
            // The block counts only when it can be used.
            segment.name.blocks = segment.blocks.len();
        }
        if segment.name.blocks > 0 {
            self.segments.push(segment);
        }
        mapped
    }

    /// Returns when all that was appended is on the disk.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn sync(&mut self, disk: &dyn Disk) -> io::Result<()> {
        for segment in self.segments.iter_mut().filter(|s| s.dirty) {
            disk.sync(&File::open(self.folder.join(&segment.name.file))?)?;
            segment.dirty = false;
        }
        Ok(())
    }

    /// Forgets the blocks from `block` on, and names the files of which nothing is left.
    pub fn cut(&mut self, block: usize) -> Vec<String> {
        let kept = self.segments.partition_point(|s| s.name.first < block);
        let gone = self.segments.split_off(kept);
        if let Some(last) = self.segments.last_mut()
            && last.name.first + last.name.blocks > block
        {
            last.name.blocks = block - last.name.first;
            last.name.open = false;
            last.blocks.truncate(last.name.blocks);
        }
        gone.into_iter().map(|s| s.name.file).collect()
    }

    /// Forgets the file that holds a block, and all behind it; its name, if there is such a file.
    pub fn give_up(&mut self, block: usize) -> Option<SegmentName> {
        let holds = |s: &Segment| (s.name.first..s.name.first + s.name.blocks).contains(&block);
        let at = self.segments.iter().position(holds)?;
        let name = self.segments[at].name.clone();
        self.segments.truncate(at);
        Some(name)
    }

    /// Forgets files of which no block is needed any more.
    pub fn keep(&mut self, needed: impl Fn(usize) -> bool) {
        let last = self.segments.len().saturating_sub(1);
        let mut i = 0;
        self.segments.retain(|s| {
            i += 1;
            i > last || (s.name.first..s.name.first + s.name.blocks).any(&needed)
        });
    }

    /// Takes up segments that were put here from another session.
    pub fn adopt(&mut self, names: &[SegmentName], chain: &Chain, tokens: usize) {
        self.segments.clear();
        self.open(names, chain, tokens);
    }
}
