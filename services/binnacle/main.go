// Command binnacle is the command line of Binnacle. "binnacle up" runs every service of
// a mesh in one process; the other commands set up, use and verify meshes.
package main

import (
	"os"

	"github.com/binnacle-mesh/binnacle/services/binnacle/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
