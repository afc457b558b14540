# Mixed traffic through three concurrent mounts: one with the kernel's defaults (RDMA), one signed and one
# encrypted (messages).
#   seconds  duration of the traffic
#   pause    seconds between two files [0]
mount_share 1 vers=3.1.1,nosharesock
mount_share 2 vers=3.1.1,nosharesock,cache=none,sign
mount_share 3 vers=3.1.1,nosharesock,cache=none,sign,seal

# load N: files of all sizes, written, renamed, listed, read back, removed.
load() {
  files=0 bytes=0 at=/mnt/$1/load-$1
  mkdir -p $at
  while [ "$(date +%s)" -lt $end ]; do
    # Most are small, some are large.
    case $(($(random) % 8)) in
      0) size=0 ;;
      1 | 2) size=$(($(random) % 5000)) ;;
      3 | 4) size=$(($(random) % 200000)) ;;
      5 | 6) size=$(($(random) % 2000000)) ;;
      7) size=$(($(random) * 997 % 30000000)) ;;
    esac
    name=f$(($(random) % 1000))
    head -c $size /dev/urandom >/tmp/load.$1
    sum=$(sum /tmp/load.$1)
    dd if=/tmp/load.$1 of=$at/new bs=1M conv=fsync 2>/dev/null || result "DIFFERS $1: a write failed"
    mv $at/new $at/$name
    drop_caches
    ls $at | grep -qx $name || result "DIFFERS $1: $name is not listed"
    back=$(dd if=$at/$name bs=$((1 + $(random) % 300))k 2>/dev/null | sha256sum | cut -c1-64)
    [ "$back" = "$sum" ] || result "DIFFERS $1: $size bytes came back as $back instead of $sum"
    rm $at/$name
    files=$((files + 1)) bytes=$((bytes + size))
    sleep ${pause:-0}
    # Silences as well, now and then a long one.
    [ $(($(random) % 50)) != 0 ] || sleep $(($(random) % 8))
    [ $((files % 100)) != 0 ] || result "so far $1: $files files, $bytes bytes"
  done
  rmdir $at
  result "done $1: $files files, $bytes bytes"
}
random() { od -An -N2 -tu2 /dev/urandom | tr -d ' '; }

end=$(($(date +%s) + seconds))
for n in 1 2 3; do load $n & done
wait
for n in 1 2 3; do unmount_share $n; done
