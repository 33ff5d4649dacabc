//! `drover verify`, `drover repair` and `drover snapshot`: looking at every byte of a stopped store's log, saving what is
//! intact, and copying a store that may be in use.

use crate::cli::Failure;
use crate::config::Config;
use crate::output::Output;
use crate::serve::store_failure;
use drover_storage::embedded::{Damage, Embedded, OpenError};
use drover_storage::log::LogStore;
use serde_json::{Value, json};
use std::path::Path;

/// Prints what is damaged, and where.
///
/// # Errors
/// 78 if anything is; 69 if a relay has the store.
pub(crate) fn verify(config: &Config, out: &mut Output) -> Result<(), Failure> {
    let findings = Embedded::verify(&config.store_dir()).map_err(store_failure)?;
    let mut text = listed(&findings.damage);
    for mended in &findings.mended {
        text += &format!(
            "the next start puts this right: {}",
            listed(std::slice::from_ref(mended))
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
    let _ = out.print(&text);
    match findings.damage.is_empty() {
        true => Ok(()),
        false => Err(Failure::config(
            "the log is damaged: restore the folder from a backup, or save what is intact with `drover repair FOLDER`",
        )),
    }
}

/// A line for each.
fn listed(damage: &[Damage]) -> String {
    let lines = damage.iter().map(|damage| {
        format!(
            "{}: byte {}: {}\n",
            damage.file.display(),
            damage.offset,
            damage.what
        )
    });
    lines.collect()
}

/// Makes a new store of what is intact.
///
/// # Errors
/// 69 or 78, as when a store is opened.
pub(crate) fn repair(config: &Config, to: &Path, out: &mut Output) -> Result<(), Failure> {
    let saved = Embedded::repair(&config.store_dir(), to).map_err(store_failure)?;
    let damage = match saved.damage.is_empty() {
        true => String::new(),
        false => format!("damaged or missing in the old store:\n{}", listed(&saved.damage)),
    };
    let _ = out.print(&format!(
        "{damage}saved {} records into {}; {} commits were damaged, wholly or in part\nnew envelopes are numbered from {} \
         on, in every group: no number that a lost one had is given again\n",
        saved.records,
        to.display(),
        saved.damaged_commits,
        saved.first_seq
    ));
    Ok(())
}

/// Copies a store as it is at this moment.
///
/// # Errors
/// As [`drover_storage::log::Snapshot::copy`]; and if the store is not open at the moment.
pub(crate) fn snapshot(store: &dyn LogStore, to: &Path) -> Result<Value, OpenError> {
    let snapshot = store.snapshot().map_err(|error| OpenError::Io {
        file: to.into(),
        error: std::io::Error::other(error),
    })?;
    let copied = snapshot.copy(to)?;
    Ok(json!({
        "segments": copied.segments,
        "records": copied.records,
        "bytes": copied.bytes,
        "damaged": copied.damage.len(),
    }))
}

/// Prints what was copied.
///
/// # Errors
/// 78 if reading the copy found damage: then the store itself is damaged.
pub(crate) fn tell_snapshot(copied: &Value, to: &Path, out: &mut Output) -> Result<(), Failure> {
    let number = |name: &str| copied.get(name).and_then(Value::as_u64).unwrap_or_default();
    let _ = out.print(&format!(
        "copied {} segments, {} records, {} bytes into {}\n",
        number("segments"),
        number("records"),
        number("bytes"),
        to.display()
    ));
    match number("damaged") {
        0 => Ok(()),
        n => Err(Failure::config(format!(
            "the copy is damaged in {n} places, as the store is: stop the relay and run `drover verify`"
        ))),
    }
}
