//! What the transport counts: one [`Metrics`] per shard with that shard as its only writer, summed into a
//! [`Snapshot`] when somebody asks. No label is ever taken from a peer.

use crate::driver::Buffers;
use drover_engine::effects::CloseReason;
use drover_engine::metrics::Counter;

/// What one shard counts.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) accepted: Counter,
    pub(crate) accept_errors: Counter,
    pub(crate) accept_descriptor_limit: Counter,
    pub(crate) accept_half_open: Counter,
    pub(crate) sockets: Counter,
    pub(crate) upgraded: Counter,
    pub(crate) refused_malformed: Counter,
    pub(crate) refused_share: Counter,
    pub(crate) refused_ceiling: Counter,
    pub(crate) refused_stopping: Counter,
    pub(crate) head_deadline: Counter,
    pub(crate) http_answers: Counter,
    pub(crate) tls_handshakes: Counter,
    pub(crate) tls_failures: Counter,
    pub(crate) bytes_in: Counter,
    pub(crate) bytes_out: Counter,
    pub(crate) messages_in: Counter,
    pub(crate) messages_out: Counter,
    pub(crate) media_shed: Counter,
    pub(crate) copied_bytes: Counter,
    pub(crate) migrated: Counter,
    pub(crate) closed: [Counter; CLOSE_REASONS],
    pub(crate) peer_lost: Counter,
    pub(crate) transport_failures: Counter,
    pub(crate) oversize: Counter,
    pub(crate) turns: Counter,
    pub(crate) receive_slots: Counter,
    pub(crate) receive_slots_renewed: Counter,
    pub(crate) receive_starved: Counter,
    pub(crate) deferred_fresh: Counter,
    pub(crate) deferred_slow: Counter,
    pub(crate) deferred_long: Counter,
    pub(crate) deferred_idle: Counter,
}

impl Metrics {
    /// Takes over what the driver counts.
    pub(crate) fn count_buffers(&self, buffers: Buffers) {
        self.receive_slots.set(buffers.slots);
        self.receive_slots_renewed.set(buffers.renewed);
        self.receive_starved.set(buffers.starved);
    }
}

const CLOSE_REASONS: usize = 7;

/// Labels of [`Snapshot::closed`], in its order.
pub const CLOSE_REASON_LABELS: [&str; CLOSE_REASONS] = [
    "client",
    "handshake_deadline",
    "idle_deadline",
    "evicted",
    "protocol",
    "slow_reader",
    "shutdown",
];

/// Where a reason is counted.
pub(crate) fn position(reason: CloseReason) -> usize {
    match reason {
        CloseReason::Client => 0,
        CloseReason::HandshakeDeadline => 1,
        CloseReason::IdleDeadline => 2,
        CloseReason::Evicted => 3,
        CloseReason::Protocol => 4,
        CloseReason::SlowReader => 5,
        CloseReason::Shutdown => 6,
    }
}

/// The sums over all shards at one moment. Counters since start unless a gauge is named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// TCP connections accepted.
    pub accepted: u64,
    /// Failed accepts other than at the descriptor limit.
    pub accept_errors: u64,
    /// Connections closed unserved because the process has no descriptor left, or none but those kept for the store.
    pub accept_descriptor_limit: u64,
    /// Connections closed unserved because too many have not upgraded yet, in all or from their address.
    pub accept_half_open: u64,
    /// Gauge: open sockets of any kind.
    pub sockets: u64,
    /// Gauge: seats taken, which is what the ceiling compares (02 §1).
    pub connections: u64,
    /// WebSocket upgrades completed.
    pub upgraded: u64,
    /// Upgrade requests answered 400, 405 or 426.
    pub refused_malformed: u64,
    /// Upgrades refused because the source holds its share of unauthenticated connections.
    pub refused_share: u64,
    /// Upgrades refused at the ceiling.
    pub refused_ceiling: u64,
    /// Upgrades refused because the relay is stopping.
    pub refused_stopping: u64,
    /// Connections ended because no whole request came in time.
    pub head_deadline: u64,
    /// HTTP answers other than upgrades.
    pub http_answers: u64,
    /// TLS handshakes completed.
    pub tls_handshakes: u64,
    /// TLS connections ended by an error, in the handshake or later.
    pub tls_failures: u64,
    /// Times a changed certificate or key could not be used and the old one was kept.
    pub tls_reload_failures: u64,
    /// Bytes read from sockets.
    pub bytes_in: u64,
    /// Bytes written to sockets.
    pub bytes_out: u64,
    /// Binary messages handed to the engine.
    pub messages_in: u64,
    /// Messages the engine queued.
    pub messages_out: u64,
    /// MEDIA frames shed for one recipient, because its lane was full or they were too old.
    pub media_shed: u64,
    /// Bytes of queued messages copied on their way to a socket instead of being written from where they lie.
    pub copied_bytes: u64,
    /// Connections moved to another shard.
    pub migrated: u64,
    /// Connections the engine ended, by reason ([`CLOSE_REASON_LABELS`]).
    pub closed: [u64; CLOSE_REASONS],
    /// Connections the peer ended without a close frame.
    pub peer_lost: u64,
    /// Connections ended because the peer broke RFC 6455.
    pub transport_failures: u64,
    /// Connections ended because of a message above the ceiling.
    pub oversize: u64,
    /// Turns of the shard loops.
    pub turns: u64,
    /// Gauge: slots of the pools that bytes are received into (io_uring).
    pub receive_slots: u64,
    /// Times a slot got new memory because a message in the old was still held.
    pub receive_slots_renewed: u64,
    /// Receives that found no slot and were begun again.
    pub receive_starved: u64,
    /// Turns that connections which are not upgraded yet have waited, because others like them came first.
    pub deferred_fresh: u64,
    /// Shares of a turn that waited in line, because those before took long.
    pub deferred_slow: u64,
    /// The same, because the message that came is long.
    pub deferred_long: u64,
    /// The same, because the one before was spent on frames that bring nothing forward.
    pub deferred_idle: u64,
}

impl Snapshot {
    /// Adds one shard's counts.
    pub(crate) fn add(&mut self, shard: &Metrics) {
        let Metrics {
            accepted,
            accept_errors,
            accept_descriptor_limit,
            accept_half_open,
            sockets,
            upgraded,
            refused_malformed,
            refused_share,
            refused_ceiling,
            refused_stopping,
            head_deadline,
            http_answers,
            tls_handshakes,
            tls_failures,
            bytes_in,
            bytes_out,
            messages_in,
            messages_out,
            media_shed,
            copied_bytes,
            migrated,
            closed,
            peer_lost,
            transport_failures,
            oversize,
            turns,
            receive_slots,
            receive_slots_renewed,
            receive_starved,
            deferred_fresh,
            deferred_slow,
            deferred_long,
            deferred_idle,
        } = shard;
        for (sum, counter) in [
            (&mut self.accepted, accepted),
            (&mut self.accept_errors, accept_errors),
            (&mut self.accept_descriptor_limit, accept_descriptor_limit),
            (&mut self.accept_half_open, accept_half_open),
            (&mut self.sockets, sockets),
            (&mut self.upgraded, upgraded),
            (&mut self.refused_malformed, refused_malformed),
            (&mut self.refused_share, refused_share),
            (&mut self.refused_ceiling, refused_ceiling),
            (&mut self.refused_stopping, refused_stopping),
            (&mut self.head_deadline, head_deadline),
            (&mut self.http_answers, http_answers),
            (&mut self.tls_handshakes, tls_handshakes),
            (&mut self.tls_failures, tls_failures),
            (&mut self.bytes_in, bytes_in),
            (&mut self.bytes_out, bytes_out),
            (&mut self.messages_in, messages_in),
            (&mut self.messages_out, messages_out),
            (&mut self.media_shed, media_shed),
            (&mut self.copied_bytes, copied_bytes),
            (&mut self.migrated, migrated),
            (&mut self.peer_lost, peer_lost),
            (&mut self.transport_failures, transport_failures),
            (&mut self.oversize, oversize),
            (&mut self.turns, turns),
            (&mut self.receive_slots, receive_slots),
            (&mut self.receive_slots_renewed, receive_slots_renewed),
            (&mut self.receive_starved, receive_starved),
            (&mut self.deferred_fresh, deferred_fresh),
            (&mut self.deferred_slow, deferred_slow),
            (&mut self.deferred_long, deferred_long),
            (&mut self.deferred_idle, deferred_idle),
        ] {
            *sum = sum.wrapping_add(counter.get());
        }
        for (sum, counter) in self.closed.iter_mut().zip(closed) {
            *sum += counter.get();
        }
    }
}
