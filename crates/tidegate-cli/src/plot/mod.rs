//! Plots as SVG that takes its colours from the page around it, and as text for a terminal.
//!
//! Nothing is drawn that is not in the data: lines are steps or straight, areas begin at zero.

mod scale;
mod svg;
mod text;

pub use scale::{Scale, number};
pub use svg::{STYLE, escaped, svg, svg_document};
pub use text::text;

/// How the points of a series are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Each value holds until the next point, and what is below is filled.
    Area,
    /// Each value holds until the next point.
    Steps,
    /// Bars from one point to the next.
    Bars,
}

/// One series of values.
#[derive(Clone, Debug)]
pub struct Series {
    /// What it is, for the legend.
    pub name: String,
    /// Which of the page's colours it has: `offered`, `admitted`, `denied` or `s1` to `s6`.
    pub colour: String,
    /// How its points are joined.
    pub shape: Shape,
    /// The points, by rising x.
    pub points: Vec<(f64, f64)>,
}

/// A line across the plot, with a word beside it.
#[derive(Clone, Debug)]
pub struct Mark {
    /// Where it crosses the x axis.
    pub at: f64,
    /// What it is.
    pub label: String,
}

/// A plot.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What it shows, for those who cannot see it.
    pub title: String,
    /// The x axis.
    pub x: Scale,
    /// The y axis.
    pub y: Scale,
    /// The series; those that come later are drawn over those before.
    pub series: Vec<Series>,
    /// Lines across.
    pub marks: Vec<Mark>,
    /// Whether it stands beside another one.
    pub narrow: bool,
}
