//! The Python package, with the library of this build.

use std::{
    env,
    path::Path,
    process::{Command, Stdio},
};

/// Runs Python with the package and the library, or skips without Python.
fn python(arguments: &[&str]) {
    let capi = Path::new(env!("CARGO_MANIFEST_DIR"));
    let package = capi.join("../python");
    if !package.exists() {
        eprintln!("skipped: the Python package is not part of this source");
        return;
    }
    let version = Command::new("python3")
        .args(["-c", "import sys; sys.exit(sys.version_info < (3, 9))"])
        .stderr(Stdio::null())
        .status();
    if !version.is_ok_and(|status| status.success()) {
        assert!(
            env::var_os("SMBDIRECT_REQUIRE_TOOLS").is_none(),
            "Python 3.9 is missing"
        );
        eprintln!("skipped: Python 3.9 or later is missing");
        return;
    }
    let library = env::current_exe()
        .unwrap()
        .with_file_name("libsmbdirect_capi.so");
    let output = Command::new("timeout")
        .args(["300", "python3", "-B", "-W", "error"])
        .args(arguments)
        .current_dir(&package)
        .env("PYTHONPATH", "src")
        .env("SMBDIRECT_LIBRARY", library)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

#[test]
fn python_package_works() {
    python(&["tests/test_smbdirect.py"]);
}

#[test]
fn python_objects_outlive_their_uses() {
    python(&["tests/test_lifetime.py"]);
}
