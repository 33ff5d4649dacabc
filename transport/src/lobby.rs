//! How many sockets may be open before their upgrade. They cost nothing to open and are nobody's yet, so without a
//! bound of their own they would take the descriptors that the store needs to stay alive.

use crate::admission::Shares;
use rustix::process::{Resource, getrlimit};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Descriptors kept from the sockets of clients: for the files of the store, which keeps up to 256 open and opens more
/// while it compacts, for the private listener and for requests to the ringer. Where the limit of the process is below
/// twice this, half of it is kept.
pub const DESCRIPTORS_RESERVED: u64 = 512;
/// Fewest and most places; the connections' ceiling in between. So a fleet can come back at once, and whoever comes
/// beyond that ceiling is still told so over HTTP.
const PLACES: (u64, u64) = (1_024, 4_096);

/// Why an accepted socket got no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Too many have not upgraded, in all or from its address.
    HalfOpen,
    /// The descriptors left are the store's.
    Descriptors,
}

/// The count of sockets that have not upgraded, over all shards.
pub(crate) struct Lobby {
    places: u64,
    /// Of one address; `None` where all clients come from the address of a trusted proxy.
    share: Option<u64>,
    /// Most sockets of clients, upgraded or not.
    sockets_max: u64,
    taken: AtomicU64,
    addresses: Shares,
}

impl Lobby {
    /// With no ceiling for connections there are as many places as there can be.
    pub(crate) fn new(max_connections: Option<u64>, behind_proxy: bool, sockets_max: u64) -> Arc<Self> {
        let places = max_connections.map_or(PLACES.1, |ceiling| ceiling.clamp(PLACES.0, PLACES.1));
        Arc::new(Self {
            places,
            // Many clients come through the address of one company or one carrier.
            share: (!behind_proxy).then_some(places / 4),
            sockets_max,
            taken: AtomicU64::new(0),
            addresses: Shares::new(),
        })
    }

    /// Takes a place for a socket from `address`. `seated`: sockets that have upgraded.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr, seated: u64) -> Result<Place, Refusal> {
        let share = match self.share {
            Some(share) => Some(
                self.addresses
                    .take(network(address), share)
                    .ok_or(Refusal::HalfOpen)?,
            ),
            None => None,
        };
        // From here on, leaving gives the share back.
        let mut place = Place {
            lobby: self.clone(),
            share,
            counted: false,
        };
        let free = self.sockets_max.saturating_sub(seated);
        let most = self.places.min(free);
        let take = |taken| (taken < most).then_some(taken + 1);
        match self
            .taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
        {
            Ok(_) => {
                place.counted = true;
                Ok(place)
            }
            Err(taken) if taken >= free => Err(Refusal::Descriptors),
            Err(_) => Err(Refusal::HalfOpen),
        }
    }
}

/// What counts as one address: of IPv6 the /64, which is the least that anybody is given.
fn network(address: IpAddr) -> [u8; 8] {
    let mut network = [0; 8];
    match address.to_canonical() {
        // No IPv6 network in use begins with four zero bytes.
        IpAddr::V4(v4) => network[4..].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => network.copy_from_slice(&v6.octets()[..8]),
    }
    network
}

/// How many sockets of clients there may be under the process's present limit on open files.
pub(crate) fn sockets_max() -> u64 {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(u64::MAX, |limit| limit - DESCRIPTORS_RESERVED.min(limit / 2))
}

/// The most sockets that can be open at a time, for tables that hold them: those that have upgraded, those that have not,
/// and a few that are just being turned away.
pub(crate) fn sockets_at_once(max_connections: Option<u64>) -> u32 {
    const TURNED_AWAY: u64 = 128;
    let seated = max_connections.unwrap_or(u64::MAX);
    let sockets = seated.saturating_add(PLACES.1 + TURNED_AWAY).min(sockets_max());
    // The kernel's own ceiling.
    sockets.clamp(64, 1 << 20) as u32
}

/// One socket's place, given back when dropped.
pub(crate) struct Place {
    lobby: Arc<Lobby>,
    share: Option<u64>,
    counted: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(hash) = self.share {
            self.lobby.addresses.give_back(hash);
        }
        if self.counted {
            self.lobby.taken.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(lobby: &Arc<Lobby>, address: &str, seated: u64) -> (Vec<Place>, Refusal) {
        let mut places = Vec::new();
        loop {
            match lobby.enter(address.parse().unwrap(), seated) {
                Ok(place) => places.push(place),
                Err(refusal) => return (places, refusal),
            }
        }
    }

    #[test]
    fn an_address_has_its_share_and_all_have_the_places() {
        for (ceiling, places, share) in [
            (Some(8), 1_024, 256),
            (Some(2_000), 2_000, 500),
            (Some(1_000_000), 4_096, 1_024),
            (None, 4_096, 1_024),
        ] {
            let lobby = Lobby::new(ceiling, false, u64::MAX);
            let all: Vec<_> = (1..=4)
                .map(|n| {
                    let (held, refusal) = fill(&lobby, &format!("192.0.2.{n}"), 0);
                    assert_eq!((held.len(), refusal), (share, Refusal::HalfOpen), "{ceiling:?}");
                    held
                })
                .collect();
            assert_eq!(lobby.taken.load(Ordering::Relaxed), places);
            assert_eq!(fill(&lobby, "192.0.2.5", 0).0.len(), 0);
            drop(all);
            assert_eq!(fill(&lobby, "192.0.2.5", 0).0.len(), share);
            assert!(lobby.addresses.is_empty());
            assert_eq!(lobby.taken.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn a_network_of_ipv6_is_one_address_and_a_mapped_address_is_itself() {
        let lobby = Lobby::new(None, false, u64::MAX);
        let (_held, _) = fill(&lobby, "2001:db8::1", 0);
        assert!(lobby.enter("2001:db8::ffff:2".parse().unwrap(), 0).is_err());
        assert!(lobby.enter("2001:db8:0:1::1".parse().unwrap(), 0).is_ok());
        let (_held, _) = fill(&lobby, "192.0.2.1", 0);
        assert!(lobby.enter("::ffff:192.0.2.1".parse().unwrap(), 0).is_err());
        assert!(lobby.enter("192.0.2.2".parse().unwrap(), 0).is_ok());
    }

    #[test]
    fn a_trusted_proxy_may_hold_all_places() {
        let lobby = Lobby::new(Some(8), true, u64::MAX);
        let (held, refusal) = fill(&lobby, "192.0.2.1", 0);
        assert_eq!((held.len(), refusal), (1_024, Refusal::HalfOpen));
    }

    #[test]
    fn those_who_upgraded_count_for_the_descriptors() {
        let lobby = Lobby::new(Some(8), true, 100);
        let (held, refusal) = fill(&lobby, "192.0.2.1", 90);
        assert_eq!((held.len(), refusal), (10, Refusal::Descriptors));
        drop(held);
        assert_eq!(fill(&lobby, "192.0.2.1", 101).0.len(), 0);
    }
}
