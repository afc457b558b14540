//! A machine whose files are below another root: what is read from them, and the diagnosis.

use std::{fs, path::Path};

use smbdirect_check::{Diagnosis, Outcome, Settings, State, Target, diagnose, gather};
use smbdirect_test::machine::{machine, write};

async fn check(root: &Path, target: Option<Target>) -> Diagnosis {
    let root = root.to_path_buf();
    let facts = gather(Settings { root, target }, &|_| ()).await;
    diagnose(&facts)
}

/// Checks the outcome, and that a step has the fault, unless `slug` is empty.
#[track_caller]
fn expect(diagnosis: &Diagnosis, outcome: Outcome, slug: &str) {
    assert_eq!(diagnosis.outcome, outcome, "{diagnosis:#?}");
    let mut faults = diagnosis.steps().filter_map(|step| step.fault);
    let is_named = faults.any(|fault| fault.slug() == slug);
    assert!(is_named || slug.is_empty(), "{diagnosis:#?}");
    for step in diagnosis.steps() {
        let is_bare = step.cause.is_none() || step.cures.is_empty();
        assert!(step.fault.is_none() || !is_bare, "{step:#?}");
    }
}

#[tokio::test]
async fn a_machine_is_read_from_its_files() {
    let directory = machine();
    let root = directory.path();
    let works = check(root, None).await;
    expect(&works, Outcome::Works, "");
    assert_eq!(
        works.verdict,
        "SMB Direct works here as client: RoCE 445 by mlx5_0"
    );
    assert!(works.steps().all(|step| step.state != State::Fault));

    let adapter = "sys/class/infiniband/mlx5_0";
    write(root, &format!("{adapter}/ports/1/state"), "1: DOWN\n");
    let down = check(root, None).await;
    expect(&down, Outcome::DoesNot, "adapter-down");
    fs::remove_dir_all(root.join(adapter)).unwrap();
    let no_adapter = check(root, None).await;
    expect(&no_adapter, Outcome::DoesNot, "no-adapter");

    let config = "CONFIG_CIFS=m\n# CONFIG_CIFS_SMB_DIRECT is not set\n";
    write(root, "boot/config-7.2.13", config);
    let lacks = check(root, None).await;
    expect(&lacks, Outcome::DoesNot, "kernel-without-cifs-smb-direct");
    expect(&lacks, Outcome::DoesNot, "kernel-without-ksmbd-smb-direct");
    fs::remove_dir_all(root.join("sys")).unwrap();
    let no_core = check(root, None).await;
    expect(&no_core, Outcome::DoesNot, "no-rdma-core");
}

#[tokio::test]
async fn unknown_machines_and_names_are_no_faults_of_smb_direct() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    expect(&check(root, None).await, Outcome::Unknown, "");
    let target = Target {
        host: "no-such-host.invalid".into(),
        port: None,
        share: None,
        login: None,
        measure: None,
        iwarp_tap: None,
        roce_tap: None,
    };
    let unknown = check(root, Some(target)).await;
    expect(&unknown, Outcome::Unknown, "name-unknown");
}
