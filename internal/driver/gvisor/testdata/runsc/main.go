// Command runsc is none: it gives a version as one does and then does something else, whichever the linker put into mode.
package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
)

var mode string

func main() {
	if slices.Contains(os.Args, "--version") {
		fmt.Println("runsc version fake-" + mode)
		return
	}
	switch mode {
	case "hangs":
		_ = syscall.Pause()
	case "talks":
		for {
			if _, err := fmt.Println(strings.Repeat("garbage ", 100)); err != nil {
				return
			}
		}
	case "complains":
		fmt.Println("cannot do this")
		os.Exit(3)
	case "dies":
		os.Exit(3)
	}
}
