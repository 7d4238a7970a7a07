//! Which key is next: drawn from a small generator, or from a list made before.

use std::sync::Arc;

/// How keys are drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Draw {
    /// All alike.
    Uniform,
    /// By Zipf's law with exponent 0.99: a few keys make most of the calls.
    Zipf,
}

/// Where rows of keys come from, one for each thread.
pub struct Source {
    keys: u64,
    /// Drawn beforehand where drawing is slow.
    lists: Option<Vec<Arc<[u32]>>>,
}

/// An endless row of keys.
pub enum Keys {
    Uniform { keys: u64, random: Random },
    Listed { list: Arc<[u32]>, next: usize },
}

/// A small generator, the same row of numbers for the same stream.
pub struct Random(u64);

/// How many keys a list has before it repeats.
const LISTED: usize = 1 << 20;

impl Source {
    /// Rows of keys below `keys` for so many threads.
    pub fn new(draw: Draw, keys: u64, threads: u64) -> Self {
        let list = |stream| {
            let mut random = Random::new(stream);
            (0..LISTED).map(|_| random.zipf(keys)).collect()
        };
        let lists = (draw == Draw::Zipf).then(|| (0..threads).map(list).collect());
        Self { keys, lists }
    }

    /// The row of one thread, from its beginning.
    pub fn row(&self, thread: u64) -> Keys {
        match &self.lists {
            Some(lists) => Keys::Listed {
                list: Arc::clone(&lists[thread as usize]),
                next: 0,
            },
            None => Keys::Uniform {
                keys: self.keys,
                random: Random::new(thread),
            },
        }
    }
}

impl Keys {
    #[inline]
    pub fn next(&mut self) -> u64 {
        match self {
            // The upper half, scaled: no division beside the calls that are measured.
            Self::Uniform { keys, random } => ((random.next() >> 32) * *keys) >> 32,
            Self::Listed { list, next } => {
                let key = list[*next];
                *next = (*next + 1) % LISTED;
                u64::from(key)
            }
        }
    }
}

impl Random {
    pub fn new(stream: u64) -> Self {
        Self(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(stream + 1))
    }

    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A rank by Zipf's law, scattered over all keys: by the inverse of the continuous law, which
    /// is close enough to compare limiters.
    fn zipf(&mut self, keys: u64) -> u32 {
        const ONE_LESS_EXPONENT: f64 = 0.01;
        let share = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        let all = (keys as f64).powf(ONE_LESS_EXPONENT) - 1.0;
        let rank = (share * all + 1.0).powf(1.0 / ONE_LESS_EXPONENT) as u64 - 1;
        let scattered = u128::from(rank.wrapping_mul(0x9E37_79B9_7F4A_7C15)) * u128::from(keys);
        u32::try_from(scattered >> 64).expect("there are fewer keys than 2^32")
    }
}
