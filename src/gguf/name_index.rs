//! Finding one of many names that lie elsewhere.

use std::hash::{BuildHasher, RandomState};

/// A hash table of the numbers of names. The names themselves stay where they are: every call is given the
/// function that gets at them. Its hashes are keyed at random, so that no file can make them collide on purpose.
#[derive(Debug)]
pub(super) struct NameIndex {
    /// Numbers of names, or `FREE`; a power of two, at most half full. A name lies at its hash or behind it.
    slots: Vec<u32>,
    hasher: RandomState,
}

const FREE: u32 = u32::MAX;

impl NameIndex {
    /// Indexes the names 0 to `n` - 1, where `n` is less than `u32::MAX`. An error holds the numbers of two
    /// names that are the same, in order.
    pub(super) fn build<'a>(n: usize, name: impl Fn(u32) -> &'a [u8]) -> Result<NameIndex, (u32, u32)> {
        let slots = vec![FREE; (2 * n).next_power_of_two()];
        let mut index = NameIndex { slots, hasher: RandomState::new() };
        for number in (0u32..).take(n) {
            match index.locate(name(number), &name) {
                Ok(first) => return Err((first, number)),
                Err(slot) => index.slots[slot] = number,
            }
        }
        Ok(index)
    }

    /// The number of a name.
    pub(super) fn find<'a>(&self, wanted: &[u8], name: impl Fn(u32) -> &'a [u8]) -> Option<u32> {
        self.locate(wanted, name).ok()
    }

    /// The number of a name, or the slot that would hold it.
    fn locate<'a>(&self, wanted: &[u8], name: impl Fn(u32) -> &'a [u8]) -> Result<u32, usize> {
        let mask = self.slots.len() - 1;
        let mut slot = self.hasher.hash_one(wanted) as usize & mask;
        loop {
            match self.slots[slot] {
                FREE => return Err(slot),
                number if name(number) == wanted => return Ok(number),
                _ => slot = (slot + 1) & mask,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_every_name_and_no_other() {
        for n in [0, 1, 2, 3, 1000] {
            let names: Vec<String> = (0..n).map(|i| format!("blk.{i}.weight")).collect();
            let name = |i: u32| names[i as usize].as_bytes();
            let index = NameIndex::build(n, name).unwrap();
            for (i, wanted) in names.iter().enumerate() {
                assert_eq!(index.find(wanted.as_bytes(), name), Some(i as u32));
            }
            assert_eq!(index.find(b"blk.weight", name), None);
        }
    }

    #[test]
    fn a_name_that_is_there_twice_is_told() {
        let names = ["a", "b", "c", "b"];
        let built = NameIndex::build(4, |i| names[i as usize].as_bytes());
        assert_eq!(built.err(), Some((1, 3)));
    }
}
