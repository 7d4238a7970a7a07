//! `tidegate explain`: what each limit admits, the worst case, and what to think about.

mod worst_case;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};
use tidegate::Micros;
use tidegate::explain::{
    Admission, Explanation, LongestWait, Sharing, WindowReason, explain, sharing,
};
use tidegate_config::model::{Limit, Mode};
use tidegate_config::{Config, Purpose};

use crate::document::{print_error, read};

/// The arguments of `tidegate explain`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The configuration file; `-` reads standard input. Nothing but `limits:` is needed in it.
    config: PathBuf,
    /// Also tells the most that passes within this window: `10m`, `1h`, `1d`. May be repeated.
    #[arg(long = "window", value_name = "LENGTH", value_parser = read_window)]
    windows: Vec<Micros>,
    /// Explains only this limit. May be repeated.
    #[arg(long = "limit", value_name = "NAME")]
    limits: Vec<String>,
    /// Draws how much each limit admits at most within a window, by its length, and all of them
    /// together; as text, or as SVG into a file.
    #[arg(long, value_name = "FILE.svg", num_args = 0..=1, default_missing_value = "-", conflicts_with = "json")]
    plot: Option<PathBuf>,
    /// Prints one JSON object per limit instead of text.
    #[arg(long)]
    json: bool,
}

fn read_window(text: &str) -> Result<Micros, String> {
    tidegate_config::text::parse_period(text).map_err(|error| format!("{error}; {}", error.help))
}

/// Runs the command.
pub fn execute(arguments: Arguments) -> ExitCode {
    let checked = match read(&arguments.config, Purpose::Inspect) {
        Ok(checked) => checked,
        Err(error) => {
            print_error(&error);
            return ExitCode::FAILURE;
        }
    };
    let known = &checked.config.limits;
    for name in &arguments.limits {
        if checked.config.limit(name).is_none() {
            let names: Vec<&str> = known.iter().map(|limit| limit.name.as_str()).collect();
            eprintln!(
                "error: there is no limit `{name}`; there are: {}",
                names.join(", ")
            );
            return ExitCode::FAILURE;
        }
    }
    let chosen = |name: &String| arguments.limits.is_empty() || arguments.limits.contains(name);
    let mut output = String::new();
    let shown: Vec<&Limit> = known.iter().filter(|limit| chosen(&limit.name)).collect();
    if let Some(file) = &arguments.plot {
        return plot(&checked.config, &shown, file);
    }
    for limit in shown {
        let explained = explain(limit, &arguments.windows)
            .and_then(|explanation| Ok((explanation, sharing(limit, &checked.config.stores)?)));
        match explained {
            Ok((explanation, shared)) if arguments.json => {
                let _ = writeln!(output, "{}", as_json(&explanation, shared.as_ref()));
            }
            Ok((explanation, shared)) => as_text(&explanation, shared.as_ref(), &mut output),
            Err(problem) => {
                eprintln!("error: limit `{}`: {problem}; {}", limit.name, problem.help);
                return ExitCode::FAILURE;
            }
        }
    }
    if !arguments.json {
        output.push_str(if known.is_empty() {
            "There are no limits: everything passes.\n"
        } else {
            "Figures are per key, in units of cost. Processes that do not share a store each \
             admit as much.\n"
        });
    }
    print!("{output}");
    ExitCode::SUCCESS
}

/// Draws the limits: each by itself, then what calls meet together.
fn plot(config: &Config, limits: &[&Limit], file: &Path) -> ExitCode {
    let charts = match worst_case::charts(config, limits) {
        Ok(charts) if charts.is_empty() => {
            eprintln!("error: there is no limit that bounds how much passes in a time");
            return ExitCode::FAILURE;
        }
        Ok(charts) => charts,
        Err(problem) => {
            eprintln!("error: {problem}; {}", problem.help);
            return ExitCode::FAILURE;
        }
    };
    if file.as_os_str() == "-" {
        for chart in &charts {
            println!("{}\n{}", chart.title, crate::plot::text(chart));
        }
        return ExitCode::SUCCESS;
    }
    match std::fs::write(file, crate::plot::svg_document(&charts)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: cannot write {}: {error}", file.display());
            ExitCode::FAILURE
        }
    }
}

fn as_text(explanation: &Explanation, shared: Option<&Sharing>, output: &mut String) {
    let Explanation {
        name,
        algorithm,
        sentence,
        ..
    } = explanation;
    let _ = writeln!(output, "{name}: {algorithm}\n  {sentence}\n");
    let mut line = |label: &str, text: &str| {
        let _ = writeln!(output, "  {label:<15} {text}");
    };
    line("counted by", &explanation.counted_by);
    line("sustained rate", &explanation.sustained_words);
    line("burst", &explanation.burst.to_string());
    for (index, admission) in explanation.admits.iter().enumerate() {
        line(
            if index == 0 { "admits at most" } else { "" },
            &admitted(admission),
        );
    }
    line("worst traffic", &explanation.worst_traffic);
    line("longest wait", &longest_wait(explanation));
    line("memory per key", &memory(explanation));
    if let Some(shared) = shared {
        line("kept in", &shared.kept_in);
        line("without answer", &shared.without_answer);
        line("may lose", &shared.may_lose);
    }
    for warning in &explanation.warnings {
        line("warning", &warning.message);
        if let Some(help) = &warning.help {
            line("", &format!("-> {help}"));
        }
    }
    output.push('\n');
}

fn admitted(admission: &Admission) -> String {
    let most = match admission.most {
        Some(most) => most.to_string(),
        None => "any number".to_owned(),
    };
    let own = if admission.reason == WindowReason::Own {
        ", its own period"
    } else {
        ""
    };
    format!("{most} within {}{own}", admission.window)
}

fn longest_wait(explanation: &Explanation) -> String {
    match explanation.longest_wait {
        LongestWait::Exactly(length) => format!("{length}, if nothing else happens meanwhile"),
        LongestWait::UntilReleased(lease) => {
            format!("until a permit is released, or {lease} after its holder died")
        }
        LongestWait::Never => "waiting cannot help".to_owned(),
    }
}

fn memory(explanation: &Explanation) -> String {
    let memory = explanation.memory;
    if memory.least == memory.most {
        format!("about {} bytes", memory.least)
    } else {
        format!(
            "about {} bytes, up to {} for a key in full use",
            memory.least, memory.most
        )
    }
}

fn as_json(explanation: &Explanation, shared: Option<&Sharing>) -> Value {
    let admits: Vec<Value> = explanation.admits.iter().map(admission_as_json).collect();
    let warnings: Vec<Value> = explanation
        .warnings
        .iter()
        .map(|warning| json!({ "message": warning.message, "help": warning.help }))
        .collect();
    let sustained = explanation
        .sustained
        .map(|rate| json!({ "count": rate.count(), "period_us": rate.period().0 }));
    json!({
        "limit": explanation.name,
        "algorithm": explanation.algorithm,
        "sentence": explanation.sentence,
        "counted_by": explanation.counted_by,
        "mode": mode(explanation.mode),
        "cost": explanation.cost,
        "sustained": sustained,
        "sustained_words": explanation.sustained_words,
        "burst": explanation.burst,
        "admits": admits,
        "longest_wait_us": tidegate::Wait::from(explanation.longest_wait).as_micros(),
        "memory_per_key": {
            "least_bytes": explanation.memory.least,
            "most_bytes": explanation.memory.most,
        },
        "worst_traffic": explanation.worst_traffic,
        "store": shared.map(|shared| json!({
            "name": shared.store,
            "kept_in": shared.kept_in,
            "without_answer": shared.without_answer,
            "may_lose": shared.may_lose,
        })),
        "warnings": warnings,
    })
}

fn admission_as_json(admission: &Admission) -> Value {
    let reason = match admission.reason {
        WindowReason::Asked => "asked",
        WindowReason::Own => "own",
        WindowReason::Second => "second",
    };
    json!({
        "window_us": admission.window.0,
        "window": admission.window.to_string(),
        "most": admission.most,
        "reason": reason,
    })
}

fn mode(mode: Mode) -> String {
    match mode {
        Mode::Enforce => "enforce".to_owned(),
        Mode::Shadow => "shadow".to_owned(),
        Mode::Off => "off".to_owned(),
        Mode::Percent(share) => format!("{share}%"),
    }
}
