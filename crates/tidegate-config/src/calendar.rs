//! Calendar windows in a time zone: local days, weeks, months and years.
//!
//! A day is the local day, so it has 23 or 25 hours where the clock changes. The time zones are
//! built in: the same file means the same windows on every machine, with or without its own
//! zone files. A window begins at the first local midnight of its first day; where the clock skips
//! midnight, at the moment after the gap. Windows follow one another without overlap even where a
//! clock steps back across midnight: the earlier midnight is the border.

use std::sync::atomic::{AtomicU64, Ordering};

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp as Instant, ToSpan};
use tidegate_core::{Calendar, Micros, Timestamp, Window};

use crate::zone::{CalendarSpan, StartsOn, Zone};

const DAY: u64 = 86_400_000_000;

/// The calendar windows of a time zone, with the current one at hand.
///
/// The window that was asked for last is kept in two words and read without a lock; only the
/// first call of a new window computes.
#[derive(Debug)]
pub struct ZonedCalendar {
    span: CalendarSpan,
    zone: TimeZone,
    starts_on: StartsOn,
    shortest: Micros,
    longest: Micros,
    name: String,
    cached: CachedWindow,
}

impl ZonedCalendar {
    /// The windows of `span` in `zone`, beginning on `starts_on`.
    ///
    /// A start that does not suit the span, which the document's validation refuses, is taken as
    /// the span's first.
    #[must_use]
    pub fn new(span: CalendarSpan, zone: &Zone, starts_on: StartsOn) -> Self {
        let starts_on = if starts_on.suits(span) {
            starts_on
        } else {
            StartsOn::first(span)
        };
        let (shortest, longest) = match span {
            CalendarSpan::Day => (DAY, DAY),
            CalendarSpan::Week => (7 * DAY, 7 * DAY),
            CalendarSpan::Month => (28 * DAY, 31 * DAY),
            CalendarSpan::Year => (365 * DAY, 366 * DAY),
        };
        let mut calendar = Self {
            span,
            zone: zone.time_zone().clone(),
            starts_on,
            shortest: Micros(shortest),
            longest: Micros(longest),
            name: format!("{span} {zone} {starts_on}"),
            cached: CachedWindow::default(),
        };
        calendar.measure();
        calendar
    }

    /// Finds the lengths that clock changes give to windows, over all of valid time.
    fn measure(&mut self) {
        let mut lengths = vec![self.shortest.0, self.longest.0];
        let end = instant(Timestamp::MAX);
        for change in self.zone.following(Instant::UNIX_EPOCH) {
            if change.timestamp() >= end {
                break;
            }
            let Ok(at) = u64::try_from(change.timestamp().as_microsecond()) else {
                continue;
            };
            // The change may stand at a border: look at the windows on both sides.
            for at in [at.saturating_sub(1), at] {
                let Ok(at) = Timestamp::from_micros(at) else {
                    continue;
                };
                if let Some((start, end)) = self.borders(at)
                    && start >= 0
                {
                    lengths.push(end.saturating_sub(start).unsigned_abs());
                }
            }
        }
        self.shortest = Micros(lengths.iter().copied().min().unwrap_or(self.shortest.0));
        self.longest = Micros(lengths.iter().copied().max().unwrap_or(self.longest.0));
    }

    /// The borders of the window around `at`, in microseconds, not held to valid time.
    fn borders(&self, at: Timestamp) -> Option<(i64, i64)> {
        let moment = instant(at);
        let at = moment.as_microsecond();
        let mut first = self.first_day(self.zone.to_datetime(moment).date())?;
        let mut start = self.midnight(first)?;
        let mut next = self.step(first, 1)?;
        let mut end = self.midnight(next)?;
        // Where a clock steps back across midnight the local date goes back for a while, and
        // where a day is skipped its window is empty: borders decide, not the date.
        while at < start {
            (next, end) = (first, start);
            first = self.step(first, -1)?;
            start = self.midnight(first)?;
        }
        while at >= end {
            start = end;
            next = self.step(next, 1)?;
            end = self.midnight(next)?;
        }
        Some((start, end))
    }

    /// The first day of the window that the local date is in.
    fn first_day(&self, date: Date) -> Option<Date> {
        match (self.span, self.starts_on) {
            (CalendarSpan::Week, StartsOn::Weekday(weekday)) => {
                let past = date.weekday().since(weekday);
                date.checked_sub(i64::from(past).days()).ok()
            }
            (CalendarSpan::Month, StartsOn::Day(day)) => {
                let this = Date::new(date.year(), date.month(), day).ok()?;
                if this <= date {
                    Some(this)
                } else {
                    self.step(this, -1)
                }
            }
            (CalendarSpan::Year, StartsOn::MonthDay(month, day)) => {
                let this = Date::new(date.year(), month, day).ok()?;
                if this <= date {
                    Some(this)
                } else {
                    self.step(this, -1)
                }
            }
            _ => Some(date),
        }
    }

    fn step(&self, date: Date, by: i64) -> Option<Date> {
        let span: Span = match self.span {
            CalendarSpan::Day => by.days(),
            CalendarSpan::Week => by.weeks(),
            CalendarSpan::Month => by.months(),
            CalendarSpan::Year => by.years(),
        };
        date.checked_add(span).ok()
    }

    /// The first local midnight of a day, or the moment after the gap that skips it.
    fn midnight(&self, date: Date) -> Option<i64> {
        let midnight = date.at(0, 0, 0, 0);
        self.zone
            .to_timestamp(midnight)
            .ok()
            .map(Instant::as_microsecond)
    }
}

impl Calendar for ZonedCalendar {
    fn window(&self, at: Timestamp) -> Window {
        if let Some(window) = self.cached.get(at, self.longest) {
            return window;
        }
        // Dates end in the year 9999, valid time in 2112: there is always a next window.
        let (start, end) = self.borders(at).unwrap_or((0, i64::MAX));
        let window = Window {
            start: clamped(start),
            end: clamped(end),
        };
        if start >= 0 && self.longest.0 < self.shortest.0.saturating_mul(2) {
            self.cached.put(window);
        }
        window
    }

    fn longest(&self) -> Micros {
        self.longest
    }

    fn shortest(&self) -> Micros {
        self.shortest
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// The same moment for `jiff`; valid time is well inside its range.
fn instant(at: Timestamp) -> Instant {
    i64::try_from(at.as_micros())
        .ok()
        .and_then(|micros| Instant::from_microsecond(micros).ok())
        .unwrap_or(Instant::UNIX_EPOCH)
}

/// A border held to valid time, 0..=2^52.
fn clamped(micros: i64) -> Timestamp {
    let micros = u64::try_from(micros).unwrap_or(0);
    Timestamp::from_micros(micros).unwrap_or(Timestamp::MAX)
}

/// One window in two words, readable while it is written.
///
/// A writer takes the pair by setting `end` to 0, stores `start`, then `end`. A reader that sees
/// the same `end` before and after `start` may still have met two writers in between; then `start`
/// and `end` belong to two windows, and what they enclose is either empty or at least two windows
/// long. The length gives it away, because no window is twice as long as another.
#[derive(Debug)]
struct CachedWindow {
    start: AtomicU64,
    end: AtomicU64,
}

/// What `end` is while a writer is at work.
const WRITING: u64 = 0;

impl Default for CachedWindow {
    /// Holds an empty window, which no moment is in.
    fn default() -> Self {
        Self {
            start: AtomicU64::new(1),
            end: AtomicU64::new(1),
        }
    }
}

impl CachedWindow {
    fn get(&self, at: Timestamp, longest: Micros) -> Option<Window> {
        let end = self.end.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Acquire);
        if end == WRITING || self.end.load(Ordering::Acquire) != end {
            return None;
        }
        let inside = (start..end).contains(&at.as_micros());
        if !inside || end - start > longest.0 {
            return None;
        }
        Some(Window {
            start: Timestamp::from_micros(start).ok()?,
            end: Timestamp::from_micros(end).ok()?,
        })
    }

    /// Keeps a window, unless another writer is at work: that one's is as good.
    fn put(&self, window: Window) {
        let end = self.end.load(Ordering::Relaxed);
        let taken = end != WRITING
            && self
                .end
                .compare_exchange(end, WRITING, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if taken {
            self.start
                .store(window.start.as_micros(), Ordering::Release);
            self.end.store(window.end.as_micros(), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::civil::Weekday;
    use proptest::prelude::*;

    const HOUR: u64 = DAY / 24;

    fn calendar(span: CalendarSpan, zone: &str, starts_on: Option<StartsOn>) -> ZonedCalendar {
        let starts_on = starts_on.unwrap_or(StartsOn::first(span));
        ZonedCalendar::new(span, &Zone::new(zone).unwrap(), starts_on)
    }

    fn at(text: &str) -> Timestamp {
        let instant: Instant = text.parse().unwrap();
        Timestamp::from_micros(u64::try_from(instant.as_microsecond()).unwrap()).unwrap()
    }

    #[track_caller]
    fn check(calendar: &ZonedCalendar, moment: &str, start: &str, end: &str) {
        // Twice: computed, then from the cache.
        for _ in 0..2 {
            let window = calendar.window(at(moment));
            assert_eq!(
                window,
                Window {
                    start: at(start),
                    end: at(end)
                },
                "at {moment}"
            );
        }
    }

    #[test]
    fn a_day_is_the_local_day() {
        let shanghai = calendar(CalendarSpan::Day, "Asia/Shanghai", None);
        check(
            &shanghai,
            "2025-06-15T12:00:00Z",
            "2025-06-15T00:00:00+08:00",
            "2025-06-16T00:00:00+08:00",
        );
        check(
            &shanghai,
            "2025-06-15T15:59:59.999999Z",
            "2025-06-15T00:00:00+08:00",
            "2025-06-16T00:00:00+08:00",
        );
        check(
            &shanghai,
            "2025-06-15T16:00:00Z",
            "2025-06-16T00:00:00+08:00",
            "2025-06-17T00:00:00+08:00",
        );
    }

    #[test]
    fn a_day_has_23_hours_in_spring_and_25_in_autumn() {
        let new_york = calendar(CalendarSpan::Day, "America/New_York", None);
        check(
            &new_york,
            "2025-03-09T12:00:00-04:00",
            "2025-03-09T00:00:00-05:00",
            "2025-03-10T00:00:00-04:00",
        );
        let spring = new_york.window(at("2025-03-09T12:00:00-04:00"));
        assert_eq!(spring.end.as_micros() - spring.start.as_micros(), 23 * HOUR);
        let autumn = new_york.window(at("2025-11-02T12:00:00-05:00"));
        assert_eq!(autumn.end.as_micros() - autumn.start.as_micros(), 25 * HOUR);
        assert_eq!(new_york.shortest(), Micros(23 * HOUR));
        assert_eq!(new_york.longest(), Micros(25 * HOUR));
    }

    #[test]
    fn a_day_whose_midnight_is_skipped_begins_after_the_gap() {
        // Clocks in Beirut and Santiago skip from 24:00 to 01:00.
        let beirut = calendar(CalendarSpan::Day, "Asia/Beirut", None);
        check(
            &beirut,
            "2024-03-31T12:00:00+03:00",
            "2024-03-31T01:00:00+03:00",
            "2024-04-01T00:00:00+03:00",
        );
        check(
            &beirut,
            "2024-03-30T23:59:59+02:00",
            "2024-03-30T00:00:00+02:00",
            "2024-03-31T00:00:00+02:00",
        );
    }

    #[test]
    fn a_clock_that_steps_back_across_midnight_does_not_open_a_day_twice() {
        // At 00:01 on 1 November 2009 the clock of St John's went back to 23:01.
        let st_johns = calendar(CalendarSpan::Day, "America/St_Johns", None);
        let first_midnight = "2009-11-01T00:00:00-02:30";
        check(
            &st_johns,
            "2009-11-01T00:00:30-02:30",
            first_midnight,
            "2009-11-02T00:00:00-03:30",
        );
        // The local date is 31 October again, the window is not.
        check(
            &st_johns,
            "2009-10-31T23:30:00-03:30",
            first_midnight,
            "2009-11-02T00:00:00-03:30",
        );
        check(
            &st_johns,
            "2009-10-31T23:30:00-02:30",
            "2009-10-31T00:00:00-02:30",
            first_midnight,
        );
    }

    #[test]
    fn a_day_that_a_country_skipped_has_no_window() {
        // Samoa went from 29 to 31 December 2011.
        let apia = calendar(CalendarSpan::Day, "Pacific/Apia", None);
        check(
            &apia,
            "2011-12-29T23:00:00-10:00",
            "2011-12-29T00:00:00-10:00",
            "2011-12-31T00:00:00+14:00",
        );
        check(
            &apia,
            "2011-12-31T00:00:00+14:00",
            "2011-12-31T00:00:00+14:00",
            "2012-01-01T00:00:00+14:00",
        );
    }

    #[test]
    fn a_week_starts_on_monday_unless_told_otherwise() {
        let monday = calendar(CalendarSpan::Week, "UTC", None);
        check(
            &monday,
            "2025-06-15T12:00:00Z",
            "2025-06-09T00:00:00Z",
            "2025-06-16T00:00:00Z",
        );
        let sunday = calendar(
            CalendarSpan::Week,
            "UTC",
            Some(StartsOn::Weekday(Weekday::Sunday)),
        );
        check(
            &sunday,
            "2025-06-15T12:00:00Z",
            "2025-06-15T00:00:00Z",
            "2025-06-22T00:00:00Z",
        );
    }

    #[test]
    fn months_and_years_begin_where_they_are_told() {
        let month = calendar(CalendarSpan::Month, "UTC", None);
        check(
            &month,
            "2024-02-29T23:59:59Z",
            "2024-02-01T00:00:00Z",
            "2024-03-01T00:00:00Z",
        );
        let billing = calendar(CalendarSpan::Month, "UTC", Some(StartsOn::Day(28)));
        check(
            &billing,
            "2025-03-01T00:00:00Z",
            "2025-02-28T00:00:00Z",
            "2025-03-28T00:00:00Z",
        );
        check(
            &billing,
            "2025-01-05T00:00:00Z",
            "2024-12-28T00:00:00Z",
            "2025-01-28T00:00:00Z",
        );
        let year = calendar(CalendarSpan::Year, "UTC", None);
        check(
            &year,
            "2024-12-31T23:59:59Z",
            "2024-01-01T00:00:00Z",
            "2025-01-01T00:00:00Z",
        );
        let fiscal = calendar(CalendarSpan::Year, "UTC", Some(StartsOn::MonthDay(4, 1)));
        check(
            &fiscal,
            "2025-03-31T23:59:59Z",
            "2024-04-01T00:00:00Z",
            "2025-04-01T00:00:00Z",
        );
        check(
            &fiscal,
            "2025-04-01T00:00:00Z",
            "2025-04-01T00:00:00Z",
            "2026-04-01T00:00:00Z",
        );
    }

    #[test]
    fn both_ends_of_valid_time_are_in_a_window() {
        for zone in [
            "UTC",
            "Asia/Shanghai",
            "America/New_York",
            "Pacific/Kiritimati",
        ] {
            for span in [
                CalendarSpan::Day,
                CalendarSpan::Week,
                CalendarSpan::Month,
                CalendarSpan::Year,
            ] {
                let calendar = calendar(span, zone, None);
                let first = calendar.window(Timestamp::EPOCH);
                assert_eq!(first.start, Timestamp::EPOCH, "{zone} {span}");
                assert!(first.end > Timestamp::EPOCH, "{zone} {span}");
                assert_eq!(calendar.window(Timestamp::MAX).end, Timestamp::MAX);
            }
        }
    }

    #[test]
    fn the_cache_never_mixes_two_windows() {
        // Threads that ask across a border all the time; every answer must be a real window.
        let calendar = calendar(CalendarSpan::Day, "America/New_York", None);
        let moments = [
            "2025-03-08T12:00:00Z",
            "2025-03-09T12:00:00Z",
            "2025-03-10T12:00:00Z",
        ];
        let moments = moments.map(|text| (at(text), calendar.window(at(text))));
        std::thread::scope(|scope| {
            for offset in 0..4 {
                let (calendar, moments) = (&calendar, &moments);
                scope.spawn(move || {
                    for round in 0..20_000 {
                        let (moment, window) = moments[(round * 7 + offset) % 3];
                        assert_eq!(calendar.window(moment), window);
                    }
                });
            }
        });
    }

    proptest! {
        #[test]
        fn windows_follow_one_another_and_hold_their_moment(
            micros in 0_u64..(1 << 52) - 800 * DAY,
            zone in prop::sample::select(vec![
                "UTC", "Asia/Shanghai", "America/New_York", "America/St_Johns", "Asia/Beirut",
                "Pacific/Apia", "Antarctica/Troll", "Antarctica/Casey", "Australia/Lord_Howe",
                "America/Sao_Paulo", "Africa/Casablanca",
            ]),
            span in prop::sample::select(vec![
                CalendarSpan::Day, CalendarSpan::Week, CalendarSpan::Month, CalendarSpan::Year,
            ]),
        ) {
            let calendar = calendar(span, zone, None);
            let moment = Timestamp::from_micros(micros).unwrap();
            let window = calendar.window(moment);
            prop_assert!(window.start <= moment && moment < window.end);
            let last = Timestamp::from_micros(window.end.as_micros() - 1).unwrap();
            prop_assert_eq!(calendar.window(last), window);
            let next = calendar.window(window.end);
            prop_assert_eq!(next.start, window.end);
            let length = next.end.as_micros() - next.start.as_micros();
            prop_assert!(length >= calendar.shortest().0, "{}", length);
            prop_assert!(length <= calendar.longest().0, "{}", length);
        }
    }
}
