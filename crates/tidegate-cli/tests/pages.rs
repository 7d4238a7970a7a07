//! `simulate --report` and `explain --plot`: pages and plots, opened in a real browser.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn run(arguments: &[&str]) -> (String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    assert!(output.status.success(), "{}", text(output.stderr));
    (text(output.stdout), text(output.stderr))
}

fn fixture() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = path.join("tests/fixtures/nasa-1995-08-01.clf.log.gz");
    path.to_str().unwrap().to_owned()
}

/// A picture of a page, with the size that its header says.
fn picture(page: &Path, name: &str, dark: bool) -> (Vec<u8>, u32) {
    let folder = page.parent().unwrap();
    let file = folder.join(name);
    let mut browser = Command::new("chromium");
    browser.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
    ]);
    browser.args([
        "--no-first-run",
        "--disable-background-networking",
        "--disable-sync",
    ]);
    browser.args(["--disable-component-update", "--hide-scrollbars"]);
    browser.arg("--window-size=1100,2400");
    if dark {
        browser.arg("--blink-settings=preferredColorScheme=0");
    }
    browser.arg(format!(
        "--user-data-dir={}",
        folder.join("profile").display()
    ));
    browser.arg(format!("--screenshot={}", file.display()));
    let output = browser.arg(format!("file://{}", page.display())).output();
    let output = output.expect("chromium is there: cargo xtask tools installs it");
    let bytes =
        fs::read(&file).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let width = bytes[16..20].try_into().map(u32::from_be_bytes).unwrap();
    (bytes, width)
}

fn config(folder: &Path, limits: &str) -> String {
    let path = folder.join("limits.yaml");
    fs::write(&path, limits).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Whether a page asks for anything that is not in it.
fn asks_for_more(page: &str) -> bool {
    let outside = [
        "<script", "<link", "<img", "<iframe", "src=", "url(", "@import",
    ];
    outside.iter().any(|what| page.contains(what))
        || page
            .split("href=\"")
            .skip(1)
            .any(|target| !target.starts_with('#'))
}

#[test]
fn a_report_is_one_page_that_a_browser_shows_in_light_and_in_dark() {
    let folder = tempfile::tempdir().unwrap();
    let many: String = (0..9)
        .map(|n| format!("  l{n}: {{ algorithm: {{ fixed_window: {{ limit: {n}0/1m }} }}, key: [client_ip] }}\n"))
        .collect();
    let config = config(
        folder.path(),
        &format!(
            "limits:\n  per-client: {{ algorithm: {{ sliding_log: {{ limit: 12/1m }} }}, key: [client_ip] }}\n{many}"
        ),
    );
    let page = folder.path().join("report.html");
    let numbers = "per-client.limit=6/1m,30/1m";
    let (out, err) = run(&[
        "simulate",
        &config,
        &fixture(),
        "--what-if",
        numbers,
        "--report",
        page.to_str().unwrap(),
    ]);
    assert!(err.contains("report.html"), "{err}");
    let text = fs::read_to_string(&page).unwrap();
    assert!(!asks_for_more(&text));
    // 10 limits and 1571 clients: what is drawn does not grow with the clients.
    assert!(text.len() < 700_000, "{} bytes", text.len());
    for section in 0..10 {
        assert!(text.contains(&format!("id=\"limit-{section}\"")));
    }
    // The same figures as in the table on the terminal.
    for line in out.lines().filter(|line| line.starts_with("limit ")) {
        let denied = line.split_whitespace().nth(2).unwrap();
        let grouped = match denied.len() {
            4 => format!("{}\u{202f}{}", &denied[..1], &denied[1..]),
            _ => denied.to_owned(),
        };
        assert!(text.contains(&format!(">{grouped}<")), "{line}");
    }
    let (light, width) = picture(&page, "light.png", false);
    let (dark, _) = picture(&page, "dark.png", true);
    assert_eq!(width, 1_100);
    // A page that shows nothing compresses to a few kilobytes.
    assert!(light.len() > 60_000, "{} bytes", light.len());
    assert_ne!(light, dark);
}

#[test]
fn names_from_outside_cannot_put_elements_into_a_report() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(
        folder.path(),
        "limits:\n  a: { algorithm: { fixed_window: { limit: 1/1m } }, key: [query.q] }\n",
    );
    let log = folder.path().join("<b>.log");
    let line = "192.0.2.1 - - [01/May/2026:10:00:00 +0000] \"GET /?q=%3Cscript%3Ealert(1)%3C/script%3E%00 HTTP/1.1\" 200 1\n";
    fs::write(
        &log,
        format!("{line}{line}{line}{}", line.replace("script", "img")),
    )
    .unwrap();
    let page = folder.path().join("report.html");
    run(&[
        "simulate",
        &config,
        log.to_str().unwrap(),
        "--report",
        page.to_str().unwrap(),
    ]);
    let text = fs::read_to_string(&page).unwrap();
    assert!(!asks_for_more(&text), "{text}");
    assert!(text.contains("&lt;script&gt;"), "{text}");
}

#[test]
fn a_plot_of_the_worst_case_holds_each_limit_and_what_they_come_to_together() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(
        folder.path(),
        "limits:\n  burst: { algorithm: { token_bucket: { rate: 2/s, capacity: 20 } } }\n  minute: { algorithm: { sliding_log: { limit: 60/1m } } }\n  leases: { algorithm: { concurrency: { limit: 5, lease: 30s } } }\n",
    );
    let plot: PathBuf = folder.path().join("worst.svg");
    run(&["explain", &config, "--plot", plot.to_str().unwrap()]);
    let svg = fs::read_to_string(&plot).unwrap();
    assert_eq!(
        svg.matches("class=\"plot\"").count(),
        3,
        "two limits and both together"
    );
    assert!(svg.contains("all limits together") && svg.contains("all of them"));
    let (picture, _) = picture(&plot, "worst.png", false);
    assert!(picture.len() > 15_000, "{} bytes", picture.len());
    let (text, _) = run(&["explain", &config, "--plot"]);
    let lines: BTreeSet<&str> = text.lines().collect();
    assert!(lines.contains("minute: sliding_log limit 60/m"), "{text}");
    // A step of the log lies at its period: 60 up to there, 120 beyond.
    let ticks: Vec<&&str> = lines.iter().filter(|line| line.contains('┤')).collect();
    assert!(ticks.len() > 30, "{text}");
}
