// Command imitate prints the error, and exits with the code, with which a process that
// could not set up its sandbox ended before release 0.6.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "binnacle-sandbox-init: root: permission denied")
	os.Exit(125)
}
