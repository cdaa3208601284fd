//! Files mapped into memory that may shrink, or fail to be read, without ending the process.
//!
//! Reading a page of a mapping that its file no longer backs raises SIGBUS, which ends a process without a
//! word. Here a handler replaces the lost part by zeros and notes which mapping it was; whoever used the data
//! asks [`Mapping::is_damaged`] before trusting what came of it. A SIGBUS anywhere else goes to the handler that
//! was there before.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};
use memmap2::{Advice, Mmap};
use rustix::mm::{MapFlags, ProtFlags};

/// A file mapped for reading. Its bytes are those of the file, or zeros where the file has lost them.
///
/// As with every mapping, bytes that another process writes into the file appear here; nothing that is read
/// from a mapping may therefore be relied on to read the same again.
#[derive(Debug)]
pub struct Mapping {
    map: Mmap,
    region: &'static Region,
}

impl Mapping {
    /// Maps the whole file.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new(file: &File) -> io::Result<Mapping> {
        install()?;
        // SAFETY: the mapping is private to this type, read-only, and given out as bytes, for which every value
        // is valid. A file that shrinks is dealt with by the handler; a file that is written to changes the
        // bytes, against which the readers above hold no assumption (they check again whatever they read).
        let map = unsafe { Mmap::map(file)? };
        let start = map.as_ptr().addr();
        let region = REGIONS.claim(start, start + map.len());
        Ok(Mapping { map, region })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// True once a page of the mapping could not be read and zeros took its place.
    pub fn is_damaged(&self) -> bool {
        self.region.damaged.load(Ordering::Acquire)
    }

    /// Asks the system to read a part of the file ahead.
    pub(super) fn will_need(&self, offset: usize, len: usize) -> io::Result<()> {
        self.map.advise_range(Advice::WillNeed, offset, len)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Before the unmapping: afterwards these addresses may belong to anyone.
        self.region.release();
    }
}

/// The addresses of a live mapping, or nothing.
#[derive(Debug)]
struct Region {
    taken: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
    damaged: AtomicBool,
    next: OnceLock<&'static Region>,
}

impl Region {
    fn release(&self) {
        self.start.store(usize::MAX, Ordering::Release);
        self.end.store(0, Ordering::Release);
        self.taken.store(false, Ordering::Release);
    }

    /// The end of the region, if it holds the address. While another thread claims or releases the region, the
    /// answer may be wrong for addresses that belong to nobody, never for those of another live mapping: `start`
    /// is stored last when claimed and first when released.
    fn end_if_holds(&self, address: usize) -> Option<usize> {
        let start = self.start.load(Ordering::Acquire);
        let end = self.end.load(Ordering::Acquire);
        (start <= address && address < end && self.start.load(Ordering::Acquire) == start).then_some(end)
    }
}

/// A list of regions that only grows, and whose free regions are used again, so that the handler can walk it at
/// any moment without a lock.
struct Regions {
    first: OnceLock<&'static Region>,
}

static REGIONS: Regions = Regions { first: OnceLock::new() };

impl Regions {
    fn iter(&self) -> impl Iterator<Item = &'static Region> {
        std::iter::successors(self.first.get(), |r| r.next.get()).copied()
    }

    fn claim(&self, start: usize, end: usize) -> &'static Region {
        let take =
            |r: &&Region| r.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        let region = self.iter().find(take).unwrap_or_else(|| self.append());
        region.damaged.store(false, Ordering::Relaxed);
        region.end.store(end, Ordering::Relaxed);
        region.start.store(start, Ordering::Release);
        region
    }

    fn append(&self) -> &'static Region {
        let new: &'static Region = Box::leak(Box::new(Region {
            taken: AtomicBool::new(true),
            start: AtomicUsize::new(usize::MAX),
            end: AtomicUsize::new(0),
            damaged: AtomicBool::new(false),
            next: OnceLock::new(),
        }));
        let mut link = &self.first;
        while link.set(new).is_err() {
            link = &link.get().expect("a link that cannot be set is set").next;
        }
        new
    }
}

/// What the handler needs and must not find out itself: the action that was there before, and the page size.
static BEFORE: OnceLock<(libc::sigaction, usize)> = OnceLock::new();

/// Installs the handler, once a process.
fn install() -> io::Result<()> {
    static FAILURE: OnceLock<Option<i32>> = OnceLock::new();
    let failure = FAILURE.get_or_init(|| {
        let errno = || io::Error::last_os_error().raw_os_error();
        let mut before = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: asks for the present action; `before` is written when the call succeeds.
        if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr()) } != 0 {
            return errno();
        }
        // SAFETY: the call above succeeded. It comes first so that the handler never runs without `BEFORE`.
        BEFORE.get_or_init(|| (unsafe { before.assume_init() }, rustix::param::page_size()));
        // SAFETY: an all-zero sigaction is a valid one, with an empty mask.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = on_sigbus as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: `on_sigbus` has the signature that SA_SIGINFO asks for and only does what a handler may do.
        match unsafe { libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) } {
            0 => None,
            _ => errno(),
        }
    });
    failure.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
}

/// The handler. It loads atomics and makes system calls, which is all that is safe at this point: `OnceLock::get`
/// is an atomic load, and rustix makes the call to map memory itself, so that `errno` stays as it was.
unsafe extern "C" fn on_sigbus(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the system calls an SA_SIGINFO handler with a valid `info`; for a SIGBUS that it raised itself
    // (a positive code) `si_addr` is the address that could not be read.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    if code > 0 && patch(address) {
        return;
    }
    // SAFETY: the arguments are those of this handler.
    unsafe { pass_on(signal, info, context) }
}

/// Maps zeros from the page that holds the address to the end of its mapping, if it is one of ours. To the end,
/// because a file that shrank has lost everything behind, and page by page the mappings would run out.
fn patch(address: usize) -> bool {
    let Some(&(_, page)) = BEFORE.get() else { return false };
    let Some((region, end)) = REGIONS.iter().find_map(|r| Some((r, r.end_if_holds(address)?))) else {
        return false;
    };
    region.damaged.store(true, Ordering::Release);
    let start = address - address % page;
    // SAFETY: the pages belong to a `Mapping` that is alive, since the thread we interrupted is reading it, and
    // stay mapped with the same rights, so that references into it stay valid; `Mapping` unmaps the whole range
    // when dropped. `start` is a page's first byte; the length is rounded up to the last page of the mapping.
    let zeros = unsafe {
        rustix::mm::mmap_anonymous(
            ptr::without_provenance_mut(start),
            end - start,
            ProtFlags::READ,
            MapFlags::PRIVATE | MapFlags::FIXED,
        )
    };
    zeros.is_ok()
}

/// Does what would have been done without our handler.
///
/// # Safety
/// The arguments must be those of a SIGBUS handler.
unsafe fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let before = BEFORE.get().map(|(action, _)| action);
    let handler = before.map_or(libc::SIG_DFL, |a| a.sa_sigaction);
    // SAFETY: as promised by the caller. A code that isn't positive means that a process sent the signal.
    let was_sent = unsafe { (*info).si_code } <= 0;
    if handler == libc::SIG_IGN && was_sent {
        return;
    }
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // SAFETY: an all-zero sigaction asks for the default action. Returning repeats the read that failed,
        // which then ends the process with the address in its core; a sent signal has to be sent again.
        unsafe {
            libc::sigaction(signal, MaybeUninit::zeroed().as_ptr(), ptr::null_mut());
            if was_sent {
                libc::raise(signal);
            }
        }
        return;
    }
    // SAFETY: the address is that of the handler that was installed with these flags, which say its signature.
    unsafe {
        if before.is_some_and(|a| a.sa_flags & libc::SA_SIGINFO != 0) {
            type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
            std::mem::transmute::<usize, Handler>(handler)(signal, info, context);
        } else {
            std::mem::transmute::<usize, unsafe extern "C" fn(c_int)>(handler)(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_found_while_alive_and_used_again() {
        let regions = Regions { first: OnceLock::new() };
        let holders = |at| regions.iter().filter(|r| r.end_if_holds(at).is_some()).count();
        let region = regions.claim(1000, 1010);
        assert_eq!(region.end_if_holds(1000), Some(1010));
        assert_eq!(region.end_if_holds(1009), Some(1010));
        assert_eq!((holders(999), holders(1010)), (0, 0));
        region.release();
        assert_eq!(holders(1000), 0);

        let many: Vec<_> = (0..100).map(|i| regions.claim(1000 + i, 1001 + i)).collect();
        assert!((0..100).all(|i| holders(1000 + i) == 1));
        many.iter().for_each(|r| r.release());
        (0..50).for_each(|i| _ = regions.claim(1000 + i, 1001 + i));
        assert!((0..100).all(|i| holders(1000 + i) == usize::from(i < 50)));
        assert_eq!(regions.iter().count(), 100);
    }

    #[test]
    fn threads_claim_regions_of_their_own() {
        static SHARED: Regions = Regions { first: OnceLock::new() };
        let claim = |thread: usize| {
            move || {
                (0..200).for_each(|i| {
                    let start = 1_000 * thread + i;
                    assert_eq!(SHARED.claim(start, start + 1).end_if_holds(start), Some(start + 1));
                })
            }
        };
        std::thread::scope(|s| (0..4).for_each(|t| _ = s.spawn(claim(t))));
        assert_eq!(SHARED.iter().count(), 800);
    }
}
