# A job that the case writes: /lab/commands, whose lines go to /lab/result. It is bounded by the case.
exec >/lab/result 2>&1
cd /tmp
# So that the neighbours' addresses are known before anything is timed.
for address in 10.77.0.1 10.77.0.2 10.77.0.3; do ping -c 1 -W 2 $address >/dev/null; done

# resources: objects of RDMA that are left, those of the kernel itself aside.
resources() { rdma resource show | grep -v lo: | sed 's/^[0-9]*: //'; }

# until SECONDS COMMAND...: waits for it to succeed.
until_so() {
  left=$((10 * $1)); shift
  while [ $left -gt 0 ]; do "$@" >/dev/null 2>&1 && return 0; left=$((left - 1)); sleep 0.1; done
  return 1
}

. /lab/commands
dmesg >/lab/dmesg
echo end
