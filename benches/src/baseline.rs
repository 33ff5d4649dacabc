//! The same work without a relay.
