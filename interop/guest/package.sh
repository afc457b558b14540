# What interop/package does in a fresh Debian, after it has booted. The first page of the book is in the files
# NN-server.sh and NN-client.sh; $block is the one that runs. docs/service.md is in the files service-N.sh.
set -uo pipefail
export DEBIAN_FRONTEND=noninteractive HOME=/root
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
# expect WHAT COMMAND...: runs a command that has to succeed.
expect() {
  local what=$1; shift
  if "$@" >/lesson/out 2>&1; then echo "ok: $what"; else fail "$what"; tail -15 /lesson/out; fi
}
client() { ip netns exec client "$@"; }
# figure NAME LABEL: prints a figure of the gateway, from its metrics.
figure() {
  exec 3<>/dev/tcp/127.0.0.1/9445
  printf 'GET /metrics HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n' >&3
  grep -a "^$1{.*$2" <&3 | tr -d '\r' | awk '{printf "%d", $2}'
  exec 3>&-
}
unit() { systemctl show smbdirect-gateway -P "$1"; }
# service PATTERN: prints the file of the block of docs/service.md with such a line, and remembers that it runs.
service() { grep -lE -- "$1" /lesson/service-*.sh | head -1 | tee -a /lesson/ran; }
# terminal INPUT FILE: runs a block at a terminal, into which INPUT is typed 3 s later.
terminal() { (sleep 3; printf "$1"; sleep 1) | script -qec "bash -eu $2" /dev/null; }
# until_so SECONDS COMMAND...
until_so() {
  local end=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do [ $SECONDS -lt $end ] || return 1; sleep 0.2; done
}

# A client with a network of its own.
ip link set lo up
ip netns add client
ip link add server type veth peer name client netns client
ip address add 10.0.0.1/24 dev server
ip link set server up
ip -n client address add 10.0.0.2/24 dev client
ip -n client link set client up
ip -n client link set lo up
echo "10.0.0.1 server.example" >>/etc/hosts

# "A running Samba", with a share.
mkdir -p /srv/data
cat >>/etc/samba/smb.conf <<'CONF'
[data]
  path = /srv/data
  read only = no
CONF
printf 'secret\nsecret\n' | smbpasswd -s -a root >/dev/null
expect "Samba runs" systemctl restart smbd

cd /lesson
head -c 4000000 /dev/urandom >big.iso
for block in /lesson/[0-9][0-9]-*.sh; do
  what=$(grep -v '^cat\|^END\|^ ' "$block" | tail -1)
  case $block in
    *-client.sh) where=client ;;
    *) where="" ;;
  esac
  # The metrics of the server are not for the client.
  grep -q "smbdirect top" "$block" && where=""
  # Prometheus scrapes each minute.
  grep -q promtool "$block" && until_so 90 sh -c "promtool query instant http://127.0.0.1:9090 'smbdirect_gateway_rdma_bytes_total > 0' | grep -q rdma"
  expect "the page: $what" $where bash -eu "$block"
  case $what in
    *"systemctl status"*) grep -q "active (running)" out || fail "the status is not active" ;;
    *"smbdirect ping"*) [ "$(grep -c "^127\|^10\|time\| ms\| µs" out)" -ge 5 ] || fail "not four round trips" ;;
    *"smbdirect put"*) grep "by RDMA Read" out || fail "the file did not move by RDMA" ;;
    *promtool*) cat out ;;
  esac
done
cmp -s big.iso /srv/data/big.iso && cmp -s big.iso copy && echo "ok: the file is on the server, and came back" ||
  fail "the file is another"

echo "the unit: $(unit ActiveState), Type=$(unit Type), user $(unit User) (DynamicUser=$(unit DynamicUser)), status: $(unit StatusText)"
systemd-analyze security --no-pager smbdirect-gateway 2>/dev/null | tail -1

# The page about the service, from its beginning.
expect "the service page: install" bash -eu "$(service 'apt install')"
expect "the service page: check" bash -eu "$(service '--check-config')"
grep -q "gateway.toml is valid" out || fail "the check says nothing"
expect "the service page: start" bash -eu "$(service '^systemctl enable --now smbdirect-gateway$')"
export TERM=xterm
client smbdirect ping server.example --count 20 --interval 0.5 >/dev/null &
expect "the service page: status and top" terminal q "$(service 'smbdirect top')"
grep -q "active (running)" out && grep -q "10.0.0.2" out || { fail "top shows no connection"; cat out; }

# The log has fields.
journalctl -u smbdirect-gateway -o json --no-pager >log.json
fields=$(grep -o '"SMBDIRECT_[A-Z_]*"' log.json | sort -u | tr -d '"' | tr '\n' ' ')
echo "fields in the journal: $fields"
peer=$(grep -o '"SMBDIRECT_PEER":"[^"]*"' log.json | head -1 | cut -d'"' -f4)
journalctl -u smbdirect-gateway --no-pager SMBDIRECT_PEER="$peer" >one.log
grep "to server" one.log && echo "ok: the journal finds a connection by its peer" ||
  { fail "the journal does not find the peer $peer"; tail -n 3 log.json; }

timeout 3 bash -eu "$(service 'gateway -f$')" >log 2>&1
[ $? = 124 ] && grep -q "to server" log && echo "ok: the service page: follow the log" || { fail "the log is not followed"; tail -3 log; }
# The address in the page is an example, and here that of the peer.
find_client=$(service 'SMBDIRECT_PEER=')
sed -i "s/10.0.0.3:40000/$peer/" "$find_client"
expect "the service page: find a client" bash -eu "$find_client"
grep -q SMBDIRECT_ENDED out || fail "the page does not find the client"

# A reload ends no connection, and a faulty file changes nothing.
client smbdirect ping server.example --count 40 --interval 0.1 >ping 2>&1 &
ping=$!
sleep 1
echo 'max-connections = 7' >>/etc/smbdirect/gateway.toml
expect "the service page: reload" bash -eu "$(service 'systemctl reload')"
echo 'max-conections = 8' >>/etc/smbdirect/gateway.toml
systemctl reload smbdirect-gateway 2>/dev/null && fail "a faulty file was loaded"
sed -i '$d' /etc/smbdirect/gateway.toml
journalctl -u smbdirect-gateway --no-pager | grep -q 'max-conections' && echo "ok: the fault is in the journal" ||
  fail "the journal does not name the fault"
wait $ping && echo "ok: a connection outlives two reloads: $(tail -1 ping)" || { fail "a connection ended"; cat ping; }
[ "$(smbdirect top --once 2>/dev/null | grep -c .)" -gt 0 ] && echo "ok: still served"

# The limit of the control group is honoured, and named.
expect "a memory limit" sh -c "systemctl set-property --runtime smbdirect-gateway MemoryMax=600M && systemctl restart smbdirect-gateway"
journalctl -u smbdirect-gateway --no-pager | grep -m1 "is 600 MiB; using 450 MiB" || fail "the memory limit is not named"
[ "$(figure smbdirect_gateway_memory_limit_bytes 'answers')" = 117964800 ] || fail "the memory limit is not honoured"
expect "a restart without the limit" sh -c "systemctl set-property --runtime smbdirect-gateway MemoryMax=infinity && systemctl restart smbdirect-gateway"

# Stopping answers what was asked, and ends in time.
client smbdirect ping server.example --count 1000 --interval 0.01 >ping 2>&1 &
ping=$!
head -c 200000000 /dev/urandom >large.iso
SMBDIRECT_PASSWORD=secret client smbdirect put large.iso //server.example/data --user root >put 2>&1 &
put=$!
sleep 0.7
begun=$(date +%s%N)
expect "systemctl stop, with a file on its way" systemctl stop smbdirect-gateway
echo "stopped within $((($(date +%s%N) - begun) / 1000000)) ms, result $(unit Result)"
[ "$(unit Result)" = success ] || fail "the result is $(unit Result)"
wait $put; echo "put ended with $?: $(tail -1 put)"
wait $ping; echo "ping ended with $?: $(tail -1 ping)"
rm -f large.iso
[ "$(ls -A /srv/data | grep -v '^.smbdirect-')" = big.iso ] || fail "a file that did not arrive has its name"

# The socket of systemd: a client that connects while the service is down waits. The editor adds a port.
printf '#!/bin/sh\nprintf "[Socket]\\nListenStream=\\nListenStream=5445\\nBacklog=512\\n" >"$1"\n' >editor
chmod +x editor
export SYSTEMD_EDITOR=/lesson/editor
expect "the service page: the socket of systemd" terminal "" "$(service 'systemctl edit')"
[ "$(systemctl show smbdirect-gateway.socket -P Backlog)" = 512 ] || fail "the edit of the socket has no effect"
expect "the first client starts the service" client smbdirect ping server.example --count 2 --interval 0.1
[ "$(unit ActiveState)" = active ] || fail "the service is $(unit ActiveState)"
(sleep 0.3; systemctl restart smbdirect-gateway) &
for _ in 1 2 3 4 5; do client smbdirect ping server.example --count 1 || fail "refused during a restart"; sleep 0.2; done >/dev/null
wait
# An upgrade, which a reinstallation is for the scripts of the package, restarts what runs and keeps the settings.
cp /etc/smbdirect/gateway.toml settings
before=$(unit MainPID)
expect "installs over it" apt-get install -y --reinstall ./smbdirect_*.deb
cmp settings /etc/smbdirect/gateway.toml || fail "the settings changed"
expect "serves after it" client smbdirect ping server.example --count 2 --interval 0.1
[ "$(unit ActiveState)" = active ] && [ "$(unit MainPID)" != "$before" ] ||
  fail "after an upgrade the service is $(unit ActiveState), process $before became $(unit MainPID)"
for block in /lesson/service-*.sh; do
  grep -qxF "$block" ran || fail "a block of the service page did not run: $(cat "$block")"
done
expect "apt purge" apt-get purge -y smbdirect
systemctl is-active smbdirect-gateway smbdirect-gateway.socket | grep -qx active && fail "it still runs"
[ ! -e /etc/smbdirect ] || fail "/etc/smbdirect is left"
[ $failures = 0 ] && echo "the lesson ends"
