//! The log on a simulated disk.

mod crashes;
mod damage;
mod failing;
mod sabotage;
mod sim;
mod world;

use self::sim::Sim;
use super::{Options, SegmentLog};
use crate::embedded::OpenError;
use std::path::Path;
use std::sync::Arc;

const FOLDER: &str = "/log";
const STORE: [u8; 16] = [7; 16];

fn open(sim: &Sim, options: Options) -> Result<SegmentLog, OpenError> {
    let control = Arc::new(sim.clone());
    SegmentLog::open(Arc::new(sim.clone()), Path::new(FOLDER), STORE, control, options)
}
