//! What this build calls itself (13 §k). A self-report: it shows drift and honest mistakes, it proves nothing.

use std::fs::File;
use std::path::PathBuf;

/// The digest the image was given; else a hash of the running executable; else `unknown`.
pub(crate) fn build_digest(image: Option<&str>) -> String {
    let own = || {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(File::open(executable()?).ok()?).ok()?;
        Some(format!("exe-blake3:{}", hasher.finalize().to_hex()))
    };
    image
        .map(str::to_owned)
        .or_else(own)
        .unwrap_or_else(|| "unknown".to_owned())
}

/// On Linux the file that runs, even if another one was put in its place since.
fn executable() -> Option<PathBuf> {
    if cfg!(target_os = "linux") {
        Some("/proc/self/exe".into())
    } else {
        std::env::current_exe().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W13.48: a given digest wins; without one it is the hash of the file that runs.
    #[test]
    fn the_digest_is_given_or_the_hash_of_the_file() {
        assert_eq!(build_digest(Some("sha256:ab")), "sha256:ab");
        let own = build_digest(None);
        let file = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(own, format!("exe-blake3:{}", blake3::hash(&file).to_hex()));
    }
}
