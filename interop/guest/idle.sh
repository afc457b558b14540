# Nothing goes on, for two minutes.
mount_share 1 && result "mounted 1"
result now
sleep 120
