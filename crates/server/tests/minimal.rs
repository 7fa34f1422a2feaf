mod common;
use common::{Setup, run};
#[test]
fn minimal() {
    run(Setup { cores: 1, partitions: 1, ..Setup::default() }, |bench| async move {
        let mut c = bench.client();
        for n in 0..5 {
            println!("call {n} at {}", bench.world.now_ns());
            c.expect("PING", "+PONG").await;
        }
    });
}
