// Command binnacle is the mesh in one binary: it runs every service in one
// process, and it is the command line to a running mesh.
package main

import (
	"os"

	"github.com/binnacle-mesh/binnacle/services/binnacle/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
