//! Modules of an unpacked kernel package, with those that they need.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The modules of these names, each behind what it needs, so that they can be loaded in this order.
pub(super) fn closure(kernel: &Path, names: &[&str]) -> Result<Vec<Vec<u8>>> {
    let mut files = HashMap::new();
    collect(&kernel.join("lib/modules"), &mut files)?;
    let mut loaded = Vec::new();
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
        } else if let Some(name) = path
            .file_name()
            .and_then(|name| name.to_str()?.strip_suffix(".ko"))
        {
            files.insert(name.replace('-', "_"), path);
        }
    }
    Ok(())
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
    let bytes = fs::read(path)?;
    for needed in needs(&bytes) {
        load(&needed, files, loaded, modules)?;
    }
    modules.push(bytes);
    Ok(())
}

/// What a module says that it needs, in its section `.modinfo`.
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
    use super::needs;

    #[test]
    fn reads_what_a_module_needs() {
        assert_eq!(
            needs(b"\x7fELF\0license=GPL\0depends=vhost,tap-x\0name=y\0"),
            ["vhost", "tap_x"]
        );
        assert!(needs(b"\0depends=\0name=y\0").is_empty());
        assert!(needs(b"\0name=y\0").is_empty());
    }
}
