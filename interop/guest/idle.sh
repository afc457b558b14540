# Stays idle for a while, then lists the share from time to time, for two minutes.
mount_share 1 $options
result now
sleep 15
for i in $(seq 20); do ls /mnt/1 >/dev/null 2>&1; sleep 5; done
