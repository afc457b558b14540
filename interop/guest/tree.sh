# Creates a tree of small files and changes files in several ways, both on the mount and in a local folder.
for n in 1 2; do mount_share $n ${options%% *}; done
cat /proc/fs/cifs/DebugData >/lab/debug
result "read $(sum /mnt/1/from-host)"
begun=$(now)
cp -r /lab/files /mnt/1/tree || result "copying the tree FAILED"
mv /mnt/1/tree /mnt/1/moved || result "renaming the tree FAILED"
drop_caches
diff -r /lab/files /mnt/1/moved >/dev/null && result "same tree" || result "DIFFERS tree"
result "the tree took $(since $begun) s"

head -c 3000000 /dev/urandom >/tmp/data
mkdir /tmp/local /mnt/1/changed
# in_both COMMAND: runs the command in the local folder and on the mount.
in_both() {
  for folder in /tmp/local /mnt/1/changed; do (cd $folder && eval "$1") >/dev/null 2>&1 || result "$folder: $1 FAILED"; done
}
# part SKIP COUNT: prints bytes of the data.
part() { tail -c +$(($1 + 1)) /tmp/data | head -c $2; }

in_both 'part 0 1000000 >renamed-before && mv renamed-before renamed'
in_both 'part 5 700000 >old && part 9 50000 >new && mv new old && mv old replaced'
in_both 'part 1 1000000 >truncated && truncate -s 300001 truncated && truncate -s 900000 truncated && truncate -s 0 emptied'
in_both 'truncate -s 3000000 sparse && dd if=/tmp/data of=sparse bs=65536 count=3 seek=30 conv=notrunc && dd if=/tmp/data of=sparse bs=1000 count=1 seek=777 conv=notrunc'
in_both 'for n in $(seq 0 49); do part $((n * 10000)) 10000 >>appended; part $n $n >>appended; done'
in_both 'for n in 0 1 2 3; do part $((n * 4096)) 4096 | dd of=fsynced bs=4096 seek=$((5 * n)) conv=notrunc,fsync; done'
in_both '/usr/bin/dd if=/tmp/data of=synced bs=100000 oflag=dsync'
in_both 'for n in $(seq 0 28); do dd if=/tmp/data of=overwritten bs=99999 count=1 skip=$n seek=$((n * 7 % 29)) conv=notrunc; done'
dd if=/tmp/data of=/tmp/local/direct bs=1M count=2 2>/dev/null
dd if=/tmp/data of=/mnt/1/changed/direct bs=1M count=2 oflag=direct 2>/dev/null

# Two clients concurrently write alternate ranges of one file.
cp /tmp/data /tmp/local/shared
truncate -s 3000000 /mnt/1/changed/shared
# alternate FIRST CLIENT BYTES: the client writes every second range from the first on.
alternate() {
  for n in $(seq $1 2 $((3000000 / $3 - 1))); do
    dd if=/tmp/data of=/mnt/$2/changed/shared bs=$3 count=1 skip=$n seek=$n conv=notrunc 2>/dev/null || result "shared $n FAILED"
  done
}
for bytes in 50000 100000; do
  alternate 0 1 $bytes & alternate 1 2 $bytes & wait
done

sync
drop_caches
for file in $(ls /tmp/local); do
  expected=$(sum /tmp/local/$file)
  for n in 1 2; do
    back=$(sum /mnt/$n/changed/$file)
    [ "$back" = "$expected" ] || result "DIFFERS $n $file $expected $back"
  done
  result "file changed/$file $expected"
done
result "files took $(since $begun) s"
for n in 1 2; do unmount_share $n; done
