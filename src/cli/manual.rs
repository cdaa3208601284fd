//! `kadence generate-docs`: man pages and completions, from the definition of the flags.

use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::daemon::Flags;

use super::{Cli, Failure};

/// Write man pages and shell completions of kadence and kadenced, for packages
#[derive(clap::Args)]
pub struct Args {
    /// The folder for `man/` and `completions/`
    folder: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), Failure> {
    let (man, completions) = (args.folder.join("man"), args.folder.join("completions"));
    for folder in [&man, &completions] {
        std::fs::create_dir_all(folder).map_err(|e| Failure::in_file(folder, &e))?;
    }
    clap_mangen::generate_to(Cli::command(), &man).map_err(|e| Failure::in_file(&man, &e))?;
    page(Man::new(Flags::command()).section("8"), &man.join("kadenced.8"))?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        for (program, mut command) in [("kadence", Cli::command()), ("kadenced", Flags::command())] {
            clap_complete::generate_to(shell, &mut command, program, &completions)
                .map_err(|e| Failure::in_file(&completions, &e))?;
        }
    }
    Ok(())
}

fn page(man: Man, path: &Path) -> Result<(), Failure> {
    let mut text = Vec::new();
    man.render(&mut text)?;
    std::fs::write(path, text).map_err(|e| Failure::in_file(path, &e))
}
