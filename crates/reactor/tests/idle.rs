//! An idle server costs nothing. Alone in its binary: it measures the whole process.

mod common;

use common::{join, options};
use plimsoll_reactor::{Control, CoreId, DriverChoice, start};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Mutex;
use std::time::Duration;

fn cpu_ns() -> i64 {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    spent.tv_sec * 1_000_000_000 + spent.tv_nsec
}

#[test]
fn idle_cores_use_below_one_per_cent() {
    for driver in [DriverChoice::Uring, DriverChoice::Portable] {
        idle(driver);
    }
}

#[allow(clippy::disallowed_methods)] // Real idle time has to pass.
fn idle(driver: DriverChoice) {
    let (mut sender, ports) = Control::ports::<()>(2);
    let ports = Mutex::new(ports.into_iter().map(Some).collect::<Vec<_>>());
    let running = start(&options(driver, 2), move |reactor| {
        let port = ports.lock().unwrap()[reactor.core().0 as usize].take().unwrap();
        let own = reactor.clone();
        port.open(reactor, move |()| own.stop());
        let listener = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let own = reactor.clone();
        reactor.spawn(plimsoll_reactor::Work::Network, async move {
            let _ = listener.accept().await;
        });
        // A clock that ticks ten times a second, as a server's has.
        reactor.spawn(plimsoll_reactor::Work::Control, async move {
            loop {
                own.sleep_ns(100_000_000).await;
            }
        });
    })
    .unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let before_ns = cpu_ns();
    std::thread::sleep(Duration::from_millis(1_500));
    let spent_ns = cpu_ns() - before_ns;
    for core in 0..2 {
        sender.send(CoreId(core), ()).unwrap();
    }
    join(running);
    assert!(spent_ns < 15_000_000, "{driver:?}: two idle cores used {spent_ns} ns of CPU in 1.5 s");
}
