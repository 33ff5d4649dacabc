//! Looking at all of a log, byte by byte. It only reads.

use super::disk::Disk;
use super::format::{Kind, SEGMENT_HEAD, SegmentHead};
use super::index::{self, Of};
use super::list::{self, List, State};
use super::look::{Looked, look};
use super::recover::{Scan, read_all, scan, segment_paths, without_advice};
use super::view::Files;
use crate::control::ControlStore;
use crate::embedded::{Damage, Findings, OpenError};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

/// Reads every segment and every index and tells what is wrong with them. What keeps the log from being opened is always
/// among it, and what the next opening makes whole never is. The log must be closed.
pub(crate) fn verify(
    disk: Arc<dyn Disk>,
    folder: &Path,
    control: &dyn ControlStore,
    store: &[u8; 16],
) -> Findings {
    let files = Arc::new(Files::new(disk, folder));
    let looked = look(&files, control, *store);
    let mut verification = Verification {
        files: &files,
        store: *store,
        unindexed: looked
            .as_ref()
            .map(|looked| looked.unindexed().collect())
            .unwrap_or_default(),
        looked: looked.as_ref().ok(),
        last: HashMap::new(),
        findings: Findings::default(),
    };
    if let Ok(list) = list::load(control) {
        verification.segments(list);
    }
    let mut findings = verification.findings;
    let refusal = looked.err().map(|error| match error {
        OpenError::Unusable { file, reason } => (file, without_advice(&reason).to_owned()),
        OpenError::Io { file, error } => (file, format!("can't be read: {error}")),
        OpenError::Locked(file) => (file, "is in use".to_owned()),
    });
    if let Some((file, what)) = refusal.filter(|(file, _)| findings.damage.iter().all(|d| d.file != *file)) {
        findings.damage.push(Damage {
            file,
            offset: 0,
            what,
        });
    }
    findings
}

struct Verification<'a> {
    files: &'a Files,
    store: [u8; 16],
    /// If the log can be opened: what an opening finds.
    looked: Option<&'a Looked>,
    /// Segments whose index the next opening makes again.
    unindexed: Vec<u64>,
    /// By writer: its last commit in the segments before.
    last: HashMap<u32, u64>,
    findings: Findings,
}

impl Verification<'_> {
    fn damaged(&mut self, file: &Path, offset: usize, what: impl Into<String>) {
        self.findings.damage.push(Damage {
            file: file.into(),
            offset: offset as u64,
            what: what.into(),
        });
    }

    fn will_be_mended(&mut self, file: &Path, offset: usize, what: &str) {
        self.findings.mended.push(Damage {
            file: file.into(),
            offset: offset as u64,
            what: what.into(),
        });
    }

    fn segments(&mut self, list: List) {
        self.last
            .extend(list.writers.iter().map(|(writer, (_, lsn))| (*writer, *lsn)));
        let listed: BTreeMap<u64, State> = list.segments.into_iter().collect();
        let paths = match segment_paths(self.files) {
            Ok(paths) => paths,
            Err(error) => return self.damaged(&self.files.folder, 0, format!("can't be read: {error}")),
        };
        for (number, state) in &listed {
            if matches!(state, State::Sealed { .. }) && !paths.contains_key(number) {
                self.damaged(&self.files.segment_path(*number), 0, "this segment is missing");
            }
        }
        for (number, path) in &paths {
            let state = listed.get(number);
            if state != Some(&State::Removed) {
                self.segment(*number, path, state);
            }
        }
    }

    fn segment(&mut self, number: u64, path: &Path, state: Option<&State>) {
        let bytes = match self.files.disk.open(path).and_then(|file| read_all(&*file)) {
            Ok(bytes) => bytes,
            Err(error) => return self.damaged(path, 0, format!("can't be read: {error}")),
        };
        self.findings.segments += 1;
        let head =
            SegmentHead::decode(&bytes).filter(|head| head.store == self.store && head.number == number);
        let Some(head) = head else {
            return match self.looked {
                Some(_) if state.is_none() => {
                    self.will_be_mended(path, 0, "a segment that was just being made")
                }
                _ => self.damaged(path, 0, "the header is damaged"),
            };
        };
        if head.kind == Kind::Rewritten && state.is_none() {
            return; // what an interrupted compaction left
        }
        let scan = scan(&bytes, head.salt);
        self.findings.records += scan.held.entries as u64;
        self.findings.bytes += scan.end as u64;
        match state {
            Some(State::Sealed { salt, length, .. }) => {
                if scan.end as u64 != *length || bytes.len() as u64 != *length || head.salt != *salt {
                    return self.damaged(path, scan.end, "what follows is damaged or cut off");
                }
                let of = Of {
                    store: self.store,
                    number,
                    salt: *salt,
                    length: *length,
                };
                self.index(&of, &scan);
            }
            _ => self.unsealed(path, &head, &scan),
        }
    }

    fn index(&mut self, of: &Of, scan: &Scan) {
        let path = self.files.index_path(of.number);
        let expected = index::encode(&scan.held, of);
        let found = self.files.disk.open(&path).and_then(|file| read_all(&*file));
        let found = found.unwrap_or_default();
        if found == expected {
            return;
        }
        if self.unindexed.contains(&of.number) {
            return self.will_be_mended(&path, 0, "this index is missing or of no use");
        }
        let at = found.iter().zip(&expected).take_while(|(a, b)| a == b).count();
        self.damaged(
            &path,
            at,
            "this index is damaged; remove it, and it is made again at the next start",
        );
    }

    fn unsealed(&mut self, path: &Path, head: &SegmentHead, scan: &Scan) {
        if !scan.commits.is_empty() {
            let before = self
                .last
                .insert(head.writer, scan.held.last_lsn)
                .unwrap_or_default();
            if scan.previous.is_some_and(|previous| previous != before) {
                self.damaged(path, SEGMENT_HEAD, "the commits before this one are missing");
            }
        }
        if scan.is_torn && self.looked.is_some() {
            self.will_be_mended(
                path,
                scan.end,
                "a commit that was interrupted before it was acknowledged",
            );
        } else if scan.is_torn {
            let what = match scan.is_broken {
                true => "what follows is damaged",
                false => {
                    "what follows is damaged, or a commit that was interrupted before it was acknowledged"
                }
            };
            self.damaged(path, scan.end, what);
        }
    }
}
