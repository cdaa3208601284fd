//! A slice that several threads write in parts that don't overlap.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice, shared: who takes a part promises that nobody else has it.
pub(crate) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: the parts handed out are what a `&mut [T]` could be split into, so it may cross threads if T may.
#[allow(unsafe_code)]
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl<T: Send> Send for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Disjoint<'a, T> {
        Disjoint { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The part `range`; panics if it isn't inside the slice.
    ///
    /// # Safety
    /// While the part lives, nobody else may hold a part that overlaps it.
    #[allow(unsafe_code, clippy::mut_from_ref)]
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "part {range:?} of {} elements", self.len);
        // SAFETY: inside the slice that `new` borrowed, and exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(unsafe_code)]
    fn parts_are_the_slice() {
        let mut data = [1, 2, 3, 4, 5];
        let shared = Disjoint::new(&mut data);
        // SAFETY: the two parts don't overlap.
        let (a, b) = unsafe { (shared.slice(0..2), shared.slice(2..5)) };
        a[1] = 20;
        b[0] = 30;
        assert_eq!(data, [1, 20, 30, 4, 5]);
    }

    #[test]
    #[should_panic(expected = "part 2..6 of 5")]
    #[allow(unsafe_code)]
    fn outside_is_refused() {
        let mut data = [0; 5];
        // SAFETY: the only part.
        unsafe { Disjoint::new(&mut data).slice(2..6) };
    }
}
