// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random numbers that replay from a seed.

/// An unsigned number that [`Rng::below`] draws, or an `i32` that is not negative.
pub trait Number: Copy {
    /// The bound as `u64`.
    fn bound(self) -> u64;
    /// A number below the bound.
    fn drawn(number: u64) -> Self;
}

macro_rules! numbers {
    ($($number:ty),*) => {
        $(impl Number for $number {
            fn bound(self) -> u64 {
                u64::try_from(self).expect("a bound is not negative")
            }
            fn drawn(number: u64) -> $number {
                number as $number
            }
        })*
    };
}

numbers!(i32, u8, u16, u32, u64, usize);

/// A deterministic generator (`fastrand`): schedules replay from their seed alone.
#[derive(Clone, Debug)]
pub struct Rng(fastrand::Rng);

impl Rng {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Rng {
        // The first numbers of neighbouring seeds lie at equal distances; those of their forks do not.
        Rng(fastrand::Rng::with_seed(seed).fork())
    }

    #[allow(clippy::should_implement_trait, reason = "not an iterator: it has no end")]
    pub fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below<N: Number>(&mut self, n: N) -> N {
        N::drawn(self.0.u64(..n.bound().max(1)))
    }

    /// True so many times in a hundred.
    pub fn percent(&mut self, n: u64) -> bool {
        self.below(100) < n
    }

    /// True so many times in a thousand.
    pub fn permille(&mut self, n: u64) -> bool {
        self.below(1000) < n
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays_and_neighbours_differ() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            [(); 8].map(|()| rng.next())
        };
        assert_eq!(draw(7), draw(7));
        // What neighbours draw first covers all values, and so does what they draw first and second.
        let mut pairs = [[0; 8]; 8];
        for seed in 0..6400 {
            let mut rng = Rng::new(seed);
            let (first, second): (usize, usize) = (rng.below(8), rng.below(8));
            pairs[first][second] += 1;
        }
        assert!(pairs.iter().flatten().all(|count| (50..150).contains(count)), "{pairs:?}");
    }

    #[test]
    fn numbers_are_below_their_bound() {
        let mut rng = Rng::new(1);
        assert_eq!((rng.below(0_u64), rng.below(1_usize)), (0, 0));
        for _ in 0..1000 {
            assert!(rng.below(3) < 3 && rng.below(255_u8) < 255 && rng.below(u64::MAX) < u64::MAX);
        }
        let often = (0..10_000).filter(|_| rng.percent(30)).count();
        assert!((2500..3500).contains(&often), "{often}");
        let seldom = (0..10_000).filter(|_| rng.permille(30)).count();
        assert!((200..400).contains(&seldom), "{seldom}");
        assert!(!rng.percent(0) && rng.permille(1000));
    }
}
