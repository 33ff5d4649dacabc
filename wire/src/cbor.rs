//! The deterministic CBOR subset (01 §1).
