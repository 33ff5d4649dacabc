//! Wakes (12): whoever registered, is away, and is meant, is woken by a call in the same turn, and by what was stored in
//! the turn that learns of it, unless that happened within the window; nobody else ever is.

use super::{Access, Violation};
use crate::world::Line;
use drover_engine::Now;
use drover_engine::wake::Category;
use drover_wire::id::PublicKey;
use std::collections::{BTreeMap, BTreeSet};

/// A registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// What it is woken by.
    pub handle: [u8; 16],
    /// What for.
    pub categories: u8,
    /// Until when, Unix milliseconds.
    pub expires_ms: u64,
}

/// One device of one workspace.
#[derive(Default)]
struct Sleeper {
    /// Any of them may be in force.
    may: Vec<Row>,
    /// This one is.
    sure: Option<Row>,
    /// Its connections that were admitted, with the moment.
    awake: BTreeMap<Line, u64>,
    /// Changes under way, by the connection that asked.
    asked: BTreeMap<Line, Asked>,
}

struct Asked {
    /// A row, or its end.
    row: Option<Row>,
    /// Nobody will be told: it is done before what is asked from now on, or not at all.
    is_gone: bool,
}

/// See the module.
#[derive(Default)]
pub struct Wakes {
    sleepers: BTreeMap<(usize, PublicKey), Sleeper>,
    /// Handles that the relay is told to forget, and does at some later moment.
    forgotten: BTreeSet<[u8; 16]>,
    /// By shard: who has to be woken before its turn ends, and by what.
    owed: BTreeMap<usize, BTreeSet<([u8; 16], Cause)>>,
    /// When handles were woken by what was stored last, by the monotonic clock.
    queued_ms: BTreeMap<[u8; 16], u64>,
    /// Workspaces whose state the relay may have to read again before it can wake anybody, and who has to be woken then.
    unread: BTreeMap<usize, BTreeSet<[u8; 16]>>,
}

/// What somebody is woken by. What is stored may wake as message or as handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    /// An offer.
    Call,
    /// What this turn learns to be stored.
    Stored,
    /// What was stored before its workspace was read again.
    StoredBefore,
}

/// For so long after one wake another is not needed for what is no call.
pub const WINDOW_MS: u64 = 2_000;

impl Wakes {
    fn of(&mut self, workspace: usize, device: &PublicKey) -> &mut Sleeper {
        self.sleepers.entry((workspace, *device)).or_default()
    }

    /// The relay is handed a registration, or the wish to end it.
    pub fn asks(&mut self, workspace: usize, device: &PublicKey, line: Line, row: Option<Row>) {
        let sleeper = self.of(workspace, device);
        sleeper.may.extend(row);
        sleeper.sure = None;
        sleeper.asked.retain(|_, asked| !asked.is_gone);
        sleeper.asked.insert(line, Asked { row, is_gone: false });
    }

    /// What this connection asked for was done; which of several is done last nobody can say.
    pub fn done(&mut self, workspace: usize, device: &PublicKey, line: Line) {
        let sleeper = self.of(workspace, device);
        if let Some(asked) = sleeper.asked.remove(&line) {
            sleeper.sure = asked.row.filter(|_| sleeper.asked.is_empty());
        }
    }

    /// Nothing is sure of any registration with this handle: the ringer does not know it.
    pub fn forgets(&mut self, handle: &[u8; 16]) {
        self.forgotten.insert(*handle);
        for sleeper in self.sleepers.values_mut() {
            sleeper.sure = sleeper.sure.filter(|row| row.handle != *handle);
        }
    }

    /// The relay does not know what became of a change of this workspace. What is stored wakes when the workspace is
    /// read again: that is so at the latest when somebody is admitted.
    pub fn is_uncertain(&mut self, workspace: usize) {
        self.unread.entry(workspace).or_default();
    }

    /// It could not be read: nobody is woken by what was stored before (12 §5).
    pub fn is_not_read(&mut self, workspace: usize) {
        if let Some(waiting) = self.unread.get_mut(&workspace) {
            waiting.clear();
        }
    }

    /// A connection of this device is admitted on this shard.
    pub fn wakes_up(&mut self, shard: usize, workspace: usize, device: &PublicKey, line: Line, now_us: u64) {
        let waiting = self.unread.remove(&workspace).unwrap_or_default();
        let sleeper = self.of(workspace, device);
        sleeper.awake.insert(line, now_us);
        // Whether it was read before this connection or after it nobody can say.
        let own: Vec<_> = sleeper.may.iter().map(|row| row.handle).collect();
        let in_force = self.sleepers.values().filter_map(|sleeper| sleeper.sure);
        let waiting = in_force.filter(|row| waiting.contains(&row.handle));
        let owed = self.owed.entry(shard).or_default();
        owed.extend(waiting.map(|row| (row.handle, Cause::StoredBefore)));
        owed.retain(|(handle, cause)| *cause != Cause::StoredBefore || !own.contains(handle));
    }

    /// It has ended.
    pub fn goes(&mut self, workspace: usize, device: &PublicKey, line: Line) {
        let sleeper = self.of(workspace, device);
        sleeper.awake.remove(&line);
        if let Some(asked) = sleeper.asked.get_mut(&line) {
            asked.is_gone = true;
        }
    }

    /// The process dies: nobody is connected, and what it was asked for may have been done or not. The next one has a
    /// monotonic clock of its own, and nothing waits in its queue.
    pub fn restarts(&mut self) {
        self.owed.clear();
        self.queued_ms.clear();
        self.unread.clear();
        for sleeper in self.sleepers.values_mut() {
            sleeper.awake.clear();
            sleeper.asked.clear();
        }
    }

    /// A call's offer was taken on this shard: who has to be woken.
    pub fn rings(&mut self, shard: usize, workspace: usize, wall_ms: u64, access: &Access) {
        for ((of, device), sleeper) in &self.sleepers {
            if let Some(row) = sleeper.sure
                && *of == workspace
                && sleeper.awake.is_empty()
                && !self.forgotten.contains(&row.handle)
                && row.categories & Category::Call.bit() != 0
                && wall_ms < row.expires_ms
                && access.always_lists(device)
            {
                self.owed
                    .entry(shard)
                    .or_default()
                    .insert((row.handle, Cause::Call));
            }
        }
    }

    /// This shard learns that something of this category is stored: who has to be woken.
    pub fn stored(&mut self, shard: usize, workspace: usize, category: Category, now: Now, access: &Access) {
        let mut unread = self.unread.get_mut(&workspace);
        for ((of, device), sleeper) in &self.sleepers {
            if let Some(row) = sleeper.sure
                && *of == workspace
                && sleeper.awake.is_empty()
                && !self.forgotten.contains(&row.handle)
                && row.categories & category.bit() != 0
                && now.wall_ms < row.expires_ms
                && access.always_lists(device)
                && self
                    .queued_ms
                    .get(&row.handle)
                    .is_none_or(|at_ms| at_ms + WINDOW_MS <= now.mono_ms)
            {
                match &mut unread {
                    Some(waiting) => drop(waiting.insert(row.handle)),
                    None => drop(
                        self.owed
                            .entry(shard)
                            .or_default()
                            .insert((row.handle, Cause::Stored)),
                    ),
                }
            }
        }
    }

    /// The relay has this device woken. Returns which one it is. `is_sure`: every connection that ended in the relay is
    /// seen to have ended; the close of one that does not read waits for its queue.
    pub fn woken(
        &mut self,
        shard: usize,
        workspace: usize,
        handle: &[u8; 16],
        category: Category,
        (now_us, now): (u64, Now),
        is_sure: bool,
    ) -> Result<PublicKey, Violation> {
        let (is_call, wall_ms) = (category == Category::Call, now.wall_ms);
        if let Some(owed) = self.owed.get_mut(&shard) {
            owed.retain(|(owed, cause)| owed != handle || is_call != (*cause == Cause::Call));
        }
        if !is_call {
            self.queued_ms.insert(*handle, now.mono_ms);
            if let Some(waiting) = self.unread.get_mut(&workspace) {
                waiting.remove(handle);
            }
        }
        let has = |sleeper: &Sleeper| sleeper.may.iter().any(|row| row.handle == *handle);
        let mut sleepers = self.sleepers.iter();
        let meant = sleepers.find(|((of, _), sleeper)| *of == workspace && has(sleeper));
        let fail = |what: &str| {
            Err(Violation {
                rule: "only who sleeps and asked for it is woken",
                what: format!("{category:?} in workspace {workspace}: {what}"),
            })
        };
        let Some(((_, device), sleeper)) = meant else {
            return fail("nobody has this handle");
        };
        let asked = |row: &Row| {
            row.handle == *handle && row.categories & category.bit() != 0 && wall_ms < row.expires_ms
        };
        if !sleeper.may.iter().any(asked) {
            return fail("it did not ask for that, or no longer");
        }
        // What came in this very turn may have come after it was decided.
        if is_sure && let Some((line, _)) = sleeper.awake.iter().find(|(_, since_us)| **since_us < now_us) {
            return fail(&format!("it is connected by line {line}"));
        }
        Ok(*device)
    }

    /// It is so late. What has run out may be swept, and does not come back when the clock is put back.
    pub fn is_late(&mut self, wall_ms: u64) {
        for sleeper in self.sleepers.values_mut() {
            sleeper.sure = sleeper.sure.filter(|row| wall_ms < row.expires_ms);
        }
    }

    /// A shard's turn ends.
    pub fn turn_ends(&mut self, shard: usize) -> Result<(), Violation> {
        match self.owed.remove(&shard).filter(|owed| !owed.is_empty()) {
            None => Ok(()),
            Some(owed) => {
                let rule = match owed.iter().any(|(_, cause)| *cause == Cause::Call) {
                    true => "a call wakes who sleeps",
                    false => "what is stored wakes who sleeps",
                };
                let is_owed = |row: &Row| owed.iter().any(|(handle, _)| *handle == row.handle);
                let of = self
                    .sleepers
                    .iter()
                    .filter(|(_, s)| s.sure.as_ref().is_some_and(is_owed));
                let of: Vec<_> = of.map(|(name, sleeper)| (name, sleeper.sure)).collect();
                let what = format!("not woken: {of:?} of {owed:?}");
                Err(Violation { rule, what })
            }
        }
    }
}
