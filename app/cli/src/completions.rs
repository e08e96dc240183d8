//! Verb `pontoon completions`: prints the script by which a shell completes verbs, options and values.

use std::process::ExitCode;

use clap::{Args, CommandFactory as _, ValueEnum};
use clap_complete::aot::{Shell, generate};

use crate::{args, compat};

#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    shell: CompletionShell,
}

/// Shells whose completion scripts the packages install.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CompletionShell {
    Bash,
    Fish,
    Zsh,
}

/// Verb `pontoon completions`.
pub(crate) fn completions(arguments: &CompletionsArgs) -> ExitCode {
    compat::print(&script(arguments.shell));
    ExitCode::SUCCESS
}

/// Returns the script for `shell`.
fn script(shell: CompletionShell) -> String {
    let generator = match shell {
        CompletionShell::Bash => Shell::Bash,
        CompletionShell::Fish => Shell::Fish,
        CompletionShell::Zsh => Shell::Zsh,
    };
    let mut script = Vec::new();
    generate(generator, &mut args::Cli::command(), "pontoon", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_of_each_shell_contains_verbs_and_options() {
        for shell in CompletionShell::value_variants() {
            let script = script(*shell);
            for word in ["relay", "host-loopback", "guest-forward", "completions"] {
                assert!(script.contains(word), "{shell:?}: {word}");
            }
        }
    }
}
