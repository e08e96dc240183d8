use super::*;

const SPECS: &[Spec<char>] = &[
    spec('c', Some(b'c'), "configure", false),
    spec('r', Some(b'r'), "ready-fd", true),
    spec('6', Some(b'6'), "enable-ipv6", false),
    spec('s', None, "enable-sandbox", false),
    spec('s', None, "enable-sandboxing", false),
    spec('o', None, "outbound-addr", true),
    spec('p', None, "outbound-addr6", true),
];

const fn spec(key: char, short: Option<u8>, long: &'static str, has_argument: bool) -> Spec<char> {
    Spec {
        key,
        short,
        long,
        has_argument,
    }
}

/// Returns options and operands as a line of text; an error ends the line.
fn parsed(line: &str) -> String {
    parsed_in(Order::Permuted, line)
}

fn parsed_in(order: Order, line: &str) -> String {
    let words = line.split(' ').filter(|word| !word.is_empty());
    let mut getopt = Getopt::new("tool", SPECS, order, words.map(OsString::from).collect());
    let mut text = String::new();
    for option in getopt.by_ref() {
        match option {
            Ok((key, value)) => write!(text, "{key}={} ", value.display()).unwrap(),
            Err(error) => return text + &error,
        }
    }
    let operands: Vec<_> = getopt
        .operands()
        .into_iter()
        .map(|word| word.into_string().unwrap())
        .collect();
    format!("{text}| {}", operands.join(" "))
}

#[test]
fn values_follow_options_or_are_joined_to_them() {
    for line in [
        "-r3 7 t",
        "-r 3 7 t",
        "--ready-fd=3 7 t",
        "--ready-fd 3 7 t",
        "7 -r 3 t",
        "7 t -r3",
        "--re 3 7 t",
    ] {
        assert_eq!(parsed(line), "r=3 | 7 t", "{line}");
    }
    // The word after an option that requires an argument is that argument, even if it begins with hyphens.
    assert_eq!(parsed("-r --configure 7"), "r=--configure | 7");
    assert_eq!(parsed("-r -- 7"), "r=-- | 7");
    assert_eq!(parsed("--ready-fd= 7"), "r= | 7");
    assert_eq!(parsed("--ready-fd=a=b 7"), "r=a=b | 7");
}

#[test]
fn clusters_end_with_an_option_that_has_an_argument() {
    assert_eq!(parsed("-c6 7"), "c= 6= | 7");
    assert_eq!(parsed("-c6r3 7"), "c= 6= r=3 | 7");
    assert_eq!(parsed("-c6r 3 7"), "c= 6= r=3 | 7");
    assert_eq!(parsed("-r6c 7"), "r=6c | 7");
    assert_eq!(parsed("-cx"), "c= tool: invalid option -- 'x'");
}

#[test]
fn two_hyphens_end_the_options_and_one_is_an_operand() {
    assert_eq!(parsed("-c -- -r 3"), "c= | -r 3");
    assert_eq!(parsed("a -- -c -- b"), "| a -c -- b");
    assert_eq!(parsed("- -c"), "c= | -");
    assert_eq!(parsed(""), "| ");
}

#[test]
fn an_operand_may_end_the_options() {
    assert_eq!(parsed_in(Order::OptionsFirst, "-c a -c --foo"), "c= | a -c --foo");
    assert_eq!(parsed_in(Order::OptionsFirst, "-r a -- b -c"), "r=a | b -c");
}

#[test]
fn unambiguous_abbreviations_are_accepted() {
    assert_eq!(parsed("--conf"), "c= | ");
    assert_eq!(parsed("--enable-i"), "6= | ");
    // A complete name is not ambiguous, and neither are names of one option.
    assert_eq!(parsed("--outbound-addr x"), "o=x | ");
    assert_eq!(parsed("--enable-sand"), "s= | ");
}

#[test]
fn errors_have_the_texts_of_glibc() {
    for (line, error) in [
        ("--foo", "tool: unrecognized option '--foo'"),
        ("--foo=1", "tool: unrecognized option '--foo=1'"),
        ("-x", "tool: invalid option -- 'x'"),
        ("-r", "tool: option requires an argument -- 'r'"),
        ("--ready", "tool: option '--ready-fd' requires an argument"),
        ("--conf=1", "tool: option '--configure' doesn't allow an argument"),
        (
            "--enable=1",
            "tool: option '--enable=1' is ambiguous; possibilities: '--enable-ipv6' '--enable-sandbox' '--enable-sandboxing'",
        ),
        (
            "--outb",
            "tool: option '--outb' is ambiguous; possibilities: '--outbound-addr' '--outbound-addr6'",
        ),
    ] {
        assert_eq!(parsed(line), error, "{line}");
    }
}

#[test]
fn arguments_that_are_not_utf_8_are_kept() {
    let bytes = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let mut getopt = Getopt::new(
        "tool",
        SPECS,
        Order::Permuted,
        vec![bytes(b"-r\xff"), bytes(b"--ready-fd=\xfe"), bytes(b"\xfd")],
    );
    assert_eq!(getopt.next(), Some(Ok(('r', bytes(b"\xff")))));
    assert_eq!(getopt.next(), Some(Ok(('r', bytes(b"\xfe")))));
    assert_eq!(getopt.next(), None);
    assert_eq!(getopt.operands(), [bytes(b"\xfd")]);
}
