package main

import (
	"context"
	"fmt"
	"os"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/driver"
	"dayfly.dev/dayfly/internal/hostnet"
)

// checkNetwork tries the whole network in a namespace of its own.
func checkNetwork(ctx context.Context, cfg config) []finding {
	if os.Geteuid() != 0 {
		return []finding{fail("network", "cannot be tried without root", "run it with sudo")}
	}
	o, err := networkOptions(cfg, dayfly.NewInstallation(), 0)
	if err != nil {
		return []finding{fail("network", err.Error())}
	}
	tried, err := hostnet.Check(ctx, o)
	if err != nil {
		return []finding{fail("network", err.Error())}
	}
	var found []finding
	for _, t := range tried {
		f := finding{Check: t.Name, Verdict: verdictOK, Detail: t.Text}
		if !t.OK {
			f.Verdict = verdictWarn
		}
		if t.Fix != "" {
			f.Fix = []string{t.Fix}
		}
		found = append(found, f)
	}
	return found
}

// explainAuto tells what a sandbox gets that asks for no isolation. set is what the operator made of it, or empty.
func explainAuto(works map[dayfly.Isolation]bool, set dayfly.Isolation) finding {
	f := finding{Check: "isolation auto", Verdict: verdictOK}
	switch {
	case set == dayfly.IsolationLinux && works[set]:
		f.Detail = "means linux here, because isolation.auto says so: sandboxes share the host's kernel unless they ask for gvisor"
	case set != "" && !works[set]:
		f.Verdict = verdictWarn
		f.Detail = fmt.Sprintf("means nothing here: isolation.auto says %s, which does not work", set)
		if !works[dayfly.IsolationGVisor] && !works[dayfly.IsolationLinux] {
			f.Verdict = verdictFail
		}
	case works[dayfly.IsolationGVisor]:
		f.Detail = "means gvisor here: a user-space kernel answers every system call, for code that nobody has read; " +
			"linux shares the host's kernel, starts faster, and is given to who asks for it"
	case works[dayfly.IsolationLinux]:
		f.Verdict = verdictWarn
		f.Detail = "means nothing here: gvisor does not work, and linux, which shares the host's kernel, is never given unasked"
		f.Fix = []string{"ask for isolation linux where you trust the code, or set isolation.auto: linux for all"}
	default:
		f.Verdict = verdictFail
		f.Detail = "means nothing here: no driver works"
	}
	return f
}

// doctorPrefix is how the directory for helpers that a doctor unpacks begins. One that is killed leaves it.
const doctorPrefix = ".dayfly-doctor-"

// checkDrivers probes every isolation driver by really starting something, with what would be the server's settings. Helpers are
// unpacked where the server would, and removed again.
func checkDrivers(ctx context.Context, cfg config) []finding {
	if os.Geteuid() != 0 {
		return []finding{fail("drivers", "cannot be tried without root", "run it with sudo")}
	}
	helpers, err := os.MkdirTemp(nearest(cfg.Data), doctorPrefix)
	if err != nil {
		return []finding{fail("drivers", "cannot be tried: "+err.Error(), "choose a place that can be written to with --data")}
	}
	defer os.RemoveAll(helpers)
	drivers, err := driver.All(driver.Options{Installation: dayfly.NewInstallation(), Helpers: helpers, Runsc: cfg.GVisor.RunscPath})
	if err != nil {
		return []finding{fail("drivers", err.Error())}
	}
	defer driver.Close(drivers)
	var found []finding
	works := map[dayfly.Isolation]bool{}
	for _, d := range drivers {
		c := d.Probe(ctx)
		works[d.Name()] = c.Works
		f := finding{Check: fmt.Sprintf("driver %s", d.Name()), Verdict: verdictOK, Detail: "works", Fix: c.Install}
		if !c.Works {
			f.Verdict = verdictWarn // whether any sandbox can start is said of isolation auto
			f.Detail = "does not work"
		}
		for _, reason := range c.Reasons {
			f.Detail += "; " + reason
		}
		found = append(found, f)
	}
	return append(found, explainAuto(works, cfg.auto()))
}
