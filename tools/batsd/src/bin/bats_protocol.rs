//! `bats_protocol`: `batsd` with the name, the flags and the file of the original.

fn main() -> std::process::ExitCode {
    batsd::program::bats_protocol()
}
