# A file is read without end, for two minutes.
mount_share 1 && result "mounted 1"
dd if=/dev/urandom of=/mnt/1/to-read bs=1M count=8 2>/dev/null
result now
end=$(($(date +%s) + 120))
while [ "$(date +%s)" -lt $end ]; do dd if=/mnt/1/to-read of=/dev/null bs=1M 2>/dev/null; done
