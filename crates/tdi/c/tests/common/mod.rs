//! What the tests of the headers and of the programs in C share.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The folders in which Debian has the headers of Windows' driver kit.
const DRIVER_KIT: [&str; 2] = [
    "/usr/share/mingw-w64/include/ddk",
    "/usr/x86_64-w64-mingw32/include/ddk",
];
/// The compiler whose driver kit is independent of this package.
pub(crate) const WINDOWS_COMPILER: &str = "x86_64-w64-mingw32-gcc";

/// Returns the folder of this package.
pub(crate) fn source() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the folder of the libraries, which cargo has built next to this test.
pub(crate) fn libraries() -> PathBuf {
    let test = env::current_exe().unwrap();
    let folder = test.parent().unwrap().to_owned();
    assert!(folder.join("libsmbdirect_tdi_c.so").exists(), "{folder:?}");
    folder
}

/// Skips a test for the lack of something. In the gate nothing may lack.
fn skip(what: &str) {
    let required = env::var_os("SMBDIRECT_REQUIRE_TOOLS").is_some();
    assert!(!required, "{what} is missing");
    eprintln!("skipped: {what} is missing");
}

/// Returns whether a tool can be run.
pub(crate) fn available(tool: &str) -> bool {
    let found = Command::new(tool)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !found {
        skip(tool);
    }
    found
}

/// Runs a compiler, which has to succeed.
pub(crate) fn compile<I: AsRef<OsStr>>(compiler: &str, arguments: impl IntoIterator<Item = I>) {
    let output = Command::new(compiler).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{compiler}: {text}");
}

/// Returns the options for this package's headers.
pub(crate) fn options() -> Vec<String> {
    let include = source().join("include").display().to_string();
    let options = [
        "-std=c11",
        "-D_GNU_SOURCE",
        "-fshort-wchar",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-I",
    ];
    options
        .map(str::to_owned)
        .into_iter()
        .chain([include])
        .collect()
}

/// Compiles a file against the headers of Windows' driver kit, if they are there.
pub(crate) fn check_with_driver_kit(file: &Path) {
    if !available(WINDOWS_COMPILER) {
        return;
    }
    let kit = DRIVER_KIT
        .iter()
        .find(|kit| Path::new(kit).join("tdikrnl.h").exists());
    let Some(kit) = kit else {
        return skip("ddk/tdikrnl.h of mingw-w64-common");
    };
    compile(
        WINDOWS_COMPILER,
        [
            OsStr::new("-std=gnu11"),
            "-fsyntax-only".as_ref(),
            "-I".as_ref(),
            kit.as_ref(),
            file.as_ref(),
        ],
    );
}
