//! All products that this processor can run equal the portable ones: on random blocks, extreme scales and codes, every length that
//! a format allows, any number of rows and vectors.

mod fixtures;

use fixtures::Random;
use kadence_quant::activation::{Vector, lengths, quantize};
use kadence_quant::product::portable;
use kadence_quant::{Format, decode, kernels, products};

/// Where the half-precision numbers of a block are.
fn halves(format: Format) -> &'static [usize] {
    use Format::*;
    match format {
        Q8_0 | Q4_0 | Q5_0 | IQ4_NL | Q1_0 | Q2_0 | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ1_S
        | IQ4_XS => &[0],
        Q4_1 | Q5_1 | Q4_K | Q5_K => &[0, 2],
        Q2_K => &[80, 82],
        Q3_K => &[108],
        Q6_K => &[208],
        TQ1_0 => &[52],
        TQ2_0 => &[64],
        _ => &[],
    }
}

/// Blocks of any codes whose scales are finite: `scale` as half-precision bits, or random ones of moderate size.
fn blocks(
    format: Format,
    elements: usize,
    codes: Option<u8>,
    scale: Option<u16>,
    random: &mut Random,
) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        (0..format.bytes(elements).unwrap()).map(|_| codes.unwrap_or_else(|| random.byte())).collect();
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        let bits = scale.unwrap_or_else(|| u16::from_le_bytes([random.byte(), random.byte() & 0x83 | 0x28]));
        for &at in halves(format) {
            block[at..at + 2].copy_from_slice(&bits.to_le_bytes());
        }
        match format {
            Format::MXFP4 => block[0] = 100 + block[0] % 60,
            Format::IQ1_M => (0..4).for_each(|w| {
                let top = ((bits >> (4 * w)) & 15) as u8;
                block[49 + 2 * w] = block[49 + 2 * w] & 15 | top << 4;
            }),
            Format::F32 => block.copy_from_slice(&random.uniform().to_le_bytes()),
            Format::F16 | Format::BF16 => block[1] &= 0xbb,
            _ => {}
        }
    }
    bytes
}

/// Checks `rows` x `vectors` products of rows of `n` elements.
fn check(format: Format, n: usize, rows: usize, vectors: usize, w: &[u8], x: &[f32]) {
    let [nq, ns, nm] = lengths(n);
    let (mut q, mut scale, mut sums) =
        (vec![0; vectors * nq], vec![0.0; vectors * ns], vec![0.0; vectors * nm]);
    if nq > 0 {
        for t in 0..vectors {
            let (q, scale) = (&mut q[t * nq..][..nq], &mut scale[t * ns..][..ns]);
            quantize(&x[t * n..][..n], q, scale, &mut sums[t * nm..][..nm]);
        }
    }
    let x: Vec<Vector<'_>> = (0..vectors)
        .map(|t| Vector {
            f32: &x[t * n..][..n],
            q: &q[t * nq..][..nq],
            scale: &scale[t * ns..][..ns],
            sums: &sums[t * nm..][..nm],
        })
        .collect();
    let mut slow = vec![f32::NAN; rows * vectors];
    portable(format)(w, &x, &mut slow);
    for (kernels, product) in products(format) {
        let mut fast = vec![f32::NAN; rows * vectors];
        product(w, &x, &mut fast);
        compare(format, kernels, &fast, &slow, w, &x);
    }
}

/// Checks that products are those of the portable path.
fn compare(format: Format, kernels: &str, fast: &[f32], slow: &[f32], w: &[u8], x: &[Vector<'_>]) {
    let (n, vectors) = (x[0].f32.len(), x.len());
    let (rows, mut row) = (fast.len() / vectors, vec![0.0; n]);
    for r in 0..rows {
        decode(format, &w[r * w.len() / rows..][..w.len() / rows], &mut row);
        for t in 0..vectors {
            let magnitude: f64 = row.iter().zip(x[t].f32).map(|(w, x)| f64::from((w * x).abs())).sum();
            // Formats with minima subtract two sums that can each be larger than what is left.
            let bound = 4e-6 * magnitude.max(1e-30)
                + if format.is_float() { 0.0 } else { 2e-6 * spread(&row, x[t].f32) };
            let (f, s) = (f64::from(fast[t * rows + r]), f64::from(slow[t * rows + r]));
            assert!(
                (f - s).abs() <= bound,
                "{format} ({kernels}), {n} elements, row {r} of {rows}, vector {t} of {vectors}: {f} and not {s}"
            );
        }
    }
}

/// The largest that the parts of a product with minima can become.
fn spread(row: &[f32], x: &[f32]) -> f64 {
    let largest = row.iter().fold(0f64, |m, w| m.max(f64::from(w.abs())));
    x.iter().map(|x| f64::from(x.abs())).sum::<f64>() * largest
}

#[test]
fn kernels_equal_the_portable_products() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for format in Format::all() {
        let unit = format.block_len();
        let lengths: Vec<usize> = if format.is_float() {
            vec![1, 3, 8, 31, 32, 33, 96, 100, 257]
        } else {
            (1..=12).map(|i| i * unit.max(32)).chain([8 * 256]).collect()
        };
        for n in lengths {
            for (rows, vectors) in [(1, 1), (2, 1), (3, 2), (5, 3), (9, 4), (17, 5), (2, 9), (16, 15)] {
                let w = blocks(format, rows * n, None, None, &mut random);
                let x: Vec<f32> = (0..vectors * n).map(|_| random.uniform()).collect();
                check(format, n, rows, vectors, &w, &x);
            }
        }
    }
}

#[test]
fn kernels_bear_extreme_codes_and_scales() {
    let mut random = Random(42);
    for format in Format::all().filter(|f| *f != Format::F32) {
        let n = 512;
        for codes in [None, Some(0), Some(0xff), Some(0x80), Some(0x7f), Some(0x88)] {
            // Half-precision zero, smallest, largest, their negatives, one.
            for scale in [0, 1, 0x7bff, 0x8000, 0x8001, 0xfbff, 0x3c00] {
                let w = blocks(format, 3 * n, codes, Some(scale), &mut random);
                for x in [1.0, -1.0, 1e-6, 1e6] {
                    let x: Vec<f32> = (0..5 * n).map(|i| if i % 97 == 0 { -x } else { x }).collect();
                    check(format, n, 3, 5, &w, &x);
                    check(format, n, 3, 1, &w, &x[..n]);
                }
            }
        }
    }
}

#[test]
fn no_vectors_and_no_rows_are_no_products() {
    for format in Format::all() {
        products(format).for_each(|(_, product)| product(&[], &[], &mut []));
        products(format).for_each(|(_, product)| product(&[], &[Vector::default()], &mut []));
    }
}

/// `tests/aarch64` says which ones the processors have that it emulates.
#[test]
fn every_product_of_the_processor_is_found() {
    let found: Vec<&str> = products(Format::Q4_K).map(|(kernels, _)| kernels).collect();
    assert_eq!((found[0], found.last()), (kernels(), Some(&"portable")));
    if let Ok(expected) = std::env::var("KADENCE_TEST_KERNELS") {
        assert_eq!(found.join(" "), expected);
    }
}
