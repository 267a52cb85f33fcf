package evidence

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
)

// LedgerTrailer is the last line of an exported ledger: the checkpoint that
// covers exactly the lines above it.
func LedgerTrailer(note string) ([]byte, error) {
	w := canon.Object(nil)
	w.Str("binnacle_checkpoint", note)
	return append(w.End(), '\n'), nil
}

// LedgerReport is what a verified ledger proves.
type LedgerReport struct {
	Origin   string `json:"origin"`
	TreeSize int64  `json:"tree_size"`
	RootHash string `json:"root_hash"`
	Sessions int    `json:"sessions"`
	Receipts int    `json:"receipts"`
	Attested int    `json:"attested_by_callers"` // of the receipts
	Open     int    `json:"open_calls"`
}

// String is the report for people.
func (r *LedgerReport) String() string {
	return fmt.Sprintf("VERIFIED ledger %s\n  size      %d events, root %s\n  sessions  %d, each chain unbroken\n  receipts  %d, of them %d attested by the callers alone\n  open      %d calls without an outcome yet\n",
		r.Origin, r.TreeSize, r.RootHash, r.Sessions, r.Receipts, r.Attested, r.Open)
}

// VerifyLedger checks an exported ledger: the root over every line, every
// signature and every session's chain.
func VerifyLedger(export []byte, rootKID string) (*LedgerReport, error) {
	all, err := lines(export)
	if err != nil || len(all) < 2 {
		return nil, errors.New("not an exported ledger")
	}
	var trailer struct {
		Note string `json:"binnacle_checkpoint"`
	}
	if err := json.Unmarshal(all[len(all)-1], &trailer); err != nil || trailer.Note == "" {
		return nil, errors.New("the last line is not the checkpoint; the export is cut off")
	}
	if again, err := LedgerTrailer(trailer.Note); err != nil || !bytes.Equal(again[:len(again)-1], all[len(all)-1]) {
		return nil, errors.New("the last line is not in canonical form")
	}
	all = all[:len(all)-1]
	var system [][]byte
	var epochs []*contract.Event
	sessions := map[[2]string][]Stored{}
	contents := map[string][]byte{}
	nodes := map[[2]uint64]translog.Hash{}
	get := func(level uint, i uint64) (translog.Hash, error) { return nodes[[2]uint64{uint64(level), i}], nil }
	for i, b := range all {
		if err := translog.Append(uint64(i), translog.LeafHash(b), get, func(level uint, j uint64, h translog.Hash) error {
			nodes[[2]uint64{uint64(level), j}] = h
			return nil
		}); err != nil {
			return nil, err
		}
		e, err := contract.DecodeEvent(b)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		switch {
		case e.Name == "key_published" || e.Name == "key_revoked" || e.Name == "policy_activated":
			system = append(system, b)
		case e.Name == "log_epoch_opened":
			epochs = append(epochs, e)
		case e.Session != "":
			k := [2]string{e.Tenant, e.Session}
			sessions[k] = append(sessions[k], Stored{Bytes: b})
		}
	}
	reg, policies, err := foldSystem(system, rootKID, contents)
	if err != nil {
		return nil, err
	}
	epoch := int64(1)
	for _, e := range epochs {
		l, err := trust.VerifyEpoch(e, reg.At)
		if err != nil {
			return nil, fmt.Errorf("event %s: %w", e.ID, err)
		}
		epoch = max(epoch, l.Epoch)
	}
	var head *translog.Checkpoint
	err = errors.New("no checkpoint key of audit in the trust registry")
	for _, pub := range reg.Publics("audit", contract.UseCheckpoint, canon.MaxInt) {
		if head, err = translog.ParseNote([]byte(trailer.Note), pub); err == nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	if named := head.Extension("epoch"); named != "" && named != strconv.FormatInt(epoch, 10) {
		return nil, fmt.Errorf("the checkpoint is of log epoch %s, the ledger in epoch %d", named, epoch)
	}
	root, err := translog.Root(uint64(len(all)), get)
	if err != nil {
		return nil, err
	}
	if head.Size != uint64(len(all)) || head.Root != root {
		return nil, fmt.Errorf("the lines do not have the checkpoint's root: %d lines, checkpoint of %d", len(all), head.Size)
	}
	rep := &LedgerReport{Origin: head.Origin, TreeSize: int64(head.Size), RootHash: hex.EncodeToString(root[:]), Sessions: len(sessions)}
	order := slices.SortedFunc(maps.Keys(sessions), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	for _, k := range order {
		d, err := derive(k[0], k[1], sessions[k])
		if err != nil {
			return nil, fmt.Errorf("session %s: %w", k[1], err)
		}
		open, err := checkCalls(&Manifest{Tenant: k[0], Session: k[1]}, d, reg, policies)
		if err != nil {
			return nil, fmt.Errorf("session %s: %w", k[1], err)
		}
		if _, err := checkContents(d, contents); err != nil {
			return nil, fmt.Errorf("session %s: %w", k[1], err)
		}
		rep.Open += open
		rep.Receipts += len(d.receipts)
		rep.Attested += attestedByCallers(d.receipts)
	}
	return rep, nil
}
