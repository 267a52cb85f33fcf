package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/ledger"
	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
)

type witnessOptions struct {
	name, key, state, root string
	every                  time.Duration
}

// newWitnessCmd returns the command witness, which verifies and cosigns the checkpoints
// of a log from outside the mesh.
func newWitnessCmd(c *env) *cobra.Command {
	var o witnessOptions
	cmd := &cobra.Command{
		Use:   "witness --name NAME --key FILE --state FILE",
		Short: "Follow the log from outside, and cosign what only grew",
		Long: `Follow the log from outside: keep the last tree head seen, check that each new one grew
from it, and cosign it. Two heads that no proof joins are stored beside the state: they
prove a fork to anyone (exit code 8).`,
		Example: `  binnacle witness --name w1 --key w1.seed --state w1.head
  binnacle witness --name w1 --key w1.seed --state w1.head --every 0`,
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return runWitness(cmd.Context(), c, &o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.name, "name", "", "`NAME` of the witness, as in the trust registry")
	f.StringVar(&o.key, "key", "", "`FILE` of the witness's own seed, 32 bytes in hex")
	f.StringVar(&o.state, "state", "", "`FILE` that keeps the last tree head")
	rootFlag(cmd, &o.root)
	f.DurationVar(&o.every, "every", 2*time.Second, "how often to look; 0 is once")
	return cmd
}

// runWitness follows a log and cosigns its checkpoints. It stores a checkpoint durably
// before it signs it, so that it never signs two contradictory histories, even after a
// crash.
func runWitness(ctx context.Context, c *env, o *witnessOptions) error {
	if o.name == "" || o.key == "" || o.state == "" {
		return fail(exitUsage, "witness requires --name, --key and --state")
	}
	kid, err := rootKID(c, o.root)
	if err != nil {
		return err
	}
	seed, err := keyring.ReadSeed(o.key)
	if err != nil {
		return err
	}
	k, err := sign.NewKey(seed)
	if err != nil {
		return err
	}
	c.operator = true
	return watchLog(ctx, c, &witnessing{c: c, name: o.name, key: k, file: o.state, root: kid}, o.every)
}

// watchLog checks the log at intervals of every, until ctx is done or it finds a fork.
// It prints other errors and tries again. If every is 0, it checks once and returns any
// error.
func watchLog(ctx context.Context, c *env, w *witnessing, every time.Duration) error {
	waiting := ""
	for {
		err := w.look(ctx)
		var x *exitError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &x) && x.code == exitFork, err != nil && every == 0:
			return err
		case err != nil && err.Error() != waiting: // a reason is printed once, not at every attempt
			waiting = err.Error()
			fmt.Fprintf(c.errOut, "binnacle: waiting, next try in %s: %s\n", every, waiting)
		case err == nil && waiting != "":
			waiting = ""
			fmt.Fprintln(c.errOut, "binnacle: the log responds again")
		}
		if every == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}

// witnessing is the state of a running witness. It is used by one goroutine.
type witnessing struct {
	c    *env
	name string
	key  *sign.Key
	file string
	root string
	keys trust.Registry
	seen uint64 // sequence of the last key event that has been read; 0: none
	sent []byte // the newest checkpoint whose cosignature the mesh has accepted; nil: none
}

// look verifies that the newest checkpoint extends the stored one, stores it, and sends
// the cosignature. It sends the cosignature of a stored checkpoint again until the mesh
// has accepted it.
func (w *witnessing) look(ctx context.Context) error {
	var note bytes.Buffer
	if _, err := w.c.copyTo(ctx, &note, "/log/checkpoint?witness=true"); err != nil {
		return fmt.Errorf("the newest checkpoint: %w", err)
	}
	if err := w.learn(ctx); err != nil {
		return fmt.Errorf("the mesh's keys: %w", err)
	}
	head, err := w.open(note.Bytes())
	if err != nil {
		w.keys, w.seen = trust.Registry{}, 0 // read all keys again: a restored ledger may have published them at other positions
		return err
	}
	kept, err := os.ReadFile(w.file)
	switch {
	case errors.Is(err, os.ErrNotExist): // the first checkpoint is trusted on first use
	case err != nil:
		return err
	default:
		last, err := w.open(kept)
		if err != nil {
			return fmt.Errorf("the stored head: %w", err)
		}
		if bytes.Equal(kept, note.Bytes()) {
			if bytes.Equal(w.sent, kept) {
				return nil
			}
			break
		}
		if err := w.follows(ctx, last, head, kept, note.Bytes()); err != nil {
			return err
		}
	}
	if err := private.Write(w.file, note.Bytes()); err != nil {
		return err
	}
	line := translog.Cosign(note.Bytes(), w.name, w.key, uint64(time.Now().Unix()))
	resp, err := w.c.request(ctx, http.MethodPost, "/log/cosignatures", map[string]any{"size": head.Size, "line": line}, nil)
	if err != nil {
		return fmt.Errorf("the cosignature of %d leaves: %w", head.Size, err)
	}
	resp.Body.Close()
	w.sent = note.Bytes()
	return w.c.print(map[string]any{"witness": w.name, "size": head.Size, "root": hex.EncodeToString(head.Root[:])}, func() {
		fmt.Fprintf(w.c.out, "cosigned %d leaves, root %s\n", head.Size, hex.EncodeToString(head.Root[:]))
	})
}

// errFork is the error for a signed checkpoint that does not extend the stored one.
type errFork string

func (e errFork) Error() string { return string(e) }

// follows verifies that head extends last: with grown if both have the same origin, and
// with reopened otherwise. If the two contradict each other, follows stores both in a
// file beside the state, as proof of the fork, and returns an error with exit code 8.
func (w *witnessing) follows(ctx context.Context, last, head *translog.Checkpoint, kept, note []byte) error {
	var err error
	if head.Origin == last.Origin {
		err = w.grown(ctx, last, head, 0)
	} else {
		err = w.reopened(ctx, last, head, kept)
	}
	var fork errFork
	if !errors.As(err, &fork) {
		return err
	}
	proof := w.file + ".fork-" + strconv.FormatUint(head.Size, 10)
	if err := private.Write(proof, slices.Concat(kept, []byte("\n"), note)); err != nil {
		return err
	}
	return fail(exitFork, "FORK: %s; both signed heads are in %s", fork, proof)
}

// grown verifies that the tree of last is a prefix of the tree of head. Both are of the
// given epoch of the log; 0 means the current epoch. It returns an errFork if the log
// shrank or the consistency proof does not verify.
func (w *witnessing) grown(ctx context.Context, last, head *translog.Checkpoint, epoch int64) error {
	if head.Size < last.Size {
		return errFork(fmt.Sprintf("the log shrank from %d to %d leaves", last.Size, head.Size))
	}
	path := fmt.Sprintf("/log/consistency?from=%d&to=%d", last.Size, head.Size)
	if epoch != 0 {
		path += fmt.Sprintf("&epoch=%d", epoch)
	}
	var proof struct {
		Path []string `json:"path"`
	}
	if err := w.c.get(ctx, path, &proof); err != nil {
		return fmt.Errorf("the consistency proof: %w", err)
	}
	hashes, err := ledger.Path(proof.Path)
	if err != nil {
		return err
	}
	if translog.VerifyConsistency(last.Size, head.Size, last.Root, head.Root, hashes) != nil {
		return errFork(fmt.Sprintf("the tree of %d leaves does not begin with that of %d", head.Size, last.Size))
	}
	return nil
}

// open parses a checkpoint and verifies that a key of audit, which may have been
// revoked since, signed it.
func (w *witnessing) open(note []byte) (*translog.Checkpoint, error) {
	for _, k := range w.keys.Keys() {
		if k.Owner != "audit" || !slices.Contains(k.Uses, contract.UseCheckpoint) {
			continue
		}
		public, err := base64.StdEncoding.DecodeString(k.PublicKey)
		if err != nil {
			continue
		}
		if head, err := translog.ParseNote(note, public); err == nil {
			return head, nil
		}
	}
	return nil, errors.New("checkpoint: no key of audit under this root signed it")
}

// learn adds new key events to the key registry. A root key must have signed each of
// them, so the mesh that sends them need not be trusted. Like the services, it ignores a
// key event that the registry rejects.
func (w *witnessing) learn(ctx context.Context) error {
	w.keys.Root = w.root
	type entry struct {
		Seq   uint64          `json:"seq"`
		Event json.RawMessage `json:"event"`
	}
	var all []entry
	for _, name := range []string{contract.EventKeyPublished, contract.EventKeyRevoked} {
		resp, err := w.c.request(ctx, http.MethodGet, "/api/v1/events?type="+name+"&from="+strconv.FormatUint(w.seen+1, 10), nil, nil)
		if err != nil {
			return err
		}
		d := json.NewDecoder(resp.Body)
		for {
			var line entry
			err := d.Decode(&line)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				resp.Body.Close()
				return err
			}
			all = append(all, line)
		}
		resp.Body.Close()
	}
	slices.SortFunc(all, func(a, b entry) int { return cmp.Compare(a.Seq, b.Seq) })
	for _, l := range all {
		w.seen = l.Seq
		e, err := eventlog.OpenBytes(l.Event, bus.KeyFilters()...)
		if err != nil {
			continue // not a valid event about a key from provision; services ignore it as well
		}
		var k contract.TrustKey
		if contract.Decode(e.Data, &k) == nil {
			_ = w.keys.Apply(k, e.Lamport) // a document that the registry rejects changes nothing, as in the services
		}
	}
	return nil
}
