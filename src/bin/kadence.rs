//! The client and the tools: parse, call, exit code.

fn main() -> std::process::ExitCode {
    kadence::cli::main()
}
