//! Whether the kernel, the container and the limits around this process allow everything the driver does. Tried out
//! on a connection of its own: a version says little, since distributions bring features back and containers forbid
//! them.

use super::Uring;
use super::ring::{Ring, Sizes};
use crate::driver::{Driver, Ready, Waker};
use drover_storage::handoff::Wake as _;
use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// How long a step may take. Loopback answers within microseconds.
const PATIENCE: Duration = Duration::from_secs(2);
/// Larger than what sockets buffer.
const TOO_MUCH: usize = 64 << 20;

/// Does once all that the driver does, with as many rings as there are shards.
///
/// # Errors
/// What is missing, with the system's words.
pub(crate) fn probe(shards: usize, sockets: u32) -> Result<(), String> {
    // On a thread of its own, since a ring belongs to the one it was made on.
    let tried = std::thread::spawn(move || attempt(shards, sockets)).join();
    tried.unwrap_or_else(|_| Err("the probe has failed".to_owned()))
}

fn attempt(shards: usize, sockets: u32) -> Result<(), String> {
    let mut rings = Vec::new();
    let step = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    let listener = TcpListener::bind("127.0.0.1:0").map_err(step("a listener"))?;
    let address = listener.local_addr().map_err(step("a listener"))?;
    listener.set_nonblocking(true).map_err(step("a listener"))?;
    let (waker, eventfd) = Waker::eventfd().map_err(step("an eventfd"))?;
    let mut driver = Uring::new(listener, eventfd, sockets).map_err(step("a ring with its pool"))?;

    for _ in 1..shards {
        rings.push(Ring::new(sockets, Sizes::default()).map_err(step("a ring for each shard"))?);
    }

    let mut accept = None;
    let accepted = step("multishot accept");
    let mut client = None;
    until(&mut driver, |driver, _| {
        accept = driver.accept()?;
        // Only once the kernel accepts by itself.
        if client.is_none() {
            client = Some(TcpStream::connect(address)?);
        }
        Ok(accept.is_some())
    })
    .map_err(accepted)?;
    let ((socket, _), Some(mut client)) = (accept.ok_or("multishot accept: nobody")?, client) else {
        return Err("multishot accept: nobody".to_owned());
    };
    client
        .set_read_timeout(Some(PATIENCE))
        .map_err(step("a client"))?;

    let received = step("multishot receive into a pool");
    driver.watch(socket, 0).map_err(step("multishot receive"))?;
    for round in 0..2_u8 {
        client.write_all(&[round; 3]).map_err(step("a client"))?;
        let mut bytes = Vec::new();
        until(&mut driver, |_, ready| {
            if let Some(Ready::Received { data, .. }) = ready {
                bytes.extend_from_slice(&data);
            }
            Ok(bytes.len() == 3)
        })
        .map_err(received)?;
    }

    let sent = step("a send that does not wait");
    let pieces = [IoSlice::new(b"one "), IoSlice::new(b"two")];
    let taken = driver.write(socket, &pieces).map_err(sent)?;
    let mut answer = [0; 7];
    client.read_exact(&mut answer[..taken.min(7)]).map_err(sent)?;
    if &answer != b"one two" {
        return Err("a send that does not wait: something else was sent".to_owned());
    }
    let much = vec![0; TOO_MUCH];
    let taken = driver.write(socket, &[IoSlice::new(&much)]).map_err(sent)?;
    if taken == 0 || taken >= TOO_MUCH {
        return Err("a send that does not wait: it took everything or nothing".to_owned());
    }
    let reader = std::thread::spawn(move || {
        let mut left = taken;
        let mut chunk = vec![0; 1 << 20];
        while left > 0 {
            match client.read(&mut chunk)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                bytes => left -= bytes.min(left),
            }
        }
        Ok(client)
    });
    until(&mut driver, |_, ready| {
        Ok(matches!(ready, Some(Ready::Writable { .. })))
    })
    .map_err(step("a poll"))?;
    let client = reader.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
    let mut client = client.map_err(step("a client"))?;

    waker.wake();
    driver
        .wait(Duration::ZERO, Some(PATIENCE))
        .map_err(step("a wake-up"))?;
    let (stream, _) = driver.release(socket).map_err(step("handing a socket on"))?;
    let socket = driver.adopt(stream).map_err(step("taking a socket in"))?;
    driver.watch(socket, 1).map_err(step("taking a socket in"))?;
    client.write_all(b"x").map_err(step("a client"))?;
    until(&mut driver, |_, ready| {
        Ok(matches!(ready, Some(Ready::Received { slot: 1, .. })))
    })
    .map_err(step("taking a socket in"))?;
    driver.close(socket);
    driver
        .wait(Duration::ZERO, Some(Duration::ZERO))
        .map_err(step("closing"))?;
    match client.read(&mut [0]) {
        Ok(0) => Ok(()),
        Ok(_) => Err("closing: bytes came".to_owned()),
        Err(error) => Err(step("closing")(error)),
    }
}

/// Runs the driver until `is_done` says so.
fn until(
    driver: &mut Uring,
    mut is_done: impl FnMut(&mut Uring, Option<Ready>) -> io::Result<bool>,
) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let ready = driver.next();
        let was_ready = ready.is_some();
        if is_done(driver, ready)? {
            return Ok(());
        }
        if !was_ready {
            driver.wait(Duration::ZERO, Some(Duration::from_millis(1)))?;
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}
