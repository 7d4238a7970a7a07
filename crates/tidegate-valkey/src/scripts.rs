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

const ALL: usize = (1 << ALGORITHMS) - 1;
const TANKS: usize = 0b000_000_101;
const LOGS: usize = 0b100_110_000;

/// A part of a script. What few calls need of it is the body of a function of its table: making a
/// function takes the server time, used or not.
struct Part {
    /// The table that it makes.
    table: &'static str,
    usual: &'static str,
    rare: &'static [&'static str],
    /// The algorithms that need it, as a set of bits.
    needed_by: usize,
}

macro_rules! lua {
    ($name:literal) => {
        include_str!(concat!("scripts/", $name, ".lua"))
    };
}

macro_rules! part {
    ($table:literal, $usual:literal, $rare:literal, $needed_by:expr) => {
        Part {
            table: $table,
            usual: lua!($usual),
            rare: &[lua!($rare)],
            needed_by: $needed_by,
        }
    };
}

/// What several algorithms are made of.
const SHARED: [Part; 2] = [
    Part {
        table: "tank",
        usual: lua!("tank"),
        rare: &[lua!("big"), lua!("tank_rare")],
        needed_by: TANKS,
    },
    part!("log", "event_log", "event_log_rare", LOGS),
];

/// The algorithms, by their numbers.
const PARTS: [Part; ALGORITHMS] = [
    part!("token_bucket", "token_bucket", "token_bucket_rare", 1),
    part!(
        "interval_bucket",
        "interval_bucket",
        "interval_bucket_rare",
        1 << 1
    ),
    part!("leaky_bucket", "leaky_bucket", "leaky_bucket_rare", 1 << 2),
    part!("fixed_window", "fixed_window", "fixed_window_rare", 1 << 3),
    part!("sliding_log", "sliding_log", "sliding_log_rare", 1 << 4),
    part!(
        "strict_window",
        "strict_window",
        "strict_window_rare",
        1 << 5
    ),
    part!(
        "interpolated_window",
        "interpolated_window",
        "interpolated_window_rare",
        1 << 6
    ),
    part!("permits", "concurrency", "concurrency_rare", 1 << 7),
    part!("lockout", "lockout", "lockout_rare", 1 << 8),
];

/// Short ways to the answers of the most frequent calls, with the number of the algorithm and the
/// letters of its headers.
const SHORT_WAYS: [(usize, &[u8], &str); 6] = [
    (0, b"B", lua!("short_token_bucket")),
    (2, b"Q", lua!("short_leaky_bucket")),
    (3, b"FU", lua!("short_fixed_window")),
    (4, b"L", lua!("short_log")),
    (5, b"S", lua!("short_log")),
    (6, b"W", lua!("short_interpolated_window")),
];

const ONE: &str = lua!("one");
const ALL_OF: &str = lua!("all_of");

/// Where scripts take the time from, and how they reach the values of keys.
struct Ground {
    clock: &'static str,
    keys: &'static str,
    long_keys: &'static str,
    /// Words of the short ways and what stands for them: calls of functions take the server time.
    words: [(&'static str, &'static str); 3],
}

const SERVER: Ground = Ground {
    clock: lua!("clock"),
    keys: lua!("keys"),
    long_keys: lua!("keys_long"),
    words: [
        ("READ(key)", "redis.call('GET', key)"),
        ("READ_HEAD(key)", "redis.call('GETRANGE', key, 0, 2047)"),
        (
            "WRITE(key, state, micros)",
            "redis.call('SET', key, state, 'PX', math.ceil((now % 1000 + micros) / 1000))",
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
            let text = self.ground.compose(1 << algorithm, ONE);
            Script::new(NAMES[algorithm], text.leak())
        })
    }

    fn all_of(&self, algorithms: usize) -> &Script {
        self.all_of[algorithms].get_or_init(|| {
            let name = format!("all_of {algorithms:03x}");
            Script::new(name.leak(), self.ground.compose(algorithms, ALL_OF).leak())
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
    fn compose(&self, algorithms: usize, end: &str) -> String {
        let is_needed = |part: &&Part| part.needed_by & algorithms != 0;
        let mut text = Text(String::new());
        text.add(self.clock);
        text.add(&self.short_way(algorithms, end));
        text.add(self.keys);
        if algorithms & LOGS != 0 {
            text.add(self.long_keys);
        }
        text.add(lua!("numbers"));
        for part in SHARED.iter().filter(is_needed) {
            text.add_part(part);
        }
        for part in PARTS.iter().filter(is_needed) {
            // Each has helpers of its own, which the others must not see.
            text.add("do");
            text.add_part(part);
            text.add("end");
        }
        text.add(lua!("engine"));
        if end == ONE {
            text.add(lua!("take"));
            text.add_function(
                "local function rarely(e, op, x, y, z)",
                &[lua!("engine_rare")],
            );
        }
        text.add(end);
        text.0
    }

    /// The short way of one algorithm, or those of several, with its words replaced.
    fn short_way(&self, algorithms: usize, end: &str) -> String {
        let mut ways = SHORT_WAYS
            .iter()
            .filter(|(number, ..)| 1 << number & algorithms != 0);
        let text = if end == ONE {
            let Some((_, _, way)) = ways.next_back() else {
                return String::new();
            };
            lua!("short_one").replace("SHORT()", way)
        } else {
            let functions: String = ways
                .map(|(_, letters, way)| short_function(letters, way))
                .collect();
            if functions.is_empty() {
                return functions;
            }
            lua!("short_all_of").replace("SHORTS()", &functions)
        };
        let replaced = |text: String, (word, by): (&str, &str)| text.replace(word, by);
        self.words.into_iter().fold(text, replaced)
    }
}

/// A short way as a function: where several keys are asked.
fn short_function(letters: &[u8], way: &str) -> String {
    let names: Vec<String> = letters
        .iter()
        .map(|letter| format!("short[{letter}]"))
        .collect();
    let mut function = format!(
        "{} = function(key, header, cost)
            local verdict, limit, remaining, reset, fresh, state
            local n, retry, delay = now, 0, 0
            {way}
            return verdict, limit, remaining, reset, fresh, state, n, retry, delay
        end
        ",
        names[0]
    );
    for name in &names[1..] {
        function.push_str(&format!("{name} = {}\n", names[0]));
    }
    function
}

/// A script's text while it grows.
struct Text(String);

impl Text {
    fn add(&mut self, text: &str) {
        for line in text.lines().map(str::trim_start) {
            if !line.is_empty() && !line.starts_with("--") {
                self.0.push_str(line);
                self.0.push('\n');
            }
        }
    }

    fn add_function(&mut self, head: &str, bodies: &[&str]) {
        self.add(head);
        for body in bodies {
            self.add(body);
        }
        self.add("end");
    }

    fn add_part(&mut self, part: &Part) {
        self.add(part.usual);
        self.add_function(&format!("function {}.rare()", part.table), part.rare);
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
        long_keys: "",
        words: [
            ("READ(key)", "read(key)"),
            ("READ_HEAD(key)", "read_range(key, 0, 2047)"),
            ("WRITE(key, state, micros)", "write(key, state, micros)"),
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
