//! The founding flow and the shape of a session's life.

use crate::world::*;

/// W02.8: JOIN reserve, AUTH, ACCESS query, version 0, reconnect, SUB works. W05.3
#[test]
fn founder_comes_in_publishes_and_works() {
    let mut w = World::new();
    let ws = w.found("ws:one", &[], &[group(1)]);
    let c = w.login(&ws.founder, &[group(1)]);
    assert_eq!(w.stored(c, group(1), b"x"), 1);
    assert_eq!(w.subscribe(c, group(1), 0).len(), 2);
}
