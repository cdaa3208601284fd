//! The formats of GGUF tensors and the sizes of their blocks.
//!
//! A row of a tensor is a sequence of blocks; a block holds a fixed number of elements in a fixed number of
//! bytes. The numbers are those of the GGUF tensor table (`shared/spec/k3.md`, section 11).

/// How the elements of a tensor are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types, missing_docs)] // the variants carry the field's own names
#[repr(u8)]
pub enum Format {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ1_S = 19,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    I8 = 24,
    IQ1_M = 29,
    BF16 = 30,
    TQ1_0 = 34,
    TQ2_0 = 35,
    MXFP4 = 39,
    NVFP4 = 40,
    Q1_0 = 41,
    Q2_0 = 42,
}

use Format::*;

/// Format, name, elements and bytes of a block: the one table that everything else is derived from.
const TABLE: [(Format, &str, usize, usize); 29] = [
    (F32, "F32", 1, 4),
    (F16, "F16", 1, 2),
    (BF16, "BF16", 1, 2),
    (I8, "I8", 1, 1),
    (Q8_0, "Q8_0", 32, 34),
    (Q4_0, "Q4_0", 32, 18),
    (Q4_1, "Q4_1", 32, 20),
    (Q5_0, "Q5_0", 32, 22),
    (Q5_1, "Q5_1", 32, 24),
    (IQ4_NL, "IQ4_NL", 32, 18),
    (MXFP4, "MXFP4", 32, 17),
    (NVFP4, "NVFP4", 64, 36),
    (Q1_0, "Q1_0", 128, 18),
    (Q2_0, "Q2_0", 64, 18),
    (Q2_K, "Q2_K", 256, 84),
    (Q3_K, "Q3_K", 256, 110),
    (Q4_K, "Q4_K", 256, 144),
    (Q5_K, "Q5_K", 256, 176),
    (Q6_K, "Q6_K", 256, 210),
    (IQ2_XXS, "IQ2_XXS", 256, 66),
    (IQ2_XS, "IQ2_XS", 256, 74),
    (IQ2_S, "IQ2_S", 256, 82),
    (IQ3_XXS, "IQ3_XXS", 256, 98),
    (IQ3_S, "IQ3_S", 256, 110),
    (IQ1_S, "IQ1_S", 256, 50),
    (IQ1_M, "IQ1_M", 256, 56),
    (IQ4_XS, "IQ4_XS", 256, 136),
    (TQ1_0, "TQ1_0", 256, 54),
    (TQ2_0, "TQ2_0", 256, 66),
];

impl Format {
    /// Every format, in the order of the table.
    pub fn all() -> impl Iterator<Item = Format> {
        TABLE.iter().map(|row| row.0)
    }

    /// The format with this number in a GGUF tensor table, if it is one that files may hold.
    pub fn from_id(id: u32) -> Option<Format> {
        Format::all().find(|f| f.id() == id)
    }

    /// The format with this name, in any case (`q4_k`, `MXFP4`).
    pub fn from_name(name: &str) -> Option<Format> {
        Format::all().find(|f| f.name().eq_ignore_ascii_case(name))
    }

    /// The number in a GGUF tensor table.
    pub fn id(self) -> u32 {
        self as u32
    }

    fn row(self) -> &'static (Format, &'static str, usize, usize) {
        TABLE.iter().find(|row| row.0 == self).expect("every format is in the table")
    }

    /// The name the field uses, for example `Q4_K`.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Elements in a block.
    pub fn block_len(self) -> usize {
        self.row().2
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.row().3
    }

    /// Bytes of `n` elements, or `None` if `n` isn't a whole number of blocks or the size overflows.
    pub fn bytes(self, n: usize) -> Option<usize> {
        let (len, bytes) = (self.block_len(), self.block_bytes());
        n.is_multiple_of(len).then(|| (n / len).checked_mul(bytes)).flatten()
    }

    /// True for F32, F16, BF16 and I8: each element stands alone and products use f32 activations as they are.
    pub fn is_float(self) -> bool {
        matches!(self, F32 | F16 | BF16 | I8)
    }

    /// Whether blocks have a minimum beside their scale.
    pub(crate) fn has_mins(self) -> bool {
        matches!(self, Q4_1 | Q5_1 | Q2_K | Q4_K | Q5_K)
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
