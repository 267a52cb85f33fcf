package audit

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"slices"
	"sync"

	"github.com/klauspost/compress/s2"
	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/audit"
)

// evidence writes a session's evidence pack to out, redacted as the query requests and
// compressed with S2.
func (s queries) evidence(ctx context.Context, q *events.EvidenceRequest, out io.Writer) error {
	doc, err := s.view.Lookup(transient.Tenant(ctx), q.Session)
	if err != nil {
		return err
	}
	src, err := s.source(ctx, q, doc)
	if err != nil {
		return err
	}
	if q.Redact != "" {
		show := func(call, part string) bool {
			return q.Redact != "all" && q.Redact != part || slices.Contains(q.Disclose, call)
		}
		if err := evidence.Redact(src, show); err != nil {
			return err
		}
	}
	// The pack is compressed because it is sent over TRANSIENT, a stream in memory that
	// other traffic shares.
	w := bufio.NewWriterSize(out, 512<<10)
	z := s2.NewWriter(w, s2.WriterConcurrency(2))
	return errors.Join(evidence.Build(z, *src, s.env.SignKey()), z.Close(), w.Flush())
}

// head selects the checkpoint to which a pack is bound (see bound); it covers the
// session's last event and at least q.From entries. head returns a source with that
// checkpoint, with its cosignatures if q.Witnessed is not 0 and, if the checkpoint
// commits to a map of tips, with the proof of the session's entry in the map.
func (s queries) head(ctx context.Context, q *events.EvidenceRequest, doc *Session) (*evidence.Source, error) {
	p, head, err := signable(ctx, s, max(uint64(doc.LastSeq), q.From), int(q.Witnessed))
	if err != nil {
		return nil, err
	}
	src := &evidence.Source{Tenant: doc.Tenant, Session: q.Session, Checkpoint: p.note, Head: *head, Objects: map[string][]byte{}, Cosignatures: p.cosigned}
	if q.Witnessed == 0 {
		src.Cosignatures = nil // the pack's bytes must not depend on cosignatures that are added later
	}
	tips, ok, err := head.Tips()
	if err != nil || !ok {
		return src, err
	}
	src.Tip, err = s.view.ProveTip(doc.Tenant, q.Session, head.Size, tips)
	return src, err
}

// signable returns the checkpoint that bound returns for the same arguments. If the
// signing key is not valid for manifests at that checkpoint, normally because the key was
// published later, signable returns one that covers every entry of the view instead. It
// does not check the key at that one.
func signable(ctx context.Context, s queries, size uint64, witnessed int) (p *point, head *translog.Checkpoint, err error) {
	for range 2 {
		if p, err = s.bound(ctx, size, witnessed); err != nil {
			return nil, nil, err
		}
		if head, err = s.env.Trust.Checkpoint(p.note); err != nil {
			return nil, nil, err
		}
		if l, err := evidence.Lamport(head); err == nil && holds(s.env, s.env.SignKey(), l) {
			break
		}
		size, _ = s.view.Position()
	}
	return p, head, nil
}

// source returns the content of a session's pack: the checkpoint, the trust and policy
// events (see View.SystemSeqs) and the session's events that it covers, and the objects to which
// these events refer (see stored). If q.From is not 0, it adds the checkpoint of that
// size and the proof that the log extends it; without such a checkpoint the error is
// not-found.
func (s queries) source(ctx context.Context, q *events.EvidenceRequest, doc *Session) (*evidence.Source, error) {
	src, err := s.head(ctx, q, doc)
	if err != nil {
		return nil, err
	}
	head := &src.Head
	if q.From > 0 {
		s.mu.Lock()
		if p := s.at(q.From); p != nil {
			src.Earlier = p.note
		}
		s.mu.Unlock()
		if src.Earlier == nil {
			return nil, notFound("no checkpoint of %d leaves was signed", q.From)
		}
		if src.Growth, err = translog.Consistency(q.From, head.Size, s.view.Tree.Node); err != nil {
			return nil, err
		}
	}
	seqs, err := s.view.SystemSeqs(doc.Tenant, head.Size)
	if err != nil {
		return nil, err
	}
	if src.System, err = s.stored(ctx, "", seqs, head.Size, src.Objects); err != nil {
		return nil, err
	}
	if seqs, err = s.view.EventSeqs(doc.Tenant, q.Session, head.Size); err != nil {
		return nil, err
	}
	if src.Events, err = s.stored(ctx, bus.SessionFilter(doc.Tenant, q.Session), seqs, head.Size, src.Objects); err != nil {
		return nil, err
	}
	return src, nil
}

// holds reports whether audit is allowed to sign manifests with the key at the given
// Lamport time.
func holds(env *run.Env, key *sign.Key, lamport uint64) bool {
	_, err := env.Trust.At(key.KID, "audit", contract.UseManifest, lamport)
	return err == nil
}

// stored reads the entries with the given sequences, as entriesNear does, and returns
// each with its inclusion proof in the tree of the given size. If an entry refers to an
// object that is neither encrypted nor erased, stored puts the object into the map
// objects under its commitment.
func (s queries) stored(ctx context.Context, filter string, seqs []uint64, size uint64, objects map[string][]byte) ([]evidence.Stored, error) {
	entries, err := s.entriesNear(ctx, filter, seqs)
	if err != nil {
		return nil, err
	}
	out := make([]evidence.Stored, len(entries))
	var mu sync.Mutex // guards objects
	g, ctx := errgroup.WithContext(ctx)
	part := len(entries)/runtime.GOMAXPROCS(0) + 1
	for lo := 0; lo < len(entries); lo += part {
		g.Go(func() error {
			node := remember(s.view.Tree.Node)
			for i := lo; i < min(lo+part, len(entries)); i++ {
				en := entries[i]
				path, err := translog.Inclusion(en.Seq-1, size, node)
				if err != nil {
					return err
				}
				out[i] = evidence.Stored{Bytes: en.Data, Proof: evidence.Proof{Index: int64(en.Seq - 1), Path: evidence.HexPath(path)}}
				if !bytes.Contains(en.Data, objectStore) {
					continue
				}
				tenant, refs := contents(en)
				for _, c := range refs {
					if c.Store != contract.StoreObject || c.Encryption != nil { // the commitment is that of the plaintext, so an encrypted object cannot be verified with it
						continue
					}
					object, err := s.env.Blobs.In(tenant).Object(ctx, &c)
					if err != nil {
						return err
					}
					if object != nil {
						mu.Lock()
						objects[c.Commitment] = object
						mu.Unlock()
					}
				}
			}
			return nil
		})
	}
	return out, g.Wait()
}

// objectStore occurs in every event with a reference to an object. An event without it
// need not be decoded.
var objectStore = []byte(`"store":"` + contract.StoreObject + `"`)

// remember returns a function that caches the results of get, because proofs of
// neighbouring leaves share most nodes. The returned function is not safe for concurrent
// use.
func remember(get translog.Nodes) translog.Nodes {
	type at struct {
		level uint
		index uint64
	}
	seen := map[at]translog.Hash{}
	return func(level uint, index uint64) (translog.Hash, error) {
		if h, ok := seen[at{level, index}]; ok {
			return h, nil
		}
		h, err := get(level, index)
		if err == nil {
			seen[at{level, index}] = h
		}
		return h, err
	}
}

// contents returns the tenant of an event, and the references to the contents of a
// proposal, to the output of an outcome, or to the bundle of a policy's activation. It
// returns no references for any other entry, for an outcome without an output, and for an
// event that cannot be decoded.
func contents(en eventlog.Entry) (tenant string, refs []contract.Content) {
	e, err := eventlog.Open(en, eventlog.Every)
	if err != nil {
		return "", nil
	}
	switch e.Name {
	case contract.EventCallProposed:
		var c contract.Call
		if contract.Decode(e.Data, &c) == nil {
			refs = c.Contents()
		}
	case contract.EventEffectRecorded:
		var r contract.Recorded
		if contract.Decode(e.Data, &r) == nil && r.Output != nil {
			refs = []contract.Content{*r.Output}
		}
	case contract.EventPolicyActivated:
		var a contract.Activated
		if contract.Decode(e.Data, &a) == nil {
			refs = []contract.Content{a.Bundle}
		}
	}
	return e.Tenant, refs
}
