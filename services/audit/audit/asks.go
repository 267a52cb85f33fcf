package audit

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/core/proofgraph"
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
	// The llm-router continues stored responses of the caller whose call it runs.
	box.Serve("call", func(ctx context.Context, raw json.RawMessage, reply func(any) error) error {
		return s.eventOf(ctx, raw, reply, contract.IDReceipt, contract.IDSession, contract.IDDecision, contract.IDEscalation, contract.IDProposal)
	}, transient.Edge, "llm-router")
	box.Serve("decision", func(ctx context.Context, raw json.RawMessage, reply func(any) error) error {
		return s.eventOf(ctx, raw, reply, contract.IDDecision)
	})
	box.Serve("late_report", func(ctx context.Context, raw json.RawMessage, reply func(any) error) error {
		return s.eventOf(ctx, raw, reply, contract.IDOutcome)
	})
	box.Serve("proposal", func(ctx context.Context, raw json.RawMessage, reply func(any) error) error {
		return s.eventOf(ctx, raw, reply, contract.IDProposal)
	}, transient.Edge, "llm-router")
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
	box.Serve("transcript", s.transcript, "judge")
	box.Serve("evidence", s.evidence)
	box.Serve("proof", s.proof)
	box.Serve("checkpoint", s.checkpointNote)
	box.Serve("consistency", s.consistency)
	box.Serve("tile", s.tile)
	box.Serve("cosign", s.cosign)
	box.Serve("search", s.search)
	box.Serve("acted", func(_ context.Context, raw json.RawMessage, reply func(any) error) error {
		q, err := parse[struct {
			Actor string `json:"actor"`
		}](raw)
		if err != nil {
			return err
		}
		found, _, err := s.view.Search(SearchQuery{Terms: map[string]string{"actor": q.Actor}, Limit: 1})
		if err != nil {
			return err
		}
		return reply(len(found) > 0)
	}, "policy")
	box.Serve("makers", s.makers)
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
func (f fresh) Serve(verb string, h transient.Handler, askers ...string) {
	f.s.env.Box.Serve(verb, func(ctx context.Context, raw json.RawMessage, reply func(any) error) error {
		if err := f.s.catchUp(ctx); err != nil {
			return err
		}
		return h(ctx, raw, reply)
	}, askers...)
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

// graph is a session's proof graph up to the newest checkpoint, which closes it.
func (s *Service) graph(ctx context.Context, session string) ([]proofgraph.Node, error) {
	doc, err := s.view.Lookup(s.env.Tenant, session)
	if err != nil {
		return nil, err
	}
	p, err := s.newest(ctx, uint64(doc.LastSeq))
	if err != nil {
		return nil, errors.New("not found: " + err.Error())
	}
	head, err := s.note(p.note)
	if err != nil {
		return nil, err
	}
	lamport, err := evidence.Lamport(head)
	if err != nil {
		return nil, err
	}
	entries, err := s.sessionEntries(ctx, session, head.Size)
	if err != nil {
		return nil, err
	}
	g := proofgraph.Graph{Version: 2, Nodes: []proofgraph.Node{}}
	for _, en := range entries {
		if e, err := eventlog.Open(en); err == nil {
			g.Add(e, en.Data)
		}
	}
	g.Close(translog.NoteText(p.note), head.Size, int64(lamport), session)
	return g.Nodes, nil
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
		case contract.EventCallProposed:
			var c contract.Call
			if err := contract.Decode(e.Data, &c); err != nil {
				return err
			}
			t.Kind, t.Tool, content = c.Kind, c.Tool, &c.Args
			if c.Body != nil {
				content = c.Body
			}
		case contract.EventEffectRecorded:
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
	p, err := s.newest(ctx, q.Seq)
	if err != nil {
		return errors.New("not found: " + err.Error())
	}
	note := p.note
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

// checkpointNote returns the newest checkpoint, the one that witnesses are to
// cosign, or the newest that some number of them have, with their lines.
func (s *Service) checkpointNote(ctx context.Context, raw json.RawMessage, reply func(any) error) error {
	q, err := parse[struct {
		Witness   bool  `json:"witness"`
		Witnessed int   `json:"witnessed"`
		Epoch     int64 `json:"epoch"` // a closed epoch; 0 is the open one
	}](raw)
	if err != nil {
		return err
	}
	switch {
	case q.Epoch != 0:
		note, err := s.closedNote(q.Epoch)
		if err != nil {
			return err
		}
		return reply(string(note))
	case q.Witnessed > 0:
		p, err := s.bound(ctx, 0, q.Witnessed)
		if err != nil {
			return err
		}
		return reply(string(p.note) + strings.Join(p.cosigned, "\n") + "\n")
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
