//! What the embedded store costs: CPU of the whole process (user and system, all threads) and wall time.
//!
//! `cargo bench -p drover-storage --bench embedded [-- FOLDER]`; on the disk that counts, with the machine idle. With
//! `-- FOLDER start` it measures instead how long a start takes after a kill with 8 GiB of log in 100 000 groups, with
//! `-- FOLDER shards` appends as shards make them, with one committer for all shards and with one for each.

use bytes::Bytes;
use drover_storage::contract::{realm, wait};
use drover_storage::embedded::Embedded;
use drover_storage::log::{Append, AppendBatch, Delete, LogStore, StreamId, StreamKind};
use drover_wire::id::{GroupId, Hash};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

fn cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Incompressible and different each time, as ciphertext is.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, length: usize) -> Bytes {
        (0..length.div_ceil(8))
            .flat_map(|_| self.next().to_le_bytes())
            .take(length)
            .collect()
    }
}

fn stream(group: u64) -> StreamId {
    StreamId {
        kind: StreamKind::Envelopes,
        group: GroupId(*Hash::of(&[&group.to_be_bytes()]).as_bytes()),
    }
}

/// Several callers, each handing over its next batch from the answer to the last one.
struct Callers {
    store: Embedded,
    values: Vec<Bytes>,
    streams: Vec<StreamId>,
    batch_records: u64,
    next: AtomicU64,
    end: u64,
    finished: mpsc::Sender<()>,
}

impl Callers {
    fn go(self: Arc<Self>) {
        let from = self.next.fetch_add(self.batch_records, Ordering::Relaxed);
        if from >= self.end {
            self.finished.send(()).expect("main waits");
            return;
        }
        let appends = (from..from + self.batch_records).map(|n| {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
            id[8..16].copy_from_slice(&n.to_le_bytes());
            Append {
                stream: self.streams[(n % self.streams.len() as u64) as usize],
                seq: n / self.streams.len() as u64,
                id: Hash(id),
                bytes: self.values[(n % self.values.len() as u64) as usize].clone(),
                budget_bytes: 0,
            }
        });
        let batch = AppendBatch {
            appends: appends.collect(),
            usage: vec![(realm("ws:bench"), from)],
            ..AppendBatch::default()
        };
        let again = self.clone();
        self.store.append(
            batch,
            Box::new(move |result| {
                result.expect("appends");
                again.go();
            }),
        );
    }
}

fn append(folder: &Path, lengths: std::ops::Range<u64>, callers: u64, batch_records: u64, records: u64) {
    let folder = tempfile::tempdir_in(folder).expect("a folder");
    let mut random = Random(88_172_645_463_325_252);
    let values = (0..4096)
        .map(|_| lengths.start + random.next() % (lengths.end - lengths.start))
        .collect::<Vec<_>>()
        .into_iter()
        .map(|length| random.bytes(length as usize))
        .collect();
    let (finished, wait) = mpsc::channel();
    let state = Arc::new(Callers {
        store: Embedded::open(folder.path()).expect("opens"),
        values,
        streams: (0..100).map(stream).collect(),
        batch_records,
        next: AtomicU64::new(0),
        end: records,
        finished,
    });
    let (begun, cpu_begun) = (Instant::now(), cpu());
    for _ in 0..callers {
        state.clone().go();
    }
    for _ in 0..callers {
        wait.recv().expect("callers finish");
    }
    let (wall, used) = (begun.elapsed(), cpu() - cpu_begun);
    drop(state);
    let closed = cpu() - cpu_begun;
    let per_1000 = |d: Duration| d.as_secs_f64() * 1e6 / records as f64;
    println!(
        "append {:>5}-{:<5} B, {callers} callers x {batch_records:>4}: {:>7.0} records/s, {:>5.2} ms CPU per 1000 ({:.2} with closing)",
        lengths.start,
        lengths.end,
        records as f64 / wall.as_secs_f64(),
        per_1000(used),
        per_1000(closed),
    );
}

fn reads(folder: &Path) {
    const RECORDS: u64 = 200_000;
    let folder = tempfile::tempdir_in(folder).expect("a folder");
    let mut random = Random(88_172_645_463_325_252);
    let fill = |store: &Embedded, random: &mut Random, from: u64| {
        for from in (from..from + RECORDS).step_by(1000) {
            let appends = (from..from + 1000).map(|n| {
                let bytes = random.bytes(1024);
                Append {
                    stream: stream(n % 20),
                    seq: n / 20,
                    id: Hash::of(&[&n.to_be_bytes()]),
                    bytes,
                    budget_bytes: 1024,
                }
            });
            let batch = AppendBatch {
                appends: appends.collect(),
                ..AppendBatch::default()
            };
            wait(|done| store.append(batch, done)).expect("appends");
        }
    };
    let store = Embedded::open(folder.path()).expect("opens");
    fill(&store, &mut random, 0);
    std::thread::sleep(Duration::from_secs(2));
    for (what, from) in [("oldest", 0), ("newest", RECORDS / 20 - 300)] {
        for round in ["first", "again"] {
            let (begun, cpu_begun) = (Instant::now(), cpu());
            for n in 0..20 {
                let page = wait(|done| store.read(stream(n), from, 255, usize::MAX, done)).expect("reads");
                assert_eq!(page.len(), 255);
            }
            let (wall, used) = (begun.elapsed() / 20, (cpu() - cpu_begun) / 20);
            println!("read 255 x 1 KiB, {what}, {round}: {used:.0?} CPU, {wall:.0?}");
        }
    }
    let (begun, cpu_begun) = (Instant::now(), cpu());
    for n in 0..20 {
        let seqs: Vec<u64> = (0..255).map(|k| k * 37 % (RECORDS / 20)).collect();
        let page = wait(|done| store.read_seqs(stream(n), seqs, usize::MAX, done)).expect("reads");
        assert_eq!(page.len(), 255);
    }
    println!(
        "read_seqs 255 x 1 KiB, spread: {:.0?} CPU, {:.0?}",
        (cpu() - cpu_begun) / 20,
        begun.elapsed() / 20
    );
    let (begun, cpu_begun) = (Instant::now(), cpu());
    let index = wait(|done| store.index(stream(0), done)).expect("reads");
    println!(
        "index of {}: {:.1?} CPU, {:.1?}",
        index.len(),
        cpu() - cpu_begun,
        begun.elapsed()
    );
    deletes(&store, RECORDS / 2);
    drop(store);
    let (begun, cpu_begun) = (Instant::now(), cpu());
    let _store = Embedded::open(folder.path()).expect("opens");
    println!("open: {:.0?} CPU, {:.0?}", cpu() - cpu_begun, begun.elapsed());
}

/// Deletes from ten streams of twenty all but the newest record, in the parts a DROP uses.
fn deletes(store: &Embedded, records: u64) {
    const PART: usize = 2048;
    let (begun, cpu_begun) = (Instant::now(), cpu());
    for n in 0..10 {
        let mut entries = wait(|done| store.index(stream(n), done)).expect("reads");
        entries.pop();
        for part in entries.chunks(PART) {
            let batch = AppendBatch {
                deletes: vec![Delete {
                    stream: stream(n),
                    entries: part.to_vec(),
                }],
                ..AppendBatch::default()
            };
            wait(|done| store.append(batch, done)).expect("deletes");
        }
    }
    println!(
        "delete {records}: {:.2} ms CPU per 1000, {:.1?}",
        (cpu() - cpu_begun).as_secs_f64() * 1e6 / records as f64,
        begun.elapsed()
    );
}

/// Bytes this process had written to disks.
fn written() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.and_then(|n| n.parse().ok()).unwrap_or_default()
}

/// How many bytes go to the disk for one that is accepted: the envelope of a SEND of 256 B, 64 groups.
fn amplification(folder: &Path, batch_records: u64) {
    const RECORDS: u64 = 2_000_000;
    const BYTES: usize = 343;
    let folder = tempfile::tempdir_in(folder).expect("a folder");
    let mut random = Random(88_172_645_463_325_252);
    let store = Embedded::open(folder.path()).expect("opens");
    let streams: Vec<_> = (0..64).map(stream).collect();
    let before = written();
    for from in (0..RECORDS).step_by(batch_records as usize) {
        let mut appends: Vec<_> = (from..from + batch_records)
            .map(|n| {
                // An envelope holds its own id.
                let id = Hash::of(&[&n.to_be_bytes()]);
                let mut bytes = id.as_bytes().to_vec();
                bytes.extend_from_slice(&random.bytes(BYTES - 32));
                Append {
                    stream: streams[(n % 64) as usize],
                    seq: n / 64,
                    id,
                    bytes: bytes.into(),
                    budget_bytes: 256,
                }
            })
            .collect();
        appends.sort_by_key(|a| a.stream.group);
        let batch = AppendBatch {
            appends,
            ..AppendBatch::default()
        };
        wait(|done| store.append(batch, done)).expect("appends");
    }
    drop(store);
    println!(
        "written to disk per byte accepted, {BYTES} B, batches of {batch_records}: {:.3}",
        (written() - before) as f64 / (RECORDS as usize * BYTES) as f64
    );
}

const FULL_BYTES: u64 = 8 << 30;
const FULL_GROUPS: u64 = 100_000;

/// Fills a store until somebody kills it.
fn fill_until_killed(folder: &Path) {
    let mut random = Random(88_172_645_463_325_252);
    let store = Embedded::open(folder).expect("opens");
    let values: Vec<Bytes> = (0..4096).map(|_| random.bytes(1024)).collect();
    let mut bytes = 0;
    for n in 0_u64.. {
        let appends = (n * 1000..(n + 1) * 1000).map(|n| Append {
            stream: stream(n % FULL_GROUPS),
            seq: n / FULL_GROUPS + 1,
            id: Hash::of(&[&n.to_be_bytes()]),
            bytes: values[(n % 4096) as usize].clone(),
            budget_bytes: 1024,
        });
        // One group has a log worth reconciling.
        let more = (n * 3..(n + 1) * 3).map(|n| Append {
            stream: stream(u64::MAX),
            seq: n + 1,
            id: Hash::of(&[b"more", &n.to_be_bytes()]),
            bytes: values[0].slice(..100),
            budget_bytes: 100,
        });
        let batch = AppendBatch {
            appends: appends.chain(more).collect(),
            usage: vec![(realm("ws:bench"), n)],
            ..AppendBatch::default()
        };
        wait(|done| store.append(batch, done)).expect("appends");
        bytes += 1024 * 1000;
        if bytes >= FULL_BYTES {
            println!("full");
            bytes = 0;
        }
    }
}

fn start(folder: &Path) {
    let folder = tempfile::tempdir_in(folder).expect("a folder");
    let mut child = std::process::Command::new(std::env::current_exe().expect("this program"))
        .arg(folder.path())
        .arg("fill")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("starts");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().expect("piped")));
    assert!(lines.any(|line| line.expect("text") == "full"));
    child.kill().expect("kills");
    child.wait().expect("ended");
    let (begun, cpu_begun) = (Instant::now(), cpu());
    let store = Embedded::open(folder.path()).expect("opens");
    println!(
        "open after a kill, {} GiB in {FULL_GROUPS} groups: {:.0?}, {:.0?} CPU",
        FULL_BYTES >> 30,
        begun.elapsed(),
        cpu() - cpu_begun
    );
    let begun = Instant::now();
    let index = wait(|done| store.index(stream(u64::MAX), done)).expect("reads");
    println!(
        "index of a cold group, {} records: {:.2?}",
        index.len(),
        begun.elapsed()
    );
    let begun = Instant::now();
    let page = wait(|done| store.read(stream(7), 0, 256, usize::MAX, done)).expect("reads");
    println!(
        "first page of a cold group, {} records: {:.2?}",
        page.len(),
        begun.elapsed()
    );
}

/// As shards do it: each thread hands over batches of streams of its own, and has so many of them under way. All to one
/// log, or, `apart`, each to a log of its own: then every shard has a committer and syncs for itself.
fn shards(folder: &Path, apart: bool, threads: u64, under_way: usize, batch_records: u64, length: Duration) {
    let folder = tempfile::tempdir_in(folder).expect("a folder");
    let stores: Vec<Embedded> = (0..if apart { threads } else { 1 })
        .map(|n| Embedded::open(&folder.path().join(n.to_string())).expect("opens"))
        .collect();
    let bytes = Random(88_172_645_463_325_252).bytes(300);
    let (begun, cpu_begun) = (Instant::now(), cpu());
    let mut waited: Vec<Duration> = std::thread::scope(|scope| {
        let shards: Vec<_> = (0..threads)
            .map(|thread| {
                let (store, bytes) = (&stores[thread as usize % stores.len()], &bytes);
                scope.spawn(move || {
                    let (tell, told) = mpsc::channel();
                    let (mut seq, mut waited) = (0, Vec::new());
                    let mut send = || {
                        let (tell, at) = (tell.clone(), Instant::now());
                        let appends = (0..batch_records).map(|n| {
                            seq += u64::from(n % 8 == 0);
                            let mut id = [0; 32];
                            id[..8].copy_from_slice(&(seq * 8 + n % 8).to_le_bytes());
                            Append {
                                stream: stream(thread * 8 + n % 8),
                                seq,
                                id: Hash(id),
                                bytes: bytes.clone(),
                                budget_bytes: 300,
                            }
                        });
                        let batch = AppendBatch {
                            appends: appends.collect(),
                            usage: vec![(realm(&format!("ws:{thread}")), seq)],
                            ..AppendBatch::default()
                        };
                        let done = move |result: Result<(), _>| {
                            result.expect("appends");
                            let _ = tell.send(at.elapsed());
                        };
                        store.append(batch, Box::new(done));
                    };
                    (0..under_way).for_each(|_| send());
                    while begun.elapsed() < length {
                        waited.push(told.recv().expect("answered"));
                        send();
                    }
                    (0..under_way).for_each(|_| waited.push(told.recv().expect("answered")));
                    waited
                })
            })
            .collect();
        let ended = shards.into_iter();
        ended.flat_map(|shard| shard.join().expect("no panic")).collect()
    });
    let (wall, used) = (begun.elapsed(), cpu() - cpu_begun);
    waited.sort_unstable();
    let ms = |part: f64| waited[(waited.len() as f64 * part) as usize].as_secs_f64() * 1e3;
    let records = waited.len() as f64 * batch_records as f64;
    println!(
        "{threads} shards, {} committers, {under_way} x {batch_records:>4} records of 300 B under way: {:>7.0} records/s, {:>6.2} ms CPU per 1000, a \
         commit {:.3} ms (p50) {:.3} (p99)",
        stores.len(),
        records / wall.as_secs_f64(),
        used.as_secs_f64() * 1e6 / records,
        ms(0.5),
        ms(0.99),
    );
    // What this one leaves to be written and freed is not the next one's.
    drop((stores, folder));
    rustix::fs::sync();
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|a| !a.starts_with("--"));
    let folder = arguments.next().unwrap_or_else(|| ".".into());
    let folder = Path::new(&folder);
    match arguments.next().as_deref() {
        Some("fill") => return fill_until_killed(folder),
        Some("start") => return start(folder),
        Some("shards") => {
            let second = Duration::from_secs(1);
            for _ in 0..3 {
                for (under_way, batch_records) in [(1, 1), (1, 64), (2, 1024)] {
                    shards(folder, false, 1, under_way, batch_records, second);
                    for threads in [2, 4] {
                        shards(folder, false, threads, under_way, batch_records, second);
                        shards(folder, true, threads, under_way, batch_records, second);
                    }
                }
            }
            return;
        }
        _ => {}
    }
    amplification(folder, 1000);
    amplification(folder, 64);
    append(folder, 256..400, 1, 1, 5_000);
    append(folder, 256..400, 2, 64, 300_000);
    append(folder, 256..400, 2, 300, 2_000_000);
    append(folder, 256..400, 4, 300, 2_000_000);
    append(folder, 256..400, 4, 1000, 2_000_000);
    append(folder, 4096..4097, 4, 64, 100_000);
    append(folder, 65_536..65_537, 4, 8, 10_000);
    reads(folder);
}
