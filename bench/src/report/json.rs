//! Reads and writes the report file.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{BufReader, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::schema::{BenchmarkReport, VERSION};

/// Writes a report to a temporary file in the directory of `path`, synchronises it, and renames it, so that `path`
/// contains a complete report at any time, even after a crash. This function computes `backends` and void-box's
/// fields of the first level.
///
/// # Errors
/// The directory is not writable, or the disk is full; `path` is then unchanged.
pub fn write_json(report: &BenchmarkReport, path: &Path) -> Result<()> {
    write_whole(report, path).with_context(|| format!("cannot write the report {}", path.display()))
}

/// Reads a report file.
///
/// # Errors
/// The file cannot be read, is not a report, or has another version than [`VERSION`].
pub fn read_json(path: &Path) -> Result<BenchmarkReport> {
    let open = || -> Result<BenchmarkReport> {
        let value: Value = serde_json::from_reader(BufReader::new(File::open(path)?))?;
        let VersionTag { version } =
            VersionTag::deserialize(&value).context("the file is not a report of pontoon bench")?;
        if version != VERSION {
            bail!("the report has version {version}, and this program reads version {VERSION}");
        }
        Ok(serde_json::from_value(value)?)
    };
    open().with_context(|| format!("cannot read the report {}", path.display()))
}

/// Writes the figures of a study, such as `pontoon bench shm`, as JSON.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write_figures(figures: &impl Serialize, path: &Path) -> Result<()> {
    let text = serde_json::to_vec_pretty(figures)?;
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The field `version` of a report file, which is read before the other fields.
#[derive(Deserialize)]
struct VersionTag {
    version: u32,
}

/// The JSON object of the report file: a report together with void-box's fields of one stack on the first level.
#[derive(Serialize)]
struct ReportDocument<'a> {
    #[serde(flatten)]
    report: &'a BenchmarkReport,
    #[serde(flatten)]
    headline: BTreeMap<String, Value>,
}

fn write_whole(report: &BenchmarkReport, path: &Path) -> Result<()> {
    let report = &BenchmarkReport {
        backends: super::void_box(report),
        ..report.clone()
    };
    let headline = super::void_box::headline(report);
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let temporary = tempfile::Builder::new()
        .prefix(".pontoon-bench")
        // Mode 0666, to which the umask applies as for other files; a temporary file has mode 0600 by default.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory)?;
    let mut out = BufWriter::new(&temporary);
    serde_json::to_writer(&mut out, &ReportDocument { report, headline })?;
    out.write_all(b"\n")?;
    out.flush()?;
    drop(out);
    temporary.as_file().sync_all()?;
    // The error value owns the temporary file, which would exist until the error is dropped.
    temporary.persist(path).map_err(|error| error.error)?;
    fs::File::open(directory)?.sync_all()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_as_json() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("figures.json");
        let figures = serde_json::json!({ "rows": [{ "per_s": 1.5 }] });
        write_figures(&figures, &path).unwrap();
        let text = fs::read_to_string(path).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), figures);
    }
}
