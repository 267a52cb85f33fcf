// Package evidence makes and verifies evidence packs: deterministic tars that prove
// what happened in one session. It also verifies exported ledgers and archives.
// docs/reference/ledger-format.md is the specification of the formats, of which
// this package is one implementation; DESIGN.md has its states and invariants.
package evidence

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// Format is the manifest's format member; FormatRedacted is that of a pack from
// which payloads were withheld.
const (
	Format         = "binnacle-evidence-pack/v1"
	FormatRedacted = "binnacle-redacted-pack/v1"
)

// Paths inside the tar, which is sorted by path.
const (
	pathAttestation  = "attestation.dsse.json"
	pathCheckpoint   = "checkpoint"
	pathCosignatures = "cosignatures"     // witnesses' lines over the checkpoint; only where the exporter asked for them
	pathConsistency  = "consistency.json" // that the log grew from an earlier checkpoint
	pathDecisions    = "decisions.jsonl"
	pathEvents       = "events.jsonl"
	pathManifest     = "manifest.json"
	pathGraph        = "proofgraph.jsonl"
	pathLeaves       = "leaves.jsonl" // of redacted events
	pathProofs       = "proofs.jsonl"
	pathReceipts     = "receipts.jsonl"
	pathSystem       = "system.jsonl" // trust and policy events, in ledger order
	dirContents      = "contents/"    // salt ‖ bytes of content kept as an object
)

// Manifest lists and seals the files. It is signed by audit.
type Manifest struct {
	Events    int64  `json:"events"`
	Files     []File `json:"files"` // all but manifest and attestation, sorted by path
	Format    string `json:"format"`
	Graph     string `json:"graph_digest"`
	KID       string `json:"kid"`
	Lamport   int64  `json:"lamport"` // of the checkpoint
	Origin    string `json:"origin"`  // of the log
	Receipts  int64  `json:"receipts"`
	RootHash  string `json:"root_hash"`
	Session   string `json:"session"`
	Sig       string `json:"sig,omitempty"`
	Tenant    string `json:"tenant"`
	TipDigest string `json:"tip_digest"` // of the session's receipt chain
	TreeSize  int64  `json:"tree_size"`
}

// File is one entry of the manifest.
type File struct {
	Path   string `json:"path"`
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
}

// Canonical implements canon.Document.
func (f *File) Canonical(c *canon.Codec) {
	c.Str("path", &f.Path)
	c.Str("sha256", &f.SHA256)
	c.Int("size", &f.Size)
}

// Canonical implements canon.Document; an unset Sig is absent.
func (m *Manifest) Canonical(c *canon.Codec) {
	c.Int("events", &m.Events)
	canon.List(c, "files", &m.Files)
	c.Str("format", &m.Format)
	c.Str("graph_digest", &m.Graph)
	c.Str("kid", &m.KID)
	c.Int("lamport", &m.Lamport)
	c.Str("origin", &m.Origin)
	c.Int("receipts", &m.Receipts)
	c.Str("root_hash", &m.RootHash)
	c.Str("session", &m.Session)
	c.OptStr("sig", &m.Sig)
	c.Str("tenant", &m.Tenant)
	c.Str("tip_digest", &m.TipDigest)
	c.Int("tree_size", &m.TreeSize)
}

// Proof places one event in the tree.
type Proof struct {
	Index int64    `json:"index"` // leaf index = stream sequence - 1
	Path  []string `json:"path"`  // hex, leaf to root
}

// Canonical implements canon.Document.
func (p *Proof) Canonical(c *canon.Codec) {
	c.Int("index", &p.Index)
	c.Strs("path", &p.Path)
}

// growth proves that the log of an earlier checkpoint is the beginning of the
// pack's.
type growth struct {
	From string   `json:"from"` // the earlier checkpoint, a signed note
	Path []string `json:"path"` // hex; RFC 6962 section 2.1.2
}

// Canonical implements canon.Document.
func (g *growth) Canonical(c *canon.Codec) {
	c.Str("from", &g.From)
	c.Strs("path", &g.Path)
}

// redaction names an event whose payloads are withheld, and the leaf hash of
// its stored bytes.
type redaction struct {
	ID   string `json:"id"`
	Leaf string `json:"leaf"` // hex
}

// Canonical implements canon.Document.
func (r *redaction) Canonical(c *canon.Codec) {
	c.Str("id", &r.ID)
	c.Str("leaf", &r.Leaf)
}

// HexPath returns hashes in lower-case hex, as Proof.Path has them.
func HexPath(path []translog.Hash) []string {
	out := make([]string, len(path))
	for i, h := range path {
		out[i] = hex.EncodeToString(h[:])
	}
	return out
}

func parsePath(path []string) ([]translog.Hash, error) {
	out := make([]translog.Hash, len(path))
	for i, s := range path {
		var ok bool
		if out[i], ok = parseHash(s); !ok {
			return nil, errors.New("path is not lower-case hex of 32 bytes")
		}
	}
	return out, nil
}

// parseHash reads a hash in lower-case hex.
func parseHash(s string) (h translog.Hash, ok bool) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(h) || hex.EncodeToString(b) != s {
		return h, false
	}
	return translog.Hash(b), true
}

const payloadType = "application/vnd.in-toto+json"

// attestation is the DSSE envelope (in-toto Statement v1) over the manifest.
func attestation(m *Manifest, sig string) []byte {
	body := statement(m)
	w := canon.Object(nil)
	w.Str("payload", base64.StdEncoding.EncodeToString(body))
	w.Str("payloadType", payloadType)
	s := canon.Object(nil)
	s.Str("keyid", m.KID)
	s.Str("sig", sig)
	w.Raw("signatures", slices.Concat([]byte("["), s.End(), []byte("]")))
	return w.End()
}

func statement(m *Manifest) []byte {
	raw := contract.Bytes(m)
	pred := canon.Object(nil)
	pred.Str("session", m.Session)
	pred.Str("tenant", m.Tenant)
	pred.Str("tip_digest", m.TipDigest)
	pred.Int("tree_size", m.TreeSize)
	d := canon.Object(nil)
	d.Str("sha256", strings.TrimPrefix(sign.Digest(raw), "sha256:"))
	s := canon.Object(nil)
	s.Raw("digest", d.End())
	s.Str("name", pathManifest)
	w := canon.Object(nil)
	w.Str("_type", "https://in-toto.io/Statement/v1")
	w.Raw("predicate", pred.End())
	w.Str("predicateType", "urn:binnacle:evidence-pack:v1")
	w.Raw("subject", slices.Concat([]byte("["), s.End(), []byte("]")))
	return w.End()
}

// pae is DSSE's pre-authentication encoding.
func pae(body []byte) []byte {
	return slices.Concat(fmt.Appendf(nil, "DSSEv1 %d %s %d ", len(payloadType), payloadType, len(body)), body)
}

// renderTar renders files deterministically: sorted by path, USTAR, mode 0644,
// no owner, time zero.
func renderTar(to io.Writer, files map[string][]byte) error {
	paths := make([]string, 0, len(files))
	for p := range files {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	w := tar.NewWriter(to)
	for _, p := range paths {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: p, Size: int64(len(files[p])), Mode: 0o644, ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := w.Write(files[p]); err != nil {
			return err
		}
	}
	return w.Close()
}

func writeTar(files map[string][]byte) ([]byte, error) {
	size := 1024
	for _, f := range files {
		size += 1024 + len(f)
	}
	var b bytes.Buffer
	b.Grow(size)
	err := renderTar(&b, files)
	return b.Bytes(), err
}

// sameTar is an io.Writer that finds whether what is written are these bytes.
type sameTar struct {
	want []byte
	ok   bool
}

// Write implements io.Writer.
func (s *sameTar) Write(b []byte) (int, error) {
	s.ok = s.ok && bytes.HasPrefix(s.want, b)
	if s.ok {
		s.want = s.want[len(b):]
	}
	return len(b), nil
}

// readTar returns the files of a pack. It accepts exactly what writeTar writes:
// every byte of the archive is compared with a fresh rendering of what was read.
func readTar(b []byte) (map[string][]byte, error) {
	files, err := readEntries(b)
	if err != nil {
		return nil, fmt.Errorf("tar: %w", err)
	}
	same := &sameTar{want: b, ok: true}
	if err := renderTar(same, files); err != nil {
		return nil, fmt.Errorf("tar: %w", err)
	}
	if !same.ok || len(same.want) > 0 {
		return nil, errors.New("tar: headers, order or padding are not the deterministic form")
	}
	return files, nil
}

func readEntries(b []byte) (map[string][]byte, error) {
	files := map[string][]byte{}
	in := bytes.NewReader(b)
	r := tar.NewReader(in)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		if _, dup := files[h.Name]; dup {
			return nil, fmt.Errorf("%s occurs twice", h.Name)
		}
		if h.Size < 0 || h.Size > int64(in.Len()) {
			return nil, fmt.Errorf("%s: ends before its %d bytes", h.Name, h.Size)
		}
		body := make([]byte, h.Size)
		if _, err := io.ReadFull(r, body); err != nil {
			return nil, fmt.Errorf("%s: %w", h.Name, err)
		}
		files[h.Name] = body
	}
}

func lines(b []byte) ([][]byte, error) {
	if len(b) == 0 {
		return nil, nil
	}
	if b[len(b)-1] != '\n' {
		return nil, errors.New("last line has no newline")
	}
	return bytes.Split(b[:len(b)-1], []byte("\n")), nil
}

func joinLines(l [][]byte) []byte {
	n := 0
	for _, x := range l {
		n += len(x) + 1
	}
	b := make([]byte, 0, n)
	for _, x := range l {
		b = append(append(b, x...), '\n')
	}
	return b
}

// openEvent reads an event's stored bytes, whatever they nest.
func openEvent(b []byte) (*contract.Event, error) {
	if err := canon.CheckDepth(b); err != nil {
		return nil, fmt.Errorf("event: %w", err)
	}
	return contract.DecodeEvent(b)
}

// decodeManifest also returns the signature's preimage.
func decodeManifest(b []byte) (*Manifest, []byte, error) {
	var m Manifest
	if err := contract.Decode(b, &m); err != nil {
		return nil, nil, err
	}
	body := m
	body.Sig = ""
	return &m, contract.Bytes(&body), nil
}

func attestationSig(b []byte) (string, error) {
	var env struct {
		Signatures []struct {
			Sig string `json:"sig"`
		} `json:"signatures"`
	}
	if canon.CheckDepth(b) != nil {
		return "", errors.New("not a DSSE envelope of one signature")
	}
	if err := json.Unmarshal(b, &env); err != nil || len(env.Signatures) != 1 {
		return "", errors.New("not a DSSE envelope of one signature")
	}
	return env.Signatures[0].Sig, nil
}
