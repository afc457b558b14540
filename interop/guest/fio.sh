# fio writes blocks of random sizes at random offsets and verifies them: through the page cache, by direct
# I/O, by memory maps, and with many outstanding requests. Blocks in the page cache are whole pages, because
# cifs fails to register the memory of a partly dirty page that it reads ("ib_map_mr_sg failed") and then
# closes its connection.
mount_share 1 $options
cat /proc/fs/cifs/DebugData >/lab/debug
result "read $(sum /mnt/1/from-host)"
begun=$(now)
# job NAME OPTION...
job() {
  name=$1; shift
  /lab/program/ld-linux-x86-64.so.2 --library-path /lab/program /lab/program/fio --name=$name --directory=/mnt/1 \
    --size=32M --rw=randrw --fsync=20 --fallocate=none --verify=crc32c --verify_fatal=1 --randseed=7 "$@" \
    >/lab/fio-$name.log 2>&1 && result "fio $name verified" || result "fio $name FAILED"
}
job cached --ioengine=psync --bsrange=4k-256k
job direct --ioengine=psync --bsrange=512-256k --direct=1 --blockalign=512
job mapped --ioengine=mmap --bsrange=4k-256k
job deep --ioengine=libaio --bsrange=512-4M --direct=1 --blockalign=512 --iodepth=64
sync
drop_caches
for name in cached direct mapped deep; do result "file $name.0.0 $(sum /mnt/1/$name.0.0)"; done
result "files took $(since $begun) s"
unmount_share 1
