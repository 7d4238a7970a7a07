//! Points in time as people write them, in UTC; small ones as the time since the beginning.

use super::trials::length;

const DAY: u64 = 86_400;

/// Times before 1971 are of traces that count from 0.
const CLOCKLESS: u64 = 365 * DAY * 1_000_000;

/// `1995-08-01 13:30:03`, or the length since the epoch where that is short.
pub fn written(micros: u64) -> String {
    if micros < CLOCKLESS {
        return length(micros);
    }
    let seconds = micros / 1_000_000;
    let (year, month, day) = civil(seconds / DAY);
    format!("{year}-{month:02}-{day:02} {}", clock(seconds, true))
}

fn clock(seconds: u64, with_seconds: bool) -> String {
    let of_day = seconds % DAY;
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    if with_seconds {
        format!("{hour:02}:{minute:02}:{second:02}")
    } else {
        format!("{hour:02}:{minute:02}")
    }
}

/// Year, month and day of a day since the epoch.
///
/// Source: "days from civil", Howard Hinnant, of which this is the inverse.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

/// Round times between two others, in microseconds, each with how it is written.
pub fn clock_ticks(from: u64, to: u64) -> Vec<(f64, String)> {
    const STEPS: [u64; 22] = [
        1,
        2,
        5,
        10,
        30,
        60,
        120,
        300,
        600,
        1_800,
        3_600,
        7_200,
        10_800,
        21_600,
        43_200,
        DAY,
        2 * DAY,
        7 * DAY,
        14 * DAY,
        28 * DAY,
        91 * DAY,
        365 * DAY,
    ];
    let span = to.saturating_sub(from) / 1_000_000;
    let fits = STEPS.into_iter().find(|step| span / step <= 8);
    let step = fits.unwrap_or_else(|| (span / 8).max(1));
    let first = from.div_ceil(1_000_000).div_ceil(step) * step;
    let mut ticks = Vec::new();
    let mut at = first;
    while at * 1_000_000 <= to {
        let label = if from < CLOCKLESS {
            length(at * 1_000_000)
        } else if step >= DAY || at % DAY == 0 {
            let (_, month, day) = civil(at / DAY);
            const MONTHS: [&str; 12] = [
                "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
            ];
            let month = usize::try_from(month - 1).map_or("", |month| MONTHS[month]);
            format!("{day} {month}")
        } else {
            clock(at, step < 60)
        };
        ticks.push(((at * 1_000_000) as f64, label));
        at += step;
    }
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_the_calendar_has_them() {
        for (micros, text) in [
            (807_283_803_000_000, "1995-08-01 13:30:03"),
            (951_782_400_000_000, "2000-02-29 00:00:00"),
            (1_798_761_599_000_000, "2026-12-31 23:59:59"),
            (4_102_444_800_000_000, "2100-01-01 00:00:00"),
            (90_500_000, "1m30s"),
        ] {
            assert_eq!(written(micros), text);
        }
    }

    #[test]
    fn ticks_are_round_and_few() {
        let from = 807_283_803_000_000;
        for span in [
            0,
            1,
            9,
            100,
            4_000,
            86_400,
            700_000,
            40_000_000,
            4_000_000_000,
        ] {
            let ticks = clock_ticks(from, from + span * 1_000_000);
            assert!(ticks.len() <= 10, "{span}: {ticks:?}");
        }
        let ticks = clock_ticks(from, from + 3_600_000_000);
        assert_eq!(ticks[0].1, "13:40");
    }
}
