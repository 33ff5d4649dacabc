//! Founds the workspace all scripts share: a relay gives one bootstrap invite, and its first access set already admits
//! every actor of every script (05 §7.2, 06 §12, §13).

use crate::cbor::Item;
use crate::frames::{Fields, Form};
use crate::interpret::{Interpreter, digest, sign};
use crate::link::{Stop, Target, fail};
use crate::run::{Head, Run, Workspace};
use crate::runner::Error;
use crate::script::{Script, steps};
use crate::values::{Bad, Scope};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Mutex;

/// A bootstrap invite: what a relay prints at its first start.
#[derive(Clone, PartialEq, Eq)]
pub struct Invite {
    /// From the link.
    pub token: [u8; 16],
    /// The one-time code.
    pub code: String,
}

// A token and a code are secrets.
impl std::fmt::Debug for Invite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Invite")
    }
}

/// Redeems the invite and publishes the first access set of the workspace, which becomes the run's next one.
pub(crate) async fn found(
    target: &Target,
    run: &mut Run,
    invite: &Invite,
    scripts: &[(Script, Form)],
) -> Result<(), Error> {
    let second = !run.workspaces.is_empty();
    let (founder, root) = match second {
        false => ("founder", "group(root)"),
        true => ("founder2", "group(root2)"),
    };
    let reserve = json!([
        [founder, "opens", {"until": "fresh"}],
        [founder, "sends", {"JOIN_RESERVE": {"token": "$token", "code": "$code", "nonce": "id(nonce)", "device": format!("key({founder})")}}],
        [founder, "gets", {"JOIN_RESERVED": {}}],
    ]);
    let begin = json!([
        [founder, "sends", {"CONNECT": {"groups": [root], "sent_at": {"now": 0}}}],
        [founder, "gets", {"CONNECT_ACK": {"server_time": {"save": "relay_ms"}}}],
        [founder, "gets", {"AUTH_CHALLENGE": {"challenge": {"save": "challenge"}}}],
        [founder, "sends", {"AUTH": {"device_key": format!("key({founder})"), "challenge": "$challenge"}}],
        [founder, "gets", {"AUTH_ACK": {}}],
        [founder, "sends", {"ACCESS_QUERY": {}}],
        [founder, "gets", {"ACCESS_STATE": {"salt": {"save": "salt"}, "head": {"save": "head"}}}],
    ]);
    let mut scope = Scope::new(run, founder, &[]);
    scope
        .saved
        .insert("token".into(), Item::Bytes(invite.token.to_vec()));
    scope
        .saved
        .insert("code".into(), Item::Bytes(invite.code.clone().into_bytes()));
    let mut session = Interpreter::new(target, founder, scope, Form::Array);
    session
        .steps(&steps(&reserve)?)
        .await
        .map_err(|stop| match stop {
            Stop::Refused { code, .. } => Error::Invite { second, code },
            stop => Error::Founding(stop),
        })?;
    session.steps(&steps(&begin)?).await.map_err(|stop| match stop {
        Stop::Refused { code, .. } => Error::NoBootstrap(code),
        stop => Error::Founding(stop),
    })?;
    let saved = session.into_saved();
    if saved.get("head") != Some(&Item::Null) {
        return Err(Error::NoBootstrap("its workspace is founded already".into()));
    }
    let (Some(Item::Bytes(salt)), Some(Item::Uint(relay_ms))) = (saved.get("salt"), saved.get("relay_ms"))
    else {
        return Ok(fail("the relay told neither salt nor time")?);
    };
    let Ok(salt) = <[u8; 32]>::try_from(&salt[..]) else {
        return Ok(fail("the salt has not 32 bytes")?);
    };
    run.set_clock(*relay_ms);
    run.workspaces.push(Workspace {
        salt,
        head: Mutex::new(Head {
            set: Fields::new(),
            digest: Vec::new(),
        }),
    });
    let set = genesis(run, founder, root, scripts)?;
    let head = Head {
        digest: digest(&set)?,
        set,
    };
    let mut scope = Scope::new(run, founder, &[]);
    for (field, item) in &head.set {
        scope.saved.insert(format!("set_{field}"), item.clone());
    }
    scope
        .saved
        .insert("digest".into(), Item::Bytes(head.digest.clone()));
    let fields: serde_json::Map<_, _> = head
        .set
        .keys()
        .map(|field| (field.clone(), format!("$set_{field}").into()))
        .collect();
    let publish = json!([
        [founder, "opens", {"groups": [root]}],
        [founder, "sends", {"ACCESS_PUBLISH": fields}],
        [founder, "gets", {"ACCESS_ACCEPTED": {"digest": "$digest"}}],
    ]);
    Interpreter::new(target, founder, scope, Form::Array)
        .steps(&steps(&publish)?)
        .await?;
    if let Some(workspace) = run.workspaces.last() {
        *workspace.head.lock().expect("no holder panics") = head;
    }
    Ok(())
}

/// Version 0: one authorizer, everybody else an entry, a quorum of two out of three.
fn genesis(run: &Run, founder: &str, root: &str, scripts: &[(Script, Form)]) -> Result<Fields, Bad> {
    let own = Scope::new(run, founder, &[]);
    let second = run.workspaces.len() > 1;
    let salt = run
        .workspaces
        .last()
        .map(|workspace| workspace.salt)
        .unwrap_or_default();
    let entry = |key: [u8; 32]| crate::run::blake3(&[&key, &salt]).to_vec();
    let mut entries = BTreeSet::from([entry(own.key(founder)), entry(own.key("recovery"))]);
    let mut recovery = BTreeSet::from([own.key("recovery").to_vec()]);
    for (script, form) in scripts {
        let scope = Scope::new(run, script.scope_name(*form), &script.outsiders);
        for actor in script.actors() {
            let outside = script.outsiders.contains(&actor);
            if !script.strangers.contains(&actor) && outside == second {
                entries.insert(entry(scope.key(&actor)));
            }
        }
        for name in script.recovery.iter().filter(|_| !second) {
            entries.insert(entry(scope.key(name)));
            recovery.insert(scope.key(name).to_vec());
        }
    }
    let quorum: BTreeSet<Vec<u8>> = ["quorum1", "quorum2", "quorum3"]
        .iter()
        .map(|name| own.key(name).to_vec())
        .collect();
    let list = |items: BTreeSet<Vec<u8>>| Item::Array(items.into_iter().map(Item::Bytes).collect());
    let founder_key = own.key(founder).to_vec();
    let mut set = Fields::from([
        ("workspace".into(), Item::Bytes(own.bytes(root)?)),
        ("version".into(), Item::Uint(0)),
        ("prev_hash".into(), Item::Bytes(vec![0; 32])),
        ("issued_at".into(), Item::Uint(run.now_ms())),
        ("entries".into(), list(entries)),
        ("authorizers".into(), list(BTreeSet::from([founder_key.clone()]))),
        ("recovery".into(), list(recovery)),
        (
            "quorum".into(),
            Item::Array(vec![Item::Uint(2), list(quorum), Item::Array(Vec::new())]),
        ),
        ("pending".into(), Item::Array(Vec::new())),
        ("signer".into(), Item::Bytes(founder_key)),
    ]);
    sign(&mut set, run)?;
    Ok(set)
}
