// Command binnacle-verify checks evidence offline: a pack, an exported ledger,
// or the folder of an archive. It imports only the standard library and the
// trusted core.
//
// Exit codes: 0 verified, 1 something is wrong (named on standard error),
// 2 usage.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
)

func main() {
	root := flag.String("root", "", "key id of the root you trust, or a file holding it (default: BINNACLE_ROOT, then data/root.kid)")
	witnesses := flag.String("witnesses", "", "file of the witnesses that must have cosigned: {quorum, witnesses: [{name, public_key}]}")
	kept := flag.String("kept", "", "checkpoint kept from earlier, or a pack with one: the log must have grown from there")
	asJSON := flag.Bool("json", false, "print the report as JSON")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: binnacle-verify [--root KID|FILE] [--witnesses FILE] [--kept FILE] [--json] pack.tar|ledger.jsonl|archive/")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	kid, err := rootKID(*root)
	demands, err2 := demands(*witnesses, *kept)
	if err := errors.Join(err, err2); err != nil {
		fmt.Fprintln(os.Stderr, "binnacle-verify:", err)
		os.Exit(2)
	}
	rep, err := evidence.VerifyFile(flag.Arg(0), kid, demands)
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintln(os.Stderr, "binnacle-verify:", err)
		os.Exit(2)
	}
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

// demands reads what is wanted beyond a valid proof.
func demands(witnesses, kept string) (d evidence.Demands, err error) {
	if witnesses != "" {
		b, err := os.ReadFile(witnesses)
		if err == nil {
			err = d.ReadWitnesses(b)
		}
		if err != nil {
			return d, fmt.Errorf("--witnesses %s: %w", witnesses, err)
		}
	}
	if kept != "" {
		if d.Kept, err = evidence.ReadKept(kept); err != nil {
			return d, fmt.Errorf("--kept: %w", err)
		}
	}
	return d, nil
}

// rootKID resolves the trust anchor, which never comes from what is verified.
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
