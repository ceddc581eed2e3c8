//! `batsd`: the daemon of a node.

fn main() -> std::process::ExitCode {
    batsd::program::batsd()
}
