// Command recorder serves the file system of package powerfs. Its arguments are the folder
// at which it is mounted, the folder in which the files are stored, and the minimum
// duration of a sync.
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/powerfs"
)

func main() {
	sync, err := time.ParseDuration(os.Args[3])
	if err == nil {
		err = powerfs.Serve(os.Args[1], os.Args[2], sync, os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "powerfs:", err)
		os.Exit(1)
	}
}
