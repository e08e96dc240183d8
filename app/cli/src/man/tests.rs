use clap::CommandFactory as _;

use super::*;

fn text(name: &str) -> String {
    let pages = pages().unwrap();
    let page = pages.into_iter().find(|page| page.name == name);
    page.unwrap_or_else(|| panic!("no page {name}")).text
}

#[test]
fn each_verb_subcommand_and_program_has_a_page() {
    let mut command = args::Cli::command();
    command.build();
    for verb in command.get_subcommands() {
        let name = format!("pontoon-{}", verb.get_name());
        assert!(text(&name).contains(".SH NAME"), "{name}");
        for subcommand in verb.get_subcommands() {
            text(&format!("{name}-{}", subcommand.get_name()));
        }
    }
    for (program, _) in compat::usages() {
        let text = text(&format!("pontoon-{program}"));
        assert!(text.contains(&format!("pontoon compat {program}")), "{text}");
    }
}

#[test]
fn names_of_pages_are_unique() {
    let mut names: Vec<_> = pages().unwrap().into_iter().map(|page| page.name).collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn page_has_options_exit_status_and_examples() {
    let run = text("pontoon-run");
    for expected in [
        ".TH pontoon-run 1 \"\" \"pontoon ",
        "pontoon\\-run \\- Run a command in its own network namespace",
        "\\-\\-host\\-loopback",
        "\\-\\-guest\\-forward",
        "The guest reaches the host\\*(Aqs loopback port",
        ".SH \"EXIT STATUS\"",
        "128+n if signal n killed it",
        ".SH EXAMPLES",
        "pontoon run \\-p 8080:80 \\-\\- nginx",
    ] {
        assert!(run.contains(expected), "{expected}: {run}");
    }
    assert!(!run.contains('{') && !run.contains("are listed by"), "{run}");
    assert!(text("pontoon-relay").contains("the longest group prefix wins"));
}

#[test]
fn preamble_is_at_the_beginning_only() {
    let preamble = Roff::new().render();
    for page in pages().unwrap() {
        assert_eq!(page.text.rfind(&preamble), Some(0), "{}", page.name);
    }
}

#[test]
fn template_is_split_into_description_examples_notes_and_exit_status() {
    let help = Help::parse(
        "{about}\nMore about it.\n\n  pontoon run -- true   an example\n\n{usage-heading} {usage}\n\n{options}\n\nA note.\n\
         The usual options are listed by -h, all of them by --help.\nExit status: 0 or 1.\n",
    );
    let expected = Help {
        description: vec!["More about it."],
        examples: vec!["pontoon run -- true   an example"],
        notes: vec!["A note."],
        exit_status: vec!["0 or 1."],
    };
    assert_eq!(help, expected);
}
