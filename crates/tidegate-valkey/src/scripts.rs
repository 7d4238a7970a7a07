//! The scripts, put together from the small files of `scripts/`.
//!
//! One script for each algorithm does every operation of it; those for calls over several limits
//! hold the algorithms that such a call needs. Comments and indentation are left out.

use std::sync::OnceLock;

use tidegate_core::Policy;

use crate::Script;

/// How many algorithms there are.
const ALGORITHMS: usize = 9;

/// What each algorithm is called, by its number.
const NAMES: [&str; ALGORITHMS] = [
    "token_bucket",
    "interval_bucket",
    "leaky_bucket",
    "fixed_window",
    "sliding_log",
    "strict_window",
    "interpolated_window",
    "concurrency",
    "lockout",
];

/// A piece of a script, and the algorithms that need it, as a set of bits.
struct Piece {
    text: &'static str,
    needed_by: usize,
}

const ALL: usize = (1 << ALGORITHMS) - 1;
const TANKS: usize = 0b000_000_101;
const LOGS: usize = 0b100_110_000;

macro_rules! piece {
    ($name:literal, $needed_by:expr) => {
        Piece {
            text: include_str!(concat!("scripts/", $name, ".lua")),
            needed_by: $needed_by,
        }
    };
}

/// Everything between the clock and what a call does, in order.
const PIECES: [Piece; 14] = [
    piece!("numbers", ALL),
    piece!("big", TANKS),
    piece!("tank", TANKS),
    piece!("token_bucket", 1),
    piece!("interval_bucket", 1 << 1),
    piece!("leaky_bucket", 1 << 2),
    piece!("fixed_window", 1 << 3),
    piece!("event_log", LOGS),
    piece!("sliding_log", 1 << 4),
    piece!("strict_window", 1 << 5),
    piece!("interpolated_window", 1 << 6),
    piece!("concurrency", 1 << 7),
    piece!("lockout", 1 << 8),
    piece!("engine", ALL),
];

/// Shorter ways to the same answers for the most frequent call, by algorithm.
const SHORT_CUTS: [&str; ALGORITHMS] = [
    include_str!("scripts/short_token_bucket.lua"),
    "",
    "",
    include_str!("scripts/short_fixed_window.lua"),
    include_str!("scripts/short_sliding_log.lua"),
    "",
    "",
    "",
    "",
];

const ONE: &str = include_str!("scripts/one.lua");
const ALL_OF: &str = include_str!("scripts/all_of.lua");

/// Where scripts take the time from, and how they reach the values of keys.
struct Ground {
    clock: &'static str,
    keys: &'static str,
    /// What stands for the only value of a short cut: it makes no functions, which cost time.
    inlined: [(&'static str, &'static str); 3],
}

const SERVER: Ground = Ground {
    clock: include_str!("scripts/clock.lua"),
    keys: include_str!("scripts/keys.lua"),
    inlined: [
        ("READ()", "redis.call('GET', KEYS[1])"),
        ("READ_HEAD()", "redis.call('GETRANGE', KEYS[1], 0, 2047)"),
        (
            "WRITE(value, micros)",
            "redis.call('SET', KEYS[1], value, 'PX', math.ceil((now % 1000 + micros) / 1000))",
        ),
    ],
};

/// Scripts that are put together when they are first needed.
struct Scripts {
    ground: Ground,
    one: [OnceLock<Script>; ALGORITHMS],
    all_of: [OnceLock<Script>; ALL + 1],
}

impl Scripts {
    const fn new(ground: Ground) -> Self {
        Self {
            ground,
            one: [const { OnceLock::new() }; ALGORITHMS],
            all_of: [const { OnceLock::new() }; ALL + 1],
        }
    }

    fn one(&self, algorithm: usize) -> &Script {
        self.one[algorithm].get_or_init(|| {
            let text = self.ground.compose(SHORT_CUTS[algorithm], 1 << algorithm, ONE);
            Script::new(NAMES[algorithm], text.leak())
        })
    }

    fn all_of(&self, algorithms: usize) -> &Script {
        self.all_of[algorithms].get_or_init(|| {
            let name = format!("all_of {algorithms:03x}");
            Script::new(
                name.leak(),
                self.ground.compose("", algorithms, ALL_OF).leak(),
            )
        })
    }
}

static SCRIPTS: Scripts = Scripts::new(SERVER);

/// The number of a policy's algorithm.
pub(crate) const fn number(policy: &Policy) -> usize {
    match policy {
        Policy::TokenBucket(_) => 0,
        Policy::IntervalBucket(_) => 1,
        Policy::LeakyBucket(_) => 2,
        Policy::FixedWindow(_) => 3,
        Policy::SlidingLog(_) => 4,
        Policy::StrictWindow(_) => 5,
        Policy::InterpolatedWindow(_) => 6,
        Policy::Concurrency(_) => 7,
        Policy::Lockout(_) => 8,
    }
}

/// The script for one operation on one key.
pub(crate) fn one(algorithm: usize) -> &'static Script {
    SCRIPTS.one(algorithm)
}

/// The script for a call over several keys, whose algorithms are the set bits.
pub(crate) fn all_of(algorithms: usize) -> &'static Script {
    SCRIPTS.all_of(algorithms)
}

impl Ground {
    fn compose(&self, short_cut: &str, algorithms: usize, end: &str) -> String {
        let mut short_cut = short_cut.to_owned();
        for (word, text) in self.inlined {
            short_cut = short_cut.replace(word, text);
        }
        let needed = PIECES
            .iter()
            .filter(|piece| piece.needed_by & algorithms != 0)
            .map(|piece| piece.text);
        let mut text = String::new();
        let begin = [self.clock, &short_cut, self.keys];
        for piece in begin.into_iter().chain(needed).chain([end]) {
            for line in piece.lines().map(str::trim_start) {
                if !line.is_empty() && !line.starts_with("--") {
                    text.push_str(line);
                    text.push('\n');
                }
            }
        }
        text
    }
}

/// The same scripts with a time that the caller brings: only tests have it.
#[cfg(test)]
pub(crate) mod injected {
    use super::{Ground, Script, Scripts};

    /// The keys' functions come with the clock: here the short cuts call them.
    static SCRIPTS: Scripts = Scripts::new(Ground {
        clock: concat!(
            include_str!("scripts/clock_injected.lua"),
            include_str!("scripts/keys_injected.lua")
        ),
        keys: "",
        inlined: [
            ("READ()", "read(KEYS[1])"),
            ("READ_HEAD()", "read_range(KEYS[1], 0, 2047)"),
            ("WRITE(value, micros)", "write(KEYS[1], value, micros)"),
        ],
    });

    /// The twin of a script whose last argument is the time.
    pub(crate) fn twin(script: &Script) -> &'static Script {
        match script.name.strip_prefix("all_of ") {
            Some(algorithms) => {
                SCRIPTS.all_of(usize::from_str_radix(algorithms, 16).expect("a set of bits"))
            }
            None => {
                let number = super::NAMES.iter().position(|name| *name == script.name);
                SCRIPTS.one(number.expect("the name of an algorithm"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_script_that_is_sent_takes_a_callers_time() {
        let all = (0..ALGORITHMS).map(one).chain((1..=ALL).map(all_of));
        for script in all {
            assert!(
                script
                    .source
                    .starts_with("local clock = redis.call('TIME')")
            );
            assert!(!script.source.contains("ARGV[#ARGV]"), "{}", script.name);
            assert!(!script.source.contains("server.call"), "{}", script.name);
            assert!(!script.source.contains("--"), "{}", script.name);
        }
    }
}
