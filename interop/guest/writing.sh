# Writes new files of the known pattern again and again for two minutes.
mount_share 1 $options
cp /lab/pattern /tmp/pattern
n=0
end=$(($(date +%s) + 120))
while [ "$(date +%s)" -lt $end ]; do
  file=/mnt/1/written-$((n % 8))
  rm -f $file
  dd if=/tmp/pattern of=$file bs=1M conv=fsync 2>/dev/null
  n=$((n + 1))
  [ $n != 1 ] || result now
done
