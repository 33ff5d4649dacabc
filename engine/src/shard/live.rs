//! LIVE: forwarded and forgotten (11).

use super::Shard;
use super::fanout::settle_debt;
use crate::effects::Effects;
use crate::event::ConnId;
use crate::group::Subscriber;
use crate::limits::LIVE_BYTES_MAX;
use crate::message;
use crate::outbox::Outbound;
use bytes::Bytes;
use drover_wire::error::{Code, Refusal};
use drover_wire::id::GroupId;

/// The first protocol version that is sent LIVE.
const LIVE_VERSION: u16 = 2;

/// Queues a frame that may be shed (10 §6, 11 §4): an owed notice goes first, and the frame never causes one.
pub(super) fn send_sheddable<E: Effects>(
    subscriber: &mut Subscriber,
    group: GroupId,
    out: &Outbound,
    fx: &mut E,
) -> bool {
    if !settle_debt(subscriber, group, fx) {
        return false;
    }
    // With a chance for the transport to make room.
    fx.send(subscriber.conn, out.clone())
        || (fx.room(subscriber.conn).messages > 0 && fx.send(subscriber.conn, out.clone()))
}

impl Shard {
    pub(super) fn live<E: Effects>(
        &mut self,
        conn: ConnId,
        group: GroupId,
        ct: &[u8],
        message: &Bytes,
        fx: &mut E,
    ) {
        if let Err(refusal) = self.forward_live(conn, group, ct, message, fx) {
            self.refuse(conn, refusal, fx);
        }
    }

    fn forward_live<E: Effects>(
        &mut self,
        conn: ConnId,
        group: GroupId,
        ct: &[u8],
        message: &Bytes,
        fx: &mut E,
    ) -> Result<(), Refusal> {
        if !self.config.live {
            return Err(Code::ProtocolUnsupported.into());
        }
        if ct.is_empty() {
            return Err(Code::MalformedHeader.into());
        }
        if ct.len() > LIVE_BYTES_MAX {
            return Err(Refusal::number(Code::EnvelopeTooLarge, LIVE_BYTES_MAX as u64));
        }
        self.charge_frame(conn, |b| &mut b.live, self.config.live_frames_per_minute)?;
        let slot = self.authorize(conn, &group)?;
        let place = &mut self.groups[slot as usize];
        let mut out = None;
        let mut shed = 0;
        for subscriber in &mut place.subscribers {
            if subscriber.conn == conn || subscriber.replaying || subscriber.version < LIVE_VERSION {
                continue;
            }
            let out = out.get_or_insert_with(|| message::forwarded(message, ct.len()));
            shed += u64::from(!send_sheddable(subscriber, group, out, fx));
        }
        self.metrics.live_shed.add(shed);
        Ok(())
    }
}
