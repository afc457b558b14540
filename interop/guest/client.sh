# The job of a guest with the kernel's client. In the file parameters, which is sourced:
#   mounts     how many at once, each with a connection of its own
#   options    of the mounts
#   sizes      of the files that are written and read back through each mount
#   keepalive  the client's smbd_keep_alive_interval, in seconds [120, the kernel's own]
#   threshold  for rdma_readwrite_threshold; RDMA is used above it [1000000, which is never]
#   script     a file to run instead of the common part
# What came of it goes to the file result, a line for each thing that was done.
mounts=1 options=sign sizes="0 1 4095 65536" threshold=1000000 keepalive=120 script=
. /lab/parameters
result() { echo "$@" >>/lab/result; echo "lab: $*"; }
sum() { sha256sum <"$1" | cut -c1-64; }
now() { cut -d' ' -f1 /proc/uptime; }

# mount_share N: the share on /mnt/N. A first connection that got lost is tried again.
mount_share() {
  mkdir -p /mnt/$1
  for try in 1 2 3; do
    mount.cifs //10.77.0.1/share /mnt/$1 \
      -o rdma,username=root,password=lab,vers=3.1.1,cache=none,noperm,nosharesock,$options && return 0
    result "mount $1 try $try failed"
  done
  return 1
}

# through N: writes files through mount N, reads them back, and has the host check them too.
through() {
  for size in $sizes; do
    head -c $size /dev/urandom >/tmp/$1.$size
    expected=$(sum /tmp/$1.$size)
    dd if=/tmp/$1.$size of=/mnt/$1/$1.$size bs=1M conv=fsync 2>/dev/null || result "write $1.$size failed"
    rm /tmp/$1.$size
    # A copy would be read from the page cache; with cache=none it comes from the server.
    back=$(dd if=/mnt/$1/$1.$size bs=1M 2>/dev/null | sha256sum | cut -c1-64)
    [ "$back" = "$expected" ] && result "file $1.$size $expected" || result "DIFFERS $1.$size $expected $back"
  done
}

echo $threshold >/proc/fs/cifs/rdma_readwrite_threshold
echo $keepalive >/proc/fs/cifs/smbd_keep_alive_interval
# So that the neighbour's address is known before the mount's time runs.
ping -c 1 -W 5 10.77.0.1 >/dev/null && result "host answers"
if [ -n "$script" ]; then
  . /lab/$script
else
  begun=$(now)
  for n in $(seq $mounts); do mount_share $n && result "mounted $n" || result "mount $n FAILED"; done
  result "mounts took $(echo "$begun $(now)" | awk '{print $2-$1}') s"
  cat /proc/fs/cifs/DebugData >/lab/debug
  result "listed $(ls /mnt/1 | sort | tr '\n' ' ')"
  result "read $(sum /mnt/1/from-host)"
  begun=$(now)
  for n in $(seq $mounts); do through $n & done
  wait
  result "files took $(echo "$begun $(now)" | awk '{print $2-$1}') s"
  for n in $(seq $mounts); do umount /mnt/$n && result "unmounted $n" || result "umount $n FAILED"; done
fi
# The kernel ends its connections behind umount, not within.
sleep 1
dmesg >/lab/dmesg
result end
