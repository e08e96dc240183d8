//! Description of the machine and the user, for the report.

use std::collections::BTreeMap;

use rustix::process::{Resource, geteuid, getrlimit};

use crate::schema::Machine;

/// Names of the sysctls that affect figures and are recorded in the report.
const SYSCTLS: &[&str] = &[
    "net.core.rmem_default",
    "net.core.rmem_max",
    "net.core.wmem_default",
    "net.core.wmem_max",
    "net.core.netdev_max_backlog",
    "net.core.default_qdisc",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_available_congestion_control",
    "net.ipv4.udp_mem",
    "fs.nr_open",
];

/// Returns the description of this machine; fields that this user may not read are empty.
pub(crate) fn describe() -> Machine {
    let uname = rustix::system::uname();
    let info = rustix::system::sysinfo();
    let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
    let sysctls = SYSCTLS
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), sysctl(name)?)))
        .collect::<BTreeMap<_, _>>();
    Machine {
        kernel: uname.release().to_string_lossy().into_owned(),
        cpu: value(&cpuinfo, "model name").unwrap_or_else(|| uname.machine().to_string_lossy().into_owned()),
        cpus: std::thread::available_parallelism().map_or(0, |count| count.get() as u32),
        memory_bytes: info.totalram as u64 * u64::from(info.mem_unit),
        virtual_machine: virtual_machine(&cpuinfo),
        congestion_control: sysctl("net.ipv4.tcp_congestion_control").unwrap_or_default(),
        sysctls,
        // `None` is RLIM_INFINITY.
        descriptors_hard: getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX),
        user_id: geteuid().as_raw(),
    }
}

/// Returns the product name of the machine by its firmware (DMI) if the CPU has the flag `hypervisor`.
fn virtual_machine(cpuinfo: &str) -> Option<String> {
    let flags = value(cpuinfo, "flags")?;
    flags.split(' ').find(|flag| *flag == "hypervisor")?;
    let vendor = read("/sys/class/dmi/id/sys_vendor");
    let product = read("/sys/class/dmi/id/product_name");
    let names: Vec<String> = [vendor, product].into_iter().flatten().collect();
    Some(if names.is_empty() {
        "unknown".to_owned()
    } else {
        names.join(" ")
    })
}

fn sysctl(name: &str) -> Option<String> {
    read(&format!("/proc/sys/{}", name.replace('.', "/"))).map(|text| text.replace('\t', " "))
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_owned())
}

/// Returns the value of the first line `key : value` of /proc/cpuinfo.
fn value(text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == key).then(|| value.trim().to_owned())
    })
}
