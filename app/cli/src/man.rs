//! Verb `pontoon man`: manual pages in roff(7), generated from the definitions of the command line. Each verb and
//! subcommand has a page, and so has each program whose command line Pontoon accepts.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, Command, CommandFactory as _};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::args::{self, RELAY_HELP, RUN_HELP, VM_HELP};
use crate::{compat, end, usage};

mod help;

use help::Help;

#[derive(Args, Debug)]
#[command(
    override_usage = "pontoon man [VERB...] | pontoon man --output DIR    (nothing: the page of pontoon itself)"
)]
pub(crate) struct ManArgs {
    /// Verb and subcommand, or a name of `pontoon compat`; the page is printed as the source text of man(1)
    #[arg(value_name = "VERB")]
    verb: Vec<String>,
    /// Write all pages to this directory, which is created
    #[arg(long, value_name = "DIR", conflicts_with = "verb")]
    output: Option<PathBuf>,
}

/// An empty argument of a macro of roff(7).
const NO_DATE: &str = "\"\"";

/// A manual page of section 1.
#[derive(Debug)]
struct Page {
    /// Name of the page: `pontoon-ctl-flows`.
    name: String,
    /// Text in roff(7).
    text: String,
}

impl Page {
    /// Makes a page of sections that were rendered one by one, each with the preamble of the crate `roff`, of which the
    /// first one remains.
    fn new(name: String, sections: &[u8]) -> Self {
        let preamble = Roff::new().render();
        let sections = String::from_utf8_lossy(sections).replace(&preamble, "");
        Self {
            name,
            text: preamble + &sections,
        }
    }
}

/// Verb `pontoon man`.
pub(crate) fn man(arguments: &ManArgs) -> ExitCode {
    let pages = match pages() {
        Ok(pages) => pages,
        Err(error) => return end(Err(error)),
    };
    if let Some(directory) = &arguments.output {
        return end(write(&pages, directory).map(|()| 0));
    }
    let mut name = "pontoon".to_owned();
    for word in &arguments.verb {
        name.push('-');
        name.push_str(word);
    }
    if let Some(page) = pages.iter().find(|page| page.name == name) {
        compat::print(&page.text);
        return ExitCode::SUCCESS;
    }
    let verbs: Vec<_> = pages
        .iter()
        .filter_map(|page| page.name.strip_prefix("pontoon-"))
        .filter(|verb| !verb.contains('-'))
        .collect();
    let (verb, verbs) = (arguments.verb.join(" "), verbs.join(", "));
    eprintln!("error: no manual page for '{verb}' (try: {verbs})");
    usage::STATUS.into()
}

/// Writes each page to a file `NAME.1` in `directory`.
fn write(pages: &[Page], directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    for page in pages {
        let path = directory.join(format!("{}.1", page.name));
        fs::write(&path, &page.text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Returns the pages of all verbs, subcommands and programs of `pontoon compat`.
fn pages() -> Result<Vec<Page>> {
    let mut command = args::Cli::command();
    command.build();
    let mut pages = Vec::new();
    add_pages(&command, &mut pages)?;
    for (name, usage) in compat::usages() {
        pages.push(compat_page(name, &usage)?);
    }
    Ok(pages)
}

/// Adds the pages of `command` and of its subcommands to `pages`.
fn add_pages(command: &Command, pages: &mut Vec<Page>) -> io::Result<()> {
    pages.push(page(command)?);
    for subcommand in command.get_subcommands() {
        add_pages(subcommand, pages)?;
    }
    Ok(())
}

/// Returns the page of one verb or subcommand.
fn page(command: &Command) -> io::Result<Page> {
    let name = command
        .get_display_name()
        .unwrap_or_else(|| command.get_name())
        .to_owned();
    let help = match name.as_str() {
        "pontoon-run" => Help::parse(RUN_HELP),
        "pontoon-vm" => Help::parse(VM_HELP),
        "pontoon-relay" => Help::parse(RELAY_HELP),
        _ => Help::default(),
    };
    // Without this, options that -h does not list would have no text.
    let complete = command.clone().mut_args(|option| option.hide_short_help(false));
    let manual = Man::new(complete)
        .title(&name)
        .date(NO_DATE)
        .source(source())
        .manual("Pontoon");
    let mut text = Vec::new();
    manual.render_title(&mut text)?;
    manual.render_name_section(&mut text)?;
    manual.render_synopsis_section(&mut text)?;
    match help.description.is_empty() {
        true => manual.render_description_section(&mut text)?,
        false => section("DESCRIPTION", &paragraph(&help.description), &mut text)?,
    }
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        manual.render_options_section(&mut text)?;
    }
    if command.has_subcommands() {
        manual.render_subcommands_section(&mut text)?;
    }
    section("NOTES", &paragraph(&help.notes), &mut text)?;
    section("EXIT STATUS", &paragraph(&help.exit_status), &mut text)?;
    section("EXAMPLES", &example(&help.examples), &mut text)?;
    see_also(&name).to_writer(&mut text)?;
    Ok(Page::new(name, &text))
}

/// Returns the page of a program whose command line Pontoon accepts.
fn compat_page(program: &str, usage: &str) -> io::Result<Page> {
    let name = format!("pontoon-{program}");
    let mut roff = Roff::new();
    roff.control("TH", [name.as_str(), "1", NO_DATE, source().as_str(), "Pontoon"]);
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!(
        "{name} - Pontoon with the command line of {program}"
    ))]);
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([roman(format!("{program} [OPTION]... [ARGUMENT]..."))]);
    roff.control("br", []);
    roff.text([roman(format!(
        "pontoon compat {program} [OPTION]... [ARGUMENT]..."
    ))]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([roman(format!(
        "Pontoon accepts the command line of {program} if it is executed through a link with the name {program}, \
         which pontoon compat install DIR creates, or by pontoon compat {program}."
    ))]);
    roff.control("PP", []);
    roff.text([roman(format!(
        "The differences from {program} are listed in compat.md of the documents below."
    ))]);
    roff.control("SH", ["OPTIONS"]);
    let mut text = roff.render().into_bytes();
    example(&usage.lines().collect::<Vec<_>>()).to_writer(&mut text)?;
    see_also(&name).to_writer(&mut text)?;
    Ok(Page::new(name, &text))
}

/// Returns the name and version of the program, for the footer of a page.
fn source() -> String {
    concat!("pontoon ", env!("CARGO_PKG_VERSION")).to_owned()
}

/// Writes a section unless `content` is empty.
fn section(title: &str, content: &Roff, text: &mut Vec<u8>) -> io::Result<()> {
    if *content == Roff::new() {
        return Ok(());
    }
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    roff.to_writer(text)?;
    content.to_writer(text)
}

/// Returns lines that man(1) joins and wraps.
fn paragraph(lines: &[&str]) -> Roff {
    let mut roff = Roff::new();
    for line in lines {
        roff.text([roman(*line)]);
    }
    roff
}

/// Returns lines that are printed unchanged.
fn example(lines: &[&str]) -> Roff {
    let mut roff = Roff::new();
    if lines.is_empty() {
        return roff;
    }
    roff.control("EX", []);
    for line in lines {
        roff.text([roman(*line)]);
    }
    roff.control("EE", []);
    roff
}

fn see_also(name: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    if name != "pontoon" {
        roff.text([roman("pontoon(1)")]);
        roff.control("PP", []);
    }
    roff.text([roman(
        "Documents whose names begin with docs/ are in the source repository, and in /usr/share/doc/pontoon of a \
         package.",
    )]);
    roff
}

#[cfg(test)]
mod tests;
