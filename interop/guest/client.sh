# The job of a guest with the kernel's client. It sources the file parameters, which sets:
#   address    the server's address [10.77.0.1]
#   options    one word per mount: its mount options, without those of the account [vers=3.1.1]
#   road       mount options of all mounts that select the transport and port [rdma]
#   sizes      sizes of the files that are written and read back through each mount
#   keepalive  smbd_keep_alive_interval of the client, in seconds [the kernel's default, 120]
#   threshold  rdma_readwrite_threshold: the client uses RDMA from this size on [the kernel's default, 4096]
#   script     a file to run instead of the common part
# It appends a line to the file `result` for each completed step.
address=10.77.0.1 options=vers=3.1.1 road=rdma sizes="0 1 4095 65536" keepalive= threshold= script=
. /lab/parameters
result() { echo "$@" >>/lab/result; echo "lab: $*"; }
sum() { sha256sum <"$1" | cut -c1-64; }
now() { cut -d' ' -f1 /proc/uptime; }
since() { echo "$1 $(now)" | awk '{print $2-$1}'; }
# Makes the next read of a file that was written and flushed come from the server.
drop_caches() { echo 3 >/proc/sys/vm/drop_caches; }

# mount_share N OPTIONS: mounts the share on /mnt/N. siw loses some first connections, so it tries again.
mount_share() {
  mkdir -p /mnt/$1
  for try in 1 2 3; do
    mount.cifs //$address/share /mnt/$1 -o ${road:+$road,}username=root,password=lab,$2 && result "mounted $1" && return 0
    result "mount $1 try $try failed"
  done
  result "mount $1 FAILED"
  return 1
}

unmount_share() { umount /mnt/$1 && result "unmounted $1" || result "umount $1 FAILED"; }

# through N: writes files through mount N, reads them back, and has the host check them too.
through() {
  for size in $sizes; do
    head -c $size /dev/urandom >/tmp/$1.$size || result "making $1.$size FAILED"
    expected=$(sum /tmp/$1.$size)
    dd if=/tmp/$1.$size of=/mnt/$1/$1.$size bs=1M conv=fsync 2>/dev/null || result "write $1.$size FAILED"
    rm /tmp/$1.$size
    drop_caches
    back=$(dd if=/mnt/$1/$1.$size bs=1M 2>/dev/null | sha256sum | cut -c1-64)
    [ "$back" = "$expected" ] && result "file $1.$size $expected" || result "DIFFERS $1.$size $expected $back"
  done
}

[ -z "$threshold" ] || echo $threshold >/proc/fs/cifs/rdma_readwrite_threshold
[ -z "$keepalive" ] || echo $keepalive >/proc/fs/cifs/smbd_keep_alive_interval
# The neighbour's address is then known before the time of the mount runs.
ping -c 1 -W 5 $address >/dev/null && result "host answers"
if [ -n "$script" ]; then
  . /lab/$script
else
  begun=$(now)
  mounts=0
  for each in $options; do mounts=$((mounts + 1)); mount_share $mounts $each; done
  result "mounts took $(since $begun) s"
  cat /proc/fs/cifs/DebugData >/lab/debug
  result "listed $(ls /mnt/1 | sort | tr '\n' ' ')"
  result "read $(sum /mnt/1/from-host)"
  begun=$(now)
  for n in $(seq $mounts); do through $n & done
  wait
  result "files took $(since $begun) s"
  for n in $(seq $mounts); do unmount_share $n; done
fi
# The kernel ends its connections after umount returns.
sleep 1
dmesg >/lab/dmesg
result end
