//! Stored states come back as they were or as near as promised, in as few bytes as promised, and damage is no panic.

#[path = "fixtures/random.rs"]
mod random;
#[path = "fixtures/rotated.rs"]
mod rotated;
#[path = "fixtures/states.rs"]
mod states;

use kadence_quant::state::{Codec, Damaged, decode, encode};
use random::Random;

const ROWS: [usize; 8] = [1, 3, 16, 37, 64, 96, 128, 192];

fn encoded(codec: Codec, row: usize, x: &[f32]) -> Vec<u8> {
    let mut b = Vec::new();
    encode(codec, row, x, &mut b);
    b
}

fn decoded(codec: Codec, row: usize, b: &[u8], n: usize) -> Result<Vec<f32>, Damaged> {
    let mut y = vec![f32::NAN; n];
    decode(codec, row, b, &mut y).map(|()| y)
}

fn round_trip(codec: Codec, row: usize, x: &[f32]) -> Vec<f32> {
    decoded(codec, row, &encoded(codec, row, x), x.len()).unwrap()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Every bit pattern alike.
fn patterns(n: usize, random: &mut Random) -> Vec<f32> {
    (0..n).map(|_| f32::from_le_bytes([(); 4].map(|()| random.byte()))).collect()
}

/// The largest error that a codec may make in a row.
fn bound(codec: Codec, row: &[f32]) -> f32 {
    let largest = row.iter().fold(0f32, |a, x| a.max(x.abs()));
    let mean = row.iter().map(|x| x.abs() / row.len() as f32).sum::<f32>();
    match codec {
        Codec::Exact => 0.0,
        Codec::F16 => largest / 2048.0 + 2f32.powi(-25),
        // Half a step; the step is rounded, so that the largest may be a bit further out than 127.5 of them.
        Codec::Q8 => largest / 127.0 * 0.51,
        Codec::Q4 => (0.292 * mean).max(largest / 127.0) * 1.25 * 0.501,
    }
}

#[test]
fn rows_of_any_length_come_back() {
    let random = &mut Random(1);
    for row in ROWS {
        for rows in [0, 1, 2, 5, 100] {
            let x = states::outliers(1, rows, row, random);
            for codec in Codec::ALL {
                let y = round_trip(codec, row, &x);
                for (x, y) in x.chunks(row).zip(y.chunks(row)) {
                    let bound = bound(codec, x);
                    assert!(
                        x.iter().zip(y).all(|(x, y)| (x - y).abs() <= bound),
                        "{codec} {row}: {x:?} {y:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn states_of_many_tiles_come_back() {
    let random = &mut Random(2);
    // A tile is 128 Ki elements; the rows of the second are longer, those of the third don't divide it.
    for (row, rows) in [(128, 3000), (150_000, 2), (192, 2000)] {
        let x = states::gaussian(row * rows, random);
        assert_eq!(bits(&round_trip(Codec::Exact, row, &x)), bits(&x));
        assert!(states::error(&x, &round_trip(Codec::F16, row, &x)) < 3e-4);
        assert!(states::error(&x, &round_trip(Codec::Q8, row, &x)) < 0.013);
        assert!(states::error(&x, &round_trip(Codec::Q4, row, &x)) < 0.085);
    }
}

#[test]
fn exact_keeps_every_bit_and_never_grows() {
    let random = &mut Random(3);
    for n in [0, 1, 2, 3, 10, 1000, 300_000] {
        let x = patterns(n, random);
        let b = encoded(Codec::Exact, 1, &x);
        assert_eq!(bits(&decoded(Codec::Exact, 1, &b, n).unwrap()), bits(&x));
        // A byte for each plane of each tile.
        assert!(b.len() <= 4 * n + 4 * n.div_ceil(128 << 10), "{n}: {}", b.len());
    }
    let odd =
        [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001), -0.0, f32::INFINITY, f32::NEG_INFINITY, 1e-45];
    assert_eq!(bits(&round_trip(Codec::Exact, 7, &odd)), bits(&odd));
}

#[test]
fn sizes_are_as_promised() {
    let random = &mut Random(4);
    let laplace = |random: &mut Random| -random.uniform().abs().max(1e-7).ln() * random.uniform().signum();
    let n = 2000 * 128;
    let data = [
        ("gaussian", states::gaussian(n, random)),
        ("outliers", states::outliers(10, 200, 128, random)),
        ("uniform", (0..n).map(|_| random.uniform()).collect()),
        ("laplace", (0..n).map(|_| laplace(random)).collect()),
        ("heavy tails", (0..n).map(|_| random.gaussian().powi(5)).collect()),
        ("zeros", vec![0.0; n]),
    ];
    for (name, x) in data {
        for (codec, most) in [(Codec::Exact, 0.91), (Codec::F16, 0.5), (Codec::Q8, 0.254), (Codec::Q4, 0.14)]
        {
            let ratio = encoded(codec, 128, &x).len() as f64 / (4 * n) as f64;
            assert!(ratio <= most, "{name}, {codec}: {ratio}");
        }
    }
}

#[test]
fn q4_loses_less_than_four_bits_plain_or_rotated() {
    let random = &mut Random(5);
    let data = [
        ("gaussian", 0.71, states::gaussian(2000 * 128, random)),
        ("outliers", 0.3, states::outliers(16, 128, 128, random)),
    ];
    for (name, share, x) in data {
        let b = encoded(Codec::Q4, 128, &x);
        let ratio = b.len() as f64 / (4 * x.len()) as f64;
        let squared = |y: &[f32]| states::error(&x, y).powi(2);
        let ours = squared(&decoded(Codec::Q4, 128, &b, x.len()).unwrap());
        let (plain, rotated) = (squared(&rotated::plain(128, &x)), squared(&rotated::rotated(128, &x)));
        println!(
            "{name}: {ratio:.4} of the bytes (4-bit codes: {:.4}); {:.3} of the squared error of plain 4-bit rows, {:.3} of rotated ones",
            rotated::ratio(128),
            ours / plain,
            ours / rotated
        );
        assert!(ratio <= 1.01 * rotated::ratio(128), "{name}: {ratio}");
        assert!(ours < share * rotated && ours < share * plain, "{name}: {ours} {rotated} {plain}");
    }
}

#[test]
fn what_was_decoded_encodes_to_itself() {
    let random = &mut Random(6);
    let tiny: Vec<f32> = states::gaussian(192 * 50, random).iter().map(|x| x * 1e-42).collect();
    let huge: Vec<f32> =
        states::gaussian(192 * 50, random).iter().map(|x| x.clamp(-3.4, 3.4) * 1e38).collect();
    let whole: Vec<f32> = (0..192 * 50).map(|_| f32::from(random.byte() % 12) - 6.0).collect();
    let cubes: Vec<f32> = states::gaussian(192 * 50, random).iter().map(|x| x.powi(3)).collect();
    for x in [tiny, huge, whole, cubes, states::outliers(5, 20, 192, random)] {
        for row in ROWS {
            let x = &x[..x.len() / row * row];
            for codec in Codec::ALL {
                let first = round_trip(codec, row, x);
                let second = round_trip(codec, row, &first);
                assert!(bits(&first) == bits(&second), "{codec} {row}");
            }
            let first = encoded(Codec::Q8, row, x);
            let again = decoded(Codec::Q8, row, &first, x.len()).unwrap();
            assert!(first == encoded(Codec::Q8, row, &again), "q8 {row}");
        }
    }
}

#[test]
fn any_magnitude_survives() {
    let random = &mut Random(7);
    let x = states::gaussian(128 * 20, random);
    let largest = x.iter().fold(0f32, |a, x| a.max(x.abs()));
    for (codec, most) in [(Codec::Q8, 0.01), (Codec::Q4, 0.08)] {
        for magnitude in [1e-39, 1e-38, 1e-30, 1.0, 1e30, f32::MAX / largest * 0.999] {
            let x: Vec<f32> = x.iter().map(|x| x * magnitude).collect();
            let y = round_trip(codec, 128, &x);
            assert!(y.iter().all(|y| y.is_finite()));
            let error = states::error(&x, &y);
            assert!(error < most, "{codec} {magnitude}: {error}");
        }
        // Below the least step nothing is left to round to.
        let y = round_trip(codec, 1, &[f32::MAX, f32::MIN, 1e-45, -1e-45, 0.0, -0.0]);
        assert!(y[0] >= 3e38 && y[1] <= -3e38 && y[2..].iter().all(|&y| y == 0.0), "{codec}: {y:?}");
    }
}

#[test]
fn damage_stays_visible() {
    for odd in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x7f80_0001)] {
        for row in ROWS {
            for at in [0, row / 2, row - 1] {
                let mut x = vec![1.5; 3 * row];
                x[row + at] = odd;
                for codec in [Codec::Q8, Codec::Q4] {
                    let y = round_trip(codec, row, &x);
                    assert!(y[row..2 * row].iter().all(|y| y.is_nan()), "{codec} {row}");
                    assert!(
                        y[..row].iter().chain(&y[2 * row..]).all(|y| (y - 1.5).abs() < 0.3),
                        "{codec} {row}"
                    );
                }
                let y = round_trip(Codec::F16, row, &x);
                assert!(!y[row + at].is_finite() && y.iter().filter(|y| !y.is_finite()).count() == 1);
            }
        }
    }
}

#[test]
fn any_bytes_are_taken_or_refused() {
    let random = &mut Random(8);
    // The first is stored raw for the most part, the second compressed.
    for x in [states::gaussian(2 * 16, random), states::outliers(1, 64, 16, random)] {
        for codec in Codec::ALL {
            let b = encoded(codec, 16, &x);
            for n in 0..b.len() {
                assert!(decoded(codec, 16, &b[..n], x.len()).is_err(), "{codec}: {n} of {} bytes", b.len());
            }
            assert!(decoded(codec, 16, &[&b[..], &[0]].concat(), x.len()).is_err());
            for n in [x.len() - 16, x.len() + 16, 0] {
                assert!(decoded(codec, 16, &b, n).is_err(), "{codec}: {n} elements");
            }
            for bit in 0..8 * b.len() {
                let mut b = b.clone();
                b[bit / 8] ^= 1 << (bit % 8);
                let _ = decoded(codec, 16, &b, x.len());
            }
        }
    }
    for codec in Codec::ALL {
        for byte in 0..=255 {
            let _ = decoded(codec, 2, &[byte; 30], 4);
            let _ = decoded(codec, 2, &[byte], 2);
            (0..=255).for_each(|second| drop(decoded(codec, 1, &[byte, second], 1)));
        }
        for _ in 0..20_000 {
            let garbage: Vec<u8> =
                (0..random.byte() % 40).map(|_| random.byte() % 2 * random.byte()).collect();
            let _ = decoded(codec, 2, &garbage, 4);
        }
    }
}

#[test]
fn a_bomb_is_refused() {
    // 64 MB of zeros in a few kB, in the place of a plane of four bytes.
    let packed = encoded(Codec::Exact, 1, &vec![0.0; 128 << 10]);
    for codec in [Codec::Exact, Codec::Q4] {
        assert!(decoded(codec, 1, &packed, 4).is_err());
    }
    // A length beyond all memory.
    let mut b = packed;
    b[1..9].fill(0xff);
    assert!(decoded(Codec::Exact, 1, &b, 128 << 10).is_err());
}

#[test]
fn encoding_appends_and_is_the_same_each_time() {
    let x = states::outliers(1, 40, 128, &mut Random(9));
    for codec in Codec::ALL {
        let mut b = vec![1, 2, 3];
        encode(codec, 128, &x, &mut b);
        assert!(b[..3] == [1, 2, 3] && b[3..] == encoded(codec, 128, &x));
    }
}

#[test]
fn names_are_read_back() {
    for codec in Codec::ALL {
        assert_eq!(codec.to_string().parse(), Ok(codec));
        assert_eq!(Codec::from_name(codec.name()), Some(codec));
    }
    let error = "q5".parse::<Codec>().unwrap_err().to_string();
    assert_eq!(error, "there is no state codec 'q5'; use exact, f16, q8 or q4");
}
