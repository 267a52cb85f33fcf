package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
)

type verifyOptions struct{ root, witnesses, kept string }

// newVerifyCmd returns the command verify, which checks evidence offline.
func newVerifyCmd(c *env) *cobra.Command {
	var o verifyOptions
	cmd := &cobra.Command{
		Use:   "verify PACK.tar|LEDGER.jsonl|ARCHIVE",
		Short: "Check evidence, an exported ledger or an archive offline",
		Long: `Check an evidence pack, an exported ledger or an archive offline: signatures, digests,
chains, inclusion and consistency, under the root that you trust. binnacle-verify
does the same with nothing but the standard library.`,
		Example: `  binnacle verify tour.tar --root k-0123456789
  binnacle verify ledger.jsonl --witnesses two.json
  binnacle verify second.tar --kept first.tar`,
		Args: takes(1, 1),
		RunE: func(_ *cobra.Command, args []string) error { return runVerify(c, args, &o) },
	}
	f := cmd.Flags()
	rootFlag(cmd, &o.root)
	f.StringVar(&o.witnesses, "witnesses", "", "`FILE` of the witnesses that must have cosigned: {quorum, witnesses: [{name, public_key}]}")
	f.StringVar(&o.kept, "kept", "", "`FILE` of a checkpoint kept from earlier, or of a pack with one: the log must have grown from there")
	return cmd
}

// rootFlag declares the flag --root.
func rootFlag(cmd *cobra.Command, root *string) {
	cmd.Flags().StringVar(root, "root", "", "`KID` of the root you trust, or a file that holds it (default DATA/root.kid)")
	variable(cmd.Flags(), "root", "BINNACLE_ROOT")
}

// runVerify verifies an evidence pack, an exported ledger or an archive offline and
// prints a report. It returns an error with exit code 1 if the evidence is invalid.
func runVerify(c *env, pos []string, o *verifyOptions) error {
	kid, err := rootKID(c, o.root)
	if err != nil {
		return err
	}
	var demands evidence.Demands
	if o.witnesses != "" {
		b, err := os.ReadFile(o.witnesses)
		if err == nil {
			err = demands.ReadWitnesses(b)
		}
		if err != nil {
			return fail(exitUsage, "--witnesses %s: %v", o.witnesses, err)
		}
	}
	if o.kept != "" {
		if demands.Kept, err = evidence.ReadKept(o.kept); err != nil {
			return fail(exitUsage, "--kept: %v", err)
		}
	}
	rep, err := evidence.VerifyFile(pos[0], kid, demands)
	if errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err != nil {
		return fail(exitFailed, "FAILED: %v", err)
	}
	return c.print(rep, func() { fmt.Fprint(c.out, rep) })
}

// rootKID returns the key id of the trusted root: v itself if it has the prefix of key
// ids, or else the content of the file v (default DATA/root.kid).
func rootKID(c *env, v string) (string, error) {
	if v == "" {
		v = filepath.Join(c.data, "root.kid")
	}
	if strings.HasPrefix(v, contract.IDKey) {
		return v, nil
	}
	b, err := os.ReadFile(v)
	if err != nil {
		return "", fail(exitUsage, "no trusted root: give --root KID or --root FILE (%v)", err)
	}
	return strings.TrimSpace(string(b)), nil
}
