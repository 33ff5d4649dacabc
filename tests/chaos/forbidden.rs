//! A kernel without io_uring, or a container that forbids it: the program says so and runs epoll; what asks for io_uring by
//! name is refused.

use crate::faults::Faults;
use crate::ledger::{Fate, Ledger, OPEN_BUDGETS};
use crate::relay::Relay;

const TOKEN: &str = "operator-secret-0123456789abcdef";

#[tokio::test(flavor = "multi_thread")]
async fn without_io_uring_it_says_so_and_runs_epoll() {
    let faults = Faults::new();
    let mut settings = OPEN_BUDGETS.to_vec();
    settings.extend([
        ("DROVER_IO", "auto"),
        ("FAULTS_FORBID", "io_uring"),
        ("WEALD_RELAY_OPERATOR_TOKEN", TOKEN),
    ]);
    let mut relay = faults.start(&settings);
    let ready = relay.private_as(TOKEN, "/readyz");
    let is = |field: &str| ready.contains(field);
    assert!(is("\"io_driver\":\"epoll\""), "{ready}");
    assert!(
        is(
            "\"io_driver_reason\":\"io_uring does not work here: a ring with its pool: Operation not permitted"
        ),
        "{ready}"
    );
    let mut ledger = Ledger::open(&relay).await;
    assert_eq!(ledger.send(&relay, 100).await, Fate::Acknowledged);
    ledger.check(&relay).await;

    for name in ["uring", "tokio-uring"] {
        relay.set("DROVER_IO", name);
        let (code, said) = relay.kill_and_fail_to_start();
        assert_eq!(code, Some(69), "{name}: {said}");
        assert!(
            said.contains("DROVER_IO asks for io_uring, which does not work here: ")
                && said.contains("Operation not permitted"),
            "{name}: {said}"
        );
    }
}

/// Rings count against the limit on locked memory, and those of the probe for a while after they were closed. However low
/// it is, `auto` serves; a driver that is asked for by name works, or its absence is explained.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_the_limit_on_locked_memory_it_serves() {
    let mut settings = OPEN_BUDGETS.to_vec();
    settings.extend([("DROVER_SHARDS", "2"), ("WEALD_RELAY_OPERATOR_TOKEN", TOKEN)]);
    let mut relay = Relay::start(&settings);
    let mut ledger = Ledger::open(&relay).await;
    // Who may lock as much as he wants gives that up.
    let limited = |kib: u32| {
        let give_up = "[ $(id -u) != 0 ] || exec setpriv --bounding-set=-ipc_lock \"$0\" \"$@\"";
        format!("ulimit -l {kib}; {give_up}")
    };
    let mut drivers = Vec::new();
    for kib in [16, 256, 384, 448, 512, 576, 640, 768, 1_024] {
        relay.set("DROVER_IO", "auto");
        relay.kill_and_restart_in(&limited(kib));
        let ready = relay.private_as(TOKEN, "/readyz");
        let driver = ["epoll", "uring"]
            .into_iter()
            .find(|name| ready.contains(&format!("\"io_driver\":\"{name}\"")));
        drivers.push((kib, driver.unwrap()));
        ledger.send_until_acknowledged(&relay).await;
        if driver == Some("uring") {
            continue;
        }
        assert!(ready.contains("io_uring does not work here"), "{ready}");
        relay.set("DROVER_IO", "uring");
        let (code, said) = relay.kill_and_fail_to_start_in(&limited(kib));
        assert_eq!(code, Some(69), "{said}");
        assert!(said.contains("which does not work here"), "{said}");
    }
    println!("by KiB that may be locked: {drivers:?}");
    assert_eq!(drivers[0].1, "epoll");
    ledger.check(&relay).await;
}
