# The job of a guest with the kernel's server: it runs until the host creates the file `stop`.
touch /lab/up
while [ ! -e /lab/stop ]; do
  sleep 1
  ls /srv/share >/lab/listing.new; (cd /srv/share && sha256sum -- * 2>/dev/null) >/lab/sums.new
  mv /lab/listing.new /lab/listing; mv /lab/sums.new /lab/sums
  dmesg >/lab/dmesg
done
