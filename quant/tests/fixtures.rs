//! Blocks made by ggml's encoders and blocks of random codes decode to ggml's own values, bit for bit.

use kadence_quant::{Format, decode};

fn data(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn floats(name: &str) -> Vec<f32> {
    data(name).as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

#[test]
fn decoding_equals_ggml() {
    for format in Format::all().filter(|f| *f != Format::F32) {
        let name = format.name().to_lowercase();
        for kind in if format.is_float() { &["enc"][..] } else { &["enc", "rand"] } {
            let (blocks, want) = (data(&format!("{name}.{kind}.bin")), floats(&format!("{name}.{kind}.f32")));
            let mut got = vec![0.0; want.len()];
            decode(format, &blocks, &mut got);
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                assert!(got == want, "{name}.{kind}, element {i}: {got} and not {want}");
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
    for format in Format::all().filter(|f| *f != Format::F32) {
        let name = format.name().to_lowercase();
        let (w, want) = (data(&format!("{name}.enc.bin")), floats(&format!("{name}.y.f32")));
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
                assert!((got - want).abs() < 0.03, "{name}: {got} and not {want}");
            }
        }
    }
}

/// The squared error of a round trip is at most that of ggml's encoder.
#[test]
fn encoding_loses_no_more_than_ggml() {
    let weights = floats("w.f32");
    let loss = |decoded: &[f32]| -> f64 {
        decoded.iter().zip(&weights).map(|(a, b)| f64::from(a - b).powi(2)).sum()
    };
    for format in Format::all().filter(|f| kadence_quant::can_encode(*f) && *f != Format::F32) {
        let theirs = loss(&floats(&format!("{}.enc.f32", format.name().to_lowercase())));
        let mut blocks = vec![0; format.bytes(weights.len()).unwrap()];
        kadence_quant::encode(format, &weights, &mut blocks);
        let mut decoded = vec![0.0; weights.len()];
        decode(format, &blocks, &mut decoded);
        let ours = loss(&decoded);
        println!("{format}: {:.4} of ggml's error", ours / theirs);
        assert!(ours <= theirs * 1.000_001, "{format}: {ours:e} and not {theirs:e}");
    }
}
