//! Long arguments stay where they were received.
//!
//! In a process of its own: it counts what the allocator moves.

mod common;
#[path = "../../reactor/tests/common/counting.rs"]
mod counting;

use common::{Bench, Setup, encoded, run, show};
use counting::{Counting, MOVED_BYTES};
use std::sync::atomic::Ordering::Relaxed;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Sends the beginning of a command in packets, and tells what was moved meanwhile.
async fn moved_by(bench: &Bench, mut command: Vec<u8>) -> usize {
    let mut client = bench.client().await;
    let end = command.split_off(command.len() - 1000);
    let packets: Vec<Vec<u8>> = command.chunks(60_000).map(<[u8]>::to_vec).collect();
    let before_bytes = MOVED_BYTES.load(Relaxed);
    for packet in packets {
        client.socket.send(packet).await.0.unwrap();
        bench.pause_ms(1).await;
    }
    let moved_bytes = MOVED_BYTES.load(Relaxed) - before_bytes;
    client.socket.send(end).await.0.unwrap();
    assert_eq!(show(&client.next().await.unwrap()), "+OK");
    moved_bytes
}

/// Each was copied for every 128 KiB that came: three and a half times for one of 1 MiB, in front of which
/// other clients of the core waited.
#[test]
fn a_long_argument_does_not_move_as_it_comes() {
    run(Setup { cores: 1, partitions: 1, ..Setup::default() }, |bench| async move {
        let value = "v".repeat(4 << 20);
        let moved_bytes = moved_by(&bench, encoded(&["MSET", "a", &value, "b", &value])).await;
        assert!(moved_bytes < 1 << 20, "{moved_bytes} bytes of 8 MiB");
    });
}
