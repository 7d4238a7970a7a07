//! Answers on standard output, in the form that was asked for.

use std::io::{self, Write as _};

use tidegate::simulation::{Answer, Call, Simulation, Summary, WhatIf, output};

use super::{Arguments, OutputFormat, trials};

/// How much output is gathered before it is written.
const CHUNK: usize = 1 << 16;

/// Writes answers in the form that was asked for.
pub(super) struct Printer {
    kind: Kind,
    text: String,
    bytes: Vec<u8>,
    /// How many limits have had their header printed.
    headers: usize,
    json: bool,
    /// Whether something has been printed that the next table stands apart from.
    begun: bool,
}

enum Kind {
    Timeline,
    Http,
    Json,
    Silent,
    Summary(Summary),
    SummaryJson(Summary),
}

impl Printer {
    pub(super) fn new(arguments: &Arguments) -> Self {
        let kind = match (arguments.summary, arguments.json, arguments.format) {
            (true, false, _) => Kind::Summary(Summary::new()),
            (true, true, _) => Kind::SummaryJson(Summary::new()),
            _ if arguments.tries() => Kind::Silent,
            (false, true, _) => Kind::Json,
            (false, false, OutputFormat::Timeline) => Kind::Timeline,
            (false, false, OutputFormat::Http) => Kind::Http,
        };
        Self {
            kind,
            text: String::new(),
            bytes: Vec::new(),
            headers: 0,
            json: arguments.json,
            begun: arguments.summary,
        }
    }

    /// Prints nothing of the answers.
    pub(super) fn silent() -> Self {
        Self {
            kind: Kind::Silent,
            text: String::new(),
            bytes: Vec::new(),
            headers: 0,
            json: false,
            begun: false,
        }
    }

    /// Prints what alternatives would have done.
    pub(super) fn what_if(&mut self, what_if: &WhatIf, simulation: &Simulation) -> io::Result<()> {
        if self.json {
            let lines = trials::as_json(what_if, simulation);
            let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
            return self.text(&lines);
        }
        self.text(&trials::table(what_if, simulation))
    }

    /// Prints a text, apart from what was printed before.
    pub(super) fn text(&mut self, text: &str) -> io::Result<()> {
        if std::mem::replace(&mut self.begun, true) && !self.json {
            self.text.push('\n');
        }
        self.text.push_str(text);
        self.flush()
    }

    pub(super) fn print(
        &mut self,
        simulation: &Simulation,
        call: &Call,
        answer: &Answer,
    ) -> io::Result<()> {
        match &mut self.kind {
            Kind::Summary(summary) | Kind::SummaryJson(summary) => {
                summary.add(simulation, call, answer);
                return Ok(());
            }
            Kind::Silent => return Ok(()),
            Kind::Json => output::write_json(&mut self.bytes, simulation, call, answer)?,
            Kind::Http => output::write_http(&mut self.text, simulation, call, answer),
            Kind::Timeline => {
                self.headers += output::write_headers(&mut self.text, simulation, self.headers);
                output::write_timeline(&mut self.text, simulation, call, answer);
            }
        }
        if self.text.len() + self.bytes.len() >= CHUNK {
            self.flush()?;
        }
        Ok(())
    }

    pub(super) fn print_unsupported(&mut self, simulation: &Simulation, call: &Call) {
        if matches!(self.kind, Kind::Timeline) {
            output::write_unsupported(&mut self.text, simulation, call);
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(self.text.as_bytes())?;
        out.write_all(&self.bytes)?;
        self.text.clear();
        self.bytes.clear();
        out.flush()
    }

    pub(super) fn finish(&mut self, simulation: &Simulation) -> io::Result<()> {
        match &self.kind {
            Kind::Summary(summary) => self.text.push_str(&summary.table(simulation)),
            Kind::SummaryJson(summary) => {
                let mut out = io::BufWriter::new(io::stdout().lock());
                summary.write_json(simulation, &mut out)?;
                out.flush()?;
            }
            _ => {}
        }
        self.flush()
    }
}
