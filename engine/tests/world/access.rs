//! What tests of access sets begin with.

use super::{C, Device, Draft, Got, Workspace, World, group, refused_with};
use drover_wire::error::Code;

/// What an access set that may not be is told (05 §14).
pub const DENIED: Code = Code::WriterNotInAccessSet;

/// The refusal of 05 §14 that carries the head's digest.
pub fn denied_at(ws: &Workspace) -> Got {
    refused_with(DENIED, 0, &ws.head.digest().0)
}

/// A workspace of these members, and its admin's connection.
pub fn founded_with(members: &[&Device]) -> (World, Workspace, C) {
    let mut w = World::new();
    let ws = w.found("ws:one", members, &[group(1)]);
    let admin = w.login(&ws.founder.clone(), &[group(1)]);
    (w, ws, admin)
}

/// The set of a recovery rotation: the workspace's recovery key gives way to `successor`, `device` becomes admin.
pub fn rotation(ws: &Workspace, successor: &Device, device: &Device, pinned: &[&Device]) -> Draft {
    let (salt, spent) = (ws.salt, ws.recovery.clone());
    ws.next().with(|set| {
        set.entries.retain(|e| *e != spent.entry(&salt));
        set.entries.extend([successor.entry(&salt), device.entry(&salt)]);
        set.authorizers.push(device.public());
        set.recovery.retain(|k| *k != spent.public());
        set.recovery.push(successor.public());
        set.pending = pinned.iter().map(|d| d.entry(&salt)).collect();
    })
}
