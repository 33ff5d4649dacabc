//! The same shapes of work done by servers others use, in the same run and by the same thread. What is not installed is
//! left out, aloud.
//!
//! | Row | Work |
//! | --- | --- |
//! | `redis-streams` | XADD to as many streams as there are groups, `appendfsync always`: durable before the answer, as a SEND is |
//! | `redis-pubsub` | PUBLISH to every subscriber, nothing stored: the transport half of a PUSH |

mod redis;

use crate::args::BenchArgs;
use crate::error::Error;
use crate::measure::Row;
use redis::{Redis, Work};

/// Connections and subscribers of the reference settings.
const CONNECTIONS: usize = 64;
const SUBSCRIBERS: usize = 200;
const SIZE_BYTES: usize = 256;

/// The counterpart of durable ingest.
pub(crate) fn ingest(args: &BenchArgs) -> Result<Vec<Row>, Error> {
    let connections = args.connections.unwrap_or(CONNECTIONS).max(1);
    let streams = args.groups.unwrap_or(connections).max(1);
    run(args, "redis-streams", Work::Streams { streams }, connections)
}

/// The counterpart of fan-out.
pub(crate) fn fanout(args: &BenchArgs) -> Result<Vec<Row>, Error> {
    let subscribers = args.connections.unwrap_or(SUBSCRIBERS).max(1);
    run(args, "redis-pubsub", Work::PubSub, 1 + subscribers)
}

fn run(args: &BenchArgs, name: &'static str, work: Work, connections: usize) -> Result<Vec<Row>, Error> {
    let Some(server) = Redis::start(args)? else {
        crate::tell!(
            "NOT MEASURED: {name}; there is no redis-server here (Debian: apt-get install redis-server)"
        );
        return Ok(Vec::new());
    };
    let size_bytes = args.size_or(SIZE_BYTES);
    let runs = redis::measure(&server, args, work, connections, size_bytes)?;
    let what = format!(
        "{}, {connections} connections, {size_bytes} B, window {}",
        server.version, args.window
    );
    Ok(vec![Row::new(name, what, runs)])
}
