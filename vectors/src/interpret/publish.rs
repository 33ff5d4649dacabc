//! Successors of the newest access set: made, signed, confirmed, published (05 §4, §7).

use super::{Interpreter, frame};
use crate::cbor::Item;
use crate::frames::{Fields, Schema, number};
use crate::link::Stop;
use crate::run::{Head, Run, blake3};
use crate::values::{Bad, bad};
use serde_json::{Map, Value as Json, json};

impl Interpreter<'_> {
    /// Publishes a successor of the newest set (05 §7).
    pub(super) async fn publish(
        &mut self,
        who: &str,
        actor: &str,
        change: &Map<String, Json>,
        refused: Option<&(String, Json)>,
    ) -> Result<(), Stop> {
        let Some(workspace) = self.scope.run.workspaces.first() else {
            return Err(Bad("no workspace".into()).into());
        };
        let head = workspace.head.lock().expect("no holder panics").clone();
        self.scope
            .saved
            .insert("head_digest".into(), Item::Bytes(head.digest.clone()));
        let set = self.successor(&head, actor, change)?;
        let digest = digest(&set)?;
        self.scope
            .saved
            .insert("digest".into(), Item::Bytes(digest.clone()));
        let form = self.link(who)?.form;
        self.link(who)?.send_frame("ACCESS_PUBLISH", &set, form).await?;
        match refused {
            Some((code, detail)) => {
                self.refused(who, code, &json!(0), detail).await?;
                self.fence(who).await
            }
            None => {
                self.gets(who, &frame("ACCESS_ACCEPTED", json!({"digest": "$digest"})))
                    .await?;
                *workspace.head.lock().expect("no holder panics") = Head { set, digest };
                Ok(())
            }
        }
    }

    fn successor(&self, head: &Head, actor: &str, change: &Map<String, Json>) -> Result<Fields, Bad> {
        let mut set = head.set.clone();
        set.remove("sig");
        set.insert("version".into(), Item::Uint(number(&head.set, "version")? + 1));
        set.insert("prev_hash".into(), Item::Bytes(head.digest.clone()));
        set.insert("issued_at".into(), Item::Uint(self.scope.run.now_ms()));
        set.insert("pending".into(), Item::Array(Vec::new()));
        if let Some(Item::Array(parts)) = set.get_mut("quorum") {
            parts.truncate(2);
            parts.push(Item::Array(Vec::new()));
        }
        let signer = match change.get("signed_by") {
            Some(json) => self.scope.item(json)?,
            None => Item::Bytes(self.scope.key(actor).to_vec()),
        };
        set.insert("signer".into(), signer);
        for list in ["entries", "authorizers", "recovery", "pending"] {
            let named = |which: &str| match change.get(which).and_then(|lists| lists.get(list)) {
                Some(json) => match self.scope.item(json)? {
                    Item::Array(items) => Ok(items),
                    other => bad(format!("{list} is no list: {other}")),
                },
                None => Ok(Vec::new()),
            };
            let (add, remove) = (named("add")?, named("remove")?);
            let mut items = match set.get(list) {
                Some(Item::Array(items)) => items.clone(),
                _ => Vec::new(),
            };
            items.retain(|item| !remove.contains(item));
            items.extend(add);
            items.sort_by_key(Item::encode);
            items.dedup();
            set.insert(list.into(), Item::Array(items));
        }
        for (field, json) in change.get("set").and_then(Json::as_object).into_iter().flatten() {
            set.insert(field.clone(), self.scope.item(json)?);
        }
        if let Some(confirm) = change.get("confirm") {
            self.confirm(&mut set, confirm)?;
        }
        if !set.contains_key("sig") {
            sign(&mut set, self.scope.run)?;
        }
        Ok(set)
    }

    /// Quorum signatures over the set and a replacement device (05 §4), put where they are not signed over.
    fn confirm(&self, set: &mut Fields, confirm: &Json) -> Result<(), Bad> {
        let replacement = self.scope.bytes(confirm["device"].as_str().unwrap_or_default())?;
        let message = blake3(&[b"weald recovery-confirm v1", &digest(set)?, &replacement]);
        let mut sigs = Vec::new();
        for name in confirm["by"].as_array().into_iter().flatten() {
            let key = self.scope.key(name.as_str().unwrap_or_default());
            let sig = self.scope.run.sign(&key, &message).unwrap_or_default();
            sigs.push(Item::Array(vec![Item::Bytes(key.to_vec()), Item::Bytes(sig)]));
        }
        match set.get_mut("quorum") {
            Some(Item::Array(parts)) if parts.len() == 3 => {
                parts[2] = Item::Array(sigs);
                Ok(())
            }
            _ => bad("the set has no quorum to confirm by"),
        }
    }
}

/// The encoding of a set that its signature covers.
fn signing_input(set: &Fields) -> Result<Vec<u8>, Bad> {
    Schema::get().signing_input("ACCESS_PUBLISH", set)
}

/// What the next set names as its predecessor.
pub(crate) fn digest(set: &Fields) -> Result<Vec<u8>, Bad> {
    Ok(blake3(&[&signing_input(set)?]).to_vec())
}

/// Signs a set by its signer.
pub(crate) fn sign(set: &mut Fields, run: &Run) -> Result<(), Bad> {
    let Some(Item::Bytes(signer)) = set.get("signer").cloned() else {
        return bad("a set needs a signer");
    };
    match run.sign(&signer, &signing_input(set)?) {
        Some(sig) => {
            set.insert("sig".into(), Item::Bytes(sig));
            Ok(())
        }
        None => bad("nobody has the signer's key"),
    }
}
