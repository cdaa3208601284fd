//! Blocks made by ggml's encoders and blocks of random codes decode to ggml's own values, bit for bit.

mod fixtures;

use fixtures::{bytes, floats, formats, name};
use kadence_quant::decode;

#[test]
fn decoding_equals_ggml() {
    for format in formats() {
        for kind in if format.is_float() { &["enc"][..] } else { &["enc", "rand"] } {
            let file = |ending: &str| name(format, &format!("{kind}.{ending}"));
            let (blocks, want) = (bytes(&file("bin")), floats(&file("f32")));
            let mut got = vec![0.0; want.len()];
            decode(format, &blocks, &mut got);
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                assert!(got == want, "{format} {kind}, element {i}: {got} and not {want}");
            }
        }
    }
}

/// ggml's own matrix-vector products of the encoded weights; it rounds activations to other blocks than we do, so
/// this only shows that the two multiply the same numbers.
#[test]
fn products_equal_ggml() {
    use kadence_quant::activation::{Vector, quantize};
    const N: usize = 512;
    let x = floats("x.f32");
    for format in formats() {
        let (w, want) = (bytes(&name(format, "enc.bin")), floats(&name(format, "y.f32")));
        for (x, want) in x.chunks_exact(N).zip(want.chunks_exact(4)) {
            let (mut q, mut scale, mut sums) = ([0; N], [0.0; N / 256], [0.0; N / 16]);
            quantize(x, &mut q, &mut scale, &mut sums);
            let mut got = [0.0; 4];
            kadence_quant::product(format)(
                &w,
                &[Vector { f32: x, q: &q, scale: &scale, sums: &sums }],
                &mut got,
            );
            for (got, want) in got.iter().zip(want) {
                assert!((got - want).abs() < 0.03, "{format}: {got} and not {want}");
            }
        }
    }
}
