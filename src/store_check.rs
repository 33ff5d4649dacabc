//! `drover verify` and `drover repair`: looking at every byte of a stopped store's log, and saving what is intact.

use crate::cli::Failure;
use crate::config::Config;
use crate::serve::store_failure;
use drover_storage::embedded::Embedded;
use std::io::Write;
use std::path::Path;

/// Prints what is damaged, and where.
///
/// # Errors
/// 78 if anything is; 69 if a relay has the store.
pub(crate) fn verify(config: &Config, out: &mut dyn Write) -> Result<(), Failure> {
    let findings = Embedded::verify(&config.store_dir()).map_err(store_failure)?;
    let mut text = String::new();
    for damage in &findings.damage {
        text += &format!(
            "{}: byte {}: {}\n",
            damage.file.display(),
            damage.offset,
            damage.what
        );
    }
    text += &format!(
        "{} segments, {} records, {} bytes: {}\n",
        findings.segments,
        findings.records,
        findings.bytes,
        match findings.damage.len() {
            0 => "intact".to_owned(),
            n => format!("damaged in {n} places"),
        }
    );
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match findings.damage.is_empty() {
        true => Ok(()),
        false => Err(Failure::config(
            "the log is damaged: restore the folder from a backup, or save what is intact with `drover repair FOLDER`",
        )),
    }
}

/// Makes a new store of what is intact.
///
/// # Errors
/// 69 or 78, as when a store is opened.
pub(crate) fn repair(config: &Config, to: &Path, out: &mut dyn Write) -> Result<(), Failure> {
    let saved = Embedded::repair(&config.store_dir(), to).map_err(store_failure)?;
    let _ = writeln!(
        out,
        "saved {} records into {}; {} commits were damaged, wholly or in part",
        saved.records,
        to.display(),
        saved.damaged_commits
    )
    .and_then(|()| out.flush());
    Ok(())
}
