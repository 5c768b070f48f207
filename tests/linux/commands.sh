# What a user does on a first day, with one line of outcome each: "ok NAME" or "bad NAME".
say() {
    if [ "$2" = "$3" ]; then echo "ok $1"; else echo "bad $1: '$2' is not '$3'"; fi
}

# files
cd /tmp
seq 1 2000 >numbers
say files "$(wc -l <numbers)" 2000
say sort "$(sort -rn numbers | head -n 1)" 2000
say checksum "$(seq 1 2000 | md5sum | cut -d' ' -f1)" "$(md5sum <numbers | cut -d' ' -f1)"
dd if=/dev/zero of=big bs=64k count=64 2>/dev/null
say big "$(sha256sum big | cut -c1-16)" bb9f8df61474d25e
gzip -c numbers | gunzip -c | cmp - numbers && say gzip same same
rm big

# pipes and processes
say pipe "$(seq 1 100 | tr '\n' ' ' | wc -w)" 100
(exit 7)
say status $? 7
sleep 1000 &
kill $!
wait $! 2>/dev/null
say signal $? 143
n=0
for i in 1 2 3 4 5 6 7 8 9 10; do
    (exit "$i") &
done
wait
say fork "$(for i in 1 2 3; do sh -c 'echo $$' | grep -c .; done | tr -d '\n')" 111

# arithmetic: whole numbers, and doubles where the shell's tools use them
say whole "$((123456789 * 987654321 % 1000007))" 192139
say awk "$(awk 'BEGIN { printf "%.10f", 2.5 / 3 + 1e-3 * 7 - 0.1 }')" 0.7403333333
say series "$(awk 'BEGIN { s = 0; for (i = 1; i <= 1000; i++) s += 1 / (i * i); printf "%.12f", s }')" 1.643934566682

# time goes on, at about its own pace
before=$(date +%s)
sleep 1
say clock "$(( $(date +%s) - before >= 1 ))" 1

echo "cpus $(grep -c ^processor /proc/cpuinfo)"
echo "memory $(awk '/MemTotal/ { print $2 }' /proc/meminfo)"
echo "interrupts $(awk '/timer|LOC/ { s += $2 } END { print (s > 0) }' /proc/interrupts)"
echo "warnings begin"
dmesg -r | grep -E '^<[0-4]>'
echo "warnings end"
echo "commands done"
