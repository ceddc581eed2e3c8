//! The examples do what they say: each asserts what it shows.

#[path = "../examples/echo.rs"]
mod echo;
#[path = "../examples/latency.rs"]
mod latency;
#[path = "../examples/send_file.rs"]
mod send_file;
#[path = "../examples/message_throughput.rs"]
#[expect(dead_code, reason = "the arguments are the tests' own")]
mod throughput;

#[test]
fn messages_come_back() {
    echo::main().unwrap();
}

#[test]
fn a_file_arrives() {
    send_file::main().unwrap();
}

#[test]
fn rounds_are_measured() {
    latency::main().unwrap();
}

#[test]
fn the_rate_is_measured() {
    throughput::run(50).unwrap();
}
