//! The relay as a process: started, killed, started again on the same folder.
#![allow(dead_code, reason = "each test binary that shares this uses its own part")]

use drover_client::wire::id::{GroupId, PublicKey};
use drover_client::{
    Client, Endpoint, Founding, Identity, InviteLink, MemoryStore, RelayUrl, Tls, Workspace,
};
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use tempfile::TempDir;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_drover");

pub(crate) struct Relay {
    pub(crate) data: TempDir,
    pub(crate) child: Child,
    listen: String,
    private: String,
    env: Vec<(String, String)>,
    pub(crate) link: String,
    pub(crate) code: String,
}

/// A link and a code.
pub(crate) struct Banner {
    pub(crate) link: String,
    pub(crate) code: String,
}

impl Relay {
    /// Starts a relay on a fresh folder with these further settings.
    pub(crate) fn start(env: &[(&str, &str)]) -> Self {
        let data = tempfile::tempdir().unwrap();
        let (listen, private) = (free_address(), free_address());
        let env: Vec<(String, String)> = env.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        let (child, said) = spawn_by(Command::new(PROGRAM), data.path(), &listen, &private, &env)
            .unwrap_or_else(|(code, said)| panic!("the relay ended before it listened, {code:?}: {said}"));
        let Banner { link, code } = banner(&said).expect("the first start prints an invite");
        Self {
            data,
            child,
            listen,
            private,
            env,
            link,
            code,
        }
    }

    pub(crate) fn url(&self) -> RelayUrl {
        let scheme = if self.env.iter().any(|(k, v)| k == "WEALD_RELAY_TLS" && v == "dev") {
            "wss"
        } else {
            "ws"
        };
        format!("{scheme}://{}", self.listen).parse().unwrap()
    }

    /// Where clients connect to.
    pub(crate) fn address(&self) -> String {
        self.listen.clone()
    }

    /// A setting of the next start.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.env.retain(|(known, _)| known != name);
        self.env.push((name.into(), value.into()));
    }

    /// Its private listener.
    pub(crate) fn private_address(&self) -> String {
        self.private.clone()
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }

    /// A new process on the same folder and ports.
    pub(crate) fn restart(&mut self) {
        self.try_restart()
            .unwrap_or_else(|(code, said)| panic!("the relay ended before it listened, {code:?}: {said}"));
    }

    /// The same; if it ends before it listens, its exit code and what it said on stderr.
    pub(crate) fn try_restart(&mut self) -> Result<(), (Option<i32>, String)> {
        self.try_restart_by(Command::new(PROGRAM))
    }

    fn try_restart_by(&mut self, command: Command) -> Result<(), (Option<i32>, String)> {
        (self.child, _) = spawn_by(command, self.data.path(), &self.listen, &self.private, &self.env)?;
        Ok(())
    }

    /// SIGKILL, then a new process on the same folder and ports.
    pub(crate) fn kill_and_restart(&mut self) {
        self.kill();
        self.restart();
    }

    /// SIGTERM, its end, then a new process.
    pub(crate) fn restart_cleanly(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
        self.restart();
    }

    /// The same after `limits`, words for the shell such as `ulimit -f 100`.
    pub(crate) fn kill_and_restart_in(&mut self, limits: &str) {
        self.kill();
        self.try_restart_by(shell(limits)).unwrap();
    }

    /// SIGKILL, then a start that must not succeed: its exit code and what it said on stderr.
    pub(crate) fn kill_and_fail_to_start(&mut self) -> (Option<i32>, String) {
        self.kill();
        self.try_restart().expect_err("it must not start")
    }

    /// The same after `limits`.
    pub(crate) fn kill_and_fail_to_start_in(&mut self, limits: &str) -> (Option<i32>, String) {
        self.kill();
        self.try_restart_by(shell(limits)).expect_err("it must not start")
    }

    /// A line of /metrics, by its name and labels; 0 if it isn't there.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let page = self.private("/metrics");
        let value = page
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map_or(0, |value| value.trim().parse().unwrap())
    }

    /// Founds the first workspace and admits `members`.
    pub(crate) async fn found(&self, members: &[PublicKey]) -> (Workspace, Identity) {
        let banner = Banner {
            link: self.link.clone(),
            code: self.code.clone(),
        };
        self.found_with(&banner, members).await
    }

    pub(crate) async fn found_with(&self, banner: &Banner, members: &[PublicKey]) -> (Workspace, Identity) {
        let (founder, recovery) = (Identity::generate(), Identity::generate());
        let link: InviteLink = banner.link.parse().unwrap();
        let root = GroupId(Identity::generate().public().0);
        let founding =
            Founding::new(self.endpoint(), &link, &banner.code, root).members(members.iter().copied());
        (
            founding.found(&founder, &recovery.public()).await.unwrap(),
            founder,
        )
    }

    /// Where it is and, under TLS, whose certificate to trust.
    pub(crate) fn endpoint(&self) -> Endpoint {
        let url = self.url();
        match std::fs::read(self.data.path().join("dev-cert.pem")) {
            Ok(pem) => Endpoint {
                url,
                tls: Some(Tls::ca_pem(&pem).unwrap()),
            },
            Err(_) => url.into(),
        }
    }

    pub(crate) fn client(&self, workspace: &Workspace, identity: &Identity) -> (Client, Arc<MemoryStore>) {
        let store = Arc::new(MemoryStore::new());
        let client = Client::builder(self.endpoint(), identity.clone())
            .groups([workspace.root()])
            .store(store.clone());
        (client.start().unwrap(), store)
    }

    /// Another command of the program, on this relay's folder.
    pub(crate) fn prepare(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(arguments);
        settings(
            &mut command,
            self.data.path(),
            &self.listen,
            &self.private,
            &self.env,
        );
        command
    }

    /// Runs it; answers what it printed.
    pub(crate) fn command(&self, arguments: &[&str]) -> String {
        let done = self.prepare(arguments).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }

    /// A document of the private listener.
    pub(crate) fn private(&self, path: &str) -> String {
        self.private_with(path, "")
    }

    /// The same for whoever has this token.
    pub(crate) fn private_as(&self, token: &str, path: &str) -> String {
        self.private_with(path, &format!("Authorization: Bearer {token}\r\n"))
    }

    fn private_with(&self, path: &str, header: &str) -> String {
        use std::io::Write;
        let mut stream = std::net::TcpStream::connect(&self.private).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: relay\r\n{header}Connection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Link and code among lines of a first start.
pub(crate) fn banner(lines: &[String]) -> Option<Banner> {
    let word = |label: &str| {
        let line = lines.iter().find(|l| l.contains(label))?;
        line.split_whitespace().last().map(str::to_owned)
    };
    Some(Banner {
        link: word("invite link")?,
        code: word("invite code")?,
    })
}

pub(crate) fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string()
}

pub(crate) fn settings(
    command: &mut Command,
    data: &Path,
    listen: &str,
    private: &str,
    env: &[(String, String)],
) {
    command
        .env_clear()
        .env("WEALD_RELAY_LISTEN", listen)
        .env("WEALD_RELAY_OBSERVABILITY_LISTEN", private)
        .env("WEALD_RELAY_HOSTNAME", "relay.example")
        .env("DROVER_DATA_DIR", data)
        // What the tests themselves are run with: all of them pass over each driver.
        .envs(std::env::var_os("DROVER_IO").map(|io| ("DROVER_IO", io)))
        .envs(env.iter().map(|(k, v)| (k, v)))
        .current_dir(data);
}

/// The program after these words of the shell.
fn shell(limits: &str) -> Command {
    let mut command = Command::new("sh");
    let script = format!("{limits}; exec \"$0\" \"$@\"");
    command.args(["-c", &script, PROGRAM]);
    command
}

/// Starts the program and waits until it says that it listens; answers what it said before. If it ends instead, its exit
/// code and what it said on stderr.
fn spawn_by(
    mut command: Command,
    data: &Path,
    listen: &str,
    private: &str,
    env: &[(String, String)],
) -> Result<(Child, Vec<String>), (Option<i32>, String)> {
    command
        .arg("serve")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    settings(&mut command, data, listen, private, env);
    let mut child = command.spawn().unwrap();
    let mut stderr = child.stderr.take().unwrap();
    // Neither pipe must fill up.
    let errors = std::thread::spawn(move || {
        let mut said = String::new();
        let mut line = [0; 4096];
        while let Ok(read @ 1..) = stderr.read(&mut line) {
            let text = String::from_utf8_lossy(&line[..read]).into_owned();
            eprint!("{text}");
            said += &text;
        }
        said
    });
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut said = Vec::new();
    for line in lines.by_ref() {
        let line = line.unwrap();
        if line.contains("wealdrelay listening") {
            std::thread::spawn(move || lines.for_each(drop));
            return Ok((child, said));
        }
        said.push(line);
    }
    let ended = child.wait().unwrap();
    Err((ended.code(), errors.join().unwrap()))
}
