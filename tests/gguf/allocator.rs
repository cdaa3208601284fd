//! Counts what a thread allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: all is left to the system's allocator; the counters allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Old and new may both be there for a moment.
        count(size as isize);
        count(-(layout.size() as isize));
        unsafe { System.realloc(pointer, layout, size) }
    }
}

fn count(bytes: isize) {
    LIVE.set(LIVE.get() + bytes);
    PEAK.set(PEAK.get().max(LIVE.get()));
}

/// Runs something; returns what it gave, and the bytes it still held and held at most.
pub fn measure<T>(run: impl FnOnce() -> T) -> (T, isize, isize) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = run();
    (result, LIVE.get() - before, PEAK.get() - before)
}
