package drivertest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"dayfly.dev/dayfly"
)

func charactersSurvive(t *testing.T, s *suite) {
	g := s.guest(t)
	const count = 100_000
	for _, tt := range []struct{ name, command, want string }{
		{"many of several bytes", fmt.Sprintf("yes ☕ | head -n %d | tr -d '\\n'", count), strings.Repeat("☕", count)},
		{"one in two writes", `printf 'caf\303'; sleep 0.2; printf '\251\n'`, "café\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := kept(g.call(t, shell(tt.command)).Stdout); got != tt.want {
				t.Errorf("captured: %d bytes, want %d", len(got), len(tt.want))
			}
			spec := shell(tt.command)
			spec.Follow = true
			stream, _ := g.begin(t, spec)
			if got, _ := collect(t, stream, 0); got != tt.want {
				t.Errorf("streamed: %d bytes, want %d", len(got), len(tt.want))
			}
		})
	}
}

func bytesNoText(t *testing.T, s *suite) {
	g := s.guest(t)
	r := g.call(t, shell(`printf 'a\377\376b'; exit 3`))
	if kept(r.Stdout) != "a\xff\xfeb" || r.Exit.Code != 3 {
		t.Errorf("%q, %+v", kept(r.Stdout), r.Exit)
	}
	noise := kept(g.call(t, shell("head -c 4096 /dev/urandom | tee noise")).Stdout)
	if got := g.content(t, "noise"); noise != got || len(noise) != 4096 {
		t.Errorf("%d random bytes arrived changed", len(noise))
	}
}

// endlessOutput has machines write without end: what is kept is bounded at both ends of the wire, and nobody else suffers.
func endlessOutput(t *testing.T, s *suite) {
	g, neighbour := s.guest(t), s.guest(t)
	const agentMax, nodeMax = 64 << 20, 64 << 20
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			spec := shell("yes")
			spec.Timeout = 2 * time.Second
			r, err := g.Run(ctx(t), spec, nil)
			c := r.Stdout
			if err != nil || !r.Exit.TimedOut || !c.Truncated() || len(c.Head)+len(c.Tail) > dayfly.CaptureDefaultBytes || c.Bytes != r.Exit.StdoutBytes {
				t.Errorf("%+v of %d bytes: kept %d and %d, %v", r.Exit, c.Bytes, len(c.Head), len(c.Tail), err)
			}
		})
	}
	for _, m := range []*guest{g, neighbour} {
		if r, err := m.Run(soon(t), shell("echo ok"), nil); err != nil || kept(r.Stdout) != "ok\n" {
			t.Errorf("beside it: %q, %v", kept(r.Stdout), err)
		}
	}
	all.Wait()
	const many = 512 << 20
	r := g.call(t, shell(fmt.Sprintf("printf HEAD; head -c %d /dev/zero; printf TAIL; echo err >&2", many)))
	c := r.Stdout
	if c.Bytes != many+8 || !bytes.HasPrefix(c.Head, []byte("HEAD")) || !bytes.HasSuffix(c.Tail, []byte("TAIL")) || kept(r.Stderr) != "err\n" {
		t.Errorf("%d bytes, %d and %d kept, stderr %q", c.Bytes, len(c.Head), len(c.Tail), kept(r.Stderr))
	}
	if rss := g.agentBytes(t); rss > agentMax {
		t.Errorf("the agent has %d MiB", rss>>20)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > nodeMax {
		t.Errorf("the node's end grew by %d MiB", grown>>20)
	}
}

func lastBytes(t *testing.T, s *suite) {
	g := s.guest(t)
	want := "100000\nEND"
	for range 1000 {
		if got := kept(g.call(t, argv("printf", "late")).Stdout); got != "late" {
			t.Fatalf("%q", got)
		}
	}
	for i := range 40 {
		spec := shell("seq 1 100000; printf END")
		spec.Follow = i%2 == 0
		if !spec.Follow {
			if r := g.call(t, spec); !strings.HasSuffix(kept(r.Stdout), want) || r.Stdout.Bytes != 588_898 {
				t.Fatalf("%d bytes end in %q", r.Stdout.Bytes, r.Stdout.Tail[max(0, len(r.Stdout.Tail)-20):])
			}
			continue
		}
		stream, _ := g.begin(t, spec)
		if got, exit := collect(t, stream, 0); !strings.HasSuffix(got, want) || int64(len(got)) != exit.StdoutBytes || len(got) != 588_898 {
			t.Fatalf("%d bytes, the exit says %d", len(got), exit.StdoutBytes)
		}
	}
}

// noInventedExit breaks the connection under a stream: it ends as lost, and the process is there for the next client.
func noInventedExit(t *testing.T, s *suite) {
	g := s.guest(t)
	spec := shell("for i in $(seq 100); do echo $i; sleep 0.02; done; exit 5")
	spec.OnDisconnect, spec.Follow = dayfly.DisconnectContinue, true
	stream, p := g.begin(t, spec)
	got := line(t, stream)
	_ = g.shell.Close()
	for {
		o, err := stream.Next()
		if err != nil {
			lost(t, "the broken stream", err)
			break
		}
		if o.Kind == dayfly.OutputExit {
			t.Fatalf("an exit that nobody saw: %+v", o.Exit)
		}
		got += string(o.Data)
	}
	other := g.again(t)
	rest, err := other.Output(ctx(t), p.ID, dayfly.Offsets{Stdout: int64(len(got))}, true /* follow */)
	if err != nil {
		t.Fatal(err)
	}
	defer rest.Close()
	more, exit := collect(t, rest, int64(len(got)))
	g.Machine = other
	if want := g.sh(t, "seq 100"); got+more != want || exit.Code != 5 {
		t.Errorf("%q and %q, exit %+v", got, more, exit)
	}
}

func silence(t *testing.T, s *suite) {
	g := s.guest(t)
	spec := shell("sleep 3; echo done")
	spec.Timeout = caseWait
	stream, _ := g.begin(t, spec)
	if got, exit := collect(t, stream, 0); got != "done\n" || exit.Code != 0 {
		t.Errorf("%q, %+v", got, exit)
	}
}

// outputAgain reads the output of a background process while it runs, after its end, and as the node does after a restart.
func outputAgain(t *testing.T, s *suite) {
	g := s.guest(t)
	const lines = 60
	spec := shell(fmt.Sprintf("for i in $(seq %d); do echo $i; echo e$i >&2; sleep 0.02; done; exit 7", lines))
	spec.OnDisconnect = dayfly.DisconnectContinue
	stream, p := g.begin(t, spec)
	seen := int64(len(line(t, stream)))
	_ = stream.Close()
	want := g.sh(t, fmt.Sprintf("seq %d", lines))
	inst, err := s.Open(t).Recover(ctx(t), g.ID(), bytes.Clone(g.State()))
	if err != nil {
		t.Fatal(err)
	}
	after := whole(t, s.connect(t, inst))
	read := func(what string, from int64) {
		t.Helper()
		out, err := after.Output(ctx(t), p.ID, dayfly.Offsets{Stdout: from}, true /* follow */)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		defer out.Close()
		if got, exit := collect(t, out, from); got != want[from:] || exit.Code != 7 {
			t.Errorf("%s: %q, %+v", what, got, exit)
		}
	}
	read("from the beginning, while it runs", 0)
	read("from where the first client left, after its end", seen)
	read("from the very end", int64(len(want)))
	r, err := after.Result(ctx(t), p.ID)
	if err != nil || r.Exit.Code != 7 || kept(r.Stdout) != want || r.Stderr.Bytes != int64(len(want)+lines) {
		t.Errorf("%+v, %v", r.Exit, err)
	}
	_, err = after.Output(ctx(t), p.ID, dayfly.Offsets{Stdout: 1 << 30}, true /* follow */)
	wantCode(t, "an offset beyond the end", err, dayfly.CodeInvalid)
}

// afterPause pauses the machine for a while; what flowed through it flows again.
func afterPause(t *testing.T, s *suite) {
	g := s.guest(t)
	spec := shell("cat")
	spec.OpenStdin, spec.Follow, spec.OnDisconnect = true, true, dayfly.DisconnectContinue
	stream, p := g.begin(t, spec)
	say := func(text string) {
		t.Helper()
		if err := g.WriteStdin(ctx(t), p.ID, strings.NewReader(text), false /* stays open */); err != nil {
			t.Fatal(err)
		}
	}
	say("before\n")
	before := line(t, stream)
	_ = stream.Close()
	pause(t, g.Instance)()
	out, err := g.again(t).Output(ctx(t), p.ID, dayfly.Offsets{Stdout: int64(len(before))}, true /* follow */)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	for _, text := range []string{"x", strings.Repeat("y", 8000), "short", strings.Repeat("z", 1<<20), "last"} {
		say(text + "\n")
		if got := line(t, out); got != text+"\n" {
			t.Fatalf("%d bytes came back as %d", len(text)+1, len(got))
		}
	}
	if err := g.WriteStdin(ctx(t), p.ID, strings.NewReader(""), true /* and ends */); err != nil {
		t.Fatal(err)
	}
	if r, err := g.Result(soon(t), p.ID); err != nil || r.Exit.Code != 0 {
		t.Errorf("%+v, %v", r.Exit, err)
	}
}

func inputEnds(t *testing.T, s *suite) {
	g := s.guest(t)
	if r, err := g.Run(soon(t), shell("cat; echo end"), nil); err != nil || kept(r.Stdout) != "end\n" {
		t.Errorf("without input: %q, %v", kept(r.Stdout), err)
	}
	never, hold := newPipe(t)
	if r, err := g.Run(soon(t), shell("echo hi"), never); err != nil || kept(r.Stdout) != "hi\n" {
		t.Errorf("input that never comes, to a command that reads none: %q, %v", kept(r.Stdout), err)
	}
	_ = hold.Close()
	never, hold = newPipe(t)
	spec := shell("cat")
	spec.Timeout = 500 * time.Millisecond
	if r, err := g.Run(soon(t), spec, never); err != nil || !r.Exit.TimedOut {
		t.Errorf("input that never comes, to a command that reads it: %+v, %v", r.Exit, err)
	}
	_ = hold.Close()
	big := bytes.Repeat([]byte("0123456789abcdef"), 2<<16)
	r, err := g.Run(soon(t), shell("sha256sum; echo $?"), bytes.NewReader(big))
	if want := fmt.Sprintf("%x  -\n0\n", sha256.Sum256(big)); err != nil || kept(r.Stdout) != want {
		t.Errorf("2 MiB of input: %q, %v", kept(r.Stdout), err)
	}
}
