//! A relay of this binary on a temporary directory, with every budget opened.

use crate::args::BenchArgs;
use crate::error::{Doing, Error};
use crate::workspace::random;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a relay may take to print its invite and to listen.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes of its log shown when it does not come up.
const LOG_TAIL_BYTES: usize = 2000;

/// The setting that chooses what a relay's shards run on.
pub(crate) const DRIVER: &str = "DROVER_IO";

const LINK_PREFIX: &str = "weald:   invite link";
const CODE_PREFIX: &str = "weald:   invite code";

/// A running relay; dropping it kills it and removes its data.
pub(crate) struct Relay {
    child: Child,
    /// Its program, with the environment it was started in.
    command: Command,
    dir: TempDir,
    /// Where it listens, as it was told.
    address: String,
    /// Where its private listener is.
    pub(crate) private: String,
    /// What the listener tells more for.
    token: String,
    /// Where it listens.
    pub(crate) url: String,
    /// Its bootstrap invite, as printed.
    pub(crate) invite: String,
    /// The invite's code.
    pub(crate) code: String,
}

impl Relay {
    /// Starts one, with TLS by a throw-away certificate if asked for.
    pub(crate) fn start(args: &BenchArgs, tls: bool) -> Result<Self, Error> {
        let program = match &args.spawn_command {
            Some(program) => program.clone(),
            None => std::env::current_exe().doing("find this program")?,
        };
        let dir = match &args.dir {
            Some(parent) => tempfile::tempdir_in(parent),
            None => tempfile::tempdir(),
        }
        .doing("make a temporary directory")?;
        let log = File::create(dir.path().join("stderr")).doing("make the relay's log")?;
        let address = free_address()?;
        let private = free_address()?;
        let token: String = random::<16>().iter().map(|byte| format!("{byte:02x}")).collect();
        let mut command = Command::new(program);
        command
            .arg("serve")
            .envs([
                ("WEALD_RELAY_LISTEN", &*address),
                ("WEALD_RELAY_OBSERVABILITY_LISTEN", &*private),
                ("WEALD_RELAY_OPERATOR_TOKEN", &*token),
                ("WEALD_RELAY_SEND_FRAMES_PER_MINUTE", "1000000000"),
                ("WEALD_RELAY_SEND_BYTES_PER_MINUTE", "1000000000000"),
                ("WEALD_RELAY_GROUP_INGRESS_BYTES_PER_MINUTE", "0"),
                ("WEALD_RELAY_WORKSPACE_INGRESS_BYTES_PER_MINUTE", "0"),
                ("WEALD_RELAY_GROUP_BACKLOG_BYTES", "0"),
                ("WEALD_RELAY_MAX_CONNECTIONS", "unlimited"),
                ("WEALD_RELAY_MAX_CONCURRENT_CALLS", "100000"),
                ("WEALD_RELAY_TLS", if tls { "dev" } else { "off" }),
            ])
            .env("DROVER_DATA_DIR", dir.path().join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log);
        let mut again = Command::new(command.get_program());
        for pair in &args.env {
            let (name, value) = pair
                .split_once('=')
                .ok_or_else(|| Error::Usage(format!("--env {pair}: NAME=VALUE expected")))?;
            command.env(name, value);
        }
        again.envs(
            command
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        let mut child = command.spawn().doing("spawn the relay")?;
        let lines = lines_of(&mut child)?;
        let mut relay = Self {
            child,
            command: again,
            private,
            token,
            url: format!("{}://{address}/relay", if tls { "wss" } else { "ws" }),
            invite: String::new(),
            code: String::new(),
            dir,
            address,
        };
        let deadline = Instant::now() + START_TIMEOUT;
        relay
            .read_banner(&lines, deadline)
            .and_then(|()| wait_for_listener(&relay.address, deadline))
            .map_err(|what| {
                Error::Spawn(format!("{what}\n{}", log_tail(&relay.dir.path().join("stderr"))))
            })?;
        Ok(relay)
    }

    /// Mints a further workspace; its invite link.
    pub(crate) fn mint(&mut self) -> Result<String, Error> {
        let minted = self
            .command
            .args(["workspace", "new", "guessed.example"])
            .output()
            .doing("mint a workspace")?;
        let said = String::from_utf8_lossy(&minted.stdout);
        let link = said.lines().find_map(|line| line.strip_prefix(LINK_PREFIX));
        link.map(|link| link.trim().to_owned())
            .ok_or_else(|| Error::Spawn(String::from_utf8_lossy(&minted.stderr).into_owned()))
    }

    /// Kills it and starts it again on the same data and addresses.
    pub(crate) fn restart(&mut self) -> Result<(), Error> {
        self.child.kill().doing("kill the relay")?;
        self.child.wait().doing("wait for the relay")?;
        // The kernel takes its ring apart after its end, and its listener with it.
        let deadline = Instant::now() + START_TIMEOUT;
        while TcpStream::connect(&self.address).is_ok() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        let log = File::create(self.dir.path().join("stderr")).doing("make the relay's log")?;
        let mut command = Command::new(self.command.get_program());
        let environment = self.command.get_envs();
        command
            .arg("serve")
            .envs(environment.filter_map(|(name, value)| Some((name, value?))))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        self.child = command.spawn().doing("spawn the relay")?;
        wait_for_listener(&self.address, Instant::now() + START_TIMEOUT)
            .map_err(|what| Error::Spawn(format!("{what}\n{}", log_tail(&self.dir.path().join("stderr")))))
    }

    /// The segments of its log.
    pub(crate) fn segments(&self) -> Result<BTreeSet<PathBuf>, Error> {
        let folder = self.dir.path().join("data/store/log");
        let entries = fs::read_dir(folder).doing("list the relay's segments")?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        Ok(paths
            .filter(|path| path.extension().is_some_and(|e| e == "seg"))
            .collect())
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What its shards run on, if it says so.
    pub(crate) fn driver(&self) -> Option<String> {
        let ready = private_page(&self.private, "/readyz", Some(&self.token))?;
        let ready: serde_json::Value = serde_json::from_str(&ready).ok()?;
        Some(ready["io_driver"].as_str()?.to_owned())
    }

    fn read_banner(&mut self, lines: &Receiver<String>, deadline: Instant) -> Result<(), &'static str> {
        while self.invite.is_empty() || self.code.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = lines
                .recv_timeout(left)
                .map_err(|_| "no invite link and code on its standard output")?;
            if let Some(link) = line.strip_prefix(LINK_PREFIX) {
                self.invite = link.trim().to_owned();
            } else if let Some(code) = line.strip_prefix(CODE_PREFIX) {
                self.code = code.trim().to_owned();
            }
        }
        Ok(())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // Both only fail when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A page of a relay's private listener, if it has it.
pub(crate) fn private_page(address: &str, path: &str, bearer: Option<&str>) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(START_TIMEOUT)).ok()?;
    let bearer = bearer.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{bearer}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, page) = answer.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.1 200").then(|| page.to_owned())
}

/// Lines of the child's standard output. Read to the end, so that it never blocks on a full pipe.
fn lines_of(child: &mut Child) -> Result<Receiver<String>, Error> {
    let stdout = child
        .stdout
        .take()
        .ok_or_else(|| Error::Spawn("its standard output is not piped".into()))?;
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // Nobody listens once the banner was read.
            let _ = sender.send(line);
        }
    });
    Ok(lines)
}

fn wait_for_listener(address: &str, deadline: Instant) -> Result<(), &'static str> {
    while TcpStream::connect(address).is_err() {
        if Instant::now() > deadline {
            return Err("it does not listen");
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// A loopback address nobody listens on, at this moment.
fn free_address() -> Result<String, Error> {
    let listener = TcpListener::bind("127.0.0.1:0").doing("find a free port")?;
    Ok(listener.local_addr().doing("find a free port")?.to_string())
}

fn log_tail(path: &Path) -> String {
    let log = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_TAIL_BYTES)..]).into_owned()
}
