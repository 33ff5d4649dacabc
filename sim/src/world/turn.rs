//! A shard's turn, as `transport` makes it: letters, sockets, deadlines, the open batch, then one write for each
//! connection.

use super::World;
use super::mail::Letter;
use super::net::{Input, Line};
use super::view::View;
use drover_engine::{Event, Flow, Peer};

impl World {
    pub(super) fn turn(&mut self, shard: usize) {
        let now = self.out.now();
        self.out.model.wakes.is_late(now.wall_ms);
        for letter in self.out.letters(shard) {
            match letter {
                Letter::Stored(ticket, answer) => {
                    self.out.answered(shard, ticket, &answer);
                    self.handle(shard, Event::Stored { ticket, answer });
                }
                Letter::Offloaded(ticket, matches) => {
                    self.handle(shard, Event::Offloaded { ticket, matches });
                }
                Letter::Posted(message) => self.handle(shard, Event::Posted(message)),
                Letter::Opened(line) => {
                    let conn = &self.out.net.conns[line];
                    if conn.is_open() {
                        let (conn, source) = (conn.id, self.clients[conn.client].session.source());
                        let peer = Peer {
                            source: source.into(),
                        };
                        self.handle(shard, Event::Opened { conn, peer });
                    }
                }
                Letter::Parcel(line, session) => {
                    let conn = self.out.net.settle_on(line, shard);
                    self.handle(shard, Event::Arrived { conn, session });
                    self.out.net.mark_readable(line);
                }
            }
        }
        self.settle(shard);
        for line in self.out.readable(shard) {
            let most = self.out.misfortune.skewed(1, 64) as usize;
            self.read(line, most);
        }
        if self.shards[shard]
            .next_wake_ms()
            .is_some_and(|at| at <= now.mono_ms)
        {
            self.handle(shard, Event::Tick);
        }
        if self.shards[shard].is_answering() {
            self.handle(shard, Event::Answer);
        }
        self.settle(shard);
        self.shards[shard].end_of_turn(now, &mut View::new(shard, &mut self.out));
        let judged = self.out.model.wakes.turn_ends(shard);
        self.out.model.judge(judged);
        for client in std::mem::take(&mut self.out.woken) {
            self.wakes_up(client);
        }
        self.settle(shard);
        self.out.flush_dirty(shard);
        self.settle(shard);
        self.wake_shard(shard);
    }

    fn handle(&mut self, shard: usize, event: Event) {
        let now = self.out.now();
        self.shards[shard].handle(now, event, &mut View::new(shard, &mut self.out));
        self.settle(shard);
    }

    /// Lets the engine read up to `most` messages of a connection.
    fn read(&mut self, line: Line, most: usize) {
        for _ in 0..most {
            let conn = &mut self.out.net.conns[line];
            if !conn.is_open() || conn.paused {
                return;
            }
            let (shard, id, client) = (conn.shard, conn.id, conn.client);
            let Some(input) = conn.inbox.pop_front() else {
                return;
            };
            match input {
                Input::Message(message) => {
                    let session = &self.clients[client].session;
                    self.out
                        .taken(session.workspace, &session.identity, line, &message);
                    let now = self.out.now();
                    let is_call = self.out.call_begins(shard, line, now, &message);
                    let message = match &mut self.out.saboteur {
                        Some(saboteur) => saboteur.hands(line, message),
                        None => message,
                    };
                    let mut view = View::new(shard, &mut self.out);
                    if self.shards[shard].message(now, id, message, &mut view) == Flow::Pause {
                        self.out.net.conns[line].paused = true;
                    }
                    if is_call {
                        self.out.call_ends(shard);
                    }
                    self.settle(shard);
                }
                Input::Activity => self.handle(shard, Event::Activity { conn: id }),
            }
        }
        let conn = &self.out.net.conns[line];
        if conn.is_open() && !conn.paused && !conn.inbox.is_empty() {
            let shard = conn.shard;
            self.out.net.mark_readable(line);
            self.out.wake(shard);
        }
    }

    /// Tells the engine what came of its effects, as the transport does.
    fn settle(&mut self, _shard: usize) {
        loop {
            let sessions = self.out.sessions();
            self.out.model.calls.counts(sessions);
            if let Some(line) = self.out.net.closed.pop_front() {
                let (shard, conn) = (self.out.net.conns[line].shard, self.out.net.conns[line].id);
                let now = self.out.now();
                let saboteur = self.out.saboteur.as_mut();
                if saboteur.is_none_or(|saboteur| saboteur.tells_of_end(line)) {
                    let mut view = View::new(shard, &mut self.out);
                    self.shards[shard].handle(now, Event::Closed { conn }, &mut view);
                }
                self.out.net.forget(line);
                self.out.ended(line);
            } else if let Some(line) = self.out.net.moving.pop_front() {
                self.out.depart(line);
            } else if let Some(line) = self.out.net.resumed.pop_front() {
                let most = self.out.misfortune.skewed(1, 64) as usize;
                self.read(line, most);
            } else if let Some(line) = self.out.net.roomy.pop_front() {
                if self.out.net.conns[line].is_open() {
                    let (shard, conn) = (self.out.net.conns[line].shard, self.out.net.conns[line].id);
                    let now = self.out.now();
                    let mut view = View::new(shard, &mut self.out);
                    self.shards[shard].handle(now, Event::Room { conn }, &mut view);
                }
            } else {
                return;
            }
        }
    }
}
