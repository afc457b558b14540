# Runs /lab/commands, which the case writes, with output to /lab/result. The case limits its time.
exec >/lab/result 2>&1
cd /tmp
# So that the neighbours' addresses are known before anything is timed.
for address in 10.77.0.1 10.77.0.2 10.77.0.3; do ping -c 1 -W 2 $address >/dev/null; done

# resources: lists the remaining RDMA objects, without those of the kernel itself.
resources() { rdma resource show | grep -v lo: | sed 's/^[0-9]*: //'; }

# until SECONDS COMMAND...: runs the command until it succeeds.
until_so() {
  left=$((10 * $1)); shift
  while [ $left -gt 0 ]; do "$@" >/dev/null 2>&1 && return 0; left=$((left - 1)); sleep 0.1; done
  return 1
}

. /lab/commands
dmesg >/lab/dmesg
echo end
