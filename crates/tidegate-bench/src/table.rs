//! The result, as a table that can be put into a page.

/// One subject at one piece of work.
pub struct Cell<'a> {
    subject: &'a str,
    /// The median time of a call; of both threads' calls together, for two.
    nanoseconds: f64,
    bytes_per_key: Option<f64>,
}

impl<'a> Cell<'a> {
    /// A cell; bytes per key where that says something.
    pub fn new(subject: &'a str, nanoseconds: f64, bytes_per_key: Option<f64>) -> Self {
        Self {
            subject,
            nanoseconds,
            bytes_per_key,
        }
    }
}

/// Prints all rows; tidegate is the first cell of each.
pub fn print(unit: &str, rows: &[(&str, Vec<Cell<'_>>)], rounds: u32) {
    println!(
        "\nMedians of {rounds} interleaved rounds; the ratio is the peer's time over tidegate's.\n"
    );
    println!("| work | subject | {unit} | ratio | bytes per key |\n|---|---|---:|---:|---:|");
    for (work, cells) in rows {
        for cell in cells {
            let ratio = cell.nanoseconds / cells[0].nanoseconds;
            let bytes = cell
                .bytes_per_key
                .map_or_else(|| "–".to_owned(), |bytes| format!("{bytes:.0}"));
            println!(
                "| {work} | {} | {:.1} | {ratio:.2} | {bytes} |",
                cell.subject, cell.nanoseconds
            );
        }
    }
}
