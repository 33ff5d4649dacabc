//! Two devices of a new workspace: the first founds it on a fresh relay, both exchange a commit and a few envelopes.
//!
//! ```text
//! cargo run -p drover-client --example two_devices -- ws://127.0.0.1:8443 LINK CODE
//! ```
//!
//! LINK and CODE are printed by a relay that starts for the first time. Ciphertexts are stand-ins: sealing is MLS's job.

use drover_client::wire::id::GroupId;
use drover_client::{
    Client, Cursor, Event, Founding, Identity, InviteLink, RelayUrl, SealedEnvelope, SetDraft,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, link, code] = arguments.as_slice() else {
        return Err("usage: two_devices RELAY_URL INVITE_LINK INVITE_CODE".into());
    };
    let url: RelayUrl = url.parse()?;
    let link: InviteLink = link.parse()?;

    let (laptop, phone, recovery) = (Identity::generate(), Identity::generate(), Identity::generate());
    // A group's id is chosen by its creator: any 32 bytes nobody else has. A fresh public key is.
    let root = GroupId(Identity::generate().public().0);

    // The laptop founds the workspace and is its only authorizer.
    let mut workspace = Founding::new(url.clone(), &link, code, root)
        .found(&laptop, &recovery.public())
        .await?;
    println!("founded; access set version {}", workspace.head().version);

    // It admits the phone with the next access set.
    let mut laptop_client = Client::builder(url.clone(), laptop.clone())
        .groups([root])
        .start()?;
    let mut next: SetDraft = workspace.draft();
    next.add(&phone.public());
    let set = next.sign(&laptop)?;
    workspace.publish(&mut laptop_client, set).await?;
    println!("admitted the phone; version {}", workspace.head().version);

    // The phone subscribes before anything is written, and again sees everything that was.
    let phone_client = Client::builder(url, phone).groups([root]).start()?;
    let mut events = phone_client.subscribe(root, Cursor::Stored).await?;

    laptop_client
        .publish_handshake(root, &b"an MLS commit"[..])
        .await?;
    for n in 0..3u8 {
        let ack = laptop_client
            .send(SealedEnvelope::new(root, 1, vec![n; 16])?)
            .await?;
        println!("laptop: stored under cursor {}", ack.seq);
    }

    let mut envelopes = 0;
    while envelopes < 3 {
        match events.next().await? {
            Event::Handshake { seq, message } => println!("phone: commit {seq}, {} bytes", message.len()),
            Event::Envelope(envelope) => {
                envelopes += 1;
                println!("phone: {envelope:?}");
            }
            other => println!("phone: {other:?}"),
        }
    }
    laptop_client.close().await;
    phone_client.close().await;
    Ok(())
}
