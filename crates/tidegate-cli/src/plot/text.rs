//! Plots as text, two by four dots to a character.

use std::fmt::Write as _;

use super::Chart;

const COLUMNS: usize = 64;
const ROWS: usize = 14;

/// The dots of a braille character, by column and row from the top.
const DOTS: [[u32; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];

/// A plot for a terminal: every series is drawn as steps, and told apart by the legend's order
/// from the highest at the right edge.
pub fn text(chart: &Chart) -> String {
    let (width, height) = (COLUMNS * 2, ROWS * 4);
    let mut cells = vec![[0_u32; COLUMNS]; ROWS];
    for series in &chart.series {
        let mut points = series.points.iter().peekable();
        let mut value = None;
        let mut last: Option<usize> = None;
        for column in 0..width {
            let at = chart.x.at((column as f64 + 0.5) / width as f64);
            while let Some((_, next)) = points.next_if(|(x, _)| *x <= at) {
                value = Some(*next);
            }
            let Some(value) = value else { continue };
            // The place is between 0 and 1.
            let place = chart.y.place(value) * (height - 1) as f64;
            let row = height - 1 - place.round().clamp(0.0, (height - 1) as f64) as usize;
            let from = last.map_or(row, |last| last.min(row));
            let to = last.map_or(row, |last| last.max(row));
            for row in from..=to {
                cells[row / 4][column / 2] |= DOTS[column % 2][row % 4];
            }
            last = Some(row);
        }
    }
    let ticks = chart.y.ticks();
    let margin = ticks
        .iter()
        .map(|(_, label)| label.chars().count())
        .max()
        .unwrap_or(0);
    let mut out = String::new();
    let _ = writeln!(out, "{:margin$} {}", "", chart.y.label);
    for (place, row) in cells.iter().enumerate() {
        let label = ticks.iter().find(|(value, _)| {
            let at = (1.0 - chart.y.place(*value)) * (ROWS - 1) as f64;
            at.round() as usize == place
        });
        let label = label.map_or("", |(_, label)| label);
        let line: String = row
            .iter()
            .map(|dots| char::from_u32(0x2800 + dots).unwrap_or(' '))
            .collect();
        let line = line.trim_end_matches('\u{2800}');
        let _ = writeln!(out, "{label:>margin$} ┤{line}");
    }
    let mut below = vec![' '; COLUMNS + 12];
    let mut rule = vec!['─'; COLUMNS];
    for (value, label) in chart.x.ticks() {
        let at = (chart.x.place(*value) * (COLUMNS - 1) as f64).round() as usize;
        rule[at] = '┬';
        let free = at.saturating_sub(1)..(at + label.chars().count() + 1).min(below.len());
        if below[free].iter().all(|c| *c == ' ') {
            for (place, c) in label.chars().enumerate() {
                if let Some(cell) = below.get_mut(at + place) {
                    *cell = c;
                }
            }
        }
    }
    let rule: String = rule.into_iter().collect();
    let below: String = below.into_iter().collect();
    let _ = writeln!(out, "{:margin$} └{rule}", "");
    let _ = writeln!(out, "{:margin$}  {}", "", below.trim_end());
    let _ = writeln!(out, "{:margin$}  {}", "", chart.x.label);
    out
}
