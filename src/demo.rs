//! `drover demo`: a relay in a temporary folder and the devices of one small team that talk through it. Each step says
//! what happened; the last one says what the relay could see of it. The relay is a process of its own, started as
//! `drover serve` would be, so that it can be killed.

use crate::cli::Failure;
use crate::output::Output;
use anyhow::{Context, bail};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use drover_client::wire::error::Code;
use drover_client::wire::id::GroupId;
use drover_client::{
    Client, Connection, Cursor, Event, Founding, Hello, Identity, InviteLink, RelayUrl, Reservation,
    SealedEnvelope, Subscription, Workspace, invites, joining,
};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Longer than any machine should take.
const PATIENCE: Duration = Duration::from_secs(60);
/// A word that stands in every message, so that it can be looked for where it must not be.
const SENTINEL: &str = "the launch code is swordfish";

/// Runs the demonstration and tells it to `out`.
///
/// # Errors
/// 69 if anything in it fails.
pub(crate) fn demo(out: &mut Output<'_>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let runtime =
        runtime.map_err(|error| Failure::unavailable(format!("cannot start the runtime: {error}")))?;
    let shown = runtime.block_on(async { tokio::time::timeout(PATIENCE, show(out)).await });
    runtime.shutdown_background();
    match shown {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) if out.is_closed() => Ok(()),
        Ok(Err(error)) => Err(Failure::unavailable(format!("demo: {error:#}"))),
        Err(_) => Err(Failure::unavailable("demo: it took longer than a minute")),
    }
}

async fn show(out: &mut Output<'_>) -> anyhow::Result<()> {
    let mut relay = Relay::start()?;
    writeln!(
        out,
        "1. A relay serves on {}. Its first start printed an invite, the code only this once:\n",
        relay.url
    )?;
    writeln!(out, "     {}\n     {}\n", relay.link, relay.code)?;

    let [laptop, phone, tablet, recovery] = std::array::from_fn(|_| Identity::generate());
    let team = GroupId(Identity::generate().public().0);
    let link: InviteLink = relay.link.parse()?;
    let founding = Founding::new(relay.url.clone(), &link, &relay.code, team);
    let mut workspace = founding
        .found(&laptop, &recovery.public())
        .await
        .context("founding")?;
    let mut desk = relay.client(&laptop, team)?;
    publish(&mut workspace, &mut desk, &laptop, |set| {
        set.add(&phone.public()).add(&tablet.public());
    })
    .await?;
    writeln!(
        out,
        "2. The laptop founded a workspace with it and admitted phone and tablet: access set version 1.\n"
    )?;

    // A real team agrees on this key with MLS; here the devices simply share one.
    let sealer = Sealer::new()?;
    let pocket = relay.client(&phone, team)?;
    let mut on_phone = pocket.subscribe(team, Cursor::Stored).await?;
    let couch = relay.client(&tablet, team)?;
    let mut on_tablet = couch.subscribe(team, Cursor::Stored).await?;
    let stored = sealer.send(&desk, team, SENTINEL).await?;
    writeln!(
        out,
        "3. The laptop sent a sealed message; the relay stored it durably as number {stored}."
    )?;
    writeln!(
        out,
        "     phone opened:  {:?}",
        sealer.receive(&mut on_phone).await?
    )?;
    writeln!(
        out,
        "     tablet opened: {:?}\n",
        sealer.receive(&mut on_tablet).await?
    )?;

    publish(&mut workspace, &mut desk, &laptop, |set| {
        set.remove(&tablet.public());
    })
    .await?;
    refused(&relay, &tablet, team).await?;
    writeln!(
        out,
        "4. The laptop published a set without the tablet: its socket was closed at once, and it is refused"
    )?;
    writeln!(out, "   when it comes back.\n")?;
    drop((couch, on_tablet));

    sealer
        .send(&desk, team, "sent just before the power went")
        .await?;
    relay.kill_and_restart()?;
    let stored = sealer.send(&desk, team, "and after it came back").await?;
    writeln!(
        out,
        "5. The relay was killed (SIGKILL) and started again. The devices came back by themselves; the next"
    )?;
    writeln!(
        out,
        "   message is number {stored}, and nothing that was acknowledged is missing:"
    )?;
    writeln!(
        out,
        "     phone opened:  {:?}",
        sealer.receive(&mut on_phone).await?
    )?;
    writeln!(
        out,
        "     phone opened:  {:?}\n",
        sealer.receive(&mut on_phone).await?
    )?;

    let guest = Identity::generate();
    let seen = invite(&relay, &mut desk, &laptop, &guest, team).await?;
    writeln!(
        out,
        "6. The laptop issued an invite; a new device redeemed link and code, got the sealed bundle of the"
    )?;
    writeln!(
        out,
        "   group ({seen} bytes) and committed its scope. It is admitted until its entry is in the set.\n"
    )?;

    let (replacement, successor) = (Identity::generate(), Identity::generate());
    let set = workspace.recovery_rotation(&recovery, &replacement.public(), &successor.public(), [])?;
    let mut spare = Connection::connect(&relay.url.clone().into(), &recovery, &Hello::groups([team])).await?;
    workspace.publish(&mut spare, set).await.context("recovery")?;
    let found = relay.client(&replacement, team)?;
    let mut on_replacement = found.subscribe(team, Cursor::Stored).await?;
    let first = sealer.receive(&mut on_replacement).await?;
    writeln!(
        out,
        "7. The laptop was lost. The recovery phrase's key brought in a replacement, once, additively and on"
    )?;
    writeln!(out, "   probation. The replacement reads the whole history:")?;
    writeln!(out, "     replacement opened: {first:?}\n")?;

    let (files, bytes, hits) = search(relay.data.path(), SENTINEL.as_bytes())?;
    writeln!(
        out,
        "8. What the relay could see: one group as 32 opaque bytes, the sizes and times of its envelopes, hashes"
    )?;
    writeln!(
        out,
        "   of six devices' keys, one invite's token. What it could not: a search of its whole store ({files} files,"
    )?;
    writeln!(
        out,
        "   {bytes} bytes) for the text of message 1 finds it {hits} times."
    )?;
    anyhow::ensure!(hits == 0, "the store holds plaintext");
    for client in [desk, pocket, found] {
        client.close().await;
    }
    Ok(())
}

/// Publishes the next access set with these changes.
async fn publish(
    workspace: &mut Workspace,
    client: &mut Client,
    signer: &Identity,
    change: impl FnOnce(&mut drover_client::SetDraft),
) -> anyhow::Result<()> {
    let mut draft = workspace.draft();
    change(&mut draft);
    let set = draft.sign(signer)?;
    workspace
        .publish(client, set)
        .await
        .context("publishing an access set")?;
    Ok(())
}

/// Connects as a device that must not get in.
async fn refused(relay: &Relay, device: &Identity, group: GroupId) -> anyhow::Result<()> {
    match Connection::connect(&relay.url.clone().into(), device, &Hello::groups([group])).await {
        Err(error) if error.code() == Some(Code::WriterNotInAccessSet) => Ok(()),
        Err(error) => Err(error).context("another refusal than expected"),
        Ok(_) => bail!("a revoked device got in"),
    }
}

/// Issues an invite and redeems it as another device; answers the size of the bundle it got.
async fn invite(
    relay: &Relay,
    desk: &mut Client,
    issuer: &Identity,
    guest: &Identity,
    group: GroupId,
) -> anyhow::Result<usize> {
    let bundle = joining::SealedBundle {
        group,
        epoch: 1,
        ct: vec![7; 96].into(),
    };
    let draft = invites::InviteDraft {
        root: group,
        seats: 1,
        life_ms: 3_600_000,
        capabilities: vec!["chat.read".into(), "chat.write".into()],
        update_pub: [7; 32],
        bundles: vec![bundle],
    };
    let issued = invites::create_invite(desk, issuer, &draft)
        .await
        .context("creating an invite")?;
    let mut door = Connection::open(&relay.url.clone().into()).await?;
    let seat = Reservation::reserve(&mut door, issued.token, &issued.code, guest)
        .await
        .context("reserving")?;
    let bundles = seat.bundles(&mut door, group).await?;
    seat.commit(&mut door, group).await.context("committing")?;
    Connection::connect(&relay.url.clone().into(), guest, &Hello::groups([group]))
        .await?
        .close()
        .await;
    Ok(bundles.first().map_or(0, |b| b.ct.len()))
}

/// One shared key that seals what is sent.
struct Sealer(LessSafeKey);

impl Sealer {
    fn new() -> anyhow::Result<Self> {
        let mut key = [0; 32];
        getrandom::fill(&mut key)?;
        let key = UnboundKey::new(&AES_256_GCM, &key).map_err(|_| anyhow::anyhow!("no such key"))?;
        Ok(Self(LessSafeKey::new(key)))
    }

    async fn send(&self, client: &Client, group: GroupId, text: &str) -> anyhow::Result<u64> {
        let mut nonce = [0; 12];
        getrandom::fill(&mut nonce)?;
        let mut sealed = text.as_bytes().to_vec();
        self.0
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut sealed)
            .map_err(|_| anyhow::anyhow!("sealing failed"))?;
        let ct = [nonce.as_slice(), &sealed].concat();
        Ok(client.send(SealedEnvelope::new(group, 1, ct)?).await?.seq)
    }

    /// The next envelope, opened.
    async fn receive(&self, events: &mut Subscription) -> anyhow::Result<String> {
        loop {
            if let Event::Envelope(envelope) = events.next().await? {
                let (nonce, sealed) = envelope.ct().split_at_checked(12).context("a short ciphertext")?;
                let mut sealed = sealed.to_vec();
                let nonce =
                    Nonce::try_assume_unique_for_key(nonce).map_err(|_| anyhow::anyhow!("no nonce"))?;
                let text = self.0.open_in_place(nonce, Aad::empty(), &mut sealed);
                let text = text.map_err(|_| anyhow::anyhow!("a message that does not open"))?;
                return Ok(String::from_utf8_lossy(text).into_owned());
            }
        }
    }
}

/// The relay's process and its folder.
struct Relay {
    data: TempDir,
    child: Child,
    listen: String,
    url: RelayUrl,
    link: String,
    code: String,
}

impl Relay {
    fn start() -> anyhow::Result<Self> {
        let data = tempfile::tempdir()?;
        let listen = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let (child, banner) = spawn(data.path(), &listen)?;
        let word = |label: &str| {
            let line = banner.iter().find(|line| line.contains(label));
            let word = line.and_then(|line| line.split_whitespace().last());
            word.map(str::to_owned)
                .with_context(|| format!("the relay printed no {label}"))
        };
        let (link, code) = (word("invite link")?, word("invite code")?);
        let url = format!("ws://{listen}").parse()?;
        Ok(Self {
            data,
            child,
            listen,
            url,
            link,
            code,
        })
    }

    fn client(&self, identity: &Identity, group: GroupId) -> anyhow::Result<Client> {
        Ok(Client::builder(self.url.clone(), identity.clone())
            .groups([group])
            .start()?)
    }

    fn kill_and_restart(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        (self.child, _) = spawn(self.data.path(), &self.listen)?;
        Ok(())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a relay with nothing of this machine's settings; answers the lines it said before it was listening.
fn spawn(data: &Path, listen: &str) -> anyhow::Result<(Child, Vec<String>)> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg("serve")
        .env_clear()
        .env("WEALD_RELAY_LISTEN", listen)
        .env("WEALD_RELAY_OBSERVABILITY_LISTEN", "127.0.0.1:0")
        .env("DROVER_DATA_DIR", data)
        .current_dir(data)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let output = BufReader::new(child.stdout.take().context("the relay has no output")?);
    let mut lines = output.lines();
    let mut said = Vec::new();
    for line in lines.by_ref() {
        let line = line?;
        if line.contains("wealdrelay listening") {
            // It must not block on a full pipe.
            std::thread::spawn(move || lines.for_each(drop));
            return Ok((child, said));
        }
        said.push(line);
    }
    bail!("the relay ended before it was listening: {}", said.join(" / "))
}

/// Looks for `needle` in every file below `folder`: files, bytes, hits.
fn search(folder: &Path, needle: &[u8]) -> anyhow::Result<(usize, usize, usize)> {
    let (mut files, mut bytes, mut hits) = (0, 0, 0);
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let (f, b, h) = if path.is_dir() {
            search(&path, needle)?
        } else {
            let content = std::fs::read(&path)?;
            let found = content
                .windows(needle.len())
                .filter(|window| *window == needle)
                .count();
            (1, content.len(), found)
        };
        (files, bytes, hits) = (files + f, bytes + b, hits + h);
    }
    Ok((files, bytes, hits))
}
