// Command dayfly-agent is the one program of Dayfly that runs inside a sandbox. As "dayfly-agent boot" it is PID 1 of a machine
// of the linux driver: boot code and agent in one process. As "dayfly-agent serve" it is the agent alone, in a process that
// somebody else prepared, such as the fake driver. As "dayfly-agent cell" it surrounds a machine of the gvisor driver on the
// host, and as "dayfly-agent guest" it is PID 1 in it. It reads no environment and writes no log.
//
// To add a mode, add a case below and a file for what precedes agent.Serve.
package main

import (
	"context"
	"fmt"
	"os"

	"dayfly.dev/dayfly/internal/driver/gvisor/cell"
)

// exitUsage is the exit code of a wrong call.
const exitUsage = 64

func main() {
	mode := ""
	if len(os.Args) == 2 {
		mode = os.Args[1]
	}
	var err error
	told := false // somebody was told of the error already
	switch mode {
	case "boot":
		err = bootMachine(context.Background())
	case "serve":
		err = serve(context.Background())
	case "cell":
		told, err = cell.Run()
	case "guest":
		err = guest(context.Background())
	default:
		fmt.Fprintln(os.Stderr, "usage: dayfly-agent boot|serve|cell|guest")
		os.Exit(exitUsage)
	}
	if err != nil {
		if !told {
			fmt.Fprintln(os.Stderr, "dayfly-agent:", err)
		}
		os.Exit(1)
	}
}
