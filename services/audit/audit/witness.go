package audit

import (
	"context"
	"encoding/base64"
	"strconv"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	events "github.com/binnacle-mesh/binnacle/schemas/audit"
)

// A cosignature in CHECKPOINTS is stored as the size of the tree, a newline, and the
// witness's signature line.

// cosign stores a witness's cosignature of a checkpoint of this log, unless a cosignature
// of that witness is stored already. In both cases it returns the name of the witness. It
// returns a not-found error if the log has no checkpoint of q.Size leaves, and the errors
// of witnessOf and of the server.
func (s queries) cosign(ctx context.Context, q *events.CosignRequest) (w events.Witness, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.at(q.Size)
	if p == nil {
		return w, notFound("no checkpoint of %d leaves", q.Size)
	}
	name, err := witnessOf(s.env, p.note, q.Line)
	if err != nil {
		return w, err
	}
	for _, have := range p.cosigned {
		if strings.HasPrefix(have, "— "+name+" ") {
			return events.Witness{Witness: name}, nil // a cosignature of this witness is stored already
		}
	}
	try, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := s.env.Conn.JS.Publish(try, bus.LogSubject(logTenant(s.env), bus.CosignatureSubject), []byte(strconv.FormatUint(q.Size, 10)+"\n"+q.Line)); err != nil {
		return w, err
	}
	p.cosigned = append(p.cosigned, q.Line)
	return events.Witness{Witness: name}, nil
}

// meeting is the time after which witnesses are offered a newer checkpoint even if not
// all have cosigned the previous one.
const meeting = time.Minute

// forWitnesses returns the checkpoint that witnesses are to cosign, or nil if there is
// none. It returns the same one until all witnesses have cosigned it or the time meeting
// has passed, because witnesses poll at different times and otherwise no two would
// cosign the same checkpoint. The caller must hold mu.
func (s queries) forWitnesses() *point {
	if len(s.checkpoints) == 0 {
		return nil
	}
	if p := s.at(s.target); p != nil && time.Since(s.targetSince) < meeting && len(p.cosigned) < witnesses(s.env) {
		return p
	}
	p := &s.checkpoints[len(s.checkpoints)-1]
	s.target, s.targetSince = p.size, time.Now()
	return p
}

// witnesses returns the number of witnesses in the trust registry that are not revoked.
func witnesses(env *run.Env) (n int) {
	for _, k := range env.Trust.Keys() {
		if strings.HasPrefix(k.Owner, "witness:") && k.RevokedSince == 0 {
			n++
		}
	}
	return n
}

// recall adds a cosignature that was read from CHECKPOINTS to its checkpoint, which must
// have been read before. It ignores a malformed cosignature, and one that witnessOf
// rejects.
func (s *Service) recall(b []byte) {
	size, line, ok := strings.Cut(string(b), "\n")
	n, err := strconv.ParseUint(size, 10, 64)
	for i := len(s.checkpoints) - 1; ok && err == nil && i >= 0 && s.checkpoints[i].size >= n; i-- {
		p := &s.checkpoints[i] // two checkpoints may have the same size, and the line is a signature of one of them
		if _, err := witnessOf(s.env, p.note, line); p.size == n && err == nil {
			p.cosigned = append(p.cosigned, line)
		}
	}
}

// at returns the newest checkpoint of the given size, or nil. The caller must hold mu.
func (s *Service) at(size uint64) *point {
	for i := len(s.checkpoints) - 1; i >= 0; i-- {
		if s.checkpoints[i].size == size {
			return &s.checkpoints[i]
		}
	}
	return nil
}

// witnessOf returns the name of the witness that signed line for the checkpoint in note.
// It returns an error if no witness whose key is in the trust registry and not revoked
// did, or if the key may not be used for cosignatures at the current Lamport time.
func witnessOf(env *run.Env, note []byte, line string) (string, error) {
	for _, k := range env.Trust.Keys() {
		name, ok := strings.CutPrefix(k.Owner, "witness:")
		if !ok || k.RevokedSince != 0 {
			continue
		}
		public, err := base64.StdEncoding.DecodeString(k.PublicKey)
		if err != nil {
			continue
		}
		if _, err := translog.VerifyCosignature(note, line, name, public); err == nil {
			_, err = env.Trust.At(k.KID, k.Owner, contract.UseWitness, env.Emit.Tick())
			return name, err
		}
	}
	return "", notFound("no witness of the trust registry signed this")
}

// bound returns the checkpoint to which a pack that needs at least size leaves is bound:
// the newest one if k is 0, or else the newest one with at least k cosignatures. It
// returns an error if there is no such checkpoint.
func (s queries) bound(ctx context.Context, size uint64, k int) (*point, error) {
	p, err := s.newest(ctx, size)
	if err != nil || k == 0 {
		return p, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.checkpoints) - 1; i >= 0 && s.checkpoints[i].size >= size; i-- {
		if p := s.checkpoints[i]; len(p.cosigned) >= k {
			return &p, nil
		}
	}
	return nil, notFound("no checkpoint above entry %d has %d cosignatures yet", size, k)
}
