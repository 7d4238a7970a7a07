//! "Did you mean …?" and lists of what there is.

/// Words of other systems, or of another algorithm, and the one that is used here.
const SYNONYMS: [(&str, &str); 22] = [
    ("burst", "capacity"),
    ("max_burst", "burst"),
    ("max_burst", "capacity"),
    ("capacity", "burst"),
    ("tokens", "capacity"),
    ("size", "capacity"),
    ("max", "limit"),
    ("requests", "limit"),
    ("count", "limit"),
    ("permits", "limit"),
    ("max_concurrent", "limit"),
    ("limit", "rate"),
    ("rate", "limit"),
    ("window", "limit"),
    ("period", "limit"),
    ("ttl", "lease"),
    ("timezone", "time_zone"),
    ("tz", "time_zone"),
    ("target", "to"),
    ("url", "to"),
    ("path", "match"),
    ("upstream", "proxy"),
];

/// The remedy for a name that is not known: the nearest one that is, or all of them.
pub(crate) fn instead<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    let synonym = SYNONYMS
        .iter()
        .find(|(other, ours)| *other == wrong && known.contains(ours))
        .map(|(_, ours)| *ours);
    match synonym.or_else(|| nearest(wrong, &known)) {
        Some(name) if known.len() > 1 => {
            format!("did you mean `{name}`? there {}", there_are(&known))
        }
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("there {}", there_are(&known)),
    }
}

fn there_are(known: &[&str]) -> String {
    match known {
        [] => "is none yet".to_owned(),
        [one] => format!("is only `{one}`"),
        _ => format!("are {}", list(known.iter().copied())),
    }
}

/// The known name that was probably meant: at most a third of it is different.
pub(crate) fn nearest<'a>(wrong: &str, known: &[&'a str]) -> Option<&'a str> {
    // The distance takes time in both lengths: a long text is no slip of the finger.
    if wrong.len() > 64 {
        return None;
    }
    let plain = |name: &str| name.to_lowercase().replace(['-', ' ', '.'], "_");
    let wrong = plain(wrong);
    known
        .iter()
        .filter(|name| name.len() <= 64)
        .map(|name| (strsim::damerau_levenshtein(&wrong, &plain(name)), *name))
        .filter(|(distance, name)| *distance <= (name.len().max(wrong.len()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Names as a list, cut short where they are many.
pub(crate) fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 24;
    let names: Vec<&str> = names.into_iter().collect();
    let shown: Vec<String> = names
        .iter()
        .take(SHOWN)
        .map(|name| format!("`{name}`"))
        .collect();
    match names.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{} and {more} more", shown.join(", ")),
        _ => shown.join(", "),
    }
}
