//! The date for chat templates that tell the model what day it is.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// The time now, in UTC, in the format of C's `strftime`.
pub(super) fn strftime_now(format: &str) -> String {
    strftime(format, SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs()))
}

/// The time `seconds` after the beginning of 1970, in UTC. A directive that is not known stays as it is.
fn strftime(format: &str, seconds: u64) -> String {
    let days = seconds / 86_400;
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let (year, month, day, day_of_year) = civil(days);
    let month_name = MONTHS[month - 1];
    let day_name = DAYS[(days as usize + 4) % 7];
    let half_day = (hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match rest.next() {
            Some('Y') => out += &year.to_string(),
            Some('y') => out += &format!("{:02}", year % 100),
            Some('m') => out += &format!("{month:02}"),
            Some('B') => out += month_name,
            Some('b') => out += &month_name[..3],
            Some('d') => out += &format!("{day:02}"),
            Some('e') => out += &format!("{day:2}"),
            Some('j') => out += &format!("{day_of_year:03}"),
            Some('A') => out += day_name,
            Some('a') => out += &day_name[..3],
            Some('H') => out += &format!("{hour:02}"),
            Some('I') => out += &format!("{half_day:02}"),
            Some('M') => out += &format!("{minute:02}"),
            Some('S') => out += &format!("{second:02}"),
            Some('p') => out += if hour < 12 { "AM" } else { "PM" },
            Some('Z') => out += "UTC",
            Some('F') => out += &format!("{year}-{month:02}-{day:02}"),
            Some('T') => out += &format!("{hour:02}:{minute:02}:{second:02}"),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

/// Year, month and day (both from 1), and day of the year (from 1), `days` after the beginning of 1970.
fn civil(days: u64) -> (u64, usize, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // The calendar repeats after 400 years, which have 146 097 days; the loops below are short.
    let (mut year, mut day) = (1970 + days / 146_097 * 400, days % 146_097);
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let day_of_year = day + 1;
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    (year, month + 1, day + 1, day_of_year)
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let all = "%a %A %d %e %b %B %m %Y %y %j | %H %I %M %S %p %Z | %F %T | %% %q %";
        for (seconds, expected) in [
            (
                0,
                "Thu Thursday 01  1 Jan January 01 1970 70 001 | 00 12 00 00 AM UTC | 1970-01-01 00:00:00 | % %q %",
            ),
            // 29 February 2000, and the last second of 2024, a leap year.
            (
                951_825_723,
                "Tue Tuesday 29 29 Feb February 02 2000 00 060 | 12 12 02 03 PM UTC | 2000-02-29 12:02:03 | % %q %",
            ),
            (
                1_735_689_599,
                "Tue Tuesday 31 31 Dec December 12 2024 24 366 | 23 11 59 59 PM UTC | 2024-12-31 23:59:59 | % %q %",
            ),
        ] {
            assert_eq!(strftime(all, seconds), expected);
        }
    }
}
