//! Binding the public port, once per shard, and accepting when the process is out of descriptors.

use crate::config::BindError;
use socket2::{Domain, Protocol, Socket, Type};
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::thread;
use std::time::Duration;

/// Connections the kernel may hold ready for us, per shard. A whole fleet can come back in the same second.
const BACKLOG: i32 = 4096;
/// How long accepting pauses once the descriptors are used up.
pub(crate) const BACK_OFF_MS: u64 = 100;
/// How many waiting connections are closed with the spare descriptor before backing off.
const DRAINED_MAX: usize = 64;

/// How often a port that is taken is tried again, and how long that waits in between. A relay that was killed has its port
/// for as long as the kernel takes its io_uring apart, which is after its parent was told of its end: 6 to 9 ms with 50
/// connections.
const TAKEN_TRIES: u32 = 100;
const TAKEN_PAUSE: Duration = Duration::from_millis(10);

/// Binds one listener per shard to the same address. Another process on it is an error, although sharing the port
/// between our own shards would let the kernel allow that too; but one that is just ending is waited for, a second at
/// most.
pub(crate) fn bind(listen: &str, shards: usize) -> Result<(Vec<TcpListener>, SocketAddr), BindError> {
    bind_patiently(listen, shards, || thread::sleep(TAKEN_PAUSE))
}

fn bind_patiently(
    listen: &str,
    shards: usize,
    mut pause: impl FnMut(),
) -> Result<(Vec<TcpListener>, SocketAddr), BindError> {
    let is_taken = |error: &BindError| match error {
        BindError::Listen { source, .. } => source.kind() == io::ErrorKind::AddrInUse,
        _ => false,
    };
    for _ in 0..TAKEN_TRIES {
        match bind_once(listen, shards) {
            Err(error) if is_taken(&error) => pause(),
            bound => return bound,
        }
    }
    bind_once(listen, shards)
}

fn bind_once(listen: &str, shards: usize) -> Result<(Vec<TcpListener>, SocketAddr), BindError> {
    let failed = |source| BindError::Listen {
        listen: listen.to_owned(),
        source,
    };
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in listen.to_socket_addrs().map_err(failed)? {
        match bind_all(address, shards) {
            Ok(bound) => return Ok(bound),
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}

fn bind_all(address: SocketAddr, shards: usize) -> io::Result<(Vec<TcpListener>, SocketAddr)> {
    // Without SO_REUSEPORT the kernel refuses if anybody listens there.
    let probe = socket(address)?;
    probe.bind(&address.into())?;
    drop(probe);
    let mut address = address;
    let mut listeners = Vec::with_capacity(shards);
    for _ in 0..shards.max(1) {
        let socket = socket(address)?;
        #[cfg(unix)]
        socket.set_reuse_port(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let listener = TcpListener::from(socket);
        // Port 0 becomes the port the first one got.
        address = listener.local_addr()?;
        listeners.push(listener);
    }
    Ok((listeners, address))
}

fn socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A restart finds connections of its predecessor in TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    // Linux hands this on to the connections that are accepted.
    socket.set_tcp_nodelay(true)?;
    Ok(socket)
}

/// A descriptor held in reserve. When there are no others, giving it up lets waiting connections be accepted and
/// closed, so that their peers learn it at once and the listener does not stay ready for ever.
pub(crate) struct Spare(Option<File>);

impl Spare {
    pub(crate) fn new() -> Self {
        Self(File::open("/dev/null").ok())
    }

    /// Turns away what waits, as far as the reserve allows. `turn_away` accepts a connection and closes it. Returns how
    /// many, and whether none is left.
    pub(crate) fn turn_away(&mut self, mut turn_away: impl FnMut() -> io::Result<Option<()>>) -> (u64, bool) {
        let (mut turned_away, mut none_left) = (0, false);
        self.0 = None;
        for _ in 0..DRAINED_MAX {
            match turn_away() {
                Ok(Some(())) => {}
                Ok(None) => {
                    none_left = true;
                    break;
                }
                Err(_) => break,
            }
            turned_away += 1;
        }
        *self = Self::new();
        (turned_away, none_left)
    }
}

/// Whether accepting failed because there is no descriptor left, in the process or in the system.
pub(crate) fn is_descriptor_limit(error: &io::Error) -> bool {
    // EMFILE and ENFILE, the same numbers on every Unix.
    matches!(error.raw_os_error(), Some(24 | 23))
}

/// Whether accepting failed only for the connection at hand, which its peer has given up.
pub(crate) fn is_about_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_share_the_port_that_was_free_and_nobody_else_gets_in() {
        let (listeners, address) = bind("127.0.0.1:0", 3).unwrap();
        assert_ne!(address.port(), 0);
        assert!(
            listeners
                .iter()
                .all(|listener| listener.local_addr().unwrap() == address)
        );
        assert!(matches!(
            bind(&address.to_string(), 3),
            Err(BindError::Listen { .. })
        ));
        drop(listeners);
        assert!(bind(&address.to_string(), 1).is_ok());
    }

    #[test]
    fn a_port_of_another_listener_is_taken() {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(bind(&other.local_addr().unwrap().to_string(), 2).is_err());
        assert!(bind("no address", 1).is_err());
    }

    #[test]
    fn a_listener_that_is_just_ending_is_waited_for() {
        let mut ending = Some(TcpListener::bind("127.0.0.1:0").unwrap());
        let address = ending.as_ref().unwrap().local_addr().unwrap().to_string();
        let mut tries = 0;
        let bound = bind_patiently(&address, 2, || {
            tries += 1;
            if tries == 2 {
                ending = None;
            }
        });
        assert!(bound.is_ok());
        assert_eq!(tries, 2);
    }
}
