//! What the model is told: what shards are handed, what leaves them, what the store answered.

use super::net::Line;
use super::outside::Outside;
use super::words::{describe, tag_of};
use crate::model::{Counts, Row, envelopes, handshakes};
use crate::plan::Feature;
use drover_client::Identity;
use drover_engine::Now;
use drover_engine::event::{StoreAnswer, Ticket};
use drover_storage::StoreError;
use drover_storage::control::Outcome;
use drover_wire::access::AccessState;
use drover_wire::envelope::Envelope;
use drover_wire::frame::{Frame, Keys, Wake};
use drover_wire::id::{GroupId, Hash, PublicKey};
use drover_wire::map::{self, MapFrame};
use drover_wire::wrap::Wrap;

impl Outside {
    /// The engine is about to be handed this message.
    pub(super) fn taken(&mut self, workspace: usize, identity: &Identity, line: Line, message: &[u8]) {
        self.note_line(b'r', line, |text| {
            text.push_str("is read: ");
            text.push_str(&describe(message));
        });
        if let Some(saboteur) = &mut self.saboteur {
            saboteur.reads(line, message);
        }
        let device = identity.public();
        if map::is_map(message) {
            return self.taken_map(workspace, &device, line, message);
        }
        match Frame::decode(message) {
            Ok(Frame::Send { envelope }) => {
                if let Ok(envelope) = Envelope::decode(envelope) {
                    let stream = envelopes(envelope.group);
                    self.model.taken(workspace, &device, stream, envelope.hash);
                }
            }
            Ok(Frame::Handshake { group, message, .. }) => {
                let id = Hash::of(&[&group.0, message]);
                self.model.taken(workspace, &device, handshakes(group), id);
            }
            Ok(Frame::Drop { payload }) => {
                if let Ok(request) = drover_wire::drop::Request::decode(payload) {
                    self.model.drops(&request);
                }
            }
            Ok(Frame::Access { .. }) => self.model.access[workspace].asks(line),
            Ok(Frame::Join { body }) => self.model.joins(workspace, &device, body),
            Ok(Frame::Connect { version, .. }) => self.model.calls.greeted(line, workspace, version.min(4)),
            Ok(Frame::Sub { group, .. }) => self.model.calls.subscribes(line, group),
            Ok(Frame::Keys(Keys::Publish { packages })) => {
                let shelf = (workspace, device);
                self.model.shelves.publishes(line, shelf, packages.iter());
            }
            Ok(Frame::Keys(Keys::Fetch { device, count })) => {
                self.model.shelves.fetches(line, (workspace, device), count);
            }
            Ok(Frame::Wrap { body }) => {
                if let Ok(wrap) = Wrap::decode(body) {
                    self.model.wraps.stores(line, wrap.tag, wrap.group, wrap.epoch);
                }
            }
            Ok(Frame::Wake(Wake::Register {
                handle,
                categories,
                expires_at_ms: expires_ms,
            })) => {
                let row = Row {
                    handle,
                    categories,
                    expires_ms,
                };
                self.model.wakes.asks(workspace, &device, line, Some(row));
            }
            Ok(Frame::Wake(Wake::Clear)) => self.model.wakes.asks(workspace, &device, line, None),
            _ => {}
        }
    }

    fn taken_map(&mut self, workspace: usize, device: &PublicKey, line: Line, message: &[u8]) {
        match MapFrame::decode(message) {
            Ok(MapFrame::Send(envelope)) => {
                let stream = envelopes(envelope.group);
                self.model.taken(workspace, device, stream, envelope.hash);
            }
            Ok(MapFrame::Connect { version, .. }) => {
                self.model.calls.greeted(line, workspace, version.min(4));
            }
            Ok(MapFrame::Sub { groups, .. }) => {
                for group in groups.iter() {
                    self.model.calls.subscribes(line, GroupId(*group));
                }
            }
            _ => {}
        }
    }

    /// A service's answer leaves.
    pub(super) fn service_answers(&mut self, line: Line, message: &[u8]) {
        let (workspace, device) = self.who[self.net.conns[line].client];
        let judged = match Frame::decode(message) {
            Ok(Frame::Keys(Keys::Published { remaining })) => self.model.shelves.published(line, remaining),
            Ok(Frame::Keys(Keys::Bundles { packages })) => self.model.shelves.hands(line, packages.iter()),
            Ok(Frame::Keys(Keys::None)) => self.model.shelves.hands(line, std::iter::empty()),
            Ok(Frame::Wrap { body }) => self.model.wraps.stored(line, body),
            Ok(Frame::Wake(Wake::Registered { .. } | Wake::Cleared)) => {
                self.model.wakes.done(workspace, &device, line);
                Ok(())
            }
            _ => Ok(()),
        };
        self.model.judge(judged);
    }

    /// A shard is about to be handed an answer of the store.
    pub(super) fn answered(&mut self, shard: usize, ticket: Ticket, answer: &StoreAnswer) {
        let appended = self.appends.remove(&(shard, ticket.0)).unwrap_or_default();
        let concerned = self.concerned.remove(&(shard, ticket.0)).unwrap_or_default();
        let wakes = &mut self.model.wakes;
        let is_uncertain = match answer {
            StoreAnswer::Append(result) => result.is_err_and(|error| error != StoreError::NotCommitted),
            StoreAnswer::Claim(result) => result
                .as_ref()
                .is_err_and(|error| *error != StoreError::NotCommitted),
            // A refused check means that memory and store differ.
            StoreAnswer::Commit(result) => {
                !matches!(result, Ok(Outcome::Applied) | Err(StoreError::NotCommitted))
            }
            _ => false,
        };
        for workspace in concerned {
            match answer {
                StoreAnswer::Load(Err(_)) | StoreAnswer::Usage(Err(_)) => wakes.is_not_read(workspace),
                _ if is_uncertain => wakes.is_uncertain(workspace),
                _ => {}
            }
        }
        if !matches!(answer, StoreAnswer::Append(Ok(()))) || !self.plan.has(Feature::Wakes) {
            return;
        }
        let now = self.now();
        for (workspace, category) in appended {
            let access = &self.model.access[workspace];
            self.model.wakes.stored(shard, workspace, category, now, access);
        }
    }

    /// The relay has ended a connection.
    pub(super) fn ended(&mut self, line: Line) {
        let (workspace, device) = self.who[self.net.conns[line].client];
        self.model.calls.gone(line);
        self.model.wakes.goes(workspace, &device, line);
    }

    /// Sessions the relay counts.
    pub(super) fn sessions(&self) -> u64 {
        self.metrics.iter().map(|metrics| metrics.ready.get()).sum()
    }

    /// What the relay counts of calls.
    fn counts(&self, shard: usize) -> Counts {
        let metrics = &self.metrics[shard];
        Counts {
            frames: metrics.frames_in[23].get() + metrics.frames_in[24].get(),
            errors: metrics.errors_sent.each_ref().map(|counter| counter.get()),
            denied: metrics.media_denied.get(),
            shed: metrics.live_shed.get(),
            open: self.open_calls(),
        }
    }

    /// A shard is about to be handed this message. Returns whether it is one of a call.
    pub(super) fn call_begins(&mut self, shard: usize, line: Line, now: Now, message: &[u8]) -> bool {
        let is_call = matches!(tag_of(message), 23 | 24);
        if is_call {
            let (sessions, counts) = (self.sessions(), self.counts(shard));
            self.model.calls.counts(sessions);
            self.model
                .calls
                .begins(line, now.mono_ms, now.wall_ms, message, counts);
        }
        is_call
    }

    /// It has handled that message of a call.
    pub(super) fn call_ends(&mut self, shard: usize) {
        let (sessions, counts) = (self.sessions(), self.counts(shard));
        self.model.calls.counts(sessions);
        let offered = self.model.calls.ends(counts, &self.groups);
        if let Some((workspace, wall_ms)) = offered.filter(|_| self.plan.has(Feature::Wakes)) {
            let access = &self.model.access[workspace];
            self.model.wakes.rings(shard, workspace, wall_ms, access);
        }
    }

    /// The end: what the relay counts of sessions and calls.
    pub(super) fn calls_settle(&mut self) {
        let (sessions, open) = (self.sessions(), self.open_calls());
        self.model.calls.counts(sessions);
        self.model.calls.settle(open);
        if let Some(broken) = self.model.calls.broken() {
            self.model.judge(Err(broken));
        }
    }

    fn open_calls(&self) -> usize {
        let directory = self.directory.as_ref();
        directory.map_or(0, |directory| directory.calls().open())
    }

    /// An ACCESS frame leaves: it says what the head is.
    pub(super) fn access_leaves(&mut self, workspace: usize, line: Line, message: &[u8]) {
        let Ok(Frame::Access { body }) = Frame::decode(message) else {
            return;
        };
        let told = match Hash::from_slice(body) {
            Some(digest) => Some(digest),
            None => AccessState::decode(body)
                .ok()
                .and_then(|state| Some(state.head?.1)),
        };
        if let Some(Err(what)) = told.map(|digest| self.model.access[workspace].accepted(line, digest)) {
            self.model.fail("one chain of access sets", || what);
        }
    }
}
