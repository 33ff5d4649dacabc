//! The relay as a process: started, killed, started again on the same folder.

use drover_client::wire::id::{GroupId, PublicKey};
use drover_client::{Client, Founding, Identity, InviteLink, MemoryStore, RelayUrl, Workspace};
use std::io::{BufRead, BufReader};
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
        let (child, said) = spawn(data.path(), &listen, &private, &env);
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
        self.address().parse().unwrap()
    }

    /// Its URL in words.
    pub(crate) fn address(&self) -> String {
        let scheme = if self.env.iter().any(|(k, v)| k == "WEALD_RELAY_TLS" && v == "dev") {
            "wss"
        } else {
            "ws"
        };
        format!("{scheme}://{}", self.listen)
    }

    /// SIGKILL, then a new process on the same folder and ports.
    pub(crate) fn kill_and_restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        (self.child, _) = spawn(self.data.path(), &self.listen, &self.private, &self.env);
    }

    /// The same after `limits`, words for the shell such as `ulimit -f 100`.
    pub(crate) fn kill_and_restart_in(&mut self, limits: &str) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let mut command = Command::new("sh");
        let script = format!("{limits}; exec \"$0\" \"$@\"");
        command.args(["-c", &script, PROGRAM]);
        (self.child, _) = spawn_by(command, self.data.path(), &self.listen, &self.private, &self.env);
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
    pub(crate) fn endpoint(&self) -> drover_client::Endpoint {
        let certificate = self.data.path().join("dev-cert.pem");
        crate::shards::endpoint(self.url(), &certificate)
    }

    pub(crate) fn client(&self, workspace: &Workspace, identity: &Identity) -> (Client, Arc<MemoryStore>) {
        let store = Arc::new(MemoryStore::new());
        let client = Client::builder(self.endpoint(), identity.clone())
            .groups([workspace.root()])
            .store(store.clone());
        (client.start().unwrap(), store)
    }

    /// Runs another command of the program against this relay's folder; answers what it printed.
    pub(crate) fn command(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(PROGRAM);
        command.args(arguments);
        settings(
            &mut command,
            self.data.path(),
            &self.listen,
            &self.private,
            &self.env,
        );
        let done = command.output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }

    /// A document of the private listener.
    pub(crate) fn private(&self, path: &str) -> String {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(&self.private).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: relay\r\nConnection: close\r\n\r\n"
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
        .envs(env.iter().map(|(k, v)| (k, v)))
        .current_dir(data);
}

/// Starts the program and waits until it says that it listens; answers what it said before.
fn spawn(data: &Path, listen: &str, private: &str, env: &[(String, String)]) -> (Child, Vec<String>) {
    spawn_by(Command::new(PROGRAM), data, listen, private, env)
}

fn spawn_by(
    mut command: Command,
    data: &Path,
    listen: &str,
    private: &str,
    env: &[(String, String)],
) -> (Child, Vec<String>) {
    command.arg("serve").stdin(Stdio::null()).stdout(Stdio::piped());
    settings(&mut command, data, listen, private, env);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut said = Vec::new();
    for line in lines.by_ref() {
        let line = line.unwrap();
        if line.contains("wealdrelay listening") {
            std::thread::spawn(move || lines.for_each(drop)); // it must not block on a full pipe
            return (child, said);
        }
        said.push(line);
    }
    let ended = child.wait().unwrap();
    panic!("the relay ended before it listened, {ended}: {said:?}");
}
