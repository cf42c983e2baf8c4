#!/bin/bash
# What runs inside the guest, as root, under systemd: Dayfly as its users have it, on pure cgroup v2 and Debian's own kernel.
# Each check is a function; it says `vm: ok NAME` or `vm: FAIL NAME` with what it said. The last line counts both.
# Software emulation is slow, so times are only checked roughly.
export LC_ALL=C HOME=/root PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin
here=$(cd "$(dirname "$0")" && pwd)
keep=$(mktemp -d) # what one check leaves for the next
readonly data=/var/lib/dayfly config=/etc/dayfly.yaml unit=dayfly.service groups=/sys/fs/cgroup
readonly late_max_ms=5000 wait_max=60
passed=0 failed=0

check() {
	local name=$1 out code begin=$SECONDS
	out=$(set -eu; "$name" 2>&1)
	code=$?
	if [ "$code" = 0 ]; then
		passed=$((passed + 1))
		echo "vm: ok $name ($((SECONDS - begin)) s)${out:+: $(tail -n 1 <<<"$out")}"
		return
	fi
	failed=$((failed + 1))
	echo "vm: FAIL $name: exit $code"
	tail -n 25 <<<"$out" | sed "s/^/vm:   /"
	journalctl -q -u "$unit" -n 60 -o cat --no-pager 2>/dev/null | grep -v level=INFO | tail -n 5 | cut -c1-300 | sed "s/^/vm:   log: /"
	return 1
}

# finish closes the results.
finish() {
	dmesg -l emerg,alert,crit,err --notime | grep -vi 'memory cgroup out of memory' | sed 's/^/vm: kernel: /' | head -n 20
	echo "$passed passed, $failed failed"
	exit
}

die() { echo "$*"; exit 1; }

# same fails unless what is expected and what is there are equal.
same() { [ "$1" = "$2" ] || die "$3: want '$1', have '$2'"; }

# until_true waits for a command to succeed, where nothing tells of the event.
until_true() {
	local end=$((SECONDS + wait_max))
	until "$@"; do
		[ "$SECONDS" -lt "$end" ] || { echo "still not after $wait_max s: $*"; return 1; }
		sleep 0.05
	done
}

field() { jq -r ".$1"; }
group() { echo "$groups"/dayfly-*/"$1"; }
alive() { [ -e "$(group "$1")/cgroup.events" ] && grep -q 'populated 1' "$(group "$1")/cgroup.events" 2>/dev/null; }
dead() { ! alive "$1"; }
main_pid() { systemctl show -p MainPID --value "$unit"; }
answers() { curl -sf --max-time 2 http://127.0.0.1:2424/readyz >/dev/null; }
count() { dayfly audit -o json --data "$data" | jq '.objects | length'; }

# on_time waits for the end of a sandbox and checks that it came at its deadline, given in the form of the API.
on_time() {
	local late
	until_true dead "$1"
	late=$((($(date +%s%N) - $(date -d "$2" +%s%N)) / 1000000))
	[ "$late" -ge -300 ] && [ "$late" -le "$late_max_ms" ] || die "the end came $late ms after the deadline"
	echo "seen $late ms after the deadline"
}

kernel_and_layout() {
	same cgroup2fs "$(stat -fc %T "$groups")" "file system of $groups"
	! grep -q ' cgroup ' /proc/mounts || die "a version 1 hierarchy is mounted"
	same 1 "$(cat /proc/1/comm | grep -c systemd)" "PID 1"
	case $(uname -r) in 6.1.*) ;; *) die "kernel $(uname -r)" ;; esac
	uname -r
}

doctor() {
	"$here/dayfly" doctor | tee "$keep/doctor"
	grep -q 'ok *cgroups *version 2 at /sys/fs/cgroup$' "$keep/doctor"
	grep -q 'ok *disk limits *classic quotas' "$keep/doctor"
	grep -q 'ok *driver linux' "$keep/doctor"
	! grep -q ^failed "$keep/doctor"
	tail -n 1 "$keep/doctor"
}

install_dry_run() {
	"$here/dayfly" install --systemd --start --dry-run --config "$config"
	[ ! -e /usr/local/bin/dayfly ] && [ ! -e /etc/systemd/system/$unit ] && [ ! -e "$data" ]
}

install_and_start() {
	"$here/dayfly" install --systemd --start --config "$config"
	same active "$(systemctl is-active $unit)" "the unit"
	same enabled "$(systemctl is-enabled $unit)" "the unit"
	answers || die "systemd says active, but the server does not answer"
	dayfly status
	[ -s /usr/local/share/bash-completion/completions/dayfly ]
}

install_again() {
	local before
	before=$(main_pid)
	"$here/dayfly" install --systemd --start --config "$config"
	same "$before" "$(main_pid)" "the server's process"
}

create() {
	dayfly create --timeout 20m --vcpu 1 --memory-mb 192 --disk-mb 256 >"$keep/id"
	dayfly show "$(cat "$keep/id")"
}

exec_commands() {
	local id
	id=$(cat "$keep/id")
	same user "$(dayfly exec "$id" -- id -un)" "the user"
	same root "$(dayfly exec "$id" --user root -- id -un)" "root"
	same hello "$(echo hello | dayfly exec "$id" -- cat)" "standard input"
	dayfly exec "$id" -n -- sh -c 'exit 7' && die "exit code 0" || same 7 $? "the exit code"
}

own_cgroups() {
	local id dir warden
	id=$(cat "$keep/id")
	dir=$(group "$id")
	same 201326592 "$(cat "$dir/memory.max")" memory.max
	same 0 "$(cat "$dir/memory.swap.max" 2>/dev/null || echo 0)" memory.swap.max
	same 100 "$(cat "$dir/pids.max")" pids.max
	same "100000 100000" "$(cat "$dir/cpu.max")" cpu.max
	warden=$(pgrep -f 'dayfly warden')
	grep -q '^0::/dayfly-[a-z0-9]*/warden$' "/proc/$warden/cgroup" || die "warden: $(cat "/proc/$warden/cgroup")"
	same "$(main_pid)" "$(cat "$groups/system.slice/$unit/cgroup.procs")" "processes in the unit"
}

systemd_leaves_limits_alone() {
	local dir
	dir=$(group "$(cat "$keep/id")")
	systemctl daemon-reload
	systemctl daemon-reexec
	systemctl start systemd-tmpfiles-clean.service
	same 201326592 "$(cat "$dir/memory.max")" memory.max
	same 100 "$(cat "$dir/pids.max")" pids.max
	same "100000 100000" "$(cat "$dir/cpu.max")" cpu.max
}

memory_limit() {
	local id
	id=$(cat "$keep/id")
	dayfly exec "$id" -n -o json -- sh -c 'tail /dev/zero' >"$keep/oom" && die "it survived" || true
	grep -q '"oom_killed": *true' "$keep/oom" || die "$(cat "$keep/oom")"
	same "still here" "$(dayfly exec "$id" -n -- echo still here)" "the sandbox afterwards"
}

pid_limit() {
	local id
	id=$(cat "$keep/id")
	dayfly exec "$id" -n -- sh -c 'i=0; while [ $i -lt 150 ]; do sleep 100 & i=$((i+1)); done; echo all' 2>&1 | tee "$keep/forks" || true
	! grep -qx all "$keep/forks" || die "150 processes started"
	dayfly exec "$id" -n -- killall sleep
	same max "$(awk '$1 == "max" && $2 > 0 {print $1}' "$(group "$id")/pids.events")" "pids.events"
	same "still here" "$(dayfly exec "$id" -n -- echo still here)" "the sandbox afterwards"
}

disk_limit() {
	local id kib
	id=$(cat "$keep/id")
	dayfly exec "$id" -n -- dd if=/dev/zero of=big bs=1M count=400 && die "400 MiB were written" || true
	kib=$(dayfly exec "$id" -n -- du -k big | cut -f1)
	[ "$kib" -gt 200000 ] && [ "$kib" -le 262144 ] || die "$kib KiB were written"
	dayfly exec "$id" -n -- rm big
	dayfly exec "$id" -n -- dd if=/dev/zero of=small bs=1M count=10
	echo "$kib KiB were written"
}

# full_pool has the tests of the disk pool fill one, with and without discard: its room must come back on this kernel too.
full_pool() {
	cd "$keep"
	TMPDIR=/var/tmp "$here/disk.test" -test.run '^TestFullPool$' -test.parallel 1 -test.v | tee full_pool
	grep -q '^PASS$' full_pool
	grep -o 'the room was back after .*' full_pool | tail -n 1
}

no_default_route() {
	same "" "$(ip route show default)" "the guest's default route"
	dayfly exec "$(cat "$keep/id")" -n -- ip -4 addr show dev eth0 | grep inet
}

dummy_default_route() {
	ip link add dummy0 type dummy && ip addr add 192.0.2.2/24 dev dummy0 && ip link set dummy0 up && ip route add default via 192.0.2.1
	same routed "$(dayfly run --timeout 2m -- echo routed)" "a sandbox"
	ip link del dummy0
}

lease_with_server() {
	local id
	id=$(dayfly create --timeout 8s)
	on_time "$id" "$(dayfly show "$id" -o json | field expires_at)"
	same lease_expired "$(dayfly show "$id" -o json | field end_reason)" end_reason
}

lease_with_killed_server() {
	local id deadline pid restarts
	id=$(dayfly create --timeout 10s)
	deadline=$(dayfly show "$id" -o json | field expires_at)
	pid=$(main_pid) restarts=$(systemctl show -p NRestarts --value $unit)
	kill -9 "$pid"
	on_time "$id" "$deadline"
	until_true answers
	[ "$(main_pid)" != "$pid" ]
	same $((restarts + 1)) "$(systemctl show -p NRestarts --value $unit)" NRestarts
	same lease_expired "$(dayfly show "$id" -o json | field end_reason)" end_reason
	alive "$(cat "$keep/id")" || die "the other sandbox died with the server"
	echo "systemd started it again; ended at $(dayfly show "$id" -o json | field ended_at), due $deadline"
}

lease_with_stopped_unit() {
	local id deadline
	id=$(dayfly create --timeout 10s)
	deadline=$(dayfly show "$id" -o json | field expires_at)
	systemctl stop $unit
	alive "$id" || die "the sandbox ended with the unit"
	on_time "$id" "$deadline"
	systemctl start $unit
	same lease_expired "$(dayfly show "$id" -o json | field end_reason)" end_reason
	echo "ended at $(dayfly show "$id" -o json | field ended_at), due $deadline"
}

restart_keeps_exec() {
	local id client inner warden pid
	id=$(cat "$keep/id")
	dayfly exec "$id" -n -- sh -c 'i=0; while [ ! -e stop ]; do echo line $i; i=$((i+1)); sleep 1; done' >"$keep/lines" 2>"$keep/errors" &
	client=$!
	until_true grep -q 'line 1$' "$keep/lines" || die "it said: $(cat "$keep/lines" "$keep/errors")"
	inner=$(pgrep -f '^sh -c i=0; while') warden=$(pgrep -f 'dayfly warden') pid=$(main_pid)
	systemctl restart $unit
	same "$inner" "$(pgrep -f '^sh -c i=0; while')" "the command's process"
	same "$warden" "$(pgrep -f 'dayfly warden')" "the warden's process"
	[ "$pid" != "$(main_pid)" ]
	dayfly exec "$id" -n -- touch stop
	wait "$client" || die "the client: exit $?: $(cat "$keep/errors")"
	awk '$0 != "line " NR - 1 {print "line " NR " is: " $0; bad = 1} END {print NR " lines, each once"; exit bad}' "$keep/lines"
}

stop_then_audit() {
	systemctl stop $unit
	alive "$(cat "$keep/id")" || die "the sandbox ended with the unit"
	dayfly audit
	[ "$(count)" -gt 0 ]
	[ ! -e "$groups/system.slice/$unit" ] || die "the unit's group stays: $(cat "$groups/system.slice/$unit/cgroup.procs")"
	systemctl start $unit
	same "still here" "$(dayfly exec "$(cat "$keep/id")" -n -- echo still here)" "the sandbox afterwards"
}

bomb_and_delete() {
	local id
	id=$(dayfly create --timeout 5m --memory-mb 256)
	dayfly exec "$id" -n -- sh -c 'b() { b | b & }; b; sleep 1' >/dev/null 2>&1 || true
	timeout 30 dayfly rm "$id"
	dead "$id"
}

gvisor_create() {
	dayfly create --isolation gvisor --timeout 20m --vcpu 1 --memory-mb 128 --disk-mb 256 >"$keep/gvisor"
	same gvisor "$(dayfly show "$(cat "$keep/gvisor")" -o json | field isolation)" "the isolation"
}

gvisor_exec() {
	local id
	id=$(cat "$keep/gvisor")
	same user "$(dayfly exec "$id" -- id -un)" "the user"
	same hello "$(echo hello | dayfly exec "$id" --user root -- cat)" "standard input"
	dayfly exec "$id" -n -- sh -c 'exit 7' && die "exit code 0" || same 7 $? "the exit code"
	dayfly exec "$id" -n -- uname -r | tee "$keep/uname"
	grep -q gvisor "$keep/uname"
}

# gvisor_cgroups: everything of the machine is below the limits and nobody on the host.
gvisor_cgroups() {
	local dir pid
	dir=$(group "$(cat "$keep/gvisor")")
	same $(((128 + 96) << 20)) "$(cat "$dir/memory.max")" memory.max
	same 1400 "$(cat "$dir/pids.max")" pids.max
	same "100000 100000" "$(cat "$dir/cpu.max")" cpu.max
	for pid in $(cat "$dir/cgroup.procs"); do
		[ "$(awk '$1 == "Uid:" {print $2}' "/proc/$pid/status")" -ge 65536 ] || die "process $pid is somebody on the host"
	done
	echo "$(wc -l <"$dir/cgroup.procs") processes, $(($(cat "$dir/memory.current") >> 20)) MiB"
}

gvisor_pause() {
	local id
	id=$(cat "$keep/gvisor")
	dayfly pause "$id"
	grep -q 'frozen 1' "$(group "$id")/cgroup.events"
	dayfly exec "$id" -n -- true 2>"$keep/paused" && die "a paused machine ran a command" || true
	grep -q paused "$keep/paused" || die "$(cat "$keep/paused")"
	dayfly resume "$id"
	same "still here" "$(dayfly exec "$id" -n -- echo still here)" "the sandbox afterwards"
}

gvisor_memory_limit() {
	local id
	id=$(cat "$keep/gvisor")
	dayfly exec "$id" -n -o json -- awk 'BEGIN {s = "0123456789abcdef"; while (1) s = s s}' >"$keep/oom" && die "it survived" || true
	grep -q '"oom_killed": *true' "$keep/oom" || die "$(cat "$keep/oom")"
	same "still here" "$(dayfly exec "$id" -n -- echo still here)" "the sandbox afterwards"
}

# gvisor_lease: the server is killed, and the warden alone ends the one on time; the other one goes on, with its command.
gvisor_lease() {
	local id other deadline late
	other=$(cat "$keep/gvisor")
	dayfly exec -d --name job "$other" -- sleep 1000
	id=$(dayfly create --isolation gvisor --timeout 20s --memory-mb 128 --disk-mb 256)
	deadline=$(dayfly show "$id" -o json | field expires_at)
	kill -9 "$(main_pid)"
	until_true dead "$id"
	until_true answers
	dayfly show "$id" -o json >"$keep/ended"
	same lease_expired "$(field end_reason <"$keep/ended")" end_reason
	late=$((($(date -d "$(field ended_at <"$keep/ended")" +%s%N) - $(date -d "$deadline" +%s%N)) / 1000000))
	[ "$late" -ge -300 ] && [ "$late" -le "$late_max_ms" ] || die "the end came $late ms after the deadline"
	same running "$(dayfly ps "$other" -o json | jq -r '.. | .status? // empty' | head -n 1)" "the other sandbox's command"
	echo "ended $late ms after its deadline"
}

gvisor_delete() {
	local id
	id=$(cat "$keep/gvisor")
	timeout 30 dayfly rm "$id"
	dead "$id"
	for _ in $(seq 30); do # its disk's space is on its way for a while, and the audit says so
		dayfly audit >"$keep/audit"
		grep "$id" "$keep/audit" >"$keep/of" || return 0
		! grep -v '^reclaiming' "$keep/of" || die "it is left"
		sleep 1
	done
	die "it is being reclaimed for ever: $(cat "$keep/of")"
}

# left lists whatever of Dayfly is on this host.
left() {
	ls -d "$groups"/dayfly-* 2>/dev/null || true
	grep -E 'dayfly' /proc/mounts || true
	grep -l dayfly /sys/block/loop*/loop/backing_file 2>/dev/null || true
	ip -o link | grep -E ' df[a-z0-9]' || true
	ip netns list | grep dayfly || true
	pgrep -a dayfly || true
	ls -A /run/dayfly 2>/dev/null || true
}

down_destroy() {
	systemctl stop $unit
	dayfly down --destroy
	same 0 "$(count)" "objects of the audit"
	dayfly audit
	same "" "$(left)" "what is left"
}

uninstall() {
	systemctl start $unit
	dayfly create --timeout 10m >/dev/null
	"$here/dayfly" uninstall
	same "" "$(left)" "what is left"
	same "" "$(ls -d "$data" /usr/local/bin/dayfly /usr/local/share/dayfly /etc/systemd/system/$unit /etc/systemd/system/multi-user.target.wants/$unit \
		/usr/local/share/bash-completion/completions/dayfly 2>/dev/null)" "files"
	same inactive "$(systemctl is-active $unit)" "the unit"
	"$here/dayfly" uninstall
}

uninstall_half() {
	"$here/dayfly" install --systemd --start --config "$config"
	dayfly create --timeout 10m >/dev/null
	systemctl stop $unit
	rm -rf /usr/local/bin/dayfly "$data/installation" "$data/dayfly.db"
	"$here/dayfly" uninstall
	same "" "$(left)" "what is left"
	[ ! -e "$data" ] || die "$(ls "$data")"
}

# The driver that uses the kernel's own means is what most is tried with here: gVisor needs little of a kernel, and software
# emulation makes it slow.
printf 'sandbox: {pids: 100}\nisolation: {auto: linux}\n' >"$config"
for name in kernel_and_layout doctor install_dry_run install_and_start install_again create exec_commands own_cgroups \
	systemd_leaves_limits_alone memory_limit pid_limit disk_limit full_pool no_default_route dummy_default_route lease_with_server \
	lease_with_killed_server lease_with_stopped_unit restart_keeps_exec stop_then_audit bomb_and_delete gvisor_create \
	gvisor_exec gvisor_cgroups gvisor_pause gvisor_memory_limit gvisor_lease gvisor_delete down_destroy uninstall uninstall_half; do
	check $name || [ $name != create ] || finish # the rest has nothing to stand on
done
finish
