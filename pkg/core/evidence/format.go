// Package evidence builds and verifies evidence packs, which are deterministic
// tar files that prove the events of one session. It also verifies exported
// ledgers and archives of them.
//
// docs/reference/ledger-format.md specifies the formats, and e2e/verifier is an
// independent implementation of them in another language; DESIGN.md describes the states
// of a verification and its invariants. The formats are released: an existing file never
// changes its meaning, and a new file or format name must make older verifiers fail
// rather than ignore it.
//
// Besides the command binnacle-verify, this is the only package of the trusted core that
// reads files. It verifies files from unknown sources, so every read is bounded (see
// MaxPack and MaxLine), and no statement of a file about itself is trusted before it is
// verified against the trusted root.
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

// The values of the manifest's member "format". A pack with events from which inline
// payloads were withheld has FormatRedacted, so that a verifier without support for
// redaction rejects it.
const (
	Format         = "binnacle-evidence-pack/v1"
	FormatRedacted = "binnacle-redacted-pack/v1"
)

// The paths of the files in a pack, apart from pathTip. The tar file is sorted by path.
const (
	pathAttestation  = "attestation.dsse.json"
	pathCheckpoint   = "checkpoint"
	pathCosignatures = "cosignatures"     // witnesses' signature lines over the checkpoint; optional
	pathConsistency  = "consistency.json" // proof that the log extends an earlier checkpoint; optional
	pathDecisions    = "decisions.jsonl"
	pathEvents       = "events.jsonl"
	pathManifest     = "manifest.json"
	pathGraph        = "proofgraph.jsonl"
	pathLeaves       = "leaves.jsonl" // leaf hashes of redacted events; only in a pack with redacted events
	pathProofs       = "proofs.jsonl"
	pathReceipts     = "receipts.jsonl"
	pathSystem       = "system.jsonl" // trust and policy events, and cell_opened, in the order of the ledger
	dirContents      = "contents/"    // salt ‖ bytes of contents that are stored as objects
)

// Manifest lists the files of a pack with their digests. Audit signs it, so its
// signature covers every other file except the attestation, which has its own.
type Manifest struct {
	Events    int64  `json:"events"`
	Files     []File `json:"files"` // all files except manifest and attestation, sorted by path
	Format    string `json:"format"`
	Graph     string `json:"graph_digest"`
	KID       string `json:"kid"`
	Lamport   int64  `json:"lamport"` // greatest Lamport time that the checkpoint covers
	Origin    string `json:"origin"`  // name of the log, as in the checkpoint's origin line
	Receipts  int64  `json:"receipts"`
	RootHash  string `json:"root_hash"`
	Session   string `json:"session"`
	Sig       string `json:"sig,omitempty"`
	Tenant    string `json:"tenant"`
	TipDigest string `json:"tip_digest"` // digest at the end of the session's receipt chain
	TreeSize  int64  `json:"tree_size"`
}

// File is one entry of the manifest: the path, size and SHA-256 in hex of a file
// of the pack.
type File struct {
	Path   string `json:"path"`
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (f *File) Canonical(c *canon.Codec) {
	c.Str("path", &f.Path)
	c.Str("sha256", &f.SHA256)
	c.Int("size", &f.Size)
}

// Canonical implements canon.Document. An unset Sig is absent; the signature covers the
// bytes without it.
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

// Proof is the position of one event in the Merkle tree, with its audit path (RFC
// 6962 section 2.1.1).
type Proof struct {
	Index int64    `json:"index"` // leaf index = stream sequence − 1
	Path  []string `json:"path"`  // hex hashes of the audit path, from the leaf to the root
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (p *Proof) Canonical(c *canon.Codec) {
	c.Int("index", &p.Index)
	c.Strs("path", &p.Path)
}

// growth is the proof that the log of an earlier checkpoint is a prefix of the
// pack's log.
type growth struct {
	From string   `json:"from"` // the earlier checkpoint, a signed note
	Path []string `json:"path"` // hex hashes of the consistency proof (RFC 6962 section 2.1.2)
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (g *growth) Canonical(c *canon.Codec) {
	c.Str("from", &g.From)
	c.Strs("path", &g.Path)
}

// redaction names an event from which payloads are withheld, and the leaf hash of
// its original bytes.
type redaction struct {
	ID   string `json:"id"`
	Leaf string `json:"leaf"` // hex hash of the leaf
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (r *redaction) Canonical(c *canon.Codec) {
	c.Str("id", &r.ID)
	c.Str("leaf", &r.Leaf)
}

// HexPath returns the hashes of a path in lower-case hex, the form of Proof.Path
// and TipProof.Path.
func HexPath(path []translog.Hash) []string {
	out := make([]string, len(path))
	for i, h := range path {
		out[i] = hex.EncodeToString(h[:])
	}
	return out
}

// parsePath parses the hex hashes of a Merkle proof.
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

// parseHash parses a hash in lower-case hex and accepts no other form of it.
func parseHash(s string) (h translog.Hash, ok bool) {
	var text [2 * len(h)]byte
	if copy(text[:], s) != len(s) || len(s) != len(text) {
		return h, false
	}
	for _, c := range text {
		if c >= 'A' && c <= 'F' {
			return h, false
		}
	}
	_, err := hex.Decode(h[:], text[:])
	return h, err == nil
}

const payloadType = "application/vnd.in-toto+json"

// attestation returns the DSSE envelope with an in-toto Statement v1 about the
// manifest, for tools that read in-toto.
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

// statement returns the in-toto Statement v1 whose subject is the manifest.
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

// pae returns the pre-authentication encoding of body (DSSE v1), which is the
// signed message.
func pae(body []byte) []byte {
	return slices.Concat(fmt.Appendf(nil, "DSSEv1 %d %s %d ", len(payloadType), payloadType, len(body)), body)
}

// renderTar writes files in the only accepted form: sorted by path, USTAR
// headers, mode 0644, no owner, modification time 0.
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

// sameTar is an io.Writer that compares the written bytes with want, so that comparing
// needs no second copy of a pack.
type sameTar struct {
	want []byte
	ok   bool
}

// Write implements io.Writer. It never returns an error.
func (s *sameTar) Write(b []byte) (int, error) {
	s.ok = s.ok && bytes.HasPrefix(s.want, b)
	if s.ok {
		s.want = s.want[len(b):]
	}
	return len(b), nil
}

// readTar returns the files of a pack by path. It accepts only bytes that renderTar
// writes: it renders the files again and compares every byte, so that no change of
// headers, order or padding remains undetected.
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

// readEntries reads the files of a tar file. Sizes are checked against the
// remaining bytes before memory is allocated.
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

// lines splits a file into lines, the last of which must end with a newline. An empty
// file has no lines.
func lines(b []byte) ([][]byte, error) {
	if len(b) == 0 {
		return nil, nil
	}
	if b[len(b)-1] != '\n' {
		return nil, errors.New("last line has no newline")
	}
	return bytes.Split(b[:len(b)-1], []byte("\n")), nil
}

// joinLines joins lines and ends each with a newline.
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

// openEvent decodes an event from untrusted bytes, after checking their nesting
// depth.
func openEvent(b []byte) (*contract.Event, error) {
	if err := canon.CheckDepth(b); err != nil {
		return nil, fmt.Errorf("event: %w", err)
	}
	return contract.DecodeEvent(b)
}

// decodeManifest returns the manifest and its canonical bytes without the signature.
func decodeManifest(b []byte) (*Manifest, []byte, error) {
	var m Manifest
	if err := contract.Decode(b, &m); err != nil {
		return nil, nil, err
	}
	body := m
	body.Sig = ""
	return &m, contract.Bytes(&body), nil
}

// attestationSig returns the signature in a DSSE envelope. It returns an error unless
// the envelope has exactly one signature.
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
