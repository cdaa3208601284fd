//! Runs of bytes of known length, compressed where that makes them shorter.

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

use super::{Damaged, WRONG_SIZE};

/// The fastest level that still codes single bytes by their frequency, which is all that states give.
const LEVEL: i32 = 1;

const RAW: u8 = 0;
const PACKED: u8 = 1;

/// The kind, and the length in bytes of what follows.
const PACKED_HEAD: usize = 1 + 8;

/// Writes sections.
pub(super) struct Writer(Compressor<'static>);

impl Writer {
    pub(super) fn new() -> Writer {
        let mut zstd = Compressor::new(LEVEL).expect("zstd gets memory for its tables");
        // Repeats of a few bytes are chance here: looking for long ones only, and in a small table, is faster, and the
        // frequencies of single bytes then save more.
        for parameter in [CParameter::MinMatch(7), CParameter::HashLog(8)] {
            zstd.set_parameter(parameter).expect("zstd has this parameter");
        }
        Writer(zstd)
    }

    /// Appends `bytes` to `out`: as they are with one byte before them, or in less.
    pub(super) fn put(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let at = out.len();
        // With no more room than the bytes themselves take, what doesn't shrink doesn't fit.
        out.resize(at + bytes.len().max(PACKED_HEAD), 0);
        match self.0.compress_to_buffer(bytes, &mut out[at + PACKED_HEAD..]) {
            Ok(packed) => {
                out[at] = PACKED;
                out[at + 1..at + PACKED_HEAD].copy_from_slice(&(packed as u64).to_le_bytes());
                out.truncate(at + PACKED_HEAD + packed);
            }
            Err(_) => {
                out.truncate(at);
                out.push(RAW);
                out.extend_from_slice(bytes);
            }
        }
    }
}

/// Reads the sections of some bytes in turn.
pub(super) struct Reader<'a> {
    zstd: Decompressor<'static>,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { zstd: Decompressor::new().expect("zstd gets memory for its tables"), rest: bytes }
    }

    fn cut(&mut self, n: usize) -> Result<&'a [u8], Damaged> {
        let (bytes, rest) = self.rest.split_at_checked(n).ok_or(WRONG_SIZE)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Fills `dst` with the next section, never more, whatever the bytes say.
    pub(super) fn take(&mut self, dst: &mut [u8]) -> Result<(), Damaged> {
        match self.cut(1)?[0] {
            RAW => dst.copy_from_slice(self.cut(dst.len())?),
            PACKED => {
                let head = self.cut(PACKED_HEAD - 1)?.as_array().expect("cut to this length");
                let packed = self.cut(usize::try_from(u64::from_le_bytes(*head)).map_err(|_| WRONG_SIZE)?)?;
                match self.zstd.decompress_to_buffer(packed, dst) {
                    Ok(n) if n == dst.len() => {}
                    _ => return Err(Damaged("compressed bytes don't unfold to what they should")),
                }
            }
            _ => return Err(Damaged("a section is neither raw nor compressed")),
        }
        Ok(())
    }

    /// Refuses bytes after the last section.
    pub(super) fn end(self) -> Result<(), Damaged> {
        if self.rest.is_empty() { Ok(()) } else { Err(WRONG_SIZE) }
    }
}
