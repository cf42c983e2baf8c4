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

// checkDrivers probes every isolation driver by really starting something.
func checkDrivers(ctx context.Context) []finding {
	if os.Geteuid() != 0 {
		return []finding{fail("drivers", "cannot be tried without root", "run it with sudo")}
	}
	drivers, err := driver.All(driver.Options{Installation: dayfly.NewInstallation()})
	if err != nil {
		return []finding{fail("drivers", err.Error())}
	}
	defer driver.Close(drivers)
	var found []finding
	for _, d := range drivers {
		c := d.Probe(ctx)
		f := finding{Check: fmt.Sprintf("driver %s", d.Name()), Verdict: verdictOK, Detail: "works", Fix: c.Install}
		if !c.Works {
			f.Verdict = verdictFail
			f.Detail = "does not work"
		}
		for _, reason := range c.Reasons {
			f.Detail += "; " + reason
		}
		found = append(found, f)
	}
	return found
}
