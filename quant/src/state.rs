//! Codecs of stored session states: arrays of f32 in rows, as bytes, losslessly or in fewer.
//!
//! | codec | bytes, share of f32 | error, gaussian rows of 128 | how |
//! |---|---|---|---|
//! | [`Exact`](Codec::Exact) | 0.83 | none, bit for bit | planes of bytes, each compressed where that helps |
//! | [`F16`](Codec::F16) | 0.5 | 0.02% | IEEE half precision |
//! | [`Q8`](Codec::Q8) | 0.254 | 0.6% | 8-bit codes, a step for each row |
//! | [`Q4`](Codec::Q4) | 0.13 | 7% | coarser codes, a step for each row, entropy coded |
//!
//! Errors are root mean squares, as a share of that of the values. The bytes are the same on every machine, and they
//! say neither the codec nor the size nor whether they are whole: that is for whoever keeps them to note.
//!
//! # Why Q4 is neither 4-bit codes nor rotated
//!
//! The usual way to four bits is to rotate rows (a Hadamard transform), so that outliers are spread over all elements,
//! and to round to 16 levels. But fixed-length codes are what makes outliers costly: with entropy coding a rare large
//! code costs what its rarity says and a common small one two or three bits. A uniform step then errs by 0.29 of
//! itself whatever the distribution, rotation would only make rows gaussian, which of all distributions with
//! their variance take the most bits, and the step may follow the mean |x|, which outliers hardly move. For a given
//! mean |x| the bits are bounded: no distribution takes more than Laplace's. `benches/state.rs` measures both ways; at
//! the same bytes this one has 0.69 of the squared error of the other on gaussian rows and 0.19 with outliers.
//!
//! # Storing again what was loaded
//!
//! Values that were decoded encode and decode to themselves, with Q8 even to the same bytes: a session that sleeps and
//! wakes without a change doesn't drift.

mod codes;
mod exact;
mod section;

use std::{fmt, str::FromStr};

use crate::Format;

/// How a stored state is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// Lossless: every bit, of NaN and −0 too.
    Exact,
    /// Half precision, to the nearest. Finite values beyond ±65504 become ±65504.
    F16,
    /// 8-bit codes with a step for each row: |error| is half a 127th of the row's largest |x| at most.
    Q8,
    /// About 4 bits an element: the error is about a tenth of the row's mean |x|.
    Q4,
}

impl Codec {
    /// Every codec, from the most exact to the smallest.
    pub const ALL: [Codec; 4] = [Codec::Exact, Codec::F16, Codec::Q8, Codec::Q4];

    /// The name: `exact`, `f16`, `q8` or `q4`.
    pub fn name(self) -> &'static str {
        match self {
            Codec::Exact => "exact",
            Codec::F16 => "f16",
            Codec::Q8 => "q8",
            Codec::Q4 => "q4",
        }
    }

    /// The codec with this name.
    pub fn from_name(name: &str) -> Option<Codec> {
        Codec::ALL.into_iter().find(|codec| codec.name() == name)
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no codec's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no state codec '{0}'; use exact, f16, q8 or q4")]
pub struct UnknownCodec(String);

impl FromStr for Codec {
    type Err = UnknownCodec;

    fn from_str(name: &str) -> Result<Codec, UnknownCodec> {
        Codec::from_name(name).ok_or_else(|| UnknownCodec(name.to_owned()))
    }
}

/// Bytes that no state of this codec and size encodes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stored state is damaged: {0}; use an earlier one")]
pub struct Damaged(&'static str);

/// Encodes `values`, rows of `row` elements one after the other, and appends the bytes to `out`.
///
/// With Q8 and Q4 a row with an element that isn't finite becomes NaN as a whole, so that damage stays visible; with
/// the others every element stands alone and stays what it is.
///
/// # Panics
///
/// If `row` is 0 or `values` isn't whole rows.
pub fn encode(codec: Codec, row: usize, values: &[f32], out: &mut Vec<u8>) {
    assert_whole(row, values.len());
    match codec {
        Codec::Exact => exact::encode(values, out),
        Codec::F16 => {
            let at = out.len();
            out.resize(at + 2 * values.len(), 0);
            crate::encode(Format::F16, values, &mut out[at..]);
        }
        Codec::Q8 => codes::encode_q8(row, values, out),
        Codec::Q4 => codes::encode_q4(row, values, out),
    }
}

/// Decodes exactly `out.len()` values from what [`encode`] made of as many with the same `row`.
///
/// Takes any bytes. What they say has no influence on how much memory that takes, which is no more than the state for
/// rows of 16 and more, and never more than three times the state (and zstd's own tables).
///
/// # Errors
///
/// [`Damaged`] if the bytes aren't a state of this size; `out` then holds anything. What still fits is decoded: whether
/// the bytes are those once written only a checksum can tell.
///
/// # Panics
///
/// If `row` is 0 or `out` isn't whole rows.
pub fn decode(codec: Codec, row: usize, bytes: &[u8], out: &mut [f32]) -> Result<(), Damaged> {
    assert_whole(row, out.len());
    match codec {
        Codec::Exact => exact::decode(bytes, out),
        Codec::F16 if bytes.len() != 2 * out.len() => Err(WRONG_SIZE),
        Codec::F16 => {
            crate::decode(Format::F16, bytes, out);
            Ok(())
        }
        Codec::Q8 => codes::decode_q8(row, bytes, out),
        Codec::Q4 => codes::decode_q4(row, bytes, out),
    }
}

const WRONG_SIZE: Damaged = Damaged("it isn't as long as it should be");

fn assert_whole(row: usize, len: usize) {
    assert!(row > 0 && len.is_multiple_of(row), "{len} values aren't rows of {row}");
}
