//! `operator.key` in the data folder: made anew at every start, readable by the relay's own user only. Whoever can read
//! the data folder may mint a workspace on the running relay; nobody else can, whatever the private listener is
//! reachable from.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

const NAME: &str = "operator.key";

fn path(data_dir: &Path) -> PathBuf {
    data_dir.join(NAME)
}

/// Makes a key and puts it in place of the last one. Only the process that holds the store may do so.
///
/// # Errors
/// When the folder can't be written, or the system gives no randomness.
pub(crate) fn renew(data_dir: &Path) -> io::Result<String> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let key = blake3::Hash::from(random).to_hex().to_string();
    let fresh = data_dir.join(format!(".{NAME}.new"));
    if let Err(error) = fs::remove_file(&fresh)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    // A file that existed could be readable by others.
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&fresh)?;
    file.write_all(key.as_bytes())?;
    fs::rename(&fresh, path(data_dir))?;
    Ok(key)
}

/// The key of the relay that runs on this data folder.
///
/// # Errors
/// When it can't be read: no relay runs there, or it runs as somebody else.
pub(crate) fn read(data_dir: &Path) -> io::Result<String> {
    let path = path(data_dir);
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    fs::read_to_string(&path)
        .map(|key| key.trim().to_owned())
        .map_err(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn the_key_is_private_and_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(".operator.key.new"), "left behind by a crash").unwrap();
        let first = renew(folder.path()).unwrap();
        assert_eq!((read(folder.path()).unwrap(), first.len()), (first.clone(), 64));
        let mode = fs::metadata(folder.path().join(NAME))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_ne!(renew(folder.path()).unwrap(), first);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
