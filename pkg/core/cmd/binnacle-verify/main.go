// Command binnacle-verify checks evidence offline: an evidence pack, an exported
// ledger, the export of a tenant, or the folder of an archive. It imports only the
// standard library and the trusted core, so that a reader can audit everything that
// it runs. The checks are in package evidence; this command reads flags and files and prints
// the report.
//
// Exit codes: 0 verified, or help requested; 1 verification failed, or evidence that
// exists cannot be read, with the reason on standard error; 2 wrong usage, no trusted
// root, a witness file or kept checkpoint that cannot be read or is malformed, evidence
// that does not exist, or a report that cannot be written.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
)

func main() { os.Exit(run(os.Args[1:], os.Getenv("BINNACLE_ROOT"), os.Stdout, os.Stderr)) }

// run executes the command with these arguments and returns its exit code.
// envRoot is the value of BINNACLE_ROOT.
func run(args []string, envRoot string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("binnacle-verify", flag.ContinueOnError)
	flags.SetOutput(stderr)
	root := flags.String("root", "", "key id of the root you trust, or a file holding it (default: BINNACLE_ROOT, then data/root.kid)")
	witnesses := flags.String("witnesses", "", "file of the witnesses that must have cosigned: {quorum, witnesses: [{name, public_key}]}")
	kept := flags.String("kept", "", "checkpoint kept from earlier, or a pack with one: the log must have grown from there")
	asJSON := flags.Bool("json", false, "print the report as JSON")
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: binnacle-verify [--root KID|FILE] [--witnesses FILE] [--kept FILE] [--json] pack.tar|ledger.jsonl|tenant.jsonl|archive/")
		flags.PrintDefaults()
	}
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() != 1:
		flags.Usage()
		return 2
	}
	kid, err := rootKID(*root, envRoot)
	demands, err2 := demands(*witnesses, *kept)
	if err := errors.Join(err, err2); err != nil {
		fmt.Fprintln(stderr, "binnacle-verify:", err)
		return 2
	}
	rep, err := evidence.VerifyFile(flags.Arg(0), kid, demands)
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintln(stderr, "binnacle-verify:", err)
		return 2
	}
	if err != nil {
		fmt.Fprintln(stderr, "FAILED:", err)
		return 1
	}
	return show(stdout, stderr, rep, *asJSON)
}

// show prints a report and returns the exit code: 0, or 2 if printing fails, because
// exit code 0 means that the report was written.
func show(stdout, stderr io.Writer, rep fmt.Stringer, asJSON bool) int {
	var err error
	if asJSON {
		err = json.NewEncoder(stdout).Encode(rep)
	} else {
		_, err = fmt.Fprint(stdout, rep)
	}
	if err != nil {
		fmt.Fprintln(stderr, "binnacle-verify:", err)
		return 2
	}
	return 0
}

// demands reads the witness file and the earlier checkpoint that the flags name; both
// are optional.
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

// rootKID returns the key id of the trusted root, which must not come from the evidence
// itself. The key id is read from the flag, or else from the environment, or else from
// data/root.kid. Flag and environment hold a key id or the name of a file with one.
// rootKID returns an error if the file cannot be read.
func rootKID(flagValue, env string) (string, error) {
	v := flagValue
	if v == "" {
		v = env
	}
	if v == "" {
		v = "data/root.kid"
	}
	if strings.HasPrefix(v, contract.IDKey) {
		return v, nil
	}
	b, err := os.ReadFile(v)
	if err != nil {
		return "", fmt.Errorf("no trusted root: give --root KID or --root FILE (%w)", err)
	}
	return strings.TrimSpace(string(b)), nil
}
