//! How fast each format is multiplied: `cargo bench -p kadence-quant`.
//!
//! With one vector what counts is how many weight bytes a second are worked through, on a set that the caches don't
//! hold, and how many multiplications if they do; with many, how many multiplications. All paths that this processor
//! can run are measured in turn in one run.

use std::hint::black_box;
use std::time::Instant;

use kadence_quant::activation::{Line, UNIT, Vector, lengths, quantize};
use kadence_quant::product::Product;
use kadence_quant::{Format, products};

const N: usize = 1024;

/// Seconds of a call: the best of several, each of at least 20 ms.
fn seconds(mut f: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        let mut calls = 0;
        while calls == 0 || start.elapsed().as_secs_f64() < 0.02 {
            f();
            calls += 1;
        }
        best = best.min(start.elapsed().as_secs_f64() / f64::from(calls));
    }
    best
}

fn main() {
    let only: Option<Format> = std::env::args().nth(1).and_then(|name| Format::from_name(&name));
    println!("rows of {N}");
    println!(
        "{:>8} {:>9} {:>15} {:>15} {:>18} {:>19}",
        "", "", "1 vector, GB/s", "in cache, GMAC/s", "4 vectors, GMAC/s", "64 vectors, GMAC/s"
    );
    for format in Format::all().filter(|f| only.is_none_or(|o| o == *f)) {
        let row = format.bytes(N).unwrap();
        let rows = (64 << 20) / row;
        // Bytes that are finite numbers in every format.
        let w: Vec<u8> = (0..rows * row).map(|i| (i * 37 % 59) as u8).collect();
        let x: Vec<f32> = (0..64 * N).map(|i| (i * 31 % 97) as f32 / 48.0 - 1.0).collect();
        let [q, scale, sums] = lengths(N);
        let (mut scale, mut sums) = (vec![0.0; 64 * scale], vec![0.0; 64 * sums]);
        let mut q = vec![Line::ZERO; 64 * q / UNIT];
        quantize(&x, Line::integers_mut(&mut q), &mut scale, &mut sums);
        let q = Line::integers(&q);
        let vectors: Vec<Vector<'_>> = (0..64)
            .map(|t| Vector {
                f32: &x[t * N..][..N],
                q: &q[t * N..][..N],
                scale: &scale[t * N / 256..][..N / 256],
                sums: &sums[t * N / 16..][..N / 16],
            })
            .collect();
        let bandwidth = |f: Product, rows: usize| {
            let mut y = vec![0.0; rows];
            let time = seconds(|| f(black_box(&w[..rows * row]), &vectors[..1], &mut y));
            (rows * row) as f64 / time / 1e9
        };
        let rate = |f: Product, vectors: &[Vector<'_>]| {
            let rows = 128;
            let mut y = vec![0.0; rows * vectors.len()];
            let time = seconds(|| f(black_box(&w[..rows * row]), vectors, &mut y));
            (rows * N * vectors.len()) as f64 / time / 1e9
        };
        for (kernels, product) in products(format) {
            let rows = if kernels == "portable" { rows / 16 } else { rows };
            println!(
                "{:>8} {kernels:>9} {:>15.2} {:>15.1} {:>18.1} {:>19.1}",
                format.name(),
                bandwidth(product, rows),
                rate(product, &vectors[..1]),
                rate(product, &vectors[..4]),
                rate(product, &vectors),
            );
        }
    }
}
