//! Who gets how much of a pass.

/// Divides `budget` among those who want something, so that nobody who wants little waits for one who wants much:
/// users get equal shares, and so do the requests of a user; what one doesn't need the others get. `wants` is the
/// user of each request and what it wants; the result is what it gets.
pub(super) fn shares(wants: &[(u32, usize)], budget: usize) -> Vec<usize> {
    let mut users: Vec<u32> = wants.iter().filter(|w| w.1 > 0).map(|w| w.0).collect();
    users.sort_unstable();
    users.dedup();
    let total = |user: u32| wants.iter().filter(|w| w.0 == user).map(|w| w.1).sum();
    let of_users = equal(&users.iter().map(|&u| total(u)).collect::<Vec<_>>(), budget);
    let mut got = vec![0; wants.len()];
    for (&user, budget) in users.iter().zip(of_users) {
        let own: Vec<usize> = (0..wants.len()).filter(|&i| wants[i].0 == user).collect();
        let parts = equal(&own.iter().map(|&i| wants[i].1).collect::<Vec<_>>(), budget);
        own.iter().zip(parts).for_each(|(&i, part)| got[i] = part);
    }
    got
}

/// Divides `budget` equally; what one doesn't want goes to the others.
fn equal(wants: &[usize], budget: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..wants.len()).collect();
    order.sort_by_key(|&i| wants[i]);
    let (mut got, mut left) = (vec![0; wants.len()], budget);
    for (done, &i) in order.iter().enumerate() {
        let share = left.div_ceil(wants.len() - done);
        got[i] = wants[i].min(share).min(left);
        left -= got[i];
    }
    got
}

#[cfg(test)]
mod tests {
    use super::shares;

    #[test]
    fn who_wants_little_gets_it_at_once() {
        assert_eq!(shares(&[(1, 100_000), (1, 20)], 512), [492, 20]);
        assert_eq!(shares(&[(1, 100_000), (1, 0), (1, 9_000)], 512), [256, 0, 256]);
        assert_eq!(shares(&[(1, 3)], 512), [3]);
    }

    #[test]
    fn users_share_equally_however_much_each_asks() {
        let got = shares(&[(1, 9_000), (1, 9_000), (1, 9_000), (2, 9_000)], 512);
        assert_eq!((got[..3].iter().sum::<usize>(), got[3]), (256, 256));
        assert_eq!(shares(&[(1, 9_000), (2, 10), (1, 9_000)], 510), [250, 10, 250]);
    }

    #[test]
    fn never_more_than_there_is() {
        for budget in [0, 1, 2, 3, 7] {
            let got = shares(&[(1, 5), (2, 5), (3, 5), (3, 1)], budget);
            assert_eq!(got.iter().sum::<usize>(), budget, "{got:?}");
        }
        assert_eq!(shares(&[], 512), [0usize; 0]);
    }
}
