//! Runs the examples; each asserts its own results.

#[path = "../examples/echo.rs"]
mod echo;
#[path = "../examples/emulated/mod.rs"]
mod emulated;
#[path = "../examples/hello.rs"]
#[expect(dead_code, reason = "main reads the arguments of the program")]
mod hello;
#[path = "common/lab.rs"]
mod lab;
#[path = "../examples/latency.rs"]
mod latency;
#[path = "../examples/message_streams.rs"]
mod message_streams;
#[path = "../examples/multipath.rs"]
mod multipath;
#[path = "../examples/relays.rs"]
mod relays;
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
fn messages_of_a_channel_go_through_combinators() {
    message_streams::main().unwrap();
}

#[test]
fn the_quick_start_page_shows_the_hello_example_and_it_works() {
    let page = include_str!("../../../docs/quick-start/rust.md");
    let shown = page.split("```rust\n").nth(1).unwrap().split("```").next().unwrap();
    let example = include_str!("../examples/hello.rs").replace("pub(crate) fn", "fn");
    assert!(example.ends_with(shown) && shown.contains("fn main()"), "{shown}");

    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    std::thread::spawn(move || hello::serve(port).map_err(|error| error.to_string()));
    // The server may not listen yet.
    for _ in 0..100 {
        match hello::ask("127.0.0.1", port) {
            Ok(answer) => return assert_eq!(answer, "hello"),
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(50)),
        }
    }
    panic!("the server does not answer");
}

/// As on the page, but with a program in the profile of the tests instead of a release build.
#[test]
fn the_quick_start_works_over_a_lossy_link() {
    let page = include_str!("../../../docs/quick-start/rust.md");
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let program = deps.parent().unwrap().join("examples/hello");
    if !program.exists() {
        let mut cargo = std::process::Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--locked", "-p", "openbats", "--example", "hello"]);
        let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status();
        assert!(built.is_ok_and(|status| status.success()), "cannot build the example");
    }
    let directory = deps.join(format!("quick-start-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::copy(program, directory.join("hello")).unwrap();
    lab::follow_over_lossy_link(page, &directory, &directory);
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn relays_recode_and_the_content_arrives() {
    relays::main().unwrap();
}

#[test]
fn transfer_over_two_paths_completes_when_one_is_cut() {
    multipath::main().unwrap();
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
