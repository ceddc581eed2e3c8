//! The manual page.

use roff::{Roff, bold, italic, roman};

use crate::cli::spelling::{Role, Spec};
use crate::cli::table;
use crate::sweep::options;

/// The manual page, section 1.
pub(crate) fn page() -> String {
    let mut page = Roff::new();
    let version = concat!("bats_perftest ", env!("CARGO_PKG_VERSION"));
    page.control("TH", ["bats_perftest", "1", "", version, "OpenBATS"]);
    page.control("SH", ["NAME"]);
    page.text([roman(
        "bats_perftest - measures samples per second, latency and loss between publishers and \
         subscribers",
    )]);
    page.control("SH", ["SYNOPSIS"]);
    let usages = [
        ("-pub", "OPTIONS"),
        ("[-sub]", "OPTIONS"),
        ("sweep", "SWEEP OPTIONS"),
        ("manual", ""),
        ("completions", "SHELL"),
    ];
    for (word, rest) in usages {
        let rest = if rest.is_empty() { String::new() } else { format!(" [{rest}]") };
        page.text([bold("bats_perftest "), bold(word), italic(rest)]);
        page.control("br", []);
    }
    page.control("SH", ["DESCRIPTION"]);
    for text in [
        "Publishers send samples to subscribers over OpenBATS connections (BRTP, BTP, BRCTP, \
         TRANSPARENT), TCP, QUIC or raw UDP. The publisher prints the latency of echoed samples, the \
         subscriber throughput and losses. Command line and tables are those of RTI Perftest.",
        "Names of options match without regard to case, and every prefix of a name does. Tables go \
         to standard output, everything else to standard error.",
        "sweep runs throughput and latency tests of all sizes over several transports, and writes \
         the tables and a report. manual prints this page, completions the completions for bash, \
         fish or zsh.",
    ] {
        page.text([roman(text)]);
        page.control("PP", []);
    }
    list(&mut page, "OPTIONS", table::OPTIONS);
    list(&mut page, "SWEEP OPTIONS", options::OPTIONS);
    page.control("SH", ["EXIT STATUS"]);
    page.text([roman("0 on success, 255 after an error.")]);
    page.render()
}

/// The options that work, as a section.
fn list(page: &mut Roff, title: &str, specs: &[Spec]) {
    page.control("SH", [title]);
    for spec in specs.iter().filter(|spec| spec.refusal.is_none()) {
        page.control("TP", []);
        let value = spec.value.map(|value| format!(" {value}")).unwrap_or_default();
        let role = match spec.role {
            Role::Publisher => " (publisher)",
            Role::Subscriber => " (subscriber)",
            Role::Both => "",
        };
        page.text([bold(format!("-{}", spec.name)), italic(value), roman(role)]);
        page.text([roman(spec.help)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_option_that_works_and_no_other() {
        let page = page();
        assert!(page.contains(".TH bats_perftest 1"), "{page}");
        for spec in table::OPTIONS.iter().chain(options::OPTIONS) {
            let entry = format!("\\fB\\-{}\\fR", spec.name);
            assert_eq!(page.contains(&entry), spec.refusal.is_none(), "{}: {page}", spec.name);
        }
    }
}
