// Command measure prints figures about the repository's own code with their limits, and
// exits with 1 if an enforced limit is broken. It reads files, but builds and changes
// nothing. scripts/measure-code runs it from the root of the repository.
package main

import (
	"flag"
	"fmt"
	"os"
)

// scope is printed before the figures.
const scope = `The figures cover the product's Go code: pkg, services, schemas, deploy, packs and
sdk/go, without tests, generators and generated files. "Outside their home" therefore covers
neither e2e, examples and scripts nor the SDKs for TypeScript and Python.

`

func main() {
	list := flag.Bool("list", false, "print each function, type, package and literal that a figure counts")
	only := flag.Bool("enforced", false, "print the enforced figures only")
	draw := flag.Int("sample", 0, "print this many comments drawn at random for a review of style, and no figures")
	seed := flag.Uint64("seed", 1, "seed of -sample")
	flag.Parse()
	t, err := readTree(".")
	if err != nil {
		fmt.Fprintln(os.Stderr, "measure:", err)
		os.Exit(2)
	}
	if *draw > 0 {
		t.sample(os.Stdout, *draw, *seed)
		return
	}
	fmt.Print(scope)
	broken := 0
	fmt.Printf("%-66s %10s  %s\n", "figure", "here", "limit")
	for _, f := range t.figures() {
		if *only && !f.enforced {
			continue
		}
		state := ""
		if !f.ok() {
			state = "  missed"
			if f.enforced {
				state = "  BROKEN"
				broken++
			}
		}
		fmt.Printf("%-66s %10s  %s%s\n", f.name, f.value(), f.limit(), state)
		if *list || f.enforced && !f.ok() {
			for _, line := range f.detail {
				fmt.Println("    " + line)
			}
		}
	}
	if broken > 0 {
		fmt.Fprintf(os.Stderr, "measure: %d limits broken\n", broken)
		os.Exit(1)
	}
}
