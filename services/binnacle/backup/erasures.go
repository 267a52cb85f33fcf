package backup

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/contentkeys"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/ledger"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/erase"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/vaultbroker"
)

// erasures reads an exported ledger (binnacle export --ledger), and returns what was erased after its first
// size entries. It returns an error unless these have the given root, so that the ledger is a continuation
// of the backup with that root.
func erasures(r io.Reader, size uint64, root translog.Hash) ([]vaultbroker.Erasure, error) {
	lines := bufio.NewReaderSize(r, 1<<20)
	var log ledger.Tree
	out := []vaultbroker.Erasure{}
	for n := uint64(1); ; n++ {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		line = bytes.TrimSuffix(line, []byte("\n"))
		if n <= size {
			if err := log.Add(line); err != nil {
				return nil, err
			}
			continue
		}
		e, err := eventlog.OpenBytes(line, bus.EveryEvent)
		if err != nil { // the last line, with the checkpoint, is no event
			if _, more := lines.Peek(1); errors.Is(more, io.EOF) {
				break
			}
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		x, ok, err := erasureOf(e)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if ok {
			out = append(out, x)
		}
	}
	got, err := log.Root()
	if err == nil && (log.Size != size || got != root) {
		err = errors.New("it does not begin with the events of the backup: export it from the same mesh, at a time after the backup")
	}
	return out, err
}

// erasureOf returns what a call has erased. ok is false if e is not the outcome of such a call.
func erasureOf(e *contract.Event) (x vaultbroker.Erasure, ok bool, err error) {
	var r contract.Recorded
	if e.Service() != services.VaultBroker || e.Name != contract.EventEffectRecorded || contract.Decode(e.Data, &r) != nil || !slices.Contains(erase.Kinds, r.Effect.Tool) {
		return x, false, nil
	}
	x.Tenant = e.Tenant
	switch r.Effect.Status {
	case contract.Unknown: // the key may have been destroyed
		return x, false, fmt.Errorf("whether call %s has erased something is not known: repeat it before the export", e.CallID)
	case contract.Succeeded:
	default:
		return x, false, nil
	}
	if r.Effect.Tool == contentkeys.KindEraseTenant {
		return x, true, nil
	}
	var out struct{ ID, Subject string }
	b, err := r.Output.Open(nil)
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if x.Key, x.Subject = out.ID, out.Subject; err != nil || x.Key == "" && x.Subject == "" {
		return x, false, errors.Join(fmt.Errorf("the output of call %s does not name what it has erased", e.CallID), err)
	}
	return x, true, nil
}
