# The commands of CONTRIBUTING.md. `just` without arguments lists them.

# List the commands
default:
    @just --list

# Everything that a change has to pass; `just gate --install` installs missing tools
gate *arguments:
    .ci/run {{arguments}}

# Format, lints, unit tests and the house tests
quick:
    .ci/run quick

# All tests; with arguments, those of `cargo test`, as in `just test -p smbdirect --lib credits`
test *arguments="--workspace":
    cargo test {{arguments}}

# Format and lint, with and without the feature `tokio`, and build the documentation
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --locked -- -D warnings
    cargo clippy -p smbdirect -p smbdirect-rdma --no-default-features --all-targets --locked -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

# Time and allocations of each part; `just bench --instructions` counts with callgrind
bench *arguments:
    cargo bench -p smbdirect-bench -- {{arguments}}

# The speed goals of docs/goals.md
goals *options:
    cargo xtask goals {{options}}

# Cases with Linux kernels and Samba (root and the lab): `just interop quick`, `just interop pair`
interop *cases:
    interop/run {{cases}}

# Prove the credit rules without bounds (python3, PyPI); `just proofs --mutants` shows that the proofs can fail
proofs *arguments:
    proofs/run {{arguments}}

# Fuzz one target: `just fuzz wire_decode`
fuzz target seconds="60":
    cargo run -p smbdirect-fuzz --example corpora -- unpack {{target}}
    cargo fuzz run -s none --features libfuzzer {{target}} -- -max_total_time={{seconds}}

# Write docs/compliance.md, the listings of the public API and the committed instruction counts again
bless:
    cargo xtask api --bless
    SMBDIRECT_BLESS=1 cargo test -p smbdirect --test requirements
    SMBDIRECT_BLESS=1 cargo bench -p smbdirect-bench -- --instructions

# Mutation testing of one file; survivors are in mutants.out (cargo install cargo-mutants)
mutants file *arguments:
    cargo mutants --workspace -f {{file}} {{arguments}}

# Build the book into book/html (cargo install mdbook)
book:
    mdbook build book

# Check the licences and sources of the dependencies (cargo install cargo-deny)
deny:
    cargo deny check licenses bans sources
