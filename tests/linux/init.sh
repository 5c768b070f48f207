#!/bin/sh
# The first process of the test's guest. What it does is named on the kernel's command line:
#   do=commands   run /commands.sh, then power off
#   do=panic      make the kernel panic
#   do=off        power off: what is left is the boot
#   nothing       a shell on the console; its end powers off
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev 2>/dev/null
echo "init: here, $(cut -d' ' -f1 /proc/uptime) s after the start"
case " $(cat /proc/cmdline) " in
*" do=commands "*) sh /commands.sh ;;
*" do=panic "*) echo c >/proc/sysrq-trigger ;;
*" do=off "*) ;;
*) setsid cttyhack sh ;;
esac
poweroff -f
