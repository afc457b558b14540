# Works on the share until the host creates the file `stop`: writes and reads whole files of the known pattern, and
# meanwhile appends to a file that stays open, in small parts. A step may fail while a server is dead; data that is read
# after a write that succeeded must be right. Parameters:
#   share    the name of the share
#   name     the name of this client, which its files begin with
#   options  mount options
#   lock     holds: keeps the lock of the file `locked`; tries: asks for it again and again
mount_it() {
  mkdir -p /mnt/1
  for try in 1 2 3; do
    mount.cifs //$address/$share /mnt/1 -o $road,$options && return 0
    result "mount try $try failed"
  done
  result "mount FAILED"
  return 1
}
# step WHAT COMMAND...: runs a command, and reports its error with the time.
step() {
  local what=$1; shift
  "$@" 2>/tmp/$what.error && return 0
  result "error $what $(date +%s) $(grep -v records /tmp/$what.error | tail -n 1)"
  return 1
}
# part POSITION: prints the next bytes of the pattern.
part() { tail -c +$(($1 + 1)) /tmp/pattern | head -c 4096; }
append() { part $1 | dd bs=4096 iflag=fullblock conv=fsync >&3; }
keep_open() {
  exec 3<>/mnt/1/$name-open
  while [ ! -e /lab/stop ]; do
    # $BASHPID is not in this shell.
    at=$(sh -c 'awk "/^pos/ {print \$2}" /proc/self/fdinfo/3' <&3)
    if step append append $at; then acknowledged=$((at + 4096)); else result "doubtful $at"; fi
    sleep 0.3
  done
  result "acknowledged $acknowledged"
  exec 3>&-
}
hold_lock() {
  exec 4<>/mnt/1/locked
  /lab/flock 4 && result "lock taken"
  until_so 1000 test -e /lab/stop
}
try_lock() {
  before=
  while [ ! -e /lab/stop ]; do
    if /lab/flock -n /mnt/1/locked true 2>/tmp/lock.error; then now=free; else now=taken; fi
    [ "$now" = "$before" ] || result "lock $now $(date +%s)"
    before=$now
    sleep 0.5
  done
}
until_so() {
  local end=$(($(date +%s) + $1)); shift
  until "$@" >/dev/null 2>&1; do [ $(date +%s) -lt $end ] || return 1; sleep 0.2; done
}

cp /lab/pattern /tmp/pattern
head -c 1000000 /tmp/pattern >/tmp/whole
mount_it
keep_open & parts=$!
case $lock in
  holds) hold_lock & ;;
  tries) try_lock & ;;
esac
n=0
while [ ! -e /lab/stop ]; do
  file=/mnt/1/$name-$((n % 8))
  step remove rm -f $file
  if step write dd if=/tmp/whole of=$file bs=1M conv=fsync; then
    drop_caches
    if step read dd if=$file of=/tmp/back bs=1M; then
      cmp /tmp/back /tmp/whole || result "DIFFERS $file"
      n=$((n + 1))
      result "round $n $(date +%s)"
    fi
  fi
  sleep 0.2
done
wait $parts
cat /proc/fs/cifs/DebugData >/lab/debug
cat /proc/fs/cifs/Stats >/lab/stats
umount /mnt/1 && result "unmounted 1"
