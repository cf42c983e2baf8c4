// Command dayfly-gvisor is runsc, built from its Go module at the version that go.mod pins. It is a module of its own, so that
// gVisor's dependencies never touch the server's, and a program of its own, so that the server never links it. The build
// packs it (scripts/helper.sh) and embeds it into dayfly, which puts it into its data directory.
//
// Nothing may be added here that starts goroutines while packages initialise: the code runs in every process of gVisor, also
// under the system call filter of the sentry.
package main

import "gvisor.dev/gvisor/runsc/cli/maincli"

func main() { maincli.Main() }
