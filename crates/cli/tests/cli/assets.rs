//! `assets`: what a package installs is complete, and the example of the settings is valid.

use std::fs;

use crate::support::{names_in, run};

#[test]
fn pages_completions_and_a_valid_example_are_written() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    run(&["assets", root.to_str().unwrap()]).succeeded();
    let pages = names_in(&root.join("man"));
    for page in [
        "smbdirect.1",
        "smbdirect-gateway.1",
        "smbdirect-gateway-ctl.1",
        "smbdirect-top.1",
        "smbdirect-listen.1",
    ] {
        assert!(pages.contains(&page.to_owned()), "{pages:?}");
    }
    assert!(
        !pages.contains(&"smbdirect-assets.1".to_owned()),
        "it is hidden"
    );
    for page in &pages {
        let text = fs::read_to_string(root.join("man").join(page)).unwrap();
        assert!(!text.contains('\x1b') && !text.contains("[1m"), "{page}");
        assert!(
            text.contains("Exit status:") && text.contains("RUST_LOG"),
            "{page}"
        );
        // Text is not justified there.
        assert!(text.contains(".SH EXTRA\n.na\n.nh\n"), "{page}");
    }
    let page = fs::read_to_string(root.join("man/smbdirect-get.1")).unwrap();
    let page = page.replace('\\', "");
    for part in [
        "fB-ufR, fB--userfR fI<USER>fR\nLog in as this user",
        "fB--send-credit-targetfR fI<N>fR\nSend credits to ask the peer for",
        "[fIFILEfR]",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let page = fs::read_to_string(root.join("man/smbdirect-gateway-ctl.1")).unwrap();
    for command in ["end", "drain", "drain\\-all"] {
        let line = format!("smbdirect\\-gateway\\-ctl\\-{command}(1)");
        assert!(page.contains(&line), "{line}: {page}");
    }
    let completions = names_in(&root.join("completions"));
    assert_eq!(
        completions,
        ["_smbdirect", "smbdirect.bash", "smbdirect.fish"]
    );

    for shell in ["bash", "zsh", "fish"] {
        let printed = run(&["completions", shell]).succeeded().stdout;
        assert!(printed.contains("max-fragmented-size"), "{shell}");
    }

    let example = root.join("gateway.toml");
    let check = |path: &std::path::Path| {
        run(&[
            "gateway",
            "--check-config",
            "--config",
            path.to_str().unwrap(),
        ])
    };
    check(&example).succeeded();
    // Each setting that is a comment is valid, too.
    let text = fs::read_to_string(&example).unwrap();
    let keys = text
        .lines()
        .filter_map(|line| line.strip_prefix("# ")?.split_once(" = "));
    let keys: Vec<_> = keys.filter(|(key, _)| !key.contains(' ')).collect();
    assert!(keys.len() > 20, "{text}");
    let all: String = keys
        .iter()
        .map(|(key, value)| format!("{key} = {value}\n"))
        .collect();
    let every = root.join("every.toml");
    fs::write(&every, format!("listen = ':5445'\nupstream = 'nas'\n{all}")).unwrap();
    check(&every).succeeded();
    run(&["assets", "/proc/no/such"]).failed(1, "cannot write to /proc/no/such");
}

/// Bash offers files where the completions offer nothing.
#[test]
fn bash_completes_options_after_a_dash_and_files_elsewhere() {
    let script = "source <(\"$0\" completions bash) || exit; shift; COMP_WORDS=(\"$@\"); \
                  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=(); \
                  _smbdirect smbdirect \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"; \
                  echo \" ${COMPREPLY[*]} \"";
    let complete = |line: &str| {
        let mut bash = std::process::Command::new("bash");
        bash.args(["--norc", "-c", script, crate::support::PROGRAM, "_"]);
        let output = bash.args(line.split(' ')).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{line}");
        String::from_utf8(output.stdout).unwrap()
    };
    for line in ["put ", "get x ", "decode ", "demo ", "put --force "] {
        assert_eq!(complete(&format!("smbdirect {line}")).trim(), "", "{line}");
    }
    for (line, offers, not) in [
        ("", " gateway ", "--help"),
        ("put -", " --force ", " put "),
        ("put --transport ", " roce ", "--force"),
        ("gateway ctl ", " drain ", "--json"),
        ("completions ", " zsh ", "--help"),
    ] {
        let words = complete(&format!("smbdirect {line}"));
        assert!(
            words.contains(offers) && !words.contains(not),
            "{line}: {words}"
        );
    }
}
