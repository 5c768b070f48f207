#!/bin/sh
# First process of the nested machine: loads KVM, runs each test of /tests, says how it ended.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp
mkdir -p /dev/shm
for m in irqbypass ccp kvm kvm-amd; do
    [ ! -f /modules/$m.ko ] || insmod /modules/$m.ko || echo "nested: module $m failed"
done
[ -c /dev/kvm ] || echo "nested: no /dev/kvm"
ip link set lo up 2>/dev/null
export MAYFLY_HV=/bin/hv MAYFLY_TEST_PLUGINS=/plugins MAYFLY_TEST_GUESTS=/guests MAYFLY_TEST_BAD=/plugins
export MAYFLY_TEST_FEW=1 MAYFLY_TEST_ENGINE=kvm MAYFLY_TEST_NEED_KVM=1 LD_LIBRARY_PATH=/lib TMPDIR=/tmp HOME=/tmp
for t in $(cat /tests/order); do
    echo "nested: begin $t"
    start=$(cut -d' ' -f1 /proc/uptime)
    timeout 200 /tests/$t
    echo "nested: end $t $? $start $(cut -d' ' -f1 /proc/uptime)"
done
echo "nested: done"
poweroff -f
