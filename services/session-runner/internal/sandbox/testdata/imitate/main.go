// Command imitate ends as a process that could not set up its sandbox did before release
// 0.6: it prints the same error and exits with the same code.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "binnacle-sandbox-init: root: permission denied")
	os.Exit(125)
}
