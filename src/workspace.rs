//! Minting workspaces: the first one at the first start, further ones for `drover workspace new` (decisions.md 49).
//! A workspace that exists is never minted again, and no code is ever shown twice.

use crate::handoff::HandoffKey;
use drover_engine::bootstrap::{self, Minted};
use drover_storage::control::{ControlStore, Outcome};
use drover_storage::{Done, RealmId};
use serde_json::{Value, json};
use std::fmt;
use std::sync::mpsc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The longest name of a workspace: what a host name may be.
const NAME_BYTES_MAX: usize = 253;

/// What is printed about a workspace nobody has founded yet. Scripts look for the labels and take the last word of the
/// line (13 §d).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Banner {
    pub(crate) invite: Shown,
    /// The genesis key's fingerprint.
    pub(crate) fingerprint: String,
}

/// What is shown of the invite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// All of it.
    Open {
        /// Where its founder goes.
        link: String,
        /// The one-time code; shown by the process that minted, never again.
        code: Option<String>,
    },
    /// Nothing, it was sealed: only whose relay it is.
    Sealed {
        /// The relay's public name.
        hostname: String,
    },
}

impl fmt::Display for Banner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.invite {
            Shown::Open { link, code } => {
                writeln!(f, "weald:   invite link  {link}")?;
                if let Some(code) = code {
                    writeln!(f, "weald:   invite code  {code}")?;
                    // The page behind the link knows links that carry a secret of their own; this one comes with a code.
                    writeln!(
                        f,
                        "weald:   (both go into the app; opening the link in a browser is not enough)"
                    )?;
                }
            }
            Shown::Sealed { hostname } => writeln!(f, "weald:   hostname     {hostname}")?,
        }
        writeln!(f, "weald:   genesis key  {}", self.fingerprint)
    }
}

impl Banner {
    /// Of a workspace that was minted just now; `sealed`: to a key of the operator's.
    pub(crate) fn fresh(hostname: &str, minted: &bootstrap::Banner, sealed: bool) -> Self {
        let invite = match sealed {
            true => Shown::Sealed {
                hostname: hostname.to_owned(),
            },
            false => Shown::Open {
                link: link(hostname, &minted.token.0),
                code: Some(minted.code.clone()),
            },
        };
        Self {
            invite,
            fingerprint: hex(&minted.fingerprint.0),
        }
    }

    /// As the private listener tells it.
    pub(crate) fn to_json(&self) -> Value {
        match &self.invite {
            Shown::Open { link, code } => json!({ "link": link, "code": code, "genesis": self.fingerprint }),
            Shown::Sealed { hostname } => json!({ "hostname": hostname, "genesis": self.fingerprint }),
        }
    }

    /// The same read back.
    pub(crate) fn from_json(document: &Value) -> Option<Self> {
        let text = |field: &str| Some(document.get(field)?.as_str()?.to_owned());
        let invite = match text("hostname") {
            Some(hostname) => Shown::Sealed { hostname },
            None => Shown::Open {
                link: text("link")?,
                code: text("code"),
            },
        };
        Some(Self {
            invite,
            fingerprint: text("genesis")?,
        })
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

/// Wall clock, Unix milliseconds.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

/// Makes the records of a new workspace; with a handoff key the invite is stored sealed to it. Hashes a code, which takes
/// a while.
///
/// # Errors
/// When the system gives no randomness.
pub(crate) fn mint(
    realm: &RealmId,
    now_ms: u64,
    first: bool,
    hostname: &str,
    handoff: Option<&HandoffKey>,
) -> anyhow::Result<Minted> {
    let minted = bootstrap::mint(realm, now_ms, first)?;
    Ok(match handoff {
        Some(key) => key.attach(minted, hostname)?,
        None => minted,
    })
}

/// Mints in a store that no relay has open. `None`: the workspace exists.
///
/// # Errors
/// When the store or the system's randomness fails.
pub(crate) fn mint_stopped(
    control: &dyn ControlStore,
    realm: &RealmId,
    hostname: &str,
    handoff: Option<&HandoffKey>,
) -> anyhow::Result<Option<Banner>> {
    let minted = mint(realm, now_ms(), false, hostname, handoff)?;
    let banner = Banner::fresh(hostname, &minted.banner, handoff.is_some());
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
    use drover_engine::Directory;
    use drover_storage::embedded::Embedded;

    #[test]
    fn the_banner_keeps_its_labels_and_last_words() {
        let banner = |invite| Banner {
            invite,
            fingerprint: "ff".into(),
        };
        let open = |code: Option<&str>| {
            banner(Shown::Open {
                link: link("relay.example", &[0xab; 16]),
                code: code.map(str::to_owned),
            })
        };
        let sealed = banner(Shown::Sealed {
            hostname: "relay.example".into(),
        });
        let link = "weald:   invite link  https://relay.example/join/abababababababababababababababab\n";
        let code = "weald:   invite code  AAAA-BBBB-CCCC\n\
                    weald:   (both go into the app; opening the link in a browser is not enough)\n";
        let key = "weald:   genesis key  ff\n";
        let hostname = "weald:   hostname     relay.example\n";
        for (banner, lines) in [
            (open(Some("AAAA-BBBB-CCCC")), format!("{link}{code}{key}")),
            (open(None), format!("{link}{key}")),
            (sealed, format!("{hostname}{key}")),
        ] {
            assert_eq!(banner.to_string(), lines);
            assert_eq!(Banner::from_json(&banner.to_json()), Some(banner));
        }
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
        let mint = || mint_stopped(&store, &realm, "relay.example", None).unwrap();
        let Some(Banner {
            invite: Shown::Open { link, code: Some(_) },
            ..
        }) = mint()
        else {
            panic!("no invite")
        };
        assert!(link.starts_with("https://relay.example/join/"));
        assert_eq!(mint(), None);
        assert_eq!(
            Directory::open(&store).unwrap().first(),
            None,
            "it is not the relay's own first one"
        );
    }
}
