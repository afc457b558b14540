# Files are written without end, for two minutes.
mount_share 1 && result "mounted 1"
head -c 8388608 /dev/urandom >/tmp/data
result now
end=$(($(date +%s) + 120))
while [ "$(date +%s)" -lt $end ]; do dd if=/tmp/data of=/mnt/1/written bs=1M conv=fsync 2>/dev/null; done
