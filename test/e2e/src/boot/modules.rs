//! Kernel modules of an unpacked kernel package, with their dependencies.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Returns the contents of the named modules, each after its dependencies, so that they can be loaded in this order.
/// Modules that are built into the kernel are omitted.
pub(super) fn closure(kernel: &Path, names: &[&str]) -> Result<Vec<Vec<u8>>> {
    let mut files = HashMap::new();
    let directory = super::only(&kernel.join("lib/modules"), "")?;
    collect(&directory, &mut files)?;
    let built_in = fs::read_to_string(directory.join("modules.builtin"))?;
    let mut loaded: Vec<String> = built_in
        .lines()
        .filter_map(|line| name(Path::new(line)))
        .collect();
    let mut modules = Vec::new();
    for name in names {
        load(name, &files, &mut loaded, &mut modules)?;
    }
    Ok(modules)
}

fn collect(directory: &Path, files: &mut HashMap<String, PathBuf>) -> Result<()> {
    let entries = fs::read_dir(directory).with_context(|| format!("no {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            collect(&path, files)?;
        } else if let Some(name) = name(&path) {
            files.insert(name, path);
        }
    }
    Ok(())
}

/// Returns the name of the module in a file `NAME.ko`, compressed or not.
fn name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let name = name.strip_suffix(".xz").unwrap_or(name).strip_suffix(".ko")?;
    Some(name.replace('-', "_"))
}

/// Reads a module's file, and decompresses it if necessary.
fn read(path: &Path) -> Result<Vec<u8>> {
    if path.extension().is_none_or(|extension| extension != "xz") {
        return Ok(fs::read(path)?);
    }
    let output = Command::new("xz")
        .arg("-dc")
        .arg(path)
        .output()
        .context("cannot run xz")?;
    ensure!(output.status.success(), "xz cannot unpack {}", path.display());
    Ok(output.stdout)
}

fn load(
    name: &str,
    files: &HashMap<String, PathBuf>,
    loaded: &mut Vec<String>,
    modules: &mut Vec<Vec<u8>>,
) -> Result<()> {
    if loaded.iter().any(|other| other == name) {
        return Ok(());
    }
    loaded.push(name.to_owned());
    let path = files.get(name).with_context(|| format!("no module {name}"))?;
    let bytes = read(path)?;
    for needed in needs(&bytes) {
        load(&needed, files, loaded, modules)?;
    }
    modules.push(bytes);
    Ok(())
}

/// Returns a module's dependencies, from its section `.modinfo`.
fn needs(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|bytes| bytes == KEY) else {
        return Vec::new();
    };
    let list = module[at + KEY.len()..].split(|byte| *byte == 0).next();
    String::from_utf8_lossy(list.unwrap_or_default())
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{name, needs};

    #[test]
    fn module_names_are_those_of_their_files() {
        assert_eq!(
            name(Path::new("kernel/net/9p/9pnet-virtio.ko.xz")).unwrap(),
            "9pnet_virtio"
        );
        assert_eq!(name(Path::new("tun.ko")).unwrap(), "tun");
        assert_eq!(name(Path::new("modules.dep")), None);
    }

    #[test]
    fn dependencies_of_a_module_are_read() {
        assert_eq!(
            needs(b"\x7fELF\0license=GPL\0depends=vhost,tap-x\0name=y\0"),
            ["vhost", "tap_x"]
        );
        assert!(needs(b"\0depends=\0name=y\0").is_empty());
        assert!(needs(b"\0name=y\0").is_empty());
    }
}
