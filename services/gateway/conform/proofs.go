package conform

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/core/proofgraph"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/ledger"
)

// checks maps the name of each check to its function. A check is a step that cannot be
// expressed as a request with its expected response. Checks about one session use the
// session "main", in which the gates of L1 make calls.
var checks = map[string]func(context.Context, *probe) error{
	"receipts": checkReceipts, "receipt-chain": checkChain, "receipt-signatures": checkSignatures, "sessions": checkSessions, "proofgraph": checkGraph,
	"checkpoint": checkCheckpoint, "inclusion": checkInclusion, "consistency": checkConsistency, "tiles": checkTiles, "ledger": checkLedger,
	"evidence": checkEvidence, "completeness": checkCompleteness,
}

// documents calls each for every line of b, without its newline. It stops at the first
// error and returns it.
func documents(b []byte, each func([]byte) error) error {
	for line := range bytes.Lines(b) {
		if err := each(bytes.TrimSuffix(line, []byte("\n"))); err != nil {
			return err
		}
	}
	return nil
}

// receipts returns the receipts of the session "main" as /helm/receipts lists them, at
// least one. It returns an error if the responses to the calls of L1 contained fewer
// than three receipt ids, or if the list cannot be read, is empty or is malformed.
func (p *probe) receipts(ctx context.Context) ([]contract.Receipt, error) {
	if len(p.sessions[p.session("main")]) < 3 {
		return nil, errors.New("the responses to the calls of L1 named fewer than three receipts")
	}
	b, err := p.read(ctx, "/helm/receipts?session="+p.session("main"))
	if err != nil {
		return nil, err
	}
	var out []contract.Receipt
	err = documents(b, func(line []byte) error {
		var r contract.Receipt
		if err := contract.Decode(line, &r); err != nil {
			return fmt.Errorf("receipt %d: %w", len(out)+1, err)
		}
		out = append(out, r)
		return nil
	})
	if err == nil && len(out) == 0 {
		err = errors.New("/helm/receipts lists no receipts of the session")
	}
	return out, err
}

// checkReceipts checks that the list of /helm/receipts begins with the receipts whose ids
// the responses to the calls of the session contained, in the same order. It also checks
// that the list contains at least two denials, because the gates of L1 cause two.
func checkReceipts(ctx context.Context, p *probe) error {
	list, err := p.receipts(ctx)
	if err != nil {
		return err
	}
	var got []string
	for _, r := range list {
		got = append(got, r.ID)
	}
	want := slices.Clone(p.sessions[p.session("main")])
	for i, id := range want {
		if !slices.Contains(got, id) {
			return fmt.Errorf("receipt %s was named in a response but is not listed", id)
		}
		if i >= len(got) || got[i] != id {
			return fmt.Errorf("receipt %s is not listed in the order of the calls", id)
		}
	}
	denied := 0
	for _, r := range list {
		if r.Verdict == contract.Deny {
			denied++
		}
	}
	if denied < 2 {
		return fmt.Errorf("%d receipts of denials, want at least the 2 that the gates of L1 cause", denied)
	}
	return nil
}

// checkChain checks that each receipt of the session refers to the one before, and the
// first to the session's genesis.
func checkChain(ctx context.Context, p *probe) error {
	list, err := p.receipts(ctx)
	if err != nil {
		return err
	}
	tip := receipt.Genesis(list[0].Tenant, p.id("main"))
	for i := range list {
		if err := receipt.CheckLink(tip, &list[i]); err != nil {
			return err
		}
		tip = receipt.TipOf(&list[i])
	}
	return nil
}

// keys builds the key registry from the endpoint's key events, starting from the trusted root. It
// returns an error if Target.Root is empty, or if the events cannot be read or are not valid.
func (p *probe) keys(ctx context.Context) (*trust.Registry, error) {
	if p.Root == "" {
		return nil, errors.New("no trusted root: set its key id")
	}
	type published struct {
		Seq   uint64          `json:"seq"`
		Event json.RawMessage `json:"event"`
	}
	var all []published
	for _, name := range []string{contract.EventKeyPublished, contract.EventKeyRevoked} {
		b, err := p.read(ctx, "/api/v1/events?type="+name)
		if err != nil {
			return nil, err
		}
		if err := documents(b, func(line []byte) error {
			var x published
			if err := json.Unmarshal(line, &x); err != nil {
				return err
			}
			all = append(all, x)
			return nil
		}); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(all, func(a, b published) int { return int(a.Seq) - int(b.Seq) })
	reg := &trust.Registry{Root: p.Root}
	for _, x := range all {
		e, err := eventlog.OpenBytes(x.Event, eventlog.Every)
		if err != nil {
			return nil, err
		}
		var k contract.TrustKey
		if err := contract.Decode(e.Data, &k); err != nil {
			return nil, err
		}
		if err := reg.Apply(k, e.Lamport); err != nil {
			return nil, err
		}
	}
	return reg, nil
}

// checkSignatures checks that each receipt is signed with a key that was valid for its
// executor, under the trusted root, at the receipt's Lamport time.
func checkSignatures(ctx context.Context, p *probe) error {
	reg, err := p.keys(ctx)
	if err != nil {
		return err
	}
	list, err := p.receipts(ctx)
	if err != nil {
		return err
	}
	for _, r := range list {
		pub, err := reg.At(r.KID, r.Executor, contract.UseReceipt, uint64(r.Lamport))
		if err != nil {
			return fmt.Errorf("receipt %s: %w", r.ID, err)
		}
		body := r
		body.Sig = ""
		if err := sign.Verify(pub, sign.DomainReceipt, contract.Bytes(&body), r.Sig); err != nil {
			return fmt.Errorf("receipt %s: %w", r.ID, err)
		}
	}
	return nil
}

// checkSessions checks that the list of sessions contains the session "main", with the
// number of receipts and the tip that follow from /helm/receipts.
func checkSessions(ctx context.Context, p *probe) error {
	list, err := p.receipts(ctx)
	if err != nil {
		return err
	}
	const page = 1000
	for offset := 0; ; offset += page {
		b, err := p.read(ctx, fmt.Sprintf("/api/v1/proofgraph/sessions?limit=%d&offset=%d", page, offset))
		if err != nil {
			return err
		}
		var sessions []struct {
			ID       string `json:"session_id"`
			Receipts int    `json:"receipt_count"`
			Tip      string `json:"tip"`
		}
		if err := json.Unmarshal(b, &sessions); err != nil {
			return err
		}
		for _, s := range sessions {
			if s.ID != p.id("main") {
				continue
			}
			if tip := receipt.TipOf(&list[len(list)-1]); s.Receipts != len(list) || s.Tip != tip.Digest {
				return fmt.Errorf("session %s: listed with %d receipts and tip %s, has %d and %s", s.ID, s.Receipts, s.Tip, len(list), tip.Digest)
			}
			return nil
		}
		if len(sessions) < page {
			return fmt.Errorf("session %s is not listed", p.session("main"))
		}
	}
}

func checkGraph(ctx context.Context, p *probe) error {
	list, err := p.receipts(ctx)
	if err != nil {
		return err
	}
	b, err := p.read(ctx, "/helm/proofgraph?session="+p.session("main"))
	if err != nil {
		return err
	}
	var doc struct {
		Digest string            `json:"digest"`
		Nodes  []json.RawMessage `json:"nodes"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return err
	}
	clock, kinds := map[string]int64{}, map[string]int{}
	var nodes []proofgraph.Node
	for _, raw := range doc.Nodes {
		raw, err := canon.Transform(nil, raw)
		if err != nil {
			return err
		}
		var n proofgraph.Node
		if err := contract.Decode(raw, &n); err != nil {
			return err
		}
		for _, parent := range n.Parents {
			at, ok := clock[parent]
			if !ok {
				return fmt.Errorf("node %s: its parent %s does not come before it", n.ID, parent)
			}
			if at >= n.Lamport {
				return fmt.Errorf("node %s: its Lamport time is not after its parent's", n.ID)
			}
		}
		clock[n.ID] = n.Lamport
		kinds[n.Kind]++
		nodes = append(nodes, n)
	}
	if got := proofgraph.Digest(nodes); got != doc.Digest {
		return fmt.Errorf("the nodes have digest %s, want %s as in the graph", got, doc.Digest)
	}
	if kinds[proofgraph.Intent] < len(list) || kinds[proofgraph.Effect] < len(list) || kinds[proofgraph.Attestation] == 0 {
		return fmt.Errorf("the graph has the nodes %v for %d calls; want an intent and an effect for each call, and an attestation", kinds, len(list))
	}
	return nil
}

// head returns the newest checkpoint, after it has verified that a key of audit under
// the trusted root signed it.
func (p *probe) head(ctx context.Context) (*translog.Checkpoint, error) {
	note, err := p.read(ctx, "/log/checkpoint")
	if err != nil {
		return nil, err
	}
	return p.open(ctx, note)
}

func (p *probe) open(ctx context.Context, note []byte) (*translog.Checkpoint, error) {
	reg, err := p.keys(ctx)
	if err != nil {
		return nil, err
	}
	for _, public := range reg.Publics("audit", contract.UseCheckpoint, canon.MaxInt) {
		if head, err := translog.ParseNote(note, public); err == nil {
			return head, nil
		}
	}
	return nil, errors.New("checkpoint: no key of audit under this root signed it")
}

// entry returns the sequence and the stored bytes of the last event of the session
// "main", or an error if the session has no events.
func (p *probe) entry(ctx context.Context) (seq uint64, stored []byte, err error) {
	b, err := p.read(ctx, "/api/v1/events?session="+p.session("main"))
	if err != nil {
		return 0, nil, err
	}
	err = documents(b, func(line []byte) error {
		var x struct {
			Seq   uint64          `json:"seq"`
			Event json.RawMessage `json:"event"`
		}
		if err := json.Unmarshal(line, &x); err != nil {
			return err
		}
		seq, stored = x.Seq, x.Event
		return nil
	})
	if err == nil && seq == 0 {
		err = errors.New("the session has no events")
	}
	return seq, stored, err
}

func checkCheckpoint(ctx context.Context, p *probe) error {
	seq, _, err := p.entry(ctx)
	if err != nil {
		return err
	}
	// A proof refers to a checkpoint that covers the event. This request causes the
	// endpoint to sign one if there is none yet.
	if _, err := p.read(ctx, fmt.Sprintf("/api/v1/ledger/%d/proof", seq)); err != nil {
		return err
	}
	head, err := p.head(ctx)
	if err != nil {
		return err
	}
	if head.Size < seq {
		return fmt.Errorf("the checkpoint covers %d entries, but the session's last event is entry %d", head.Size, seq)
	}
	return nil
}

func checkInclusion(ctx context.Context, p *probe) error {
	seq, stored, err := p.entry(ctx)
	if err != nil {
		return err
	}
	b, err := p.read(ctx, fmt.Sprintf("/api/v1/ledger/%d/proof", seq))
	if err != nil {
		return err
	}
	var proof struct {
		Index      uint64   `json:"index"`
		Leaf       string   `json:"leaf"`
		Path       []string `json:"path"`
		Checkpoint string   `json:"checkpoint"`
	}
	if err := json.Unmarshal(b, &proof); err != nil {
		return err
	}
	head, err := p.open(ctx, []byte(proof.Checkpoint))
	if err != nil {
		return err
	}
	path, err := ledger.Path(proof.Path)
	if err != nil {
		return err
	}
	leaf := translog.LeafHash(stored)
	if proof.Index != seq-1 || proof.Leaf != hex.EncodeToString(leaf[:]) {
		return fmt.Errorf("event %d: the proof is about another leaf", seq)
	}
	return translog.VerifyInclusion(proof.Index, head.Size, leaf, path, head.Root)
}

// checkConsistency makes a call, and checks with a consistency proof that the log after
// the call is an append-only extension of the log before it.
func checkConsistency(ctx context.Context, p *probe) error {
	before, err := p.head(ctx)
	if err != nil {
		return err
	}
	h := http.Header{"Authorization": {"Bearer " + p.Token}, "X-Binnacle-Session": {p.session("grow")}}
	resp, got, err := p.do(ctx, http.MethodPost, "/api/v1/packs/"+p.Tool, h, p.Args)
	if err != nil {
		return fmt.Errorf("a call that adds to the log: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("a call that adds to the log: status %d, %s", resp.StatusCode, short(got))
	}
	if _, err := p.read(ctx, fmt.Sprintf("/api/v1/ledger/%d/proof", before.Size+1)); err != nil {
		return err
	}
	after, err := p.head(ctx)
	if err != nil {
		return err
	}
	if after.Origin != before.Origin || after.Size <= before.Size {
		return fmt.Errorf("the log had %d entries and origin %s before the call, and has %d entries and origin %s after it", before.Size, before.Origin, after.Size, after.Origin)
	}
	b, err := p.read(ctx, fmt.Sprintf("/log/consistency?from=%d&to=%d", before.Size, after.Size))
	if err != nil {
		return err
	}
	var proof struct {
		Path []string `json:"path"`
	}
	if err := json.Unmarshal(b, &proof); err != nil {
		return err
	}
	path, err := ledger.Path(proof.Path)
	if err != nil {
		return err
	}
	return translog.VerifyConsistency(before.Size, after.Size, before.Root, after.Root, path)
}

// tile reads the hashes of one tile in the C2SP tlog-tiles layout.
func (p *probe) tile(ctx context.Context, level uint, index, width uint64) ([]byte, error) {
	name := fmt.Sprintf("%03d", index%1000)
	for n := index / 1000; n > 0; n /= 1000 {
		name = fmt.Sprintf("x%03d/%s", n%1000, name)
	}
	if width < 256 {
		name += ".p/" + strconv.FormatUint(width, 10)
	}
	b, err := p.readAs(ctx, p.Operator, fmt.Sprintf("/log/tile/%d/%s", level, name))
	if err == nil && uint64(len(b)) != width*32 {
		err = fmt.Errorf("tile %d/%s has %d bytes, want %d", level, name, len(b), width*32)
	}
	return b, err
}

// checkTiles checks that the root of the newest checkpoint can be computed from tiles
// alone.
func checkTiles(ctx context.Context, p *probe) error {
	head, err := p.head(ctx)
	if err != nil {
		return err
	}
	seen := map[string][]byte{}
	node := func(level uint, index uint64) (translog.Hash, error) {
		return p.node(ctx, seen, head.Size, level, index)
	}
	root, err := translog.Root(head.Size, node)
	if err != nil {
		return err
	}
	if root != head.Root {
		return fmt.Errorf("the tiles of %d leaves have root %x, want %x as in the checkpoint", head.Size, root, head.Root)
	}
	return nil
}

// node returns a node of the tree. It reads the node from a tile if level is a multiple
// of 8, and otherwise computes it from the node's two children. seen caches tiles.
func (p *probe) node(ctx context.Context, seen map[string][]byte, size uint64, level uint, index uint64) (h translog.Hash, err error) {
	if level%8 != 0 {
		l, err := p.node(ctx, seen, size, level-1, index*2)
		if err != nil {
			return h, err
		}
		r, err := p.node(ctx, seen, size, level-1, index*2+1)
		return translog.NodeHash(l, r), err
	}
	tile := index / 256
	width := min(size>>level-tile*256, 256)
	key := fmt.Sprint(level, "/", tile)
	if seen[key] == nil {
		if seen[key], err = p.tile(ctx, level/8, tile, width); err != nil {
			return h, err
		}
	}
	return translog.Hash(seen[key][(index%256)*32 : (index%256+1)*32]), nil
}

// checkLedger checks that the leaf hashes in the last tile are the hashes of the ledger
// entries that the tile covers.
func checkLedger(ctx context.Context, p *probe) error {
	head, err := p.head(ctx)
	if err != nil {
		return err
	}
	if head.Size == 0 {
		return errors.New("the checkpoint covers no entry")
	}
	tile := (head.Size - 1) / 256
	width := head.Size - tile*256
	b, err := p.readAs(ctx, p.Operator, fmt.Sprintf("/api/v1/ledger?from=%d&to=%d", tile*256+1, head.Size))
	if err != nil {
		return err
	}
	want, err := p.tile(ctx, 0, tile, width)
	if err != nil {
		return err
	}
	n := uint64(0)
	if err := documents(b, func(line []byte) error {
		if n >= width {
			return fmt.Errorf("more than %d entries", width)
		}
		leaf := translog.LeafHash(line)
		if !bytes.Equal(leaf[:], want[n*32:(n+1)*32]) {
			return fmt.Errorf("entry %d does not have the leaf hash in the tile", tile*256+n+1)
		}
		n++
		return nil
	}); err != nil {
		return err
	}
	if n != width {
		return fmt.Errorf("%d entries, want %d", n, width)
	}
	return nil
}

func checkEvidence(ctx context.Context, p *probe) error {
	pack, err := p.read(ctx, "/api/v1/sessions/"+p.session("main")+"/evidence")
	if err != nil {
		return err
	}
	rep, err := evidence.Verify(pack, p.Root)
	if err != nil {
		return err
	}
	if rep.Session != p.id("main") {
		return fmt.Errorf("the pack is about session %s", rep.Session)
	}
	return nil
}

// twice exports the session's evidence pack until two consecutive packs are bound to
// checkpoints of the same size, and returns the second pack. It returns an error if the
// bytes of the two differ, or if ten packs are not enough.
func (p *probe) twice(ctx context.Context) ([]byte, error) {
	var last []byte
	size := int64(-1)
	for range 10 {
		pack, err := p.read(ctx, "/api/v1/sessions/"+p.session("main")+"/evidence")
		if err != nil {
			return nil, err
		}
		rep, err := evidence.Verify(pack, p.Root)
		if err != nil {
			return nil, err
		}
		if rep.TreeSize == size && !bytes.Equal(pack, last) {
			return nil, errors.New("two packs that are bound to the same checkpoint differ")
		}
		if rep.TreeSize == size {
			return pack, nil
		}
		last, size = pack, rep.TreeSize
	}
	return nil, errors.New("no two consecutive packs of ten are bound to the same checkpoint")
}

// checkCompleteness checks that the session's evidence pack is reproducible and contains
// each receipt of the session.
func checkCompleteness(ctx context.Context, p *probe) error {
	list, err := p.receipts(ctx)
	if err != nil {
		return err
	}
	pack, err := p.twice(ctx)
	if err != nil {
		return err
	}
	for _, r := range list {
		if !bytes.Contains(pack, append(contract.Bytes(&r), '\n')) {
			return fmt.Errorf("receipt %s is not in the pack", r.ID)
		}
	}
	return nil
}
