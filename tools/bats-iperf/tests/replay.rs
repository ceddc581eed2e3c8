//! Replays the corpus of the fuzz target of this crate, and runs mutations of it.

#[path = "../../../fuzz/mutation.rs"]
mod mutation;

use bats_iperf::fuzzing::iperf_messages_run;

/// Words of control messages, bytes of others, and parts of names.
const TOKENS: &[&str] = &[
    "{\"request\":",
    "{\"summary\":",
    "\"throughput\":",
    "\"streams\":",
    "\"mode\":\"btp\"",
    "null",
    "true",
    "-1e400",
    "\"",
    ",",
    ":",
    "{",
    "}",
    "[",
    "]",
    "\\u001b[31m",
    "\\ud800",
    "BIPF",
    "BIPE",
    "BIPRF2",
    "BIPF-END",
    "w",
    "\0\0\0\u{1d}",
    "\u{10}\0\0\0\u{1}\0\0\0\0\0\0\0\0\u{5}",
    "\u{1}\0\0\0\0\0\0\0\u{5}",
    "\u{21}",
    "../",
    "/",
    "\\",
    "..",
    ".x.part",
    "\u{202e}",
    "\n",
];

#[test]
fn iperf_messages() {
    let (mut control, mut accepted, mut data_messages, mut refused) = (0, 0, 0, 0);
    let (mut file_messages, mut good_names, mut bad_names) = (0, 0, 0);
    let inputs = mutation::replay("iperf_messages", TOKENS, 20_000, 70_000, |data| {
        let report = iperf_messages_run(data);
        control += u64::from(report.is_control);
        accepted += u64::from(report.is_accepted);
        data_messages += u64::from(report.data_messages);
        file_messages += u64::from(report.files.messages);
        good_names += u64::from(report.files.accepted_names);
        bad_names += u64::from(report.files.refused_names);
        let is_valid = report.is_control || report.data_messages + report.files.messages > 0;
        refused += u64::from(!is_valid);
    });
    let counts = format!(
        "{inputs} inputs: {control} control messages, {accepted} accepted requests, {data_messages} data messages, \
         {file_messages} file messages, {good_names} names accepted and {bad_names} refused, {refused} refused"
    );
    println!("{counts}");
    assert!(
        control > 1_000
            && accepted > 200
            && data_messages > 300
            && file_messages > 2_000
            && good_names > 200
            && bad_names > 1_000
            && refused > 5_000,
        "{counts}"
    );
}
