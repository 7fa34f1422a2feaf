//! The Redis protocol (RESP2 and RESP3), sans-I/O.
