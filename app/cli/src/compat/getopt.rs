//! Parser of command lines by the rules of GNU `getopt_long` (getopt(3)): abbreviated long options, clusters of short
//! options, options after operands, and the same error texts. clap does not implement these rules, on which the callers
//! of other programs rely.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Option that a command line may contain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec<K> {
    /// Value that identifies the option to the caller. Several options may have the same key.
    pub(crate) key: K,
    /// Letter after one hyphen.
    pub(crate) short: Option<u8>,
    /// Name after two hyphens.
    pub(crate) long: &'static str,
    /// True if the option has an argument.
    pub(crate) has_argument: bool,
}

/// Returns an option without an argument.
pub(crate) const fn flag<K: Copy>(key: K, short: Option<u8>, long: &'static str) -> Spec<K> {
    Spec {
        key,
        short,
        long,
        has_argument: false,
    }
}

/// Returns an option with an argument.
pub(crate) const fn with_argument<K: Copy>(key: K, short: Option<u8>, long: &'static str) -> Spec<K> {
    Spec {
        has_argument: true,
        ..flag(key, short, long)
    }
}

/// Permitted order of options and operands in a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Options may follow operands.
    Permuted,
    /// The first operand ends the options.
    OptionsFirst,
}

impl Order {
    /// Returns the order that the environment requests: options may follow operands unless `POSIXLY_CORRECT` is set.
    pub(crate) fn of_environment() -> Self {
        match std::env::var_os("POSIXLY_CORRECT") {
            None => Self::Permuted,
            Some(_) => Self::OptionsFirst,
        }
    }
}

/// Parser that returns the options of a command line one after the other, and then the operands.
#[derive(Debug)]
pub(crate) struct Getopt<'a, K> {
    /// Name of the program, with which the text of an error begins.
    program: &'a str,
    specs: &'a [Spec<K>],
    order: Order,
    arguments: VecDeque<OsString>,
    /// Remaining short options of the current cluster.
    cluster: VecDeque<u8>,
    operands: Vec<OsString>,
}

/// An option with its argument, or the text of an error in one line.
pub(crate) type Parsed<K> = Result<(K, OsString), String>;

impl<'a, K: Copy + PartialEq> Getopt<'a, K> {
    pub(crate) fn new(
        program: &'a str,
        specs: &'a [Spec<K>],
        order: Order,
        arguments: Vec<OsString>,
    ) -> Self {
        Self {
            program,
            specs,
            order,
            arguments: arguments.into(),
            cluster: VecDeque::new(),
            operands: Vec::new(),
        }
    }

    /// Returns the arguments that are not options, in their order, after the last option has been returned.
    pub(crate) fn operands(self) -> Vec<OsString> {
        self.operands
    }

    fn short(&mut self, letter: u8) -> Parsed<K> {
        let name = char::from(letter);
        let mut specs = self.specs.iter();
        let Some(spec) = specs.find(|spec| spec.short == Some(letter)) else {
            return Err(format!("{}: invalid option -- '{name}'", self.program));
        };
        if !spec.has_argument {
            return Ok((spec.key, OsString::new()));
        }
        let rest: Vec<u8> = self.cluster.drain(..).collect();
        let argument = match rest.is_empty() {
            true => self.arguments.pop_front(),
            false => Some(OsString::from_vec(rest)),
        };
        match argument {
            Some(argument) => Ok((spec.key, argument)),
            None => Err(format!(
                "{}: option requires an argument -- '{name}'",
                self.program
            )),
        }
    }

    /// Handles the long option `text`, without its leading hyphens.
    fn long(&mut self, text: &OsStr) -> Parsed<K> {
        let bytes = text.as_bytes();
        let equals = bytes.iter().position(|byte| *byte == b'=');
        let (name, value) = match equals {
            Some(place) => (&bytes[..place], Some(&bytes[place + 1..])),
            None => (bytes, None),
        };
        let program = self.program;
        let spec = self.lookup(name, &text.to_string_lossy())?;
        match (spec.has_argument, value) {
            (false, None) => Ok((spec.key, OsString::new())),
            (false, Some(_)) => Err(format!(
                "{program}: option '--{}' doesn't allow an argument",
                spec.long
            )),
            (true, Some(value)) => Ok((spec.key, OsString::from_vec(value.to_vec()))),
            (true, None) => match self.arguments.pop_front() {
                Some(argument) => Ok((spec.key, argument)),
                None => Err(format!(
                    "{program}: option '--{}' requires an argument",
                    spec.long
                )),
            },
        }
    }

    /// Returns the option whose name is `name` or, if there is none, the only one whose name begins with it. `shown` is the
    /// whole argument without hyphens.
    fn lookup(&self, name: &[u8], shown: &str) -> Result<Spec<K>, String> {
        if let Some(exact) = self.specs.iter().find(|spec| spec.long.as_bytes() == name) {
            return Ok(*exact);
        }
        let mut matches = self
            .specs
            .iter()
            .filter(|spec| spec.long.as_bytes().starts_with(name));
        let Some(first) = matches.next() else {
            return Err(format!("{}: unrecognized option '--{shown}'", self.program));
        };
        let others: Vec<_> = matches.collect();
        let same = |spec: &&Spec<K>| spec.key == first.key && spec.has_argument == first.has_argument;
        if others.iter().all(same) {
            return Ok(*first);
        }
        let mut text = format!(
            "{}: option '--{shown}' is ambiguous; possibilities:",
            self.program
        );
        for spec in [first].into_iter().chain(others) {
            // Writing to a string cannot fail.
            let _ = write!(text, " '--{}'", spec.long);
        }
        Err(text)
    }
}

impl<K: Copy + PartialEq> Iterator for Getopt<'_, K> {
    type Item = Parsed<K>;

    fn next(&mut self) -> Option<Parsed<K>> {
        if let Some(letter) = self.cluster.pop_front() {
            return Some(self.short(letter));
        }
        while let Some(argument) = self.arguments.pop_front() {
            match argument.as_bytes() {
                b"--" => {
                    self.operands.extend(self.arguments.drain(..));
                    return None;
                }
                [b'-', b'-', text @ ..] => return Some(self.long(OsStr::from_bytes(text))),
                [b'-', letter, rest @ ..] => {
                    self.cluster = rest.iter().copied().collect();
                    return Some(self.short(*letter));
                }
                _ => self.operands.push(argument),
            }
            if self.order == Order::OptionsFirst {
                self.operands.extend(self.arguments.drain(..));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
