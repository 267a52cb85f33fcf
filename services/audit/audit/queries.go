package audit

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/contentkeys"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/core/proofgraph"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/fair"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/audit"
)

// queries implements the handlers of queries from other services.
type queries struct{ *Service }

// serve registers the handlers of audit's queries.
func (s *Service) serve(server *rpc.Server) {
	q := queries{s}
	long := &fair.Places{N: longReads}
	rpc.Serve(server, events.SessionsQuery, q.sessions)
	rpc.ServeList(server, events.SessionReceiptsQuery, q.sessionReceipts)
	rpc.ServeList(server, events.ReceiptsQuery, q.receipts)
	rpc.ServeList(server, events.ProofgraphQuery, admitted(long, q.proofgraph))
	rpc.Serve(server, events.CallQuery, q.firstOf(contract.IDReceipt, contract.IDSession, contract.IDDecision, contract.IDEscalation, contract.IDProposal))
	rpc.Serve(server, events.CallEventsQuery, eventsOf(q))
	rpc.Serve(server, events.CancellationQuery, q.firstOf(contract.IDCancel))
	rpc.Serve(server, events.DeferralQuery, q.firstOf(contract.IDDeferral))
	rpc.Serve(server, events.DecisionQuery, q.firstOf(contract.IDDecision))
	rpc.Serve(server, events.LateReportQuery, q.firstOf(contract.IDOutcome))
	rpc.Serve(server, events.ProposalQuery, q.firstOf(contract.IDProposal))
	rpc.Serve(server, events.ReceiptByDigestQuery, q.receipt)
	rpc.Serve(server, events.TranscriptQuery, q.transcript)
	rpc.ServeBytes(server, events.EvidenceQuery, admitted(long, q.evidence))
	rpc.ServeList(server, events.TenantExportQuery, admitted(long, tenantExport(q)))
	rpc.Serve(server, events.ProofQuery, q.proof)
	rpc.Serve(server, events.CheckpointQuery, q.checkpoint)
	rpc.Serve(server, events.ConsistencyQuery, q.consistency)
	rpc.Serve(server, events.TileQuery, q.tile)
	rpc.Serve(server, events.CosignQuery, q.cosign)
	rpc.ServeList(server, events.SearchQuery, q.search)
	rpc.Serve(server, events.ActedQuery, acted(s))
	rpc.Serve(server, events.MakersQuery, q.makers)
	rpc.ServeList(server, events.ViewQuery, func(_ context.Context, _ *events.ViewRequest, add func(json.RawMessage) error) error {
		return s.view.Dump(func(l []byte) error { return add(bytes.Clone(l)) })
	})
}

// longReads is the maximum number of queries for packs, proof graphs and parts of exports
// that audit handles at once, because each holds many events in memory. They continue
// until their deadline if the client of the gateway disconnects, so a limit at the
// gateways does not bound them. fair.Places divides them among the tenants.
const longReads = 16

// admitted returns a handler that calls h while the query's tenant has one of the places,
// and fails with code reads_exceeded if it may not have another one. The type O is that of
// the handler's output.
func admitted[Q, O any](places *fair.Places, h func(context.Context, *Q, O) error) func(context.Context, *Q, O) error {
	return func(ctx context.Context, q *Q, out O) error {
		leave, ok := places.Take(transient.Tenant(ctx))
		if !ok {
			return rpc.Errorf(contract.CodeReadsExceeded, "audit handles as many packs, proof graphs and exports of the tenant as it may; send the request again")
		}
		defer leave()
		return h(ctx, q, out)
	}
}

// indexed implements rpc.View for audit's index.
type indexed struct{ s *Service }

// Position implements rpc.View.
func (x indexed) Position() uint64 { at, _ := x.s.view.Position(); return at }

// Pending implements rpc.View.
func (x indexed) Pending() uint64 { return x.s.log.Pending() }

func notFound(format string, args ...any) error {
	return rpc.Errorf(contract.CodeNotFound, format, args...)
}

func (s queries) sessions(ctx context.Context, q *events.SessionsRequest) ([]events.Session, error) {
	list, err := s.view.Sessions(transient.Tenant(ctx), int(q.Offset), int(min(q.Limit, 1000)))
	out := make([]events.Session, len(list))
	for i := range list {
		err = errors.Join(err, json.Unmarshal(list[i], &out[i]))
	}
	return out, err
}

// acted returns a handler that reports whether the tenant has an event of the actor.
func acted(s *Service) func(context.Context, *events.ActedRequest) (bool, error) {
	return func(ctx context.Context, q *events.ActedRequest) (bool, error) {
		found, _, err := s.view.Search(SearchQuery{Tenant: transient.Tenant(ctx), Terms: map[string]string{"actor": q.Actor}, Limit: 1})
		return len(found) > 0, err
	}
}

func (s queries) sessionReceipts(ctx context.Context, q *events.SessionReceiptsRequest, add func(json.RawMessage) error) error {
	if _, err := s.view.Lookup(transient.Tenant(ctx), q.Session); err != nil {
		return err
	}
	return s.receipts(ctx, &events.ReceiptsRequest{Session: q.Session, Offset: q.Offset, Limit: q.Limit}, add)
}

// receiptsAtOnce is the maximum number of receipts that receipts reads from the ledger
// before it passes them on.
const receiptsAtOnce = 1000

// receipts passes at most q.Limit receipts of a session of the tenant, or of all its
// sessions if q.Session is empty, to add, in the order of the ledger. It skips q.Offset
// receipts.
func (s queries) receipts(ctx context.Context, q *events.ReceiptsRequest, add func(json.RawMessage) error) error {
	tenant := transient.Tenant(ctx)
	found, err := s.view.ReceiptSeqs(tenant, q.Session, int(q.Offset), int(q.Limit))
	if err != nil {
		return err
	}
	filter := bus.Filter{Tenant: tenant, Event: contract.EventEffectRecorded, Key: q.Session}.String()
	for part := range slices.Chunk(found, receiptsAtOnce) {
		entries, err := s.entriesNear(ctx, filter, part)
		if err != nil {
			return err
		}
		for _, en := range entries {
			r, err := receiptIn(en)
			if err != nil {
				return err
			}
			if err := add(contract.Bytes(r)); err != nil {
				return err
			}
		}
	}
	return nil
}

// receiptIn returns the receipt that an entry of the ledger records.
func receiptIn(en eventlog.Entry) (*contract.Receipt, error) {
	e, err := eventlog.Open(en, eventlog.Every)
	if err != nil {
		return nil, err
	}
	var r contract.Recorded
	if err := contract.Decode(e.Data, &r); err != nil {
		return nil, err
	}
	return &r.Receipt, nil
}

// receipt returns the canonical form of the tenant's receipt with the given digest, or a
// not-found error.
func (s queries) receipt(ctx context.Context, q *events.ReceiptByDigestRequest) (json.RawMessage, error) {
	seq, err := s.view.ReceiptSeq(transient.Tenant(ctx), q.Digest)
	if err != nil {
		return nil, err
	}
	en, err := s.env.Emit.Log.Get(ctx, seq)
	if err != nil {
		return nil, err
	}
	r, err := receiptIn(en)
	if err == nil && contract.Digest(r) != q.Digest {
		err = fmt.Errorf("ledger entry %d does not record the receipt %s", seq, q.Digest)
	}
	if err != nil {
		return nil, err
	}
	return contract.Bytes(r), nil
}

func (s queries) proofgraph(ctx context.Context, q *events.ProofgraphRequest, add func(proofgraph.Node) error) error {
	nodes, err := s.graph(ctx, q.Session)
	for i := range nodes {
		if err := add(nodes[i]); err != nil {
			return err
		}
	}
	return err
}

// readers is the maximum number of concurrent reads of single ledger entries.
// entriesNear scans the ledger only for more entries than that.
const readers = 16

// entries returns the entries of the ledger at the given sequences.
func (s queries) entries(ctx context.Context, seqs []uint64) ([]eventlog.Entry, error) {
	return s.entriesNear(ctx, "", seqs)
}

// entriesNear returns the entries at the given sequences. If filter is not empty, the
// sequences must be ascending; if there are more than readers of them, entriesNear scans
// the entries that match filter. It reads each entry that no scan returned with a
// separate request.
func (s queries) entriesNear(ctx context.Context, filter string, seqs []uint64) ([]eventlog.Entry, error) {
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

// sessionEntries returns the entries of a session up to sequence size, or ErrNoSession.
func (s queries) sessionEntries(ctx context.Context, tenant, session string, size uint64) ([]eventlog.Entry, error) {
	if _, err := s.view.Lookup(tenant, session); err != nil {
		return nil, err
	}
	seqs, err := s.view.EventSeqs(tenant, session, size)
	if err != nil {
		return nil, err
	}
	return s.entriesNear(ctx, bus.SessionFilter(tenant, session), seqs)
}

// graph returns the nodes of a session's proof graph. The last node is the newest
// checkpoint; the graph contains the session's events that this checkpoint covers. graph
// returns ErrNoSession for a session without events, and another not-found error if no
// checkpoint covers the session.
func (s queries) graph(ctx context.Context, session string) ([]proofgraph.Node, error) {
	tenant := transient.Tenant(ctx)
	doc, err := s.view.Lookup(tenant, session)
	if err != nil {
		return nil, err
	}
	p, err := s.newest(ctx, uint64(doc.LastSeq))
	if err != nil {
		return nil, notFound("%v", err)
	}
	head, err := s.env.Trust.Checkpoint(p.note)
	if err != nil {
		return nil, err
	}
	lamport, err := evidence.Lamport(head)
	if err != nil {
		return nil, err
	}
	entries, err := s.sessionEntries(ctx, tenant, session, head.Size)
	if err != nil {
		return nil, err
	}
	g := proofgraph.Graph{Version: 2, Nodes: []proofgraph.Node{}}
	for _, en := range entries {
		if e, err := eventlog.Open(en, eventlog.Every); err == nil {
			g.Add(e, en.Data)
		}
	}
	g.Close(translog.NoteText(p.note), head.Size, int64(lamport), session)
	return g.Nodes, nil
}

// firstOf returns a handler that returns an event of the tenant's call. The handler
// tries the prefixes in order, and returns the first event that it finds whose id is a
// prefix followed by the call id. If there is none, the error is not-found.
func (s queries) firstOf(prefixes ...string) func(context.Context, *events.CallRef) (json.RawMessage, error) {
	return func(ctx context.Context, q *events.CallRef) (json.RawMessage, error) {
		for _, prefix := range prefixes {
			seq, err := s.view.SeqOf(transient.Tenant(ctx), prefix+q.CallID)
			if err != nil {
				return nil, err
			}
			if seq == 0 {
				continue
			}
			en, err := s.env.Emit.Log.Get(ctx, seq)
			return en.Data, err
		}
		return nil, notFound("no call %s", q.CallID)
	}
}

// eventsOf returns a handler that returns the events of the tenant's call whose ids are
// derived from the call's, in the order of the ledger. If there is none, the error is
// not-found.
func eventsOf(s queries) func(context.Context, *events.CallRef) ([]events.Found, error) {
	return func(ctx context.Context, q *events.CallRef) ([]events.Found, error) {
		var seqs []uint64
		for prefix := range idNames {
			seq, err := s.view.SeqOf(transient.Tenant(ctx), prefix+"-"+q.CallID)
			if err != nil {
				return nil, err
			}
			if seq > 0 {
				seqs = append(seqs, seq)
			}
		}
		if len(seqs) == 0 {
			return nil, notFound("no call %s", q.CallID)
		}
		slices.Sort(seqs)
		entries, err := s.entries(ctx, seqs)
		if err != nil {
			return nil, err
		}
		out := make([]events.Found, len(entries))
		for i, en := range entries {
			out[i] = events.Found{Event: en.Data, Seq: en.Seq}
		}
		return out, nil
	}
}

// transcript returns the calls and outcomes of a session, each with its content,
// decrypted: for a call its body or, if it has none, its arguments, and for an outcome
// its output, if any. Content about a data subject is left out; see textOf. If a content cannot be read, the error text in brackets is
// returned in its place.
func (s queries) transcript(ctx context.Context, q *events.TranscriptRequest) ([]events.Turn, error) {
	pos, _ := s.view.Position()
	entries, err := s.sessionEntries(ctx, transient.Tenant(ctx), q.Session, pos)
	if err != nil {
		return nil, err
	}
	turns := []events.Turn{}
	for _, en := range entries {
		e, err := eventlog.Open(en, eventlog.Every)
		if err != nil {
			continue
		}
		t := events.Turn{EventID: e.ID, Name: e.Name}
		var content *contract.Content
		switch e.Name {
		case contract.EventCallProposed:
			var c contract.Call
			if err := contract.Decode(e.Data, &c); err != nil {
				return nil, err
			}
			t.Kind, t.Tool, content = c.Kind, c.Tool, &c.Args
			if c.Body != nil {
				content = c.Body
			}
		case contract.EventEffectRecorded:
			var r contract.Recorded
			if err := contract.Decode(e.Data, &r); err != nil {
				return nil, err
			}
			t.Tool, t.Status, t.ReasonCode, content = r.Effect.Tool, r.Effect.Status, r.Receipt.ReasonCode, r.Output
		default:
			continue
		}
		if content != nil {
			t.Content = textOf(ctx, s.env.Blobs.In(e.Tenant), content)
		}
		turns = append(turns, t)
	}
	return turns, nil
}

// textOf returns a content of a transcript. Content under the key of a data subject is left out,
// because the call that judges the transcript stores it as plain text.
func textOf(ctx context.Context, blobs *blob.Store, c *contract.Content) string {
	if c.Encryption != nil && contentkeys.PseudonymOf(c.Encryption.KeyID) != "" {
		return "[content about a data subject]"
	}
	b, err := blobs.Open(ctx, c)
	if err != nil {
		return "[" + err.Error() + "]"
	}
	return string(b)
}

// errNoEntry is returned for an entry that the ledger does not have, and for one that the
// caller's tenant may not see.
var errNoEntry = notFound("no such ledger entry")

// visible returns errNoEntry unless the ledger has an entry at seq that the tenant may
// see: an entry of the tenant or of the mesh's tenant, or any entry if the tenant is the
// mesh's.
func visible(ctx context.Context, s *Service, tenant string, seq uint64) error {
	if pos, _ := s.view.Position(); seq == 0 || seq > pos {
		return errNoEntry
	}
	mesh, err := meshTenant(s.view)
	if err != nil || tenant == mesh {
		return err
	}
	en, err := s.env.Emit.Log.Get(ctx, seq)
	if err != nil {
		return err
	}
	if e, err := eventlog.Open(en, eventlog.Every); err != nil || e.Tenant != tenant && e.Tenant != mesh {
		return errNoEntry
	}
	return nil
}

// proof returns the leaf hash of an entry, its inclusion proof under the newest
// checkpoint, and that checkpoint. The error is not-found if visible rejects the entry, or
// if no checkpoint covers it and none can be signed.
func (s queries) proof(ctx context.Context, q *events.ProofRequest) (out events.Inclusion, err error) {
	if err := visible(ctx, s.Service, transient.Tenant(ctx), q.Seq); err != nil {
		return out, err
	}
	p, err := s.newest(ctx, q.Seq)
	if err != nil {
		return out, notFound("%v", err)
	}
	note := p.note
	head, err := s.env.Trust.Checkpoint(note)
	if err != nil {
		return out, err
	}
	leaf, err := s.view.Tree.Node(0, q.Seq-1)
	if errors.Is(err, io.EOF) {
		return out, errNoEntry
	}
	if err != nil {
		return out, err
	}
	path, err := translog.Inclusion(q.Seq-1, head.Size, s.view.Tree.Node)
	if err != nil {
		return out, err
	}
	return events.Inclusion{Index: q.Seq - 1, Leaf: hex.EncodeToString(leaf[:]), Path: evidence.HexPath(path), Checkpoint: strings.TrimSpace(string(note)) + "\n"}, nil
}

// checkpoint returns the checkpoint that the query selects: the last one of a closed
// epoch; the newest one with at least a given number of cosignatures, followed by the
// cosignatures; the one that witnesses are to cosign; or else the newest one.
func (s queries) checkpoint(ctx context.Context, q *events.CheckpointRequest) (string, error) {
	switch {
	case q.Epoch != 0:
		note, err := s.closedNote(q.Epoch)
		return string(note), err
	case q.Witnessed > 0:
		p, err := s.bound(ctx, 0, int(q.Witnessed))
		if err != nil {
			return "", err
		}
		return string(p.note) + strings.Join(p.cosigned, "\n") + "\n", nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.checkpoints) == 0 {
		return "", notFound("no checkpoint is signed yet")
	}
	if q.Witness {
		return string(s.forWitnesses().note), nil
	}
	return string(s.checkpoints[len(s.checkpoints)-1].note), nil
}

// consistency returns the proof that the tree of q.To leaves extends the tree of q.From
// leaves (RFC 6962, section 2.1.2), in the closed epoch q.Epoch if that is not 0. Its
// path is empty if q.From is 0 or q.To. The error is not-found if there are no such
// trees.
func (s queries) consistency(_ context.Context, q *events.ConsistencyRequest) (out events.ConsistencyProof, err error) {
	node := s.view.Tree.Node
	size, _ := s.view.Position()
	if q.Epoch != 0 {
		t, n, err := s.closedTree(q.Epoch)
		if err != nil {
			return out, err
		}
		defer t.Close()
		node, size = t.Node, n
	}
	if q.From > q.To || q.To > size {
		return out, notFound("no tree of %d leaves begins with %d", q.To, q.From)
	}
	proof, err := translog.Consistency(q.From, q.To, node)
	if err != nil {
		return out, err
	}
	return events.ConsistencyProof{From: q.From, To: q.To, Path: evidence.HexPath(proof)}, nil
}

// tile returns the hashes of a tile in the layout of C2SP tlog-tiles: q.Width hashes
// from index q.Index*256 on, at level 8*q.Level of the tree. The error is not-found if
// the tree does not have all of them, if q.Width is not from 1 to 256, or if q.Level is
// above 5.
func (s queries) tile(_ context.Context, q *events.TileRequest) ([]byte, error) {
	pos, _ := s.view.Position()
	if q.Level > 5 || q.Width == 0 || q.Width > 256 || q.Index > pos || q.Index*256+q.Width > pos>>(8*q.Level) {
		return nil, notFound("the tree does not have this tile")
	}
	out := make([]byte, 0, q.Width*32)
	for i := range q.Width {
		h, err := s.view.Tree.Node(uint(8*q.Level), q.Index*256+i)
		if err != nil {
			return nil, err
		}
		out = append(out, h[:]...)
	}
	return out, nil
}
