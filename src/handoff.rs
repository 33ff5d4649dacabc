//! The sealed bootstrap handoff (06 §14): for a host that must not see the first invite, its link and code are sealed to
//! a key of the operator's at the mint, and whoever has the operator token may fetch them. Only the key's owner can
//! open them.

use crate::private::bearer;
use crate::workspace;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::agreement::{PrivateKey, UnparsedPublicKey, X25519, agree};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use drover_engine::Directory;
use drover_engine::bootstrap::{Handoff, Minted};
use drover_transport::{Page, PublicPages};
use std::fmt;
use std::sync::Arc;

const SALT: &[u8] = b"weald-bootstrap-handoff-v1";
const PATH: &str = "/handoff/";

/// The X25519 public key of `WEALD_RELAY_BOOTSTRAP_HANDOFF_PUBKEY`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct HandoffKey([u8; 32]);

/// Not even a public key is quoted (13 §a.1).
impl fmt::Debug for HandoffKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandoffKey")
    }
}

/// A text could not be sealed: the system gave no randomness.
#[derive(Debug, thiserror::Error)]
#[error("the invite could not be sealed")]
pub(crate) struct SealError(#[from] Unspecified);

impl HandoffKey {
    /// `None` if nothing can be sealed to it: a point of low order has no secret to share.
    pub(crate) fn new(bytes: [u8; 32]) -> Option<Self> {
        let key = Self(bytes);
        key.seal(b"").is_ok().then_some(key)
    }

    /// SHA-256 of the key.
    fn id(&self) -> [u8; 32] {
        digest(&SHA256, &self.0).as_ref().try_into().unwrap_or_default()
    }

    /// Seals to a fresh ephemeral key.
    fn seal(&self, text: &[u8]) -> Result<String, SealError> {
        self.seal_from(&PrivateKey::generate(&X25519)?, text)
    }

    fn seal_from(&self, ephemeral: &PrivateKey, text: &[u8]) -> Result<String, SealError> {
        let mut sealed = ephemeral.compute_public_key()?.as_ref().to_vec();
        let mut text = text.to_vec();
        let key = sealing_key(ephemeral, &self.0, &self.0)?;
        // A key seals one text, so the nonce need not differ.
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key([0; 12]), Aad::empty(), &mut text)?;
        sealed.append(&mut text);
        Ok(STANDARD.encode(sealed))
    }

    /// Has a mint's link and code stored sealed, in the commit that makes the workspace (13 B25).
    ///
    /// # Errors
    /// When the system gives no randomness.
    pub(crate) fn attach(&self, minted: Minted, hostname: &str) -> Result<Minted, SealError> {
        let banner = &minted.banner;
        let handoff = Handoff {
            blob: self.seal(workspace::link(hostname, &banner.token.0).as_bytes())?,
            sealed_code: self.seal(banner.code.as_bytes())?,
            fingerprint: workspace::hex(&banner.fingerprint.0),
            expires_ms: minted.expires_ms,
            recipient: self.id(),
        };
        Ok(minted.with_handoff(handoff))
    }
}

/// The key two parties share: `ours` and `theirs` are a pair and the other's public key, `recipient` whom it is for.
fn sealing_key(
    ours: &PrivateKey,
    theirs: &[u8; 32],
    recipient: &[u8; 32],
) -> Result<LessSafeKey, Unspecified> {
    let theirs = UnparsedPublicKey::new(&X25519, theirs);
    agree(ours, theirs, Unspecified, |shared| {
        let key = Salt::new(HKDF_SHA256, SALT).extract(shared);
        let key = UnboundKey::from(key.expand(&[recipient], &AES_256_GCM)?);
        Ok(LessSafeKey::new(key))
    })
}

/// `GET /handoff/ID` on the public listener; ID is the key's SHA-256 in base64url. It serves the relay's own workspace,
/// and `/handoff/ID/FINGERPRINT` the one with this genesis key, for those of `drover workspace new`.
pub(crate) struct HandoffPage {
    key: HandoffKey,
    /// Of the operator token.
    token: blake3::Hash,
    directory: Arc<Directory>,
    /// Whether the store answers.
    store_answers: Box<dyn Fn() -> bool + Send + Sync>,
}

impl HandoffPage {
    /// For whoever has the operator `token`.
    pub(crate) fn new(
        key: HandoffKey,
        token: &str,
        directory: Arc<Directory>,
        store_answers: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            key,
            token: blake3::hash(token.as_bytes()),
            directory,
            store_answers: Box::new(store_answers),
        }
    }

    fn page_at(&self, now_ms: u64, path: &str, authorization: Option<&[u8]>) -> Option<Page> {
        let wanted = path.strip_prefix(PATH).filter(|wanted| !wanted.is_empty())?;
        // Hashes are compared in constant time.
        if authorization.and_then(bearer) != Some(self.token) {
            return Some(text("401 Unauthorized", "operator token required\n"));
        }
        let (id, fingerprint) = match wanted.split_once('/') {
            Some((id, fingerprint)) => (id, Some(fingerprint)),
            None => (wanted, None),
        };
        let none = text("404 Not Found", "no sealed handoff\n");
        let recipient = self.key.id();
        if id != URL_SAFE_NO_PAD.encode(recipient) {
            return Some(none);
        }
        if !(self.store_answers)() {
            return Some(text("503 Service Unavailable", "no database\n"));
        }
        let handoff = match fingerprint {
            Some(fingerprint) => self.directory.handoff_of(fingerprint),
            None => self
                .directory
                .first()
                .and_then(|realm| self.directory.handoff(&realm)),
        };
        // What was sealed to a key that was replaced since is of no use to the owner of this one.
        let handoff = handoff.filter(|handoff| now_ms < handoff.expires_ms && handoff.recipient == recipient);
        Some(handoff.map_or(none, |handoff| {
            Page {
                status: "200 OK",
                content_type: "application/json",
                body: serde_json::json!({
                    "blob": handoff.blob,
                    "sealed_code": handoff.sealed_code,
                    "genesis_fingerprint": handoff.fingerprint,
                })
                .to_string(),
            }
        }))
    }
}

impl PublicPages for HandoffPage {
    fn page(&self, path: &str, authorization: Option<&[u8]>) -> Option<Page> {
        self.page_at(workspace::now_ms(), path, authorization)
    }
}

fn text(status: &'static str, body: &str) -> Page {
    Page {
        status,
        content_type: "text/plain; charset=utf-8",
        body: body.to_owned(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use drover_storage::control::ControlStore;
    use drover_storage::embedded::Embedded;
    use serde_json::Value;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// The control plane's part: opens what was sealed to this private key.
    pub(crate) fn open(private: &[u8; 32], blob: &str) -> Option<Vec<u8>> {
        let private = PrivateKey::from_private_key(&X25519, private).ok()?;
        let public: [u8; 32] = private.compute_public_key().ok()?.as_ref().try_into().ok()?;
        let mut blob = STANDARD.decode(blob).ok()?;
        let (ephemeral, sealed) = blob.split_first_chunk_mut::<32>()?;
        let key = sealing_key(&private, ephemeral, &public).ok()?;
        let nonce = Nonce::assume_unique_for_key([0; 12]);
        Some(key.open_in_place(nonce, Aad::empty(), sealed).ok()?.to_vec())
    }

    /// The key pair of vector 1: the private key, and the public one as an operator states it.
    pub(crate) const PAIR: ([u8; 32], &str) = ([0x11; 32], "e06Qm75//kTEZaIgA31gjuNYl9Me+XLwf3SJLLD3PxM=");
    /// Of that pair (06 §14).
    pub(crate) const ID: &str = "0Zvz8IJ4LIe3g_5xNGmK7_bmbZ-Gr698-em4v0C6s_8";

    fn key(base64: &str) -> HandoffKey {
        HandoffKey::new(STANDARD.decode(base64).unwrap().try_into().unwrap()).unwrap()
    }

    /// The first vector stands here, for a checkout without the others.
    const OWN: &str = r#"[{
        "handoff_public_key": "e06Qm75//kTEZaIgA31gjuNYl9Me+XLwf3SJLLD3PxM=",
        "handoff_private_key": "ERERERERERERERERERERERERERERERERERERERERERE=",
        "ephemeral_private_key": "QkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkI=",
        "plaintext": "https://acme.relay.weald.team/join/0011223344556677889900aabbccddee",
        "blob": "EyxEK+AQ+9V+cmAzKKp25x/MwVA6riGTJ9FNnJmT9HL/ZlaLS8uinFfIgkgtXCgehvHf8XHgJgfpFbeSWWp4/iVYVlrS0+Y/nrRyA2ydlZ7Fyk1qMeX6rOc670SHWhkB39pL1fGPHVyQgPtMvhaia8R/gQ=="
    }]"#;

    fn shared_cases() -> Option<Vec<Value>> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let file = here
            .ancestors()
            .map(|folder| folder.join("shared/vectors/weald/bootstrap-handoff.json"))
            .find(|file| file.is_file())?;
        let document: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        Some(document["cases"].as_array().unwrap().clone())
    }

    /// W06.22: the vectors seal and open, and not with another key.
    #[test]
    fn vectors() {
        let mut cases: Vec<Value> = serde_json::from_str(OWN).unwrap();
        if let Some(shared) = shared_cases() {
            assert_eq!(shared.len(), 3);
            cases.extend(shared);
        }
        for case in &cases {
            let field = |name: &str| case[name].as_str().unwrap();
            let bytes = |name: &str| <[u8; 32]>::try_from(STANDARD.decode(field(name)).unwrap()).unwrap();
            let ephemeral = PrivateKey::from_private_key(&X25519, &bytes("ephemeral_private_key")).unwrap();
            let (plaintext, blob) = (field("plaintext").as_bytes(), field("blob"));
            let key = key(field("handoff_public_key"));
            assert_eq!(key.seal_from(&ephemeral, plaintext).unwrap(), blob);
            assert_eq!(
                open(&bytes("handoff_private_key"), blob).as_deref(),
                Some(plaintext)
            );
            assert_eq!(open(&[0x21; 32], blob), None);
        }
        assert_eq!(URL_SAFE_NO_PAD.encode(key(PAIR.1).id()), ID);
    }

    #[test]
    fn each_sealing_has_an_ephemeral_key_of_its_own() {
        let key = key(PAIR.1);
        let (one, two) = (key.seal(b"same").unwrap(), key.seal(b"same").unwrap());
        assert_ne!(one[..40], two[..40]);
        assert_eq!(open(&PAIR.0, &one), open(&PAIR.0, &two));
    }

    #[test]
    fn nothing_can_be_sealed_to_a_point_of_low_order() {
        let mut one = [0; 32];
        one[0] = 1;
        assert!(HandoffKey::new([0; 32]).is_none() && HandoffKey::new(one).is_none());
    }

    /// W06.22: who sees the page, and when it is gone.
    #[test]
    fn the_page_is_for_the_bearer_until_it_expires() {
        let folder = tempfile::tempdir().unwrap();
        let store = Embedded::open(folder.path()).unwrap();
        let (own, second) = (
            workspace::realm("own").unwrap(),
            workspace::realm("second").unwrap(),
        );
        let sealed = key(PAIR.1);
        for (realm, first) in [(&own, true), (&second, false)] {
            let minted = workspace::mint(realm, 1_000, first, "relay.example", Some(&sealed)).unwrap();
            let (tell, told) = std::sync::mpsc::sync_channel(1);
            let done = Box::new(move |outcome| {
                let _ = tell.send(outcome);
            });
            store.commit(realm.clone(), minted.into_batch(), done);
            told.recv().unwrap().unwrap();
        }
        let directory = Arc::new(Directory::open(&store).unwrap());
        directory.read_handoffs(&store).unwrap();
        let answers = Arc::new(AtomicBool::new(true));
        let told = answers.clone();
        let page = |key| {
            let told = told.clone();
            HandoffPage::new(key, "token", directory.clone(), move || {
                told.load(Ordering::Relaxed)
            })
        };
        let (replaced, page) = (
            page(key("BSpQdzrI2Rdz8tyWYuEvDe/pFeQVuKHI4gpaPWqyuEM=")),
            page(sealed),
        );
        let good = Some(&b"Bearer token"[..]);
        let at = |now_ms, path: &str, authorization| page.page_at(now_ms, path, authorization).unwrap();
        let path = format!("{PATH}{ID}");

        let served = at(1_000, &path, good);
        assert_eq!(
            (served.status, served.content_type),
            ("200 OK", "application/json")
        );
        assert_eq!(at(2_000, &path, good), served, "reading does not consume");
        let document: Value = serde_json::from_str(&served.body).unwrap();
        assert_eq!(document.as_object().unwrap().len(), 3);
        let opened = |field: &str| {
            let blob = document[field].as_str().unwrap();
            String::from_utf8(open(&PAIR.0, blob).unwrap()).unwrap()
        };
        assert!(opened("blob").starts_with("https://relay.example/join/"));
        assert_eq!(opened("sealed_code").len(), "AAAA-BBBB-CCCC".len());

        for wrong in [
            None,
            Some(&b"token"[..]),
            Some(b"Bearer "),
            Some(b"bearer token"),
            Some(b"Bearer tokens"),
            Some(b"Bearer  token"),
        ] {
            for path in [&path[..], "/handoff/other"] {
                let page = at(1_000, path, wrong);
                assert_eq!(
                    (page.status, page.body.trim()),
                    ("401 Unauthorized", "operator token required")
                );
            }
        }
        let gone = |page: &HandoffPage, now_ms, path: &str| {
            let page = page.page_at(now_ms, path, good).unwrap();
            (page.status, page.body.trim()) == ("404 Not Found", "no sealed handoff")
        };
        let day = 24 * 60 * 60 * 1_000;
        assert_eq!(at(1_000 + day - 1, &path, good), served);
        assert!(gone(&page, 1_000 + day, &path));
        assert!(gone(&page, 1_000, "/handoff/other") && gone(&page, 1_000, &format!("{path}/00")));
        assert!(gone(
            &replaced,
            1_000,
            &format!("{PATH}kTw5qAZHB8-T7TZCQmjP2mvb2wu5mabSjREN-_N_zuo")
        ));
        assert_eq!(page.page_at(1_000, PATH, good), None);

        let other = directory.handoff(&second).unwrap();
        let further = at(1_000, &format!("{path}/{}", other.fingerprint), good);
        assert!(further.body.contains(&other.blob) && further != served);

        answers.store(false, Ordering::Relaxed);
        let down = at(1_000, &path, good);
        assert_eq!(
            (down.status, down.body.trim()),
            ("503 Service Unavailable", "no database")
        );
    }
}
