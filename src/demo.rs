//! `drover demo`: a relay in a temporary folder and two devices that talk through it, with a restart in the middle. Shows
//! what a relay does without anything to set up; ciphertexts are stand-ins, since sealing is not a relay's business.

use crate::cli::Failure;
use crate::config::Config;
use crate::serve::{self, Server};
use drover_client::wire::id::GroupId;
use drover_client::{
    Client, Cursor, Event, Founding, Identity, InviteLink, RelayUrl, SealedEnvelope, Subscription,
};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longer than any machine should take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Envelopes sent one after another to time an acknowledgement.
const TIMED: usize = 200;

/// Runs the demonstration and tells it to `out`.
///
/// # Errors
/// 69 if anything in it fails.
pub(crate) fn demo(out: &mut dyn Write) -> Result<(), Failure> {
    let runtime = serve::runtime()?;
    let shown = runtime.block_on(async { tokio::time::timeout(PATIENCE, show(out)).await });
    runtime.shutdown_background();
    match shown {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(Failure::unavailable(format!("demo: {error:#}"))),
        Err(_) => Err(Failure::unavailable("demo: it took longer than a minute")),
    }
}

async fn show(out: &mut dyn Write) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut banner = Vec::new();
    let server = start(folder.path(), "127.0.0.1:0", &mut banner).await?;
    let address = server.public.to_string();
    let banner = String::from_utf8(banner)?;
    writeln!(
        out,
        "A relay serves on {address}. At its first start it printed an invite, the code only this once:\n\n{banner}"
    )?;

    let url: RelayUrl = format!("ws://{address}").parse()?;
    let [link, code, _] = last_words(&banner)?;
    let link: InviteLink = link.parse()?;
    let (laptop, phone, recovery) = (Identity::generate(), Identity::generate(), Identity::generate());
    let group = GroupId(Identity::generate().public().0);
    let mut workspace = Founding::new(url.clone(), &link, code, group)
        .found(&laptop, &recovery.public())
        .await?;
    let mut sender = Client::builder(url.clone(), laptop.clone())
        .groups([group])
        .start()?;
    let mut next = workspace.draft();
    next.add(&phone.public());
    let set = next.sign(&laptop)?;
    workspace.publish(&mut sender, set).await?;
    writeln!(
        out,
        "The laptop founded the workspace with it and admitted the phone (access set version 1).\n"
    )?;

    writeln!(out, "The laptop sends while the phone is away:")?;
    send(&sender, group, 3, out).await?;
    let receiver = Client::builder(url, phone).groups([group]).start()?;
    let mut events = receiver.subscribe(group, Cursor::Stored).await?;
    writeln!(out, "The phone connects and asks for what it has missed:")?;
    receive(&mut events, 3, out).await?;

    server.stop().await;
    let server = start(folder.path(), &address, &mut Vec::new()).await?;
    writeln!(
        out,
        "\nThe relay was stopped and started again on the same store; both devices reconnect by themselves:"
    )?;
    send(&sender, group, 1, out).await?;
    receive(&mut events, 1, out).await?;

    let mut times = Vec::with_capacity(TIMED);
    for n in 0..TIMED {
        let begun = Instant::now();
        sender.send(envelope(group, n, 1024)?).await?;
        times.push(begun.elapsed());
    }
    times.sort();
    let (median, slow) = (times[TIMED / 2], times[TIMED * 99 / 100]);
    writeln!(
        out,
        "\n{TIMED} envelopes of 1 KiB, each durable before the next: {median:.1?} median, {slow:.1?} at the 99th percentile."
    )?;
    sender.close().await;
    receiver.close().await;
    server.stop().await;
    Ok(())
}

/// A relay as `drover serve` would run it, with nothing of this machine's settings.
async fn start(folder: &Path, listen: &str, banner: &mut Vec<u8>) -> anyhow::Result<Server> {
    let settings = [
        ("WEALD_RELAY_LISTEN", listen.into()),
        ("WEALD_RELAY_OBSERVABILITY_LISTEN", "127.0.0.1:0".into()),
        ("DROVER_DATA_DIR", folder.join("relay").into_os_string()),
    ];
    let config = Config::without_file(&settings.map(|(name, value)| (name.into(), value)).into())?;
    Server::start(config, banner)
        .await
        .map_err(|failure| anyhow::anyhow!("{failure}"))
}

/// Link, code and fingerprint of a banner.
fn last_words(banner: &str) -> anyhow::Result<[&str; 3]> {
    let words: Vec<&str> = banner
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    words
        .try_into()
        .map_err(|_| anyhow::anyhow!("the relay printed no invite"))
}

fn envelope(group: GroupId, n: usize, bytes: usize) -> Result<SealedEnvelope, drover_client::Error> {
    let mut stand_in = blake3::Hasher::new().update(&n.to_be_bytes()).finalize_xof();
    let mut ciphertext = vec![0; bytes];
    stand_in.fill(&mut ciphertext);
    SealedEnvelope::new(group, 1, ciphertext)
}

async fn send(client: &Client, group: GroupId, count: usize, out: &mut dyn Write) -> anyhow::Result<()> {
    for n in 0..count {
        let envelope = envelope(group, n + 1000 * count, 64)?;
        let ack = client.send(envelope).await?;
        writeln!(
            out,
            "  laptop: sent 64 sealed bytes, stored as number {}",
            ack.seq
        )?;
    }
    Ok(())
}

async fn receive(events: &mut Subscription, count: usize, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut left = count;
    while left > 0 {
        if let Event::Envelope(envelope) = events.next().await? {
            left -= 1;
            writeln!(
                out,
                "  phone:  got number {}, {} sealed bytes",
                envelope.seq(),
                envelope.ct().len()
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    /// The README's first command.
    #[test]
    fn the_demonstration_runs() {
        let mut out = Vec::new();
        super::demo(&mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(out.contains("got number 4") && out.contains("median"), "{out}");
    }
}
