package main

// program is one thing that people run.
type program struct {
	name   string
	user   string // who runs it; empty: the image's user
	needs  string // a directory of the fetched packages without which it cannot be tried, or empty
	script string // for bash; a failure of any command is the program's
	want   string // part of its standard output
	note   string // for the table, or empty
}

// prelude is before every script.
const prelude = `
local_apt() { # apt knows the local index alone
	rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*
	echo "deb [trusted=yes] $OUTSIDE/debs ./" > /etc/apt/sources.list
	apt-get -qq update
	apt-get -qq -y --no-install-recommends install "$@" > /var/log/install.log 2>&1 || { tail -n 20 /var/log/install.log >&2; return 1; }
}
`

// programs are the rows of the table.
var programs = []program{
	{name: "apt-get install", user: "root", needs: "debs", want: "3.14",
		script: `local_apt sqlite3; sqlite3 :memory: 'select 3.14'`},
	{name: "pip install, pytest", want: "1 passed", script: `
		host=${OUTSIDE#http://}
		pip install --user -q --disable-pip-version-check --index-url "$OUTSIDE/simple/" --trusted-host "${host%:*}" pytest
		echo 'def test(): assert 1 + 1 == 2' > test_one.py
		python3 -m pytest -q test_one.py`},
	{name: "python3 -m venv", want: "venv ok", script: `python3 -m venv v; v/bin/python -c 'import sys; print("venv ok", sys.prefix)'`},
	{name: "npm install (express, 70 packages)", needs: "npm", want: "express 4", script: `
		npm install --silent --no-audit --no-fund --registry "$OUTSIDE/npm/" express
		node -e 'console.log("express", require("express/package.json").version)'`},
	{name: "Node web server (express)", needs: "npm", want: "hello from node", script: `
		npm install --silent --no-audit --no-fund --registry "$OUTSIDE/npm/" express
		cat > server.js <<'END'
const app = require("express")();
app.get("/", (q, a) => a.send("hello from node"));
const s = app.listen(0, () => require("fs").writeFileSync("port", String(s.address().port)));
END
		node server.js & server=$!
		for i in $(seq 300); do [ -s port ] && break; sleep 0.1; done
		curl -fsS "http://127.0.0.1:$(cat port)/"
		kill $server`},
	{name: "git clone over HTTP", want: "cloned", script: `git clone -q "$REPO" work; test -s work/requirements.txt; git -C work log --oneline; echo cloned`},
	{name: "git clone of a local repository made inside (hard links)", want: "links 2", script: `
		git init -q a; for i in $(seq 50); do echo $i > a/f$i; done
		git -C a add .; git -C a -c user.name=A -c user.email=a@b commit -qm x
		git clone -q a b; git -C b fsck
		echo links $(stat -c %h $(find b/.git/objects -type f | head -n 1))`},
	{name: "git clone of a local repository that the image holds", user: "root", want: "cloned",
		note: "git makes hard links to files of the lower layer", script: `
		git config --global --add safe.directory '*'
		git clone -q /srv/lower b; git -C b fsck; git -C b status --short; echo cloned`},
	{name: "gcc, make, threads", want: "sum 400000", script: `
		cat > a.c <<'END'
#include <pthread.h>
#include <stdio.h>
static long n; static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static void *add(void *x) { for (int i = 0; i < 100000; i++) { pthread_mutex_lock(&m); n++; pthread_mutex_unlock(&m); } return x; }
int main(void) { pthread_t t[4]; for (int i = 0; i < 4; i++) pthread_create(&t[i], 0, add, 0); for (int i = 0; i < 4; i++) pthread_join(t[i], 0); printf("sum %ld\n", n); }
END
		printf 'a: a.c\n\tgcc -O2 -Wall -o a a.c -lpthread\n' > Makefile
		make -s; ./a`},
	{name: "Go build and test", user: "root", needs: "debs", want: "ok", note: "Debian's Go 1.19", script: `
		local_apt golang-go
		export GOCACHE=/tmp/c GOFLAGS=-mod=mod; mkdir -p /tmp/m; cd /tmp/m; go mod init example.invalid/m 2> /dev/null
		printf 'package main\n\nimport "net/http"\n\nfunc two() int { return 2 }\n\nfunc main() { _ = http.Client{}; println(two()) }\n' > m.go
		printf 'package main\n\nimport "testing"\n\nfunc Test(t *testing.T) { if two() != 2 { t.Fatal() } }\n' > m_test.go
		CGO_ENABLED=0 go build -o m .; ./m; CGO_ENABLED=0 go test ./...`},
	{name: "PostgreSQL 15: initdb, start, queries, pgbench", user: "root", needs: "debs", want: "answer 499500", script: `
		local_apt postgresql-15
		bin=/usr/lib/postgresql/15/bin; d=/var/tmp/pg; install -d -o postgres $d
		as() { su -s /bin/bash postgres -c "$1"; }
		as "$bin/initdb -D $d/data" > /dev/null
		as "$bin/pg_ctl -D $d/data -w -t 120 -l $d/log -o '-k $d -c listen_addresses=' start" > /dev/null || { cat $d/log >&2; exit 1; }
		as "psql -h $d -qAt -c 'create table t as select generate_series(0,999) n' -c \"select 'answer ' || sum(n) from t\""
		as "$bin/pgbench -h $d -qi postgres && $bin/pgbench -h $d -c 4 -t 50 postgres" > /dev/null 2>&1
		as "$bin/pg_ctl -D $d/data -m fast stop" > /dev/null`},
	{name: "SQLite: 300 commits, WAL", want: "rows 300", script: `python3 - <<'END'
import sqlite3
c = sqlite3.connect("a.db")
print(c.execute("pragma journal_mode=wal").fetchone())
c.execute("create table t (n)")
for i in range(300):
    with c:
        c.execute("insert into t values (?)", (i,))
print("rows", c.execute("select count(*) from t").fetchone()[0])
END`},
	{name: "Python multiprocessing", want: "total 332833500", script: `cat > p.py <<'END'
import multiprocessing as mp, multiprocessing.shared_memory as sm
def square(n): return n * n
def count(v):
    for _ in range(1000):
        with v.get_lock(): v.value += 1
if __name__ == "__main__":
    with mp.Pool(4) as p: total = sum(p.map(square, range(1000)))
    v = mp.Value("i", 0)
    ps = [mp.Process(target=count, args=(v,)) for _ in range(4)]
    [p.start() for p in ps]; [p.join() for p in ps]
    assert v.value == 4000
    m = sm.SharedMemory(create=True, size=1 << 20); m.buf[0] = 7; m.close(); m.unlink()
    with mp.Manager() as g: assert len(g.list([1, 2])) == 2
    print("total", total)
END
		python3 p.py`},
	{name: "Chromium, headless", user: "root", needs: "debs", want: "counted 45",
		note: "run with --no-sandbox: its own sandbox wants namespaces that the sandbox does not give", script: `
		local_apt chromium
		echo '<body><script>let n=0;for(let i=0;i<10;i++)n+=i;document.body.innerText="counted "+n</script>' > /tmp/a.html
		timeout 120 su -s /bin/bash user -c 'chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --virtual-time-budget=2000 --dump-dom file:///tmp/a.html' 2> /tmp/log || { tail -n 5 /tmp/log >&2; exit 1; }`},
	{name: "sudo", want: "uid=0(root)", script: `sudo -n id`},
	{name: "a debugger's ptrace", want: "stopped", script: `cat > t.py <<'END'
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
pid = os.fork()
if pid == 0:
    if libc.ptrace(0, 0, None, None): os._exit(3)
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(0)
_, status = os.waitpid(pid, 0)
assert os.WIFSTOPPED(status), status
libc.ptrace(7, pid, None, None)
_, status = os.waitpid(pid, 0)
print("stopped and went on", os.WEXITSTATUS(status))
END
		python3 t.py`},
	{name: "inotify (file watchers)", want: "event", script: `python3 - <<'END'
import ctypes, os, select
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.inotify_init1(os.O_NONBLOCK)
assert libc.inotify_add_watch(fd, b".", 0x100) > 0
open("new", "w").close()
assert select.select([fd], [], [], 5)[0]
print("event", len(os.read(fd, 4096)))
END`},
	{name: "io_uring", want: "works", note: "programs fall back to other calls where it is refused", script: `python3 - <<'END'
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
params = (ctypes.c_char * 120)()
fd = libc.syscall(425, 8, params)
assert fd >= 0, "io_uring_setup: errno %d" % ctypes.get_errno()
print("works")
END`},
}
