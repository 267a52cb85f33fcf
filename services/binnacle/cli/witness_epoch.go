package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/private"
)

// epochOf splits the origin of a log into its base and the number of its epoch. The
// origin of epoch 1 has no number. If the number is invalid, the epoch is 0 and the base
// is the whole origin.
func epochOf(origin string) (base string, epoch int64) {
	base, number, named := strings.Cut(origin, "/epoch-")
	if !named {
		return origin, 1
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 2 || number != strconv.FormatInt(n, 10) {
		return origin, 0
	}
	return base, n
}

// reopened verifies that a root key opened each epoch after the epoch of last, up to the
// epoch of head, and that the checkpoint that closed the epoch of last is last or
// extends it. It stores kept, the signed note of last, in a file beside the state.
func (w *witnessing) reopened(ctx context.Context, last, head *translog.Checkpoint, kept []byte) error {
	base, from := epochOf(last.Origin)
	now, to := epochOf(head.Origin)
	if now != base || to <= from || from == 0 {
		return errFork("the head is another log's: " + head.Origin)
	}
	epochs, err := w.epochs(ctx)
	if err != nil {
		return err
	}
	for n := from + 1; n <= to; n++ {
		l, ok := epochs[n]
		if !ok {
			return errFork(fmt.Sprintf("the head is of epoch %d, and no root key opened epoch %d", to, n))
		}
		if n > from+1 {
			continue // the witness has no checkpoint of the epochs in between to compare
		}
		if err := w.closed(ctx, last, kept, &l); err != nil {
			return err
		}
		if err := private.Write(w.file+".epoch-"+strconv.FormatInt(from, 10), kept); err != nil {
			return err
		}
		fmt.Fprintf(w.c.errOut, "binnacle: epoch %d of the log was opened by the root key: %s\n", n, l.Reason)
	}
	return nil
}

// closed verifies that the checkpoint named in the opening of an epoch is last, or
// extends it, so that the closed epoch contains the history that the witness has
// cosigned.
func (w *witnessing) closed(ctx context.Context, last *translog.Checkpoint, kept []byte, l *contract.LogEpoch) error {
	if sign.Digest(kept) == l.Checkpoint {
		return nil
	}
	var note bytes.Buffer
	if _, err := w.c.copyTo(ctx, &note, fmt.Sprintf("/log/checkpoint?epoch=%d", l.Epoch-1)); err != nil {
		return fmt.Errorf("the checkpoint that closed epoch %d: %w", l.Epoch-1, err)
	}
	if sign.Digest(note.Bytes()) != l.Checkpoint {
		return fmt.Errorf("the checkpoint that closed epoch %d is not the one that the root key named", l.Epoch-1)
	}
	end, err := w.open(note.Bytes())
	if err != nil {
		return err
	}
	if end.Origin != last.Origin {
		return errFork(fmt.Sprintf("epoch %d was opened after another log: %s", l.Epoch, end.Origin))
	}
	return w.grown(ctx, last, end, l.Epoch-1)
}

// epochs returns the epochs that a root key opened, by number. Of several valid openings
// with the same number, the first one counts.
func (w *witnessing) epochs(ctx context.Context) (map[int64]contract.LogEpoch, error) {
	resp, err := w.c.request(ctx, http.MethodGet, "/api/v1/events?type="+contract.EventLogEpochOpened, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("the log's epochs: %w", err)
	}
	defer resp.Body.Close()
	out := map[int64]contract.LogEpoch{}
	for d := json.NewDecoder(resp.Body); ; {
		var line struct {
			Event json.RawMessage `json:"event"`
		}
		if err := d.Decode(&line); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, err
		}
		e, err := eventlog.OpenBytes(line.Event, eventlog.Every)
		if err != nil {
			return nil, err
		}
		l, err := trust.VerifyEpoch(e, w.keys.At)
		if err != nil {
			continue // the opening is invalid, or no root key signed it
		}
		if _, ok := out[l.Epoch]; !ok {
			out[l.Epoch] = l
		}
	}
}
