package evidence

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/proofgraph"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// The code in this file simulates an insider who holds the root key and the keys of
// every service, changes any event of the ledger, and signs decisions, receipts,
// checkpoints and manifests again. The forged packs may verify, but two independent
// verifiers must return the same verdict about each.

type object = map[string]any

// forgery is one forged pack, ledger or export while it is built.
type forgery struct {
	w       *world
	r       *rand.Rand
	session string
	ledger  []object // events as JSON trees
	raw     map[int]func([]byte) []byte
	did     []string
	files   map[string][]byte
}

func tree(t testing.TB, b []byte) object {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v object
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// form returns the canonical form of a JSON tree or, if the tree has none, the text that
// encoding/json writes for it, or null if that package cannot write it.
func form(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return []byte("null")
	}
	raw := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	if c, err := canon.Transform(nil, raw); err == nil {
		return c
	}
	return raw
}

func str(v any) string { s, _ := v.(string); return s }

func sub(o object, path ...string) object {
	for _, p := range path {
		o, _ = o[p].(object)
	}
	return o
}

func without(o object, k string) object {
	c := maps.Clone(o)
	delete(c, k)
	return c
}

func digestOf(v any) string { return sign.Digest(form(v)) }

// often returns false once in n calls on average, and otherwise true. Without a random
// source it always returns true.
func (f *forgery) often(n int) bool { return f.r == nil || f.r.IntN(n) > 0 }

func (f *forgery) signed(o object, domain string, k *sign.Key) {
	if o != nil && k != nil && f.often(30) {
		o["sig"] = k.Sign(domain, form(without(o, "sig")))
	}
}

func (f *forgery) decide(d object) {
	if d == nil {
		return
	}
	if f.often(20) {
		d["facts_digest"] = digestOf(d["facts"])
	}
	if f.often(20) {
		d["policy_decision_hash"] = digestOf(object{"args_digest": d["args_digest"], "facts_digest": d["facts_digest"], "policies": d["policies"], "reason_code": d["reason_code"], "verdict": d["verdict"]})
	}
	f.signed(d, sign.DomainDecision, f.w.keys["policy"])
}

// resign recomputes the digests and signatures in the whole ledger after a change. At
// random, it leaves some of them as they are.
func (f *forgery) resign() {
	tips, index := map[string]string{}, map[string]int{}
	decisions, escalated := map[string]object{}, map[string]object{}
	for _, e := range f.ledger {
		data := sub(e, "data")
		d := sub(data, "decision")
		f.decide(d)
		call, session := str(e["callid"]), str(e["session"])
		if d != nil {
			decisions[call] = d
		}
		switch {
		case strings.Contains(str(e["type"]), ".escalated."):
			escalated[call] = d
		case strings.Contains(str(e["type"]), ".key_"):
			f.signed(data, sign.DomainTrust, f.w.root)
		case strings.Contains(str(e["type"]), ".cell_opened."):
			f.signed(data, sign.DomainCell, f.w.root)
		case strings.Contains(str(e["type"]), ".approval_recorded.") && data["sig"] != nil && f.often(10):
			ballot := object{"decision_digest": digestOf(escalated[call])}
			for _, k := range []string{"approver", "call_id", "kid", "reason", "tenant", "vote"} {
				if data[k] != nil {
					ballot[k] = data[k]
				}
			}
			data["sig"] = key(f.w.t, "bob").Sign(sign.DomainApproval, form(ballot))
		}
		r := sub(data, "receipt")
		if r == nil {
			continue
		}
		if f.often(20) {
			r["effect_digest"] = digestOf(data["effect"])
		}
		if f.often(20) && decisions[call] != nil {
			r["decision_digest"] = digestOf(decisions[call])
		}
		if _, ok := tips[session]; !ok {
			tips[session] = receipt.Genesis(str(e["tenant"]), session).Digest
		}
		if f.often(20) {
			r["prev"], r["index"] = tips[session], index[session]+1
		}
		f.signed(r, sign.DomainReceipt, f.w.keys[str(r["executor"])])
		tips[session] = digestOf(r)
		index[session]++
	}
}

// stored returns the lines of the ledger, and applies the changes that are made after
// signing.
func (f *forgery) stored() [][]byte {
	out := make([][]byte, len(f.ledger))
	for i, e := range f.ledger {
		if out[i] = form(e); f.raw[i] != nil {
			out[i] = f.raw[i](out[i])
		}
		out[i] = bytes.ReplaceAll(out[i], []byte("\n"), nil)
	}
	return out
}

// eventOf returns the event with the attributes that proofgraph reads.
func eventOf(e object) *contract.Event {
	n, _ := strconv.ParseUint(str(e["lamport"]), 10, 64)
	name := ""
	if p := strings.Split(str(e["type"]), "."); len(p) == 5 {
		name = p[3]
	}
	return &contract.Event{ID: str(e["id"]), Source: str(e["source"]), Name: name, Session: str(e["session"]), CallID: str(e["callid"]), Cause: str(e["causationid"]), Lamport: n}
}

// build makes the files of the pack from the forged ledger. extensions, if not nil,
// changes the extension lines of the checkpoint before it is signed.
func (f *forgery) build(extensions func([]string) []string) {
	all := f.stored()
	nodes := mem{}
	for i, b := range all {
		nodes.add(uint64(i), translog.LeafHash(b))
	}
	size := uint64(len(all))
	root, err := translog.Root(size, nodes.get)
	if err != nil {
		f.w.t.Fatal(err)
	}
	head := translog.Checkpoint{Origin: "binnacle/test", Size: size, Root: root, Extensions: []string{"durability process", "epoch 1", fmt.Sprint("lamport ", f.w.lamport)}}
	var leaves []translog.TipLeaf
	var own translog.Tip
	tips := map[string]translog.Tip{}
	files := map[string][]byte{pathDecisions: {}, pathReceipts: {}, pathEvents: {}, pathSystem: {}}
	graph := proofgraph.Graph{Version: 1 + map[bool]int{true: 1}[f.w.bind]}
	var system, events []byte
	var counts [3]int64
	tip := receipt.Genesis("t", f.session).Digest
	for i, e := range f.ledger {
		path, err := translog.Inclusion(uint64(i), size, nodes.get)
		if err != nil {
			f.w.t.Fatal(err)
		}
		proof := append(canon.Append(nil, &Proof{Index: int64(i), Path: HexPath(path)}), '\n')
		session := str(e["session"])
		if session == "" {
			system, files[pathSystem] = append(system, proof...), append(append(files[pathSystem], all[i]...), '\n')
			continue
		}
		data := sub(e, "data")
		t, ok := tips[session]
		if !ok {
			t, _ = tipOf(receipt.Genesis("t", session).Digest, 0, 0)
		}
		t.Events++
		if r := data["receipt"]; r != nil {
			t, _ = tipOf(digestOf(r), t.Events, t.Receipts+1)
		}
		tips[session] = t
		if session != f.session {
			continue
		}
		events, files[pathEvents] = append(events, proof...), append(append(files[pathEvents], all[i]...), '\n')
		graph.Add(eventOf(e), all[i])
		counts[0]++
		if d := data["decision"]; d != nil {
			files[pathDecisions] = append(append(files[pathDecisions], form(d)...), '\n')
		}
		if r := data["receipt"]; r != nil {
			files[pathReceipts] = append(append(files[pathReceipts], form(r)...), '\n')
			counts[1]++
			tip = digestOf(r)
		}
		for c, o := range f.w.objects {
			if bytes.Contains(all[i], []byte(c)) {
				files[contentPath(c)] = o
			}
		}
	}
	for s, t := range tips {
		k := translog.TipKey("t", s)
		leaves = append(leaves, translog.TipLeaf{Key: k, Leaf: t.Leaf(k)})
	}
	own = tips[f.session]
	if f.w.bind {
		head.Extensions = append(head.Extensions, translog.TipsExtension(translog.TipsRoot(slices.Clone(leaves))))
		files[pathTip] = contract.Bytes(NewTipProof(own, tipPath(leaves, translog.TipKey("t", f.session), 0)))
	}
	if extensions != nil {
		head.Extensions = extensions(head.Extensions)
	}
	files[pathCheckpoint] = head.Sign(f.w.keys["audit"])
	lamport := int64(f.w.lamport)
	graph.Close(translog.NoteText(files[pathCheckpoint]), size, lamport, f.session)
	files[pathProofs] = append(system, events...)
	files[pathGraph] = proofgraph.Lines(graph.Nodes)
	counts[2] = int64(size)
	f.files = files
	m := Manifest{Events: counts[0], Format: Format, Graph: sign.Digest(files[pathGraph]), Lamport: lamport, Origin: head.Origin, Receipts: counts[1], RootHash: hex.EncodeToString(root[:]),
		Session: f.session, Tenant: "t", TipDigest: tip, TreeSize: counts[2]}
	files[pathManifest] = contract.Bytes(&m)
}

// seal signs the manifest over the current files, adds the attestation and returns the
// pack. change, if not nil, may alter the manifest as a JSON tree before it is signed.
func (f *forgery) seal(change func(object)) []byte {
	m := tree(f.w.t, f.files[pathManifest])
	var list []any
	for _, p := range slices.Sorted(maps.Keys(f.files)) {
		if p != pathManifest {
			list = append(list, object{"path": p, "sha256": strings.TrimPrefix(sign.Digest(f.files[p]), "sha256:"), "size": len(f.files[p])})
		}
	}
	k := f.w.keys["audit"]
	m["files"], m["kid"] = list, k.KID
	if change != nil {
		change(m)
	}
	f.signed(m, sign.DomainManifest, k)
	if m["sig"] == nil {
		m["sig"] = k.Sign(sign.DomainManifest, form(m))
	}
	f.files[pathManifest] = form(m)
	body := form(object{"_type": "https://in-toto.io/Statement/v1", "predicate": object{"session": m["session"], "tenant": m["tenant"], "tip_digest": m["tip_digest"], "tree_size": m["tree_size"]},
		"predicateType": "urn:binnacle:evidence-pack:v1", "subject": []any{object{"digest": object{"sha256": strings.TrimPrefix(sign.Digest(f.files[pathManifest]), "sha256:")}, "name": pathManifest}}})
	f.files[pathAttestation] = form(object{"payload": base64.StdEncoding.EncodeToString(body), "payloadType": payloadType, "signatures": []any{object{"keyid": m["kid"], "sig": base64.StdEncoding.EncodeToString(k.Raw(pae(body)))}}})
	pack, err := writeTar(f.files)
	if err != nil { // a path that does not fit into a tar header
		return []byte(err.Error())
	}
	return pack
}

type mem map[[2]uint64]translog.Hash

func (m mem) get(level uint, i uint64) (translog.Hash, error) {
	return m[[2]uint64{uint64(level), i}], nil
}

func (m mem) add(n uint64, leaf translog.Hash) {
	_ = translog.Append(n, leaf, m.get, func(level uint, i uint64, h translog.Hash) error { m[[2]uint64{uint64(level), i}] = h; return nil })
}
