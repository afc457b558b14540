//! The program: whether the system will load the library into it, and whether it starts processes without the
//! library.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{ErrorKind, Read, Seek, SeekFrom},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use landlock::{
    AccessNet, CompatLevel, Compatible, NetPort, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError,
};
use rustix::process::{getegid, geteuid};
use tracing::debug;

/// Name of the library that is loaded into the program.
pub(super) const LIBRARY: &str = "libsmbdirect_preload.so";

/// Maximum depth of scripts whose interpreter is a script again, as in Linux.
const MAX_INTERPRETERS: usize = 5;

/// Longest first line of a script in bytes, as in Linux.
const MAX_FIRST_LINE: usize = 256;

/// Longest path of a dynamic linker in bytes.
const MAX_LINKER_PATH: u64 = 4096;

/// Checks that the dynamic linker loads the library into a program.
///
/// # Errors
/// Why it does not.
pub(super) fn check(name: &OsStr, library: &Path) -> Result<()> {
    let Some(program) = find(name) else {
        // Starting it fails with the reason.
        return Ok(());
    };
    let program = executable(program)?;
    let shown = program.display();
    let with_tcp = "so its connections would still use TCP; put `smbdirect gateway --from tcp` in front of the server for it";
    if gains_privileges(&program)? {
        bail!(
            "{shown} gets other privileges when it starts (set-user-ID, set-group-ID or file capabilities), \
             and the system then loads no library into it, {with_tcp}"
        );
    }
    // The linker finds the libraries of $ORIGIN next to the file that it is given, the kernel next to the real file.
    let real = fs::canonicalize(&program).unwrap_or_else(|_| program.clone());
    let linker = dynamic_linker(&program).with_context(|| format!("{shown} is not readable"))?;
    let Some(linker) = linker else {
        bail!("{shown} is not linked dynamically, {with_tcp}");
    };
    let listed = Command::new(&linker)
        .arg("--list")
        .arg(real)
        .env("LD_PRELOAD", with_other_libraries(library))
        .output()
        .with_context(|| format!("{} does not start", linker.display()))?;
    let [loaded, reasons] =
        [&listed.stdout, &listed.stderr].map(|text| String::from_utf8_lossy(text));
    let path = library.to_string_lossy();
    let refusal = reasons.lines().find(|line| line.contains(&*path));
    let is_program_broken = listed.status.code().is_some_and(|code| code != 0);
    if refusal.is_none() && (loaded.contains(&*path) || is_program_broken) {
        // Starting a program that has a fault of its own reports it.
        return Ok(());
    }
    let ended = listed.status.to_string();
    let reason = refusal.or_else(|| reasons.lines().next()).unwrap_or(&ended);
    let linker_path = linker.display();
    let failed = format!("{linker_path} does not load {path} into {shown}: {reason}");
    let name = linker.file_name().unwrap_or_default();
    ensure!(
        !name.as_bytes().starts_with(b"ld-musl"),
        "{failed}; the program is linked with musl and {LIBRARY} with the GNU C library, {with_tcp}"
    );
    bail!(
        "{failed}; set SMBDIRECT_PRELOAD to a {LIBRARY} that is made for this system, with a path without spaces \
         and colons"
    );
}

/// Forbids this process, and all that it starts, to connect by TCP to the given ports: a process without the library
/// gets `EACCES`. Systems before Linux 6.7 cannot do that.
pub(super) fn forbid_tcp(ports: &[u16]) {
    let restrict = || -> Result<(), RulesetError> {
        let others = (0..=u16::MAX).filter(|port| !ports.contains(port));
        let rules = others.map(|port| Ok(NetPort::new(port, AccessNet::ConnectTcp)));
        let ruleset: RulesetCreated = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessNet::ConnectTcp)?
            .create()?
            .add_rules(rules.collect::<Vec<Result<_, RulesetError>>>())?;
        // Only with CAP_SYS_ADMIN set-user-ID programs may keep their privileges.
        let again = ruleset.try_clone().ok();
        match (ruleset.no_new_privs(false).restrict_self(), again) {
            (Err(_), Some(again)) => again.restrict_self()?,
            (result, _) => result?,
        };
        Ok(())
    };
    if let Err(error) = restrict() {
        debug!(%error, "processes without the library can still connect by TCP");
    }
}

/// Returns the libraries to load: ours, and those that the environment names already.
pub(super) fn with_other_libraries(library: &Path) -> OsString {
    let mut libraries = library.as_os_str().to_owned();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        libraries.push(":");
        libraries.push(others);
    }
    libraries
}

/// Returns the file of a program, as `execvp` finds it.
fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(name.into());
    }
    let folders = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut places = env::split_paths(&folders).map(|folder| folder.join(name));
    places.find(|place| {
        rustix::fs::access(place, rustix::fs::Access::EXEC_OK).is_ok() && place.is_file()
    })
}

/// Returns the file that runs: for a script, its interpreter.
fn executable(mut program: PathBuf) -> Result<PathBuf> {
    for _ in 0..MAX_INTERPRETERS {
        let mut start = [0; MAX_FIRST_LINE];
        let read = File::open(&program).and_then(|mut file| file.read(&mut start));
        let read = match read {
            Ok(read) => read,
            // Starting it fails with the reason.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(program),
            Err(error) => {
                bail!(
                    "{}: {error}, so it is unknown whether it can be redirected",
                    program.display()
                )
            }
        };
        let start = &start[..read];
        program = match start.strip_prefix(b"#!") {
            Some(line) => {
                let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
                let words = line.trim_ascii();
                let path = words.split(u8::is_ascii_whitespace).next();
                OsStr::from_bytes(path.unwrap_or_default()).into()
            }
            None if start.starts_with(b"\x7fELF") => return Ok(program),
            // The C library runs it by the shell.
            None => "/bin/sh".into(),
        };
    }
    Ok(program)
}

/// Returns whether a program gains privileges that its user does not have.
fn gains_privileges(program: &Path) -> Result<bool> {
    let Ok(file) = fs::metadata(program) else {
        return Ok(false);
    };
    let user = file.mode() & 0o4000 != 0 && file.uid() != geteuid().as_raw();
    let group = file.mode() & 0o2000 != 0 && file.gid() != getegid().as_raw();
    let capabilities = rustix::fs::getxattr(program, "security.capability", &mut [0u8; 64][..]);
    Ok(user || group || capabilities.is_ok() && !geteuid().is_root())
}

/// Returns the dynamic linker that an ELF file names (PT_INTERP), or `None` in a static program.
fn dynamic_linker(program: &Path) -> std::io::Result<Option<PathBuf>> {
    /// Place of the program headers in the file, their size and number in the ELF header; place and length of the
    /// contents in a program header; and the size of the numbers.
    const LAYOUTS: [[usize; 6]; 2] = [
        [0x1c, 0x2a, 0x2c, 0x04, 0x10, 4],
        [0x20, 0x36, 0x38, 0x08, 0x20, 8],
    ];
    const PT_INTERP: u64 = 3;

    let mut file = File::open(program)?;
    let mut bytes = [0; 64];
    let mut read_at = |at: u64, bytes: &mut [u8]| {
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(bytes)
    };
    read_at(0, &mut bytes)?;
    let number = |bytes: &[u8], at: usize, size: usize| {
        let mut number = [0; 8];
        if cfg!(target_endian = "little") {
            number[..size].copy_from_slice(&bytes[at..at + size]);
        } else {
            number[8 - size..].copy_from_slice(&bytes[at..at + size]);
        }
        u64::from_ne_bytes(number)
    };
    let [headers, size, count, place, length, word] = LAYOUTS[usize::from(bytes[4] == 2)];
    let headers = number(&bytes, headers, word);
    let size = number(&bytes, size, 2);
    for index in 0..number(&bytes, count, 2) {
        let mut header = [0; 0x38];
        read_at(headers.saturating_add(index * size), &mut header)?;
        if number(&header, 0, 4) == PT_INTERP {
            let length = number(&header, length, word).min(MAX_LINKER_PATH);
            let mut path = vec![0; length as usize];
            read_at(number(&header, place, word), &mut path)?;
            let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
            return Ok(Some(OsStr::from_bytes(path).into()));
        }
    }
    Ok(None)
}
