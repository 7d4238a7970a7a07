//! Calls as CSV with a header line.
//!
//! The columns are the fields of the JSON form (`at_ms`, `key`, `limit`, `cost`, `op`, …); a
//! header field of a request is a column `header.NAME`, and `algorithm` is written as in a
//! timeline's header. An empty cell is a field that is not there. A row is one line.

use std::borrow::Cow;

use csv_core::{ReadRecordResult, Reader};
use tidegate_config::algorithm_from_pairs;

use super::fields::{FIELDS, Fields};
use super::jsonl::micros_of_millis;
use super::problem::{Fault, nearest};
use super::time::parse_length;
use crate::Key;

/// The header line, and room for a row.
#[derive(Debug)]
pub(crate) struct Columns {
    names: Vec<String>,
    reader: Reader,
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl Clone for Columns {
    fn clone(&self) -> Self {
        Self::new(self.names.clone())
    }
}

/// Whether a line names columns, one of them a time.
pub(crate) fn looks_like(line: &str) -> bool {
    line.split(',')
        .any(|name| matches!(name.trim_matches([' ', '"']), "at_ms" | "at_us"))
        && line.contains(',')
}

impl Columns {
    fn new(names: Vec<String>) -> Self {
        Self {
            names,
            reader: Reader::new(),
            text: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Reads the header line.
    ///
    /// # Errors
    /// A column that is not known: a slip there would change every answer.
    pub fn read_header(line: &[u8]) -> Result<Self, Fault> {
        let mut columns = Self::new(Vec::new());
        columns.split(line)?;
        for cell in 0..columns.ends.len() {
            let name = columns.cell(cell)?.trim().to_owned();
            if !FIELDS.contains(&&*name) && !name.starts_with("header.") {
                let fault = Fault::line(format!("no column is called {name}"));
                return Err(match nearest(&name, FIELDS) {
                    Some(known) => fault.help(format!("is {known} meant?")),
                    None => fault.help(format!("known are {} and header.NAME", FIELDS.join(", "))),
                });
            }
            if columns.names.contains(&name) {
                return Err(Fault::line(format!("the column {name} is there twice")));
            }
            columns.names.push(name);
        }
        Ok(columns)
    }

    /// Reads one row.
    ///
    /// # Errors
    /// A row with other cells than the header, or a cell of the wrong kind.
    pub fn read_row(&mut self, line: &[u8]) -> Result<Fields<'_>, Fault> {
        self.split(line)?;
        if self.ends.len() != self.names.len() {
            return Err(Fault::line(format!(
                "{} cells stand under {} columns",
                self.ends.len(),
                self.names.len()
            )));
        }
        let mut fields = Fields::default();
        for (index, name) in self.names.iter().enumerate() {
            let cell = self.cell(index)?;
            if cell.is_empty() {
                continue;
            }
            set(&mut fields, name, cell)?;
        }
        Ok(fields)
    }

    /// Splits a line into cells.
    fn split(&mut self, line: &[u8]) -> Result<(), Fault> {
        let commas = memchr::memchr_iter(b',', line).count();
        self.text.resize(line.len() + 1, 0);
        self.ends.clear();
        self.ends.resize(commas + 2, 0);
        self.reader.reset();
        let (mut written, mut cells) = (0, 0);
        for input in [line, b"\n".as_slice()] {
            let (result, _, bytes, ends) =
                self.reader
                    .read_record(input, &mut self.text[written..], &mut self.ends[cells..]);
            written += bytes;
            cells += ends;
            if result == ReadRecordResult::Record {
                self.ends.truncate(cells);
                return Ok(());
            }
        }
        Err(Fault::line("a quote of this row is never closed").help("a row is one line"))
    }

    fn cell(&self, index: usize) -> Result<&str, Fault> {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        std::str::from_utf8(&self.text[start..self.ends[index]])
            .map_err(|_| Fault::line("a cell of this row is no UTF-8"))
    }
}

fn set<'a>(fields: &mut Fields<'a>, name: &str, cell: &'a str) -> Result<(), Fault> {
    let text = Some(Cow::Borrowed(cell));
    let number = || {
        cell.trim()
            .parse::<u64>()
            .map_err(|_| Fault::line(format!("{name} holds {cell}, which is no whole number")))
    };
    let length = || {
        parse_length(cell.trim()).map_err(|(message, remedy)| Fault {
            remedy,
            ..Fault::line(format!("{name} holds {cell}: {message}"))
        })
    };
    match name {
        "at_ms" => {
            fields.at = Some(number()?.checked_mul(1_000).ok_or_else(|| {
                Fault::line("this time is after the year 2112, the last that is counted")
            })?);
        }
        "at_us" => fields.at = Some(number()?),
        "key" => fields.key = Some(Key::new(cell.as_bytes())),
        "limit" => fields.limit = text,
        "cost" => fields.cost = Some(number()?),
        "op" => fields.op = text,
        "permit" => fields.permit = text,
        "mode" => fields.mode = text,
        "for" => fields.period = Some(length()?),
        "max_wait" => fields.max_wait = Some(length()?),
        "reservation" => fields.reservation = text,
        "actual" => fields.actual = Some(number()?),
        "method" => fields.method = text,
        "path" => fields.path = text,
        "client_ip" => fields.client_ip = text,
        "status" => {
            let status = u16::try_from(number()?);
            fields.status = Some(status.map_err(|_| Fault::line(format!("{cell} is no status")))?);
        }
        "user" => fields.user = text,
        "duration_us" => fields.took = Some(number()?),
        "duration_ms" => {
            let took = cell.trim().parse().map_err(|_| ());
            let took = took.and_then(|took| micros_of_millis(took).map_err(|_| ()));
            fields.took = Some(took.map_err(|()| {
                Fault::line(format!(
                    "{name} holds {cell}, which is not how long a request takes"
                ))
            })?);
        }
        "algorithm" => {
            let words: Vec<&str> = cell.split_whitespace().collect();
            let (algorithm, pairs) = words.split_first().unwrap_or((&"", &[]));
            let pairs: Vec<(&str, &str)> = pairs
                .chunks(2)
                .map(|pair| (pair[0], pair.get(1).copied().unwrap_or_default()))
                .collect();
            let config = algorithm_from_pairs(algorithm, &pairs)
                .map_err(|error| Fault::line(error.to_string()))?;
            fields.algorithm = Some(config);
        }
        other => match other.strip_prefix("header.") {
            Some(header) => fields
                .headers
                .push((header.to_ascii_lowercase(), cell.to_owned())),
            None => {
                return Err(
                    Fault::line(format!("the column {other} has no place in CSV"))
                        .help("write such calls as JSON, one object a line"),
                );
            }
        },
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_row_is_read_by_the_names_of_its_columns() {
        let mut columns =
            Columns::read_header(b"at_ms,key,limit,cost,header.User-Agent,op").unwrap();
        let fields = columns
            .read_row(br#"15,"a ""b"",c",login,,curl/8,peek"#)
            .unwrap();
        assert_eq!(fields.at, Some(15_000));
        assert_eq!(fields.key, Some(Key::new(b"a \"b\",c")));
        assert_eq!(fields.limit.as_deref(), Some("login"));
        assert_eq!((fields.cost, fields.op.as_deref()), (None, Some("peek")));
        assert_eq!(
            fields.headers,
            [("user-agent".to_owned(), "curl/8".to_owned())]
        );
    }

    #[test]
    fn faulty_headers_and_rows_are_refused() {
        for (header, message) in [
            ("at_ms,keys", "no column is called keys"),
            ("at_ms,key,key", "twice"),
            ("at_ms,\"key", "never closed"),
        ] {
            let fault = Columns::read_header(header.as_bytes()).unwrap_err();
            assert!(
                fault.message.contains(message),
                "{header}: {}",
                fault.message
            );
        }
        let mut columns = Columns::read_header(b"at_ms,key,for").unwrap();
        for (row, message) in [
            ("1,k", "2 cells stand under 3 columns"),
            ("1.5,k,", "no whole number"),
            ("1,\"k,", "never closed"),
            ("1,k,5", "needs a unit"),
        ] {
            let fault = columns.read_row(row.as_bytes()).unwrap_err();
            assert!(fault.message.contains(message), "{row}: {}", fault.message);
        }
        // A faulty row leaves nothing behind for the next.
        assert_eq!(columns.read_row(b"2,k,1s").unwrap().at, Some(2_000));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(
            header in "[a-z_\",]{0,20}",
            row in prop::collection::vec(any::<u8>(), 0..60),
            text in "[a-z0-9\",\r ]{0,30}",
        ) {
            let _ = looks_like(&header);
            let _ = Columns::read_header(header.as_bytes());
            let mut columns = Columns::read_header(b"at_ms,key,cost,algorithm").unwrap();
            let _ = columns.read_row(&row);
            let _ = columns.read_row(text.as_bytes());
        }
    }
}
