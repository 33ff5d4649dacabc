//! A kernel without io_uring, or a container that forbids it: the program says so and runs epoll; what asks for io_uring by
//! name is refused.

use crate::faults::Faults;
use crate::ledger::{Fate, Ledger, OPEN_BUDGETS};

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
