//! Calls: offers and answers, declines and byes, and talks meanwhile, in calls it is in and in others. What becomes of
//! each frame the model knows. When nothing goes wrong any more it joins the call of its group once more, so that there
//! are calls in the end; later it leaves with a bye, or without a word, or stays; at last it says a word in every call
//! that there may be, so that each is found as the model has it, and each that has ended is found to have.

use super::{Kind, Session};
use crate::model::stream;
use crate::world::{Line, Outside};
use drover_wire::frame::Frame;
use drover_wire::id::{CallId, GroupId};

/// Calls that anybody may think of.
const IDS: u8 = 4;

/// See the module.
#[derive(Default)]
pub struct Caller {
    said: u64,
    /// What it has yet to do of the end.
    last: Option<Last>,
}

/// The end, step by step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Joins,
    Parts,
    AnswersTheRoll,
}

/// What it says in one go.
enum Word {
    Call(CallId, GroupId, u8, usize),
    Media(CallId, [u8; 4], u64, usize),
}

impl Caller {
    fn call_id(group: &GroupId, out: &mut Outside) -> CallId {
        // Most members of a group think of the same call.
        let of_group = group.0[0] % IDS;
        let other = out.dice.below(IDS.into()) as u8;
        CallId([if out.dice.chance(0.7) { of_group } else { other }; 16])
    }

    fn call(&self, me: &Session, out: &mut Outside) -> Option<Word> {
        let proved: Vec<GroupId> = me.proved.iter().copied().collect();
        let mut group = *out.dice.pick(&proved)?;
        let call_id = Self::call_id(&group, out);
        if out.dice.chance(0.05) {
            let all: Vec<GroupId> = out.groups.keys().copied().collect();
            group = out
                .dice
                .pick(&all)
                .copied()
                .filter(|g| !me.groups.contains(g) || proved.contains(g))?;
        }
        let kind = match out.dice.below(40) {
            0..33 => out.dice.between(1, 2) as u8,
            33..39 => out.dice.between(3, 4) as u8,
            _ => *out.dice.pick(&[0, 5, 6, 240, 255])?,
        };
        let body_bytes = if out.dice.chance(0.02) {
            4_097
        } else {
            out.dice.below(40)
        };
        Some(Word::Call(call_id, group, kind, body_bytes))
    }

    fn talk(&mut self, line: Line, me: &Session, out: &mut Outside) -> Vec<Word> {
        let mine = out.model.calls.of(line);
        let call_id = match out.dice.pick(&mine).copied() {
            Some(call_id) if out.dice.chance(0.95) => call_id,
            _ => Self::call_id(&me.groups[0], out),
        };
        let frames = if out.dice.chance(0.05) {
            70
        } else {
            out.dice.skewed(1, 16)
        };
        let many_streams = out.dice.chance(0.02);
        let words = (0..frames).map(|_| {
            self.said += 1;
            let number = if many_streams { self.said as u8 } else { 0 };
            let longest = out.plan.audio_bytes as u64;
            let ct_bytes = out.dice.between(0, longest) as usize;
            Word::Media(call_id, stream(line, number), self.said, ct_bytes)
        });
        words.collect()
    }

    fn chat(&mut self, line: Line, me: &Session, out: &mut Outside) -> Vec<Word> {
        let mut words = Vec::new();
        for _ in 0..out.dice.between(1, 3) {
            let calls = out.model.calls.of(line).len();
            if out.dice.chance(if calls == 0 { 0.9 } else { 0.2 }) {
                words.extend(self.call(me, out));
            } else {
                words.extend(self.talk(line, me, out));
            }
        }
        words
    }

    /// The call of its group, once more, and a word in each that it is in.
    fn join(&mut self, line: Line, me: &Session, out: &mut Outside) -> Vec<Word> {
        let Some(group) = me.proved.first() else {
            return Vec::new();
        };
        let call_id = CallId([group.0[0] % IDS; 16]);
        let mut words = vec![Word::Call(call_id, *group, 1, 8)];
        let others = out.model.calls.of(line).into_iter().filter(|id| *id != call_id);
        words.extend(self.word_in(others.chain([call_id]), line));
        words
    }

    /// Out of all its calls, or of none.
    fn part(&mut self, line: Line, me: &mut Session, out: &mut Outside) -> Vec<Word> {
        let mine = out.model.calls.of(line);
        match out.dice.below(3) {
            0 => Vec::new(),
            1 if me.is_idle() && !mine.is_empty() => {
                out.coverage.add("calls left without a word", mine.len() as u64);
                me.hang_up(out);
                Vec::new()
            }
            _ => {
                let groups = mine
                    .into_iter()
                    .filter_map(|id| Some((id, out.model.calls.group(id)?)));
                groups.map(|(id, group)| Word::Call(id, group, 4, 8)).collect()
            }
        }
    }

    /// A short word in each of these calls.
    fn word_in(&mut self, calls: impl Iterator<Item = CallId>, line: Line) -> Vec<Word> {
        calls
            .map(|call_id| {
                self.said += 1;
                Word::Media(call_id, stream(line, 0), self.said, 8)
            })
            .collect()
    }
}

impl Kind for Caller {
    fn act(&mut self, me: &mut Session, out: &mut Outside) {
        let last = self.last.take();
        let Some(line) = me.line.filter(|_| me.may_say()) else {
            return;
        };
        let words = match last {
            None if me.proved.is_empty() => return,
            None => self.chat(line, me, out),
            Some(Last::Joins) => self.join(line, me, out),
            Some(Last::Parts) => self.part(line, me, out),
            Some(Last::AnswersTheRoll) => {
                out.coverage.add("roll calls", 1);
                self.word_in((0..IDS).map(|n| CallId([n; 16])), line)
            }
        };
        if words.is_empty() {
            return;
        }
        let longest = [0x5a; 4_097];
        let audio: Vec<Vec<u8>> = words
            .iter()
            .map(|word| match word {
                Word::Media(_, _, seq, ct_bytes) => vec![*seq as u8; *ct_bytes],
                Word::Call(..) => Vec::new(),
            })
            .collect();
        let frames: Vec<Frame<'_>> = words
            .iter()
            .zip(&audio)
            .map(|(word, ct)| match *word {
                Word::Call(call_id, group, kind, body_bytes) => Frame::Call {
                    call_id,
                    group,
                    epoch: 0,
                    kind,
                    body: &longest[..body_bytes],
                },
                Word::Media(call_id, stream, seq, _) => Frame::Media {
                    call_id,
                    stream,
                    seq,
                    ct,
                },
            })
            .collect();
        me.talk(&frames, out);
    }

    fn is_busy(&self) -> bool {
        self.last.is_some()
    }

    fn heal(&mut self) {
        self.last = Some(Last::Joins);
    }

    fn part(&mut self) {
        self.last = Some(Last::Parts);
    }

    fn answer_the_roll(&mut self) {
        self.last = Some(Last::AnswersTheRoll);
    }
}
