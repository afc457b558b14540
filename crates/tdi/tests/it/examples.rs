//! Runs the examples, which assert their own results.

#[allow(dead_code, reason = "its `main` is for the command line")]
#[path = "../../examples/tdi_echo.rs"]
mod tdi_echo;

#[allow(dead_code, reason = "its `main` is for the command line")]
#[path = "../../examples/tdi_flags.rs"]
mod tdi_flags;

use std::time::Duration;

use tokio::time::timeout;

#[tokio::test]
async fn tdi_echo() {
    let run = timeout(Duration::from_secs(60), tdi_echo::run(&[]));
    run.await.expect("it ends").expect("it succeeds");
}

/// One thread, as in the `main` of the example: the order of its TSDUs depends on it.
#[tokio::test(flavor = "current_thread")]
async fn tdi_flags() {
    let run = timeout(Duration::from_secs(60), tdi_flags::run());
    run.await.expect("it ends").expect("it succeeds");
}
