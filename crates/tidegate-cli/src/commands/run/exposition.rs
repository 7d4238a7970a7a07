//! Metrics of several doors on one page.
//!
//! Each door counts for itself, and some metrics have the same name at all of them, told apart by
//! the label `door`. A page must have each name once, so what belongs to one is laid together.

use std::collections::HashMap;

/// One metric: what is said of it, and its values.
#[derive(Default)]
struct Family<'a> {
    about: Vec<&'a str>,
    values: Vec<&'a str>,
}

/// Lays pages in the OpenMetrics text format together. A value that stands on two pages under the
/// same labels is taken from the first.
pub(super) fn merge(pages: &[String]) -> String {
    if let [page] = pages {
        return page.clone();
    }
    let mut order: Vec<&str> = Vec::new();
    let mut families: HashMap<&str, Family<'_>> = HashMap::new();
    for page in pages {
        let mut name = "";
        for line in page.lines() {
            let described = ["# HELP ", "# TYPE ", "# UNIT "]
                .iter()
                .find_map(|kind| line.strip_prefix(kind));
            if let Some(described) = described {
                name = described.split(' ').next().unwrap_or_default();
                let family = families.entry(name).or_insert_with(|| {
                    order.push(name);
                    Family::default()
                });
                if !family.about.contains(&line) {
                    family.about.push(line);
                }
            } else if let Some(family) = families.get_mut(name)
                && line != "# EOF"
                && !family
                    .values
                    .iter()
                    .any(|known| series(known) == series(line))
            {
                family.values.push(line);
            }
        }
    }
    let mut text = String::new();
    for name in order {
        let family = &families[name];
        for line in family.about.iter().chain(&family.values) {
            text.push_str(line);
            text.push('\n');
        }
    }
    text.push_str("# EOF\n");
    text
}

/// The name and the labels of a value.
fn series(line: &str) -> &str {
    line.rsplit_once(' ').map_or(line, |(series, _)| series)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_doors_count_under_one_name_stands_together() {
        let pages = [
            "# HELP a All.\n# TYPE a counter\na_total{door=\"x\"} 1\n# HELP b B.\n# TYPE b gauge\nb 2\n# EOF\n",
            "# HELP a All.\n# TYPE a counter\na_total{door=\"y\"} 3\n# HELP c C.\n# TYPE c gauge\nc 4\n# HELP b B.\n# TYPE b gauge\nb 9\n# EOF\n",
        ]
        .map(String::from);
        assert_eq!(
            merge(&pages),
            "# HELP a All.\n# TYPE a counter\na_total{door=\"x\"} 1\na_total{door=\"y\"} 3\n\
             # HELP b B.\n# TYPE b gauge\nb 2\n# HELP c C.\n# TYPE c gauge\nc 4\n# EOF\n"
        );
        assert_eq!(merge(&pages[..1]), pages[0]);
    }
}
