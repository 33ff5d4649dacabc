//! The participants of this process: who sends when, who answers what, and what arrives.

use super::plan::{KIND_AT, Kind, MEDIA_HEAD, Plan, SEQ_AT, SEQ_BASE, Template};
use super::replay::Replay;
use crate::args::{Latency, Side};
use crate::error::Error;
use crate::inflight::{Latencies, latencies, record};
use crate::net::{Load, Net};
use crate::peer;
use crate::scenario::TICK;
use crate::wsframe;
use drover_wire::error::Code;

/// See the module.
pub(super) struct Calls {
    pub(super) plan: Plan,
    /// Whether what arrives is masked as it was sent: the raw forwarder unmasks nothing.
    is_masked: bool,
    /// Per connection and stream.
    templates: Vec<Vec<Template>>,
    /// The order in which connections send: participants of one call are far apart.
    order: Vec<usize>,
    period_ns: f64,
    pub(super) began_ns: u64,
    /// Frames of this run that were sent at their time.
    pub(super) sent: u64,
    /// The connection that is to send, at the next [`Load::settle`].
    due: Option<usize>,
    /// What the read that is being handed over brought: kind, and when it was sent, ns.
    arrived: Vec<(Kind, u64)>,
    /// Answers of each connection so far.
    answers: Vec<u64>,
    /// Frames of this window at their recipients.
    pub(super) delivered: u64,
    /// Frames of this run that are to reach recipients here, and that did.
    expected: u64,
    received: u64,
    /// Probes of this run, and answers to them.
    probes: u64,
    answered: u64,
    /// Complaints of the relay about media beyond its budgets. A plan keeps within them, so this is what happens when a
    /// generator that was late catches up. At most one a second and connection; each refused frame is among the missing.
    pub(super) refused: u64,
    /// One-way or round trips, as the plan says.
    pub(super) latencies: Latencies,
    /// Of the participant that replays.
    pub(super) replayer: Latencies,
    /// How long after it was due a frame was sent.
    pub(super) late: Latencies,
    pub(super) replay: Option<Replay>,
}

impl Calls {
    /// Nobody yet.
    pub(super) fn new(plan: Plan, is_masked: bool) -> Self {
        Self {
            plan,
            is_masked,
            templates: Vec::new(),
            order: Vec::new(),
            period_ns: 0.0,
            began_ns: 0,
            sent: 0,
            due: None,
            arrived: Vec::new(),
            answers: Vec::new(),
            delivered: 0,
            expected: 0,
            received: 0,
            probes: 0,
            answered: 0,
            refused: 0,
            latencies: latencies(),
            replayer: latencies(),
            late: latencies(),
            replay: None,
        }
    }

    /// Takes the next connection in, with its frames.
    pub(super) fn add(&mut self, templates: Vec<Template>) {
        self.templates.push(templates);
        self.answers.push(0);
    }

    /// Participants that were taken in.
    pub(super) fn connections(&self) -> usize {
        self.templates.len()
    }

    /// A new run, in this many of the calls.
    pub(super) fn begin(&mut self, calls: usize, now_ns: u64) {
        self.plan.calls = calls;
        let per_call = self.plan.places().len();
        let sends = |place: &usize| self.plan.kind(self.plan.places().start + place) != Kind::Answer;
        // Every participant of every call, call by call: neighbours in time are of different calls.
        self.order = (0..per_call)
            .filter(sends)
            .flat_map(|place| (0..calls).map(move |call| call * per_call + place))
            .collect();
        self.period_ns = 1e9 / (self.plan.frames_per_s * self.order.len() as f64);
        (self.began_ns, self.sent) = (now_ns, 0);
        (self.expected, self.received, self.probes, self.answered) = (0, 0, 0, 0);
        self.refused = 0;
    }

    /// What follows is measured.
    pub(super) fn open_window(&mut self) {
        self.delivered = 0;
        for histogram in [&mut self.latencies, &mut self.replayer, &mut self.late] {
            histogram.reset();
        }
    }

    /// Frames for recipients here that did not arrive.
    pub(super) fn missing(&self) -> u64 {
        self.expected.saturating_sub(self.received)
    }

    /// Probes without an answer.
    pub(super) fn unanswered(&self) -> u64 {
        self.probes.saturating_sub(self.answered)
    }

    /// Frames that should have been sent by now.
    pub(super) fn due_count(&self, now_ns: u64) -> f64 {
        (now_ns - self.began_ns) as f64 / self.period_ns
    }

    fn due_ns(&self) -> u64 {
        self.began_ns + (self.sent as f64 * self.period_ns) as u64
    }

    /// Sends what is due, then waits for what arrives, until the next frame is due.
    pub(super) fn turn(&mut self, net: &mut Net) -> Result<(), Error> {
        if self.order.is_empty() {
            return net.turn(Some(TICK), self);
        }
        while self.due_ns() <= net.now_ns() {
            let number = self.order[(self.sent % self.order.len() as u64) as usize];
            self.due = Some(number);
            net.nudge(number, self)?;
        }
        net.turn_until(self.due_ns(), self)
    }

    /// Recipients here of what one of this process sends.
    fn recipients_here(&self) -> u64 {
        self.plan.places().len() as u64 - 1
    }

    fn send(&mut self, connection: usize, now_ns: u64, out: &mut Vec<u8>) {
        let late_ns = now_ns.saturating_sub(self.due_ns());
        record(&mut self.late, late_ns, 1);
        let templates = &self.templates[connection];
        let round = self.sent / self.order.len() as u64;
        templates[(round % templates.len() as u64) as usize].put(now_ns, out);
        let (_, place) = self.plan.seat(connection);
        self.probes += u64::from(self.plan.kind(place) == Kind::Probe);
        self.expected += self.recipients_here();
        self.sent += 1;
    }

    fn answer(&mut self, connection: usize, stamp_ns: u64, out: &mut Vec<u8>) {
        let templates = &self.templates[connection];
        let streams = templates.len() as u64;
        templates[(self.answers[connection] % streams) as usize].put(stamp_ns, out);
        self.answers[connection] += 1;
        self.expected += self.recipients_here();
    }

    fn arrive(&mut self, connection: usize, kind: Kind, stamp_ns: u64, now_ns: u64) {
        let (_, place) = self.plan.seat(connection);
        let latency_ns = now_ns.saturating_sub(stamp_ns);
        self.delivered += 1;
        // Answers are expected where they are sent from here.
        self.received += u64::from(kind != Kind::Answer || self.plan.side == Side::Both);
        let is_sample = match self.plan.latency {
            Latency::OneWay => self.plan.side == Side::Both,
            Latency::RoundTrip => kind == Kind::Answer && place == 0,
        };
        if kind == Kind::Answer && place == 0 {
            self.answered += 1;
        }
        if is_sample {
            record(&mut self.latencies, latency_ns, 1);
            if connection == 0 && self.replay.is_some() {
                record(&mut self.replayer, latency_ns, 1);
            }
        }
    }
}

impl Load for Calls {
    fn message(&mut self, connection: usize, message: &[u8]) -> Result<(), Error> {
        let seq = message
            .get(SEQ_AT..SEQ_AT + 8)
            .and_then(|bytes| bytes.first_chunk());
        let (seq_mask, kind_mask) = match self.is_masked {
            true => (wsframe::MASK_U64, wsframe::MASK[KIND_AT % 4]),
            false => (0, 0),
        };
        match seq {
            Some(seq) if self.is_masked || message.starts_with(&MEDIA_HEAD) => {
                let kind = Kind::of(message[KIND_AT] ^ kind_mask);
                let kind = kind.ok_or_else(|| {
                    Error::Unexpected(
                        "a MEDIA frame that no bench sent: is somebody else in the calls?".into(),
                    )
                })?;
                let stamp_ns = (u64::from_be_bytes(*seq) ^ seq_mask) & !SEQ_BASE;
                self.arrived.push((kind, stamp_ns));
                Ok(())
            }
            _ => match &mut self.replay {
                Some(replay) if connection == 0 => replay.message(message),
                _ => match peer::decode(message) {
                    Err(Error::Refused {
                        code: Code::GroupIngressLimited,
                        ..
                    }) => {
                        self.refused += 1;
                        Ok(())
                    }
                    other => Err(peer::unexpected(&other?)),
                },
            },
        }
    }

    fn settle(&mut self, connection: usize, now_ns: u64, out: &mut Vec<u8>) -> Result<(), Error> {
        let (_, place) = self.plan.seat(connection);
        let answers = self.plan.kind(place) == Kind::Answer;
        let arrived = std::mem::take(&mut self.arrived);
        for &(kind, stamp_ns) in &arrived {
            // What was sent before this run is of no interest, but the far side can't tell: the clock is another's.
            if self.plan.side == Side::Far || stamp_ns >= self.began_ns {
                self.arrive(connection, kind, stamp_ns, now_ns);
                if answers && kind == Kind::Probe {
                    self.answer(connection, stamp_ns, out);
                }
            }
        }
        self.arrived = arrived;
        self.arrived.clear();
        if self.due == Some(connection) {
            self.send(connection, now_ns, out);
            self.due = None;
        }
        if let Some(replay) = self.replay.as_mut().filter(|_| connection == 0) {
            replay.ask(out);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::parse;
    use crate::peer::encoded;
    use drover_wire::frame::Frame;

    /// A generator that catches up is told so by the relay; its measurement goes on. Other refusals end it.
    #[test]
    fn a_budget_that_was_passed_is_counted_and_other_refusals_end_it() {
        let plan = Plan::all(&parse("media --spawn").expect("arguments")).expect("a plan")[0];
        let mut calls = Calls::new(plan, false);
        let error = |code| {
            encoded(&Frame::Error {
                code,
                retry_after_s: 1,
                detail: &[0; 8],
            })
        };
        let budget = error(Code::GroupIngressLimited);
        assert!(calls.message(0, &budget).is_ok() && calls.message(3, &budget).is_ok());
        assert_eq!(calls.refused, 2);
        let foreign = error(Code::WriterNotInAccessSet);
        assert!(matches!(calls.message(0, &foreign), Err(Error::Refused { .. })));
        calls.begin(1, 0);
        assert_eq!(calls.refused, 0);
    }
}
