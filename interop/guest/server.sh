# The job of a guest with the kernel's server: it runs the file `command`, if there is one, and then until the host creates
# the file `stop`.
touch /lab/up
while [ ! -e /lab/stop ]; do
  if [ -e /lab/command ]; then mv /lab/command /tmp/command; . /tmp/command; touch /lab/commanded; fi
  sleep 1
  ls /srv/share >/lab/listing.new; (cd /srv/share && sha256sum -- * 2>/dev/null) >/lab/sums.new
  mv /lab/listing.new /lab/listing; mv /lab/sums.new /lab/sums
  dmesg >/lab/dmesg
done
