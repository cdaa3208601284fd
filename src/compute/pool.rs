//! The thread pool: fork and join for regions of tens of microseconds.
//!
//! A token of a model with 17 layers is about 120 regions, so what a region costs to start and to end is what
//! matters here. Workers wait for the next region by spinning for as long as the gap between two regions of one
//! pass usually lasts, and sleep after that, so that an idle engine costs nothing. The calling thread works too.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};

/// Spins (of about 30 ns each) before a worker goes to sleep: about 60 µs, some times the serial work between
/// two regions.
const SPINS: u32 = 2000;

/// What a region runs, on every thread; the lifetime is erased, see [`Pool::run`].
type Region = *const (dyn Fn(usize) + Sync);

struct Shared {
    /// Counts regions; a worker runs the region when it sees the count change.
    epoch: AtomicU32,
    region: Mutex<Option<SendRegion>>,
    /// Workers that have not finished the current region.
    pending: AtomicUsize,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

#[derive(Clone, Copy)]
struct SendRegion(Region);

// SAFETY: the pointee is `Sync`, and `Pool::run` keeps it alive until every worker is done with it.
#[allow(unsafe_code)]
unsafe impl Send for SendRegion {}

struct Worker {
    thread: Thread,
    handle: Option<JoinHandle<()>>,
    sleeping: Arc<AtomicBool>,
}

/// The parts of a region that one thread starts with; in a cache line of its own.
#[repr(align(64))]
struct Share {
    next: AtomicUsize,
    end: usize,
}

/// A fixed set of threads that run one region at a time.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
    /// One region at a time, also when two callers share the pool.
    turn: Mutex<()>,
}

impl Pool {
    /// A pool of `threads` threads (at least one), the caller's among them.
    ///
    /// # Errors
    /// When the system can't start a thread.
    pub fn new(threads: usize) -> std::io::Result<Pool> {
        let shared = Arc::new(Shared {
            epoch: AtomicU32::new(0),
            region: Mutex::new(None),
            pending: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut pool = Pool { shared, workers: Vec::new(), turn: Mutex::new(()) };
        for index in 1..threads.max(1) {
            let (shared, sleeping) = (pool.shared.clone(), Arc::new(AtomicBool::new(false)));
            let flag = sleeping.clone();
            let handle = std::thread::Builder::new()
                .name(format!("compute-{index}"))
                .spawn(move || work(&shared, &flag, index))?;
            pool.workers.push(Worker { thread: handle.thread().clone(), handle: Some(handle), sleeping });
        }
        Ok(pool)
    }

    /// As many threads as the process may use: its CPU set and its cgroup's quota.
    pub fn default_threads() -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    /// Threads of the pool, the caller's among them.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `f(thread)` once on every thread and returns when all are done. A panic in any of them is
    /// propagated to the caller. Regions don't nest.
    pub fn run(&self, f: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() {
            return f(0);
        }
        let _turn = self.turn.lock().unwrap_or_else(|e| e.into_inner());
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. The pointer is read by the workers between the epoch's increment
        // and their decrement of `pending`; this function doesn't return or unwind before `pending` is zero.
        #[allow(unsafe_code)]
        let region =
            unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(f) };
        *shared.region.lock().unwrap_or_else(|e| e.into_inner()) = Some(SendRegion(region));
        shared.pending.store(self.workers.len(), Ordering::Relaxed);
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        for worker in &self.workers {
            if worker.sleeping.swap(false, Ordering::SeqCst) {
                worker.thread.unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| f(0)));
        let mut spins = 0;
        while shared.pending.load(Ordering::Acquire) != 0 {
            spins += 1;
            // A worker that the system has taken off its core needs this one's time more than we do.
            if spins > SPINS { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        let theirs = shared.panic.lock().unwrap_or_else(|e| e.into_inner()).take();
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    /// Calls `f(part)` for every part in `0..parts`. A thread starts with neighbours, as what it asks the memory for ahead
    /// of one part belongs to the next; who is done first helps the others.
    pub fn for_each(&self, parts: usize, f: impl Fn(usize) + Sync) {
        if parts <= 1 || self.workers.is_empty() {
            return (0..parts).for_each(f);
        }
        let threads = self.threads();
        let first = |thread: usize| parts * thread / threads;
        let shares: Vec<Share> = (0..threads)
            .map(|thread| Share { next: AtomicUsize::new(first(thread)), end: first(thread + 1) })
            .collect();
        self.run(&|thread| {
            for share in shares[thread..].iter().chain(&shares[..thread]) {
                loop {
                    let part = share.next.fetch_add(1, Ordering::Relaxed);
                    if part >= share.end {
                        break;
                    }
                    f(part);
                }
            }
        });
    }

    /// [`Pool::for_each`] with `f(i, item)` for every item: the way to hand each thread its own
    /// mutable part of the data.
    pub fn for_each_mut<T: Send>(&self, items: &mut [T], f: impl Fn(usize, &mut T) + Sync) {
        let shared = super::disjoint::Disjoint::new(items);
        self.for_each(shared.len(), |i| {
            // SAFETY: `for_each` hands out each index once, so no two references to an item exist.
            #[allow(unsafe_code)]
            f(i, unsafe { &mut shared.slice(i..i + 1)[0] })
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        for worker in &mut self.workers {
            worker.thread.unpark();
            if let Some(handle) = worker.handle.take() {
                let _ = handle.join(); // a worker catches every panic of a region
            }
        }
    }
}

fn work(shared: &Shared, sleeping: &AtomicBool, index: usize) {
    let mut seen = 0;
    loop {
        let mut spins = 0;
        while shared.epoch.load(Ordering::SeqCst) == seen {
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
                continue;
            }
            sleeping.store(true, Ordering::SeqCst);
            // The epoch is looked at again after the flag is up: either we see the new one, or the caller
            // sees the flag and unparks us.
            if shared.epoch.load(Ordering::SeqCst) == seen {
                std::thread::park();
            }
            sleeping.store(false, Ordering::SeqCst);
        }
        seen = seen.wrapping_add(1);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        let region = *shared.region.lock().unwrap_or_else(|e| e.into_inner());
        let Some(SendRegion(region)) = region else { continue };
        // SAFETY: see `Pool::run`: the region outlives the decrement of `pending` below.
        #[allow(unsafe_code)]
        let result = catch_unwind(AssertUnwindSafe(|| unsafe { (*region)(index) }));
        if let Err(panic) = result {
            *shared.panic.lock().unwrap_or_else(|e| e.into_inner()) = Some(panic);
        }
        shared.pending.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_runs_once() {
        for threads in 1..5 {
            let pool = Pool::new(threads).unwrap();
            for parts in [0, 1, 2, 3, 100] {
                let mut counts = vec![0u32; parts];
                pool.for_each_mut(&mut counts, |i, count| *count += i as u32 + 1);
                assert!(counts.iter().enumerate().all(|(i, &c)| c == i as u32 + 1));
            }
        }
    }

    #[test]
    fn sleeping_workers_wake() {
        let pool = Pool::new(3).unwrap();
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            let ran = AtomicUsize::new(0);
            pool.run(&|_| {
                ran.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(ran.into_inner(), 3);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(2).unwrap();
        for thread in 0..2 {
            let result = catch_unwind(AssertUnwindSafe(|| pool.run(&|t| assert_ne!(t, thread))));
            assert!(result.is_err());
        }
        let mut items = [0; 8];
        pool.for_each_mut(&mut items, |_, x| *x = 1);
        assert_eq!(items, [1; 8]);
    }
}
