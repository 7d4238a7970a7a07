//! What a limit's description promises: "no more than 3 in 10 minutes".

use tidegate_core::Micros;

use crate::text::{parse_count, parse_period};

/// A number that shall never be passed in any window of a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Promise {
    pub count: u32,
    pub period: Micros,
}

const PHRASES: [&[&str]; 8] = [
    &["no", "more", "than"],
    &["not", "more", "than"],
    &["never", "more", "than"],
    &["at", "most"],
    &["maximum", "of"],
    &["max"],
    &["never", "above"],
    &["never", "exceed"],
];

const NUMBERS: [&str; 13] = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve",
];

/// Finds the first promise in a text.
pub(super) fn promise(text: &str) -> Option<Promise> {
    let lower = text.to_lowercase().replace('/', " per ");
    let words: Vec<&str> = lower
        .split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|word| !word.is_empty())
        .collect();
    (0..words.len()).find_map(|start| {
        let phrase = PHRASES
            .iter()
            .find(|phrase| words[start..].starts_with(phrase))?;
        let (count, rest) = words[start + phrase.len()..].split_first()?;
        Some(Promise {
            count: number(count)?,
            period: period(rest)?,
        })
    })
}

fn number(word: &str) -> Option<u32> {
    let spelled = NUMBERS.iter().position(|number| *number == word);
    spelled
        .and_then(|number| u32::try_from(number).ok())
        .or_else(|| parse_count(word).ok())
}

/// The first length of time behind a word that announces one, at most a few words on.
fn period(words: &[&str]) -> Option<Micros> {
    const NEAR: usize = 10;
    words.iter().take(NEAR).enumerate().find_map(|(at, word)| {
        let announces = matches!(
            *word,
            "in" | "per" | "within" | "every" | "each" | "a" | "an" | "during"
        );
        if announces {
            length(&words[at + 1..])
        } else {
            None
        }
    })
}

fn length(words: &[&str]) -> Option<Micros> {
    let is_article =
        |word: &&str| matches!(*word, "any" | "a" | "an" | "the" | "each" | "every" | "all");
    let mut words = words.iter().copied().skip_while(is_article);
    let (first, second) = (words.next()?, words.next().unwrap_or(""));
    if let Some(amount) = number(first) {
        return parse_period(&format!("{amount}{second}")).ok();
    }
    // `10m` in one word, or a unit alone.
    parse_period(first)
        .or_else(|_| parse_period(&format!("1{first}")))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_are_found_as_people_write_them() {
        for (text, count, seconds) in [
            ("at most 3 SMS per number per 10 minutes", 3, 600),
            ("No more than 3 in 10 minutes.", 3, 600),
            ("at most 100 calls per minute", 100, 60),
            ("never more than five within any 15 min", 5, 900),
            ("One-time passwords: no more than 3 in any 10m", 3, 600),
            ("max 100/s", 100, 1),
            ("at most 20 an hour", 20, 3600),
        ] {
            let period = Micros::from_secs(seconds);
            assert_eq!(promise(text), Some(Promise { count, period }), "{text}");
        }
        for text in [
            "",
            "at most",
            "at most 3 at once",
            "100 per minute",
            "protects the database",
        ] {
            assert_eq!(promise(text), None, "{text}");
        }
    }
}
