//! Cases about the processes that the sockets of an instance do not serve: those of the guest.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::case::{Case, Context};
use crate::cases::shell::Shell;
use crate::cases::{OBEDIENT, expect, tmpfs};
use crate::network::Network;
use crate::process;

/// Socket files, with the options that name them.
const SOCKETS: [(&str, &str); 4] = [
    ("--control", "/mnt/control"),
    ("--control-read", "/mnt/read"),
    ("--control-decide", "/mnt/decide"),
    ("--slirp-api", "/mnt/api"),
];

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("control.authority.run", 60, run),
        Case::new("control.authority.attach-by-pid", 60, |context| {
            attach(context, Target::Process)
        }),
        Case::new("control.authority.attach-by-path-of-a-process", 60, |context| {
            attach(context, Target::FileOfProcess)
        }),
        Case::new("control.authority.attach-by-path", 60, |context| {
            attach(context, Target::File)
        }),
        Case::new("control.authority.read", 30, read),
    ]
}

/// Value of `--attach`.
#[derive(Clone, Copy)]
enum Target {
    Process,
    FileOfProcess,
    File,
}

/// Returns the options that name all sockets.
fn options() -> String {
    let named = SOCKETS.map(|(option, path)| format!("{option} {path}"));
    named.join(" ")
}

/// Returns a line of shell that connects to a socket, by a program that `way` starts, and prints `served` or `refused`.
fn connects(way: &str, socket: &str) -> String {
    let client = match socket.starts_with("/mnt/api") {
        true => format!(r#"$E2E guest exchange {socket} '{{"execute":"list_hostfwd"}}' "#),
        false => format!("curl -s -m 5 --unix-socket {socket} http://pontoon/v1/stats"),
    };
    format!("{way} {client} >/dev/null 2>&1 && echo served || echo refused")
}

/// Tests that processes of the guest are refused at each socket, in nested namespaces and with another path of the socket,
/// and other users of the host as well; processes of the user outside are served.
fn run(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    tmpfs(Path::new("/mnt"))?;
    let options = options();
    let guest = network.run().options(options.split(' ')).shell(OBEDIENT);
    let mut guest = guest.spawn()?.listening()?;
    let bound = "mkdir /mnt/bound && for name in control read decide api; do touch /mnt/bound/$name && \
                 mount --bind /mnt/$name /mnt/bound/$name || exit; done; echo bound";
    expect(&guest.ask(bound)?, "bound")?;
    let user = "unshare --user --map-root-user";
    for (_, socket) in SOCKETS {
        for way in [
            "",
            user,
            &format!("{user} {user}"),
            &format!("{user} --net --pid --fork"),
            "unshare --pid --fork",
            "unshare --net",
        ] {
            expect(&guest.ask(&connects(way, socket))?, "refused")?;
        }
        let bound = socket.replace("/mnt/", "/mnt/bound/");
        if !socket.ends_with("api") {
            expect(&guest.ask(&connects("", &bound))?, "refused")?;
        }
        let outside = |way: &str| {
            let line = format!("E2E={}; {}", crate::run::own_path(), connects(way, socket));
            process::output(Command::new("sh").args(["-c", &line]))
        };
        expect(outside("")?.trim(), "served")?;
        if !context.program.drop_privileges {
            expect(
                outside("setpriv --reuid 65534 --clear-groups --")?.trim(),
                "refused",
            )?;
            expect(outside(&format!("{user} --net"))?.trim(), "served")?;
        }
    }
    guest.send_line("exit 0")?;
    guest.finish()?;
    for (_, socket) in SOCKETS {
        ensure!(!Path::new(socket).exists(), "{socket} was not removed");
    }
    Ok(())
}

/// Tests that processes in the attached network namespace are refused, and processes in the user namespace that owns it, or
/// in one below that; other processes of the user are served.
fn attach(context: &Context, target: Target) -> Result<()> {
    let _network = Network::new(context)?;
    let mut shell = Shell::start(context)?;
    let user = "unshare --user --map-root-user";
    // A network namespace that root has made has no user namespace of its own.
    let owners = match context.program.drop_privileges {
        true => &[user][..],
        false => &["env", user],
    };
    for owner in owners {
        shell.run(&format!(
            "{owner} unshare --net sleep 1000 >/dev/null & holder=$!; \
             until [ \"$(cat /proc/$holder/comm)\" = sleep ]; do sleep 0.01; done"
        ))?;
        let what = match target {
            Target::Process => "$holder",
            Target::FileOfProcess => "/proc/$holder/ns/net",
            Target::File => {
                let holder = shell.ask("echo $holder")?;
                std::fs::write("/mnt/namespace", "")?;
                let file = format!("/proc/{holder}/ns/net");
                process::output(Command::new("mount").args(["--bind", &file, "/mnt/namespace"]))?;
                "/mnt/namespace"
            }
        };
        expect(
            &shell.ask(&format!(
                "rm -f /mnt/ready; mkfifo /mnt/ready; $PONTOON run {} --attach {what} --ready-fd 3 3>/mnt/ready >/dev/null & \
                 ours=$!; [ -n \"$(cat /mnt/ready)\" ] && echo ready",
                options()
            ))?,
            "ready",
        )?;
        let enter = "nsenter --user --preserve-credentials --target $holder";
        let inside = match *owner == user {
            true => vec![
                format!("{enter} --net"),
                enter.to_owned(),
                format!("{enter} {user}"),
                format!("{enter} --net {user} --net"),
            ],
            false => vec![
                "nsenter --net --target $holder".to_owned(),
                format!("nsenter --net --target $holder {user}"),
            ],
        };
        for (_, socket) in SOCKETS {
            for way in &inside {
                expect(&shell.ask(&connects(way, socket))?, "refused")?;
            }
            expect(&shell.ask(&connects("", socket))?, "served")?;
            expect(&shell.ask(&connects(user, socket))?, "served")?;
        }
        if matches!(target, Target::File) {
            process::output(Command::new("umount").args(["--lazy", "/mnt/namespace"]))?;
            std::fs::remove_file("/mnt/namespace")?;
            shell.run("wait $ours")?;
        }
        shell.run("kill $holder; ! wait $holder; wait $ours")?;
    }
    Ok(())
}

/// Tests that clients of the socket for reading get the resources and change nothing.
fn read(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    tmpfs(Path::new("/mnt"))?;
    let guest = network.run().options(["--control-read", "/mnt/read"]);
    let _guest = guest.shell(OBEDIENT).spawn()?.listening()?;
    let ctl = |words: &[&str]| -> Result<std::process::Output> {
        let mut command = context.program.command()?;
        Ok(command
            .args(["ctl", "--control", "/mnt/read"])
            .args(words)
            .output()?)
    };
    for words in [
        &["stats"][..],
        &["flows"],
        &["policy"],
        &["publish", "list"],
        &["log-level"],
    ] {
        let output = ctl(words)?;
        ensure!(output.status.success(), "{words:?}: {output:?}");
    }
    for words in [
        &["publish", "add", "8080:80"][..],
        &["log-level", "debug"],
        &["capture", "stop"],
    ] {
        let output = ctl(words)?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(1), "{words:?}: {output:?}");
        expect(
            text.trim_end(),
            "error: this socket permits no changes (try: the socket of --control)",
        )?;
    }
    Ok(())
}
