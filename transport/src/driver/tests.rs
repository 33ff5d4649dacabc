//! What every driver owes the loop, over real sockets, for each of them; for `uring` a second time with queues of a few
//! entries, so that they overflow all the time.

use super::{Driver, Ready, Waker};
use crate::epoll::Epoll;
use socket2::SockRef;
use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Nothing takes as long; whoever waits so long waits for ever.
const PATIENCE: Duration = Duration::from_secs(60);

struct World<D: Driver> {
    driver: D,
    address: SocketAddr,
}

impl<D: Driver> World<D> {
    fn new(make: impl FnOnce(TcpListener) -> D) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let driver = make(listener);
        Self { driver, address }
    }

    /// Hands `each` what happens until it says that it is done.
    fn until(&mut self, mut each: impl FnMut(&mut D, Ready) -> bool) {
        let end = Instant::now() + PATIENCE;
        loop {
            while let Some(ready) = self.driver.next() {
                if each(&mut self.driver, ready) {
                    return;
                }
            }
            assert!(Instant::now() < end, "it never happens");
            self.driver
                .wait(Duration::ZERO, Some(Duration::from_millis(10)))
                .unwrap();
        }
    }

    fn accept(&mut self) -> D::Socket {
        if let Some((socket, _)) = self.driver.accept().unwrap() {
            return socket;
        }
        let mut accepted = None;
        self.until(|driver, ready| {
            assert!(matches!(ready, Ready::Accept), "{ready:?}");
            accepted = driver.accept().unwrap();
            accepted.is_some()
        });
        accepted.unwrap().0
    }

    /// A connection that is watched with this slot.
    fn open(&mut self, slot: u32) -> (TcpStream, D::Socket) {
        let client = TcpStream::connect(self.address).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let socket = self.accept();
        self.driver.watch(socket, slot).unwrap();
        (client, socket)
    }

    /// Takes bytes and sees that they are the next of [`pattern`].
    fn read_pattern(&mut self, slot: u32, from: usize, to: usize) {
        let mut at = from;
        self.until(|_, ready| {
            match ready {
                Ready::Received { slot: whose, data } => {
                    assert_eq!(whose, slot);
                    assert_eq!(data, pattern(at, data.len()), "bytes from {at} on");
                    at += data.len();
                }
                Ready::Writable { .. } => {}
                other => panic!("{other:?}"),
            }
            at >= to
        });
        assert_eq!(at, to);
    }
}

/// Bytes `from..from + len` of a sequence in which every stretch is told from its neighbours.
fn pattern(from: usize, len: usize) -> Vec<u8> {
    (from..from + len)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

/// More sockets receive in one turn than there are slots; each gets all that is its own, in order.
fn who_finds_no_slot_is_received_from_later<D: Driver>(mut world: World<D>) {
    const SOCKETS: usize = 300;
    const BYTES: usize = 40_000;
    for is_settled in [false, true] {
        let mut open: Vec<_> = (0..SOCKETS).map(|slot| world.open(slot as u32)).collect();
        for (client, socket) in &mut open {
            if is_settled {
                world.driver.settle(*socket);
            }
            client.write_all(&pattern(0, BYTES)).unwrap();
        }
        let (mut got, mut left) = (vec![0; SOCKETS], SOCKETS);
        world.until(|_, ready| {
            if let Ready::Received { slot, data } = ready {
                let at = &mut got[slot as usize];
                assert_eq!(data, pattern(*at, data.len()));
                *at += data.len();
                left -= usize::from(*at == BYTES);
            }
            left == 0
        });
        let buffers = world.driver.buffers();
        assert!(buffers.slots == 0 || buffers.starved > 0, "{buffers:?}");
        open.into_iter()
            .for_each(|(_, socket)| world.driver.close(socket));
    }
}

/// What a socket does not take at once is gone on with where it stopped.
fn a_write_goes_on_where_it_stopped<D: Driver>(mut world: World<D>) {
    const BYTES: usize = 16 << 20;
    for is_settled in [false, true] {
        let (mut client, socket) = world.open(3);
        if is_settled {
            world.driver.settle(socket);
            world.driver.keep_unsent_short(socket);
        }
        // Nobody reads until the socket is full.
        let (full, is_full) = mpsc::channel();
        let reader = thread::spawn(move || {
            is_full.recv().unwrap();
            let mut all = vec![0; BYTES];
            client.read_exact(&mut all).unwrap();
            assert!(all == pattern(0, BYTES));
            client
        });
        let all = pattern(0, BYTES);
        let (mut at, mut stops) = (0, 0);
        let mut write = |driver: &mut D| {
            while at < BYTES {
                // Pieces of all sizes, sometimes one.
                let (one, rest) = all[at..].split_at((at % 1_000).min(BYTES - at));
                let two = &rest[..rest.len().min(1 << 20)];
                let pieces = [IoSlice::new(one), IoSlice::new(two)];
                let pieces = if one.is_empty() { &pieces[1..] } else { &pieces[..] };
                let taken = driver.write(socket, pieces).unwrap();
                at += taken;
                if taken < one.len() + two.len() {
                    stops += 1;
                    return false;
                }
            }
            true
        };
        let is_all_taken = write(&mut world.driver);
        full.send(()).unwrap();
        if !is_all_taken {
            world.until(|driver, ready| {
                assert!(matches!(ready, Ready::Writable { slot: 3 }), "{ready:?}");
                write(driver)
            });
        }
        assert!(stops > 0, "it took everything at once");
        // What the driver has copied leaves while it waits.
        while !reader.is_finished() {
            world
                .driver
                .wait(Duration::ZERO, Some(Duration::from_millis(1)))
                .unwrap();
        }
        drop(reader.join().unwrap());
        world.driver.close(socket);
    }
}

/// A socket is handed on while its peer sends: no byte is lost, none comes twice.
fn a_socket_moves_amid_what_it_receives<D: Driver>(mut world: World<D>) {
    const BYTES: usize = 200_000;
    for round in 0..50 {
        let (mut client, socket) = world.open(1);
        let sending = thread::spawn(move || {
            for at in (0..BYTES).step_by(1_000) {
                client.write_all(&pattern(at, 1_000)).unwrap();
            }
            client
        });
        let (mut at, mut told) = (0, 0);
        world.until(|_, ready| {
            if let Ready::Received { data, .. } = ready {
                assert_eq!(data, pattern(at, data.len()));
                at += data.len();
                told += 1;
            }
            told > round % 5
        });
        let (stream, rest) = world.driver.release(socket).unwrap();
        assert_eq!(rest, pattern(at, rest.len()));
        at += rest.len();
        let socket = world.driver.adopt(stream).unwrap();
        world.driver.watch(socket, 2).unwrap();
        if at < BYTES {
            world.read_pattern(2, at, BYTES);
        }
        drop(sending.join().unwrap());
        world.driver.close(socket);
    }
}

/// Slots are used again at once; what is under way for a socket that was closed or handed on is not told to the next.
fn who_takes_over_a_slot_sees_nothing_of_its_last<D: Driver>(mut world: World<D>) {
    for round in 0..200 {
        let (mut old, socket) = world.open(5);
        if round % 4 >= 2 {
            world.driver.settle(socket);
        }
        for _ in 0..3 {
            world.driver.wait(Duration::ZERO, Some(Duration::ZERO)).unwrap();
        }
        let (mut new, next) = world.open(6);
        let (next, rest) = world.driver.release(next).unwrap();
        assert!(rest.is_empty());
        old.write_all(b"of the old").unwrap();
        world.driver.close(socket);
        let next = world.driver.adopt(next).unwrap();
        world.driver.watch(next, 5).unwrap();
        new.write_all(b"new").unwrap();
        let mut all = Vec::new();
        world.until(|_, ready| {
            if let Ready::Received { slot: 5, data } = ready {
                all.extend_from_slice(&data);
            }
            all.len() >= 3
        });
        assert_eq!(all, b"new");
        world.driver.close(next);
    }
}

/// A socket that is paused is read a bounded piece further, and entirely once it is resumed.
fn who_is_paused_waits<D: Driver>(mut world: World<D>) {
    const BYTES: usize = 24 << 20;
    let (mut sender, paused) = world.open(1);
    let (mut other, pinged) = world.open(2);
    world.driver.settle(paused);
    world.driver.settle(pinged);
    world.driver.pause(paused);
    let sending = thread::spawn(move || {
        sender.write_all(&pattern(0, BYTES)).unwrap();
        sender
    });
    let mut at = 0;
    for _ in 0..200 {
        other.write_all(b"p").unwrap();
        world.until(|_, ready| match ready {
            Ready::Received { slot: 1, data } => {
                assert_eq!(data, pattern(at, data.len()));
                at += data.len();
                false
            }
            Ready::Received { slot: 2, .. } => true,
            _ => false,
        });
    }
    assert!(at <= 8 << 14, "{at} bytes of a socket that is paused");
    world.driver.resume(paused);
    world.read_pattern(1, at, BYTES);
    drop(sending.join().unwrap());
}

/// The end of what a peer sends is told once, after all it sent.
fn an_end_comes_last<D: Driver>(mut world: World<D>) {
    for round in 0..40 {
        let (mut client, socket) = world.open(1);
        if round % 2 == 1 {
            world.driver.settle(socket);
        }
        let bytes = round * 3_000;
        client.write_all(&pattern(0, bytes)).unwrap();
        drop(client);
        let mut at = 0;
        world.until(|_, ready| match ready {
            Ready::Received { data, .. } => {
                assert_eq!(data, pattern(at, data.len()));
                at += data.len();
                false
            }
            Ready::Ended { slot } => slot == 1,
            Ready::Writable { .. } => false,
            other => panic!("{other:?}"),
        });
        assert_eq!(at, bytes);
        world.driver.close(socket);
    }
}

/// A reset is told, whether the socket is received from or waits to be written to, and its writes fail.
fn a_reset_is_told<D: Driver>(mut world: World<D>) {
    for is_settled in [false, true] {
        let (client, socket) = world.open(1);
        if is_settled {
            world.driver.settle(socket);
        }
        let much = vec![0; 1 << 20];
        while world.driver.write(socket, &[IoSlice::new(&much)]).unwrap() == much.len() {
            world.driver.wait(Duration::ZERO, Some(Duration::ZERO)).unwrap();
        }
        SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        world.until(|driver, ready| match ready {
            Ready::Lost { .. } | Ready::Ended { .. } => true,
            Ready::Writable { .. } => driver.write(socket, &[IoSlice::new(&much)]).is_err(),
            _ => false,
        });
        world.driver.close(socket);
    }
}

/// The end of a driver ends all that is under way: every peer sees its connection closed, and no descriptor is left.
fn the_end_of_a_driver_ends_everything<D: Driver>(mut world: World<D>) {
    let much = vec![0; 4 << 20];
    let mut clients = Vec::new();
    for slot in 0..60 {
        let (mut client, socket) = world.open(slot);
        if slot % 2 == 0 {
            world.driver.settle(socket);
        }
        match slot % 3 {
            0 => client.write_all(&pattern(0, 50_000)).unwrap(),
            1 => drop(world.driver.write(socket, &[IoSlice::new(&much)]).unwrap()),
            _ => world.driver.pause(socket),
        }
        clients.push(client);
    }
    world.driver.wait(Duration::ZERO, Some(Duration::ZERO)).unwrap();
    // One that waits to be accepted.
    clients.push(TcpStream::connect(world.address).unwrap());
    drop(world);
    for mut client in clients {
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut rest = Vec::new();
        if let Err(error) = client.read_to_end(&mut rest) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
    }
}

macro_rules! owed {
    ($name:ident, $make:expr, $($case:ident)*) => {
        mod $name {
            $(#[test]
            fn $case() {
                if let Some(make) = $make {
                    super::$case(super::World::new(make));
                }
            })*
        }
    };
}

macro_rules! each_owes {
    ($($case:ident)*) => {
        owed!(epoll, Some(super::epoll), $($case)*);
        #[cfg(target_os = "linux")]
        owed!(uring, super::linux::uring(), $($case)*);
        #[cfg(target_os = "linux")]
        owed!(uring_of_few_entries, super::linux::uring_of_few_entries(), $($case)*);
        #[cfg(target_os = "linux")]
        owed!(tokio_uring, super::linux::tokio_uring(), $($case)*);
    };
}

each_owes! {
    who_finds_no_slot_is_received_from_later
    a_write_goes_on_where_it_stopped
    a_socket_moves_amid_what_it_receives
    who_takes_over_a_slot_sees_nothing_of_its_last
    who_is_paused_waits
    an_end_comes_last
    a_reset_is_told
    the_end_of_a_driver_ends_everything
}

fn epoll(listener: TcpListener) -> Epoll {
    Epoll::new(listener).unwrap().0
}

/// Where the kernel has no io_uring that works there is nothing to test; `.ci/run` says so.
#[cfg(target_os = "linux")]
mod linux {
    use super::*;
    use crate::tokio_uring::TokioUring;
    use crate::uring::Uring;

    const SOCKETS: u32 = 1_024;

    fn works() -> bool {
        crate::uring::probe::probe(1, SOCKETS).is_ok()
    }

    pub(super) fn uring() -> Option<fn(TcpListener) -> Uring> {
        let make = |listener| {
            let (_, eventfd) = Waker::eventfd().unwrap();
            Uring::new(listener, eventfd, SOCKETS).unwrap()
        };
        works().then_some(make)
    }

    pub(super) fn uring_of_few_entries() -> Option<fn(TcpListener) -> Uring> {
        let make = |listener| {
            let (_, eventfd) = Waker::eventfd().unwrap();
            Uring::of_few_entries(listener, eventfd, SOCKETS).unwrap()
        };
        works().then_some(make)
    }

    pub(super) fn tokio_uring() -> Option<fn(TcpListener) -> TokioUring> {
        let make = |listener| TokioUring::new(listener, crate::tokio_uring::waker().1, true).unwrap();
        TokioUring::probe().is_ok().then_some(make)
    }
}
