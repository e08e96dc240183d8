use super::*;
use crate::args::{Cli, Verb};
use clap::Parser as _;

fn translated(line: &str) -> Result<Translation, Failure> {
    let words = line.split(' ').filter(|word| !word.is_empty());
    translate("pasta", words.map(OsString::from).collect())
}

/// Checks that arguments of `pontoon` can be parsed, and returns them in one line.
fn checked(words: Vec<OsString>) -> String {
    let parsed = Cli::try_parse_from([OsString::from("pontoon")].iter().chain(&words));
    match parsed.map(|cli| cli.verb) {
        Ok(Verb::Run(_)) => {}
        other => panic!("{words:?}: {other:?}"),
    }
    let words: Vec<_> = words
        .into_iter()
        .map(|word| word.into_string().unwrap())
        .collect();
    words.join(" ")
}

/// Returns the arguments of `pontoon` for a command line with an existing namespace.
fn attached(line: &str) -> String {
    match translated(line) {
        Ok(Translation::Run(words)) => checked(words),
        other => panic!("{line}: {other:?}"),
    }
}

/// Returns the arguments of `pontoon` for a command line with a command, without the host name.
fn command(line: &str) -> String {
    match translated(line) {
        Ok(Translation::Command(words)) => {
            let line = checked(words);
            let words = line
                .split(' ')
                .filter(|word| !word.starts_with("--hostname=pasta-"));
            words.collect::<Vec<_>>().join(" ")
        }
        other => panic!("{line}: {other:?}"),
    }
}

fn refused(line: &str) -> String {
    match translated(line) {
        Err(Failure { text, usage: None }) => text,
        other => panic!("{line}: {other:?}"),
    }
}

const LINK: &str = "--mtu=65520 --gateway-mac=9a:55:9a:55:9a:55";
const OPEN: &str = "--host-addresses --metadata";
/// Options without `--config-net`.
const FOREIGN: &str = "--no-configure --bring-up-loopback";
const OWN_DNS: &str = "--disable=dns-option";
const UNCONFIGURED: &str = "--no-configure --bring-up-loopback --disable=dns-option";
const AUTO: &str = "--publish=auto/tcp --publish=auto/udp";

#[test]
fn command_lines_of_known_callers_are_translated() {
    // Podman without ports, and with some.
    assert_eq!(
        attached(
            "--config-net --dns-forward 169.254.1.1 -t none -u none -T none -U none --no-map-gw --quiet --netns \
             /run/user/1000/netns/netns-1 --map-guest-addr 169.254.1.2"
        ),
        format!(
            "run --attach=/run/user/1000/netns/netns-1 --daemon --addressing=auto {LINK} --map-host=169.254.1.2 {OPEN} \
             --dns-address=169.254.1.1 --disable=ra --quiet"
        )
    );
    assert_eq!(
        attached(
            "--config-net -t 8080-8080:80-80 -t ::1/9000-9001:9000-9001 -u 127.0.0.1/53-53:5353-5353 --dns-forward \
             169.254.1.1 -T none -U none --no-map-gw --quiet --netns /n/x --map-guest-addr 169.254.1.2 --pid /run/p"
        ),
        format!(
            "run --attach=/n/x --daemon --addressing=auto {LINK} --map-host=169.254.1.2 {OPEN} --dns-address=169.254.1.1 \
             --disable=ra --publish=8080-8080:80-80/tcp --publish=[::1]:9000-9001:9000-9001/tcp \
             --publish=127.0.0.1:53-53:5353-5353/udp --quiet --pid-file=/run/p --keep-pid-file"
        )
    );
    // RootlessKit.
    let options = "--stderr --ns-ifname=tap0 --mtu=65520 --config-net --address=10.0.2.100 --netmask=24 --gateway=10.0.2.2 \
                   --dns-forward=10.0.2.3 --ipv4-only --tcp-ports=auto --udp-ports=none --host-lo-to-ns-lo";
    let network = format!(
        "--ifname=tap0 --addressing=auto --address=10.0.2.100/24 --gateway=10.0.2.2 --no-host-routes --no-ipv6 {LINK} \
         --host-loopback {OPEN} --dns-address=10.0.2.3 --disable=ra --publish=auto/tcp,via=guest-loopback"
    );
    assert_eq!(
        attached(&format!("{options} 17")),
        format!("run --attach=17 --daemon {network}")
    );
    assert_eq!(
        attached(&format!(
            "{options} --userns=/proc/self/ns/user --netns=/proc/17/ns/net"
        )),
        format!("run --attach=/proc/17/ns/net --daemon {network}")
    );
    for line in ["--version", "--host-lo-to-ns-lo --version"] {
        let Ok(Translation::Print(text)) = translated(line) else {
            panic!("{line}");
        };
        assert!(text.starts_with("pasta 20"), "{text}");
    }
}

#[test]
fn modes_are_selected_by_operands_and_netns() {
    let rest = format!("--addressing=auto {LINK} --host-loopback {OPEN} {AUTO}");
    let unconfigured = rest.replace(OPEN, &format!("{OPEN} {OWN_DNS}"));
    assert_eq!(
        command("ls -l --netns x"),
        format!("run {rest} --quiet -- ls -l --netns x")
    );
    assert_eq!(command("-- ls 17"), format!("run {rest} --quiet -- ls 17"));
    assert_eq!(command(""), format!("run {rest} --quiet --"));
    assert_eq!(
        command("-d --netns-only ls"),
        format!("run --keep-capabilities {rest} -v -- ls")
    );
    assert_eq!(
        attached("17"),
        format!("run --attach=17 {FOREIGN} --daemon {unconfigured}")
    );
    assert_eq!(
        attached("-f 17"),
        format!("run --attach=17 {FOREIGN} {unconfigured}")
    );
    assert_eq!(
        attached("--netns blue --no-netns-quit"),
        format!("run --attach=/run/netns/blue {FOREIGN} --daemon --stay {unconfigured}")
    );
    assert_eq!(
        attached("--netns ./17 -f --userns /none --netns-only"),
        format!("run --attach=./17 {FOREIGN} {unconfigured}")
    );
    assert!(
        matches!(translated("-H box ls"), Ok(Translation::Command(words)) if words.contains(&"--hostname=box".into()))
    );
    for (line, text) in [
        ("--netns x 17", "Both --netns and PID or command given"),
        ("--netns x ls", "Both --netns and PID or command given"),
        ("2147483648", "Invalid PID 2147483648"),
        ("0", "Invalid PID 0"),
        (
            "--userns /none 17",
            "Couldn't open user namespace /none: No such file or directory",
        ),
        (
            "--userns /proc/self/ns/user ls",
            "--userns /proc/self/ns/user: a command gets a new user namespace (try: --netns PATH or a PID)",
        ),
        ("--netns= ls", "Invalid netns: "),
        ("-H a/b ls", "Invalid hostname: a/b: not a host name"),
    ] {
        assert_eq!(refused(line), text, "{line}");
    }
}

#[test]
fn default_host_names_fit() {
    assert_eq!(default_hostname("box").as_deref(), Some("pasta-box"));
    assert_eq!(default_hostname("").as_deref(), Some("pasta"));
    assert_eq!(default_hostname("a b"), None);
    let long = default_hostname(&"x".repeat(64)).unwrap();
    assert_eq!(long.len(), 63);
}

/// Tests the options of addresses and of the interface, by the words that differ from those without options.
#[test]
fn each_option_of_the_network_has_its_counterpart() {
    let usual = attached("17");
    for (given, added, removed) in [
        ("-I eth9", "--ifname=eth9", ""),
        ("-a 192.0.2.5", "--address=192.0.2.5/24", ""),
        ("-a 10.1.2.3", "--address=10.1.2.3/8", ""),
        ("-a 172.16.0.5", "--address=172.16.0.5/16", ""),
        ("-a 192.0.2.5/28", "--address=192.0.2.5/28", ""),
        ("-a 192.0.2.5 -n 255.255.255.240", "--address=192.0.2.5/28", ""),
        ("-n 0x1c -a 192.0.2.5", "--address=192.0.2.5/28", ""),
        (
            "-a 192.0.2.5 -a 2001:db8::5/48 -a 192.0.2.6/30",
            "--address=192.0.2.6/30 --address=2001:db8::5/64",
            "",
        ),
        ("-g 192.0.2.1", "--gateway=192.0.2.1 --no-host-routes", ""),
        (
            "-g 192.0.2.1 -g fe80::1 -g 192.0.2.2",
            "--gateway=192.0.2.2 --gateway=fe80::1 --no-host-routes",
            "",
        ),
        ("-i eth7", "--addressing=auto:eth7", "--addressing=auto"),
        (
            "-o 192.0.2.9 -o 2001:db8::9",
            "--outbound=192.0.2.9 --outbound=2001:db8::9",
            "",
        ),
        (
            "--outbound-if4 eth7",
            "--addressing=auto:eth7 --outbound=eth7",
            "--addressing=auto",
        ),
        (
            "--outbound-if4 eth7 --outbound-if6 eth7 -i eth8",
            "--addressing=auto:eth8 --outbound=eth7",
            "--addressing=auto",
        ),
        ("-m 1400", "--mtu=1400", "--mtu=65520"),
        ("-m 0", "--mtu=1500", "--mtu=65520"),
        ("-m 65535", "", ""),
        ("-m 1000", "--no-ipv6 --mtu=1000", "--mtu=65520"),
        ("-m 1000 -4", "--no-ipv6 --mtu=1000", "--mtu=65520"),
        ("-4 -a 2001:db8::5 -g fe80::1", "--no-host-routes --no-ipv6", ""),
        ("-6 -4", "--no-ipv6", ""),
        (
            "-6 -a 192.0.2.5 --map-guest-addr 169.254.1.2 --dns-forward 169.254.1.1",
            "--no-ipv4",
            "",
        ),
        (
            "-M 02:00:00:00:00:07",
            "--gateway-mac=02:00:00:00:00:07",
            "--gateway-mac=9a:55:9a:55:9a:55",
        ),
        ("--ns-mac-addr 02:00:00:00:00:08", "--mac=02:00:00:00:00:08", ""),
        ("--config-net", "--disable=ra", UNCONFIGURED),
        (
            "--config-net --no-copy-routes --no-copy-addrs",
            "--one-host-address --no-host-routes --disable=ra",
            UNCONFIGURED,
        ),
        ("--no-tcp --no-udp", "--disable=tcp,udp,dns-option", OWN_DNS),
        ("--no-icmp --no-ra", "--disable=icmp,ra,ndp,dns-option", OWN_DNS),
        (
            "--no-dhcp --no-ndp --no-dhcpv6",
            "--disable=dhcp,ndp,dhcpv6,dns-option",
            OWN_DNS,
        ),
        ("--no-map-gw", "", "--host-loopback"),
        ("--map-host-loopback none", "", "--host-loopback"),
        (
            "--map-host-loopback 192.0.2.7 --map-host-loopback fd00::7",
            "--host-loopback=192.0.2.7 --host-loopback=fd00::7",
            "--host-loopback",
        ),
        (
            "--no-map-gw --map-host-loopback 192.0.2.7",
            "--host-loopback=192.0.2.7",
            "--host-loopback",
        ),
        (
            "--map-guest-addr 192.0.2.7 --map-guest-addr fd00::7",
            "--map-host=192.0.2.7 --map-host=fd00::7",
            "",
        ),
        ("--map-guest-addr 192.0.2.7 --map-guest-addr none", "", ""),
        ("--fqdn a.example", "--fqdn=a.example", ""),
        ("-e --chroot-fallback", "", ""),
        ("--no-splice", "--no-splice", ""),
        ("--dhcp-search", "", OWN_DNS),
        ("--dhcp-dns", "", OWN_DNS),
        ("-T auto -U 8000-8010,auto -T none --tcp-ns none", "", ""),
        (
            "-T 5432,8000-8009:9000-9009 --tcp-ns 22",
            "--guest-forward=localhost:5432 --guest-forward=localhost:8000-8009:9000-9009 \
             --guest-forward=localhost:22",
            "",
        ),
    ] {
        let mut expected: Vec<&str> = usual
            .split(' ')
            .filter(|word| removed.split(' ').all(|removed| removed != *word))
            .collect();
        expected.extend(added.split(' ').filter(|word| !word.is_empty()));
        expected.sort_unstable();
        let line = attached(&format!("{given} 17"));
        let mut words: Vec<&str> = line.split(' ').collect();
        words.sort_unstable();
        assert_eq!(words, expected, "{given}");
    }
}

#[test]
fn options_of_names_have_their_counterparts() {
    for (given, expected) in [
        ("-D none", "--dns=none"),
        ("-D none -D 192.0.2.53", ""),
        ("--dns-forward 192.0.2.5 -D none", "--dns=none"),
        ("-D none --dns-forward 192.0.2.5", "--dns-address=192.0.2.5"),
        (
            "--dns-forward 192.0.2.5 --dns-forward fd00::5 --dns-forward 192.0.2.6",
            "--dns-address=192.0.2.6 --dns-address=fd00::5",
        ),
        (
            "--dns-forward 192.0.2.5 --dns-host 127.0.0.1 --dns-host ::1",
            "--dns-address=192.0.2.5 --dns=127.0.0.1 --dns=::1",
        ),
        // Nothing announces the server.
        ("-D 192.0.2.53", ""),
        (
            "-D 192.0.2.53 -D 192.0.2.54 -D fd00::53 --dhcp-dns",
            "--dns-address=192.0.2.53 --dns-address=fd00::53 --dns=192.0.2.53 --dns=fd00::53",
        ),
        (
            "-D 192.0.2.53 --dhcp-dns --dns-forward 192.0.2.5 --dns-host 192.0.2.7",
            "--dns-address=192.0.2.5 --dns=192.0.2.7",
        ),
        ("-S none", "--search=."),
        (
            "-S none -S a.example -S b.example",
            "--search=a.example --search=b.example",
        ),
    ] {
        let line = attached(&format!("{given} -t none -u none 17"));
        let start =
            format!("run --attach=17 {FOREIGN} --daemon --addressing=auto {LINK} --host-loopback {OPEN}");
        let rest = line.strip_prefix(&start).unwrap_or(&line);
        let rest = rest.strip_suffix(OWN_DNS).unwrap_or(rest);
        assert_eq!(rest.trim(), expected, "{given}");
    }
    let list = translate(
        "pasta",
        ["-S", "a.example b.example", "17"].map(OsString::from).to_vec(),
    );
    let Ok(Translation::Run(words)) = list else {
        panic!("{list:?}");
    };
    assert!(words.contains(&"--search=a.example".into()) && words.contains(&"--search=b.example".into()));
}

#[test]
fn options_of_logs_and_files_have_their_counterparts() {
    let usual = attached("-f 17");
    for (given, expected) in [
        ("-d", "-v"),
        ("--trace", "-vv"),
        ("--trace -d", "-vv"),
        ("-d -q", "--quiet"),
        ("-q -d", "-v"),
        (
            "-l /tmp/a,b",
            "--log-file=/tmp/a,b,size=1048576,title=pasta 2026_07_24.06fedeb",
        ),
        (
            "--log-size 0xa000 --log-file x -l y",
            "--log-file=y,size=40960,title=pasta 2026_07_24.06fedeb",
        ),
        ("-p x --pcap y", "--pcap=y"),
        ("-P x", "--pid-file=x --keep-pid-file"),
        ("-c x", "--pesto=x"),
        ("--conf-path x,y", "--pesto=x,y"),
    ] {
        assert_eq!(
            attached(&format!("-f {given} 17")),
            format!("{usual} {expected}"),
            "{given}"
        );
    }
}

#[test]
fn ports_at_run_time_have_the_path_of_those_of_the_start() {
    let words = attached("-f --host-lo-to-ns-lo -c x -t 80 17");
    assert!(words.contains("--publish=80/tcp,via=guest-loopback"), "{words}");
    assert!(words.ends_with("--pesto=x,via=guest-loopback"), "{words}");
    assert!(refused("-c x,via=link 17").starts_with("Invalid configuration path: "));
}

#[test]
fn port_specifications_are_translated() {
    for (given, expected) in [
        ("-t none", "--publish=auto/udp"),
        ("-t none -t none -u none", ""),
        ("-t 22 -u none", "--publish=22/tcp"),
        ("-u 22 -t none", "--publish=22/udp"),
        ("-u none -t 22:23", "--publish=22:23/tcp"),
        ("-u none -t 22,25", "--publish=22,25/tcp"),
        ("-u none -t 22-80", "--publish=22-80/tcp"),
        ("-u none -t 22-80:32-90", "--publish=22-80:32-90/tcp"),
        ("-u none -t 192.0.2.1/22", "--publish=192.0.2.1:22/tcp"),
        ("-u none -t ::1/22", "--publish=[::1]:22/tcp"),
        ("-u none -t [::]/22", "--publish=[::]:22/tcp"),
        ("-u none -t 192.0.2.1%eth0/22", "--publish=192.0.2.1%eth0:22/tcp"),
        ("-u none -t %eth0/22", "--publish=%eth0:22/tcp"),
        ("-u none -t *%eth0/22", "--publish=%eth0:22/tcp"),
        ("-u none -t */22", "--publish=22/tcp"),
        (
            "-u none -t 0.0.0.0/5000:192.0.2.5/6000",
            "--publish=0.0.0.0:5000:192.0.2.5:6000/tcp",
        ),
        (
            "-u none -t ::/8080:fd00::2/80",
            "--publish=[::]:8080:[fd00::2]:80/tcp",
        ),
        ("-u none -t 5000:192.0.2.5", "--publish=5000:192.0.2.5/tcp"),
        (
            "-u none -t 127.0.0.6/all:192.0.2.6",
            "--publish=127.0.0.6:all:192.0.2.6/tcp",
        ),
        ("-u none -t all", "--publish=all/tcp"),
        ("-u none -t ::1/all", "--publish=[::1]:all/tcp"),
        ("-u none -t ~25", "--publish=all,~25/tcp"),
        (
            "-u none -t 2000-5000,~3000-3010",
            "--publish=2000-5000,~3000-3010/tcp",
        ),
        (
            "-u none -t 22:23,80,443:8443,8000-8010,~8005",
            "--publish=22,~8005:23/tcp --publish=443,~8005:8443/tcp --publish=80,8000-8010,~8005/tcp",
        ),
        // With ports, the word is without effect.
        ("-u none -t 22,all", "--publish=22/tcp"),
        ("-u none -t auto", "--publish=auto/tcp"),
        ("-u none -t auto,~80", "--publish=auto,~80/tcp"),
        ("-u none -t ::1/auto", "--publish=[::1]:auto/tcp"),
        ("-u none -t 8000-8010,auto", "--publish=8000-8010,auto/tcp"),
        (
            "-u none -t 22 --tcp-ports 23",
            "--publish=22/tcp --publish=23/tcp",
        ),
    ] {
        let line = attached(&format!("{given} 17"));
        let rest = line.split_once(OWN_DNS).unwrap().1;
        assert_eq!(rest.trim_start(), expected, "{given}");
    }
    for wrong in [
        "",
        "x",
        "22-",
        "22:",
        "22:x",
        "22,",
        "1.2.3/22",
        "22:1.2.3.4/",
        "22:1.2.3.4:5",
        "~",
        "~x",
        "auto:1.2.3.4",
    ] {
        assert_eq!(
            refused(&format!("--tcp-ports={wrong} 17")),
            format!("Invalid port specifier '{wrong}'"),
            "{wrong}"
        );
    }
    for (given, text) in [
        (
            "-t 0",
            "Invalid port specifier '0': '0' is not a port (1 to 65535)",
        ),
        (
            "-t 65536",
            "Invalid port specifier '65536': '65536' is not a port (1 to 65535)",
        ),
        (
            "-t 80-70",
            "Invalid port specifier '80-70': '80-70' runs backwards",
        ),
        (
            "-t 80-81:90-92",
            "Invalid port specifier '80-81:90-92': the two ranges differ in length",
        ),
        (
            "-t 22:23,auto",
            "Invalid port specifier '22:23,auto': 'auto' excludes ports and addresses of the namespace",
        ),
        ("-t 22 -t none", "-t none conflicts with previous options"),
        ("-u 22 -u none", "-u none conflicts with previous options"),
        ("-T 1.2.3.4/22", "Listening address not allowed for -T 1.2.3.4/22"),
        ("-U x", "Invalid port specifier 'x'"),
        (
            "-U 5432",
            "-U 5432: these ports of the host are not available at the namespace's loopback address \
             (try: --map-host-loopback ADDR, and the port at ADDR)",
        ),
    ] {
        assert_eq!(refused(&format!("{given} 17")), text);
    }
}

#[test]
fn wrong_values_have_the_error_texts_of_pasta() {
    for (given, text) in [
        ("-a x", "Invalid guest address: x"),
        ("-a 127.0.0.1", "Invalid guest address: 127.0.0.1"),
        ("-a 224.0.0.1", "Invalid guest address: 224.0.0.1"),
        ("-a 192.0.2.1/33", "Invalid prefix length: 192.0.2.1/33"),
        ("-a 192.0.2.1/x", "Invalid guest address: 192.0.2.1/x"),
        ("-a 192.0.2.1/24 -n 24", "Redundant prefix length specification"),
        ("-n 24 -a 192.0.2.1/24", "Redundant prefix length specification"),
        ("-n 33", "Invalid prefix length: 33"),
        ("-n 255.0.255.0", "Invalid prefix length: 255.0.255.0"),
        (
            "-n 24",
            "--netmask 24: the netmask of the host's address is used (try: with --address)",
        ),
        ("-g 127.0.0.1", "Invalid gateway address: 127.0.0.1"),
        ("-g ::", "Invalid gateway address: ::"),
        ("-g 255.255.255.255", "Invalid gateway address: 255.255.255.255"),
        ("-i a/b", "Invalid interface name: a/b"),
        ("-I sixteen-bytes-ab", "Invalid interface name: sixteen-bytes-ab"),
        ("-o 0.0.0.0", "Invalid or redundant outbound address: 0.0.0.0"),
        (
            "--outbound-if4 a --outbound-if6 b",
            "--outbound-if6 b: both families use one outbound interface (try: that of --outbound-if4)",
        ),
        ("-m x", "Invalid MTU: x"),
        ("-m 65536", "MTU 65536 too large (max 65520)"),
        ("-M 2:0:0:0:0:0", "Invalid MAC address: 2:0:0:0:0:0"),
        ("--ns-mac-addr x", "Invalid MAC address: x"),
        (
            "--ns-mac-addr 01:00:00:00:00:00",
            "Invalid MAC address: 01:00:00:00:00:00: not a unicast address",
        ),
        ("-D x", "Cannot use DNS address x"),
        ("-S a/b", "Cannot use DNS search domain a/b"),
        ("--fqdn a/b", "Invalid FQDN: a/b"),
        (
            "--dns-forward 127.0.0.1",
            "Invalid DNS forwarding address: 127.0.0.1",
        ),
        ("--dns-host 0.0.0.0", "Invalid host nameserver address: 0.0.0.0"),
        ("--map-host-loopback x", "Invalid address to remap to host: x"),
        (
            "--map-guest-addr 224.0.0.1",
            "Invalid address to remap to host: 224.0.0.1",
        ),
        (
            "--map-guest-addr fe80::1",
            "Invalid address to remap to host: fe80::1: an address of this kind cannot be reached by the guest",
        ),
        ("--log-size 40959", "Invalid --log-size: 40959"),
        (
            "--log-size 2000000000",
            "Invalid --log-size: 2000000000 (at most 1073741824)",
        ),
        ("--log-file=", "Invalid log file: "),
        (
            "-l x,size=50000",
            "Invalid log file: x,size=50000: it ends like a limit of Pontoon",
        ),
        (
            "-l x,title=y",
            "Invalid log file: x,title=y: it ends like a limit of Pontoon",
        ),
        (
            "-p x,time=1",
            "Invalid pcap path: x,time=1: it ends like a limit of Pontoon",
        ),
        (
            "-p x,snap=y",
            "Invalid pcap path: x,snap=y: it ends like a limit of Pontoon",
        ),
        ("--no-copy-routes", "--no-copy-routes needs --config-net"),
        ("--no-copy-addrs", "--no-copy-addrs needs --config-net"),
        (
            "--no-splice --host-lo-to-ns-lo",
            "--host-lo-to-ns-lo is incompatible with --no-splice",
        ),
        (
            "--splice-only --no-splice",
            "--splice-only is incompatible with --no-splice",
        ),
        ("-s x", "-s is for passt / vhost-user mode only"),
        ("-1", "--one-off is for passt mode only"),
        ("--no-dhcp-dns", "--no-dhcp-dns is for passt mode only"),
    ] {
        assert_eq!(refused(&format!("{given} 17")), text, "{given}");
    }
    for given in [
        "--splice-only",
        "--freebind",
        "--runas 1000",
        "--stats 1",
        "-F 5",
        "--vhost-user",
    ] {
        let text = refused(&format!("{given} 17"));
        assert!(text.contains(" (try: ") && text.lines().count() == 1, "{text}");
    }
}

#[test]
fn unknown_options_have_the_texts_of_getopt_and_the_usage() {
    for (given, text) in [
        (
            "--map-guest-adr=x",
            "pasta: unrecognized option '--map-guest-adr=x'",
        ),
        ("-Z", "pasta: invalid option -- 'Z'"),
        ("-t", "pasta: option requires an argument -- 't'"),
        ("--no-ndp=1", "pasta: option '--no-ndp' doesn't allow an argument"),
    ] {
        let whole = refused(given);
        let (first, usage) = whole.split_once('\n').unwrap();
        assert_eq!(first, text);
        assert!(
            usage.starts_with("Usage: pasta [OPTION]... [COMMAND] [ARGS]...\n"),
            "{usage}"
        );
    }
    let first = refused("--no-copy-");
    assert!(
        first.starts_with(
            "pasta: option '--no-copy-' is ambiguous; possibilities: '--no-copy-routes' '--no-copy-addrs'\n"
        ),
        "{first}"
    );
    // An abbreviation.
    assert!(attached("--config 17").contains("--disable=ra"));
    assert!(refused("--conf 17").contains("possibilities: '--config-net' '--conf-path'"));
}

#[test]
fn help_lists_each_option_of_the_program() {
    let help = |mode| match parse(mode, "p", vec!["--help".into()]) {
        Ok(CommandLine::Print(text)) => text,
        _ => panic!("{mode:?}"),
    };
    for mode in [Mode::Pasta, Mode::Passt] {
        let text = help(mode);
        for spec in SPECS {
            let is_listed = text.contains(&format!("--{}", spec.long));
            let has_no_effect = matches!(spec.key, Key::NoSplice);
            assert!(
                is_listed
                    || has_no_effect
                    || refusal(mode, spec.key).is_some()
                    || spec.key == Key::SpliceOnly,
                "{mode:?}: {}",
                spec.long
            );
        }
        assert!(text.lines().all(|line| line.len() <= 120), "{text}");
    }
}
