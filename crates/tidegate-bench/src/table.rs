//! The result, as a table that can be put into a page.

use std::time::Duration;

/// One subject at one piece of work.
pub struct Cell {
    pub subject: &'static str,
    /// The median time of a decision; of both threads' decisions together, for two.
    pub nanoseconds: f64,
    pub bytes_per_key: f64,
    pub worst_fill: Duration,
}

/// Prints all rows; tidegate is the first cell of each.
pub fn print(rows: &[(&str, Vec<Cell>)], rounds: usize) {
    println!(
        "\nMedians of {rounds} interleaved rounds; the ratio is the peer's time over tidegate's.\n"
    );
    println!(
        "| work | subject | ns per decision | ratio | bytes per key | longest call while filling |"
    );
    println!("|---|---|---:|---:|---:|---:|");
    for (work, cells) in rows {
        for cell in cells {
            let ratio = cell.nanoseconds / cells[0].nanoseconds;
            let keys = if cell.bytes_per_key > 0.0 && !work.starts_with("one") {
                format!(
                    "{:.0} | {:.0} us",
                    cell.bytes_per_key,
                    cell.worst_fill.as_secs_f64() * 1e6
                )
            } else {
                "– | –".to_owned()
            };
            println!(
                "| {work} | {} | {:.1} | {ratio:.2} | {keys} |",
                cell.subject, cell.nanoseconds
            );
        }
    }
}
