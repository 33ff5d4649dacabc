//! Behaviour of the engine, rule by rule, with virtual time and the real embedded store. One module per area; each
//! test names in its comment the cases of the specification it proves.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

#[allow(dead_code)] // The simulator and later flows use what no test here uses yet.
mod world;

mod cases {
    mod access;
    mod admission;
    mod calls;
    mod collector;
    mod commits;
    mod crash;
    mod dropping;
    mod invites;
    mod joining;
    mod keys;
    mod map_form;
    mod recovery;
    mod retention;
    mod sending;
    mod slow;
    mod states;
    mod subscribing;
    mod wake;
    mod wraps;
}
