//! Axes: where a value lies, and which values are written beside it.

/// An axis.
#[derive(Clone, Debug)]
pub struct Scale {
    /// What it measures.
    pub label: String,
    min: f64,
    max: f64,
    logarithmic: bool,
    ticks: Vec<(f64, String)>,
}

impl Scale {
    /// An even axis from `min` to at least `max`, with round numbers beside it.
    pub fn linear(label: &str, min: f64, max: f64) -> Self {
        let max = if max > min { max } else { min + 1.0 };
        let step = round_step((max - min) / 5.0);
        let top = (max / step).ceil() * step;
        let mut ticks = Vec::new();
        let mut at = (min / step).ceil() * step;
        while at <= top * 1.000_001 {
            ticks.push((at, number(at)));
            at += step;
        }
        Self {
            label: label.to_owned(),
            min,
            max: top,
            logarithmic: false,
            ticks,
        }
    }

    /// An axis on which equal factors are equally far apart; `min` is above 0.
    pub fn logarithmic(label: &str, min: f64, max: f64, name: impl Fn(f64) -> String) -> Self {
        let min = min.max(1e-9);
        let max = if max > min { max } else { min * 10.0 };
        let decades = (max / min).log10();
        let steps: &[f64] = match decades {
            d if d < 2.0 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let mut ticks = Vec::new();
        let skip = (decades / 7.0).ceil().max(1.0);
        let mut decade = 10_f64.powf(min.log10().floor());
        while decade <= max {
            for step in steps {
                let at = decade * step;
                if (min * 0.999_999..=max * 1.000_001).contains(&at) {
                    ticks.push((at, name(at)));
                }
            }
            decade *= 10_f64.powf(skip);
        }
        Self {
            label: label.to_owned(),
            min,
            max,
            logarithmic: true,
            ticks,
        }
    }

    /// An axis with these values beside it.
    pub fn with_ticks(
        label: &str,
        (min, max): (f64, f64),
        logarithmic: bool,
        ticks: Vec<(f64, String)>,
    ) -> Self {
        Self {
            label: label.to_owned(),
            min,
            max: if max > min { max } else { min + 1.0 },
            logarithmic,
            ticks,
        }
    }

    /// Where a value lies, 0 at the beginning of the axis and 1 at its end.
    pub fn place(&self, value: f64) -> f64 {
        let place = if self.logarithmic {
            (value.max(self.min) / self.min).ln() / (self.max / self.min).ln()
        } else {
            (value - self.min) / (self.max - self.min)
        };
        place.clamp(0.0, 1.0)
    }

    /// The value that lies at a place.
    pub fn at(&self, place: f64) -> f64 {
        if self.logarithmic {
            self.min * (self.max / self.min).powf(place)
        } else {
            self.min + (self.max - self.min) * place
        }
    }

    /// What is written beside the axis.
    pub fn ticks(&self) -> &[(f64, String)] {
        &self.ticks
    }
}

/// The least of 1, 2, 5, 10, … that is not below `step`.
fn round_step(step: f64) -> f64 {
    let decade = 10_f64.powf(step.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0];
    let factor = factor
        .into_iter()
        .find(|factor| decade * factor >= step * 0.999_999);
    decade * factor.unwrap_or(10.0)
}

/// A number with few digits: `1500`, `20k`, `2.5M`, `0.05`.
pub fn number(value: f64) -> String {
    let (value, unit) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = if value.abs() >= 100.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    };
    let text = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_reach_over_the_largest_value() {
        for max in [0.3, 1.0, 7.0, 99.0, 100.0, 1_234_567.0] {
            let scale = Scale::linear("", 0.0, max);
            assert!((4..=7).contains(&scale.ticks().len()), "{max}: {scale:?}");
            assert!(scale.place(max) <= 1.0 && scale.place(max) > 0.55, "{max}");
            assert!((scale.at(scale.place(max)) - max).abs() < max * 1e-9);
        }
        let scale = Scale::logarithmic("", 1.0, 1e6, number);
        let labels: Vec<&str> = scale
            .ticks()
            .iter()
            .map(|(_, label)| label.as_str())
            .collect();
        assert_eq!(labels, ["1", "10", "100", "1000", "10k", "100k", "1M"]);
        assert!((scale.place(1_000.0) - 0.5).abs() < 1e-9);
    }
}
