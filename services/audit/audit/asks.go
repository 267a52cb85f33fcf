package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/s2"
	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/core/proofgraph"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// serve registers audit's questions.
func (s *Service) serve() {
	box := fresh{s}
	box.Serve("sessions", func(_ context.Context, raw json.RawMessage, reply func(any) error) error {
		q, err := parse[Query](raw)
		if err != nil {
			return err
		}
		list, err := s.view.Sessions(q.Offset, min(q.Limit, 1000))
		if err != nil {
			return err
		}
		return reply(list)
	})
	box.Serve("session_receipts", func(_ context.Context, raw json.RawMessage, reply func(any) error) error {
		q, err := parse[Query](raw)
		if err != nil {
			return err
		}
		if _, err := s.view.Lookup(s.env.Tenant, q.Session); err != nil {
			return err
		}
		b := batcher{reply: reply}
		if err := s.view.Receipts(s.env.Tenant, q.Session, q.Offset, q.Limit, b.add); err != nil {
			return err
		}
		return b.flush()
	})
	box.Serve("receipts", func(_ context.Context, raw json.RawMessage, reply func(any) error) error {
		q, err := parse[Query](raw)
		if err != nil {
			return err
		}
		b := batcher{reply: reply}
		if err := s.view.Receipts(s.env.Tenant, q.Session, q.Offset, q.Limit, b.add); err != nil {
			return err
		}
		return b.flush()
	})
	box.Serve("proofgraph", func(ctx context.Context, raw json.RawMessage, reply func(any) error) error {
		q, err := parse[Query](raw)
		if err != nil {
			return err
		}
		nodes, err := s.graph(ctx, q.Session)
		if err != nil {
			return err
		}
		b := batcher{reply: reply}
		for i := range nodes {
			if err := b.add(contract.Bytes(&nodes[i])); err != nil {
				return err
			}
		}
		return b.flush()
	})
	box.Serve("call", func(ctx context.Context, raw json.RawMessage, reply func(any) error) error {
		return s.eventOf(ctx, raw, reply, "r-", "s-", "d-", "q-", "p-")
	})
	box.Serve("decision", func(ctx context.Context, raw json.RawMessage, reply func(any) error) error {
		return s.eventOf(ctx, raw, reply, "d-")
	})
	box.Serve("late_report", func(ctx context.Context, raw json.RawMessage, reply func(any) error) error {
		return s.eventOf(ctx, raw, reply, "o-")
	})
	box.Serve("proposal", func(ctx context.Context, raw json.RawMessage, reply func(any) error) error {
		return s.eventOf(ctx, raw, reply, "p-")
	})
	box.Serve("receipt_by_digest", func(_ context.Context, raw json.RawMessage, reply func(any) error) error {
		q, err := parse[struct {
			Digest string `json:"digest"`
		}](raw)
		if err != nil {
			return err
		}
		b, err := s.view.Receipt(q.Digest)
		if err != nil {
			return err
		}
		return reply(json.RawMessage(b))
	})
	box.Serve("transcript", s.transcript)
	box.Serve("evidence", s.evidence)
	box.Serve("proof", s.proof)
	box.Serve("checkpoint", s.checkpointNote)
	box.Serve("consistency", s.consistency)
	box.Serve("tile", s.tile)
	box.Serve("cosign", s.cosign)
	box.Serve("search", s.search)
	box.Serve("view", func(_ context.Context, _ json.RawMessage, reply func(any) error) error {
		b := batcher{reply: reply}
		if err := s.view.Dump(func(l []byte) error { return b.add(append(json.RawMessage(nil), l...)) }); err != nil {
			return err
		}
		return b.flush()
	})
}

// fresh registers questions whose answers hold everything that was on the ledger
// when they were asked.
type fresh struct{ s *Service }

// Serve registers one.
func (f fresh) Serve(verb string, h transient.Handler) {
	f.s.env.Box.Serve(verb, func(ctx context.Context, raw json.RawMessage, reply func(any) error) error {
		if err := f.s.catchUp(ctx); err != nil {
			return err
		}
		return h(ctx, raw, reply)
	})
}

// batcher sends documents in frames of some 256 KiB.
type batcher struct {
	reply func(any) error
	items []json.RawMessage
	size  int
}

func (b *batcher) add(d json.RawMessage) error {
	b.items, b.size = append(b.items, d), b.size+len(d)
	if b.size < 256<<10 {
		return nil
	}
	return b.flush()
}

func (b *batcher) flush() error {
	if len(b.items) == 0 {
		return nil
	}
	err := b.reply(b.items)
	b.items, b.size = nil, 0
	return err
}

// readers is how many ledger entries are read at once: a session's lie far
// apart, so each is a request of its own.
const readers = 16

// entries reads the ledger at the given sequences.
func (s *Service) entries(ctx context.Context, seqs []uint64) ([]eventlog.Entry, error) {
	return s.entriesNear(ctx, "", seqs)
}

// entriesNear reads them in one go where they lie under one filter: what that
// does not bring is read one by one.
func (s *Service) entriesNear(ctx context.Context, filter string, seqs []uint64) ([]eventlog.Entry, error) {
	out := make([]eventlog.Entry, len(seqs))
	if filter != "" && len(seqs) > readers {
		i := 0
		for en, err := range s.env.Emit.Log.Scan(ctx, filter, seqs[0]) {
			if err != nil {
				return nil, err
			}
			for i < len(seqs) && seqs[i] < en.Seq {
				i++
			}
			if i == len(seqs) {
				break
			}
			if seqs[i] == en.Seq {
				out[i] = en
			}
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	for i, n := range seqs {
		if out[i].Seq == n {
			continue
		}
		g.Go(func() (err error) {
			if out[i], err = s.env.Emit.Log.Get(ctx, n); err != nil {
				return fmt.Errorf("ledger entry %d: %w", n, err)
			}
			return nil
		})
	}
	return out, g.Wait()
}

func (s *Service) sessionEntries(ctx context.Context, session string, size uint64) ([]eventlog.Entry, error) {
	if _, err := s.view.Lookup(s.env.Tenant, session); err != nil {
		return nil, err
	}
	seqs, err := s.view.EventSeqs(s.env.Tenant, session, size)
	if err != nil {
		return nil, err
	}
	return s.entriesNear(ctx, bus.SessionFilter(s.env.Tenant, session), seqs)
}

func (s *Service) graph(ctx context.Context, session string) ([]proofgraph.Node, error) {
	pos, _ := s.view.Position()
	entries, err := s.sessionEntries(ctx, session, pos)
	if err != nil {
		return nil, err
	}
	nodes, prev := []proofgraph.Node{}, ""
	for _, en := range entries {
		e, err := eventlog.Open(en)
		if err != nil {
			continue
		}
		p := ""
		if e.Name == "effect_recorded" {
			p, prev = prev, e.ID
		}
		nodes = append(nodes, proofgraph.Of(e, en.Data, p))
	}
	return nodes, nil
}

// eventOf answers with the first of a call's events that there is, by the
// prefixes of their ids.
func (s *Service) eventOf(ctx context.Context, raw json.RawMessage, reply func(any) error, prefixes ...string) error {
	q, err := parse[struct {
		CallID string `json:"call_id"`
	}](raw)
	if err != nil {
		return err
	}
	for _, prefix := range prefixes {
		seq, err := s.view.SeqOf(prefix + q.CallID)
		if err != nil {
			return err
		}
		if seq == 0 {
			continue
		}
		en, err := s.env.Emit.Log.Get(ctx, seq)
		if err != nil {
			return err
		}
		return reply(json.RawMessage(en.Data))
	}
	return errors.New("not found: no call " + q.CallID)
}

// Turn is one event of a transcript: what a judge may see and cite.
type Turn struct {
	EventID string `json:"event_id"`
	Name    string `json:"name"`
	Kind    string `json:"kind,omitempty"`
	Tool    string `json:"tool,omitempty"`
	Status  string `json:"status,omitempty"`
	Reason  string `json:"reason_code,omitempty"`
	Content string `json:"content,omitempty"`
}

// transcript answers with a session's calls and outcomes, contents opened.
func (s *Service) transcript(ctx context.Context, raw json.RawMessage, reply func(any) error) error {
	q, err := parse[Query](raw)
	if err != nil {
		return err
	}
	pos, _ := s.view.Position()
	entries, err := s.sessionEntries(ctx, q.Session, pos)
	if err != nil {
		return err
	}
	turns := []Turn{}
	for _, en := range entries {
		e, err := eventlog.Open(en)
		if err != nil {
			continue
		}
		t := Turn{EventID: e.ID, Name: e.Name}
		var content *contract.Content
		switch e.Name {
		case "call_proposed":
			var c contract.Call
			if err := contract.Decode(e.Data, &c); err != nil {
				return err
			}
			t.Kind, t.Tool, content = c.Kind, c.Tool, &c.Args
			if c.Body != nil {
				content = c.Body
			}
		case "effect_recorded":
			var r contract.Recorded
			if err := contract.Decode(e.Data, &r); err != nil {
				return err
			}
			t.Tool, t.Status, t.Reason, content = r.Effect.Tool, r.Effect.Status, r.Receipt.ReasonCode, r.Output
		default:
			continue
		}
		if content != nil {
			b, err := s.env.Blobs.Open(ctx, content)
			if err == nil {
				t.Content = string(b)
			} else {
				t.Content = "[" + err.Error() + "]"
			}
		}
		turns = append(turns, t)
	}
	return reply(turns)
}

// evidence answers with a session's pack, compressed (S2), in binary frames.
func (s *Service) evidence(ctx context.Context, raw json.RawMessage, reply func(any) error) error {
	q, err := parse[Query](raw)
	if err != nil {
		return err
	}
	doc, err := s.view.Lookup(s.env.Tenant, q.Session)
	if err != nil {
		return err
	}
	note, cosigned, err := s.witnessed(ctx, max(uint64(doc.LastSeq), q.From), q.Witnessed)
	if err != nil {
		return err
	}
	head, err := s.note(note)
	if err != nil {
		return err
	}
	key := s.env.SignKey()
	if l, err := evidence.Lamport(head); err != nil || !s.holds(key, l) {
		// The key is younger than that checkpoint: seal under a later one.
		pos, _ := s.view.Position()
		if note, cosigned, err = s.witnessed(ctx, pos, q.Witnessed); err != nil {
			return err
		}
		if head, err = s.note(note); err != nil {
			return err
		}
	}
	src := evidence.Source{Tenant: s.env.Tenant, Session: q.Session, Checkpoint: note, Head: *head, Objects: map[string][]byte{}, Cosignatures: cosigned}
	if q.From > 0 {
		s.mu.Lock()
		if p := s.at(q.From); p != nil {
			src.Earlier = p.note
		}
		s.mu.Unlock()
		if src.Earlier == nil {
			return fmt.Errorf("not found: no checkpoint of %d leaves was signed", q.From)
		}
		if src.Growth, err = translog.Consistency(q.From, head.Size, s.view.Tree.Node); err != nil {
			return err
		}
	}
	seqs, err := s.view.SystemSeqs(head.Size)
	if err != nil {
		return err
	}
	if src.System, err = s.stored(ctx, "", seqs, head.Size, src.Objects); err != nil {
		return err
	}
	if seqs, err = s.view.EventSeqs(s.env.Tenant, q.Session, head.Size); err != nil {
		return err
	}
	if src.Events, err = s.stored(ctx, bus.SessionFilter(s.env.Tenant, q.Session), seqs, head.Size, src.Objects); err != nil {
		return err
	}
	if q.Redact != "" {
		show := func(call, part string) bool {
			return q.Redact != "all" && q.Redact != part || slices.Contains(q.Disclose, call)
		}
		if err := evidence.Redact(&src, show); err != nil {
			return err
		}
	}
	// Compressed: what goes over TRANSIENT takes memory from everybody.
	w := bufio.NewWriterSize(replyWriter(reply), 512<<10)
	z := s2.NewWriter(w, s2.WriterConcurrency(2))
	return errors.Join(evidence.Build(z, src, key), z.Close(), w.Flush())
}

// replyWriter sends what is written as binary frames.
type replyWriter func(any) error

func (r replyWriter) Write(b []byte) (int, error) { return len(b), r(b) }

func (s *Service) holds(key *sign.Key, lamport uint64) bool {
	_, err := s.env.Trust.At(key.KID, "audit", contract.UseManifest, lamport)
	return err == nil
}

// stored reads entries with their proofs and collects their objects.
func (s *Service) stored(ctx context.Context, filter string, seqs []uint64, size uint64, objects map[string][]byte) ([]evidence.Stored, error) {
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
				for _, c := range contents(en) {
					if c.Store != contract.StoreObject || c.Encryption != nil { // ciphertext cannot be held against its commitment
						continue
					}
					object, err := s.env.Blobs.Object(ctx, &c)
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

// objectStore is in every event that refers to an object.
var objectStore = []byte(`"store":"` + contract.StoreObject + `"`)

// remember keeps the nodes that the proofs of neighbours share.
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

// contents lists the content references of an event.
func contents(en eventlog.Entry) []contract.Content {
	e, err := eventlog.Open(en)
	if err != nil {
		return nil
	}
	switch e.Name {
	case "call_proposed":
		var c contract.Call
		if contract.Decode(e.Data, &c) == nil {
			return c.Contents()
		}
	case "effect_recorded":
		var r contract.Recorded
		if contract.Decode(e.Data, &r) == nil && r.Output != nil {
			return []contract.Content{*r.Output}
		}
	case "policy_activated":
		var a contract.Activated
		if contract.Decode(e.Data, &a) == nil {
			return []contract.Content{a.Bundle}
		}
	}
	return nil
}

// proof answers with an entry's leaf hash and inclusion proof.
func (s *Service) proof(ctx context.Context, raw json.RawMessage, reply func(any) error) error {
	q, err := parse[struct {
		Seq uint64 `json:"seq"`
	}](raw)
	if err != nil {
		return err
	}
	if pos, _ := s.view.Position(); q.Seq == 0 || q.Seq > pos {
		return errors.New("not found: no such ledger entry")
	}
	note, err := s.covering(ctx, q.Seq)
	if err != nil {
		return errors.New("not found: " + err.Error())
	}
	head, err := s.note(note)
	if err != nil {
		return err
	}
	leaf, err := s.view.Tree.Node(0, q.Seq-1)
	if errors.Is(err, io.EOF) {
		return errors.New("not found: no such ledger entry")
	}
	if err != nil {
		return err
	}
	path, err := translog.Inclusion(q.Seq-1, head.Size, s.view.Tree.Node)
	if err != nil {
		return err
	}
	return reply(map[string]any{"index": q.Seq - 1, "leaf": hex.EncodeToString(leaf[:]), "path": evidence.HexPath(path), "checkpoint": strings.TrimSpace(string(note)) + "\n"})
}

// checkpointNote answers with the newest checkpoint, or with the one that
// witnesses are to cosign.
func (s *Service) checkpointNote(_ context.Context, raw json.RawMessage, reply func(any) error) error {
	q, err := parse[struct {
		Witness bool  `json:"witness"`
		Epoch   int64 `json:"epoch"` // a closed epoch; 0 is the open one
	}](raw)
	if err != nil {
		return err
	}
	if q.Epoch != 0 {
		note, err := s.closedNote(q.Epoch)
		if err != nil {
			return err
		}
		return reply(string(note))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.checkpoints) == 0 {
		return errors.New("not found: no checkpoint is signed yet")
	}
	if q.Witness {
		return reply(string(s.forWitnesses().note))
	}
	return reply(string(s.checkpoints[len(s.checkpoints)-1].note))
}

// consistency answers with the proof that one tree is the beginning of another
// (RFC 6962 section 2.1.2).
func (s *Service) consistency(_ context.Context, raw json.RawMessage, reply func(any) error) error {
	q, err := parse[struct {
		From  uint64 `json:"from"`
		To    uint64 `json:"to"`
		Epoch int64  `json:"epoch"` // a closed epoch; 0 is the open one
	}](raw)
	if err != nil {
		return err
	}
	node := s.view.Tree.Node
	size, _ := s.view.Position()
	if q.Epoch != 0 {
		t, n, err := s.closedTree(q.Epoch)
		if err != nil {
			return err
		}
		defer t.Close()
		node, size = t.Node, n
	}
	if q.From > q.To || q.To > size {
		return fmt.Errorf("not found: no tree of %d leaves begins with %d", q.To, q.From)
	}
	proof, err := translog.Consistency(q.From, q.To, node)
	if err != nil {
		return err
	}
	return reply(map[string]any{"from": q.From, "to": q.To, "path": evidence.HexPath(proof)})
}

// tile answers with the hashes of a tile of the C2SP tlog-tiles layout: level
// counts in steps of 8, width hashes from index*256 on.
func (s *Service) tile(_ context.Context, raw json.RawMessage, reply func(any) error) error {
	q, err := parse[struct {
		Level uint   `json:"level"`
		Index uint64 `json:"index"`
		Width uint64 `json:"width"`
	}](raw)
	if err != nil {
		return err
	}
	pos, _ := s.view.Position()
	if q.Level > 5 || q.Width == 0 || q.Width > 256 || q.Index > pos || q.Index*256+q.Width > pos>>(8*q.Level) {
		return errors.New("not found: the tree does not have this tile")
	}
	out := make([]byte, 0, q.Width*32)
	for i := range q.Width {
		h, err := s.view.Tree.Node(8*q.Level, q.Index*256+i)
		if err != nil {
			return err
		}
		out = append(out, h[:]...)
	}
	return reply(base64.StdEncoding.EncodeToString(out))
}
