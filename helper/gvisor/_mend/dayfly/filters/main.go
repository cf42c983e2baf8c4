// Command filters builds the system call filters of gVisor's processes as this helper starts them, and prints the table of
// pkg/seccomp/made.go.
package main

import (
	"fmt"
	"io"
	"os"

	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	"gvisor.dev/gvisor/pkg/sentry/platform/systrap"
	"gvisor.dev/gvisor/runsc/boot/filter"
	gofer "gvisor.dev/gvisor/runsc/fsgofer/filter"
)

// The descriptor of the sentry's control socket is one of these: its filter names it.
const (
	controlMin = 8
	controlMax = 24
)

// built ends what would install a program.
type built struct{}

func main() {
	log.SetTarget(log.GoogleEmitter{Writer: &log.Writer{Next: io.Discard}})
	var programs []*seccomp.Program
	seccomp.Making = func(p *seccomp.Program) {
		programs = append(programs, p)
		panic(built{})
	}
	jobs := []func(){systrap.MakeFilters}
	constructor, err := platform.Lookup("systrap")
	if err != nil {
		fail(err)
	}
	for fd := uint32(controlMin); fd <= controlMax; fd++ {
		jobs = append(jobs, func() {
			_ = filter.Install(filter.Options{Platform: constructor.PrecompiledSeccompInfo()[0], HostFilesystem: true, ControllerFD: fd})
		})
	}
	jobs = append(jobs, func() { _ = gofer.Install(gofer.Options{UDSCreateEnabled: true, DirectFS: true}) })
	for _, job := range jobs {
		until(job)
	}
	if len(programs) != len(jobs) {
		fail(fmt.Errorf("%d programs of %d", len(programs), len(jobs)))
	}
	fmt.Println("package seccomp\n\nfunc made(key [32]byte) string {\n\tswitch key {")
	for _, p := range programs {
		key, err := p.Key()
		if err != nil {
			fail(err)
		}
		insns, _, err := p.BuildAnew()
		if err != nil {
			fail(err)
		}
		fmt.Printf("\tcase %#v:\n\t\treturn %q\n", key, seccomp.Pack(insns))
	}
	fmt.Println("\t}\n\treturn \"\"\n}")
}

// until runs a job up to where it builds a program.
func until(job func()) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(built); !ok {
				panic(r)
			}
		}
	}()
	job()
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "filters:", err)
	os.Exit(1)
}
