//! The Python package, with the library of this build.

use std::{
    env,
    path::Path,
    process::{Command, Stdio},
};

/// Runs Python with the package, the library and variables of the environment, or skips without Python.
fn python(arguments: &[&str], variables: &[(&str, &str)]) {
    let capi = Path::new(env!("CARGO_MANIFEST_DIR"));
    let package = capi.join("../../python");
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
        .args(["900", "python3", "-B", "-W", "error"])
        .args(arguments)
        .current_dir(&package)
        .env("PYTHONPATH", "src")
        .env("SMBDIRECT_LIBRARY", library)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

#[test]
fn python_package_works() {
    python(&["tests/test_smbdirect.py"], &[]);
}

#[test]
fn python_objects_outlive_their_uses() {
    python(&["tests/test_lifetime.py"], &[]);
}

#[test]
fn python_buffers_move_without_a_copy() {
    python(&["tests/test_buffers.py"], &[]);
}

/// PAUSE_MS in the environment makes the pauses longer.
#[test]
fn python_ends_pause_and_lose_nothing() {
    python(&["tests/test_pauses.py"], &[]);
}

/// AddressSanitizer checks the memory of Python and of the library that is allocated, freed and moved.
#[test]
fn python_objects_are_clean_under_the_address_sanitizer() {
    let name = Command::new("cc")
        .arg("-print-file-name=libasan.so")
        .output();
    let path = name.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    // The compiler prints a name without a folder if it does not have the library.
    let Some(path) = path.ok().filter(|path| path.contains('/')) else {
        assert!(
            env::var_os("SMBDIRECT_REQUIRE_TOOLS").is_none(),
            "libasan is missing"
        );
        eprintln!("skipped: libasan is missing");
        return;
    };
    for tests in ["tests/test_lifetime.py", "tests/test_buffers.py"] {
        python(
            &[tests],
            &[
                ("LD_PRELOAD", &path),
                ("PYTHONMALLOC", "malloc"),
                // A test asks for more memory than there is. Python leaves memory at its end.
                ("ASAN_OPTIONS", "detect_leaks=0:allocator_may_return_null=1"),
            ],
        );
    }
}
