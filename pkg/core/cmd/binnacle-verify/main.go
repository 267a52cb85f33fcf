// Command binnacle-verify checks an evidence pack offline. It imports only
// the standard library and the trusted core.
//
// Exit codes: 0 verified, 1 something is wrong (named on standard error),
// 2 usage.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
)

func main() {
	root := flag.String("root", "", "key id of the root you trust, or a file holding it (default: BINNACLE_ROOT, then data/root.kid)")
	asJSON := flag.Bool("json", false, "print the report as JSON")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: binnacle-verify [--root KID|FILE] [--json] pack.tar")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	kid, err := rootKID(*root)
	if err != nil {
		fmt.Fprintln(os.Stderr, "binnacle-verify:", err)
		os.Exit(2)
	}
	pack, err := os.ReadFile(flag.Arg(0))
	if err != nil {
		fmt.Fprintln(os.Stderr, "binnacle-verify:", err)
		os.Exit(2)
	}
	rep, err := evidence.Verify(pack, kid)
	if err != nil {
		fmt.Fprintln(os.Stderr, "FAILED:", err)
		os.Exit(1)
	}
	if *asJSON {
		json.NewEncoder(os.Stdout).Encode(rep)
		return
	}
	fmt.Print(rep)
}

// rootKID resolves the trust anchor; the pack itself is never asked.
func rootKID(flagValue string) (string, error) {
	v := flagValue
	if v == "" {
		v = os.Getenv("BINNACLE_ROOT")
	}
	if v == "" {
		v = "data/root.kid"
	}
	if strings.HasPrefix(v, "k-") {
		return v, nil
	}
	b, err := os.ReadFile(v)
	if err != nil {
		return "", fmt.Errorf("no trusted root: give --root KID or --root FILE (%w)", err)
	}
	return strings.TrimSpace(string(b)), nil
}
