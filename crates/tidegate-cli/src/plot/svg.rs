//! Plots as SVG.

use std::fmt::Write as _;

use super::{Chart, Series, Shape};

const WIDE: f64 = 760.0;
const NARROW: f64 = 440.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 40.0;

/// Text as it may stand in HTML and SVG.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // No control character may stand there.
            c if c.is_control() && c != '\n' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A plot as an element of a page, which says what the classes look like.
pub fn svg(chart: &Chart) -> String {
    let mut out = String::new();
    let width = if chart.narrow { NARROW } else { WIDE };
    let x = |value: f64| LEFT + chart.x.place(value) * (width - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - chart.y.place(value) * (HEIGHT - TOP - BOTTOM);
    let _ = write!(
        out,
        "<svg class=\"plot\" viewBox=\"0 0 {width} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
        escaped(&chart.title)
    );
    for (value, label) in chart.y.ticks() {
        let at = y(*value);
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            width - RIGHT,
            LEFT - 8.0,
            at + 4.0,
            escaped(label)
        );
    }
    for (value, label) in chart.x.ticks() {
        let at = x(*value);
        let anchor = if at > width - RIGHT - 24.0 {
            "end"
        } else {
            "middle"
        };
        let (from, to) = (HEIGHT - BOTTOM, HEIGHT - BOTTOM + 4.0);
        let _ = write!(
            out,
            "<line class=\"axis\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{from}\" y2=\"{to}\"/>\
             <text class=\"tick\" x=\"{at:.1}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
            to + 12.0,
            escaped(label)
        );
    }
    for series in &chart.series {
        out.push_str(&shape(series, x, y));
    }
    let base = HEIGHT - BOTTOM;
    let _ = write!(
        out,
        "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{base}\" y2=\"{base}\"/>",
        width - RIGHT
    );
    for (row, mark) in chart.marks.iter().enumerate() {
        let at = x(mark.at);
        let end = at > width * 0.7;
        let (shift, anchor) = if end { (-5.0, "end") } else { (5.0, "start") };
        let _ = write!(
            out,
            "<line class=\"mark\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{base}\"/>\
             <text class=\"marked\" x=\"{:.1}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
            at + shift,
            TOP + 11.0 + 15.0 * row as f64,
            escaped(&mark.label)
        );
    }
    let _ = write!(
        out,
        "<text class=\"label\" x=\"{LEFT}\" y=\"14\">{}</text>\
         <text class=\"label\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
        escaped(&chart.y.label),
        width - RIGHT,
        HEIGHT - 6.0,
        escaped(&chart.x.label)
    );
    legend(chart, width, &mut out);
    out.push_str("</svg>");
    out
}

fn legend(chart: &Chart, width: f64, out: &mut String) {
    if chart.series.len() < 2 {
        return;
    }
    let mut at = width - RIGHT;
    for series in chart.series.iter().rev() {
        // Some 6.2 of a character of this size.
        let width = series.name.chars().count() as f64 * 6.2;
        at -= width;
        let _ = write!(
            out,
            "<text class=\"label\" x=\"{at:.1}\" y=\"14\">{}</text>\
             <rect class=\"{} swatch\" x=\"{:.1}\" y=\"5\" width=\"10\" height=\"10\" rx=\"2\"/>",
            escaped(&series.name),
            series.colour,
            at - 15.0
        );
        at -= 30.0;
    }
}

fn shape(series: &Series, x: impl Fn(f64) -> f64, y: impl Fn(f64) -> f64) -> String {
    let base = HEIGHT - BOTTOM;
    let mut path = String::new();
    match series.shape {
        Shape::Bars => {
            for pair in series.points.windows(2) {
                let (left, right, top) = (x(pair[0].0), x(pair[1].0), y(pair[0].1));
                if pair[0].1 > 0.0 {
                    let width = (right - left - 1.0).max(0.6);
                    let height = (base - top).max(0.8);
                    let _ = write!(
                        path,
                        "<rect class=\"{}\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{width:.1}\" \
                         height=\"{height:.1}\"/>",
                        series.colour,
                        base - height
                    );
                }
            }
            path
        }
        shape => {
            for (place, (at, value)) in series.points.iter().enumerate() {
                let _ = match place {
                    0 => write!(path, "M{:.1} {:.1}", x(*at), y(*value)),
                    _ => write!(path, "H{:.1}V{:.1}", x(*at), y(*value)),
                };
            }
            let line = format!("<path class=\"{} line\" d=\"{path}\"/>", series.colour);
            match (shape, series.points.first(), series.points.last()) {
                (Shape::Area, Some((first, _)), Some((last, _))) => format!(
                    "<path class=\"{} area\" d=\"{path}H{:.1}V{base}H{:.1}Z\"/>{line}",
                    series.colour,
                    x(*last),
                    x(*first)
                ),
                _ => line,
            }
        }
    }
}

/// What the classes of a plot look like, in light and in dark.
pub const STYLE: &str = include_str!("plot.css");

/// Plots below one another, as a document of its own.
pub fn svg_document(charts: &[Chart]) -> String {
    const TITLE: f64 = 30.0;
    let height = (HEIGHT + TITLE) * charts.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDE} {height}\" \
         font-family=\"system-ui, 'DejaVu Sans', sans-serif\">\
         <style>{STYLE}.heading {{ fill: var(--ink); font-size: 14px; font-weight: 600; }}</style>\
         <rect width=\"100%\" height=\"100%\" style=\"fill: var(--paper)\"/>"
    );
    for (place, chart) in charts.iter().enumerate() {
        let top = (HEIGHT + TITLE) * place as f64;
        let plot = svg(chart).replacen(
            "<svg ",
            &format!(
                "<svg y=\"{}\" width=\"{WIDE}\" height=\"{HEIGHT}\" ",
                top + TITLE
            ),
            1,
        );
        let _ = write!(
            out,
            "<text class=\"heading\" x=\"16\" y=\"{}\">{}</text>{plot}",
            top + 20.0,
            escaped(&chart.title)
        );
    }
    out.push_str("</svg>\n");
    out
}
