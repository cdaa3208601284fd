//! What memory and processor can do, measured here and now: the limits that the parts of a model are held against.

use std::time::Instant;

use kadence_quant::peak::{Numbers, multiply_add};

use crate::model::Work;

/// What so many threads can do together in a second.
pub struct Limits {
    /// Bytes read from memory.
    pub memory: f64,
    /// Multiplications of 16-bit integers, added up.
    pub integers: f64,
    /// Multiplications of f32, added up.
    pub floats: f64,
}

impl Limits {
    /// Measures what `threads` threads can do: a second or less.
    pub fn measure(threads: usize) -> Limits {
        Limits {
            memory: read_bandwidth(threads),
            integers: multiplications(threads, Numbers::Integers),
            floats: multiplications(threads, Numbers::Floats),
        }
    }

    /// The seconds that reading and multiplying need at least: both go on at the same time.
    pub fn seconds(&self, work: &Work) -> [f64; 2] {
        let read = (work.weights + work.state) as f64 / self.memory;
        [read, work.integers as f64 / self.integers + work.floats as f64 / self.floats]
    }
}

/// Calls `f` on so many threads at the same time and returns the seconds that this takes.
fn seconds(threads: usize, f: impl Fn(usize) + Sync) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for i in 0..threads {
            let f = &f;
            scope.spawn(move || f(i));
        }
    });
    start.elapsed().as_secs_f64()
}

/// Bytes a second that `threads` threads read from memory together, one after the other: the best of a few runs over
/// more than any cache holds.
fn read_bandwidth(threads: usize) -> f64 {
    const BYTES: usize = 512 << 20;
    let data = vec![1u64; BYTES / size_of::<u64>()];
    let parts: Vec<&[u64]> = data.chunks(data.len().div_ceil(threads)).collect();
    let once = || {
        let time = seconds(parts.len(), |i| {
            let mut sums = [0u64; 16];
            for lanes in parts[i].as_chunks::<16>().0 {
                for i in 0..16 {
                    sums[i] ^= lanes[i];
                }
            }
            std::hint::black_box(sums);
        });
        BYTES as f64 / time
    };
    (0..5).map(|_| once()).fold(0.0, f64::max)
}

/// Multiplications a second that `threads` threads do together: the best of a few runs.
fn multiplications(threads: usize, numbers: Numbers) -> f64 {
    const ROUNDS: usize = 10_000;
    let all = threads as f64 * multiply_add(numbers, ROUNDS) as f64;
    let once = || {
        let time = seconds(threads, |_| {
            multiply_add(numbers, ROUNDS);
        });
        all / time
    };
    (0..5).map(|_| once()).fold(0.0, f64::max)
}
