package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const head = `# Real programs inside

What this page says was tried, by ` + "`make compat`" + ` (` + "`scripts/compat`" + `), which writes it: each program in a new sandbox of each isolation,
with packages from an index beside it. "yes" means that the program was installed where needed, ran, and gave the right answer.

%s

| program | linux | gvisor | note |
|---|---|---|---|
`

// page is the text of docs/COMPATIBILITY.md.
func page(ctx context.Context, t *trial, rows []row) string {
	var u unix.Utsname
	_ = unix.Uname(&u)
	version := "unknown"
	if ready, err := t.api.Ready(ctx); err == nil {
		version = ready.Version
	}
	where := fmt.Sprintf("Tried on %s with Dayfly %s on Linux %s; the image is Debian 12 (base-node).", time.Now().UTC().Format("2006-01-02"), version,
		unix.ByteSliceToString(u.Release[:]))
	var b strings.Builder
	fmt.Fprintf(&b, head, where)
	for _, r := range rows {
		notes := []string{}
		if r.note != "" {
			notes = append(notes, r.note)
		}
		cells := []string{r.name}
		for _, isolation := range isolations {
			res := r.results[isolation]
			switch {
			case res.works:
				cells = append(cells, "yes")
			case res.tried:
				cells = append(cells, "no")
				notes = append(notes, fmt.Sprintf("%s: `%s`", isolation, res.said))
			default:
				cells = append(cells, "not tried")
				if t.lacking[isolation] == "" {
					notes = append(notes, res.said)
				}
			}
		}
		cells = append(cells, strings.Join(notes, "; "))
		for i, c := range cells {
			cells[i] = strings.ReplaceAll(c, "|", `\|`)
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	for _, isolation := range isolations {
		if why := t.lacking[isolation]; why != "" {
			fmt.Fprintf(&b, "\n%s was not tried: %s.\n", isolation, strings.TrimSuffix(lastLine(why), "."))
		}
	}
	return b.String()
}
