//! The worst case as a curve: how much passes at most within a window, by its length.

use tidegate::Micros;
use tidegate::explain::{admitted_within, plot_windows};
use tidegate_config::model::Limit;
use tidegate_config::{AlgorithmProblem, Config};

use super::super::simulate::length;
use crate::plot::{Chart, Mark, Scale, Series, Shape, number};

/// How many points a curve has, beside its steps.
const POINTS: u32 = 240;

/// How many curves are told apart in one plot.
const COLOURS: usize = 5;

/// One chart for each limit, and one for each set of limits that a route asks together; of all
/// limits together where there are no routes.
pub fn charts(config: &Config, limits: &[&Limit]) -> Result<Vec<Chart>, AlgorithmProblem> {
    let mut charts = Vec::new();
    for limit in limits {
        let title = format!("{}: {}", limit.name, limit.algorithm);
        charts.extend(chart(title, &[limit])?);
    }
    let routes = config.gateway.iter().flat_map(|gateway| &gateway.routes);
    let mut sets: Vec<(String, Vec<&Limit>)> = routes
        .map(|route| {
            let met = route.limits.iter().map(|limit| &config.limits[*limit]);
            (
                format!("{} at worst", route.pattern.as_str()),
                met.collect(),
            )
        })
        .collect();
    if config.gateway.is_none() {
        sets.push(("all limits together".to_owned(), limits.to_vec()));
    }
    for (title, set) in sets {
        let shown = set
            .iter()
            .all(|limit| limits.iter().any(|other| other.name == limit.name));
        if set.len() > 1 && shown {
            charts.extend(chart(title, &set)?);
        }
    }
    Ok(charts)
}

/// The curves of some limits, and the least of them where there are several; none where no limit
/// bounds anything.
fn chart(title: String, limits: &[&Limit]) -> Result<Option<Chart>, AlgorithmProblem> {
    let windows = plot_windows(limits, POINTS)?;
    let mut series = Vec::new();
    let mut least: Vec<Option<u64>> = vec![None; windows.len()];
    for limit in limits {
        let admitted = admitted_within(limit, &windows)?;
        for (least, admitted) in least.iter_mut().zip(&admitted) {
            *least = match (*least, *admitted) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        let colour = format!("s{}", series.len() % COLOURS + 1);
        series.extend(curve(&limit.name, &colour, &windows, &admitted));
    }
    if series.is_empty() {
        return Ok(None);
    }
    if let [only] = series.as_mut_slice() {
        only.shape = Shape::Area;
    } else {
        let all = curve("all of them", "denied", &windows, &least);
        series.extend(all.map(|all| Series {
            shape: Shape::Area,
            ..all
        }));
    }
    let values = series
        .iter()
        .flat_map(|series| &series.points)
        .map(|(_, y)| *y);
    let top = values.clone().fold(1.0, f64::max);
    let bottom = values.filter(|value| *value > 0.0).fold(top, f64::min);
    let ends = (micros(windows.first()), micros(windows.last()));
    let period = match limits {
        [limit] => tidegate::explain::own_window(limit)?,
        _ => None,
    };
    let marks = period.map(|period| Mark {
        at: period.0 as f64,
        label: format!("its own {period}"),
    });
    Ok(Some(Chart {
        title,
        x: Scale::with_ticks("length of the window", ends, true, ticks(ends)),
        y: Scale::logarithmic("passes at most", (bottom / 1.5).max(0.5), top * 1.2, number),
        series,
        marks: marks.into_iter().collect(),
        narrow: false,
    }))
}

fn curve(name: &str, colour: &str, windows: &[Micros], admitted: &[Option<u64>]) -> Option<Series> {
    let points = windows.iter().zip(admitted);
    let points: Vec<(f64, f64)> = points
        .filter_map(|(window, most)| Some((window.0 as f64, (*most)? as f64)))
        .collect();
    (!points.is_empty()).then(|| Series {
        name: name.to_owned(),
        colour: colour.to_owned(),
        shape: Shape::Steps,
        points,
    })
}

fn micros(window: Option<&Micros>) -> f64 {
    window.map_or(1.0, |window| window.0 as f64)
}

/// Lengths of time that people know, few enough to be read.
fn ticks((from, to): (f64, f64)) -> Vec<(f64, String)> {
    const KNOWN: [u64; 18] = [
        1,
        10,
        100,
        1_000,
        10_000,
        100_000,
        1_000_000,
        10_000_000,
        60_000_000,
        600_000_000,
        3_600_000_000,
        6 * 3_600_000_000,
        86_400_000_000,
        7 * 86_400_000_000,
        30 * 86_400_000_000,
        365 * 86_400_000_000,
        3_650 * 86_400_000_000,
        36_500 * 86_400_000_000,
    ];
    let inside = KNOWN
        .into_iter()
        .filter(|known| (from..=to).contains(&(*known as f64)));
    inside.map(|known| (known as f64, length(known))).collect()
}
