# Measures the rate of reading or writing a file, on the mounts alternately. Parameters:
#   operation  read or write
#   rounds     number of rounds for each mount
#   megabytes  size of the file
#   roads      names of the mounts; the variable of each name has the mount's options
for each in $roads; do eval "mount_share $each vers=3.1.1,nosharesock,\$$each"; done
[ $operation = write ] && head -c $((megabytes << 20)) /dev/urandom >/tmp/data
for round in $(seq $rounds); do
  for each in $roads; do
    drop_caches
    begun=$(now)
    case $operation in
      read) dd if=/mnt/$each/$each of=/dev/null bs=1M 2>/dev/null || result "read $each FAILED" ;;
      write) dd if=/tmp/data of=/mnt/$each/written-$each bs=1M conv=fsync 2>/dev/null || result "write $each FAILED" ;;
    esac
    result "rate $operation $each $(since $begun | awk -v mebibytes=$megabytes '{print mebibytes / 1024 / $1}')"
    rm -f /mnt/$each/written-$each
  done
done
for each in $roads; do unmount_share $each; done
