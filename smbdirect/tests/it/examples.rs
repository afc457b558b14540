//! Runs the examples, which assert their own results.

#[allow(dead_code, reason = "its `main` is for the command line")]
#[path = "../../examples/tdi_echo.rs"]
mod tdi_echo;

#[allow(dead_code, reason = "its `main` is for the command line")]
#[path = "../../examples/event_loop.rs"]
mod event_loop;

use std::time::Duration;

use tokio::time::timeout;

#[test]
fn event_loop() {
    event_loop::run().expect("it succeeds");
}

#[tokio::test]
async fn tdi_echo() {
    let run = timeout(Duration::from_secs(60), tdi_echo::run(&[]));
    run.await.expect("it ends").expect("it succeeds");
}
