//! The daemon: parse, call, exit code.

fn main() -> std::process::ExitCode {
    kadence::daemon::main()
}
