//! What becomes of connections: clients dial, write and hang up, sockets die, peers stop reading, the relay's queues empty.

use super::agenda::Happening;
use super::mail::Letter;
use super::net::{Input, Line, Phase};
use super::outside::Outside;
use super::words::describe;
use bytes::Bytes;
use std::fmt::Write;

impl Outside {
    /// A client dials. `None` while there is no process, or none that listens.
    pub(crate) fn open(&mut self, client: usize) -> Option<Line> {
        if self.stores.is_empty() {
            return None;
        }
        let shard = self.dice.below(self.plan.shards);
        let (line, _) = self.net.open(client, shard);
        self.note_line(b'o', line, |text| {
            let _ = write!(text, "opens on shard {shard}");
        });
        self.post(shard, Letter::Opened(line));
        Some(line)
    }

    fn latency_us(&mut self) -> u64 {
        self.dice.skewed(20, 50_000)
    }

    /// A client writes a message.
    pub(crate) fn say(&mut self, line: Line, message: Bytes) {
        let latency = self.latency_us();
        self.note_line(b'>', line, |text| text.push_str(&describe(&message)));
        self.trace_bytes(&message);
        self.net
            .write(line, Input::Message(message), latency, &mut self.agenda);
    }

    pub(super) fn say_activity(&mut self, line: Line) {
        let latency = self.latency_us();
        self.net.write(line, Input::Activity, latency, &mut self.agenda);
    }

    /// A client closes its end; what it wrote may still arrive.
    pub(crate) fn hang_up(&mut self, line: Line) {
        self.note_line(b'-', line, |text| text.push_str("hangs up"));
        self.net.conns[line].held = false;
        let at = self.now_us() + 50_000 + self.latency_us();
        self.agenda.add(at, Happening::Notices(line));
    }

    /// The socket dies; both ends learn of it, each in its time.
    pub(super) fn cut(&mut self, line: Line) {
        self.coverage.add("sockets cut", 1);
        self.note_line(b'/', line, |text| text.push_str("is cut"));
        self.sever(line);
        let at = self.now_us() + self.misfortune.skewed(10, 400_000_000);
        self.agenda.add(at, Happening::Notices(line));
    }

    /// The client reads no more for a while.
    pub(super) fn deafen(&mut self, line: Line) {
        self.coverage.add("readers that stop", 1);
        self.note_line(b'd', line, |text| text.push_str("reads no more"));
        self.net.conns[line].reading = false;
        let at = self.now_us() + self.misfortune.skewed(1_000, 60_000_000);
        self.agenda.add(at, Happening::ReadsAgain(line));
    }

    pub(super) fn sever(&mut self, line: Line) {
        let kept = self.misfortune.below(self.net.unread(line) + 1);
        self.net.cut(line, kept);
        let at = self.now_us() + self.misfortune.skewed(10, 10_000_000);
        self.agenda.add(at, Happening::Hears(line));
    }

    pub(super) fn flush(&mut self, line: Line) {
        let latency = self.latency_us();
        let mono_ms = self.now().mono_ms;
        let conn = &mut self.net.conns[line];
        if conn.outbox.carries_media() && !matches!(conn.phase, Phase::Gone) {
            let lane_ms = match &mut self.saboteur {
                Some(saboteur) => saboteur.ages(mono_ms),
                None => mono_ms,
            };
            let shed = conn.outbox.expire_media(lane_ms);
            self.model.calls.expires(line, mono_ms, shed);
        }
        self.net
            .flush(line, latency, mono_ms, &mut self.agenda, &mut self.model.calls);
    }

    pub(super) fn flush_dirty(&mut self, shard: usize) {
        for line in std::mem::take(&mut self.net.dirty[shard]) {
            if std::mem::take(&mut self.net.conns[line].dirty) {
                self.flush(line);
            }
        }
    }

    pub(super) fn schedule_read(&mut self, line: Line) {
        let latency = self.latency_us();
        self.net.schedule_read(line, latency, &mut self.agenda);
    }
}
