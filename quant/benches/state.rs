//! How fast the codecs of states are, how much they save and how much they lose: `cargo bench -p kadence-quant --bench
//! state`. The state is as large as that of Kimi-Linear 48B: 20 layers of 32 heads of 128 x 128, 42 MB. One core.

#[path = "../tests/fixtures/random.rs"]
mod random;
#[path = "../tests/fixtures/rotated.rs"]
mod rotated;
#[path = "../tests/fixtures/states.rs"]
mod states;

use std::hint::black_box;
use std::time::Instant;

use kadence_quant::state::{Codec, decode, encode};
use random::Random;

const ROW: usize = 128;

/// Seconds of a call: the best of several.
fn seconds(mut f: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        f();
        start.elapsed().as_secs_f64()
    };
    (0..7).map(time).fold(f64::INFINITY, f64::min)
}

fn main() {
    let random = &mut Random(1);
    let data = [
        ("gaussian", ROW, states::gaussian(20 * 32 * 128 * ROW, random)),
        ("outliers", ROW, states::outliers(20 * 32, 128, ROW, random)),
        ("windows", 3, states::outliers(20, 3 * 4096, 3, random)),
    ];
    for (name, row, x) in &data {
        let gb = (4 * x.len()) as f64 / 1e9;
        println!("{name}: {:.1} MB in rows of {row}", 1e3 * gb);
        println!(
            "{:>13} {:>17} {:>17} {:>7} {:>9}",
            "", "encode, GB/s, ms", "decode, GB/s, ms", "ratio", "error"
        );
        for codec in Codec::ALL {
            let (mut b, mut y) = (Vec::new(), vec![0.0; x.len()]);
            let encoding = seconds(|| {
                b.clear();
                encode(codec, *row, black_box(x), &mut b);
            });
            let decoding = seconds(|| decode(codec, *row, black_box(&b), &mut y).unwrap());
            println!(
                "{:>13} {:>9.2} {:>7.1} {:>9.2} {:>7.1} {:>7.4} {:>9.5}",
                codec,
                gb / encoding,
                1e3 * encoding,
                gb / decoding,
                1e3 * decoding,
                b.len() as f64 / (4 * x.len()) as f64,
                states::error(x, &y),
            );
        }
        if row.is_power_of_two() {
            let x = &x[..x.len() / 20];
            for (name, f) in
                [("plain 4-bit", rotated::plain as fn(_, &_) -> _), ("rotated 4-bit", rotated::rotated)]
            {
                let (ratio, error) = (rotated::ratio(*row), states::error(x, &f(*row, x)));
                println!("{name:>13} {:>43.4} {error:>9.5}", ratio);
            }
        }
    }
}
