# Functions that the cases share. Each case sources this file.
#
# Linux kernels run as guests (User Mode Linux, from the lab). Samba and the gateway run on this machine.
# They all use a network namespace that each case creates and removes.
#
#   SMBDIRECT_LAB   the lab: run-guest.sh and out/ [../shared/lab next to the repository]
#   SMBDIRECT_BIN   the command under test [built here]
#   SMBDIRECT_KEEP  a directory for logs and captures [a temporary one, kept when a case fails]
#   SMBDIRECT_REQUIRE_LAB=1 makes a missing lab or tool an error
#
# shellcheck shell=bash
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
case_name=$(basename "$0")
lab=${SMBDIRECT_LAB:-$repository/../shared/lab}
kernel=${SMBDIRECT_KERNEL:-$lab/out/linux-um}
# The name of the namespace. Names of guests contain it, so it must be short.
ns=i$$
# The addresses of the lab: this machine, the guest with a server, the guest with a client.
host=10.77.0.1 server=10.77.0.2 client=10.77.0.3
# Where smbd listens. A case that needs another port or other interfaces sets them before start_smbd.
smbd_port=4450 smbd_interfaces=lo
mtu=1500 client_tap=tap1
failures=0 pids=()

say() { printf '%s: %s\n' "$case_name" "$*"; }
pass() { say "ok: $*"; }
fail() { say "FAILED: $*"; failures=$((failures + 1)); }

skip() {
  if [ -n "${SMBDIRECT_REQUIRE_LAB:-}" ]; then say "FAILED: $*"; exit 1; fi
  say "skipped: $*"
  exit 77
}

# skip_part WHY...: skips a part of the case.
skip_part() {
  if [ -n "${SMBDIRECT_REQUIRE_LAB:-}" ]; then fail "$*"; else say "skipped: $*"; fi
}

# need TOOL...: skips the case if one of the tools is missing.
need() {
  [ "$(id -u)" = 0 ] || skip "network namespaces need root"
  [ -x "$lab/run-guest.sh" ] && [ -x "$kernel" ] ||
    skip "the lab with Linux kernels is not at $lab; SMBDIRECT_LAB says where it is"
  local tool
  for tool in ip ethtool "$@"; do
    command -v "$tool" >/dev/null || skip "$tool is not installed"
  done
}

# begin: creates the working directory and the network.
begin() {
  if [ -n "${SMBDIRECT_KEEP:-}" ]; then
    work=$SMBDIRECT_KEEP/$case_name; rm -rf "$work"; mkdir -p "$work"
  else
    work=$(mktemp -d -t "smbdirect-$case_name.XXXXXX")
  fi
  trap end EXIT
  trap 'exit 130' INT TERM
  if [ -n "${SMBDIRECT_BIN:-}" ]; then
    bin=$SMBDIRECT_BIN
  else
    (cd "$repository" && cargo build --quiet --locked -p smbdirect-cli)
    bin=$repository/target/debug/smbdirect
  fi
  "$lab/net-up.sh" "$ns" >"$work/net.log"
  # Segmentation offload is off: a guest drops packets longer than a segment, and a capture should show
  # the packets of a wire.
  local device
  for device in br0 tap0 tap1; do
    inside ethtool -K "$device" tso off gso off gro off >>"$work/net.log" 2>&1 || true
  done
}

# begin_alone TOOL...: for a case without guests: skips it if root or a tool is missing, and creates the working directory
# and a namespace with a loopback interface. Sets $bin, and $SMBDIRECT_PRELOAD for `smbdirect run`.
begin_alone() {
  [ "$(id -u)" = 0 ] || skip "network namespaces need root"
  local tool
  for tool in ip ss "$@"; do
    command -v "$tool" >/dev/null || skip "$tool is not installed"
  done
  bin=${SMBDIRECT_BIN:-$repository/target/debug/smbdirect}
  [ -n "${SMBDIRECT_BIN:-}" ] || (cd "$repository" && cargo build --quiet --locked -p smbdirect-cli)
  use_preload
  work=${SMBDIRECT_KEEP:+$SMBDIRECT_KEEP/$case_name}
  [ -n "$work" ] || work=$(mktemp -d -t "smbdirect-$case_name.XXXXXX")
  mkdir -p "$work"
  trap end EXIT
  trap 'exit 130' INT TERM
  ip netns add "$ns"
  ip -n "$ns" link set lo up
}

# begin_either TOOL...: for a case of which a part needs guests: begins with their network if the lab is there and this is
# not the quick form, and alone otherwise; $host is the address of this machine, and $with_guests is not empty with them.
begin_either() {
  if [ "$quick" != quick ] && [ "$(id -u)" = 0 ] && [ -x "$lab/run-guest.sh" ] && [ -x "$kernel" ]; then
    with_guests=1
    need ss "$@"
    begin
    use_preload
  else
    with_guests='' host=127.0.0.1
    begin_alone "$@"
  fi
}

# use_preload: builds the library of `smbdirect run` if it is not next to the command, and exports its path.
use_preload() {
  local library=${SMBDIRECT_PRELOAD:-$(dirname "$bin")/libsmbdirect_preload.so}
  [ -e "$library" ] || (cd "$repository" && cargo build --quiet --locked -p smbdirect-preload)
  [ -e "$library" ] || library=$repository/target/debug/libsmbdirect_preload.so
  export SMBDIRECT_PRELOAD=$library
}

# judges NAME COMMAND...: runs the command, which installs the programs of others, in a folder that stays between runs;
# its path is $installed. The status is not 0 if that fails, or if this is the quick form and they are not there.
judges() {
  installed=${CARGO_TARGET_DIR:-$repository/target}/judges/$1
  [ ! -e "$installed/complete" ] || return 0
  [ "$quick" != quick ] || { say "skipped: the quick form does not install $1"; return 1; }
  mkdir -p "$installed"
  (cd "$installed" && "${@:2}" >log 2>&1 && touch complete) || { skip_part "$1 is not installed: $(tail -1 "$installed/log")"; return 1; }
}

# build_strict_server: builds the program of interop/strict-server, and sets $strict_server to its path.
build_strict_server() {
  local target=${CARGO_TARGET_DIR:-$repository/target}/strict
  strict_server=$target/debug/smbdirect-strict-server
  if [ "$quick" = quick ]; then
    [ -x "$strict_server" ] || { say "skipped: the quick form does not build interop/strict-server"; return 1; }
  else
    (cd "$repository/interop/strict-server" && CARGO_TARGET_DIR=$target cargo build --quiet --locked)
  fi
}

# with_pip PACKAGE==VERSION...: makes an environment of Python with these packages.
with_pip() { python3 -m venv . && bin/pip install --quiet "$@"; }

# with_npm PACKAGE@VERSION...: installs these packages of Node.js.
with_npm() { npm install --silent --no-fund --no-audit --prefix . "$@"; }

# use_capi: builds the library for C if it is not next to the command, and sets $capi to its path.
use_capi() {
  capi=${SMBDIRECT_LIBRARY:-$(dirname "$SMBDIRECT_PRELOAD")/libsmbdirect_capi.so}
  [ -e "$capi" ] || (cd "$repository" && cargo build --quiet --locked -p smbdirect-capi)
  [ -e "$capi" ] || capi=$repository/target/debug/libsmbdirect_capi.so
}

# Three paths to a server on 127.0.0.1:445, by which a client has to see the same: direct is TCP, pair is TCP through two
# gateways, and run is `smbdirect run`. Each has a share of its own.

# start_paths NAME: starts the gateways of the paths; $gateways has their ids.
start_paths() {
  start_gateway "$work/$1.far" 127.0.0.2:5445 127.0.0.1:445 --from smbdirect --to tcp
  gateways=("$gateway")
  start_gateway "$work/$1.near" 127.0.0.2:445 127.0.0.2:5445 --from tcp --to smbdirect
  gateways+=("$gateway")
  start_gateway "$work/$1.run" 127.0.0.3:5445 127.0.0.1:445
  gateways+=("$gateway")
}

# use_path NAME: sets $address to that of the server on the path, and $command to what starts a client there.
use_path() {
  command=()
  case $1 in
    direct) address=127.0.0.1 ;;
    pair) address=127.0.0.2 ;;
    run) address=127.0.0.3 command=("$bin" run --) ;;
  esac
}

# share_for_each_path FOLDER: prints the lines for smbd.
share_for_each_path() {
  local each
  for each in direct pair run; do printf '[%s]\n  path = %s\n  read only = no\n' "$each" "$1/$each"; done
}

# different FILE...: the files have lines of a test and its outcome. Prints the tests that ended in another way than in the
# first file, or not at all.
different() {
  python3 - "$@" <<'PYTHON'
import sys
first, *others = [dict(line.split() for line in open(name)) for name in sys.argv[1:]]
for test in sorted(set(first).union(*others)):
    if any(other.get(test) != first.get(test) for other in others):
        print(test, *(outcomes.get(test, "none") for outcomes in [first, *others]))
PYTHON
}

# outcomes FILE: prints how often each outcome is in the file.
outcomes() { cut -d' ' -f2 "$1" | sort | uniq -c | awk '{printf "%s%d %s", separator, $1, $2; separator = ", "}'; }

# end [STATUS]: runs on every exit and removes everything. Logs stay if the case failed or SMBDIRECT_KEEP is set. A case
# with a trap of its own gives the status of the exit.
end() {
  local status=${1:-$?}
  trap - EXIT
  case $status in
    0 | 77 | 130) ;;
    *) [ "$failures" != 0 ] || fail "a command ended the case with status $status" ;;
  esac
  [ "$failures" = 0 ] || status=1
  local pid
  for pid in "${pids[@]}"; do stop "$pid"; done
  ip netns del "$ns" 2>/dev/null || true
  case $status in
    0 | 77) [ -n "${SMBDIRECT_KEEP:-}" ] || rm -rf "$work" ;;
    *) say "logs are in $work" ;;
  esac
  exit "$status"
}

inside() { ip netns exec "$ns" "$@"; }

# background LOG COMMAND...: starts the command in a session of its own; sets $started to its id.
background() {
  local log=$1; shift
  setsid "$@" </dev/null >>"$log" 2>&1 &
  started=$!
  # Without this the shell prints the exit status of each background command.
  disown "$started"
  pids+=("$started")
}

# stop PID [SIGNAL]: ends a command that background started, with its children, and waits for it.
stop() {
  local pid=$1 signal=${2:-TERM}
  # The command may not have created its session yet.
  kill "-$signal" -- "-$pid" 2>/dev/null || kill "-$signal" "$pid" 2>/dev/null || return 0
  wait_for 10 gone "$pid" || kill -KILL -- "-$pid" 2>/dev/null || true
}

# gone PID: true if no process of its session runs; zombies do not count as running.
gone() { ! ps -o stat= -p "$1" | grep -qv '^Z' && ! ps -o stat= -s "$1" | grep -qv '^Z'; }

# wait_for SECONDS COMMAND...: runs the command until it succeeds.
wait_for() {
  local deadline=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$deadline" ] || return 1
    sleep 0.1
  done
}

# start_smbd: starts Samba with one share, for the user root with the password lab. $smbd_settings and
# $share_settings are lines that are added to the configuration.
start_smbd() {
  local folder=$work/samba directory
  mkdir -p "$folder"/{private,lock,state,cache,pid,ncalrpc,share,log}
  share=$folder/share
  cat >"$folder/smb.conf" <<CONF
[global]
  server role = standalone server
  workgroup = WORKGROUP
  interfaces = $smbd_interfaces
  bind interfaces only = yes
  smb ports = $smbd_port
  disable netbios = yes
  disable spoolss = yes
  load printers = no
  server min protocol = SMB3_00
  passdb backend = tdbsam
  private dir = $folder/private
  lock directory = $folder/lock
  state directory = $folder/state
  cache directory = $folder/cache
  pid directory = $folder/pid
  ncalrpc dir = $folder/ncalrpc
  log file = $folder/log/%m
${smbd_settings:-}
[share]
  path = $share
  read only = no
${share_settings:-}
CONF
  printf 'lab\nlab\n' | smbpasswd -c "$folder/smb.conf" -s -a root >"$work/smbpasswd.log" 2>&1
  background "$work/smbd.log" ip netns exec "$ns" \
    smbd --foreground --no-process-group --debug-stdout --configfile="$folder/smb.conf"
  smbd=$started
  wait_for 20 listens "127.0.0.1:$smbd_port" || { fail "smbd does not start"; exit 1; }
}

listens() { inside ss -Hltn "src $1" | grep -q LISTEN; }

# start_gateway LOG LISTEN UPSTREAM [OPTION...]: starts a gateway. Its events are in LOG.json and its log is
# in LOG.err.
start_gateway() {
  local log=$1 listen=$2; shift 2
  setsid ip netns exec "$ns" "$bin" gateway "$listen" "$@" --json -v \
    </dev/null >"$log.json" 2>"$log.err" &
  gateway=$!
  disown "$gateway"
  pids+=("$gateway")
  wait_for 20 grep -q '"listening"' "$log.json" || { fail "the gateway does not start"; exit 1; }
}

# guest NAME TAP ADDRESS [WORD...]: boots a guest that runs the job in $work/NAME; its id is $started.
guest() {
  local name=$1 tap=$2 address=$3; shift 3
  mkdir -p "$work/$name"
  cp "$repository"/interop/guest/*.sh "$work/$name/"
  NS=$ns NAME=$ns$name TAP=$tap IP=$address/24 SHARED=$work/$name KERNEL=$kernel \
    background "$work/$name.console" "$lab/run-guest.sh" "$@"
}

# Makes ksmbd offer READ and WRITE of 65536 bytes, which fit into a message: it reassembles 173910 bytes.
ksmbd_small_transfers='s/^\(\tsmb2 max [a-z]* =\).*/\1 65536/'

# start_ksmbd [WORD...]: boots a guest with the kernel's server, which runs until it is stopped. Its
# configuration is the lab's, changed by the sed commands in $ksmbd_settings.
start_ksmbd() {
  mkdir -p "$work/server"
  sed "${ksmbd_settings:-}" "$lab/ksmbd.conf" >"$work/server/ksmbd.conf"
  guest server tap0 "$server" lab.ksmbd=1 lab.job=server.sh "$@"
  ksmbd=$started
  wait_for 60 test -e "$work/server/up" || { fail "the guest with ksmbd does not start"; exit 1; }
}

# use_mtu BYTES: sets the MTU of the network, and of the guests that run_client boots after it.
use_mtu() {
  local device
  mtu=$1
  for device in tap0 tap1 br0; do ip -n "$ns" link set "$device" mtu "$mtu"; done
  # A guest's card accepts longer frames only if it is created that way. The last number selects its
  # address.
  client_tap=tap1
  [ "$mtu" = 1500 ] || client_tap=tap1,mtu=$mtu,tap=tap1
}

# run_client SECONDS NAME [WORD...]: boots a guest with the kernel's client and waits for its end.
# The job reads $work/NAME/parameters and writes $work/NAME/result, a line for each thing done.
run_client() {
  local seconds=$1 name=$2; shift 2
  rm -f "$work/$name/result"
  guest "$name" "$client_tap" "$client" lab.job=client.sh lab.mtu="$mtu" "$@"
  local pid=$started
  wait_for "$seconds" gone "$pid" || { fail "$name: the guest did not end within $seconds s"; stop "$pid" KILL; return 1; }
  stop "$pid"
}

# give_fio NAME: gives the guest fio with its libraries, for the script fio.sh.
give_fio() {
  local program
  program=$(type -P fio) || { skip_part "$1: fio is not installed"; return 1; }
  mkdir -p "$work/$1/program"
  cp "$program" "$work/$1/program/"
  ldd "$program" | grep -o '/[^ ]*' | xargs cp -Lt "$work/$1/program/"
}

# stop_ksmbd: ends the guest of start_ksmbd.
stop_ksmbd() {
  touch "$work/server/stop"
  wait_for 10 gone "$ksmbd" || true
  stop "$ksmbd"
}

# start_in NAME TAP ADDRESS [WORD...]: boots a guest that has the command under test and an adapter of
# $kind (siw or rxe), and runs the lines of $work/NAME/commands; its id is $started.
start_in() {
  mkdir -p "$work/$1"
  cp -f "$bin" "$work/$1/smbdirect"
  rm -f "$work/$1"/{result,up,stop}
  : >"$work/$1.console"
  MEM=${MEM:-1G} PROV=$kind guest "$1" "$2" "$3" lab.job=commands.sh "${@:4}"
}

# start_gateway_in NAME TAP ADDRESS ARGUMENT...: boots a guest with a gateway on its adapter. The events
# are in $work/NAME/gateway.json, the log in $work/NAME/gateway.err; its id is $gateway_guest.
start_gateway_in() {
  local name=$1 tap=$2 address=$3; shift 3
  mkdir -p "$work/$name"
  cat >"$work/$name/commands" <<JOB
/lab/smbdirect gateway $* --transport verbs --json -v >/lab/gateway.json 2>/lab/gateway.err &
gateway=\$!
until_so 10 grep -q listening /lab/gateway.json && touch /lab/up
until_so 300 test -e /lab/stop
kill -INT \$gateway && wait \$gateway
JOB
  start_in "$name" "$tap" "$address"
  gateway_guest=$started
  wait_for 60 test -e "$work/$name/up" || { fail "$kind: the gateway does not start in its guest"; exit 1; }
}

# stop_gateway_in NAME: ends the guest of start_gateway_in, after the gateway has printed its summary.
stop_gateway_in() {
  touch "$work/$1/stop"
  wait_for 20 gone "$gateway_guest" || true
  stop "$gateway_guest"
}

# start_capture FILE [PACKETS [DEVICE [FILTER]]]: captures the first packets that match the filter.
start_capture() {
  local file=$1 packets=${2:-20000} device=${3:-br0} filter=${4:-tcp port 5445}
  # shellcheck disable=SC2086
  background "$file.log" ip netns exec "$ns" \
    tcpdump -Z root -i "$device" -s 0 -U -B 65536 -c "$packets" -w "$file" $filter
  capture=$started
  wait_for 10 grep -q 'listening on' "$file.log" || { fail "tcpdump does not capture"; exit 1; }
}

# stop_capture: ends the capture, after the packets that the kernel still holds are written.
stop_capture() {
  sleep 0.5
  stop "$capture"
}

# read_iwarp FILE OPTION...: reads a capture of iWARP with tshark.
read_iwarp() {
  local file=$1; shift
  "$repository/interop/heads" "$file" "$file.prepared"
  tshark -o tcp.try_heuristic_first:TRUE -r "$file.prepared" "$@" 2>>"$file.log"
}

# check_capture FILE: stops the capture and checks it with tshark and `smbdirect decode`. Each RDMAP Send
# must be an SMB Direct message. The messages of this implementation must be well formed, have correct CRCs
# and break no rule. Rules that the other side breaks are printed, but do not fail the case.
check_capture() {
  local file=$1 sends messages bad
  stop_capture
  # The content of the messages is not checked.
  local options=(--disable-protocol smb2 --disable-protocol smb -o tcp.reassemble_out_of_order:TRUE
    -o iwarp_ddp_rdmap.reassemble_iwarp_rdma_send:FALSE)
  read_iwarp "$file" "${options[@]}" -Y "ip.src == $host" -T fields -E occurrence=a -E separator=';' \
    -e iwarp_rdma.opcode -e smb_direct.credits.requested >"$file.fields"
  sends=$(cut -d';' -f1 "$file.fields" | tr ',' '\n' | grep -c '0x0[34]' || true)
  messages=$(cut -d';' -f2 "$file.fields" | tr ',' '\n' | grep -c . || true)
  bad=$(read_iwarp "$file" "${options[@]}" -Y "ip.src == $host" -V | grep -ciE 'malformed|bad crc32' || true)
  if [ "$sends" -gt 0 ] && [ "$sends" = "$messages" ] && [ "$bad" = 0 ]; then
    pass "tshark: $sends Sends of ours, all of them SMB Direct, none malformed"
  else
    fail "tshark: $sends Sends of ours, $messages SMB Direct messages, $bad bad lines in $file"
  fi
  "$bin" decode "$file" --broken --json >"$file.decoded" 2>>"$file.log" || true
  if decoded=$(broken_rules "$file.decoded"); then
    pass "decode: $decoded"
  else
    fail "decode: $decoded"
  fi
}

# broken_rules FILE: prints the broken rules in one line; fails if this implementation broke one.
broken_rules() {
  python3 - "$1" "$host" <<'PYTHON'
import collections, json, sys
ends, rules, streams = {}, collections.Counter(), 0
for line in open(sys.argv[1]):
    event = json.loads(line)
    if event["event"] == "stream":
        ends[event["stream"]] = event
    for broken in event.get("broken", []) if event["event"] == "message" else []:
        ours = ends[event["stream"]][event["from"]].startswith(sys.argv[2] + ":")
        rules["us" if ours else "the peer", broken["rule"]] += 1
    if event["event"] == "summary":
        streams = event["streams"]
told = "; ".join(f"{rule} {count} times by {who}" for (who, rule), count in sorted(rules.items()))
print(f"{streams} streams, " + (told or "no rule broken"))
sys.exit(streams == 0 or any(who == "us" for who, _ in rules))
PYTHON
}

# seen FILE FILTER [WORD]: prints how many packets match the filter and have WORD in their summary.
seen() {
  read_iwarp "$1" -Y "$2" | grep -c "${3:-}" || true
}

# shown NAME WHAT NUMBER [LEAST]: checks that NUMBER, the count of WHAT, is at least LEAST.
shown() {
  if [ "$3" -ge "${4:-1}" ]; then pass "$1: $2"; else fail "$1: not so: $2"; fi
}


# by_rdma NAME FILE ADDRESS [none]: asserts that the end at the address read and wrote its peer's memory
# by RDMA, and invalidated the peer's tokens by its Sends, or that it invalidated none (SMB 3.0).
by_rdma() {
  local reads writes invalidated
  read -r reads writes invalidated < <(read_iwarp "$2" -Y "ip.src == $3 && iwarp_rdma" \
    -T fields -e iwarp_rdma.opcode | tr ',' '\n' |
    awk '{count[$1]++} END {print +count["0x01"], +count["0x00"], +count["0x04"]}')
  shown "$1" "RDMA Read Requests by $3" "$reads"
  shown "$1" "RDMA Writes by $3" "$writes"
  if [ "${4:-}" = none ]; then
    shown "$1" "no Send with Invalidate by $3" "$((invalidated == 0))"
  else
    shown "$1" "Sends with Invalidate by $3" "$invalidated"
  fi
}

# check_counters NAME LOG BYTES: asserts that the gateway refused nothing, that the counters of its
# connections add up to those of its summary, and that it moved at least BYTES in each direction by RDMA. If
# BYTES is 0, it must have moved none by RDMA.
check_counters() {
  local told
  if told=$(python3 - "$2.json" "$3" <<'PYTHON'
import json, sys
events = [json.loads(line) for line in open(sys.argv[1])]
least = int(sys.argv[2])
closed = [event for event in events if event["event"] == "closed"]
refused = [event for event in events if event["event"] == "refused"]
summary = events[-1]
wrong = [f"refused: {event['reason']} ({event['cure']})" for event in refused]
for field in ("reads_by_rdma", "writes_by_rdma", "bytes_read_by_rdma", "bytes_written_by_rdma",
              "requests_passed", "requests_refused"):
    total = sum(event[field] for event in closed)
    if total != summary[field]:
        wrong.append(f"{field} is {summary[field]} in the summary and {total} in its connections")
for what in ("read", "written"):
    moved = summary[f"bytes_{what}_by_rdma"]
    if moved < least or least == 0 and moved:
        wrong.append(f"{moved} bytes {what} by RDMA instead of {least}")
if summary["requests_refused"] or not summary["requests_passed"]:
    wrong.append(f"{summary['requests_refused']} requests refused, {summary['requests_passed']} passed")
print("; ".join(wrong) or f"{summary['reads_by_rdma']} READs and {summary['writes_by_rdma']} WRITEs by RDMA, "
      f"{summary['bytes_read_by_rdma']} and {summary['bytes_written_by_rdma']} bytes, "
      f"{summary['requests_passed']} requests passed")
sys.exit(bool(wrong))
PYTHON
  ); then pass "$1: $told"; else fail "$1: counters: $told"; fi
}

# whole_parts BYTES SIZE...: prints the bytes of files of these sizes, each rounded down to a multiple of
# BYTES.
whole_parts() {
  local part=$1 size total=0; shift
  for size in "$@"; do total=$((total + size - size % part)); done
  echo "$total"
}

# only_pattern PATTERN FILE...: checks that each byte of the files is that of the pattern at the same place, and prints how
# many bytes there are, or what differs. Ranges that the client had not written are holes; any other bytes there,
# even zeros, are an error.
only_pattern() {
  python3 - "$@" <<'PYTHON'
import os, sys
pattern = open(sys.argv[1], "rb").read()
wrong, total = [], 0
for name in sys.argv[2:]:
    with open(name, "rb") as file:
        size, at = os.fstat(file.fileno()).st_size, 0
        while at < size:
            try:
                begin = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            at = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
            file.seek(begin)
            data = file.read(at - begin)
            total += len(data)
            if data != pattern[begin:at]:
                wrong.append(f"{name} differs in its {len(data)} bytes at {begin}")
print("; ".join(wrong) or f"{total} bytes in {len(sys.argv) - 2} files")
sys.exit(bool(wrong))
PYTHON
}

# events LOG EVENT FIELD: prints the value of FIELD in each event of type EVENT, one per line.
events() {
  python3 - "$1.json" "$2" "$3" <<'PYTHON'
import json, sys
for line in open(sys.argv[1]):
    event = json.loads(line)
    if event["event"] == sys.argv[2]:
        print(event[sys.argv[3]])
PYTHON
}
