//! `--report`: what came of a simulation as one page that needs nothing else.

use std::fmt::Write as _;

use tidegate::simulation::{
    Dial, KeyShare, LimitNumber, Simulation, SortedNeeds, Tally, Verdicts, WhatIf,
};

use super::calendar::{clock_ticks, written};
use super::series::{Series, Step};
use super::trials::{length, percent};
use crate::plot::{Chart, Mark, STYLE, Scale, Series as Line, Shape, escaped, number, svg};

/// How many of the most denied keys a limit shows.
const MOST_DENIED: usize = 10;

/// How many points a curve has at most.
const POINTS: usize = 300;

/// What a page is made of.
pub struct Page<'a> {
    /// The limits as they were played.
    pub simulation: &'a Simulation,
    /// The numbers as configured of every limit, and those that were tried beside them.
    pub what_if: &'a WhatIf,
    /// What the keys of limits need.
    pub needs: Vec<(Dial, SortedNeeds)>,
    /// Calls over time.
    pub series: &'a Series,
    /// What was read.
    pub tally: Tally,
    /// The names of the configuration and of the traces.
    pub names: Vec<String>,
}

impl Page<'_> {
    /// The whole page.
    pub fn html(&self) -> String {
        let verdicts: Vec<(usize, Verdicts<'_>)> = self.what_if.verdicts().enumerate().collect();
        let mut out = String::new();
        let names: Vec<String> = self.names.iter().map(|name| escaped(name)).collect();
        let _ = write!(
            out,
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <title>tidegate simulate: {}</title><style>{STYLE}{}</style></head><body>",
            names[0],
            include_str!("page.css")
        );
        let _ = write!(
            out,
            "<header><p class=\"kind\">tidegate simulate</p><h1>{}</h1><p class=\"soft\">{}{}</p></header>",
            names[0],
            names[1..].join(", "),
            self.when()
        );
        self.overview(&verdicts, &mut out);
        for limit in self.simulation.limits() {
            let of_limit: Vec<&(usize, Verdicts<'_>)> = verdicts
                .iter()
                .filter(|(_, verdict)| verdict.alternative.limit == limit)
                .collect();
            self.limit(limit, &of_limit, &mut out);
        }
        self.footer(&mut out);
        out.push_str("</body></html>\n");
        out
    }

    fn when(&self) -> String {
        self.series.span().map_or_else(String::new, |(from, to)| {
            format!(
                " · {} to {} ({})",
                written(from),
                written(to),
                length(to - from)
            )
        })
    }

    /// All calls, and the limits beside one another.
    fn overview(&self, verdicts: &[(usize, Verdicts<'_>)], out: &mut String) {
        let all = self.series.all();
        let offered: u64 = all.iter().map(|(_, step)| step.offered).sum();
        let admitted: u64 = all.iter().map(|(_, step)| step.admitted).sum();
        out.push_str("<section>");
        tiles(
            &[
                ("calls that met a limit", grouped(offered)),
                ("passed", format!("{} %", percent(admitted, offered))),
                ("refused", grouped(offered - admitted)),
                ("calls that met none", grouped(self.tally.unlimited)),
            ],
            out,
        );
        figure(
            "Calls offered and admitted, all limits together",
            &self.over_time(&all, "All calls over time"),
            out,
        );
        if self.simulation.limits().count() > 1 {
            out.push_str(
                "<table><thead><tr><th>limit<th>algorithm<th class=n>calls<th class=n>denied\
                 <th class=n>%<th class=n>clients<th class=n>denied<th class=n>%<th class=bar></tr></thead><tbody>",
            );
            let mut seen = Vec::new();
            for (_, verdict) in verdicts {
                let limit = verdict.alternative.limit;
                if seen.contains(&limit) {
                    continue;
                }
                seen.push(limit);
                let name = escaped(self.simulation.name(limit));
                let _ = write!(
                    out,
                    "<tr><td><a href=\"#limit-{}\">{name}</a><td class=soft>{}{}<td>",
                    limit.index(),
                    escaped(&verdict.alternative.header),
                    cells(verdict),
                );
            }
            out.push_str("</tbody></table>");
        }
        out.push_str("</section>");
    }

    /// Everything about one limit.
    fn limit(&self, limit: LimitNumber, verdicts: &[&(usize, Verdicts<'_>)], out: &mut String) {
        let Some((place, own)) = verdicts.first() else {
            return;
        };
        let _ = write!(
            out,
            "<section id=\"limit-{}\"><h2>{}</h2><p class=\"algorithm\">{}</p>",
            limit.index(),
            escaped(self.simulation.name(limit)),
            escaped(self.simulation.header(limit))
        );
        if own.asked == 0 {
            out.push_str("<p class=soft>No call met this limit.</p></section>");
            return;
        }
        let spared = own.keys - own.keys_denied;
        tiles(
            &[
                ("calls", grouped(own.asked)),
                (
                    "calls it denies",
                    format!(
                        "{} <small>{} %</small>",
                        grouped(own.denied),
                        percent(own.denied, own.asked)
                    ),
                ),
                (
                    "clients it denies at least once",
                    format!(
                        "{} <small>of {}</small>",
                        grouped(own.keys_denied),
                        grouped(own.keys)
                    ),
                ),
                (
                    "clients untouched",
                    format!("{} %", percent(spared, own.keys)),
                ),
                (
                    "most denials in a row",
                    grouped(u64::from(own.longest_denial_streak)),
                ),
            ],
            out,
        );
        let steps = self.series.limit(limit.index());
        figure(
            "Calls over time",
            &self.over_time(&steps, "Calls over time"),
            out,
        );
        out.push_str("<div class=pair>");
        if let Some((dial, needs)) = self.needs.iter().find(|(dial, _)| dial.limit() == limit) {
            figure(
                "How large it must be: the share of clients that each number leaves untouched",
                &need_chart(dial, needs),
                out,
            );
        }
        if let Some(chart) = wait_chart(own) {
            figure("How long the denied would have to wait", &chart, out);
        }
        out.push_str("</div>");
        if verdicts.len() > 1 {
            what_if_table(verdicts, out);
        }
        if own.keys > 1 {
            self.most_denied(limit, *place, out);
        }
        out.push_str("</section>");
    }

    fn most_denied(&self, limit: LimitNumber, place: usize, out: &mut String) {
        let most = self.what_if.most_denied(place, MOST_DENIED);
        if most.is_empty() {
            out.push_str("<p class=soft>Nobody is denied.</p>");
            return;
        }
        out.push_str(
            "<h3>Most denied</h3><table><thead><tr><th>client<th class=n>calls<th class=n>denied\
             <th class=n>%<th class=bar></tr></thead><tbody>",
        );
        for (key, asked, denied) in most {
            let _ = write!(
                out,
                "<tr><td class=key>{}<td class=n>{}<td class=n>{}<td class=n>{}<td>{}",
                escaped(&self.simulation.key_text(limit, key)),
                grouped(asked),
                grouped(denied),
                percent(denied, asked),
                bar(denied, asked)
            );
        }
        out.push_str("</tbody></table>");
    }

    fn footer(&self, out: &mut String) {
        let tally = &self.tally;
        let _ = write!(
            out,
            "<footer><p>{} lines read, {} of them not understood, {} out of order and sorted, {} too \
             late to be sorted.</p><p>A client is a key of the limit. Denied calls are those of the \
             configured numbers, enforced. Times are UTC.</p></footer>",
            grouped(tally.lines),
            grouped(tally.unreadable),
            grouped(tally.disorder.reordered),
            grouped(tally.disorder.overrun)
        );
    }

    fn over_time(&self, steps: &[(u64, Step)], title: &str) -> Chart {
        let seconds = self.series.step_seconds();
        let rate = |count: u64| count as f64 / seconds;
        let line = |of: fn(&Step) -> u64| {
            let points = steps.iter().map(|(at, step)| (*at as f64, rate(of(step))));
            points.collect::<Vec<_>>()
        };
        let top = steps
            .iter()
            .map(|(_, step)| rate(step.offered))
            .fold(0.0, f64::max);
        let span = (
            steps.first().map_or(0, |(at, _)| *at),
            steps.last().map_or(1, |(at, _)| *at),
        );
        let series = |name: &str, shape, points| Line {
            name: name.to_owned(),
            colour: name.to_owned(),
            shape,
            points,
        };
        Chart {
            title: title.to_owned(),
            x: Scale::with_ticks(
                "",
                (span.0 as f64, span.1 as f64),
                false,
                clock_ticks(span.0, span.1),
            ),
            y: Scale::linear("calls per second", 0.0, top),
            series: vec![
                series("offered", Shape::Area, line(|step| step.offered)),
                series("admitted", Shape::Area, line(|step| step.admitted)),
                series("denied", Shape::Steps, line(|step| step.denied)),
            ],
            marks: Vec::new(),
            narrow: false,
        }
    }
}

/// The share of keys untouched, by the number.
fn need_chart(dial: &Dial, needs: &SortedNeeds) -> Chart {
    let curve = needs.curve(POINTS);
    let keys = needs.keys().max(1) as f64;
    let mut points: Vec<(f64, f64)> = curve
        .iter()
        .map(|(need, untouched)| (f64::from((*need).max(1)), *untouched as f64 * 100.0 / keys))
        .collect();
    let last = points.last().map_or(1.0, |(need, _)| *need);
    let mut marks = Vec::new();
    let configured = dial.configured().filter(|number| *number > 0);
    let spares = needs
        .least(KeyShare::millionths(999_000))
        .map(|number| number.max(1));
    let right = configured.map_or(last, |number| last.max(f64::from(number))) * 1.15;
    points.push((right, points.last().map_or(0.0, |(_, share)| *share)));
    if let Some(number) = configured {
        marks.push(Mark {
            at: f64::from(number),
            label: format!("configured {number}"),
        });
    }
    let same = spares == configured;
    if let Some(number) = spares.filter(|_| !same) {
        marks.push(Mark {
            at: f64::from(number),
            label: format!("99.9 %: {number}"),
        });
    }
    Chart {
        title: "Share of clients untouched by the number".to_owned(),
        x: Scale::logarithmic(dial.field(), 1.0, right, number),
        y: Scale::linear("% of clients untouched", 0.0, 100.0),
        series: vec![Line {
            name: "untouched".to_owned(),
            colour: "s1".to_owned(),
            shape: Shape::Area,
            points,
        }],
        marks,
        narrow: true,
    }
}

/// How many denials had which wait; none where nobody waits.
fn wait_chart(verdict: &Verdicts<'_>) -> Option<Chart> {
    let steps: Vec<(u64, u64)> = verdict.waits.steps().collect();
    let first = steps.iter().position(|(_, count)| *count > 0)?;
    let top = steps
        .iter()
        .map(|(_, count)| *count as f64)
        .fold(0.0, f64::max);
    let end = steps.len();
    let mut points: Vec<(f64, f64)> = steps[first..]
        .iter()
        .enumerate()
        .map(|(at, (_, count))| ((first + at) as f64, *count as f64))
        .collect();
    points.push((end as f64, 0.0));
    let every = (end - first).div_ceil(7).max(1);
    let ticks = (first..=end).step_by(every).map(|step| {
        let micros = if step == 0 {
            0
        } else {
            1_000_u64 << (step - 1)
        };
        (step as f64, length(micros))
    });
    Some(Chart {
        title: "Waits of denied calls".to_owned(),
        x: Scale::with_ticks("wait", (first as f64, end as f64), false, ticks.collect()),
        y: Scale::linear("calls", 0.0, top),
        series: vec![Line {
            name: "denied".to_owned(),
            colour: "denied".to_owned(),
            shape: Shape::Bars,
            points,
        }],
        marks: Vec::new(),
        narrow: true,
    })
}

fn what_if_table(verdicts: &[&(usize, Verdicts<'_>)], out: &mut String) {
    out.push_str(
        "<h3>What if</h3><table><thead><tr><th>numbers<th class=n>calls<th class=n>denied\
         <th class=n>%<th class=n>clients<th class=n>denied<th class=n>%<th class=bar>clients denied\
         <th class=n>wait 90 %</tr></thead><tbody>",
    );
    let worst = verdicts
        .iter()
        .map(|(_, verdict)| verdict.keys_denied)
        .max()
        .unwrap_or(0);
    for (_, verdict) in verdicts {
        let wait = verdict
            .waits
            .at_most(900)
            .map_or_else(|| "–".to_owned(), length);
        let _ = write!(
            out,
            "<tr><td>{}{}<td>{}<td class=n>{wait}",
            escaped(&verdict.alternative.label),
            cells_without_bar(verdict),
            bar(verdict.keys_denied, worst.max(1)),
        );
    }
    out.push_str("</tbody></table>");
}

fn cells(verdict: &Verdicts<'_>) -> String {
    format!(
        "{}<td>{}",
        cells_without_bar(verdict),
        bar(verdict.keys_denied, verdict.keys)
    )
}

fn cells_without_bar(verdict: &Verdicts<'_>) -> String {
    format!(
        "<td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{}",
        grouped(verdict.asked),
        grouped(verdict.denied),
        percent(verdict.denied, verdict.asked),
        grouped(verdict.keys),
        grouped(verdict.keys_denied),
        percent(verdict.keys_denied, verdict.keys)
    )
}

fn bar(part: u64, whole: u64) -> String {
    let width = part as f64 * 100.0 / whole.max(1) as f64;
    format!("<span class=track><span class=fill style=\"width:{width:.2}%\"></span></span>")
}

fn tiles(tiles: &[(&str, String)], out: &mut String) {
    out.push_str("<dl class=tiles>");
    for (name, value) in tiles {
        let _ = write!(out, "<div><dt>{name}<dd>{value}</div>");
    }
    out.push_str("</dl>");
}

fn figure(caption: &str, chart: &Chart, out: &mut String) {
    let _ = write!(
        out,
        "<figure><figcaption>{}</figcaption>{}</figure>",
        escaped(caption),
        svg(chart)
    );
}

/// A number with a thin space between its thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}
