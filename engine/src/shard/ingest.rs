//! SEND and HANDSHAKE: judged on memory, numbered, gathered into the shard's open batch, acknowledged once that batch
//! is durable ([`commit`]; architecture.md §3). One batch is under way at a time; the next fills meanwhile.

mod commit;

use super::Shard;
use super::drops::Part;
use crate::budget::Seldom;
use crate::effects::Effects;
use crate::event::ConnId;
use crate::group::{Group, Loaded, RunItem, SealedRun};
use crate::limits::{HANDSHAKE_BYTES_MAX, HANDSHAKE_PER_MINUTE, UNCOMMITTED_BYTES_MAX};
use crate::message;
use crate::outbox::{Outbound, cost};
use crate::session::Owed;
use crate::wake::Category;
use bytes::Bytes;
use drover_storage::log::StreamKind;
use drover_wire::envelope::{CT_BYTES_MAX, Envelope};
use drover_wire::error::{Code, Refusal};
use drover_wire::frame::Frame;
use drover_wire::id::{GroupId, Hash};
use drover_wire::map::MapFrame;

/// A handshake that waits for its commit.
pub(super) struct NewHandshake {
    pub(super) group: u32,
    pub(super) seq: u64,
    id: Hash,
    message: Bytes,
    /// HANDSHAKE(group, seq, message): the publisher's acknowledgement and everybody's delivery.
    pub(super) out: Outbound,
    pub(super) publisher: ConnId,
}

/// What one commit makes durable.
#[derive(Default)]
struct Batch {
    /// Groups with a run, in the order they were touched.
    groups: Vec<u32>,
    runs: Vec<SealedRun>,
    handshakes: Vec<NewHandshake>,
    /// Connections that wait for this batch.
    waiting: Vec<ConnId>,
    /// Realms whose byte count changed, and by how much, deletions aside.
    usage: Vec<(u32, u64)>,
    /// What it deletes.
    parts: Vec<Part>,
    /// What it holds of realms given up while it was under way, to wake for.
    given_up: Vec<(u32, Category)>,
    bytes: usize,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.handshakes.is_empty()
    }
}

fn charge(usage: &mut Vec<(u32, u64)>, realm: u32, bytes: u64) {
    match usage.iter_mut().find(|(r, _)| *r == realm) {
        Some((_, sum)) => *sum += bytes,
        None => usage.push((realm, bytes)),
    }
}

/// The shard's open batch and the one under way.
#[derive(Default)]
pub(super) struct Ingest {
    open: Batch,
    under_way: Option<Batch>,
    /// Batches that ended, well or not: the open one is number `ended + 1`, or `+ 2` while one is under way.
    ended: u64,
    /// The log line about a batch that failed.
    failures: Seldom,
}

impl Ingest {
    /// Every batch up to this one has ended.
    pub(super) fn done(&self) -> u64 {
        self.ended
    }

    pub(super) fn is_idle(&self) -> bool {
        self.open.is_empty() && self.under_way.is_none()
    }

    /// Takes everything of a realm that is given up out of both batches. What is under way may still become durable;
    /// nobody is left to be told, but absent devices are woken. Returns whether there was any such.
    pub(super) fn forget(&mut self, realm: u32, is_of_realm: impl Fn(u32) -> bool) -> bool {
        let involved = (self.under_way.iter()).any(|batch| batch.usage.iter().any(|(r, _)| *r == realm));
        if let Some(batch) = &mut self.under_way {
            if batch.runs.iter().any(|run| is_of_realm(run.group)) {
                batch.given_up.push((realm, Category::Message));
            }
            if batch
                .handshakes
                .iter()
                .any(|handshake| is_of_realm(handshake.group))
            {
                batch.given_up.push((realm, Category::Handshake));
            }
        }
        for batch in std::iter::once(&mut self.open).chain(&mut self.under_way) {
            batch.groups.retain(|group| !is_of_realm(*group));
            batch.runs.retain(|run| !is_of_realm(run.group));
            batch.handshakes.retain(|handshake| !is_of_realm(handshake.group));
            batch.usage.retain(|(r, _)| *r != realm);
            batch.parts.retain(|part| part.realm != realm);
        }
        involved
    }

    /// The number of the batch that is filling.
    pub(super) fn open_number(&self) -> u64 {
        self.ended + 1 + u64::from(self.under_way.is_some())
    }
}

impl Shard {
    /// SEND (02 §6), row by row.
    pub(super) fn send<E: Effects>(&mut self, conn: ConnId, bytes: &[u8], message: &Bytes, fx: &mut E) {
        match self.accept(conn, bytes, message, fx) {
            Ok(()) => {}
            Err(refusal) => self.refuse(conn, refusal, fx),
        }
    }

    fn accept<E: Effects>(
        &mut self,
        conn: ConnId,
        bytes: &[u8],
        message: &Bytes,
        fx: &mut E,
    ) -> Result<(), Refusal> {
        if let Some(seen_before) = self.charge_send(conn, fx)? {
            let envelope = Envelope::decode(bytes).map_err(|e| e.refusal)?; // 4
            self.accept_envelope(conn, &envelope, seen_before, message, fx)?;
        }
        Ok(())
    }

    /// Rows 2 and 3 of 02 §6, before the envelope is looked at. Answers whether the frame was charged when it was
    /// first seen; `None` if the connection is over.
    pub(super) fn charge_send<E: Effects>(
        &mut self,
        conn: ConnId,
        fx: &mut E,
    ) -> Result<Option<bool>, Refusal> {
        if self.config.read_only {
            return Err(Code::ServiceReadOnly.into()); // 2
        }
        if self.has_lapsed(conn) {
            self.evict(conn, fx); // 05 D11
            return Ok(None);
        }
        let Some(session) = self.session(conn) else {
            return Ok(None);
        };
        let (bound, device, seen_before) = (session.realm, session.device_slot, session.charged);
        session.charged = true;
        if !seen_before {
            self.charge_device_frame(bound, device)?; // 3
        }
        Ok(Some(seen_before))
    }

    /// The rest of the rows, for an envelope of either form.
    pub(super) fn accept_envelope<E: Effects>(
        &mut self,
        conn: ConnId,
        envelope: &Envelope<'_>,
        seen_before: bool,
        message: &Bytes,
        fx: &mut E,
    ) -> Result<(), Refusal> {
        let wall_ms = self.now.wall_ms;
        let Some(session) = self.session(conn) else {
            return Ok(());
        };
        let (bound, device, map) = (session.realm, session.device_slot, session.map);
        let ct_bytes = envelope.ct.len() as u64;
        if !seen_before {
            self.charge_device_bytes(bound, device, ct_bytes)?; // 3, on ct (decisions.md 4, 30)
        }
        let slot = self.authorize(conn, &envelope.group)?; // 5
        if envelope.v != 1 {
            return Err(Code::ProtocolUnsupported.into()); // 6
        }
        if envelope.enc == 0 && self.config.min_enc_mls {
            return Err(Code::PlaintextRefused.into()); // 7
        }
        if envelope.ct.len() > CT_BYTES_MAX {
            return Err(Code::EnvelopeTooLarge.into()); // 8
        }
        if envelope.ct.is_empty() && !self.config.allow_empty_ct {
            return Err(Code::MalformedHeader.into()); // 8b
        }
        if envelope.content_hash() != envelope.hash {
            return Err(Code::HashMismatch.into()); // 9
        }
        if !self.has_index(conn, slot, StreamKind::Envelopes, message, fx) {
            return Ok(());
        }
        let realm = self.groups[slot as usize].realm;
        self.charge_ingress(realm, slot, device, ct_bytes)?; // 9b
        let Loaded::Warm(index) = &mut self.groups[slot as usize].envelopes else {
            return Ok(());
        };
        let open = self.ingest.open_number();
        if let Some((seq, durable)) = index.find(&envelope.hash) {
            self.metrics.envelopes_duplicate.add(1);
            // 10. An original that is still being committed is acknowledged with the open batch: if its own commit
            // fails, the open one fails with it.
            let batch = if durable { 0 } else { open };
            if map {
                return self.acknowledge_again(conn, slot, seq, batch, message, fx);
            }
            self.owe(
                conn,
                Owed::Ack {
                    hash: envelope.hash,
                    seq,
                    batch,
                },
                fx,
            );
            return Ok(());
        }
        let frozen = self
            .realm_mut(realm)
            .and_then(|r| r.frozen_refusal(&envelope.group));
        if let Some(refusal) = frozen {
            return Err(refusal); // 12
        }
        if self.ingest.open.bytes >= UNCOMMITTED_BYTES_MAX {
            return Err(Code::Backpressure.into());
        }
        let limit = self.config.max_log_bytes;
        let used = self.realm_mut(realm).map_or(0, |r| r.log_bytes);
        if let Some(limit) = limit
            && used.saturating_add(ct_bytes) > limit
        {
            return Err(Refusal::number(Code::LogBudgetExhausted, limit)); // 14
        }
        if let Some(realm) = self.realm_mut(realm) {
            realm.log_bytes += ct_bytes;
        }
        self.metrics.log_bytes.add(ct_bytes);
        let track = self.config.group_backlog_bytes.is_some();
        let group = &mut self.groups[slot as usize];
        let seq = add_to_run(group, envelope, wall_ms, conn);
        if track {
            group.backlog.add(seq, ct_bytes as u32, device);
        }
        if group.run.items.len() == 1 {
            self.ingest.open.groups.push(slot);
        }
        charge(&mut self.ingest.open.usage, realm, ct_bytes);
        self.ingest.open.bytes += envelope.encoded_len();
        if map {
            // A map session's acknowledgement is the accepted envelope itself.
            let accepted = Envelope {
                seq,
                ts_ms: wall_ms,
                ..*envelope
            };
            let out = message::map_frame(&MapFrame::Push(accepted), accepted.encoded_len());
            self.owe(conn, Owed::After { out, batch: open }, fx);
            return Ok(());
        }
        self.owe(
            conn,
            Owed::Ack {
                hash: envelope.hash,
                seq,
                batch: open,
            },
            fx,
        );
        Ok(())
    }

    fn charge_device_frame(&mut self, bound: Option<u32>, device: u32) -> Result<(), Refusal> {
        let (wall_ms, frames) = (self.now.wall_ms, self.config.send_frames_per_minute);
        if let Some(device) = bound
            .and_then(|r| self.realm_mut(r))
            .and_then(|r| r.devices.get_mut(device as usize))
        {
            if !device.frames.fits(wall_ms, 1, frames) {
                return Err(Refusal::number(Code::RateLimited, frames).after(60));
            }
            device.frames.add(wall_ms, 1);
        }
        Ok(())
    }

    fn charge_device_bytes(&mut self, bound: Option<u32>, device: u32, ct_bytes: u64) -> Result<(), Refusal> {
        let (wall_ms, limit) = (self.now.wall_ms, self.config.send_bytes_per_minute);
        if let Some(device) = bound
            .and_then(|r| self.realm_mut(r))
            .and_then(|r| r.devices.get_mut(device as usize))
        {
            if !device.bytes.fits(wall_ms, ct_bytes, limit) {
                device.frames.refund(wall_ms, 1); // a refused SEND charges nothing
                return Err(Refusal::number(Code::RateLimited, limit).after(60));
            }
            device.bytes.add(wall_ms, ct_bytes);
        }
        Ok(())
    }

    /// The admission-blind budgets (04 decision 3): all three are tested before any is charged.
    fn charge_ingress(&mut self, realm: u32, group: u32, device: u32, ct_bytes: u64) -> Result<(), Refusal> {
        let wall_ms = self.now.wall_ms;
        let over = |limit: u64, after: u32| Refusal::number(Code::GroupIngressLimited, limit).after(after);
        let (group_limit, realm_limit, backlog_limit) = (
            self.config.group_ingress_bytes_per_minute,
            self.config.workspace_ingress_bytes_per_minute,
            self.config.group_backlog_bytes,
        );
        let place = &mut self.groups[group as usize];
        if let Some(limit) = group_limit
            && !place
                .ingress
                .entry(device)
                .or_default()
                .fits(wall_ms, ct_bytes, limit)
        {
            return Err(over(limit, 60));
        }
        let backlog = place.backlog.of(device) + ct_bytes;
        if let (Some(limit), Some(realm)) = (realm_limit, self.realm_mut(realm))
            && !realm.ingress.fits(wall_ms, ct_bytes, limit)
        {
            return Err(over(limit, 60));
        }
        if let Some(limit) = backlog_limit
            && backlog > limit
        {
            return Err(over(limit, 5));
        }
        if realm_limit.is_some()
            && let Some(realm) = self.realm_mut(realm)
        {
            realm.ingress.add(wall_ms, ct_bytes);
        }
        if group_limit.is_some()
            && let Some(sum) = self.groups[group as usize].ingress.get_mut(&device)
        {
            sum.add(wall_ms, ct_bytes);
        }
        Ok(())
    }

    /// The encoding of an envelope that is not durable yet.
    pub(super) fn uncommitted(&self, slot: u32, seq: u64) -> Option<Vec<u8>> {
        let find = |items: &[RunItem], bytes: &[u8]| {
            let item = items.iter().find(|i| i.seq == seq)?;
            bytes
                .get(item.envelope as usize..item.end as usize)
                .map(<[u8]>::to_vec)
        };
        let run = &self.groups[slot as usize].run;
        find(&run.items, &run.buffer).or_else(|| {
            let under_way = self.ingest.under_way.as_ref()?;
            under_way
                .runs
                .iter()
                .filter(|r| r.group == slot)
                .find_map(|r| find(&r.items, &r.bytes))
        })
    }

    /// Owes an answer that waits for a batch.
    pub(super) fn owe<E: Effects>(&mut self, conn: ConnId, owed: Owed, fx: &mut E) {
        let (open, done) = (self.ingest.open_number(), self.ingest.done());
        let (Owed::Ack { batch, .. } | Owed::After { batch, .. }) = owed else {
            return;
        };
        let Some(session) = self.session(conn) else { return };
        session.owed.push_back(owed);
        if batch > done {
            if session.listed_in != open {
                session.listed_in = open;
                self.ingest.open.waiting.push(conn);
            }
        } else if session.owed.len() == 1 {
            self.flush_owed(conn, fx);
        }
    }

    /// HANDSHAKE (02 §10, 07 C).
    pub(super) fn handshake<E: Effects>(
        &mut self,
        conn: ConnId,
        group: GroupId,
        body: &[u8],
        message: &Bytes,
        fx: &mut E,
    ) {
        match self.accept_handshake(conn, group, body, message, fx) {
            Ok(()) => {}
            Err(refusal) => self.refuse(conn, refusal, fx),
        }
    }

    fn accept_handshake<E: Effects>(
        &mut self,
        conn: ConnId,
        group: GroupId,
        body: &[u8],
        message: &Bytes,
        fx: &mut E,
    ) -> Result<(), Refusal> {
        if self.config.read_only {
            return Err(Code::ServiceReadOnly.into());
        }
        if self.has_lapsed(conn) {
            self.evict(conn, fx); // 05 D11
            return Ok(());
        }
        self.charge_frame(conn, |b| &mut b.handshake, HANDSHAKE_PER_MINUTE)?;
        let slot = self.authorize(conn, &group)?;
        if body.is_empty() {
            return Err(Code::MalformedHeader.into());
        }
        if body.len() > HANDSHAKE_BYTES_MAX {
            return Err(Refusal::number(
                Code::EnvelopeTooLarge,
                HANDSHAKE_BYTES_MAX as u64,
            ));
        }
        if !self.has_index(conn, slot, StreamKind::Handshakes, message, fx) {
            return Ok(());
        }
        let id = Hash::of(&[&group.0, body]);
        let open = self.ingest.open_number();
        let Loaded::Warm(index) = &self.groups[slot as usize].handshakes else {
            return Ok(());
        };
        let delivery = |seq| {
            message::frame(&Frame::Handshake {
                group,
                seq,
                message: body,
            })
        };
        if let Some((seq, durable)) = index.find(&id) {
            let batch = if durable { 0 } else { open };
            self.owe(
                conn,
                Owed::After {
                    out: delivery(seq),
                    batch,
                },
                fx,
            );
            return Ok(());
        }
        if self.ingest.open.bytes >= UNCOMMITTED_BYTES_MAX {
            return Err(Code::Backpressure.into());
        }
        let limit = self.config.max_log_bytes;
        let realm_slot = self.groups[slot as usize].realm;
        if let Some(realm) = self.realm_mut(realm_slot) {
            let after = realm.log_bytes.saturating_add(body.len() as u64);
            if let Some(limit) = limit
                && after > limit
            {
                return Err(Refusal::number(Code::LogBudgetExhausted, limit));
            }
            realm.log_bytes = after;
        }
        self.metrics.log_bytes.add(body.len() as u64);
        let Loaded::Warm(index) = &mut self.groups[slot as usize].handshakes else {
            return Ok(());
        };
        let seq = index.next_seq();
        index.push(seq, &id);
        let out = delivery(seq);
        let batch = &mut self.ingest.open;
        charge(&mut batch.usage, realm_slot, body.len() as u64);
        batch.bytes += body.len();
        batch.handshakes.push(NewHandshake {
            group: slot,
            seq,
            id,
            message: message.slice_ref(body),
            out: out.clone(),
            publisher: conn,
        });
        self.owe(conn, Owed::After { out, batch: open }, fx);
        Ok(())
    }

    /// Charges a per-connection frame budget.
    pub(super) fn charge_frame(
        &mut self,
        conn: ConnId,
        pick: fn(&mut crate::session::Budgets) -> &mut crate::budget::Window,
        limit: u32,
    ) -> Result<(), Refusal> {
        let wall_ms = self.now.wall_ms;
        if self
            .session(conn)
            .is_none_or(|session| session.charge(pick, wall_ms, limit))
        {
            Ok(())
        } else {
            Err(Refusal::number(Code::RateLimited, u64::from(limit)).after(60))
        }
    }
}

/// Numbers the envelope and appends its framed PUSH to the group's run; returns the number.
fn add_to_run(group: &mut Group, envelope: &Envelope<'_>, wall_ms: u64, writer: ConnId) -> u64 {
    let Loaded::Warm(index) = &mut group.envelopes else {
        return 0;
    };
    let seq = index.next_seq();
    index.push(seq, &envelope.hash);
    let accepted = Envelope {
        seq,
        ts_ms: wall_ms,
        ..*envelope
    };
    let encoded = accepted.encoded_len();
    let run = &mut group.run;
    let start = run.buffer.len();
    message::push_heads(encoded, &mut run.buffer);
    let from = run.buffer.len();
    accepted.encode(&mut run.buffer);
    debug_assert_eq!(run.buffer.len() - from, encoded);
    run.items.push(RunItem {
        seq,
        id: envelope.hash,
        start: start as u32,
        envelope: from as u32,
        end: run.buffer.len() as u32,
        ct_bytes: envelope.ct.len() as u32,
        cost: cost(encoded) as u32,
        writer,
    });
    if !run.writers.contains(&writer) {
        run.writers.push(writer);
    }
    seq
}
