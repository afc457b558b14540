# Reads a file of the known pattern again and again for two minutes. A read may fail, because the case cuts
# the connection, but the data that it returns must be right.
mount_share 1 $options
cp /lab/pattern /tmp/pattern
dd if=/tmp/pattern of=/mnt/1/to-read bs=1M conv=fsync 2>/dev/null
result now
end=$(($(date +%s) + 120))
while [ "$(date +%s)" -lt $end ]; do
  drop_caches
  dd if=/mnt/1/to-read bs=1M 2>/dev/null | cmp - /tmp/pattern 2>&1 | grep differ && result "DIFFERS to-read"
done
