//! Encoding loses less than ggml's own encoder, stays within the step of the format, and takes any numbers.

mod fixtures;

use fixtures::{Random, bytes, floats, name};
use kadence_quant::{Format, can_encode, decode, encode};

fn encodable() -> impl Iterator<Item = Format> {
    Format::all().filter(|&f| can_encode(f))
}

fn encoded(format: Format, x: &[f32]) -> Vec<u8> {
    let mut b = vec![0x5a; format.bytes(x.len()).unwrap()];
    encode(format, x, &mut b);
    b
}

fn round_trip(format: Format, x: &[f32]) -> Vec<f32> {
    let mut y = vec![f32::NAN; x.len()];
    decode(format, &encoded(format, x), &mut y);
    y
}

fn squared_error(x: &[f32], y: &[f32]) -> f64 {
    x.iter().zip(y).map(|(&x, &y)| (f64::from(x) - f64::from(y)).powi(2)).sum()
}

/// 256 elements: gaussian, uniform, heavy-tailed, with an outlier, all above zero, few values, one value.
fn samples(random: &mut Random) -> Vec<[f32; 256]> {
    let mut outlier = [(); 256].map(|()| random.gaussian());
    outlier[77] = -40.0;
    vec![
        [(); 256].map(|()| random.gaussian()),
        [(); 256].map(|()| random.uniform()),
        [(); 256].map(|()| random.gaussian().powi(3)),
        outlier,
        [(); 256].map(|()| 10.0 + random.uniform()),
        [(); 256].map(|()| random.uniform().round()),
        [random.uniform(); 256],
    ]
}

#[test]
fn weights_lose_less_than_in_ggml() {
    let x = floats("w.f32");
    // The share of ggml's squared error that may remain.
    for (format, share) in [
        (Format::Q8_0, 0.9),
        (Format::Q4_0, 0.9),
        (Format::Q4_1, 0.8),
        (Format::Q5_0, 0.9),
        (Format::Q5_1, 0.85),
        (Format::Q4_K, 0.98),
        (Format::Q5_K, 0.92),
        (Format::Q6_K, 0.92),
        (Format::MXFP4, 0.97),
    ] {
        let error = squared_error(&x, &round_trip(format, &x));
        let theirs = squared_error(&x, &floats(&name(format, "enc.f32")));
        assert!(error <= share * theirs, "{format}: {} of the squared error of ggml", error / theirs);
    }
}

#[test]
fn floats_round_as_in_ggml() {
    let x = floats("w.f32");
    for format in [Format::F16, Format::BF16] {
        assert!(encoded(format, &x) == bytes(&name(format, "enc.bin")), "{format}");
    }
    assert_eq!(encoded(Format::F32, &x), bytes("w.f32"));
}

/// The step between neighbouring codes in a block of `x` that uses its codes evenly.
fn step(format: Format, x: &[f32]) -> f32 {
    let (lo, hi) = x.iter().fold((0f32, 0f32), |(lo, hi), &v| (lo.min(v), hi.max(v)));
    let extreme = hi.max(-lo);
    match format {
        Format::F32 => 0.0,
        Format::F16 => extreme / 1024.0,
        Format::BF16 => extreme / 128.0,
        Format::Q8_0 => extreme / 127.0,
        Format::Q4_0 => extreme / 7.0,
        Format::Q5_0 => extreme / 15.0,
        Format::Q6_K => extreme / 31.0,
        Format::Q4_1 | Format::Q4_K => (hi - lo) / 15.0,
        Format::Q5_1 | Format::Q5_K => (hi - lo) / 31.0,
        Format::MXFP4 => extreme / 2.0, // from code 4 to 6; the extreme may be 4 and a bit
        _ => unreachable!("{format} has no encoder"),
    }
}

/// The root of the mean square error of each block is at most half a step: that of plain rounding without any search,
/// plus what rounding scales adds (to halves: 1 in 2048, or 2^-25; to integers in super-blocks: 1 in 126).
#[test]
fn errors_are_within_half_a_step() {
    let mut random = Random(3);
    for exponent in -26..10 {
        let scale = 2f32.powi(exponent);
        for sample in (0..4).flat_map(|_| samples(&mut random)) {
            let x = sample.map(|v| v * scale);
            for format in encodable() {
                let y = round_trip(format, &x);
                let block = format.block_len().max(32);
                for (x, y) in x.chunks(block).zip(y.chunks(block)) {
                    let error = (squared_error(x, y) / block as f64).sqrt();
                    let rounding = if block == 256 { 1.3 } else { 1.1 };
                    let bound = f64::from(0.5 * rounding * step(format, x) + 2f32.powi(-24));
                    assert!(error <= bound, "{format} 2^{exponent}: {error} > {bound} for {x:?}");
                }
            }
        }
    }
}

#[test]
fn zeros_stay_zeros() {
    for format in encodable() {
        for zero in [0.0, -0.0, f32::MIN_POSITIVE, -1e-45] {
            let y = round_trip(format, &[zero; 256]);
            assert!(y.iter().all(|&v| v == 0.0 || v == zero), "{format} {zero:e}");
        }
    }
}

#[test]
fn finite_values_stay_finite() {
    for format in encodable() {
        for huge in [1e5, 1e9, 1e20, 1e38, f32::MAX] {
            let mut x = [0.01; 256];
            for (i, x) in x.iter_mut().enumerate().step_by(40) {
                *x = if i % 16 == 0 { huge } else { -huge };
            }
            let y = round_trip(format, &x);
            for (x, y) in x.iter().zip(y) {
                let sign_lost = x.abs() > 1.0 && x.signum() != y.signum();
                assert!(y.is_finite() && !sign_lost, "{format}: {x:e} became {y:e}");
            }
        }
    }
}

#[test]
fn what_is_not_a_number_shows_in_its_block_only() {
    for format in encodable() {
        let block = format.block_len();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; 512];
            x[300] = bad;
            let y = round_trip(format, &x);
            for (i, &y) in y.iter().enumerate() {
                if i / block != 300 / block {
                    assert!((y - 1.0).abs() < 0.01, "{format} {bad} {i}: {y}");
                } else if format.is_float() {
                    assert!(y == bad || y.is_nan() && bad.is_nan(), "{format} {bad}: {y}");
                } else {
                    assert!(y.is_nan(), "{format} {bad} {i}: {y}");
                }
            }
        }
    }
}

#[test]
fn any_bits_are_taken() {
    let mut random = Random(9);
    for format in encodable() {
        for _ in 0..200 {
            let bits = [(); 256].map(|()| f32::from_le_bytes([(); 4].map(|()| random.byte())));
            let finite = bits.map(|v| if v.is_finite() { v } else { 1.0 });
            encoded(format, &bits);
            assert!(round_trip(format, &finite).iter().all(|v| v.is_finite()), "{format}: {finite:?}");
        }
    }
}

/// Weights that were MXFP4 from the beginning come back as they were.
#[test]
fn mxfp4_values_are_kept() {
    let x = floats(&name(Format::MXFP4, "rand.f32"));
    assert_eq!(round_trip(Format::MXFP4, &x), x);
}

/// Q4_K and Q5_K have no minima above zero; blocks above zero are as good as blocks below.
#[test]
fn blocks_above_zero_mirror_blocks_below() {
    let mut random = Random(5);
    let x = [(); 256].map(|()| 1.0 + 0.1 * random.uniform());
    for format in [Format::Q4_K, Format::Q5_K] {
        let (above, below) = (round_trip(format, &x), round_trip(format, &x.map(|v| -v)));
        assert_eq!(above, below.iter().map(|v| -v).collect::<Vec<_>>());
        assert!(squared_error(&x, &above) < 256.0 * 0.005f64.powi(2), "{format}");
    }
}

#[test]
#[should_panic(expected = "IQ2_XXS can't be encoded")]
fn encoding_what_has_no_encoder_is_a_programming_error() {
    encode(Format::IQ2_XXS, &[0.0; 256], &mut [0; 66]);
}

#[test]
#[should_panic(expected = "Q8_0: bytes for 31 elements")]
fn a_length_that_does_not_fit_is_a_programming_error() {
    encode(Format::Q8_0, &[0.0; 31], &mut [0; 34]);
}
