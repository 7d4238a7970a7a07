//! `--what-if` and `--suggest`: other numbers for the limits, as tables and as JSON.

use std::fmt::Write as _;

use anyhow::{Result, anyhow};
use serde_json::{Value, json};
use tidegate::simulation::{
    Alternative, Dial, KeyShare, Scope, Simulation, SortedNeeds, Verdicts, WhatIf, aligned,
};

/// How many of the most denied keys are named.
const MOST_DENIED: usize = 10;

/// The shares that a suggestion shows beside the one that was asked for.
const SHARES: [u32; 5] = [500_000, 900_000, 990_000, 999_000, 1_000_000];

/// Adds what each `--what-if` asks for, after the numbers as configured of its limit; those of all
/// limits where `all` are wanted.
pub fn add(texts: &[String], all: bool, simulation: &mut Simulation) -> Result<WhatIf> {
    let mut what_if = WhatIf::new();
    let mut alternatives: Vec<Alternative> = Vec::new();
    if all {
        let limits = simulation.limits();
        alternatives.extend(limits.map(|limit| Alternative::configured(limit, simulation)));
    }
    for text in texts {
        for alternative in Alternative::parse(text, simulation)? {
            if !alternatives
                .iter()
                .any(|known| known.limit == alternative.limit)
            {
                alternatives.push(Alternative::configured(alternative.limit, simulation));
            }
            alternatives.push(alternative);
        }
    }
    // Those of one limit stand together, in the order in which they were asked for.
    alternatives.sort_by_key(|alternative| alternative.limit);
    for alternative in alternatives {
        what_if.add(simulation, alternative, Scope::All);
    }
    Ok(what_if)
}

/// A share in percent with two decimals, rounded down.
pub fn percent(part: u64, whole: u64) -> String {
    let parts = u128::from(part) * 10_000 / u128::from(whole.max(1));
    format!("{}.{:02}", parts / 100, parts % 100)
}

/// A length of time for people, by its two largest units.
pub fn length(micros: u64) -> String {
    const UNITS: [(u64, &str); 6] = [
        (86_400_000_000, "d"),
        (3_600_000_000, "h"),
        (60_000_000, "m"),
        (1_000_000, "s"),
        (1_000, "ms"),
        (1, "us"),
    ];
    let largest = UNITS.iter().position(|(size, _)| micros >= *size);
    let Some(at) = largest else {
        return "0s".to_owned();
    };
    let (size, unit) = UNITS[at];
    let mut text = format!("{}{unit}", micros / size);
    if let Some((small, unit)) = UNITS.get(at + 1).filter(|_| at < 3) {
        let rest = micros % size / small;
        if rest > 0 {
            let _ = write!(text, "{rest}{unit}");
        }
    }
    text
}

/// The alternatives as tables for people.
pub fn table(what_if: &WhatIf, simulation: &Simulation) -> String {
    let mut out = String::new();
    let verdicts: Vec<Verdicts<'_>> = what_if.verdicts().collect();
    let mut from = 0;
    while let Some(first) = verdicts.get(from) {
        let limit = first.alternative.limit;
        let of_limit = verdicts[from..]
            .iter()
            .take_while(|v| v.alternative.limit == limit);
        let count = of_limit.count();
        let name = simulation.name(limit);
        let _ = writeln!(out, "{name}: {} calls of {} keys", first.asked, first.keys);
        let head = [
            "what if",
            "calls denied",
            "%",
            "keys denied",
            "%",
            "streak",
            "wait 90%",
            "most denied",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for (place, verdict) in verdicts.iter().enumerate().skip(from).take(count) {
            let most = what_if.most_denied(place, 1);
            let most = most
                .first()
                .map_or_else(String::new, |(key, asked, denied)| {
                    format!("{} {denied}/{asked}", simulation.key_text(limit, *key))
                });
            rows.push(vec![
                verdict.alternative.label.clone(),
                verdict.denied.to_string(),
                percent(verdict.denied, verdict.asked),
                verdict.keys_denied.to_string(),
                percent(verdict.keys_denied, verdict.keys),
                verdict.longest_denial_streak.to_string(),
                verdict
                    .waits
                    .at_most(900)
                    .map_or_else(|| "-".to_owned(), length),
                most,
            ]);
        }
        out.push_str(&aligned(&rows));
        out.push('\n');
        from += count;
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

/// One JSON object for each alternative.
pub fn as_json(what_if: &WhatIf, simulation: &Simulation) -> Vec<Value> {
    let each = what_if.verdicts().enumerate();
    each.map(|(place, verdict)| {
        let limit = verdict.alternative.limit;
        let most: Vec<Value> = what_if
            .most_denied(place, MOST_DENIED)
            .into_iter()
            .map(|(key, asked, denied)| {
                json!({ "key": simulation.key_json(limit, key), "asked": asked, "denied": denied })
            })
            .collect();
        json!({
            "kind": "what_if",
            "limit": simulation.name(limit),
            "label": verdict.alternative.label,
            "algorithm": verdict.alternative.header,
            "asked": verdict.asked,
            "denied": verdict.denied,
            "denied_elsewhere": verdict.denied_elsewhere,
            "keys": verdict.keys,
            "keys_denied": verdict.keys_denied,
            "longest_denial_streak": verdict.longest_denial_streak,
            "longest_wait_us": verdict.waits.longest(),
            "waits_never": verdict.waits.never(),
            "most_denied": most,
        })
    })
    .collect()
}

/// A number that spares a share of the keys.
pub struct Suggestion {
    dial: Dial,
    share: KeyShare,
    needs: SortedNeeds,
    number: u32,
    /// Where the trial of this number stands, and of one less, among those of the second pass.
    trials: (usize, Option<usize>),
}

impl Suggestion {
    /// What the needs of a first pass suggest; the trials that show whether it is right go into
    /// the second. None where nobody called.
    ///
    /// # Errors
    /// No number spares the share.
    pub fn new(
        dial: Dial,
        share: KeyShare,
        needs: SortedNeeds,
        simulation: &mut Simulation,
        trials: &mut WhatIf,
    ) -> Result<Option<Self>> {
        if needs.keys() == 0 {
            return Ok(None);
        }
        let name = simulation.name(dial.limit()).to_owned();
        let number = needs.least(share).ok_or_else(|| {
            anyhow!("limit {name}: no number lets {share} of the keys pass untouched")
        })?;
        let mut next = trials.verdicts().count();
        let mut add = |number: u32| {
            let alternative = dial
                .at(number)
                .map_err(|error| anyhow!("limit {name}: {error}"))?;
            trials.add(simulation, alternative, Scope::Alone);
            next += 1;
            Ok::<usize, anyhow::Error>(next - 1)
        };
        let own = add(number)?;
        let less = number.checked_sub(1).map(&mut add).transpose()?;
        Ok(Some(Self {
            dial,
            share,
            needs,
            number,
            trials: (own, less),
        }))
    }

    /// The suggestion with what the second pass came to.
    ///
    /// # Errors
    /// The second pass says that it is wrong.
    pub fn report(
        &self,
        trials: &WhatIf,
        simulation: &Simulation,
        as_json: bool,
    ) -> Result<String> {
        let verdicts: Vec<Verdicts<'_>> = trials.verdicts().collect();
        let untouched = |place: usize| verdicts[place].keys - verdicts[place].keys_denied;
        let (own, less) = self.trials;
        let name = simulation.name(self.dial.limit());
        let keys = verdicts[own].keys;
        let wanted = self.share.of(self.needs.keys()) as u64;
        let spared = untouched(own);
        let spared_by_less = less.map(untouched);
        if spared < wanted || spared_by_less.is_some_and(|less| less >= wanted) {
            anyhow::bail!(
                "limit {name}: {} lets {spared} of {keys} keys pass untouched and one less lets \
                 {spared_by_less:?}, where {wanted} are wanted",
                verdicts[own].alternative.label
            );
        }
        let header = &verdicts[own].alternative.header;
        let others: Vec<(KeyShare, Option<u32>)> = SHARES
            .map(|share| {
                (
                    KeyShare::millionths(share),
                    self.needs.least(KeyShare::millionths(share)),
                )
            })
            .to_vec();
        if as_json {
            let others: Vec<Value> = others
                .iter()
                .map(|(share, number)| json!({ "share": share.to_string(), "number": number }))
                .collect();
            let line = json!({
                "kind": "suggestion", "limit": name, "share": self.share.to_string(),
                "number": self.number, "algorithm": header, "keys": keys, "untouched": spared,
                "untouched_by_one_less": spared_by_less, "others": others,
            });
            return Ok(format!("{line}\n"));
        }
        let mut out = String::new();
        let _ = writeln!(
            out,
            "{name}: {} lets {} of {keys} keys pass untouched, {} %",
            verdicts[own].alternative.label,
            spared,
            percent(spared, keys)
        );
        if let Some((place, less)) = less.zip(spared_by_less) {
            let _ = writeln!(
                out,
                "  one less, {}, lets {less} pass, {} %",
                verdicts[place].alternative.label,
                percent(less, keys)
            );
        }
        let _ = writeln!(out, "  write {}", yaml(header));
        let mut rows = vec![["  share of keys", "needs"].map(str::to_owned).to_vec()];
        for (share, number) in others {
            let number = number.map_or_else(|| "-".to_owned(), |number| number.to_string());
            rows.push(vec![format!("  {share}"), number]);
        }
        out.push_str(&aligned(&rows));
        Ok(out)
    }
}

/// A header as the configuration writes it.
pub fn yaml(header: &str) -> String {
    let mut words = header.split_whitespace();
    let algorithm = words.next().unwrap_or_default();
    let words: Vec<&str> = words.collect();
    let fields: Vec<String> = words.chunks(2).map(|pair| pair.join(": ")).collect();
    format!("algorithm: {{ {algorithm}: {{ {} }} }}", fields.join(", "))
}
