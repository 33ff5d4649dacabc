//! Minting workspaces: the first one at the first start, further ones for `drover workspace new` (decisions.md 49).
//! A workspace that exists is never minted again, and no code is ever shown twice.

use crate::config::{Config, Key};
use drover_engine::bootstrap::{self, FIRST_WORKSPACE};
use drover_storage::control::{ControlStore, DirectoryKind, Outcome};
use drover_storage::{Done, RealmId, StoreError};
use std::fmt;
use std::sync::mpsc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The longest name of a workspace: what a host name may be.
const NAME_BYTES_MAX: usize = 253;

/// What is printed about a workspace nobody has founded yet. Scripts look for the labels and take the last word of the
/// line (13 §d).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Banner {
    /// Where its founder goes.
    pub(crate) link: String,
    /// The one-time code; shown by the process that minted, never again.
    pub(crate) code: Option<String>,
    /// The genesis key's fingerprint.
    pub(crate) fingerprint: String,
}

impl fmt::Display for Banner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "weald:   invite link  {}", self.link)?;
        if let Some(code) = &self.code {
            writeln!(f, "weald:   invite code  {code}")?;
        }
        writeln!(f, "weald:   genesis key  {}", self.fingerprint)
    }
}

/// The link of an invite.
pub(crate) fn link(hostname: &str, token: &[u8; 16]) -> String {
    format!("https://{hostname}/join/{}", hex(token))
}

/// Lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The banner of a workspace that was minted just now.
pub(crate) fn fresh_banner(hostname: &str, minted: &bootstrap::Banner) -> Banner {
    Banner {
        link: link(hostname, &minted.token.0),
        code: Some(minted.code.clone()),
        fingerprint: hex(&minted.fingerprint.0),
    }
}

/// The internal id of the workspace with this name.
///
/// # Errors
/// What is wrong with the name.
pub(crate) fn realm(name: &str) -> Result<RealmId, &'static str> {
    let name = name.trim();
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err("a workspace's name has 1 to 253 bytes and no control characters");
    }
    Ok(RealmId(format!("ws:{name}").into()))
}

/// The workspace the relay made for itself at its first start, if it has one. Its identity was stored then; a hostname
/// that changed since changes links and nothing else (13 B9).
///
/// # Errors
/// A damaged directory.
pub(crate) fn first(control: &dyn ControlStore) -> Result<Option<RealmId>, StoreError> {
    let realms = control.directory(DirectoryKind::Realm)?;
    Ok(realms
        .into_iter()
        .find(|entry| &entry.value[..] == FIRST_WORKSPACE)
        .map(|entry| entry.realm))
}

/// Wall clock, Unix milliseconds.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

/// Why nothing is minted while a handoff key is set.
pub(crate) const CANNOT_SEAL: &str = "WEALD_RELAY_BOOTSTRAP_HANDOFF_PUBKEY is set, and this build cannot seal an invite to it: nothing was minted";

/// Whether a mint's link and code would have to be sealed, which this build can't do yet: nothing is minted then.
pub(crate) fn must_be_sealed(config: &Config) -> bool {
    config.text(Key::BootstrapHandoffPubkey).is_some()
}

/// Mints in a store that no relay has open. `None`: the workspace exists.
///
/// # Errors
/// When the store or the system's randomness fails.
pub(crate) fn mint_stopped(
    control: &dyn ControlStore,
    realm: &RealmId,
    hostname: &str,
) -> anyhow::Result<Option<Banner>> {
    let minted = bootstrap::mint(realm, now_ms(), false)?;
    let banner = fresh_banner(hostname, &minted.banner);
    let (tell, told) = mpsc::sync_channel(1);
    let done: Done<Outcome> = Box::new(move |outcome| {
        let _ = tell.send(outcome);
    });
    control.commit(realm.clone(), minted.into_batch(), done);
    Ok(match told.recv()?? {
        Outcome::Applied => Some(banner),
        Outcome::Refused => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use drover_storage::embedded::Embedded;

    #[test]
    fn the_banner_keeps_its_labels_and_last_words() {
        let mut banner = Banner {
            link: link("relay.example", &[0xab; 16]),
            code: Some("AAAA-BBBB-CCCC".into()),
            fingerprint: "ff".into(),
        };
        let link = "weald:   invite link  https://relay.example/join/abababababababababababababababab\n";
        assert_eq!(
            banner.to_string(),
            format!("{link}weald:   invite code  AAAA-BBBB-CCCC\nweald:   genesis key  ff\n")
        );
        banner.code = None;
        assert_eq!(banner.to_string(), format!("{link}weald:   genesis key  ff\n"));
    }

    #[test]
    fn a_name_is_short_text() {
        assert_eq!(
            realm(" team.example ").unwrap(),
            RealmId("ws:team.example".into())
        );
        for wrong in ["", "  ", "a\nb", &"x".repeat(254)] {
            assert!(realm(wrong).is_err(), "{wrong:?}");
        }
    }

    /// decisions.md 49, on a stopped store.
    #[test]
    fn a_stopped_store_mints_a_workspace_once() {
        let folder = tempfile::tempdir().unwrap();
        let store = Embedded::open(folder.path()).unwrap();
        let realm = realm("second.example").unwrap();
        let banner = mint_stopped(&store, &realm, "relay.example").unwrap().unwrap();
        assert!(banner.code.is_some() && banner.link.starts_with("https://relay.example/join/"));
        assert_eq!(mint_stopped(&store, &realm, "relay.example").unwrap(), None);
        assert_eq!(
            first(&store).unwrap(),
            None,
            "it is not the relay's own first one"
        );
    }
}
