//! Runs the examples; each asserts its own results.

#[path = "../examples/echo.rs"]
mod echo;
#[path = "../examples/latency.rs"]
mod latency;
#[path = "../examples/send_file.rs"]
mod send_file;
#[path = "../examples/message_throughput.rs"]
#[expect(dead_code, reason = "the test passes its own arguments")]
mod throughput;

#[test]
fn echo_returns_every_message() {
    echo::main().unwrap();
}

#[test]
fn send_file_verifies_the_file() {
    send_file::main().unwrap();
}

#[test]
fn latency_measures_all_rounds() {
    latency::main().unwrap();
}

#[test]
fn throughput_is_measured() {
    throughput::run(50).unwrap();
}
