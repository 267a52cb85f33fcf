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

// The format of a cosignature in CHECKPOINTS: the size of the tree, a newline, and the
// witness's line.

// cosign stores a witness's cosignature over a checkpoint of this log. The witness
// is in the trust registry and its line verifies; everything else is refused.
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
			return events.Witness{Witness: name}, nil // stored already
		}
	}
	try, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := s.env.Conn.JS.Publish(try, bus.LogSubject(s.env.Tenant, bus.CosignatureSubject), []byte(strconv.FormatUint(q.Size, 10)+"\n"+q.Line)); err != nil {
		return w, err
	}
	p.cosigned = append(p.cosigned, q.Line)
	return events.Witness{Witness: name}, nil
}

// meeting is the time for which one checkpoint is offered to witnesses.
const meeting = time.Minute

// forWitnesses returns the checkpoint that witnesses are to cosign: the same for each
// until all have cosigned it or a minute has passed. Witnesses poll at different times;
// without this, no two would cosign the same checkpoint. Its size never decreases.
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

// witnesses counts those that are known and not revoked.
func witnesses(env *run.Env) (n int) {
	for _, k := range env.Trust.Keys() {
		if strings.HasPrefix(k.Owner, "witness:") && k.RevokedSince == 0 {
			n++
		}
	}
	return n
}

// recall folds a stored cosignature; checkpoints come before their cosignatures.
func (s *Service) recall(b []byte) {
	size, line, ok := strings.Cut(string(b), "\n")
	n, err := strconv.ParseUint(size, 10, 64)
	for i := len(s.checkpoints) - 1; ok && err == nil && i >= 0 && s.checkpoints[i].size >= n; i-- {
		p := &s.checkpoints[i] // two checkpoints may have one size; the line is over one of them
		if _, err := witnessOf(s.env, p.note, line); p.size == n && err == nil {
			p.cosigned = append(p.cosigned, line)
		}
	}
}

func (s *Service) at(size uint64) *point {
	for i := len(s.checkpoints) - 1; i >= 0; i-- {
		if s.checkpoints[i].size == size {
			return &s.checkpoints[i]
		}
	}
	return nil
}

// witnessOf returns the witness whose line over a note verifies.
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

// bound returns the checkpoint that a pack over at least size leaves binds to: the
// newest, or the newest with k cosignatures where those are demanded.
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
